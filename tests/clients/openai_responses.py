"""Talks to a Paceline server with the official OpenAI client: the Responses API, whole, streamed and stored."""

import asyncio
import sys

import openai

address = sys.argv[1] + "/v1"
client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
model = client.models.list().data[0].id
question = "The code for Ruth is 4821. The code for Abel is 7719. What is the code for Ruth?"
plainly = {"chat_template_kwargs": {"enable_thinking": False}}
ask = dict(model=model, input=question, temperature=0, max_output_tokens=64, extra_body=plainly)

# A whole answer.
answer = client.responses.create(**ask)
assert answer.status == "completed" and answer.object == "response" and answer.error is None
assert "4821" in answer.output_text, answer
assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
assert answer.usage.output_tokens_details.reasoning_tokens == 0

# Thinking is an item of its own, before what is said.
thinking = client.responses.create(**{**ask, "extra_body": None})
assert thinking.output[0].type == "reasoning" and thinking.output[0].content[0].text, thinking
assert thinking.usage.output_tokens_details.reasoning_tokens > 0

# The same as events, numbered from 0 without a gap.
events = list(client.responses.create(**ask, stream=True))
assert [event.sequence_number for event in events] == list(range(len(events)))
order = [event.type for event in events]
assert order[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"], order
assert order[-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"], order
assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answer.output_text
assert events[-1].response.output_text == answer.output_text
with client.responses.stream(**ask) as stream:
    for _ in stream:
        pass
    assert stream.get_final_response().output_text == answer.output_text

# Cut off.
short = client.responses.create(**{**ask, "max_output_tokens": 3})
assert short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens"

# Stored: found again, gone on from, forgotten.
assert client.responses.retrieve(answer.id).output_text == answer.output_text
items = client.responses.input_items.list(answer.id).data
assert len(items) == 1 and items[0].role == "user", items
follow = client.responses.create(**{**ask, "input": "And for Abel?"}, previous_response_id=answer.id, instructions="Be brief.")
assert follow.previous_response_id == answer.id and follow.instructions == "Be brief."
by_hand = client.responses.create(**{**ask, "input": [
    {"role": "user", "content": question},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer.output_text, "annotations": []}]},
    {"role": "user", "content": [{"type": "input_text", "text": "And for Abel?"}]},
]}, instructions="Be brief.", store=False)
assert by_hand.output_text == follow.output_text, "going on is the same as sending everything again"
for missing in [lambda: client.responses.retrieve(by_hand.id), lambda: client.responses.create(**ask, previous_response_id=by_hand.id)]:
    try:
        missing()
    except openai.NotFoundError as problem:
        assert by_hand.id in str(problem), "what is not to be stored is not"
    else:
        raise AssertionError("it was found")
client.responses.delete(answer.id)
try:
    client.responses.retrieve(answer.id)
except openai.NotFoundError as problem:
    assert problem.code == "response_not_found"
else:
    raise AssertionError("it was found")

# The shape that Codex sends: developer messages, its tools, reasoning, nothing stored.
codex = dict(
    model=model,
    instructions="You are a coding agent.",
    input=[
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>none</permissions>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context></environment_context>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": question}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
        {"type": "function_call", "call_id": "call_1", "name": "shell", "arguments": "{\"command\": [\"ls\"]}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "README.md"},
    ],
    tools=[
        {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False, "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}, "required": ["command"], "additionalProperties": False}},
        {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
        {"type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents.", "tools": [
            {"type": "function", "name": "close_agent", "description": "Closes one.", "strict": False, "parameters": {"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"], "additionalProperties": False}}]},
        {"type": "web_search", "external_web_access": False},
    ],
    tool_choice="auto",
    parallel_tool_calls=False,
    reasoning={"effort": "medium", "summary": "auto"},
    store=False,
    stream=True,
    include=["reasoning.encrypted_content"],
    prompt_cache_key="0b0c1e3e-6b0f-4a5e-9a55-0d2d3f1d8a11",
    text={"verbosity": "medium"},
)
last = list(client.responses.create(**codex))[-1]
assert last.type in ("response.completed", "response.incomplete"), last

# Errors are the client's own classes.
for arguments, error, word in [
    (dict(model="nobody"), openai.NotFoundError, "nobody"),
    (dict(temperature=-1), openai.BadRequestError, "-1"),
    (dict(max_output_tokens=0), openai.BadRequestError, "max_output_tokens"),
    (dict(input=[]), openai.BadRequestError, "input"),
    (dict(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]), openai.BadRequestError, "input[0].content[0].type"),
    (dict(background=True), openai.BadRequestError, "background"),
    (dict(truncation="auto"), openai.BadRequestError, "truncation"),
    (dict(tools=[{"type": "telepathy"}]), openai.BadRequestError, "tools[0].type"),
    (dict(input="word " * 20000), openai.BadRequestError, "context"),
]:
    try:
        client.responses.create(**{**ask, **arguments})
    except error as problem:
        assert word in str(problem), problem
    else:
        raise AssertionError(f"{arguments} was accepted")


async def at_once():
    """The same question from several sides at the same time, whole and as streams."""
    asynchronous = openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0)

    async def streamed():
        stream = await asynchronous.responses.create(**ask, stream=True)
        return "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])

    async def whole():
        return (await asynchronous.responses.create(**ask)).output_text

    texts = await asyncio.gather(streamed(), whole(), streamed(), whole())
    assert set(texts) == {answer.output_text}, texts


asyncio.run(at_once())
print("all is well")
