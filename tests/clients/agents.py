"""Requests in the shapes that agents and gateways send, with no client package between: what each of them puts into its
bodies is taken from its public documentation and source. Every shape is sent as a stream and whole, and goes on with
what came back, as its client does.

    python3 tests/clients/agents.py http://127.0.0.1:8080
"""

import json
import sys
import urllib.error
import urllib.request

address = sys.argv[1]
question = "The code for Ruth is 4821. The code for Abel is 7719. What is the code for Ruth?"


def post(path, body, headers=()):
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"content-type": "application/json", **dict(headers)})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{error.code}: {error.read().decode()}") from None


def whole(body, headers=()):
    """A whole answer: its message, and why it ended."""
    text, sent = post("/v1/chat/completions", {**body, "stream": False}, headers)
    assert sent["content-type"].startswith("application/json"), sent
    answer = json.loads(text)
    assert answer["object"] == "chat.completion" and answer["id"] and answer["created"], answer
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
    choice = answer["choices"][0]
    return choice["message"], choice["finish_reason"]


def streamed(body, headers=()):
    """The same, put together from the events of a stream as the AI SDK and the OpenAI packages do."""
    text, sent = post("/v1/chat/completions", {**body, "stream": True}, headers)
    assert sent["content-type"].startswith("text/event-stream"), sent
    blocks = [block for block in text.split("\n\n") if block]
    assert blocks[-1] == "data: [DONE]", blocks[-1]
    message, reason, usage, calls = {"role": None, "content": "", "reasoning_content": ""}, None, None, {}
    for block in blocks[:-1]:
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        if not lines:
            continue
        event = json.loads(lines[0].removeprefix("data: "))
        assert event["object"] == "chat.completion.chunk", event
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            delta = choice["delta"]
            message["role"] = delta.get("role") or message["role"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for part in delta.get("tool_calls") or []:
                # A call is named once, in its first part; the AI SDK refuses one without.
                call = calls.setdefault(part["index"], {"id": part.get("id"), "name": part["function"].get("name"), "arguments": ""})
                assert call["id"] and call["name"], part
                call["arguments"] += part["function"].get("arguments") or ""
            reason = choice.get("finish_reason") or reason
    assert reason, "a stream says why it ends"
    if (body.get("stream_options") or {}).get("include_usage"):
        assert usage and usage["completion_tokens"] > 0, blocks[-2]
    message["tool_calls"] = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}} for _, call in sorted(calls.items())]
    return message, reason


def same(body, headers=()):
    """Both ways say the same; gives the whole one."""
    message, reason = whole(body, headers)
    other, other_reason = streamed(body, headers)
    said = [message.get(name) or "" for name in ["content", "reasoning_content"]]
    assert said == [other[name] for name in ["content", "reasoning_content"]], (message, other)
    functions = [[call["function"] for call in one.get("tool_calls") or []] for one in [message, other]]
    assert functions[0] == functions[1], (message, other)
    assert reason == other_reason, (reason, other_reason)
    return message, reason


def function(name, properties, **more):
    """A tool with everything that converters from zod and pydantic put into its schema."""
    parameters = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False, **more}
    return {"type": "function", "function": {"name": name, "description": f"Use it to {name}.", "parameters": parameters}}


model = json.loads(urllib.request.urlopen(address + "/v1/models").read())["data"][0]["id"]

# OpenCode, by the AI SDK's openai-compatible provider: several system messages, an output limit larger than the context,
# schemas with "$schema", reasoning sent back beside an empty content.
bash = function("bash", {"command": {"type": "string", "description": "The command"}, "timeout": {"description": "Milliseconds", "type": "number"}},
                **{"$schema": "https://json-schema.org/draft/2020-12/schema"})
edit = function("edit", {"filePath": {"type": "string"}, "edits": {"type": "array", "items": {"anyOf": [{"type": "object", "properties": {
    "old": {"type": "string"}, "new": {"type": "string"}}, "required": ["old", "new"]}, {"type": "null"}]}}})
opencode = {
    "model": model, "max_tokens": 32000, "temperature": 0, "top_p": 1, "tool_choice": "auto", "stream_options": {"include_usage": True},
    "messages": [
        {"role": "system", "content": "You are a coding agent."},
        {"role": "system", "content": "<env>\n  Working directory: /home/me\n</env>"},
        {"role": "user", "content": question},
    ],
    "tools": [bash, edit],
}
agent = {"user-agent": "opencode/1.0.0 ai-sdk/provider-utils/3.0.0 runtime/bun/1.3.0"}
message, reason = same(opencode, agent)
assert reason in ("stop", "tool_calls") and (message.get("content") or message.get("tool_calls")), message
# What a tiny model writes into a free text has no end; here it has.
short = function("bash", {"command": {"type": "string", "maxLength": 12}, "timeout": {"type": "integer", "minimum": 0, "maximum": 99}})
forced = {**opencode, "tools": [short], "tool_choice": "required", "max_tokens": 300, "thinking_budget_tokens": 4}
message, reason = same(forced, agent)
call = message["tool_calls"][0]
assert reason == "tool_calls" and call["function"]["name"] == "bash", message
json.loads(call["function"]["arguments"])
turn = [
    {"role": "assistant", "content": "", "reasoning_content": message.get("reasoning_content") or "", "tool_calls": [call]},
    {"role": "tool", "tool_call_id": call["id"], "content": "4821\n"},
]
message, _ = same({**opencode, "messages": [*opencode["messages"], *turn]}, agent)
assert message["role"] == "assistant"
# It asks for a title with the same provider, without tools.
title = {"model": model, "max_tokens": 100, "temperature": 0, "messages": [
    {"role": "system", "content": "You are a title generator. You output ONLY a thread title."},
    {"role": "user", "content": "Generate a title for this conversation:\n"}, {"role": "user", "content": question}]}
same(title, agent)

# Cline, by the openai package for Node: tools described in the prompt, parts of content in every message, several turns
# of the user behind one another, no limit of the answer.
cline = {
    "model": model, "temperature": 0, "stream_options": {"include_usage": True}, "max_tokens": 64,
    "messages": [
        {"role": "system", "content": "You are Cline.\n\n# Tool Use\n\n<read_file>\n<path>File path here</path>\n</read_file>"},
        {"role": "user", "content": [{"type": "text", "text": f"<task>\n{question}\n</task>"}, {"type": "text", "text": "<environment_details>\n# Mode\nACT MODE\n</environment_details>"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "<read_file>\n<path>codes.txt</path>\n</read_file>"}]},
        {"role": "user", "content": [{"type": "text", "text": "[read_file for 'codes.txt'] Result:"}, {"type": "text", "text": "Ruth 4821"}]},
        {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
    ],
}
same(cline, {"http-referer": "https://cline.bot", "x-title": "Cline", "x-stainless-lang": "js"})
# Its native tools.
same({**cline, "tools": [function("read_file", {"path": {"type": "string"}}, strict=False)], "tool_choice": "auto", "parallel_tool_calls": False})

# LangChain, by the openai package for Python: fields that are null or as by default, names of messages, tools bound with
# a choice by name, structured output by function calls and by schema, legacy roles of LangGraph's tool messages.
langchain = {
    "model": model, "temperature": 0, "n": 1, "top_p": None, "frequency_penalty": None, "presence_penalty": 0.0, "stop": None, "seed": 7, "logprobs": False,
    "user": "u", "max_completion_tokens": 48, "parallel_tool_calls": True, "stream_options": None,
    "messages": [
        {"role": "system", "content": "Answer from what you are told.", "name": "guide"},
        {"role": "user", "content": question, "name": "human"},
    ],
    "tools": [function("Look Up".replace(" ", "_"), {"name": {"type": "string", "title": "Name", "maxLength": 12}}, title="Look_Up")],
}
same(langchain)
bound = {**langchain, "tool_choice": {"type": "function", "function": {"name": "Look_Up"}}, "max_completion_tokens": 200, "thinking_budget_tokens": 4}
message, reason = same(bound)
call = message["tool_calls"][0]
assert call["function"]["name"] == "Look_Up" and isinstance(json.loads(call["function"]["arguments"])["name"], str), message
same({**langchain, "messages": [*langchain["messages"], {"role": "assistant", "content": None, "tool_calls": [{**call, "index": 0}], "refusal": None},
                                {"role": "tool", "tool_call_id": call["id"], "name": "Look_Up", "content": "[\"4821\"]"}]})
schema = {"title": "Code", "description": "A code.", "type": "object", "properties": {
    "code": {"title": "Code", "type": "string", "pattern": "^[0-9]{4}$"}, "owner": {"anyOf": [{"enum": ["Ruth", "Abel"], "type": "string"}, {"type": "null"}]}},
    "required": ["code", "owner"], "additionalProperties": False}
structured = {name: value for name, value in langchain.items() if name not in ("tools", "parallel_tool_calls")}
structured.update(max_completion_tokens=300, thinking_budget_tokens=4, response_format={
    "type": "json_schema", "json_schema": {"name": "Code", "strict": True, "schema": schema}})
message, _ = same(structured)
code = json.loads(message["content"])
assert len(code["code"]) == 4 and code["code"].isdigit() and code["owner"] in ("Ruth", "Abel", None), code
same({**structured, "response_format": {"type": "json_object"}, "messages": [{"role": "user", "content": f"{question} Answer in JSON."}]})

# Gateways (LiteLLM, new-api, OpenRouter) rewrite what passes through them: fields of other providers, of their own and of
# none, empty lists, nulls wherever something could be.
gateway = {
    **{name: None for name in ["tools", "tool_choice", "functions", "function_call", "response_format", "logit_bias", "reasoning_effort", "modalities", "audio", "prediction"]},
    "model": model, "max_tokens": 24, "temperature": 0, "stop": [], "metadata": {"trace": "1"}, "store": False, "service_tier": "auto", "safety_identifier": "x",
    "litellm_params": {"x": 1}, "extra_body": {}, "provider": {"order": ["a"]}, "route": "fallback", "transforms": [], "usage": {"include": True}, "top_k": 0, "thinking": {"type": "disabled"},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": question, "cache_control": {"type": "ephemeral"}}], "provider_specific_fields": {}, "annotations": []},
        {"role": "assistant", "content": None, "function_call": None, "tool_calls": None, "reasoning_details": []},
        {"role": "user", "content": ""}, {"role": "user", "content": "Say it.", "weight": 1},
    ],
}
same(gateway)

print("all is well")
