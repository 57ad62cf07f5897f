"""Talks to a Paceline server with the official OpenAI client: chat, stream, usage, log probabilities, errors."""

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
assert "The code for Ruth is 4821." in choice.message.content, choice.message.content
assert choice.finish_reason == "stop"
assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
assert answer.usage.prompt_tokens_details.cached_tokens == 0
assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in choice.logprobs.content)

# The same as a stream.
pieces, usage, reason = [], None, None
stream = client.chat.completions.create(
    model=model, messages=messages, temperature=0, max_tokens=64, stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    if chunk.choices:
        pieces.append(chunk.choices[0].delta.content or "")
        reason = chunk.choices[0].finish_reason or reason
    usage = chunk.usage or usage
assert "".join(pieces) == choice.message.content
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
first = client.chat.completions.create(**sample, seed=11)
again = client.chat.completions.create(**sample, seed=11)
assert [c.message.content for c in first.choices] == [c.message.content for c in again.choices]
assert len({c.message.content for c in first.choices}) > 1

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
    (dict(messages=[{"role": "user", "content": "word " * 20000}]), openai.BadRequestError, "context"),
]:
    try:
        client.chat.completions.create(**{**dict(model=model, messages=messages), **arguments})
    except error as problem:
        assert word in str(problem), problem
    else:
        raise AssertionError(f"{arguments} was accepted")

print("all is well")
