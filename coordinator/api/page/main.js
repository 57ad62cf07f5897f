// The page as a whole: which chat is shown, what the server is, and what is where.

import * as chats from "./chats.js";
import { Conversation } from "./conversation.js";
import { element, find, icon } from "./element.js";
import { Row } from "./row.js";
import { ask, key } from "./service.js";
import * as settings from "./settings.js";
import { lasting } from "./storage.js";

const conversation = new Conversation({ keep, refused: wantKey });
const row = new Row();

function keep(chat) {
  notice(chats.keep(chat));
  list();
}

function notice(words) {
  find("notice").textContent = words ?? "";
  find("notice").hidden = !words;
}

/** Shows a chat and goes to the field for the next question. */
function open(chat) {
  conversation.open(conversation.running(chat.id) ?? chat);
  list();
  view("chat");
  find("question").focus();
}

function list() {
  const items = chats.all().map((chat) => {
    const remove = element(
      "button",
      { type: "button", class: "quiet", "aria-label": `Delete ${chat.title}`, onclick: () => forget(chat) },
      icon("cross"),
    );
    const current = chat.id === conversation.chat.id ? "true" : undefined;
    const show = { type: "button", class: "chat", "aria-current": current, onclick: () => open(chat) };
    const answering = conversation.running(chat.id) ? "answering" : undefined;
    return element("li", { class: answering }, element("button", show, chat.title), remove);
  });
  find("chats").replaceChildren(...items);
}

function forget(chat) {
  conversation.abandon(chat.id);
  chats.forget(chat.id);
  if (chat.id === conversation.chat.id) open(chats.fresh());
  else list();
}

/** On narrow screens one of the three is shown: `chats`, `chat` or `row`. */
function view(name) {
  document.body.dataset.view = name;
  for (const tab of document.querySelectorAll("[data-shows]")) {
    tab.setAttribute("aria-pressed", tab.dataset.shows === name);
  }
  row.ask();
}

function wantKey(words) {
  find("key-words").textContent = words;
  find("key-form").hidden = false;
  find("key").focus();
}

/** Asks the server what it is; it may want to see a key first. */
async function meet() {
  try {
    const { data } = await (await ask("v1/models")).json();
    const model = data.find((one) => one.capabilities.completions) ?? data[0];
    find("model").textContent = model.id;
    find("model").title = `${model.meta.architecture}, ${model.max_model_len} tokens of context`;
    find("welcome-model").textContent = model.id;
    document.title = `${model.id} · Paceline`;
    find("key-form").hidden = true;
    const mute = "This model has no chat template: it completes texts, but it does not chat.";
    notice(model.capabilities.chat === false ? mute : undefined);
  } catch (error) {
    if (error.status === 401) wantKey(error.message);
    else notice(error.message);
  }
  row.ask();
}

function theme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const root = document.documentElement;
  const other = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
  if (other === system) {
    delete root.dataset.theme;
    lasting.removeItem("paceline.theme");
  } else {
    root.dataset.theme = other;
    lasting.setItem("paceline.theme", other);
  }
}

find("new-chat").addEventListener("click", () => open(chats.fresh()));
find("theme").addEventListener("click", theme);
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(find("key").value.trim());
  find("key").value = "";
  meet();
  find("question").focus();
});
for (const tab of document.querySelectorAll("[data-shows]")) {
  tab.addEventListener("click", () => view(tab.dataset.shows));
}
for (const suggestion of document.querySelectorAll(".suggestion")) {
  suggestion.addEventListener("click", () => conversation.send(suggestion.textContent.trim()));
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !find("settings").open) conversation.stop();
});
// What another tab does to the chat that is shown here is seen when it is opened again.
chats.watch(list);
settings.start();
open(chats.fresh());
meet();
