// Recurrent layers: the causal convolution, and the gated delta rule, both with logs of uncertain tokens.
//
// A slot holds the window of the convolution, `[tap][channel]`, and then a matrix per head, `[head][row][column]`. The state
// stays behind the last token that is certain. A log is a ring by position; a row of it has the inputs of all channels, then
// the alphas and then the betas of all heads. What is read of window and log is written in a launch of its own, after all
// blocks have read.

#include "common.cuh"

/// The memory of one layer.
struct Memory {
    float* slots;
    float* logs;
    u32 channels;
    u32 taps;
    u32 heads;
    u32 head_dim;
    /// Tokens of a log.
    u32 log_tokens;
    /// Rows of a step at most: replayed ones lie behind them.
    u32 step_rows;
};

__device__ inline float* window_of(const Memory& memory, u32 slot) {
    u64 window = (u64)(memory.taps - 1) * memory.channels;
    return memory.slots + slot * (window + (u64)memory.heads * memory.head_dim * memory.head_dim);
}

__device__ inline float* matrix_of(const Memory& memory, u32 slot, u32 head) {
    u64 matrix = (u64)memory.head_dim * memory.head_dim;
    return window_of(memory, slot) + (u64)(memory.taps - 1) * memory.channels + head * matrix;
}

/// What a log has of the row of a chunk, counted from the first that is replayed before it.
__device__ inline float* logged_row(const Memory& memory, const Chunk& chunk, u32 index) {
    u32 position = chunk.start - chunk.before + index;
    u64 row = (u64)chunk.log * memory.log_tokens + position % memory.log_tokens;
    return memory.logs + row * (memory.channels + 2 * memory.heads);
}

/// Input `index` of the sequence that starts with what is remembered, and goes on with what is logged and then the chunk.
__device__ inline float sequence_input(
    const Memory& memory, const Chunk& chunk, const float* input, u32 index, u32 channel) {
    u32 remembered = memory.taps - 1;
    if (index < remembered) {
        return window_of(memory, chunk.slot)[(u64)index * memory.channels + channel];
    }
    index -= remembered;
    if (index < chunk.before) {
        return logged_row(memory, chunk, index)[channel];
    }
    return input[(u64)(chunk.first_row + index - chunk.before) * memory.channels + channel];
}

/// `output = silu(Σ weight · input)` over the taps; `weight (channels, taps)`. Channels along x, rows with replayed ones
/// along y.
extern "C" __global__ void convolve(
    const Step* step, const Memory* memory_of, const float* input, const float* weight, float* output) {
    const Memory memory = *memory_of;
    u32 channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (blockIdx.y >= step->counts[SEQUENCE_ROWS] || channel >= memory.channels) {
        return;
    }
    SequenceRow row = table<SequenceRow>(step, step->sequence)[blockIdx.y];
    const Chunk& chunk = table<Chunk>(step, step->chunks)[row.chunk];
    float sum = 0.0f;
    for (u32 tap = 0; tap < memory.taps; tap++) {
        float value = sequence_input(memory, chunk, input, row.index + tap, channel);
        sum = fmaf(weight[(u64)channel * memory.taps + tap], value, sum);
    }
    u64 to = row_of(chunk, row.index, memory.step_rows, memory.log_tokens);
    output[to * memory.channels + channel] = silu(sum);
}

/// Keeps the last certain inputs of each chunk, and logs those that are not certain. Channels along x, chunks along y.
extern "C" __global__ void remember_inputs(const Step* step, const Memory* memory_of, const float* input) {
    const Memory memory = *memory_of;
    u32 channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (blockIdx.y >= step->counts[CHUNKS] || channel >= memory.channels) {
        return;
    }
    const Chunk& chunk = table<Chunk>(step, step->chunks)[blockIdx.y];
    u32 certain = certain_rows(chunk), all = replayed_and_rows(chunk);
    if (certain > 0) {
        // In order of age: none is overwritten before it is read.
        for (u32 tap = 0; tap + 1 < memory.taps; tap++) {
            float newer = sequence_input(memory, chunk, input, certain + tap, channel);
            window_of(memory, chunk.slot)[(u64)tap * memory.channels + channel] = newer;
        }
    }
    for (u32 index = certain > chunk.before ? certain : chunk.before; index < all; index++) {
        float value = sequence_input(memory, chunk, input, memory.taps - 1 + index, channel);
        logged_row(memory, chunk, index)[channel] = value;
    }
}

/// What the delta rule reads of every row: normalized queries and keys of all key heads, decays and betas of all heads.
__device__ inline float* prepared_row(const Memory& memory, float* prepared, u64 row, u32 key_heads) {
    return prepared + row * (2 * key_heads * memory.head_dim + 2 * memory.heads);
}

/// Norms a query or key head of a row: `input / sqrt(Σ input² + epsilon)`, queries over the root of their length as well. A
/// block of `NORM_THREADS` per query and key head along x, rows with replayed ones along y.
extern "C" __global__ void normalize_heads(
    const Step* step, const Memory* memory_of, const float* input, float* prepared, u32 key_heads, float epsilon) {
    const Memory memory = *memory_of;
    if (blockIdx.y >= step->counts[SEQUENCE_ROWS]) {
        return;
    }
    SequenceRow sequence = table<SequenceRow>(step, step->sequence)[blockIdx.y];
    const Chunk& chunk = table<Chunk>(step, step->chunks)[sequence.chunk];
    u64 row = row_of(chunk, sequence.index, memory.step_rows, memory.log_tokens);
    u32 dim = memory.head_dim, head = blockIdx.x;
    const float* values = input + row * (u64)(2 * key_heads + memory.heads) * dim + head * dim;
    float* output = prepared_row(memory, prepared, row, key_heads) + head * dim;
    float length = sqrtf(sum_of_squares(values, dim) + epsilon);
    float scale = 1.0f / length / (head < key_heads ? sqrtf((float)dim) : 1.0f);
    for (u32 i = threadIdx.x; i < dim; i += NORM_THREADS) {
        output[i] = values[i] * scale;
    }
}

/// Decays and betas of all heads of every row. Heads along x, rows with replayed ones along y.
extern "C" __global__ void delta_gates(
    const Step* step, const Memory* memory_of, const float* alpha, const float* beta, const float* time_bias,
    const float* rate, float* prepared, u32 key_heads) {
    const Memory memory = *memory_of;
    u32 head = blockIdx.x * blockDim.x + threadIdx.x;
    if (blockIdx.y >= step->counts[SEQUENCE_ROWS] || head >= memory.heads) {
        return;
    }
    SequenceRow sequence = table<SequenceRow>(step, step->sequence)[blockIdx.y];
    const Chunk& chunk = table<Chunk>(step, step->chunks)[sequence.chunk];
    u64 row = row_of(chunk, sequence.index, memory.step_rows, memory.log_tokens);
    bool replayed = sequence.index < chunk.before;
    const float* logged = replayed ? logged_row(memory, chunk, sequence.index) + memory.channels : nullptr;
    float own_alpha = replayed ? logged[head] : alpha[row * memory.heads + head];
    float own_beta = replayed ? logged[memory.heads + head] : beta[row * memory.heads + head];
    float* gates = prepared_row(memory, prepared, row, key_heads) + 2 * key_heads * memory.head_dim;
    gates[head] = exponential(softplus(own_alpha + time_bias[head]) * rate[head]);
    gates[memory.heads + head] = sigmoid(own_beta);
}

/// Logs what decides the gates of uncertain rows. Heads along x, rows with replayed ones along y.
extern "C" __global__ void log_gates(const Step* step, const Memory* memory_of, const float* alpha, const float* beta) {
    const Memory memory = *memory_of;
    u32 head = blockIdx.x * blockDim.x + threadIdx.x;
    if (blockIdx.y >= step->counts[SEQUENCE_ROWS] || head >= memory.heads) {
        return;
    }
    SequenceRow sequence = table<SequenceRow>(step, step->sequence)[blockIdx.y];
    const Chunk& chunk = table<Chunk>(step, step->chunks)[sequence.chunk];
    if (!newly_uncertain(chunk, sequence.index)) {
        return;
    }
    u64 row = row_of(chunk, sequence.index, memory.step_rows, memory.log_tokens);
    float* logged = logged_row(memory, chunk, sequence.index) + memory.channels;
    logged[head] = alpha[row * memory.heads + head];
    logged[memory.heads + head] = beta[row * memory.heads + head];
}

/// Columns of a matrix that a block takes through a chunk, and threads that share each: row i of a column belongs to thread
/// i mod 4, and their sums are added as (0 + 1) + (2 + 3).
#define TILE_COLUMNS 32u
#define COLUMN_THREADS 4u

__device__ inline float join_chains(float chain) {
    chain += __shfl_xor_sync(ALL_LANES, chain, 1);
    return chain + __shfl_xor_sync(ALL_LANES, chain, 2);
}

/// The gated delta rule, one token after another. A block of `TILE_COLUMNS · COLUMN_THREADS` threads per tile of columns
/// along x, head along y and chunk along z; shared memory for the tile. Rows that are uncertain change the tile, but not
/// the state.
extern "C" __global__ void delta_rule(
    const Step* step, const Memory* memory_of, const float* input, const float* prepared, float* output, u32 key_heads) {
    const Memory memory = *memory_of;
    DYNAMIC_SHARED(float, tile);
    if (blockIdx.z >= step->counts[CHUNKS]) {
        return;
    }
    const Chunk& chunk = table<Chunk>(step, step->chunks)[blockIdx.z];
    u32 dim = memory.head_dim, head = blockIdx.y;
    u32 chain = threadIdx.x % COLUMN_THREADS, own = threadIdx.x / COLUMN_THREADS;
    u32 column = blockIdx.x * TILE_COLUMNS + own;
    bool there = column < dim;
    float* matrix = matrix_of(memory, chunk.slot, head) + column;
    // Every thread has its own elements of the tile, so nothing waits for others.
    float* elements = tile + own;
    for (u32 i = chain; i < dim; i += COLUMN_THREADS) {
        elements[i * TILE_COLUMNS] = there ? matrix[(u64)i * dim] : 0.0f;
    }
    u32 values = 2 * key_heads * dim, key_head = head % key_heads;
    u32 certain = certain_rows(chunk), all = replayed_and_rows(chunk);
    for (u32 index = 0; index < all; index++) {
        if (index == certain && certain > 0 && there) {
            for (u32 i = chain; i < dim; i += COLUMN_THREADS) {
                matrix[(u64)i * dim] = elements[i * TILE_COLUMNS];
            }
        }
        u64 row = row_of(chunk, index, memory.step_rows, memory.log_tokens);
        const float* ready = prepared_row(memory, (float*)prepared, row, key_heads);
        const float* query = ready + key_head * dim;
        const float* key = query + key_heads * dim;
        float decay = ready[values + head], beta = ready[values + memory.heads + head];
        float value = there ? input[row * (u64)(values + memory.heads * dim) + values + head * dim + column] : 0.0f;
        float read = 0.0f;
        for (u32 i = chain; i < dim; i += COLUMN_THREADS) {
            float decayed = elements[i * TILE_COLUMNS] * decay;
            elements[i * TILE_COLUMNS] = decayed;
            read = fmaf(decayed, key[i], read);
        }
        float change = beta * (value - join_chains(read));
        float result = 0.0f;
        for (u32 i = chain; i < dim; i += COLUMN_THREADS) {
            float written = fmaf(key[i], change, elements[i * TILE_COLUMNS]);
            elements[i * TILE_COLUMNS] = written;
            result = fmaf(written, query[i], result);
        }
        result = join_chains(result);
        if (there && chain == 0) {
            output[row * (u64)(memory.heads * dim) + head * dim + column] = result;
        }
    }
    if (certain == all && there) {
        for (u32 i = chain; i < dim; i += COLUMN_THREADS) {
            matrix[(u64)i * dim] = elements[i * TILE_COLUMNS];
        }
    }
}
