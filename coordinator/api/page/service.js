// Requests to the server that this page came from. Addresses are relative, so that it may be behind a path of a proxy.

import { passing } from "./storage.js";

const KEY = "paceline.key";

/** The server does not do what was asked, or does not answer. */
export class Refusal extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    /** Seconds after which the server would be asked again, where it says so. */
    this.retryAfter = retryAfter;
  }
}

/** The API key, as long as this tab is open. */
export const key = {
  get: () => passing.getItem(KEY),
  set: (value) => passing.setItem(KEY, value),
  forget: () => passing.removeItem(KEY),
};

/** Asks for a page; sends `body` as JSON where there is one. Fails with a Refusal, or by `signal` with AbortError. */
export async function ask(path, body, signal) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  if (body) headers["content-type"] = "application/json";
  const method = body ? "POST" : "GET";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The server does not answer.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const text = await response.text().catch(() => "");
  const wait = Number.parseInt(response.headers.get("retry-after"), 10);
  const words = told(text) ?? `The server answers ${response.status}.`;
  return new Refusal(response.status, words, wait >= 0 ? wait : undefined);
}

/** The server's own words, out of the body of an error. */
function told(text) {
  try {
    const message = JSON.parse(text).error.message;
    return typeof message === "string" ? message : undefined;
  } catch {
    return undefined;
  }
}

/** The events of a stream as objects, to its end; an event that tells of an error is thrown. */
export async function* events(response) {
  for await (const data of lines(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Refusal(200, event.error.message);
    yield event;
  }
  throw new Refusal(0, "The connection broke off before the answer was complete.");
}

/** What follows `data: `, line by line: the server writes each event as one. */
async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const line of parts) if (line.startsWith("data: ")) yield line.slice("data: ".length);
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The connection broke off before the answer was complete.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
