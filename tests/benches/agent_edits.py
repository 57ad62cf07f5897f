"""What an agent's edits cost: the time to the first token when a long conversation goes on, is repeated or is changed.

    python3 tests/benches/agent_edits.py --server ours=http://127.0.0.1:8080 [--server theirs=http://127.0.0.1:8081]
        [--tokens 8000] [--rounds 3] [--document 20000] [--json]

Talks to any OpenAI-compatible server, so start them yourself, one model and the same threads on all, such as

    paceline serve MODEL.gguf --port 8080 --ctx 32768 --sessions 1 --threads 2
    llama-server -m MODEL.gguf --port 8081 -c 32768 -np 1 -t 2 --jinja
    python3 -m llama_cpp.server --model MODEL.gguf --port 8081 --n_ctx 32768 --n_threads 2

The time to the first token is that of an answer of one token, which is not streamed: so it can be measured with models
whose tokens have no text.

Every round measures the servers in turn and back again (ours, theirs, theirs, ours), each with a conversation of its
own that no server has seen. Told is the median over rounds of the time to the first token of each case, with quartiles:

    cold          the conversation for the first time
    regenerate    the same again
    append        the answer and a next question; thinking is dropped by most templates
    edit          another last question
    tool          a tool call and its result behind the conversation
    branch        another end from the middle of the long first question on: 30 tokens before its end
    system        another user: the same system prompt, another question
    again         a second question about the same document of --document tokens, against its cold first (0: left out)

The ratio of a case is that of its time to "cold", and with two servers the second one's time to the first one's.
"""

import argparse
import json
import statistics
import time
import urllib.request
import uuid

CASES = ["cold", "regenerate", "append", "edit", "tool", "branch", "system"]
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks up a code.", "parameters": {
    "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=URL", help="one or two of them")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--tokens", type=int, default=8000, help="of the conversation, about")
    parser.add_argument("--document", type=int, default=20000, help="tokens of the document, about; 0 leaves it out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.servers = dict(server.split("=", 1) for server in options.server)
    if len(options.servers) > 2:
        parser.error("one or two servers can be compared")
    return options


class Server:
    """One server, and how many tokens its tokenizer makes of our text."""

    def __init__(self, url, key):
        self.url, self.key = url.rstrip("/"), key
        with urllib.request.urlopen(self.request("/v1/models")) as answer:
            self.model = json.load(answer)["data"][0]["id"]
        # Characters per token, measured once: servers have other tokenizers.
        self.characters = 3.0
        sample = facts("sample", 3000)
        self.characters = len(sample) / self.ask([{"role": "user", "content": sample}], [])[2]

    def request(self, path, body=None):
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.key}"}
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.Request(self.url + path, data, headers)

    def ask(self, messages, tools):
        """Seconds of an answer of one token, the answer, tokens of the prompt, and those of them that were cached."""
        body = {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": 1}
        if tools:
            body["tools"] = tools
        began = time.perf_counter()
        with urllib.request.urlopen(self.request("/v1/chat/completions", body)) as answer:
            found = json.load(answer)
        seconds, usage = time.perf_counter() - began, found["usage"]
        details = usage.get("prompt_tokens_details") or {}
        text = found["choices"][0]["message"].get("content") or ""
        return seconds, text, usage["prompt_tokens"], details.get("cached_tokens") or 0


def facts(seed, characters):
    """So many characters of text that no other seed gives."""
    names = ["Ruth", "Abel", "Naomi", "Caleb", "Esther", "Joel"]
    text, index = "", 0
    while len(text) < characters:
        text += f"The code for {names[index % 6]} {index} of {seed} is {1000 + index * 7919 % 9000}. "
        index += 1
    return text[: int(characters)]


def says(role, content, **more):
    return {"role": role, "content": content, **more}


def conversation_cases(server, tokens):
    """Yields (case, messages) in the order of an agent's day; the answers of some are needed by others."""
    seed = uuid.uuid4().hex[:6]
    system = says("system", "Answer from this list. " + facts(seed, server.characters * tokens * 0.4))
    long = facts(seed + "b", server.characters * tokens * 0.6)
    question = says("user", long + "What is the code for Ruth 12?")
    start = [system, question]
    answer = yield "cold", start
    yield "regenerate", start
    thought = says("assistant", f"<think>\nI look for Ruth.\n</think>\n\n{answer}")
    yield "append", [*start, thought, says("user", "And the code for Abel 1?")]
    yield "edit", [*start, thought, says("user", "Or rather the code for Caleb 3?")]
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": json.dumps({"name": "Ruth"})}}
    yield "tool", [*start, says("assistant", "", tool_calls=[call]), says("tool", "4821", tool_call_id="1")]
    cut = len(long) - int(30 * server.characters)
    yield "branch", [system, says("user", long[:cut] + "Now something else: what is the code for Esther 4?")]
    yield "system", [system, says("user", "What is the code for Joel 5?")]


def document_cases(server, tokens):
    text = facts(uuid.uuid4().hex[:6], server.characters * tokens)
    yield "document, cold", [says("user", text + "What is the code for Ruth 12?")]
    yield "document, again", [says("user", text + "And what is the code for Abel 1?")]


def measure(server, cases, tools):
    """Runs the cases one after the other: {case: (seconds, prompt tokens, cached tokens)}."""
    measured, answer = {}, None
    try:
        while True:
            case, messages = cases.send(answer)
            seconds, answer, tokens, cached = server.ask(messages, tools)
            measured[case] = (seconds, tokens, cached)
    except StopIteration:
        return measured


def main():
    options = arguments()
    servers = {name: Server(url, options.api_key) for name, url in options.servers.items()}
    order = [*servers, *reversed(servers)] if len(servers) > 1 else list(servers)
    samples = {}
    for _ in range(options.rounds):
        for name in order:
            cases = measure(servers[name], conversation_cases(servers[name], options.tokens), [TOOL])
            if options.document:
                cases |= measure(servers[name], document_cases(servers[name], options.document), [])
            for case, sample in cases.items():
                samples.setdefault((name, case), []).append(sample)
    report(options, list(servers), samples)


def report(options, names, samples):
    cases = [case for name, case in samples if name == names[0]]
    rows = []
    for case in cases:
        row = {"case": case}
        for name in names:
            times = sorted(seconds for seconds, _, _ in samples[name, case])
            quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
            before = "document, cold" if case.startswith("document") else "cold"
            cold = statistics.median(seconds for seconds, _, _ in samples[name, before])
            row[name] = {
                "ms": 1000 * quartiles[1], "quartiles": [1000 * quartiles[0], 1000 * quartiles[2]],
                "against_cold": cold / quartiles[1],
                "prompt_tokens": statistics.median(tokens for _, tokens, _ in samples[name, case]),
                "cached_tokens": statistics.median(cached for _, _, cached in samples[name, case]),
            }
        if len(names) == 2:
            row["ratio"] = row[names[1]]["ms"] / row[names[0]]["ms"]
        rows.append(row)
    if options.json:
        print(json.dumps(rows))
        return
    head = "".join(f" {name + ': first token, ms':>34} {'of cold':>8} {'tokens':>7} {'cached':>7}" for name in names)
    print(f"{'case':16}{head}" + (f" {'ratio':>7}" if len(names) == 2 else ""))
    for row in rows:
        line = f"{row['case']:16}"
        for name in names:
            cell = row[name]
            low, high = cell["quartiles"]
            time_text = f"{cell['ms']:.1f} ({low:.1f}-{high:.1f})"
            line += f" {time_text:>34} {cell['against_cold']:>7.1f}x {cell['prompt_tokens']:>7.0f} {cell['cached_tokens']:>7.0f}"
        print(line + (f" {row['ratio']:>6.1f}x" if "ratio" in row else ""))


if __name__ == "__main__":
    main()
