// What is asked for with every question: the system prompt, thinking, and how tokens are chosen. What is left empty is
// not sent, and the server's own settings hold; what it does not take it says itself.

import { find } from "./element.js";
import { key } from "./service.js";
import { lasting } from "./storage.js";

const KEPT = "paceline.settings";

/** Fields of the request that are numbers, by the names that the API has for them. */
const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];

/** The settings, as the fields of the dialog have them. */
function values() {
  try {
    return JSON.parse(lasting.getItem(KEPT)) ?? {};
  } catch {
    return {};
  }
}

/** The fields of a request that these settings make, with the system prompt before the messages. */
export function request(messages) {
  const { system, thinking, ...numbers } = values();
  const body = { messages: system ? [{ role: "system", content: system }, ...messages] : messages };
  for (const name of NUMBERS) if (numbers[name]) body[name] = Number(numbers[name]);
  if (thinking) body.enable_thinking = thinking === "on";
  return body;
}

/** Opens the dialog by its button, and keeps what is in it when it closes. */
export function start() {
  const dialog = find("settings");
  const form = find("settings-form");
  find("open-settings").addEventListener("click", () => {
    const kept = values();
    for (const field of fields(form)) field.value = kept[field.name] ?? "";
    find("forget-key").hidden = !key.get();
    dialog.showModal();
  });
  find("reset-settings").addEventListener("click", () => {
    for (const field of fields(form)) field.value = "";
  });
  find("forget-key").addEventListener("click", () => {
    key.forget();
    location.reload();
  });
  // A click beside it closes it as Escape does.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.addEventListener("close", () => {
    const filled = fields(form).filter((field) => field.value.trim());
    lasting.setItem(KEPT, JSON.stringify(Object.fromEntries(filled.map((field) => [field.name, field.value]))));
  });
}

const fields = (form) => [...form.elements].filter((field) => field.name);
