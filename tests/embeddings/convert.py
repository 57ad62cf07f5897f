"""Makes a GGUF file, in 32-bit floats, of a BERT model as sentence-transformers keeps one.

    convert.py FOLDER FILE.gguf [--classifier]

FOLDER holds model.safetensors, config.json, vocab.txt and 1_Pooling/config.json. With --classifier the file is one of a
cross-encoder: the model's own pooler, and behind it a made-up row of weights, for tests of how scores are computed.
Needs nothing but Python.
"""

import json
import struct
import sys
from pathlib import Path

ALIGNMENT = 32
F32 = 0
U32, I32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
NORMAL, UNKNOWN, CONTROL = 1, 2, 3
POOLING = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
RANK = 4

# How parts of a layer are called there, and here.
LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
OUTSIDE = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
POOLER = {"pooler.dense": "cls"}


def classifier(width):
    """The made-up row: the same everywhere, of about the size of a trained one."""
    state, row = 12345, []
    for _ in range(width):
        state = (1103515245 * state + 12345) % 2**31
        row.append((state / 2**31 - 0.5) * 0.4)
    return row


def read_safetensors(path):
    """Names, shapes and bytes of all tensors of 32-bit floats."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, told in header.items():
        if name != "__metadata__" and told["dtype"] == "F32":
            first, last = told["data_offsets"]
            tensors[name] = (told["shape"], data[8 + length + first : 8 + length + last])
    return tensors


def rename(name, with_pooler):
    """How a tensor is called here, or nothing where it has no use."""
    stem, _, kind = name.rpartition(".")
    known = OUTSIDE | POOLER if with_pooler else OUTSIDE
    if stem in known:
        return f"{known[stem]}.{kind}"
    if stem.startswith("encoder.layer."):
        number, _, part = stem.removeprefix("encoder.layer.").partition(".")
        return f"blk.{number}.{LAYER[part]}.{kind}"
    return None


def spelling(token):
    """Pieces that begin a word have a mark before them, those that go on have none."""
    if token.startswith("[") and token.endswith("]") and token[1:-1] in ("PAD", "UNK", "CLS", "SEP", "MASK"):
        return token, UNKNOWN if token == "[UNK]" else CONTROL
    return (token[2:] if token.startswith("##") else "\u2581" + token), NORMAL


def text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def value(kind, content):
    if kind == STRING:
        return text(content)
    return struct.pack({U32: "<I", I32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], content)


def entry(key, kind, content):
    return text(key) + struct.pack("<I", kind) + value(kind, content)


def array(key, kind, contents):
    head = text(key) + struct.pack("<IIQ", ARRAY, kind, len(contents))
    return head + b"".join(value(kind, content) for content in contents)


def metadata(folder, config, ranks):
    pooling = json.loads((folder / "1_Pooling/config.json").read_text())
    number = RANK if ranks else next(POOLING[mode] for mode, on in pooling.items() if mode in POOLING and on is True)
    tokens, kinds = zip(*(spelling(line) for line in (folder / "vocab.txt").read_text().splitlines()))
    return [
        entry("general.architecture", STRING, "bert"),
        entry("general.name", STRING, "all-MiniLM-L6-v2"),
        entry("bert.block_count", U32, config["num_hidden_layers"]),
        entry("bert.context_length", U32, config["max_position_embeddings"]),
        entry("bert.embedding_length", U32, config["hidden_size"]),
        entry("bert.feed_forward_length", U32, config["intermediate_size"]),
        entry("bert.attention.head_count", U32, config["num_attention_heads"]),
        entry("bert.attention.layer_norm_epsilon", FLOAT32, config["layer_norm_eps"]),
        entry("bert.attention.causal", BOOL, False),
        entry("bert.pooling_type", U32, number),
        entry("tokenizer.ggml.model", STRING, "bert"),
        entry("tokenizer.ggml.token_type_count", U32, config["type_vocab_size"]),
        entry("tokenizer.ggml.cls_token_id", U32, tokens.index("[CLS]")),
        entry("tokenizer.ggml.seperator_token_id", U32, tokens.index("[SEP]")),
        entry("tokenizer.ggml.unknown_token_id", U32, tokens.index("[UNK]")),
        array("tokenizer.ggml.tokens", STRING, tokens),
        array("tokenizer.ggml.token_type", I32, kinds),
    ]


def convert(folder, path, ranks=False):
    config = json.loads((folder / "config.json").read_text())
    tensors = []
    for name, (shape, data) in read_safetensors(folder / "model.safetensors").items():
        if (new := rename(name, ranks)) is not None:
            tensors.append((new, shape, data))
    if ranks:
        row = classifier(config["hidden_size"])
        tensors.append(("cls.output.weight", [1, len(row)], struct.pack(f"<{len(row)}f", *row)))
        tensors.append(("cls.output.bias", [1], struct.pack("<f", 0.25)))
    entries = metadata(folder, config, ranks)
    head, offset = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(entries)) + b"".join(entries), 0
    for name, shape, data in tensors:
        dims = list(reversed(shape))
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, F32, offset)
        offset += -(-len(data) // ALIGNMENT) * ALIGNMENT
    with open(path, "wb") as file:
        file.write(head + b"\0" * (-len(head) % ALIGNMENT))
        for _, _, data in tensors:
            file.write(data + b"\0" * (-len(data) % ALIGNMENT))


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--classifier"]
    if len(arguments) != 2:
        sys.exit(__doc__)
    convert(Path(arguments[0]), Path(arguments[1]), ranks="--classifier" in sys.argv)
