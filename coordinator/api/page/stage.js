// One stage of the row: where it is, what it holds, and how busy it was in the last minute.

import { bytes, drawing, element } from "./element.js";

/** So many samples, one a second, are drawn. */
const SAMPLES = 60;

const HEIGHT = 24;

/** What memory is for, in the order in which it is drawn. */
const KINDS = [["weights", "weights"], ["key_value", "keys and values"], ["states", "states"], ["buffers", "buffers"]];

/** Memory of a stage in bytes: what its device reserved, or before that what was planned. */
export function memory({ memory: { actual, planned } }) {
  const total = (of) => Object.values(of).reduce((sum, part) => sum + part, 0);
  const of = total(actual) > 0 ? actual : planned;
  return { of, total: total(of) };
}

/** Layers as people count them, from the first to the last. */
export const layers = ({ layers: { start, end } }) => `${start}–${end - 1}`;

export class Stage {
  #busy = element("span", { class: "share" });
  #line = drawing("polyline", { class: "line" });
  #area = drawing("polygon", { class: "area" });
  #bar = element("div", { class: "memory" });
  #words = element("p", { class: "memory-words" });
  #lost = element("p", { class: "lost", hidden: true }, "This shard is gone.");
  #link = element("p", { class: "link" });
  #samples = [];
  element;

  constructor({ card, index }) {
    const viewBox = `0 0 ${SAMPLES - 1} ${HEIGHT}`;
    const chart = { viewBox, preserveAspectRatio: "none", class: "chart", "aria-hidden": "true" };
    const names = [element("h3", {}, `Stage ${index}`), element("span", {}, `layers ${layers(card)}`)];
    const node = card.node && element("span", { class: "node", title: card.node }, ` · ${card.node.slice(0, 8)}`);
    this.element = element(
      "li",
      { class: "stage" },
      element(
        "div",
        { class: "card" },
        element("div", { class: "head" }, ...names, this.#busy),
        element("p", { class: "where" }, element("span", {}, card.host), node, ` · ${card.device}`),
        this.#lost,
        drawing("svg", chart, this.#area, this.#line),
        this.#bar,
        this.#words,
      ),
      this.#link,
    );
  }

  /** Shows a newer sample. `busy` is undefined where it is not known; `most` is the memory of the largest stage. */
  update(card, { busy, sent, most, budget, isLost, isTail }) {
    this.element.classList.toggle("gone", isLost);
    this.#lost.hidden = !isLost;
    this.#busy.textContent = busy === undefined ? "" : `${Math.round(busy * 100)}% busy`;
    this.#samples = [...this.#samples, isLost ? 0 : (busy ?? 0)].slice(-SAMPLES);
    this.#draw();
    this.#remembers(card, most, budget);
    this.#link.hidden = !card.link;
    if (card.link) this.#link.textContent = linkWords(card.link, sent, isTail);
  }

  #draw() {
    const first = SAMPLES - this.#samples.length;
    const height = (share) => (HEIGHT - 1 - share * (HEIGHT - 2)).toFixed(1);
    const points = this.#samples.map((share, index) => `${first + index},${height(share)}`);
    this.#line.setAttribute("points", points.join(" "));
    this.#area.setAttribute("points", [`${first},${HEIGHT}`, ...points, `${SAMPLES - 1},${HEIGHT}`].join(" "));
  }

  #remembers(card, most, budget) {
    const { of, total } = memory(card);
    const parts = KINDS.filter(([kind]) => of[kind] > 0).map(([kind, words]) => {
      const part = element("span", { class: kind, title: `${words}: ${bytes(of[kind])}` });
      part.style.width = `${(of[kind] / most) * 100}%`;
      return part;
    });
    this.#bar.replaceChildren(...parts);
    const words = KINDS.filter(([kind]) => of[kind] > 0).map(([kind, name]) => `${bytes(of[kind])} ${name}`);
    const whole = budget ? `${bytes(total)} of ${bytes(budget)}` : bytes(total);
    this.#words.replaceChildren(element("strong", {}, whole), ` · ${words.join(" · ")}`);
  }
}

/** What carries activations on, or at the tail the results back. */
function linkWords({ carrier, round_trip_micros: trip }, sent, isTail) {
  const parts = [isTail ? `${carrier}, to the coordinator` : carrier];
  if (trip !== null) parts.push(`${(trip / 1000).toFixed(2)} ms`);
  if (sent !== undefined && !isTail) parts.push(`${bytes(Math.round(sent))}/s`);
  return parts.join(" · ");
}
