// Rates, from two samples of totals, as `paceline status` makes them.

/** What happened between two reports, per second of the service's own time; nothing if it began anew between them. */
export function between(before, after) {
  const seconds = before ? after.uptime_seconds - before.uptime_seconds : 0;
  if (seconds <= 0 || after.steps < before.steps) return undefined;
  const rate = (name) => Math.max(after[name] - before[name], 0) / seconds;
  const sameRow = before.epoch === after.epoch && before.stages.length === after.stages.length;
  return {
    answers: rate("decode_tokens"),
    prompts: rate("prefill_tokens"),
    creditWait: Math.min(rate("credit_wait_seconds"), 1),
    busy: sameRow ? after.stages.map((stage, index) => busy(before.stages[index], stage, seconds)) : [],
    sent: sameRow ? after.stages.map((stage, index) => sent(before.stages[index], stage, seconds)) : [],
  };
}

/** The part of the time in which a stage computed, from 0 to 1. */
const busy = (before, after, seconds) =>
  Math.min(Math.max(after.busy_micros - before.busy_micros, 0) / 1e6 / seconds, 1);

/** Bytes of activations that it passed on in a second. */
const sent = (before, after, seconds) => Math.max(after.sent_bytes - before.sent_bytes, 0) / seconds;
