// Activations in blocks of bytes, as weights in blocks are multiplied with them.

#pragma once

#include "common.cuh"

/// 32 activations, each `scale · value`.
struct __align__(16) Activations {
    i8 values[BLOCK];
    float scale;
    /// `scale` times the sum of all values.
    float scaled_sum;
    /// Sums of the first and the last sixteen values.
    int sums[2];
};

/// Rounds the values of a warp's lanes to a block: the scale is the largest magnitude over 127.
__device__ inline void round_to_block(float value, Activations& block) {
    u32 lane = threadIdx.x % WARP;
    float largest = largest_of_warp(fabsf(value));
    // Zero, or no number if any value is not finite.
    float poison = value * 0.0f;
    for (u32 distance = 16; distance > 0; distance /= 2) {
        poison += __shfl_xor_sync(ALL_LANES, poison, distance);
    }
    float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    i8 rounded = (i8)__float2int_rn(value * inverse);
    int sum = rounded;
    for (u32 distance = 8; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    }
    int other = __shfl_xor_sync(ALL_LANES, sum, 16);
    block.values[lane] = rounded;
    if (lane % LANES == 0) {
        block.sums[lane / LANES] = sum;
    }
    if (lane == 0) {
        float scale = largest / 127.0f + poison;
        block.scale = scale;
        block.scaled_sum = scale * (float)(sum + other);
    }
}
