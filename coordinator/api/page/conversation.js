// The chat that is shown, and the answers that are on their way: in this chat or in another, they go on.

import { element, find, growing } from "./element.js";
import { Answer, question, sends } from "./message.js";
import { Refusal, ask, events } from "./service.js";
import { request } from "./settings.js";

/** So near to its end a reader follows what comes; pixels. */
const NEAR = 80;

export class Conversation {
  /** By the id of their chat: what stops them, and the view of each as long as its chat is shown. */
  #running = new Map();
  #chat;
  #log = find("log");
  #scroller = find("scroller");
  #field = find("question");
  #status = find("status");
  #fit = growing(this.#field);
  #keep;
  #refused;

  /** `keep` is called when a chat has changed, `refused` when the server asks for a key. */
  constructor({ keep, refused }) {
    this.#keep = keep;
    this.#refused = refused;
    find("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(this.#field.value);
    });
    this.#field.addEventListener("keydown", (event) => {
      if (!sends(event)) return;
      event.preventDefault();
      this.send(this.#field.value);
    });
    find("stop").addEventListener("click", () => this.stop());
    addEventListener("pagehide", () => this.#running.forEach(({ chat }) => this.#keep(chat)));
  }

  /** Shows a chat. */
  open(chat) {
    this.#chat = chat;
    this.#draw();
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  /** The chat that is shown. */
  get chat() {
    return this.#chat;
  }

  /** A chat that is being answered, as it is at this moment. */
  running(id) {
    return this.#running.get(id)?.chat;
  }

  /** Asks; while an answer is on its way nothing else is asked in this chat. */
  send(text) {
    if (!text.trim() || this.#running.has(this.#chat.id)) return;
    this.#chat.messages.push({ role: "user", content: text });
    this.#field.value = "";
    this.#fit();
    this.#answer();
  }

  /** Stops the answer in the chat that is shown, or in another one. */
  stop(id = this.#chat.id) {
    this.#running.get(id)?.controller.abort();
  }

  /** Stops the answer in a chat that is forgotten: nothing of it is kept. */
  abandon(id) {
    const run = this.#running.get(id);
    if (run) run.abandoned = true;
    this.stop(id);
  }

  /** Asks once more what was asked last. */
  #again() {
    if (this.#running.has(this.#chat.id)) return;
    if (this.#chat.messages.at(-1).role === "assistant") this.#chat.messages.pop();
    this.#answer();
  }

  #edit(index, text) {
    if (this.#running.has(this.#chat.id)) return;
    this.#chat.messages.splice(index, Infinity, { role: "user", content: text });
    if (index === 0) this.#chat.title = "";
    this.#answer();
    this.#field.focus();
  }

  #answer() {
    const chat = this.#chat;
    const message = { role: "assistant", content: "" };
    const run = { chat, message, controller: new AbortController(), begun: undefined, frame: undefined };
    const asked = chat.messages.map(({ role, content }) => ({ role, content }));
    chat.messages.push(message);
    this.#running.set(chat.id, run);
    this.#keep(chat);
    this.#draw();
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#read(run, request(asked));
  }

  /** Reads an answer to its end, whatever that is. */
  async #read(run, body) {
    const { message, controller, chat } = run;
    const clock = setInterval(() => this.#grew(run), 250);
    try {
      const wanted = { ...body, stream: true, stream_options: { include_usage: true } };
      const response = await ask("v1/chat/completions", wanted, controller.signal);
      for await (const event of events(response)) {
        take(run, event);
        this.#grew(run);
      }
    } catch (error) {
      if (error.name === "AbortError") message.stopped = true;
      else this.#failed(message, error);
    }
    clearInterval(clock);
    cancelAnimationFrame(run.frame);
    thoughtEnds(run);
    this.#running.delete(chat.id);
    if (run.abandoned) return;
    this.#keep(chat);
    if (chat === this.#chat) this.#ended(run);
  }

  #failed(message, error) {
    if (!(error instanceof Refusal)) console.error(error);
    if (error.status === 401) this.#refused(error.message);
    message.error = { message: error.message, retryAfter: error.retryAfter, at: Date.now() };
  }

  /** Draws what came, at most once for each picture that the screen shows. */
  #grew(run) {
    if (run.chat !== this.#chat || run.frame !== undefined) return;
    run.frame = requestAnimationFrame(() => {
      run.frame = undefined;
      if (run.chat !== this.#chat) return;
      this.#following(() => run.view.grow(thinkingSeconds(run)));
      this.#say(run.message.content ? "Answering" : run.message.reasoning ? "Thinking" : "Reading the question");
    });
  }

  #ended({ view, message }) {
    const ended = message.error ? "" : message.stopped ? "Stopped" : "The answer is complete";
    this.#following(() => {
      view.end(() => this.#again());
      view.element.previousElementSibling.replaceWith(this.#question(this.#chat.messages.length - 2));
    });
    this.#busy(false);
    this.#say(ended);
  }

  /** Draws something, and stays at the end if that is where the reader is. */
  #following(draw) {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    const follows = scrollHeight - scrollTop - clientHeight < NEAR;
    draw();
    if (follows) this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  /** Draws the whole chat. */
  #draw() {
    const { messages, id } = this.#chat;
    const run = this.#running.get(id);
    find("welcome").hidden = messages.length > 0;
    const views = messages.map((message, index) => {
      if (message.role === "user") return this.#question(index);
      const view = new Answer(message);
      if (message === run?.message) {
        run.view = view;
        view.grow(thinkingSeconds(run));
      } else {
        view.end(index === messages.length - 1 ? () => this.#again() : undefined);
      }
      return view.element;
    });
    this.#log.replaceChildren(...views);
    this.#busy(run !== undefined);
    this.#say("");
  }

  /** The view of a question; the last can be changed while nothing is on its way. */
  #question(index) {
    const { messages, id } = this.#chat;
    const isLast = index === messages.findLastIndex(({ role }) => role === "user");
    const edit = isLast && !this.#running.has(id) ? (text) => this.#edit(index, text) : undefined;
    return question(messages[index].content, edit);
  }

  #busy(is) {
    this.#log.setAttribute("aria-busy", is);
    find("send").hidden = is;
    find("stop").hidden = !is;
  }

  /** Says it to those who do not see it. */
  #say(words) {
    if (this.#status.textContent !== words) this.#status.textContent = words;
  }
}

/** Adds what an event brings. */
function take(run, { choices, usage, timings }) {
  const { message } = run;
  const { delta = {}, finish_reason: finish } = choices[0] ?? {};
  if (delta.reasoning_content) {
    run.begun ??= performance.now();
    message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
  }
  if (delta.content) {
    thoughtEnds(run);
    message.content += delta.content;
  }
  if (finish) message.finish = finish;
  if (usage) Object.assign(message, { usage, timings });
}

function thinkingSeconds({ begun }) {
  return begun === undefined ? 0 : (performance.now() - begun) / 1000;
}

function thoughtEnds(run) {
  if (run.begun !== undefined) run.message.seconds ??= thinkingSeconds(run);
}
