// The live row: what every stage holds and does, asked for once a second while it is seen.

import { bytes, duration, element, find, number, plural } from "./element.js";
import { between } from "./rates.js";
import { ask } from "./service.js";
import { Stage, layers, memory } from "./stage.js";

const INTERVAL = 1000;

/** So many changes are remembered by the page. */
const CHANGES = 6;

export class Row {
  #root = find("row");
  #state = element("p", { class: "state", role: "status" });
  #about = element("p", { class: "about" });
  #fault = element("div", { class: "fault", role: "alert", hidden: true });
  #strip = element("div", { class: "strip", "aria-hidden": "true" });
  #figures = element("dl", { class: "figures-grid" });
  #list = element("ol", { class: "stages" });
  #caches = element("section");
  #nodes = element("section");
  #changes = element("section");
  #body = element(
    "div",
    { class: "row-body", hidden: true },
    ...[this.#strip, this.#figures, this.#list, this.#caches, this.#nodes, this.#changes],
  );
  #stages = [];
  #happened = [];
  #before;
  #timer;
  #asking = false;

  constructor() {
    this.#root.append(element("h2", {}, "Live row"), this.#state, this.#about, this.#fault, this.#body);
    document.addEventListener("visibilitychange", () => this.ask());
  }

  /** Asks for the status now, and from then on. */
  async ask() {
    clearTimeout(this.#timer);
    if (this.#asking) return;
    this.#asking = true;
    if (document.visibilityState === "visible" && this.#root.checkVisibility()) await this.#once();
    this.#asking = false;
    this.#timer = setTimeout(() => this.ask(), INTERVAL);
  }

  async #once() {
    try {
      const response = await ask("admin/v1/status");
      this.#show(await response.json());
    } catch (error) {
      this.#missing(error);
    }
  }

  /** The status cannot be had: what was seen last stays, grey. */
  #missing({ status, message }) {
    this.#root.classList.add("stale");
    this.#say("unknown", status === 401 || status === 403 ? "Not shown" : "No answer");
    this.#about.textContent = status === 403 ? `${message} The chat works without it.` : message;
    if (status === 0 && this.#before?.reached !== false) this.#note("The server does not answer");
    this.#before = { ...this.#before, reached: false };
  }

  #show(report) {
    const before = this.#before?.stages && this.#before;
    const rates = between(before, report);
    this.#root.classList.remove("stale");
    this.#body.hidden = false;
    const { ready, draining } = report;
    if (draining) this.#say("waiting", "Ending: nobody is let in");
    else if (ready) this.#say("good", report.moving ? "Serving, and changing" : "Serving");
    else this.#say("bad", "Not serving");
    const { model, architecture, epoch, uptime_seconds: uptime } = report;
    this.#about.textContent = `${model} · ${architecture} · epoch ${epoch} · up ${duration(uptime)}`;
    const lost = report.stages.filter((stage) => isLost(report, stage));
    this.#faulty(report, lost);
    if (before) for (const change of changes(before, report)) this.#note(change);
    this.#row(report, rates);
    this.#count(report, rates);
    this.#caches.replaceChildren(...cacheTable(report.cache));
    this.#nodes.replaceChildren(...nodeList(report));
    this.#before = report;
  }

  #say(kind, words) {
    this.#state.dataset.kind = kind;
    if (this.#state.textContent !== words) this.#state.textContent = words;
  }

  /** What is wrong, in the service's words, and what would help. */
  #faulty({ broken, moving, interrupted }, lost) {
    const said = [broken, moving && `The row changes: ${moving}`].filter(Boolean);
    if (broken && lost.length > 0) {
      const missing = lost.map((stage) => `layers ${layers(stage)}`).join(" and ");
      said.push(`It waits for a shard that takes ${missing}.`);
    }
    if (broken && interrupted > 0) said.push(`${plural(interrupted, "answer")} will go on then.`);
    const words = said.join("\n");
    this.#fault.hidden = said.length === 0;
    if (this.#fault.textContent !== words) this.#fault.textContent = words;
  }

  /** The stages; they are made anew only when the row is another. */
  #row(report, rates) {
    const { stages, nodes } = report;
    const same = (shown, index) => shown.identity === identity(stages[index]);
    if (this.#stages.length !== stages.length || !this.#stages.every(same)) {
      this.#stages = stages.map((card, index) => ({ identity: identity(card), view: new Stage({ card, index }) }));
      this.#list.replaceChildren(...this.#stages.map(({ view }) => view.element));
    }
    const most = Math.max(1, ...stages.map((stage) => memory(stage).total));
    const parts = stages.map((stage, index) => {
      const [busy, sent] = [rates?.busy[index], rates?.sent[index]];
      const budget = nodes.find(({ node }) => node === stage.node)?.memory_bytes;
      const gone = isLost(report, stage);
      const isTail = index === stages.length - 1;
      this.#stages[index].view.update(stage, { busy, sent, most, budget, isLost: gone, isTail });
      const part = element("span", { class: gone ? "part gone" : "part" }, layers(stage));
      part.style.flexGrow = stage.layers.end - stage.layers.start;
      part.style.setProperty("--busy", busy ?? 0);
      return part;
    });
    this.#strip.replaceChildren(...parts);
  }

  #count(report, rates) {
    const { running, slots, waiting, pages, pages_used: used, pages_reserved: promised, drafts } = report;
    const speed = (value) => (value === undefined ? "–" : number(value));
    const percent = (part) => `${Math.round(part * 100)}%`;
    const more = (count, word) => (count > 0 ? `, ${number(count)} ${word}` : "");
    const { run, accepted } = drafts;
    const waits = rates && rates.creditWait > 0.005 && `${percent(rates.creditWait)} of the time one more was ready`;
    this.#figures.replaceChildren(
      figure("Answers", speed(rates?.answers), "tokens/s"),
      figure("Prompts", speed(rates?.prompts), "tokens/s"),
      figure("Sessions", `${running}`, `of ${slots}${more(waiting, "waiting")}`, share(running, slots)),
      figure("Steps in flight", `${report.steps_in_flight}`, `of ${report.credits}`, dots(report), waits),
      figure("Pages", number(used), `of ${number(pages)}${more(promised, "promised")}`, share(used + promised, pages)),
      figure("Drafts right", run > 0 ? percent(accepted / run) : "–", `of ${number(run)}`, share(accepted, run)),
    );
  }

  /** Remembers a change, with its time. */
  #note(words) {
    const time = new Date().toLocaleTimeString("en-GB");
    this.#happened = [element("li", {}, element("time", {}, time), ` ${words}`), ...this.#happened].slice(0, CHANGES);
    const list = element("ul", { class: "changes" }, ...this.#happened);
    this.#changes.replaceChildren(element("h3", {}, "What happened"), list);
  }
}

/** What makes a stage another one. */
const identity = (stage) => JSON.stringify([stage.node, stage.host, stage.device, stage.layers]);

/** In a cluster, a stage whose node is no longer there. */
const isLost = ({ epoch, nodes, broken }, stage) =>
  epoch > 0 && broken !== null && stage.node !== "" && !nodes.some(({ node }) => node === stage.node);

/** What is another now than it was. */
function changes(before, after) {
  const names = ({ nodes }) => new Map(nodes.map(({ node, host }) => [node, `Node ${node.slice(0, 8)} on ${host}`]));
  const [old, now] = [names(before), names(after)];
  const found = [];
  if (before.reached === false) found.push("The server answers again");
  for (const [node, name] of now) if (!old.has(node)) found.push(`${name} joined`);
  for (const [node, name] of old) if (!now.has(node)) found.push(`${name} left`);
  if (after.broken !== null && after.broken !== before.broken) found.push(`Not serving: ${after.broken}`);
  if (after.epoch !== before.epoch) found.push(`The layers were placed, epoch ${after.epoch}`);
  if (after.ready && !before.ready) found.push("Serving again");
  return found;
}

function figure(name, value, unit, below, more) {
  const rest = [" ", element("span", { class: "unit" }, unit), below, more && element("span", { class: "more" }, more)];
  return element("div", {}, element("dt", {}, name), element("dd", {}, element("strong", {}, value), ...rest));
}

/** A bar that is full as far as a part is of a whole. */
function share(part, whole) {
  const filled = element("span");
  filled.style.width = `${whole > 0 ? Math.min((part / whole) * 100, 100) : 0}%`;
  return element("span", { class: "share-bar", "aria-hidden": "true" }, filled);
}

/** A dot for each step that may be in flight, as far as they can be counted. */
function dots({ steps_in_flight: flying, credits }) {
  if (credits > 16) return share(flying, credits);
  const made = Array.from({ length: credits }, (_, index) => element("i", { class: index < flying ? "on" : "off" }));
  return element("span", { class: "dots", "aria-hidden": "true" }, ...made);
}

/** What is remembered of texts, by where it is. */
function cacheTable({ disk, hits, lookups, cached_tokens: tokens, pages, page_bytes, snapshots, snapshot_bytes }) {
  const row = (...cells) => {
    const [first, ...rest] = cells;
    return element("tr", {}, element("th", { scope: "row" }, first), ...rest.map((cell) => element("td", {}, cell)));
  };
  const device = `${plural(pages, "page")}, ${plural(snapshots, "state")}`;
  const rows = [row("devices", device, bytes(page_bytes + snapshot_bytes))];
  if (disk) rows.push(row("disks", `${number(disk.entries)} entries`, `${bytes(disk.bytes)} of ${bytes(disk.budget)}`));
  const hit = lookups > 0 ? `${number(hits)} of ${plural(lookups, "prompt")} found a beginning there` : "No prompt yet";
  const saved = `${plural(tokens, "token")} not read again${disk ? `, ${number(disk.tokens)} from disks` : ""}`;
  return [
    element("h3", {}, "Remembered"),
    element("table", { class: "caches" }, element("tbody", {}, ...rows)),
    element("p", { class: "note" }, `${hit}: ${saved}.`),
  ];
}

/** The nodes of a cluster that have no stage. */
function nodeList({ nodes, stages }) {
  const free = nodes.filter(({ node }) => !stages.some((stage) => stage.node === node));
  if (free.length === 0) return [];
  const duty = ({ drained, standby }) => (drained ? "drained" : standby ? "on standby" : "free");
  const words = (node) => `${node.node.slice(0, 8)} on ${node.host} · ${node.device} · ${duty(node)}`;
  const items = free.map((node) => element("li", {}, words(node)));
  return [element("h3", {}, "Nodes without layers"), element("ul", { class: "changes" }, ...items)];
}
