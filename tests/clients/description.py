"""Holds a Paceline server to its own OpenAPI description: calls drawn from it by schemathesis, and good requests spoilt by
chance. Nothing may answer with a fault of the server, or in another shape than the description says.

    python3 tests/clients/description.py http://127.0.0.1:8080 20000 [SEED]
"""

import json
import random
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

address, wanted = sys.argv[1], int(sys.argv[2])
seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"
# Refused by design where there is nothing to change, or because the server is too busy: typed, and told when to come back.
GOOD = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "temperature": 0.5, "stop": ["x"], "seed": 5},
    "/v1/completions": {"prompt": ["hello", "there"], "max_tokens": 3, "logprobs": 2, "logit_bias": {"5": -1}},
    "/v1/responses": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}], "max_output_tokens": 3, "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]},
    "/v1/messages": {"max_tokens": 3, "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}, {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]}], "system": "be", "tools": [{"name": "f", "input_schema": {"type": "object"}}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hello"}]},
    "/tokenize": {"content": "hello", "with_pieces": True},
    "/detokenize": {"tokens": [5, 6]},
}
ODD = [None, True, -1, 0, 1.5, 10**20, "", "x", "\u0000", [], {}, [[]], {"a": {}}, "\U0001f600" * 50]


def calls():
    """Requests that the server has answered, as it says itself."""
    text = urllib.request.urlopen(address + "/metrics").read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("paceline_http_requests_total"))


def described():
    begun, examples, round_ = calls(), max(5, min(100, wanted // 50)), 0
    while (done := int(calls() - begun)) < wanted:
        command = [sys.executable, "-m", "schemathesis.cli", "run", address + "/openapi.json", "--checks", CHECKS]
        command += ["--phases", "coverage,fuzzing" if round_ == 0 else "fuzzing", "--mode", "all"]
        command += ["-n", str(examples), "--seed", str(seed + round_), "--continue-on-failure", "--request-timeout", "120"]
        command += ["--suppress-health-check", "all", "--warnings", "off", "--generation-database", "none", "--no-color"]
        # It leaves a folder of its own wherever it runs.
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        assert run.returncode == 0, run.stdout[-20000:] + run.stderr[-4000:]
        round_ += 1
        assert int(calls() - begun) > done + 10, "schemathesis calls nothing: " + run.stdout[-4000:]
    print(f"{int(calls() - begun)} calls drawn from the description, in {round_} rounds")


def spoil(value, chance):
    """The same value with one thing in it that is wrong or odd."""
    if chance.random() < 0.25 or not isinstance(value, (dict, list)) or not value:
        return chance.choice(ODD)
    value = json.loads(json.dumps(value))
    key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if chance.random() < 0.2:
        del value[key]
    else:
        value[key] = spoil(value[key], chance)
    return value


def spoil_bytes(body, chance):
    """The same bytes cut, doubled, or with some that do not belong there."""
    at, body = chance.randrange(len(body)), bytearray(body)
    match chance.randrange(4):
        case 0:
            return bytes(body[:at])
        case 1:
            body[at] = chance.randrange(256)
        case 2:
            body[at:at] = body[at : at + chance.randrange(1, 40)]
        case _:
            body[at:at] = bytes(chance.randrange(256) for _ in range(3))
    return bytes(body)


def mutated(count):
    chance, statuses = random.Random(seed), {}
    for number in range(count):
        path = chance.choice(list(GOOD))
        if chance.random() < 0.6:
            body = json.dumps(spoil(GOOD[path], chance)).encode()
        else:
            body = spoil_bytes(json.dumps(GOOD[path]).encode(), chance)
        request = urllib.request.Request(address + path, data=body, headers={"content-type": "application/json"})
        try:
            status, text = 200, urllib.request.urlopen(request, timeout=120).read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
            told = json.loads(text)["error"]
            assert isinstance(told["message"], str) and isinstance(told["type"], str), (path, body, text)
        assert status < 500, (number, path, body, status, text)
        statuses[status] = statuses.get(status, 0) + 1
    assert statuses.get(400, 0) > count // 4, statuses
    print(f"{count} spoilt bodies: {statuses}")


mutated(1000)
described()
print("all is well")
