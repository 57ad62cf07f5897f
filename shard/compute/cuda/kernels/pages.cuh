// How keys and values lie in pages.
//
// A page has the keys of all heads and then the values: rows of floats `[head][token][dim]`, or the codes of all blocks
// `[head][token]`, then their scales `[head][token][block]`, then for `q4_1` their minimums. Codes of four bits lie in
// pairs, value i of a block in the low bits and value i + 16 in the high ones.

#pragma once

#include "formats.cuh"

#define KIND_F32 0u
#define KIND_F16 1u
#define KIND_BF16 2u
#define KIND_Q8_0 3u
#define KIND_Q4_0 4u
#define KIND_Q4_1 5u
#define KIND_IQ4_NL 6u

/// The keys, or the values, of one layer.
struct Plane {
    /// Those of page 0.
    u8* base;
    u64 page_bytes;
    u32 kind;
    /// Values per head and token.
    u32 dim;
    u32 heads;
    u32 page_tokens;
    /// How many values are rotated together before they are rounded to blocks, 0 for none.
    u32 rotation;
    u32 unused;
};

/// One head's row of a token, in blocks.
struct StoredRow {
    u8* codes;
    u16* scales;
    u16* minimums;
};

/// Bytes of the codes of a row.
__device__ inline u32 code_bytes(const Plane& plane) { return plane.kind == KIND_Q8_0 ? plane.dim : plane.dim / 2; }

__device__ inline StoredRow stored_row(const Plane& plane, u32 page, u32 head, u32 token) {
    u8* start = plane.base + page * plane.page_bytes;
    u32 rows = plane.heads * plane.page_tokens, row = head * plane.page_tokens + token;
    u32 blocks = plane.dim / BLOCK;
    u16* scales = (u16*)(start + (u64)rows * code_bytes(plane));
    u16* minimums = scales + (u64)rows * blocks;
    return StoredRow{start + (u64)row * code_bytes(plane), scales + row * blocks, minimums + row * blocks};
}

/// One head's row of a token, as floats of some type.
template <class Type>
__device__ inline typename Type::Stored* stored_floats(const Plane& plane, u32 page, u32 head, u32 token) {
    typedef typename Type::Stored Stored;
    u64 row = (u64)head * plane.page_tokens + token;
    return (Stored*)(plane.base + page * plane.page_bytes) + row * plane.dim;
}

/// Multiplies every `width` consecutive values by the Hadamard matrix of that many rows, over the root of their number.
/// Sixteen at a time are summed in order, then vectors of sixteen are added and subtracted in pairs. By all threads of a
/// block; `other` is as much space.
__device__ inline void rotate_by_hadamard(float* values, float* other, u32 count, u32 width) {
    float factor = 1.0f / sqrtf((float)width);
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        const float* vector = values + i / LANES * LANES;
        float sum = vector[0];
        for (u32 k = 1; k < LANES; k++) {
            sum += __popc(k & i % LANES) % 2 == 1 ? -vector[k] : vector[k];
        }
        other[i] = sum * factor;
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        values[i] = other[i];
    }
    __syncthreads();
    for (u32 distance = LANES; distance < width; distance *= 2) {
        for (u32 pair = threadIdx.x; pair < count / 2; pair += blockDim.x) {
            u32 first = pair / distance * 2 * distance + pair % distance;
            float a = values[first], b = values[first + distance];
            values[first] = a + b;
            values[first + distance] = a - b;
        }
        __syncthreads();
    }
}

/// The sum over sixteen lanes of one thread, in the order of `sum_of_lanes`.
__device__ inline float sum_of_array(float* lanes) {
    for (u32 distance = 8; distance > 0; distance /= 2) {
        for (u32 lane = 0; lane < distance; lane++) {
            lanes[lane] += lanes[lane + distance];
        }
    }
    return lanes[0];
}

__device__ inline float largest_of_array(float* lanes) {
    for (u32 distance = 8; distance > 0; distance /= 2) {
        for (u32 lane = 0; lane < distance; lane++) {
            lanes[lane] = greater(lanes[lane], lanes[lane + distance]);
        }
    }
    return lanes[0];
}

/// The smallest and the largest of 32 values, and zero, or no number if any of them is not finite.
struct Range {
    float lowest;
    float highest;
    float poison;
};

__device__ inline Range range_of(const float* values) {
    float highest[LANES], negated[LANES], poison[LANES];
    for (u32 i = 0; i < LANES; i++) {
        float first = values[i], second = values[i + LANES];
        highest[i] = greater(first, second);
        negated[i] = greater(-first, -second);
        poison[i] = first * 0.0f + second * 0.0f;
    }
    return Range{-largest_of_array(negated), largest_of_array(highest), sum_of_array(poison)};
}

/// Rounds 32 values to bytes of −127 to 127; gives the scale, in half precision if asked to.
__device__ inline float round_to_bytes(const float* values, i8* codes, bool scale_in_half) {
    float magnitudes[LANES], poison[LANES];
    for (u32 i = 0; i < LANES; i++) {
        magnitudes[i] = greater(fabsf(values[i]), fabsf(values[i + LANES]));
        poison[i] = values[i] * 0.0f + values[i + LANES] * 0.0f;
    }
    float exact = largest_of_array(magnitudes) / 127.0f + sum_of_array(poison);
    float scale = scale_in_half ? half_to_float(float_to_half(exact)) : exact;
    float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (u32 i = 0; i < BLOCK; i++) {
        float limited = greater(-127.0f, lesser(127.0f, values[i] * inverse));
        codes[i] = (i8)__float2int_rn(limited);
    }
    return scale;
}
