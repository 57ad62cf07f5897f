"""Prefill and decode of Paceline against llama.cpp: the same file, machine and threads, in alternating rounds.

    python3 tests/benches/peer.py target/release/paceline MODEL.gguf [--threads 2] [--rounds 5] [--prefill 512] [--decode 64]

Needs `pip install llama-cpp-python` built for this machine (CMAKE_ARGS=-DGGML_NATIVE=ON). Prints the median of each
and the median of the ratios of neighbouring rounds, as JSON.
"""

import argparse
import json
import statistics
import subprocess
import time

import llama_cpp


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    for name, value in [("threads", 2), ("rounds", 5), ("prefill", 512), ("decode", 64), ("depth", 16)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


# Kept for as long as the library may call it.
QUIET = llama_cpp.llama_log_callback(lambda *_: None)


class Peer:
    """llama.cpp with the settings of `paceline bench`: f16 keys and values, one sequence, batches of 512."""

    def __init__(self, options):
        llama_cpp.llama_log_set(QUIET, None)
        settings = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(options.model.encode(), settings)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = max(options.prefill, options.depth + options.decode) + 16
        settings.n_batch = settings.n_ubatch = 512
        settings.n_threads = settings.n_threads_batch = options.threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.tokens = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.options = options

    def run(self, tokens):
        for start in range(0, len(tokens), 512):
            part = tokens[start : start + 512]
            array = (llama_cpp.llama_token * len(part))(*part)
            assert llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(part))) == 0
        llama_cpp.llama_get_logits_ith(self.context, -1)

    def prompt(self, count):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        return [(index + 1) * 2654435761 % self.tokens for index in range(count)]

    def measure(self):
        prompt = self.prompt(self.options.prefill)
        begun = time.perf_counter()
        self.run(prompt)
        prefill = self.options.prefill / (time.perf_counter() - begun)
        self.run(self.prompt(self.options.depth))
        begun = time.perf_counter()
        for index in range(self.options.decode - 1):
            self.run([index * 7919 % self.tokens])
        return prefill, (self.options.decode - 1) / (time.perf_counter() - begun)


def ours(options):
    command = [options.program, "bench", options.model, "--json", "--repeat", "1"]
    for name in ["threads", "prefill", "decode", "depth"]:
        command += [f"--{name}", str(getattr(options, name))]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return report["prefill"][0]["tok_s"], report["decode"][0]["tok_s"], report["decode"][0]["roof"]


def main():
    options = arguments()
    peer = Peer(options)
    peer.measure()
    rounds = []
    for _ in range(options.rounds):
        rounds.append((ours(options), peer.measure()))
    column = lambda pick: statistics.median(pick(own, other) for own, other in rounds)
    print(json.dumps({
        "model": options.model.rsplit("/", 1)[-1],
        "threads": options.threads,
        "prefill": {"ours": column(lambda own, other: own[0]), "llama.cpp": column(lambda own, other: other[0]),
                    "ratio": column(lambda own, other: own[0] / other[0])},
        "decode": {"ours": column(lambda own, other: own[1]), "llama.cpp": column(lambda own, other: other[1]),
                   "ratio": column(lambda own, other: own[1] / other[1]),
                   "of_roof": column(lambda own, other: own[1] / own[2])},
    }, indent=2))


main()
