// Making elements. Texts become text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** The element with an id. */
export const find = (id) => document.getElementById(id);

/** An element: `element("p", { class: "note", onclick }, "text", child)`. Booleans switch attributes on and off,
 * and children that are nothing are left out. */
export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for drawings. */
export function drawing(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean") made.toggleAttribute(name, value);
    else if (value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter(Boolean));
  return made;
}

/** One of the drawings in index.html. */
export function icon(name) {
  return drawing("svg", { class: "icon", "aria-hidden": "true" }, drawing("use", { href: `#${name}` }));
}

/** A small button with words. */
export function action(label, onclick, attributes = {}) {
  return element("button", { type: "button", class: "action", onclick, ...attributes }, label);
}

/** A button that copies what `text` gives, and says so. */
export function copyButton(text, what) {
  const button = action("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text());
      say("Copied");
    } catch {
      // Browsers have no clipboard for pages that come without TLS from another host.
      say(copyBySelection(text()) ? "Copied" : "The browser refuses");
    }
  });
  let timer;
  function say(word) {
    button.textContent = word;
    clearTimeout(timer);
    timer = setTimeout(() => (button.textContent = "Copy"), 2000);
  }
  button.setAttribute("aria-label", `Copy ${what}`);
  return button;
}

function copyBySelection(text) {
  const field = element("textarea", { class: "hidden", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  const focused = document.activeElement;
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return copied;
}

/** Grows a text field with its text; what is too much scrolls. */
export function growing(field) {
  const fit = () => {
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight + 2}px`;
  };
  field.addEventListener("input", fit);
  return fit;
}

/** Bytes for people, as the command line says them: `149.6 MiB`. */
export function bytes(count) {
  const unit = [["TiB", 40], ["GiB", 30], ["MiB", 20], ["KiB", 10]].find(([, shift]) => count >= 2 ** shift);
  return unit ? `${(count / 2 ** unit[1]).toFixed(1)} ${unit[0]}` : `${count} B`;
}

/** `3 h 02 min`. */
export function duration(seconds) {
  const whole = Math.floor(seconds);
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two((whole / 60) % 60)} min`;
  return `${Math.floor(whole / 86400)} d ${two((whole / 3600) % 24)} h`;
}

/** A short time: `0.4 s`, `12 s`; never nothing. */
export const shortly = (seconds) => `${seconds < 9.95 ? Math.max(seconds, 0.1).toFixed(1) : Math.round(seconds)} s`;

/** A number for people. */
export const number = (value, digits = 0) =>
  value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });

/** `1 token`, `2 tokens`. */
export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
