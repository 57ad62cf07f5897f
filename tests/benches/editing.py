"""What drafts from the conversation itself bring in an editing task: repeat a given text with one name changed.

    python3 tests/benches/editing.py --server plain=http://127.0.0.1:8080 --server lookup=http://127.0.0.1:8081 [...]
        [--rounds 5] [--tokens 256] [--words 180]

Start the servers yourself, one model and the same threads on all, such as

    paceline serve MODEL.gguf --port 8080 --ctx 4096 --sessions 1 --draft none
    paceline serve MODEL.gguf --port 8081 --ctx 4096 --sessions 1 --draft lookup
    llama-server -m MODEL.gguf --port 8082 -c 4096 -np 1 --spec-type ngram-simple

Each round has a text of its own, made of sentences about invented people, and asks all servers in turn and back again
(A, B, C, C, B, A), greedy. Told are tokens per second while decoding, as each server says itself, and the median over
rounds of the ratio of each server to the first, with quartiles.
"""

import argparse
import json
import random
import statistics
import urllib.request

NAMES = "Ruth Abel Miriam Jonas Lydia Simon Esther Felix Clara Oskar Helen Martin Judith Arthur".split()
VERBS = "carried found painted mended sold counted borrowed measured buried polished".split()
THINGS = "the old lantern|a copper kettle|three wooden boats|the garden gate|a broken clock|seven grey stones|the long ladder".split("|")
PLACES = "behind the mill|near the harbour|under the bridge|in the orchard|at the edge of the forest|on the market square".split("|")
ENDS = "before the rain came|while nobody was looking|and told no one about it|because the winter was near|as the bells rang".split("|")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=URL")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--words", type=int, default=180, help="of the text, about")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.servers = [tuple(server.split("=", 1)) for server in options.server]
    return options


def task(number, words):
    """A text, and the beginning of its repetition under another name."""
    draw = random.Random(number)
    old, new = draw.sample(NAMES, 2)
    sentences, length = [], 0
    while length < words:
        who = draw.choice([old, "he", "the neighbour", old])
        sentence = " ".join([who, draw.choice(VERBS), draw.choice(THINGS), draw.choice(PLACES), draw.choice(ENDS)])
        sentences.append(sentence[0].upper() + sentence[1:] + ".")
        length += len(sentence.split())
    first = sentences[0].replace(old, new)
    return f"{' '.join(sentences)}\n\nThe same text, with {new} in place of {old}:\n\n{first}"


def ask(url, prompt, tokens):
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def measure(options):
    rates = {name: [] for name, _ in options.servers}
    drafts = {name: [0, 0] for name, _ in options.servers}
    for name, url in options.servers:
        ask(url, "Warm.", 16)
    for number in range(options.rounds):
        prompt, found = task(number, options.words), {name: [] for name in rates}
        for name, url in options.servers + options.servers[::-1]:
            timings = ask(url, prompt, options.tokens)["timings"]
            found[name].append(timings["predicted_per_second"])
            drafts[name][0] += timings.get("draft_n") or 0
            drafts[name][1] += timings.get("draft_n_accepted") or 0
        for name, pair in found.items():
            rates[name].append(statistics.mean(pair))
    return rates, drafts


def main():
    options = arguments()
    rates, drafts = measure(options)
    first = options.servers[0][0]
    rows = []
    for name, found in rates.items():
        ratios = [one / base for one, base in zip(found, rates[first])]
        quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        rows.append({"server": name, "tokens_per_second": statistics.median(found), "ratio": quartiles,
                     "drafts": drafts[name][0], "accepted": drafts[name][1]})
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        low, middle, high = row["ratio"]
        print(f"{row['server']:<16} {row['tokens_per_second']:8.1f} tokens/s   {middle:5.2f} times {first} ({low:.2f} - {high:.2f})   "
              f"{row['accepted']} of {row['drafts']} drafts accepted")


if __name__ == "__main__":
    main()
