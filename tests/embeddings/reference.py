"""Makes the golden vectors and scores of all-MiniLM-L6-v2 with sentence-transformers, in 32-bit floats.

    reference.py FOLDER OUT

FOLDER is as for convert.py; OUT gets texts.json, vectors.npy, pairs.json and scores.npy. The versions that made those in
the repository are in their README.
"""

import json
import sys
from pathlib import Path

import numpy
import torch
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from convert import classifier, read_safetensors

TEXTS = [
    "Hello, world!",
    "a",
    " ",
    ".",
    "The quick brown fox jumps over the lazy dog.",
    "A fast auburn fox leapt above a sleepy hound.",
    "How do I reset my password?",
    "What is the capital of France?",
    "Paris is the capital and most populous city of France.",
    "UPPER CASE AND lower case ArE tHe SaMe",
    "Crème brûlée, naïve façade, Ångström, São Paulo, Dvořák",
    "ﬁne ligatures, ℌ and ①②③, ½ and x²",
    "Die Grüße der Straßenbahn ẞ",
    "ΣΊΣΥΦΟΣ pushes the stone, Σίσυφος rests",
    "İstanbul and ıI dotted and dotless",
    "Привет, как дела?",
    "こんにちは世界。東京タワーは高い。",
    "你好，世界！人工智能改变生活",
    "한국어 문장도 있습니다",
    "שלום עולם",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "Emoji 😀🚀👩‍👩‍👧‍👦 and flags 🇩🇪",
    "zero\u200bwidth\u200djoiner\ufeffmark and soft\u00adhyphen",
    "tabs\tand\nnew\r\nlines\u00a0and\u2003spaces\u3000wide",
    "control \x01\x07\x7f characters \ufffd here",
    "don't can't won't it's o'clock rock'n'roll",
    "https://example.org/path?query=1&other=two#fragment",
    "fn main() { println!(\"{}\", 1 + 2); } // $HOME ~ `ls` ^ | <a>",
    "price: $1,234.56 (€99.99) — 50% off… “quoted” ‘single’ «guillemets»",
    "12345678901234567890 3.14159 1e-10 0xdeadbeef",
    "unaffable antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "x" * 100,
    "x" * 101,
    "word " * 200,
    "[CLS] spelled out [SEP] and [MASK] and [UNK] and [PAD]",
    "combining e\u0301 a\u0308 n\u0303 and stacked a\u0323\u0307",
    "𝕳𝖊𝖑𝖑𝖔 𠮷野家 \U0001f9d1\U0001f3fd",
    "The row of riders shares the wind by drafting behind each other. " * 25,
]

PAIRS = [
    ("What is the capital of France?", "Paris is the capital of France."),
    ("What is the capital of France?", "The Eiffel tower is made of iron."),
    ("What is the capital of France?", "Berlin is in Germany."),
    ("how to reset a password", "Click on \"forgot password\" and follow the link."),
    ("how to reset a password", "Bananas are rich in potassium."),
    ("日本の首都", "東京は日本の首都である。"),
    ("a", "b"),
    ("long", "word " * 300),
]


def vectors(folder, out):
    model = SentenceTransformer(str(folder), device="cpu")
    # The model has 512 positions; what it was tuned for is no limit of it.
    model.max_seq_length = 512
    found = model.encode(TEXTS, batch_size=1, normalize_embeddings=True, convert_to_numpy=True)
    told = [{"text": text, "tokens": model.tokenizer(text)["input_ids"]} for text in TEXTS]
    (out / "texts.json").write_text(json.dumps(told, ensure_ascii=True, indent=0) + "\n")
    numpy.save(out / "vectors.npy", found.astype(numpy.float32))


def scores(folder, out):
    """A cross-encoder with the model's own pooler and the made-up row of weights that convert.py writes."""
    config = BertConfig.from_pretrained(folder, num_labels=1)
    model = BertForSequenceClassification(config).eval()
    stored = {
        f"bert.{name}": torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape)
        for name, (shape, data) in read_safetensors(folder / "model.safetensors").items()
    }
    missing = model.load_state_dict(stored, strict=False).missing_keys
    assert set(missing) == {"classifier.weight", "classifier.bias"}, missing
    with torch.no_grad():
        model.classifier.weight[:] = torch.tensor(classifier(config.hidden_size))
        model.classifier.bias[:] = 0.25
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    told, found = [], []
    for query, document in PAIRS:
        read = tokenizer(query, document, return_tensors="pt")
        with torch.no_grad():
            found.append(model(**read).logits.item())
        told.append({"query": query, "document": document, "tokens": read["input_ids"][0].tolist()})
    (out / "pairs.json").write_text(json.dumps(told, ensure_ascii=True, indent=0) + "\n")
    numpy.save(out / "scores.npy", numpy.array(found, dtype=numpy.float32))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    vectors(folder, out)
    scores(folder, out)
