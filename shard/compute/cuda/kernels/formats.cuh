// Blocks of quantized weights as model files have them, read 32 columns at a time.

#pragma once

#include "common.cuh"

/// 32 columns of one row: value i is `scales[i / 16] · code − minimums[i / 16]`, where codes are signed bytes, four in a
/// word. Formats with one scale have only the first.
struct Weights {
    u32 codes[8];
    float scales[2];
    float minimums[2];
};

/// The word at a place that is aligned to so many bytes.
template <u32 ALIGNMENT>
__device__ inline u32 word(const u8* at) {
    if (ALIGNMENT == 4) {
        return *(const u32*)at;
    }
    if (ALIGNMENT == 2) {
        const u16* halves = (const u16*)at;
        return halves[0] | (u32)halves[1] << 16;
    }
    return at[0] | (u32)at[1] << 8 | (u32)at[2] << 16 | (u32)at[3] << 24;
}

__device__ inline float half_at(const u8* at) { return half_to_float(*(const u16*)at); }

/// Subtracts a number of at most 127 from four bytes of at most 127.
__device__ inline u32 lower(u32 bytes, u32 by) {
    return ((bytes | 0x80808080u) - by * 0x01010101u) ^ 0x80808080u;
}

/// Four bits, one at the end of each byte.
__device__ inline u32 spread(u32 bits) { return ((bits & 15u) * 0x00204081u) & 0x01010101u; }

/// Sixteen bytes of two nibbles each: the low ones are the first sixteen codes.
template <u32 ALIGNMENT>
__device__ inline void nibbles(const u8* at, u32* codes) {
    for (u32 group = 0; group < 4; group++) {
        u32 bytes = word<ALIGNMENT>(at + 4 * group);
        codes[group] = bytes & 0x0f0f0f0fu;
        codes[group + 4] = bytes >> 4 & 0x0f0f0f0fu;
    }
}

/// The signed bytes that four codes of at most 15 stand for; the table lies in four words.
__device__ inline u32 look_up(u32 codes, u32 first, u32 second, u32 third, u32 fourth) {
    u32 places = (codes & 0x7u) | (codes >> 4 & 0x70u) | (codes >> 8 & 0x700u) | (codes >> 12 & 0x7000u);
    u32 low = __byte_perm(first, second, places);
    u32 high = __byte_perm(third, fourth, places);
    u32 upper = (codes >> 3 & 0x01010101u) * 0xffu;
    return (high & upper) | (low & ~upper);
}

/// Of `IQ4_NL` and `IQ4_XS`: −127, −104, −83, −65, −49, −35, −22, −10, 1, 13, 25, 38, 53, 69, 89, 113.
__device__ inline u32 look_up_nonlinear(u32 codes) {
    return look_up(codes, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
}

/// Of `MXFP4`: 0, 1, 2, 3, 4, 6, 8, 12, and the same below zero.
__device__ inline u32 look_up_mxfp4(u32 codes) {
    return look_up(codes, 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);
}

/// The eight six-bit factors of the scale and of the minimum.
__device__ inline void six_bit_factors(const u8* bytes, u32 part, u32* scale, u32* minimum) {
    if (part < 4) {
        *scale = bytes[part] & 63u;
        *minimum = bytes[part + 4] & 63u;
    } else {
        u32 low = bytes[part + 4];
        *scale = (low & 15u) | (u32)(bytes[part - 4] >> 6) << 4;
        *minimum = low >> 4 | (u32)(bytes[part] >> 6) << 4;
    }
}

// Each format: values and bytes of a block, whether sixteen values have their own scale, whether there are minimums, and
// how a part of 32 columns is read.

struct Q4_0 {
    static const u32 VALUES = 32, BYTES = 18;
    static const bool HALVES = false, MINIMUM = false;
    __device__ static void load(const u8* block, u32, Weights& weights) {
        nibbles<2>(block + 2, weights.codes);
        for (u32 group = 0; group < 8; group++) {
            weights.codes[group] = lower(weights.codes[group], 8);
        }
        weights.scales[0] = half_at(block);
    }
};

struct Q4_1 {
    static const u32 VALUES = 32, BYTES = 20;
    static const bool HALVES = false, MINIMUM = true;
    __device__ static void load(const u8* block, u32, Weights& weights) {
        nibbles<4>(block + 4, weights.codes);
        weights.scales[0] = half_at(block);
        weights.minimums[0] = -half_at(block + 2);
    }
};

struct Q5_0 {
    static const u32 VALUES = 32, BYTES = 22;
    static const bool HALVES = false, MINIMUM = false;
    __device__ static void load(const u8* block, u32, Weights& weights) {
        nibbles<2>(block + 6, weights.codes);
        u32 bits = word<2>(block + 2);
        for (u32 group = 0; group < 8; group++) {
            weights.codes[group] = lower(weights.codes[group] | spread(bits >> 4 * group) << 4, 16);
        }
        weights.scales[0] = half_at(block);
    }
};

struct Q5_1 {
    static const u32 VALUES = 32, BYTES = 24;
    static const bool HALVES = false, MINIMUM = true;
    __device__ static void load(const u8* block, u32, Weights& weights) {
        nibbles<4>(block + 8, weights.codes);
        u32 bits = word<4>(block + 4);
        for (u32 group = 0; group < 8; group++) {
            weights.codes[group] |= spread(bits >> 4 * group) << 4;
        }
        weights.scales[0] = half_at(block);
        weights.minimums[0] = -half_at(block + 2);
    }
};

struct Q8_0 {
    static const u32 VALUES = 32, BYTES = 34;
    static const bool HALVES = false, MINIMUM = false;
    __device__ static void load(const u8* block, u32, Weights& weights) {
        for (u32 group = 0; group < 8; group++) {
            weights.codes[group] = word<2>(block + 2 + 4 * group);
        }
        weights.scales[0] = half_at(block);
    }
};

struct Q2_K {
    static const u32 VALUES = 256, BYTES = 84;
    static const bool HALVES = true, MINIMUM = true;
    __device__ static void load(const u8* block, u32 part, Weights& weights) {
        const u8* codes = block + 16 + 32 * (part / 4);
        for (u32 group = 0; group < 8; group++) {
            weights.codes[group] = word<4>(codes + 4 * group) >> 2 * (part % 4) & 0x03030303u;
        }
        for (u32 half = 0; half < 2; half++) {
            u32 factors = block[2 * part + half];
            weights.scales[half] = half_at(block + 80) * (float)(factors & 15u);
            weights.minimums[half] = half_at(block + 82) * (float)(factors >> 4);
        }
    }
};

struct Q3_K {
    static const u32 VALUES = 256, BYTES = 110;
    static const bool HALVES = true, MINIMUM = false;
    __device__ static void load(const u8* block, u32 part, Weights& weights) {
        const u8* codes = block + 32 + 32 * (part / 4);
        for (u32 group = 0; group < 8; group++) {
            u32 low = word<2>(codes + 4 * group) >> 2 * (part % 4) & 0x03030303u;
            u32 high = word<2>(block + 4 * group) >> part & 0x01010101u;
            weights.codes[group] = lower(low | high << 2, 4);
        }
        const u8* factors = block + 96;
        for (u32 half = 0; half < 2; half++) {
            u32 group = 2 * part + half;
            u32 low = factors[group % 8] >> 4 * (group / 8) & 15u;
            u32 high = factors[8 + group % 4] >> 2 * (group / 4) & 3u;
            weights.scales[half] = half_at(block + 108) * (float)((int)(low | high << 4) - 32);
        }
    }
};

struct Q4_K {
    static const u32 VALUES = 256, BYTES = 144;
    static const bool HALVES = false, MINIMUM = true;
    __device__ static void load(const u8* block, u32 part, Weights& weights) {
        const u8* codes = block + 16 + 32 * (part / 2);
        for (u32 group = 0; group < 8; group++) {
            weights.codes[group] = word<4>(codes + 4 * group) >> 4 * (part % 2) & 0x0f0f0f0fu;
        }
        u32 scale, minimum;
        six_bit_factors(block + 4, part, &scale, &minimum);
        weights.scales[0] = half_at(block) * (float)scale;
        weights.minimums[0] = half_at(block + 2) * (float)minimum;
    }
};

struct Q5_K {
    static const u32 VALUES = 256, BYTES = 176;
    static const bool HALVES = false, MINIMUM = true;
    __device__ static void load(const u8* block, u32 part, Weights& weights) {
        const u8* codes = block + 48 + 32 * (part / 2);
        for (u32 group = 0; group < 8; group++) {
            u32 low = word<4>(codes + 4 * group) >> 4 * (part % 2) & 0x0f0f0f0fu;
            u32 high = word<4>(block + 16 + 4 * group) >> part & 0x01010101u;
            weights.codes[group] = low | high << 4;
        }
        u32 scale, minimum;
        six_bit_factors(block + 4, part, &scale, &minimum);
        weights.scales[0] = half_at(block) * (float)scale;
        weights.minimums[0] = half_at(block + 2) * (float)minimum;
    }
};

struct Q6_K {
    static const u32 VALUES = 256, BYTES = 210;
    static const bool HALVES = true, MINIMUM = false;
    __device__ static void load(const u8* block, u32 part, Weights& weights) {
        u32 half = part / 4, quarter = part % 4;
        const u8* low_bits = block + 64 * half + 32 * (quarter % 2);
        const u8* high_bits = block + 128 + 32 * half;
        for (u32 group = 0; group < 8; group++) {
            u32 low = word<2>(low_bits + 4 * group) >> 4 * (quarter / 2) & 0x0f0f0f0fu;
            u32 high = word<2>(high_bits + 4 * group) >> 2 * quarter & 0x03030303u;
            weights.codes[group] = lower(low | high << 4, 32);
        }
        for (u32 sixteen = 0; sixteen < 2; sixteen++) {
            weights.scales[sixteen] = half_at(block + 208) * (float)(i8)block[192 + 2 * part + sixteen];
        }
    }
};

struct Iq4Nl {
    static const u32 VALUES = 32, BYTES = 18;
    static const bool HALVES = false, MINIMUM = false;
    __device__ static void load(const u8* block, u32, Weights& weights) {
        nibbles<2>(block + 2, weights.codes);
        for (u32 group = 0; group < 8; group++) {
            weights.codes[group] = look_up_nonlinear(weights.codes[group]);
        }
        weights.scales[0] = half_at(block);
    }
};

struct Iq4Xs {
    static const u32 VALUES = 256, BYTES = 136;
    static const bool HALVES = false, MINIMUM = false;
    __device__ static void load(const u8* block, u32 part, Weights& weights) {
        nibbles<4>(block + 8 + 16 * part, weights.codes);
        for (u32 group = 0; group < 8; group++) {
            weights.codes[group] = look_up_nonlinear(weights.codes[group]);
        }
        u32 low = block[4 + part / 2] >> 4 * (part % 2) & 15u;
        u32 high = *(const u16*)(block + 2) >> 2 * part & 3u;
        weights.scales[0] = half_at(block) * (float)((int)(low | high << 4) - 32);
    }
};

struct Mxfp4 {
    static const u32 VALUES = 32, BYTES = 17;
    static const bool HALVES = false, MINIMUM = false;
    __device__ static void load(const u8* block, u32, Weights& weights) {
        nibbles<1>(block + 1, weights.codes);
        for (u32 group = 0; group < 8; group++) {
            weights.codes[group] = look_up_mxfp4(weights.codes[group]);
        }
        // Half of the power of two, as the integers are doubled; the two smallest are not normal.
        u32 exponent = block[0];
        weights.scales[0] = __uint_as_float(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
    }
};

// Types without blocks.

struct F32 {
    typedef float Stored;
    __device__ static float widen(float value) { return value; }
};

struct F16 {
    typedef u16 Stored;
    __device__ static float widen(u16 value) { return half_to_float(value); }
};

struct BF16 {
    typedef u16 Stored;
    __device__ static float widen(u16 value) { return bfloat_to_float(value); }
};
