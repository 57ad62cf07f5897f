"""Talks to a Paceline server of all-MiniLM-L6-v2 with the official OpenAI client: vectors, in all forms, and errors."""

import base64
import json
import struct
import sys
import urllib.request

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
golden = json.load(open(sys.argv[2]))
model = client.models.list().data[0].id
described = client.models.retrieve(model).model_dump()
assert described["capabilities"]["embeddings"] and described["meta"]["n_embd"] == 384, described


def cosine(one, other):
    return sum(a * b for a, b in zip(one, other)) / (sum(a * a for a in one) * sum(b * b for b in other)) ** 0.5


# One text; the client asks for base64 by itself.
answer = client.embeddings.create(model=model, input="The quick brown fox jumps over the lazy dog.")
first = answer.data[0].embedding
assert len(first) == 384 and abs(sum(value * value for value in first) - 1) < 1e-5
assert answer.usage.prompt_tokens == answer.usage.total_tokens == 12, answer.usage
assert answer.model == model and answer.object == "list" and answer.data[0].index == 0

# As numbers, the very same.
numbers = client.embeddings.create(model=model, input="The quick brown fox jumps over the lazy dog.", encoding_format="float")
assert [struct.pack("<f", value) for value in numbers.data[0].embedding] == [struct.pack("<f", value) for value in first]

# Many at once, in their order, each as if it were alone; what means the same is near.
texts = [told["text"] for told in golden if told["text"]]
answer = client.embeddings.create(model=model, input=texts)
assert [card.index for card in answer.data] == list(range(len(texts)))
assert answer.usage.prompt_tokens == sum(len(told["tokens"]) for told in golden)
quick, fast = texts.index("The quick brown fox jumps over the lazy dog."), texts.index("A fast auburn fox leapt above a sleepy hound.")
assert answer.data[quick].embedding == first
assert cosine(answer.data[quick].embedding, answer.data[fast].embedding) > 0.6
assert cosine(answer.data[quick].embedding, answer.data[texts.index("How do I reset my password?")].embedding) < 0.3

# Tokens, one list or several.
tokens = golden[quick]["tokens"]
assert client.embeddings.create(model=model, input=tokens).data[0].embedding == first
both = client.embeddings.create(model=model, input=[tokens, golden[fast]["tokens"]])
assert both.data[0].embedding == first and both.data[1].embedding == answer.data[fast].embedding

# Fewer values, of length 1 again.
short = client.embeddings.create(model=model, input=texts[quick], dimensions=64).data[0].embedding
assert len(short) == 64 and abs(sum(value * value for value in short) - 1) < 1e-5
assert cosine(short, first[:64]) > 0.999999


def refused(code, status=400, **request):
    try:
        client.embeddings.create(**{"model": model, "input": "x", **request})
    except openai.APIStatusError as error:
        assert error.status_code == status and error.code == code, (request, error.status_code, error.body)
        return str(error)
    raise AssertionError(f"{request} was not refused")


assert "input is an empty string" in refused("invalid_value", input="")
assert "input[1] is an empty string" in refused("invalid_value", input=["x", ""])
assert "from 1 to 2048" in refused("invalid_value", input=[])
assert "input[0] is empty" in refused("invalid_value", input=[[]])
assert "from 1 to 2048" in refused("invalid_value", input=["x"] * 2049)
assert "the model reads 512 at most" in refused("context_length_exceeded", input="word " * 600)
assert "the model reads 512 at most" in refused("context_length_exceeded", input=[7] * 600)
assert "token ids are below 30522" in refused("invalid_value", input=[40000])
assert "from 1 to 384" in refused("invalid_value", dimensions=385)
assert "from 1 to 384" in refused("invalid_value", dimensions=0)
assert "does not exist" in refused("model_not_found", 404, model="nothing")
refused("invalid_value", input=5)
refused("invalid_value", encoding_format="hex")
try:
    client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hello"}])
    raise AssertionError("it answered")
except openai.BadRequestError as error:
    assert error.code == "wrong_model" and "/v1/embeddings" in str(error), error.body

# Base64 as it travels.
body = json.dumps({"input": "x", "encoding_format": "base64"}).encode()
request = urllib.request.Request(sys.argv[1] + "/v1/embeddings", body, {"content-type": "application/json"})
raw = json.load(urllib.request.urlopen(request))["data"][0]["embedding"]
numbers = client.embeddings.create(model=model, input="x", encoding_format="float").data[0].embedding
assert base64.b64decode(raw) == struct.pack("<384f", *numbers)

print("all is well")
