// Products of weights with rows of activations, and the mixture of experts.
//
// The order of additions is that of the CPU device: blocks of 32 columns one after another, in one chain for each output.
// So that a warp can read a row of weights together all the same, every lane makes the terms of one block, and then one
// lane for each row of activations adds up what 32 lanes have made.

#include "activations.cuh"
#include "formats.cuh"

/// Two factors of a product that is added without rounding it first.
struct Term {
    float first;
    float second;
};

/// One of several products of weights of one type with the same rows.
struct Product {
    const u8* weight;
    float* output;
    /// Its first block of threads along x, of those of all products.
    u32 first_block;
    u32 outputs;
    /// Whether it is added to what is there.
    u32 add;
    u32 unused;
};

/// The product that this block of threads belongs to.
__device__ inline Product product_of_block(const Product* products, u32 count) {
    u32 index = 0;
    while (index + 1 < count && products[index + 1].first_block <= blockIdx.x) {
        index++;
    }
    return products[index];
}

/// Warps of a block, each with an output of its own.
#define OUTPUT_WARPS 4u
/// Rows of activations that share what is read of the weights.
#define SHARED_ROWS 8u

/// Rounds rows of `width` values to blocks, a warp for each.
extern "C" __global__ void quantize(const Step* step, u32 count, const float* input, Activations* blocks, u32 width) {
    u64 block = (u64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (block < step->counts[count] * (u64)(width / BLOCK)) {
        round_to_block(input[block * BLOCK + threadIdx.x % WARP], blocks[block]);
    }
}

/// How many terms a format has for 32 columns.
template <class Format>
struct Terms {
    static const u32 COUNT = (Format::HALVES ? 2 : 1) * (Format::MINIMUM ? 2 : 1);
};

/// The terms of 32 columns and one row of activations, in the order in which they are added.
template <class Format>
__device__ inline void make_terms(const Weights& weights, const Activations& input, Term* terms, u32 stride) {
    const u32 PARTS = Format::HALVES ? 2 : 1;
    const int* values = (const int*)input.values;
    for (u32 part = 0; part < PARTS; part++) {
        int dot = 0;
        for (u32 group = part * 4; group < part * 4 + 8 / PARTS; group++) {
            dot = __dp4a((int)weights.codes[group], values[group], dot);
        }
        *terms = Term{weights.scales[part] * input.scale, (float)dot};
        terms += stride;
        if (Format::MINIMUM) {
            float sum = Format::HALVES ? input.scale * (float)input.sums[part] : input.scaled_sum;
            *terms = Term{-weights.minimums[part], sum};
            terms += stride;
        }
    }
}

/// The product of a row of weights with some rows of blocks, by one warp: lane i gets that of row i.
template <class Format, u32 ROWS>
__device__ inline float product(const u8* weight, const Activations* input, u32 row_blocks, u32 rows) {
    const u32 COUNT = Terms<Format>::COUNT;
    __shared__ Term shared_terms[OUTPUT_WARPS][WARP * COUNT * ROWS];
    Term* terms = shared_terms[threadIdx.x / WARP];
    u32 lane = threadIdx.x % WARP;
    float sum = 0.0f;
    for (u32 first = 0; first < row_blocks; first += WARP) {
        u32 block = first + lane;
        if (block < row_blocks) {
            const u32 PARTS = Format::VALUES / BLOCK;
            Weights weights;
            Format::load(weight + (u64)(block / PARTS) * Format::BYTES, block % PARTS, weights);
            for (u32 row = 0; row < ROWS; row++) {
                if (row < rows) {
                    make_terms<Format>(weights, input[(u64)row * row_blocks + block], terms + lane * COUNT * ROWS + row, ROWS);
                }
            }
        }
        __syncwarp();
        if (lane < rows) {
            u32 made = row_blocks - first < WARP ? row_blocks - first : WARP;
            for (u32 term = 0; term < made * COUNT; term++) {
                Term factors = terms[term * ROWS + lane];
                sum = fmaf(factors.first, factors.second, sum);
            }
        }
        __syncwarp();
    }
    return sum;
}

/// `output (rows, outputs) = weight (outputs, columns) · input`, or added to it, for each product. Blocks of
/// `OUTPUT_WARPS` warps: outputs of all products along x, rows along y.
template <class Format>
__device__ inline void linear(
    const Step* step, u32 count, const Product* products, u32 product_count, const Activations* input, u32 columns) {
    const Product own = product_of_block(products, product_count);
    u32 first_row = blockIdx.y * SHARED_ROWS;
    u32 column = (blockIdx.x - own.first_block) * OUTPUT_WARPS + threadIdx.x / WARP;
    if (first_row >= step->counts[count] || column >= own.outputs) {
        return;
    }
    u32 rows = step->counts[count] - first_row;
    rows = rows < SHARED_ROWS ? rows : SHARED_ROWS;
    u32 row_blocks = columns / BLOCK;
    u64 row_bytes = (u64)(columns / Format::VALUES) * Format::BYTES;
    input += (u64)first_row * row_blocks;
    const u8* weight = own.weight + column * row_bytes;
    float sum = rows == 1 ? product<Format, 1>(weight, input, row_blocks, 1)
                          : product<Format, SHARED_ROWS>(weight, input, row_blocks, rows);
    u32 lane = threadIdx.x % WARP;
    if (lane < rows) {
        float* at = own.output + (u64)(first_row + lane) * own.outputs + column;
        *at = own.add ? *at + sum : sum;
    }
}

/// The expert of an assignment, which is a place in the router's order of a row.
__device__ inline u32 expert_of(const float* route, u32 assignment, u32 used) {
    return (u32)route[(u64)(assignment / used) * 2 * used + assignment % used];
}

/// `output (assignments, outputs)`: each assignment's expert times its input, row `assignment / share` of `input`. Blocks
/// of `OUTPUT_WARPS` warps: assignments along x, outputs along y.
template <class Format>
__device__ inline void experts(
    const Step* step, u32 count, const u8* weight, const float* route, const Activations* input, float* output,
    u32 columns, u32 outputs, u32 used, u32 share) {
    u32 assignment = blockIdx.x;
    u32 column = blockIdx.y * OUTPUT_WARPS + threadIdx.x / WARP;
    if (assignment >= step->counts[count] * used || column >= outputs) {
        return;
    }
    u32 row_blocks = columns / BLOCK;
    u64 row_bytes = (u64)(columns / Format::VALUES) * Format::BYTES;
    u64 row = (u64)expert_of(route, assignment, used) * outputs + column;
    float sum = product<Format, 1>(weight + row * row_bytes, input + (u64)(assignment / share) * row_blocks, row_blocks, 1);
    if (threadIdx.x % WARP == 0) {
        output[(u64)assignment * outputs + column] = sum;
    }
}

/// Threads of a block that multiplies floats: each warp adds up other rows of activations, each lane another output.
#define FLOAT_THREADS 128u

/// Products of 32 rows of float weights with some rows of floats, column after column.
template <class Type, u32 ROWS>
__device__ inline void float_products(
    const typename Type::Stored* weight, const float* input, u32 columns, u32 outputs, u32 rows, float* output,
    u32 stride, u32 add) {
    __shared__ float weights[WARP][WARP + 1];
    __shared__ float values[ROWS][WARP];
    const u32 WARPS = FLOAT_THREADS / WARP;
    const u32 OWN = (ROWS + WARPS - 1) / WARPS;
    u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float sums[OWN];
    for (u32 own = 0; own < OWN; own++) {
        sums[own] = 0.0f;
    }
    for (u32 first = 0; first < columns; first += WARP) {
        u32 count = columns - first < WARP ? columns - first : WARP;
        for (u32 row = warp; row < WARP; row += WARPS) {
            bool there = row < outputs && lane < count;
            weights[row][lane] = there ? Type::widen(weight[(u64)row * columns + first + lane]) : 0.0f;
        }
        for (u32 row = warp; row < rows; row += WARPS) {
            values[row][lane] = lane < count ? input[(u64)row * columns + first + lane] : 0.0f;
        }
        __syncthreads();
        for (u32 own = 0; own < OWN; own++) {
            u32 row = warp + own * WARPS;
            if (row < rows) {
                for (u32 column = 0; column < count; column++) {
                    sums[own] = fmaf(weights[lane][column], values[row][column], sums[own]);
                }
            }
        }
        __syncthreads();
    }
    for (u32 own = 0; own < OWN; own++) {
        u32 row = warp + own * WARPS;
        if (row < rows && lane < outputs) {
            float* at = output + (u64)row * stride + lane;
            *at = add ? *at + sums[own] : sums[own];
        }
    }
}

/// As `linear`, of float weights: 32 outputs of a block along x, `SHARED_ROWS` rows along y.
template <class Type>
__device__ inline void float_linear(
    const Step* step, u32 count, const Product* products, u32 product_count, const float* input, u32 columns) {
    const Product own = product_of_block(products, product_count);
    u32 first_row = blockIdx.y * SHARED_ROWS, column = (blockIdx.x - own.first_block) * WARP;
    if (first_row >= step->counts[count]) {
        return;
    }
    u32 rows = step->counts[count] - first_row;
    rows = rows < SHARED_ROWS ? rows : SHARED_ROWS;
    const typename Type::Stored* weight = (const typename Type::Stored*)own.weight;
    float_products<Type, SHARED_ROWS>(
        weight + (u64)column * columns, input + (u64)first_row * columns, columns, own.outputs - column, rows,
        own.output + (u64)first_row * own.outputs + column, own.outputs, own.add);
}

/// As `experts`, of float weights: assignments along x, 32 outputs of a block along y.
template <class Type>
__device__ inline void float_experts(
    const Step* step, u32 count, const typename Type::Stored* weight, const float* route, const float* input,
    float* output, u32 columns, u32 outputs, u32 used, u32 share) {
    u32 assignment = blockIdx.x, column = blockIdx.y * WARP;
    if (assignment >= step->counts[count] * used) {
        return;
    }
    u64 row = (u64)expert_of(route, assignment, used) * outputs + column;
    float_products<Type, 1>(
        weight + row * columns, input + (u64)(assignment / share) * columns, columns, outputs - column, 1,
        output + (u64)assignment * outputs + column, outputs, 0);
}

/// `output (rows, width) += Σ weight · result` over each row's assignments, in the router's order.
extern "C" __global__ void add_experts(
    const Step* step, u32 count, const float* results, const float* route, float* output, u32 used, u32 width) {
    u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 row = index / width, column = index % width;
    if (row >= step->counts[count]) {
        return;
    }
    float sum = output[index];
    for (u32 place = 0; place < used; place++) {
        float result = results[(row * used + place) * width + column];
        sum = fmaf(route[row * 2 * used + used + place], result, sum);
    }
    output[index] = sum;
}

#define OF_BLOCKS(name, Format)                                                                                       \
    extern "C" __global__ void linear_##name(                                                                         \
        const Step* step, u32 count, const Product* products, u32 product_count, const Activations* input,            \
        u32 columns) {                                                                                                \
        linear<Format>(step, count, products, product_count, input, columns);                                         \
    }                                                                                                                 \
    extern "C" __global__ void experts_##name(                                                                        \
        const Step* step, u32 count, const u8* weight, const float* route, const Activations* input, float* output,   \
        u32 columns, u32 outputs, u32 used, u32 share) {                                                              \
        experts<Format>(step, count, weight, route, input, output, columns, outputs, used, share);                    \
    }

#define OF_FLOATS(name, Type)                                                                                         \
    extern "C" __global__ void linear_##name(                                                                         \
        const Step* step, u32 count, const Product* products, u32 product_count, const float* input, u32 columns) {   \
        float_linear<Type>(step, count, products, product_count, input, columns);                                     \
    }                                                                                                                 \
    extern "C" __global__ void experts_##name(                                                                        \
        const Step* step, u32 count, const Type::Stored* weight, const float* route, const float* input,              \
        float* output, u32 columns, u32 outputs, u32 used, u32 share) {                                               \
        float_experts<Type>(step, count, weight, route, input, output, columns, outputs, used, share);                \
    }

OF_BLOCKS(q4_0, Q4_0)
OF_BLOCKS(q4_1, Q4_1)
OF_BLOCKS(q5_0, Q5_0)
OF_BLOCKS(q5_1, Q5_1)
OF_BLOCKS(q8_0, Q8_0)
OF_BLOCKS(q2_k, Q2_K)
OF_BLOCKS(q3_k, Q3_K)
OF_BLOCKS(q4_k, Q4_K)
OF_BLOCKS(q5_k, Q5_K)
OF_BLOCKS(q6_k, Q6_K)
OF_BLOCKS(iq4_nl, Iq4Nl)
OF_BLOCKS(iq4_xs, Iq4Xs)
OF_BLOCKS(mxfp4, Mxfp4)
OF_FLOATS(f32, F32)
OF_FLOATS(f16, F16)
OF_FLOATS(bf16, BF16)
