// The router of a mixture of experts.

#include "common.cuh"

/// The smallest sum that weights are divided by.
#define SMALLEST_SUM 6.1035156e-5f
/// Marks an expert that is chosen already, below everything else.
#define TAKEN -1.0f

/// Orders probabilities so that what is no number comes after all that are, but before those that are taken.
__device__ inline float rank(float probability) { return probability >= TAKEN ? probability : -0.5f; }

/// Softmax over all experts, then the `used` most probable (of two the lower index): `output (rows, 2 · used)` has their
/// indices and then their weights. A warp per row; shared memory for all probabilities.
extern "C" __global__ void route(
    const Step* step, u32 count, const float* logits, float* output, u32 experts, u32 used, u32 renormalize, float scale) {
    DYNAMIC_SHARED(float, probabilities);
    u32 row = blockIdx.x, lane = threadIdx.x;
    if (row >= step->counts[count]) {
        return;
    }
    logits += (u64)row * experts;
    float* chosen = output + (u64)row * 2 * used;
    float largest = -__uint_as_float(0x7f800000u);
    for (u32 expert = lane; expert < experts; expert += WARP) {
        largest = logits[expert] > largest ? logits[expert] : largest;
    }
    largest = largest_of_warp(largest);
    for (u32 expert = lane; expert < experts; expert += WARP) {
        probabilities[expert] = exponential(logits[expert] - largest);
    }
    __syncwarp();
    // In the order of experts, by every lane.
    float sum = 0.0f;
    for (u32 expert = 0; expert < experts; expert++) {
        sum += probabilities[expert];
    }
    __syncwarp();
    for (u32 expert = lane; expert < experts; expert += WARP) {
        probabilities[expert] /= sum;
    }
    __syncwarp();
    float weights = 0.0f;
    for (u32 place = 0; place < used; place++) {
        float best = -2.0f;
        u32 best_expert = experts - 1;
        for (u32 expert = lane; expert < experts; expert += WARP) {
            float own = rank(probabilities[expert]);
            if (own > best) {
                best = own;
                best_expert = expert;
            }
        }
        for (u32 distance = 16; distance > 0; distance /= 2) {
            float other = __shfl_xor_sync(ALL_LANES, best, distance);
            u32 other_expert = __shfl_xor_sync(ALL_LANES, best_expert, distance);
            if (other > best || (other == best && other_expert < best_expert)) {
                best = other;
                best_expert = other_expert;
            }
        }
        float weight = probabilities[best_expert];
        weights += weight;
        __syncwarp();
        if (lane == 0) {
            chosen[place] = (float)best_expert;
            chosen[used + place] = weight;
            probabilities[best_expert] = TAKEN;
        }
        __syncwarp();
    }
    if (lane == 0) {
        float divisor = weights > SMALLEST_SUM ? weights : SMALLEST_SUM;
        float factor = renormalize ? scale / divisor : scale;
        for (u32 place = 0; place < used; place++) {
            chosen[used + place] *= factor;
        }
    }
}
