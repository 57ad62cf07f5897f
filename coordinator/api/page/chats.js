// The chats, kept by this browser: a bounded number of a bounded length, each under a name of its own, so that several
// tabs do not write over each other's.

import { lasting } from "./storage.js";

const PREFIX = "paceline.chat.";

/** The most chats that are kept; the oldest go first. */
const MOST = 50;

/** The most characters of all of them together: browsers give a page about five million. */
const MOST_CHARACTERS = 2_000_000;

const TITLE_CHARACTERS = 60;

/** A chat without a message; it is kept from its first one on. */
export function fresh() {
  const random = crypto.getRandomValues(new Uint32Array(3));
  return { id: [...random].map((part) => part.toString(36)).join(""), title: "", changed: Date.now(), messages: [] };
}

/** Every chat that is kept, the newest first. */
export function all() {
  return stored().map(({ chat }) => chat);
}

/** Keeps a chat as it is now; returns what the reader must know if it cannot be. */
export function keep(chat) {
  chat.changed = Date.now();
  chat.title ||= chat.messages[0].content.trim().replace(/\s+/g, " ").slice(0, TITLE_CHARACTERS);
  const text = JSON.stringify(chat);
  if (text.length > MOST_CHARACTERS) return "This chat is too long for the browser to keep: it goes with this page.";
  const others = stored().filter((other) => other.chat.id !== chat.id);
  const sizes = others.map((other) => other.text.length);
  let sum = text.length + sizes.reduce((total, size) => total + size, 0);
  while (others.length >= MOST || sum > MOST_CHARACTERS) {
    const oldest = others.pop();
    sum -= oldest.text.length;
    forget(oldest.chat.id);
  }
  for (;;) {
    try {
      lasting.setItem(PREFIX + chat.id, text);
      return undefined;
    } catch {
      // The browser has less room than most. The oldest goes until it fits.
      const oldest = others.pop();
      if (!oldest) return "The browser keeps nothing for this page: this chat goes with it.";
      forget(oldest.chat.id);
    }
  }
}

/** Forgets a chat. */
export function forget(id) {
  lasting.removeItem(PREFIX + id);
}

/** Calls `changed` when another tab keeps or forgets a chat. */
export function watch(changed) {
  addEventListener("storage", (event) => {
    if (event.key === null || event.key.startsWith(PREFIX)) changed();
  });
}

function stored() {
  const found = [];
  for (let index = 0; index < lasting.length; index += 1) {
    const name = lasting.key(index);
    if (!name.startsWith(PREFIX)) continue;
    const text = lasting.getItem(name);
    const chat = read(text);
    if (chat && PREFIX + chat.id === name) found.push({ chat, text });
  }
  return found.sort((left, right) => right.chat.changed - left.chat.changed);
}

/** A chat as it was kept; nothing for what is none, such as one of an older version of this page. */
function read(text) {
  let chat;
  try {
    chat = JSON.parse(text);
  } catch {
    return undefined;
  }
  const isMessage = ({ role, content }) => ["user", "assistant"].includes(role) && typeof content === "string";
  const whole = typeof chat?.id === "string" && typeof chat.title === "string" && Number.isFinite(chat.changed);
  return whole && chat.messages?.length > 0 && chat.messages.every(isMessage) ? chat : undefined;
}
