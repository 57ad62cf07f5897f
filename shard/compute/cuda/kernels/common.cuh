// What all kernels share: names of numbers, the step's tables, and arithmetic that gives the same bits everywhere.
//
// The kernels compute what the CPU device computes, in the same order of the same roundings, so that a row may be cut
// between both. Nothing may be contracted: products that are added without rounding are written as `fmaf`, and the
// compilers are told to fuse nothing else. The same files compile as C++ (see the emulation beside this folder).

#pragma once

#ifdef CUDA_ON_CPU
#include "cuda_on_cpu.h"
#endif

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define WARP 32u
#define ALL_LANES 0xffffffffu
/// Lanes of the CPU's vectors, which decide the order of sums.
#define LANES 16u
/// Values that share a scale, of activations as of stored keys and values.
#define BLOCK 32u

#ifdef CUDA_ON_CPU
#define DYNAMIC_SHARED(type, name) type* name = (type*)emulation::dynamic_shared()
#else
#define DYNAMIC_SHARED(type, name)                 \
    extern __shared__ uint4 dynamic_shared_memory[]; \
    type* name = (type*)dynamic_shared_memory
#endif

/// The head of the block that a step uploads: how much there is of everything, and at which words of the block it is.
struct Step {
    /// Rows, wanted rows, chunks, rows with those that are replayed, segments of keys of the longest chunk; what kernels
    /// name by their place here.
    u32 counts[5];
    /// `Chunk`, one per chunk.
    u32 chunks;
    /// The chunk of each row.
    u32 chunk_of_row;
    /// Chunk and index of every row with those that are replayed.
    u32 sequence;
    /// The wanted rows.
    u32 wanted;
    /// Pages of all chunks.
    u32 pages;
    /// Rows that came as vectors.
    u32 vectors;
    /// Rows of the embedding table.
    u32 embedded;
    /// Cosines and sines, table after table.
    u32 rotations;
};

#define ROWS_OF_STEP 0u
#define WANTED_ROWS 1u
#define CHUNKS 2u
#define SEQUENCE_ROWS 3u
#define SEGMENTS 4u

/// Consecutive rows of one session.
struct Chunk {
    u32 first_row;
    u32 rows;
    /// Tokens of the session before it.
    u32 start;
    u32 slot;
    /// Its first page among the step's pages.
    u32 pages;
    /// Which log is its own, how many tokens before it are replayed from there, and how many of its last are uncertain.
    u32 log;
    u32 before;
    u32 uncertain;
};

/// A row of a chunk, counted from the first that is replayed before it.
struct SequenceRow {
    u32 chunk;
    u32 index;
};

template <class T>
__device__ inline const T* table(const Step* step, u32 words) {
    return (const T*)((const u32*)step + words);
}

/// Rows of the chunk with those that are replayed before it.
__device__ inline u32 replayed_and_rows(const Chunk& chunk) { return chunk.before + chunk.rows; }

/// How many of those the state has behind it after the step.
__device__ inline u32 certain_rows(const Chunk& chunk) { return replayed_and_rows(chunk) - chunk.uncertain; }

/// Is a row logged in the step: is it one of the chunk that is uncertain?
__device__ inline bool newly_uncertain(const Chunk& chunk, u32 index) {
    return index >= chunk.before && index >= certain_rows(chunk);
}

/// Where buffers of recurrent layers have a row of a chunk: replayed ones lie behind those of a step.
__device__ inline u32 row_of(const Chunk& chunk, u32 index, u32 step_rows, u32 log_tokens) {
    return index >= chunk.before ? chunk.first_row + index - chunk.before : step_rows + chunk.log * log_tokens + index;
}

/// `a` where it is greater, else `b`; so `b` where one is no number.
__device__ inline float greater(float a, float b) { return a > b ? a : b; }

/// `a` where it is less, else `b`.
__device__ inline float lesser(float a, float b) { return a < b ? a : b; }

__device__ inline float half_to_float(u16 bits) {
#ifdef CUDA_ON_CPU
    return emulation::half_to_float(bits);
#else
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#endif
}

/// To nearest, halves to even.
__device__ inline u16 float_to_half(float value) {
#ifdef CUDA_ON_CPU
    return emulation::float_to_half(value);
#else
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#endif
}

__device__ inline float bfloat_to_float(u16 bits) { return __uint_as_float((u32)bits << 16); }

/// To nearest, halves to even.
__device__ inline u16 float_to_bfloat(float value) {
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (u16)(bits >> 16) | 0x40;
    }
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// To two units in the last place; zero below −86.6, infinity above the largest float, no number for no number.
__device__ inline float exponential(float x) {
    float clamped = greater(-86.6f, lesser(89.0f, x));
    float power = rintf(clamped * 1.44269504f);
    float rest = fmaf(-power, -2.1219444e-4f, fmaf(-power, 0.6933594f, clamped));
    float series = 0.001381454f;
    series = fmaf(series, rest, 0.008368745f);
    series = fmaf(series, rest, 0.04166839f);
    series = fmaf(series, rest, 0.16666521f);
    series = fmaf(series, rest, 0.49999994f);
    float mantissa = fmaf(rest * rest, series, rest + 1.0f);
    // 2^128 is no float, so half the power first and then twice.
    float half = mantissa * __uint_as_float((u32)(__float2int_rn(power) + 126) << 23);
    return x < -86.6f ? 0.0f : half + half;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

__device__ inline float silu(float x) {
    // The sigmoid is zero long before, but infinity times zero would be no number.
    float bounded = greater(-200.0f, x);
    return bounded * sigmoid(bounded);
}

/// `ln(1 + exp(x))`, nearly to half a unit in the last place, and `x` itself above 20, where they are the same. In double
/// precision, with nothing but additions, products and a quotient.
__device__ inline float softplus(float x) {
    const double INVERSE_FACTORIALS[12] = {
        1.0, 1.0, 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5040.0, 1.0 / 40320.0,
        1.0 / 362880.0, 1.0 / 3628800.0, 1.0 / 39916800.0};
    const double INVERSE_ODD[13] = {
        1.0, 1.0 / 3.0, 1.0 / 5.0, 1.0 / 7.0, 1.0 / 9.0, 1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0, 1.0 / 17.0, 1.0 / 19.0,
        1.0 / 21.0, 1.0 / 23.0, 1.0 / 25.0};
    if (!(x >= -110.0f && x <= 20.0f)) {
        return x < -110.0f ? 0.0f : x;
    }
    // exp(−|x|) = 2^power · exp(rest).
    double below = -fabs((double)x);
    double power = floor(below * 1.4426950408889634 + 0.5);
    double rest = below - power * 0.6931471805599453;
    double series = 0.0;
    for (int term = 11; term >= 0; term--) {
        series = series * rest + INVERSE_FACTORIALS[term];
    }
    double small = series * __longlong_as_double((long long)(power + 1023.0) << 52);
    // ln(1 + t) = 2 artanh(t / (2 + t)).
    double argument = small / (2.0 + small);
    double square = argument * argument;
    double sum = 0.0;
    for (int term = 12; term >= 0; term--) {
        sum = sum * square + INVERSE_ODD[term];
    }
    double logarithm = 2.0 * argument * sum;
    return (float)(x > 0.0f ? (double)x + logarithm : logarithm);
}

/// Sum over sixteen lanes: lane i + lane i + 8, then + 4, + 2, + 1. All lanes of the warp take part, each sixteen alone.
__device__ inline float sum_of_lanes(float value) {
    for (u32 distance = 8; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    }
    return value;
}

/// The largest of a warp's values.
__device__ inline float largest_of_warp(float value) {
    for (u32 distance = 16; distance > 0; distance /= 2) {
        value = greater(value, __shfl_xor_sync(ALL_LANES, value, distance));
    }
    return value;
}

/// Threads of the blocks that norm a row or a head.
#define NORM_THREADS 64u

/// Sum of the squares of values, by a block of `NORM_THREADS`: value i is added to chain i mod 64, the four chains of
/// each of sixteen lanes as (0 + 1) + (2 + 3), then the lanes. Every thread gets it.
__device__ inline float sum_of_squares(const float* values, u32 count) {
    __shared__ float pairs[LANES];
    float chain = 0.0f;
    for (u32 i = threadIdx.x; i < count; i += NORM_THREADS) {
        chain = fmaf(values[i], values[i], chain);
    }
    float pair = chain + __shfl_xor_sync(ALL_LANES, chain, LANES);
    if (threadIdx.x >= WARP && threadIdx.x < WARP + LANES) {
        pairs[threadIdx.x - WARP] = pair;
    }
    __syncthreads();
    float lanes = threadIdx.x < WARP ? pair + pairs[threadIdx.x % LANES] : 0.0f;
    float sum = sum_of_lanes(lanes);
    if (threadIdx.x == 0) {
        pairs[0] = sum;
    }
    __syncthreads();
    sum = pairs[0];
    __syncthreads();
    return sum;
}

/// `1 / sqrt(mean(values²) + epsilon)`, by a block of `NORM_THREADS`.
__device__ inline float inverse_rms(const float* values, u32 count, float epsilon) {
    float mean = sum_of_squares(values, count) / (float)count;
    return 1.0f / sqrtf(mean + epsilon);
}
