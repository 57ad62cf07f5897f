// Root-mean-square norms: of rows, of heads with a gate, and of query and key heads before they are rotated.

#include "activations.cuh"

/// `output = input / sqrt(mean(input²) + epsilon) ⊙ weight`, rounded to blocks as well if these are wanted (of rows of
/// whole blocks); a block of `NORM_THREADS` per row.
extern "C" __global__ void norm_rows(
    const Step* step, u32 count, const float* input, const float* weight, float epsilon, float* output,
    Activations* blocks, u32 width) {
    u32 row = blockIdx.x;
    if (row >= step->counts[count]) {
        return;
    }
    input += (u64)row * width;
    output += (u64)row * width;
    float scale = inverse_rms(input, width, epsilon);
    for (u32 i = threadIdx.x; i < width; i += NORM_THREADS) {
        float value = input[i] * scale * weight[i];
        output[i] = value;
        if (blocks != nullptr) {
            round_to_block(value, blocks[((u64)row * width + i) / BLOCK]);
        }
    }
}

/// `buffer = buffer / rms ⊙ weight ⊙ silu(gate)` in every head, rounded to blocks as well if these are wanted (of heads of
/// whole blocks); a block of `NORM_THREADS` per head of a row.
extern "C" __global__ void gated_norm(
    const Step* step, u32 count, float* buffer, const float* gate, const float* weight, float epsilon,
    Activations* blocks, u32 dim, u32 width) {
    u32 row = blockIdx.y;
    if (row >= step->counts[count]) {
        return;
    }
    u64 first = (u64)row * width + (u64)blockIdx.x * dim;
    float* values = buffer + first;
    gate += first;
    float scale = inverse_rms(values, dim, epsilon);
    for (u32 i = threadIdx.x; i < dim; i += NORM_THREADS) {
        float value = values[i] * scale * weight[i] * silu(gate[i]);
        values[i] = value;
        if (blocks != nullptr) {
            round_to_block(value, blocks[(first + i) / BLOCK]);
        }
    }
}

/// The query heads of a buffer, or its key heads.
struct Heads {
    float* buffer;
    /// Of the norm of each head, or null.
    const float* weight;
    /// The first of them among all heads that are prepared.
    u32 first;
    /// Values of a row, from one head to the next, and of a head.
    u32 width;
    u32 stride;
    u32 dim;
};

/// Norms the heads of one or two buffers where there is a weight, and rotates their first `dimensions` coordinates, in
/// place: `a cos − b sin` and `a sin + b cos`. A block of `NORM_THREADS` per head of a row.
extern "C" __global__ void prepare_heads(
    const Step* step, const Heads* all, u32 count, const float* rotations, float epsilon, u32 dimensions,
    u32 adjacent) {
    const Heads heads = count > 1 && blockIdx.x >= all[1].first ? all[1] : all[0];
    u32 row = blockIdx.y;
    if (row >= step->counts[ROWS_OF_STEP]) {
        return;
    }
    float* head = heads.buffer + (u64)row * heads.width + (u64)(blockIdx.x - heads.first) * heads.stride;
    if (heads.weight != nullptr) {
        float scale = inverse_rms(head, heads.dim, epsilon);
        for (u32 i = threadIdx.x; i < heads.dim; i += NORM_THREADS) {
            head[i] = head[i] * scale * heads.weight[i];
        }
    }
    __syncthreads();
    u32 pairs = dimensions / 2;
    const float* cosines = rotations + (u64)row * dimensions;
    const float* sines = cosines + pairs;
    for (u32 pair = threadIdx.x; pair < pairs; pair += NORM_THREADS) {
        float* first = head + (adjacent ? 2 * pair : pair);
        float* second = adjacent ? first + 1 : first + pairs;
        float a = *first, b = *second;
        *first = fmaf(-b, sines[pair], a * cosines[pair]);
        *second = fmaf(a, sines[pair], b * cosines[pair]);
    }
}
