"""Paceline against llama.cpp: the same file, machine and threads.

    python3 tests/benches/peer.py target/release/paceline MODEL.gguf [MODE...] [--threads 2] [--rounds 5] [--json]

Modes (all of them if none is given):

    decode    one session at depth 16
    batch     1, 2, 4 and 8 sessions together at depth 16
    prefill   prompts of 512 and 2048 tokens
    depth     one session at depths 8192 and 32768 (--depths), with keys and values as --kv-type
    verify    a step of 8 rows of one session, all wanted, against a step of one: how many times as long it takes
    load      seconds from the start to the first token, and peak memory (resident, mapped files included)

The last column is the machine's load: above the number of threads, others disturb the figures.

Each round measures ours, theirs, theirs, ours, so that a slow drift of the machine cancels out. Told are medians with
quartiles; the ratio is the median of the rounds' ratios, above 1 where we are better.

Needs `pip install llama-cpp-python` built for this machine (CMAKE_ARGS=-DGGML_NATIVE=ON).
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Callable

MODES = ["decode", "batch", "prefill", "depth", "verify", "load"]
DEPTH = 16


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("modes", nargs="*", choices=[*MODES, []], metavar="MODE")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32, help="generated for one measurement of decode")
    parser.add_argument("--users", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--depths", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--kv-type", default="f16", choices=["f32", "f16", "q8_0", "q4_0"], help="of keys and values, in mode depth")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--first-token", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.modes = options.modes or MODES
    return options


@dataclasses.dataclass
class Case:
    """One thing that both can do, and how each is measured once."""

    name: str
    unit: str
    ours: Callable[[], float]
    theirs: Callable[[], float]
    # Is more better, as of rates, or less, as of times?
    more: bool = True


def bench(options, *flags):
    """What `paceline bench` reports."""
    command = [options.program, "bench", options.model, "--json", "--repeat", "1"]
    command += ["--threads", str(options.threads), *map(str, flags)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def our_decode(options, depth, users):
    """Through the whole service. The first token counts as prefill."""
    flags = ["--prefill", 1, "--depth", depth, "--users", users, "--decode", options.tokens + 1]
    return bench(options, *flags)["decode"][0]["tok_s"]


def our_prefill(options, tokens):
    flags = ["--prefill", tokens, "--depth", 1, "--decode", 2]
    return bench(options, *flags)["prefill"][0]["tok_s"]


def our_deep_decode(options, depth):
    """The stage alone, which needs no prompt to be read before."""
    flags = ["--profile", "--prefill", 1, "--depth", depth, "--decode", options.tokens, "--kv-type", options.kv_type]
    return 1e3 / bench(options, *flags)["steps"][0]["step_ms"]["median"]


def our_verify(options, rows):
    flags = ["--verify", "--verify-rows", rows, "--prefill", 1, "--depth", DEPTH, "--decode", options.tokens]
    return bench(options, *flags)["verify"][0]["ratio"]["median"]


def their_verify(peer, options, rows):
    """The same order of steps as ours: one, many, many, one."""
    ratios = []
    for _ in range(options.tokens // 4):
        a, b, c, d = [peer.verify(DEPTH, count) for count in (1, rows, rows, 1)]
        ratios.append((b + c) / (a + d))
    return statistics.median(ratios)


def rate_cases(options):
    """The cases of all modes that one process of llama.cpp can measure."""
    from llama_cpp_peer import Peer

    deep = max(options.depths) if "depth" in options.modes else 0
    users = max(options.users)
    room = max([deep, *options.prompts, DEPTH * users]) + users * (options.tokens + 1) + 16
    peer = Peer(options.model, options.threads, room, users, options.kv_type if deep else "f16")
    decode = lambda depth, users: lambda: peer.decode(depth, users, options.tokens)
    if "decode" in options.modes:
        yield Case("decode", "tok/s", lambda: our_decode(options, DEPTH, 1), decode(DEPTH, 1))
    for count in options.users if "batch" in options.modes else []:
        ours = lambda count=count: our_decode(options, DEPTH, count)
        yield Case(f"decode of {count} sessions", "tok/s", ours, decode(DEPTH, count))
    for count in options.prompts if "prefill" in options.modes else []:
        ours = lambda count=count: our_prefill(options, count)
        yield Case(f"prefill of {count}", "tok/s", ours, lambda count=count: peer.prefill(count))
    if "verify" in options.modes:
        ours, theirs = (lambda: our_verify(options, 8)), (lambda: their_verify(peer, options, 8))
        yield Case("8 rows against 1", "times as long", ours, theirs, more=False)
    for depth in options.depths if "depth" in options.modes else []:
        ours = lambda depth=depth: our_deep_decode(options, depth)
        yield Case(f"decode at {depth}, {options.kv_type}", "tok/s", ours, decode(depth, 1))
    peer.close()


def child(command):
    """Seconds and peak resident bytes of a process."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, command
    return time.perf_counter() - begun, used.ru_maxrss * 1024


def load_cases(options):
    """Both as processes of their own. Starting Python is not counted against llama.cpp."""
    ours = [options.program, "run", options.model, "--raw", "-p", "Once", "-n", "1", "--ctx", "512"]
    ours += ["--sessions", "1", "--threads", str(options.threads)]
    theirs = [sys.executable, __file__, options.program, options.model, "--threads", str(options.threads)]
    idle = [sys.executable, "-c", "import llama_cpp"]
    load = lambda: child([*theirs, "--first-token"])[0] - child(idle)[0]
    yield Case("load and first token", "s", lambda: child(ours)[0], load, more=False)
    peak = lambda command: lambda: child(command)[1] / 1e6
    yield Case("peak memory", "MB", peak(ours), peak([*theirs, "--first-token"]), more=False)


def first_token(options):
    """What the child of llama.cpp does: load, and run one token."""
    from llama_cpp_peer import Peer

    Peer(options.model, options.threads, 512, 1).decode(1, 1, 1)


def spread(samples):
    """Median and quartiles."""
    if len(samples) == 1:
        return dict.fromkeys(["low", "median", "high"], samples[0])
    low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
    return {"low": low, "median": median, "high": high}


def measure(case, rounds):
    """All rounds of a case."""
    ours, theirs, ratios = [], [], []
    for _ in range(rounds):
        a, b, c, d = case.ours(), case.theirs(), case.theirs(), case.ours()
        ours += [a, d]
        theirs += [b, c]
        ratios.append((a + d) / (b + c) if case.more else (b + c) / (a + d))
    return {
        "case": case.name,
        "unit": case.unit,
        # Of the last minute: with more than this bench's threads, other programs take part of what is measured.
        "load": os.getloadavg()[0],
        "ours": spread(ours),
        "llama.cpp": spread(theirs),
        "ratio": spread(ratios),
    }


def row(result):
    """A row of the table in docs/benchmarks.md."""
    digits = 2 if result["unit"] != "tok/s" else 1
    figure = lambda name, digits: "{median:.{n}f} ({low:.{n}f}-{high:.{n}f})".format(n=digits, **result[name])
    figures = [figure("ours", digits), figure("llama.cpp", digits), figure("ratio", 2), f"{result['load']:.1f}"]
    return " | ".join(["", result["case"], result["unit"], *figures, ""]).strip()


def main():
    options = arguments()
    if options.first_token:
        return first_token(options)
    if not options.json:
        print("| what | unit | ours | llama.cpp | ratio | load |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    results = []
    # Loading first: a process begins with the memory of the one that starts it, which must still be small.
    rates = rate_cases(options) if set(options.modes) - {"load"} else []
    for group in [load_cases(options) if "load" in options.modes else [], rates]:
        for case in group:
            results.append(measure(case, options.rounds))
            if not options.json:
                print(row(results[-1]), flush=True)
    if options.json:
        print(json.dumps({"model": os.path.basename(options.model), "threads": options.threads, "results": results}))


main()
