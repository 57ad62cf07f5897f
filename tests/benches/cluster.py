"""Rows of shard processes: what a hop costs, against one process and against llama.cpp over RPC.

    python3 tests/benches/cluster.py target/release/paceline MODEL.gguf [MODE...] [--shards 2] [--link unix] [--json]

Modes (all of them if none is given):

    hop       one session on so many shard processes of one thread, against one process with as many shards
    sessions  four sessions together on the shard processes, against four on one process, and each alone
    gap       the time between tokens of three sessions while a prompt of 8192 tokens arrives
    simulate  1, 2 and 4 sessions against `paceline simulate` with the stage times that the row itself measured
    peer      one session, its prefill, and four sessions together, against llama.cpp with as many rpc-servers

Every figure comes through HTTP. Rounds measure ours, theirs, theirs, ours; told are medians with quartiles, and the
median of the rounds' ratios, above 1 where the row of processes is better.

Mode `peer` needs llama-cpp-python built with -DGGML_RPC=ON (see llama_cpp_rpc.py).
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

MODES = ["hop", "sessions", "gap", "simulate", "peer"]
DEADLINE = 300


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("modes", nargs="*", choices=[*MODES, []], metavar="MODE")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--link", default="auto", choices=["auto", "unix", "quic"])
    parser.add_argument("--pin", action="store_true", help="each shard's thread on a core of its own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--long-prompt", type=int, default=8192)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.modes = options.modes or MODES
    return options


class Service:
    """A program that answers over HTTP."""

    def __init__(self, command, folder):
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.address = None
        self.folder = folder

    def await_ready(self):
        for line in self.process.stderr:
            if "listening on http://" in line:
                self.address = line.split("http://")[1].split()[0]
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return self
        raise SystemExit("the program ended before it was ready")

    def open(self, prompt, tokens):
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        body["return_token_ids"] = True
        request = urllib.request.Request(
            f"http://{self.address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=DEADLINE)

    def times(self, prompt, tokens):
        """When the request was sent, and when each token came."""
        begun, seen = time.perf_counter(), []
        for line in self.open(prompt, tokens):
            if b'"token_ids"' in line:
                seen.append(time.perf_counter())
        return begun, seen

    def stop(self):
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def one_process(options):
    command = [options.program, "serve", options.model, "--port", "0", "--shards", str(options.shards)]
    command += ["--threads", str(options.shards), "--ctx", str(context(options)), "--sessions", "4"]
    service = Service(command + (["--pin"] if options.pin else []), None).await_ready()
    yield service
    service.stop()


@contextlib.contextmanager
def processes(options):
    with tempfile.TemporaryDirectory() as folder:
        token = os.path.join(folder, "token")
        command = [options.program, "coordinator", options.model, "--port", "0", "--control", "127.0.0.1:0"]
        command += ["--shards", str(options.shards), "--ctx", str(context(options)), "--sessions", "4"]
        command += ["--link", options.link, "--state", os.path.join(folder, "state"), "--token-file", token]
        service = Service(command, folder)
        while not os.path.exists(token):
            time.sleep(0.02)
        shards = []
        for index in range(options.shards):
            command = [options.program, "shard", "--token-file", token, "--threads", "1"]
            command += ["--cache", os.path.join(folder, f"cache{index}")]
            command += ["--pin", str(index)] if options.pin else []
            shards.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        yield service.await_ready()
        service.stop()
        for shard in shards:
            shard.terminate()
        for shard in shards:
            shard.wait()


def context(options):
    needed = options.long_prompt if "gap" in options.modes else options.prompt
    return needed + 1024


def prompt(length, seed=0):
    """Tokens below 300, which every vocabulary has."""
    return [(index * 7 + index * index * 13 + seed * 29 + 5) % 290 + 3 for index in range(length)]


def decode(service, options, users=1):
    """Tokens per second of all users together, from their first tokens to the last."""
    results = [None] * users

    def one(index):
        results[index] = service.times(prompt(16, index), options.tokens)[1]

    threads = [threading.Thread(target=one, args=(index,)) for index in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begun = max(seen[0] for seen in results)
    end = min(seen[-1] for seen in results)
    count = sum(1 for seen in results for moment in seen if begun < moment <= end)
    return count / (end - begun)


def prefill(service, options):
    """Prompt tokens per second, up to the first token of the answer."""
    begun, seen = service.times(prompt(options.prompt, int(time.time() * 1000) % 1000), 1)
    return options.prompt / (seen[0] - begun)


def gaps(service, options):
    """Seconds between tokens of three sessions while a long prompt is read, and the same without it."""

    def measure(with_prompt):
        streams = [[] for _ in range(3)]
        stop = threading.Event()

        def talk(index):
            for line in service.open(prompt(16, index), 900):
                if b'"token_ids"' in line:
                    streams[index].append(time.perf_counter())
                if stop.is_set():
                    return

        talkers = [threading.Thread(target=talk, args=(index,), daemon=True) for index in range(3)]
        for talker in talkers:
            talker.start()
        while min(map(len, streams)) < 8:
            time.sleep(0.01)
        begun = time.perf_counter()
        if with_prompt:
            service.times(prompt(options.long_prompt, 77), 1)
        else:
            time.sleep(3)
        end = time.perf_counter()
        stop.set()
        for talker in talkers:
            talker.join()
        between = []
        for stream in streams:
            inside = [moment for moment in stream if begun <= moment <= end]
            between += [later - earlier for earlier, later in zip(inside, inside[1:])]
        return between, end - begun

    alone, _ = measure(False)
    beside, seconds = measure(True)
    p95 = lambda values: statistics.quantiles(values, n=20)[-1]
    return {
        "median_ms": statistics.median(beside) * 1e3,
        "p95_ms": p95(beside) * 1e3,
        "median_without_ms": statistics.median(alone) * 1e3,
        "p95_without_ms": p95(alone) * 1e3,
        "p95_of_median": p95(beside) / statistics.median(beside),
        "first_token_of_the_prompt_s": seconds,
    }


def simulated(service, options, users):
    """Tokens per second of the row, and of its simulation with the mean time that each stage took for a step."""
    status = lambda: json.load(urllib.request.urlopen(f"http://{service.address}/admin/v1/status"))["stages"]
    decode(service, options, users)
    before = status()
    real = decode(service, options, users)
    after = status()
    took = lambda a, b: (b["busy_micros"] - a["busy_micros"]) / (b["steps"] - a["steps"])
    micros = ",".join(str(round(took(a, b))) for a, b in zip(before, after))
    command = [options.program, "simulate", options.model, "--stage-micros", micros, "--ctx", "2048", "--sessions", "4"]
    command += ["--users", str(users), "--requests", str(users * 8), "--prompt", "16", "--answer", str(options.tokens)]
    report = json.loads(subprocess.run([*command, "--json"], check=True, stdout=subprocess.PIPE).stdout)["report"]
    return real, report["throughput"]["decode_tok_s_busy"]


def spread(samples):
    if len(samples) == 1:
        return dict.fromkeys(["low", "median", "high"], samples[0])
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return {"low": low, "median": median, "high": high}


def compare(name, ours, theirs, rounds):
    a_all, b_all, ratios = [], [], []
    for _ in range(rounds):
        a, b, c, d = ours(), theirs(), theirs(), ours()
        a_all += [a, d]
        b_all += [b, c]
        ratios.append((a + d) / (b + c))
    result = {"case": name, "load": os.getloadavg()[0]}
    return result | {"row": spread(a_all), "other": spread(b_all), "ratio": spread(ratios)}


def tell(result, options):
    if options.json:
        return
    figure = lambda name, digits: "{median:.{n}f} ({low:.{n}f}-{high:.{n}f})".format(n=digits, **result[name])
    cells = [result["case"], figure("row", 1), figure("other", 1), figure("ratio", 2), f"{result['load']:.1f}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    options = arguments()
    results = []
    if not options.json:
        print("| tok/s | row of processes | other | ratio | load |\n| --- | --- | --- | --- | --- |", flush=True)

    def run(name, ours, theirs):
        results.append(compare(name, ours, theirs, options.rounds))
        tell(results[-1], options)

    with processes(options) as row:
        decode(row, options)
        if {"hop", "sessions"} & set(options.modes):
            with one_process(options) as one:
                decode(one, options)
                if "hop" in options.modes:
                    run("decode, one process", lambda: decode(row, options), lambda: decode(one, options))
                    run("prefill, one process", lambda: prefill(row, options), lambda: prefill(one, options))
                if "sessions" in options.modes:
                    run("4 sessions, one process", lambda: decode(row, options, 4), lambda: decode(one, options, 4))
        if "peer" in options.modes:
            from llama_cpp_rpc import RpcPeer

            with RpcPeer(options) as peer:
                run("decode, llama.cpp rpc", lambda: decode(row, options), lambda: peer.decode(1))
                run("prefill, llama.cpp rpc", lambda: prefill(row, options), peer.prefill)
                run("4 sessions, llama.cpp rpc", lambda: decode(row, options, 4), lambda: peer.decode(4))
        for users in [1, 2, 4] if "simulate" in options.modes else []:
            pairs = [simulated(row, options, users) for _ in range(options.rounds)]
            real, other = ([pair[index] for pair in pairs] for index in range(2))
            ratio = spread([simulated / real for real, simulated in pairs])
            name = f"{users} sessions, simulated (ratio to the row)"
            case = {"case": name, "load": os.getloadavg()[0], "row": spread(real), "other": spread(other), "ratio": ratio}
            results.append(case)
            tell(case, options)
        if "gap" in options.modes:
            measured = gaps(row, options)
            results.append({"case": "gap", **measured})
            if not options.json:
                print("\n" + "\n".join(f"{name}: {value:.2f}" for name, value in measured.items()))
    if options.json:
        print(json.dumps({"model": os.path.basename(options.model), "shards": options.shards, "results": results}))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    main()
