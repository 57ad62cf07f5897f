"""Talks to a Paceline server with the official OpenAI client: chat, stream, usage, log probabilities, errors."""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
question = "The code for Ruth is 4821. The code for Abel is 7719. What is the code for Ruth?"
messages = [{"role": "user", "content": question}]

model = client.models.list().data[0].id
assert client.models.retrieve(model).id == model

# A whole answer, with usage and log probabilities.
answer = client.chat.completions.create(
    model=model, messages=messages, temperature=0, max_tokens=64, logprobs=True, top_logprobs=2
)
choice = answer.choices[0]
assert choice.message.content == "The code for Ruth is 4821.", choice.message.content
assert "Ruth" in choice.message.reasoning_content and "think" not in choice.message.reasoning_content
assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens
assert choice.finish_reason == "stop"
assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
assert answer.usage.prompt_tokens_details.cached_tokens == 0
assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in choice.logprobs.content)

# The same as a stream.
pieces, thoughts, usage, reason = [], [], None, None
stream = client.chat.completions.create(
    model=model, messages=messages, temperature=0, max_tokens=64, stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    if chunk.choices:
        pieces.append(chunk.choices[0].delta.content or "")
        thoughts.append(getattr(chunk.choices[0].delta, "reasoning_content", None) or "")
        reason = chunk.choices[0].finish_reason or reason
    usage = chunk.usage or usage
assert "".join(pieces) == choice.message.content
assert "".join(thoughts) == choice.message.reasoning_content
assert reason == "stop" and len(pieces) > 3
assert usage.completion_tokens == answer.usage.completion_tokens
# The prompt was read already: all but the opening of the answer is found again.
assert usage.prompt_tokens - 8 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens, usage

# A turn is appended: what the first turn read is not read again.
turn = client.chat.completions.with_raw_response.create(
    model=model, temperature=0, max_tokens=8,
    messages=[*messages, {"role": "assistant", "content": choice.message.content}, {"role": "user", "content": "And for Abel?"}],
)
assert turn.parse().usage.prompt_tokens_details.cached_tokens >= usage.prompt_tokens - 8
assert turn.headers["x-paceline-cache-tier"] == "device"

# Several choices, sampled, by seed.
sample = dict(model=model, messages=[{"role": "user", "content": "Tell me of the sea."}], temperature=1.0, n=3, max_tokens=24)
said = lambda answer: [(choice.message.content, getattr(choice.message, "reasoning_content", None)) for choice in answer.choices]
first = client.chat.completions.create(**sample, seed=11)
again = client.chat.completions.create(**sample, seed=11)
assert said(first) == said(again)
assert len(set(said(first))) > 1

# Thinking has a budget, which is kept while tokens are chosen; without it there is none.
def thoughts_within(**extra):
    limited = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=64, extra_body=extra)
    return limited.choices[0].message, limited.usage.completion_tokens_details.reasoning_tokens

message, count = thoughts_within(thinking_budget_tokens=2)
assert count <= 5 and message.content, (message, count)
message, count = thoughts_within(enable_thinking=False)
assert count == 0 and message.content and not getattr(message, "reasoning_content", None), message

# A tool that must be called is called, with arguments of its schema; as a stream as well.
tool = {"type": "function", "function": {"name": "look_up", "description": "Looks a code up.", "parameters": {
    "type": "object", "properties": {"name": {"type": "string", "enum": ["Ruth", "Abel"]}, "digits": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["name", "digits"], "additionalProperties": False}}}
call = dict(model=model, messages=messages, temperature=0, max_tokens=200, tools=[tool], parallel_tool_calls=False, extra_body={"thinking_budget_tokens": 8})
for choice in ["required", {"type": "function", "function": {"name": "look_up"}}]:
    answer = client.chat.completions.create(**call, tool_choice=choice)
    function = answer.choices[0].message.tool_calls[0].function
    arguments = json.loads(function.arguments)
    assert function.name == "look_up" and arguments["name"] in ("Ruth", "Abel") and 1 <= arguments["digits"] <= 9, function
    assert answer.choices[0].finish_reason == "tool_calls"
    streamed = ""
    for chunk in client.chat.completions.create(**call, tool_choice=choice, stream=True):
        for part in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            streamed += part.function.arguments or ""
    assert streamed == function.arguments, (streamed, function.arguments)

# The result of a call goes back, as agents send it, and system messages may stand anywhere.
back = client.chat.completions.create(model=model, temperature=0, max_tokens=8, tools=[tool], messages=[
    {"role": "developer", "content": "Be brief."}, *messages,
    {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{\"name\": \"Ruth\"}"}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "4821"}, {"role": "system", "content": "Answer now."}])
assert back.usage.completion_tokens > 0

# An answer of a schema, read by the client's own classes.
schema = {"type": "object", "properties": {"code": {"type": "integer", "minimum": 0, "maximum": 9999}, "sure": {"type": "boolean"}}, "required": ["code", "sure"], "additionalProperties": False}
structured = client.chat.completions.create(
    model=model, messages=messages, temperature=0, max_tokens=200, extra_body={"thinking_budget_tokens": 8},
    response_format={"type": "json_schema", "json_schema": {"name": "code", "strict": True, "schema": schema}})
value = json.loads(structured.choices[0].message.content)
assert isinstance(value["code"], int) and isinstance(value["sure"], bool), value

# Text completion.
text = client.completions.create(model=model, prompt="In the beginning", temperature=0, max_tokens=8, logprobs=1)
assert len(text.choices[0].logprobs.tokens) == 8

# Leaving in the middle of a stream.
with client.chat.completions.create(
    model=model, messages=messages, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
) as stream:
    next(iter(stream))

# Errors are the client's own classes.
for arguments, error, word in [
    (dict(model="nobody"), openai.NotFoundError, "nobody"),
    (dict(temperature=-1), openai.BadRequestError, "-1"),
    (dict(max_tokens=-5), openai.BadRequestError, "-5"),
    (dict(messages=[]), openai.BadRequestError, "messages"),
    (dict(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "flower"}}}), openai.BadRequestError, "flower"),
    (dict(tools=[tool], tool_choice={"type": "function", "function": {"name": "nobody"}}), openai.BadRequestError, "nobody"),
    (dict(messages=[{"role": "user", "content": "word " * 20000}]), openai.BadRequestError, "context"),
]:
    try:
        client.chat.completions.create(**{**dict(model=model, messages=messages), **arguments})
    except error as problem:
        assert word in str(problem), problem
    else:
        raise AssertionError(f"{arguments} was accepted")

print("all is well")
