// How one message looks, while it grows and afterwards.

import { action, copyButton, element, growing, number, plural, shortly } from "./element.js";
import { Markdown } from "./markdown.js";

/** A question. `onedit` is called with the new text; without it the question stays as it is. */
export function question(text, onedit) {
  const body = element("div", { class: "bubble" }, text);
  const edit = onedit && action("Edit", () => change(view, text, onedit), { "aria-label": "Edit this question" });
  const below = tools(copyButton(() => text, "this question"), edit);
  const view = element("article", { class: "question", "aria-label": "You" }, body, below);
  return view;
}

function change(view, text, onedit) {
  const before = [...view.childNodes];
  const field = element("textarea", { "aria-label": "The question", rows: "1" });
  field.value = text;
  const back = () => {
    view.replaceChildren(...before);
    view.querySelector("button:last-of-type")?.focus();
  };
  const form = element(
    "form",
    {
      class: "edit",
      onsubmit: (event) => {
        event.preventDefault();
        if (field.value.trim()) onedit(field.value);
      },
      onkeydown: (event) => {
        if (event.key === "Escape") back();
        else if (!sends(event)) return;
        else form.requestSubmit();
        event.preventDefault();
        event.stopPropagation();
      },
    },
    field,
    tools(action("Cancel", back), element("button", { class: "action primary" }, "Ask again")),
  );
  view.replaceChildren(form);
  growing(field)();
  field.focus();
  field.setSelectionRange(text.length, text.length);
}

/** Whether a key sends what is written: Enter alone, unless it chooses a word in an input method. */
export const sends = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;

const tools = (...buttons) => element("div", { class: "tools" }, ...buttons);

/** An answer: what was thought, what is said, what went wrong, and what it took. */
export class Answer {
  #message;
  #summary = element("summary");
  #reasoning = element("div", { class: "reasoning" });
  #thoughts = element("details", { class: "thoughts", hidden: true }, this.#summary, this.#reasoning);
  #text = element("div", { class: "text" });
  #markdown = new Markdown(this.#text);
  #below = element("div", { class: "below" });
  element = element("article", { class: "answer", "aria-label": "The model" }, this.#thoughts, this.#text, this.#below);

  constructor(message) {
    this.#message = message;
    // What is folded is not drawn while it streams.
    this.#thoughts.addEventListener("toggle", () => this.#showReasoning());
  }

  /** Shows what has come so far. `thinking` are the seconds so far while nothing else has come. */
  grow(thinking) {
    const { content, reasoning, seconds } = this.#message;
    this.element.classList.add("growing");
    this.#thoughts.hidden = !reasoning;
    this.#thoughts.classList.toggle("running", seconds === undefined);
    this.#summary.textContent =
      seconds === undefined ? `Thinking for ${Math.floor(thinking)} s` : `Thought for ${shortly(seconds)}`;
    this.#showReasoning();
    this.#markdown.update(content);
  }

  #showReasoning() {
    const { reasoning = "" } = this.#message;
    if (!this.#thoughts.open) return;
    const shown = this.#reasoning.textContent;
    // Only what is new is added, so that a selection stays.
    if (reasoning.startsWith(shown)) this.#reasoning.append(reasoning.slice(shown.length));
    else this.#reasoning.textContent = reasoning;
  }

  /** Shows it complete; `again` asks for another answer, where that is possible. */
  end(again) {
    this.grow(0);
    this.element.classList.remove("growing");
    const { content, error, stopped, finish } = this.#message;
    const ended = stopped ? "Stopped." : finish === "length" && "It ended at the limit of tokens.";
    const copy = content && copyButton(() => content, "this answer");
    const more = again && !error && action("Regenerate", again, { class: "action again" });
    const note = ended && element("p", { class: "note" }, ended);
    const taken = element("span", { class: "figures" }, figures(this.#message));
    this.#below.replaceChildren(...[error && failure(error, again), note, tools(copy, more, taken)].filter(Boolean));
  }
}

/** What went wrong in the server's own words; where it says when to come again, the button waits for that. */
function failure({ message, retryAfter, at }, again) {
  const retry = again && action("Try again", again, { class: "action again primary" });
  const view = element("div", { class: "failure", role: "alert" }, element("p", {}, message), retry);
  const due = at + (retryAfter ?? 0) * 1000;
  const count = () => {
    const left = Math.ceil((due - Date.now()) / 1000);
    retry.disabled = left > 0;
    retry.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left > 0 && (view.isConnected || left === retryAfter)) setTimeout(count, 250);
  };
  if (retry && retryAfter) count();
  return view;
}

/** What an answer took, in a line. */
function figures({ usage, timings }) {
  if (!usage || !timings) return "";
  const cached = usage.prompt_tokens_details.cached_tokens;
  const parts = [plural(usage.completion_tokens, "token")];
  if (timings.predicted_per_second > 0) parts.push(`${number(timings.predicted_per_second)} tokens/s`);
  parts.push(`first after ${number(timings.queued_ms + timings.prompt_ms)} ms`);
  const tier = cached > 0 ? ` (${timings.cache_tier})` : "";
  parts.push(`prompt ${number(usage.prompt_tokens)}, ${number(cached)} cached${tier}`);
  if (timings.draft_n > 0) parts.push(`drafts ${number(timings.draft_n_accepted)} of ${number(timings.draft_n)}`);
  return parts.join(" · ");
}
