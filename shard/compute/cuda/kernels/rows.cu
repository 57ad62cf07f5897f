// Operations on rows in which every value depends on values at the same place, and rows that are copied.

#include "activations.cuh"

/// The place of this thread in a buffer of `width` values per row, or none behind the last of the counted rows.
__device__ inline bool place(const Step* step, u32 count, u32 width, u32* row, u32* column) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    *row = (u32)(index / width);
    *column = (u32)(index % width);
    return *row < step->counts[count];
}

/// `output (rows, width)` from the step's own rows: those that came as vectors, or those of the embedding table.
extern "C" __global__ void load_rows(const Step* step, float* output, u32 width, u32 embedded) {
    u32 row, column;
    if (place(step, ROWS_OF_STEP, width, &row, &column)) {
        u64 at = (u64)row * width + column;
        output[at] = table<float>(step, embedded ? step->embedded : step->vectors)[at];
    }
}

/// `output (rows, dimensions)`: a table of the step, behind tables of `before` dimensions.
extern "C" __global__ void load_rotations(const Step* step, float* output, u32 dimensions, u32 before) {
    u32 row, column;
    if (place(step, ROWS_OF_STEP, dimensions, &row, &column)) {
        const float* rotations = table<float>(step, step->rotations) + (u64)before * step->counts[ROWS_OF_STEP];
        u64 at = (u64)row * dimensions + column;
        output[at] = rotations[at];
    }
}

/// `gate = silu(gate) ⊙ up`, rounded to blocks as well if these are wanted (of rows of whole blocks).
extern "C" __global__ void swiglu(
    const Step* step, u32 count, float* gate, const float* up, Activations* blocks, u32 width) {
    u32 row, column;
    if (place(step, count, width, &row, &column)) {
        u64 at = (u64)row * width + column;
        float value = silu(gate[at]) * up[at];
        gate[at] = value;
        if (blocks != nullptr) {
            round_to_block(value, blocks[at / BLOCK]);
        }
    }
}

/// `output += sigmoid(gate) · input`, one gate per row.
extern "C" __global__ void add_gated(
    const Step* step, u32 count, const float* input, const float* gate, float* output, u32 width) {
    u32 row, column;
    if (place(step, count, width, &row, &column)) {
        u64 at = (u64)row * width + column;
        output[at] = fmaf(sigmoid(gate[row]), input[at], output[at]);
    }
}

/// `buffer += bias` in every row.
extern "C" __global__ void add_bias(const Step* step, u32 count, float* buffer, const float* bias, u32 width) {
    u32 row, column;
    if (place(step, count, width, &row, &column)) {
        buffer[(u64)row * width + column] += bias[column];
    }
}

/// `output = [first, second]`, row by row.
extern "C" __global__ void join(
    const Step* step, u32 count, const float* first, const float* second, float* output, u32 first_width, u32 width) {
    u32 row, column;
    if (place(step, count, width, &row, &column)) {
        u32 second_width = width - first_width;
        output[(u64)row * width + column] = column < first_width
            ? first[(u64)row * first_width + column]
            : second[(u64)row * second_width + column - first_width];
    }
}

/// `[first, second] = input`, row by row.
extern "C" __global__ void split(
    const Step* step, u32 count, const float* input, float* first, float* second, u32 first_width, u32 width) {
    u32 row, column;
    if (place(step, count, width, &row, &column)) {
        u32 second_width = width - first_width;
        float value = input[(u64)row * width + column];
        if (column < first_width) {
            first[(u64)row * first_width + column] = value;
        } else {
            second[(u64)row * second_width + column - first_width] = value;
        }
    }
}

/// The wanted rows of `input`.
extern "C" __global__ void gather(const Step* step, const float* input, float* output, u32 width) {
    u32 row, column;
    if (place(step, WANTED_ROWS, width, &row, &column)) {
        u32 from = table<u32>(step, step->wanted)[row];
        output[(u64)row * width + column] = input[(u64)from * width + column];
    }
}
