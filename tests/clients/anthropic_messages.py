"""Talks to a Paceline server with the official Anthropic client: sync, async, streams, tools, thinking, errors."""

import asyncio
import json
import sys

import anthropic

address = sys.argv[1]
client = anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)
question = "The code for Ruth is 4821. The code for Abel is 7719. What is the code for Ruth?"
ask = dict(model="claude-local", max_tokens=64, extra_body={"temperature": 0}, messages=[{"role": "user", "content": question}])

# A whole answer.
answer = client.messages.create(**ask)
assert answer.type == "message" and answer.role == "assistant", answer
assert "4821" in answer.content[0].text, answer
assert answer.stop_reason == "end_turn" and answer.stop_sequence is None
assert answer.usage.input_tokens > 20 and answer.usage.output_tokens > 3
assert answer._request_id, "the id of the request is in a header"

# Its tokens can be counted beforehand. What was found in the cache is counted apart.
count = client.messages.count_tokens(model=ask["model"], messages=ask["messages"])
assert count.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens
again = client.messages.create(**ask)
assert again.content == answer.content
assert again.usage.cache_read_input_tokens > 0
assert count.input_tokens == again.usage.input_tokens + again.usage.cache_read_input_tokens

# The events of a stream, in their order.
events = list(client.messages.create(**ask, stream=True))
order = [event.type for event in events]
assert order[0] == "message_start" and order[-2:] == ["message_delta", "message_stop"], order
assert order[1:3] == ["content_block_start", "content_block_delta"] or "ping" in order[1:3], order
inner = [kind for kind in order if kind.startswith("content_block")]
assert inner[0] == "content_block_start" and inner[-1] == "content_block_stop"
assert set(inner[1:-1]) == {"content_block_delta"}, "one block: it begins, grows, and stops"
with client.messages.stream(**ask) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert text == final.content[0].text == answer.content[0].text
assert final.stop_reason == "end_turn" and final.usage.output_tokens == answer.usage.output_tokens

# Stop reasons.
assert client.messages.create(**{**ask, "max_tokens": 3}).stop_reason == "max_tokens"
stopped = client.messages.create(**ask, stop_sequences=["48"])
assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "48", stopped
assert "48" not in stopped.content[0].text

# The system as text and as blocks.
for system in ["Be brief.", [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]]:
    assert client.messages.create(**ask, system=system).content

# Tools: what they gave goes on the conversation.
tools = [{"name": "look_up", "description": "Looks up a code.", "input_schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}]
turns = [
    {"role": "user", "content": [{"type": "text", "text": question}]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I look it up.", "signature": "x"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"name": "Ruth"}},
    ]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "4821"}]},
        {"type": "text", "text": "So what is it?"},
    ]},
]
for choice in [{"type": "auto"}, {"type": "none"}, {"type": "auto", "disable_parallel_tool_use": True}]:
    told = client.messages.create(**{**ask, "messages": turns}, tools=tools, tool_choice=choice)
    assert told.type == "message", told

# An answer of a schema, thinking or not, under the name of today and that of before.
schema = {"type": "object", "properties": {"who": {"enum": ["Ruth", "Abel"]}, "code": {"type": "integer", "minimum": 0, "maximum": 9999}}, "required": ["who", "code"], "additionalProperties": False}
form = {"type": "json_schema", "schema": schema}
for field in [{"output_config": {"format": form}}, {"output_format": form}]:
    for thinking in [{"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}]:
        structured = client.messages.create(**{**ask, "max_tokens": 1400, "thinking": thinking, "extra_body": {"temperature": 0, **field}})
        value = json.loads(structured.content[-1].text)
        assert value["who"] in ("Ruth", "Abel") and 0 <= value["code"] <= 9999, value
        assert (structured.content[0].type == "thinking") == (thinking["type"] == "enabled"), structured.content

# The shapes that Claude Code sends: system blocks with a line that changes, many tools, thinking, ids of users.
code = dict(
    model="claude-local",
    max_tokens=32000,
    stream=True,
    system=[
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;"},
        {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}},
    ],
    messages=[
        {"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>\nToday is a day.\n</system-reminder>"},
            {"type": "text", "text": question, "cache_control": {"type": "ephemeral"}},
        ]},
    ],
    tools=[{**tool, "input_schema": {"$schema": "http://json-schema.org/draft-07/schema#", "additionalProperties": False, **tool["input_schema"]}} for tool in tools],
    metadata={"user_id": "user_1_account__session_2"},
    thinking={"type": "disabled"},
    extra_body={"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    extra_query={"beta": "true"},
    extra_headers={"anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14"},
)
kinds = [event.type for event in client.messages.create(**code)]
assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
changed = {**code, "stream": False, "max_tokens": 64, "system": [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=00000;"}, code["system"][1]]}
assert client.messages.create(**changed).usage.cache_read_input_tokens > 0, "the line that changes is not read"
assert client.messages.count_tokens(model="claude-local", messages=code["messages"], system=code["system"], tools=code["tools"]).input_tokens > 30

# Errors are the client's own classes, in Anthropic's shape.
for arguments, error, word in [
    (dict(model="nobody"), anthropic.NotFoundError, "nobody"),
    (dict(max_tokens=0), anthropic.BadRequestError, "max_tokens"),
    (dict(messages=[]), anthropic.BadRequestError, "messages"),
    (dict(messages=[{"role": "king", "content": "x"}]), anthropic.BadRequestError, "messages[0].role"),
    (dict(messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]), anthropic.BadRequestError, "messages[0].content[0].type"),
    (dict(thinking={"type": "enabled", "budget_tokens": 5}), anthropic.BadRequestError, "budget_tokens"),
    (dict(tools=[{"type": "web_search_20250305", "name": "web_search"}]), anthropic.BadRequestError, "tools[0].type"),
    (dict(extra_body={"temperature": -1}), anthropic.BadRequestError, "temperature"),
]:
    try:
        client.messages.create(**{**ask, **arguments})
    except error as problem:
        assert problem.body["type"] == "error" and problem.body["error"]["type"], problem.body
        assert word in problem.body["error"]["message"], problem.body
        assert problem.body["request_id"] == problem.response.headers["request-id"]
    else:
        raise AssertionError(f"{arguments} was accepted")


async def at_once():
    """The same question from several sides at the same time, whole and as streams."""
    asynchronous = anthropic.AsyncAnthropic(base_url=address, api_key="none", max_retries=0)

    async def streamed():
        async with asynchronous.messages.stream(**ask) as stream:
            return (await stream.get_final_message()).content[0].text

    async def whole():
        return (await asynchronous.messages.create(**ask)).content[0].text

    texts = await asyncio.gather(streamed(), whole(), streamed(), whole())
    assert set(texts) == {answer.content[0].text}, texts


asyncio.run(at_once())
print("all is well")
