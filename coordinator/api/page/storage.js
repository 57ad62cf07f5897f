// What the browser keeps: for good, or as long as the tab is open. Browsers may be told to keep nothing; then it is
// kept as long as the page is.

class Memory {
  #items = new Map();

  get length() {
    return this.#items.size;
  }

  key(index) {
    return [...this.#items.keys()][index] ?? null;
  }

  getItem(name) {
    return this.#items.get(name) ?? null;
  }

  setItem(name, text) {
    this.#items.set(name, text);
  }

  removeItem(name) {
    this.#items.delete(name);
  }
}

/** Kept for good. */
export const lasting = open(() => localStorage);

/** Kept until the tab is closed. */
export const passing = open(() => sessionStorage);

function open(storage) {
  try {
    return storage();
  } catch {
    return new Memory();
  }
}
