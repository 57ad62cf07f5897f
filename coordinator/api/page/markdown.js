// Markdown as models write it, made into elements. Whatever is in the text stays text: nothing here makes markup out of
// it, links lead to web and mail addresses only, and pictures are links, for they would tell others what is read here.

import { copyButton, element } from "./element.js";

/** Lists in quotes in lists: deeper than this they are plain text. */
const DEEPEST = 12;

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}>/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:\s+|$)(.*)$/;
const DELIMITERS = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const BLANK = /^\s*$/;

/** A text that grows: only the blocks that changed are made anew. */
export class Markdown {
  #root;
  #blocks = [];

  constructor(root) {
    this.#root = root;
  }

  /** Shows `text`. */
  update(text) {
    const blocks = split(text.replaceAll("\r\n", "\n").split("\n"));
    let same = 0;
    while (same < blocks.length && this.#blocks[same]?.key === blocks[same].key) same += 1;
    for (const { node } of this.#blocks.splice(same)) node.remove();
    for (const block of blocks.slice(same)) {
      const node = build(block, 0);
      this.#blocks.push({ key: block.key, node });
      this.#root.append(node);
    }
  }
}

/** Cuts lines into blocks of one kind each. */
function split(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (BLANK.test(lines[at])) {
      at += 1;
      continue;
    }
    const [kind, end] = extent(lines, at);
    const own = lines.slice(at, end);
    blocks.push({ kind, lines: own, key: `${kind}\n${own.join("\n")}` });
    at = end;
  }
  return blocks;
}

/** The kind of the block that begins at a line, and the line behind its last. */
function extent(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return ["code", fenceEnd(lines, at, fence[1])];
  if (HEADING.test(line)) return ["heading", at + 1];
  if (RULE.test(line)) return ["rule", at + 1];
  const goingOn = (holds) => {
    let end = at + 1;
    while (end < lines.length && holds(lines[end])) end += 1;
    return end;
  };
  if (QUOTE.test(line)) return ["quote", goingOn((next) => QUOTE.test(next))];
  if (ITEM.test(line)) return ["list", listEnd(lines, at)];
  if (isTable(lines, at)) return ["table", goingOn((next) => next.includes("|"))];
  const ends = (next, index) => BLANK.test(next) || startsBlock(next) || isTable(lines, index);
  let end = at + 1;
  while (end < lines.length && !ends(lines[end], end)) end += 1;
  return ["paragraph", end];
}

const startsBlock = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((begin) => begin.test(line));

const isTable = (lines, at) =>
  lines[at].includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && DELIMITERS.test(lines[at + 1]);

/** A fence that is not closed yet goes to the end. */
function fenceEnd(lines, at, mark) {
  for (let end = at + 1; end < lines.length; end += 1) {
    const line = lines[end].trim();
    if (line.length >= mark.length && line === mark[0].repeat(line.length)) return end + 1;
  }
  return lines.length;
}

/** A list goes on over blank lines as long as items of its kind, or lines that are indented, follow. */
function listEnd(lines, at) {
  const isOrdered = (line) => /^ *\d/.test(line);
  let end = at + 1;
  for (let next = end; next < lines.length; next += 1) {
    const line = lines[next];
    if (BLANK.test(line)) continue;
    const indented = /^\s{2,}/.test(line);
    const goesOn = !BLANK.test(lines[next - 1]) && !startsBlock(line);
    const isItem = ITEM.test(line) && !RULE.test(line) && isOrdered(line) === isOrdered(lines[at]);
    if (!isItem && !indented && !goesOn) break;
    end = next + 1;
  }
  return end;
}

function build({ kind, lines }, depth) {
  if (depth > DEEPEST) return element("p", {}, lines.join("\n"));
  switch (kind) {
    case "code":
      return code(lines);
    case "heading": {
      const [, marks, text] = HEADING.exec(lines[0]);
      // The page has headings of its own above these.
      return element(`h${Math.min(marks.length + 2, 6)}`, {}, ...inline(text ?? ""));
    }
    case "rule":
      return element("hr");
    case "quote": {
      const inner = lines.map((line) => line.replace(/^ {0,3}> ?/, ""));
      return element("blockquote", {}, ...split(inner).map((block) => build(block, depth + 1)));
    }
    case "list":
      return list(lines, depth);
    case "table":
      return table(lines);
    default:
      return element("p", {}, ...inline(lines.map((line) => line.trim()).join("\n")));
  }
}

function code(lines) {
  const [, mark, language] = FENCE.exec(lines[0]);
  const last = lines.at(-1).trim();
  const closed = lines.length > 1 && last.length >= mark.length && last === mark[0].repeat(last.length);
  const text = lines.slice(1, closed ? -1 : undefined).join("\n");
  return element(
    "figure",
    { class: "code" },
    element("figcaption", {}, element("span", {}, language || "text"), copyButton(() => text, "the code")),
    element("pre", { tabindex: "0" }, element("code", {}, text)),
  );
}

function list(lines, depth) {
  const [, outer, first] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(first);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= outer.length + 1 && !RULE.test(line)) items.push([item[3]]);
    else items.at(-1).push(line);
  }
  const start = ordered && Number.parseInt(first, 10) !== 1 ? Number.parseInt(first, 10) : undefined;
  return element(ordered ? "ol" : "ul", { start }, ...items.map((item) => listItem(item, depth)));
}

function listItem([first, ...rest], depth) {
  const filled = rest.filter((line) => !BLANK.test(line));
  const indent = Math.min(...filled.map((line) => line.search(/\S/)), 8);
  const blocks = split([first, ...rest.map((line) => line.slice(Math.min(indent, Math.max(line.search(/\S/), 0))))]);
  const nodes = blocks.map((block) => build(block, depth + 1));
  // A line of text needs no paragraph of its own.
  if (nodes[0]?.localName === "p") nodes.splice(0, 1, ...nodes[0].childNodes);
  return element("li", {}, ...nodes);
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/);
  const row = (line, name) => {
    const made = cells(line).map((cell) => element(name, {}, ...inline(cell.trim().replaceAll("\\|", "|"))));
    return element("tr", {}, ...made);
  };
  return element(
    "div",
    { class: "table", tabindex: "0" },
    element(
      "table",
      {},
      element("thead", {}, row(lines[0], "th")),
      element("tbody", {}, ...lines.slice(2).map((line) => row(line, "td"))),
    ),
  );
}

/** Texts in pairs of these are what the element says, the longest first. */
const PAIRS = [["***", "strong"], ["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];

const SPECIAL = /[\\`*_~[!h\n]/g;

/** A text with emphasis, code and links, as nodes. */
function inline(text, depth = 0) {
  const nodes = [];
  let plain = "";
  /** Marks that nothing closes from here on: looking for each again and again would take forever. */
  const unclosed = new Set();
  const push = (node) => {
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(node);
  };
  for (let at = 0; at < text.length; ) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, next);
    at = next;
    if (at === text.length) break;
    const found = depth < DEEPEST && span(text, at, unclosed, depth);
    if (found) {
      push(found.node);
      at = found.end;
    } else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else {
      // A run of one character is looked at once.
      const run = /^(.)\1*/s.exec(text.slice(at, at + 200))[0];
      const taken = "`*_~".includes(text[at]) ? run : text[at];
      plain += taken;
      at += taken.length;
    }
  }
  if (plain) nodes.push(plain);
  return nodes;
}

/** What begins at a special character, and where it ends; nothing if it is only a character. */
function span(text, at, unclosed, depth) {
  switch (text[at]) {
    case "\n":
      return { node: element("br"), end: at + 1 };
    case "`":
      return codeSpan(text, at, unclosed);
    case "[":
      return link(text, at, at, unclosed, depth);
    case "!":
      return text[at + 1] === "[" ? link(text, at + 1, at, unclosed, depth) : undefined;
    case "h":
      return bareLink(text, at);
    default:
      return emphasis(text, at, unclosed, depth);
  }
}

function closing(text, mark, from, unclosed) {
  if (unclosed.has(mark)) return -1;
  const end = text.indexOf(mark, from);
  if (end < 0) unclosed.add(mark);
  return end;
}

function codeSpan(text, at, unclosed) {
  const mark = /^`{1,200}/.exec(text.slice(at, at + 200))[0];
  for (let end = closing(text, mark, at + mark.length, unclosed); end >= 0; ) {
    const run = /^`+/.exec(text.slice(end))[0].length;
    if (run === mark.length) {
      const inner = text.slice(at + run, end).replaceAll("\n", " ");
      const bare = /^ .*[^ ].* $/.test(inner) ? inner.slice(1, -1) : inner;
      return { node: element("code", {}, bare), end: end + run };
    }
    end = text.indexOf(mark, end + run);
    if (end < 0) unclosed.add(mark);
  }
  return undefined;
}

function emphasis(text, at, unclosed, depth) {
  const isWord = (character) => /[\p{L}\p{N}]/u.test(character ?? "");
  for (const [mark, name] of PAIRS) {
    if (!text.startsWith(mark, at) || unclosed.has(mark)) continue;
    const begin = at + mark.length;
    if (!text[begin] || /\s/.test(text[begin]) || text[begin] === mark[0]) continue;
    if (mark[0] === "_" && isWord(text[at - 1])) continue;
    for (let end = closing(text, mark, begin, unclosed); end >= 0; end = text.indexOf(mark, end + mark.length)) {
      const after = end + mark.length;
      // Of three, the last two close what two opened.
      const whole = mark.length > 1 ? text[after] !== mark[0] : text[end - 1] !== mark[0] && text[after] !== mark[0];
      if (/\s/.test(text[end - 1]) || !whole || (mark[0] === "_" && isWord(text[after]))) continue;
      const inner = inline(text.slice(begin, end), depth + 1);
      const node = mark.length === 3 ? element(name, {}, element("em", {}, ...inner)) : element(name, {}, ...inner);
      return { node, end: after };
    }
    unclosed.add(mark);
  }
  return undefined;
}

const TARGET = /^\]\(\s*<?((?:[^\s<>()]|\([^\s<>()]*\))*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/;

/** `[words](address)`, or a picture, which `from` begins a character earlier. */
function link(text, at, from, unclosed, depth) {
  if (unclosed.has("](")) return undefined;
  const end = text.indexOf("](", at);
  if (end < 0) unclosed.add("](");
  const words = text.slice(at + 1, Math.max(end, at + 1));
  const target = end < 0 || words.includes("[") ? undefined : TARGET.exec(text.slice(end, end + 2100));
  const node = target && anchor(target[1], inline(words || target[1], depth + 1));
  return node && { node, end: end + target[0].length };
}

function bareLink(text, at) {
  const address = /^https?:\/\/[^\s<>"'`)\]*]{1,2000}/.exec(text.slice(at, at + 2010))?.[0].replace(/[.,;:!?]+$/, "");
  const node = address && anchor(address, [address]);
  return node && { node, end: at + address.length };
}

/** A link to the web or to a mail address; nothing for every other kind, such as scripts. */
function anchor(address, words) {
  if (!/^(https?:\/\/|mailto:)/i.test(address) || !URL.canParse(address)) return undefined;
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, ...words);
}
