"""What it costs to hold answers to a JSON schema: tokens per second with and without one, by the same server.

    python3 tests/benches/structure.py http://127.0.0.1:8080 [--tokens 128] [--rounds 8] [--clients 1]

Start the server yourself, such as `paceline serve MODEL.gguf --sessions 4 --threads 2 --draft none`. Answers of both kinds
have the same number of tokens and follow each other as A-B-B-A; told is the median of the paired ratios, with quartiles.
With several clients all send at once, and a pair is that of their tokens together.
"""

import argparse
import json
import statistics
import threading
import time
import urllib.request

# Lists, numbers, texts and choices, so that what may follow changes all the time; long enough never to end.
SCHEMA = {"type": "array", "minItems": 4000, "items": {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 40}, "size": {"type": "number"}, "kind": {"enum": ["animal", "plant", "stone"]},
    "tags": {"type": "array", "maxItems": 5, "items": {"type": "string", "pattern": "^[a-z]{1,12}$"}}, "sure": {"type": "boolean"}},
    "required": ["name", "size", "kind", "tags", "sure"], "additionalProperties": False}}


def ask(url, number, tokens, schema):
    body = {"messages": [{"role": "user", "content": f"List things, number {number}."}], "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "chat_template_kwargs": {"enable_thinking": False}}
    if schema:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "things", "schema": SCHEMA}}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        found = json.load(answer)
    assert found["usage"]["completion_tokens"] == tokens, found
    return found["timings"]


def rate(url, clients, number, tokens, schema):
    """Tokens per second of one client while it decodes, or of several together over the whole time."""
    if clients == 1:
        return ask(url, number, tokens, schema)["predicted_per_second"]
    threads = [threading.Thread(target=ask, args=(url, number * clients + client, tokens, schema)) for client in range(clients)]
    began = time.perf_counter()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return clients * tokens / (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--clients", type=int, default=1)
    options = parser.parse_args()
    rate(options.url, options.clients, 0, options.tokens, True)
    ratios, rates = [], {True: [], False: []}
    for number in range(1, options.rounds + 1):
        order = [True, False] if number % 2 else [False, True]
        pair = {schema: rate(options.url, options.clients, number, options.tokens, schema) for schema in order}
        ratios.append(pair[True] / pair[False])
        [rates[schema].append(pair[schema]) for schema in order]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"with a schema {statistics.median(rates[True]):.1f} tokens/s, without {statistics.median(rates[False]):.1f}")
    print(f"ratio {middle:.3f} ({low:.3f} - {high:.3f}), {options.rounds} pairs, {options.clients} clients")


if __name__ == "__main__":
    main()
