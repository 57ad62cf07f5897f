"""llama.cpp with the settings of `paceline bench`, as something that can be measured."""

import time

import llama_cpp

KV_TYPES = {
    "f32": llama_cpp.GGML_TYPE_F32,
    "f16": llama_cpp.GGML_TYPE_F16,
    "q8_0": llama_cpp.GGML_TYPE_Q8_0,
    "q4_0": llama_cpp.GGML_TYPE_Q4_0,
}
# Rows of one call, as `paceline bench --prefill-chunk` has by default.
CHUNK = 512
# Sequence 0 keeps the prompt; measurements run on copies of it, which are removed afterwards. This also works
# for recurrent layers, whose states cannot be cut back.
PROMPT = 0

# Kept for as long as the library may call it.
QUIET = llama_cpp.llama_log_callback(lambda *_: None)


class Peer:
    """A loaded model and one context."""

    def __init__(self, model, threads, context, sequences, kv_type="f16"):
        llama_cpp.llama_log_set(QUIET, None)
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = context
        settings.n_batch = settings.n_ubatch = CHUNK
        settings.n_seq_max = sequences + 1
        settings.kv_unified = True
        settings.n_threads = settings.n_threads_batch = threads
        settings.type_k = settings.type_v = KV_TYPES[kv_type]
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        assert self.context, "llama.cpp refuses these settings"
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.tokens = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.depth = None

    def close(self):
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def run(self, rows):
        """Runs rows of (position, sequence, is wanted) and waits for their logits; returns the seconds."""
        batch = llama_cpp.llama_batch_init(len(rows), 0, 1)
        for index, (position, sequence, wanted) in enumerate(rows):
            batch.token[index] = (position + 1) * 2654435761 % self.tokens
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wanted
        batch.n_tokens = len(rows)
        begun = time.perf_counter()
        assert llama_cpp.llama_decode(self.context, batch) == 0
        llama_cpp.llama_synchronize(self.context)
        seconds = time.perf_counter() - begun
        llama_cpp.llama_batch_free(batch)
        return seconds

    def read(self, count):
        """Reads a new prompt of `count` tokens into the sequence that keeps it; returns the seconds."""
        llama_cpp.llama_memory_clear(self.memory, True)
        rows = [(position, PROMPT, position == count - 1) for position in range(count)]
        self.depth = count
        return sum(self.run(rows[start : start + CHUNK]) for start in range(0, count, CHUNK))

    def at(self, depth):
        """Has the prompt of `depth` tokens ready."""
        if self.depth != depth:
            self.read(depth)

    def on_copies(self, count, measure):
        """Measures on `count` copies of the prompt."""
        copies = range(PROMPT + 1, PROMPT + 1 + count)
        for copy in copies:
            llama_cpp.llama_memory_seq_cp(self.memory, PROMPT, copy, -1, -1)
        measured = measure(copies)
        for copy in copies:
            llama_cpp.llama_memory_seq_rm(self.memory, copy, -1, -1)
        return measured

    def prefill(self, tokens):
        """Tokens per second."""
        return tokens / self.read(tokens)

    def decode(self, depth, users, tokens):
        """Tokens per second of all users together."""
        self.at(depth)
        steps = lambda copies: sum(
            self.run([(depth + step, copy, True) for copy in copies]) for step in range(tokens)
        )
        return users * tokens / self.on_copies(users, steps)

    def verify(self, depth, rows):
        """Milliseconds of a step of that many rows of one sequence, all wanted."""
        self.at(depth)
        step = lambda copies: self.run([(depth + row, copies[0], True) for row in range(rows)])
        return self.on_copies(1, step) * 1e3
