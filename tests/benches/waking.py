"""The time to the first token of a question about a document that was read before: in memory, or on a disk after a restart.

    python3 tests/benches/waking.py target/release/paceline [MODEL.gguf] [--tokens 20000] [--rounds 3] [--threads 2]
        [--flag=--kv-type=q8_0] [--json]

Starts `paceline serve` with a folder of its own for --cache-disk. Every round has a document that was never seen, and
asks four questions about it, each another one:

    cold      the document for the first time
    again     the second question: the document is in memory
    evicted   the third, when others have taken its place in memory (left out where memory has room for them too)
    woken     the fourth, after the server was ended (SIGTERM) and started again: the document is on disk

On CPUs device and host are one memory, so "again" is also what waking from RAM costs. Told are medians over rounds with
quartiles, what part of the prompt was cached and from where, and the ratio of "cold" to each. The last line is the load
of the machine: above the number of threads, others disturb the figures.
"""

import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time
import uuid

NAMES = ["Ruth", "Abel", "Naomi", "Caleb", "Esther", "Joel"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model", nargs="?", help="without it the tiny model inside the program")
    parser.add_argument("--tokens", type=int, default=20000, help="of the document, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--disk", default="20G", help="size of the disk tier")
    parser.add_argument("--folder", help="where the disk tier's folder is made [default: the system's for temporary files]")
    parser.add_argument("--flag", action="append", default=[], help="another flag of the server")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Server:
    """A server of our own, until it is ended."""

    def __init__(self, options, folder):
        command = [options.program, "serve", *([options.model] if options.model else []), "--port", "0"]
        command += ["--threads", str(options.threads), "--sessions", "1", "--ctx", str(options.tokens * 5 // 4 + 2000)]
        command += ["--cache-disk", f"{folder}:{options.disk}", *options.flag]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r"listening on http://([\d.]+):(\d+)", line)
            if found:
                self.address = found.groups()
                return
        raise RuntimeError("the server has ended before it was ready")

    def ask(self, text):
        """Seconds of an answer of one token, tokens of the prompt, those that were cached, and the tier."""
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 1}
        connection = http.client.HTTPConnection(*self.address)
        began = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        body = answer.read().decode()
        seconds = time.perf_counter() - began
        if answer.status != 200:
            raise RuntimeError(body)
        usage, tier = json.loads(body)["usage"], answer.getheader("x-paceline-cache-tier") or "-"
        return seconds, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], tier

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait() != 0:
            raise RuntimeError("the server did not end well")


def facts(characters):
    """So many characters that no other call gives."""
    seed, text, index = uuid.uuid4().hex[:6], "", 0
    while len(text) < characters:
        text += f"The code for {NAMES[index % 6]} {index} of {seed} is {1000 + index * 7919 % 9000}. "
        index += 1
    return text[: int(characters)]


def run_round(options, folder, characters):
    """{case: (seconds, prompt tokens, cached tokens, tier)} of one document."""
    document = facts(characters)
    measured, server = {}, Server(options, folder)
    measured["cold"] = server.ask(document + "What is the code for Ruth 12?")
    measured["again"] = server.ask(document + "And what is the code for Abel 1?")
    for _ in range(3):
        server.ask(facts(characters))
    evicted = server.ask(document + "Say the code for Joel 5, please.")
    if evicted[3] == "disk":
        measured["evicted"] = evicted
    server.end()
    server = Server(options, folder)
    measured["woken"] = server.ask(document + "Which code has Caleb 3?")
    server.end()
    return measured


def main():
    options = arguments()
    rounds = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        server = Server(options, folder)
        characters = options.tokens * 3000 / server.ask(facts(3000))[1]
        server.end()
        for _ in range(options.rounds):
            rounds.append(run_round(options, folder, characters))
    report = {}
    for case in ["cold", "again", "evicted", "woken"]:
        found = [one[case] for one in rounds if case in one]
        if not found:
            continue
        seconds = [one[0] for one in found]
        ratios = [one["cold"][0] / one[case][0] for one in rounds if case in one]
        quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
        report[case] = {
            "seconds": statistics.median(seconds), "quartiles": [quartiles[0], quartiles[2]],
            "times_faster": statistics.median(ratios), "prompt_tokens": found[-1][1],
            "cached_share": min(one[2] / one[1] for one in found), "tiers": sorted({one[3] for one in found}),
        }
    load = os.getloadavg()[0]
    if options.json:
        print(json.dumps({"cases": report, "load": load}))
        return
    print(f"{'case':8}  {'first token':>12}  {'quartiles':>17}  {'against cold':>12}  {'cached':>7}  from")
    for case, one in report.items():
        low, high = one["quartiles"]
        print(f"{case:8}  {one['seconds']:10.3f} s  {low:7.3f} - {high:7.3f}  {one['times_faster']:10.1f} x"
              f"  {one['cached_share']:6.1%}  {', '.join(one['tiers'])}")
    print(f"{report['cold']['prompt_tokens']} tokens, {options.rounds} rounds, load {load:.1f}")


if __name__ == "__main__":
    main()
