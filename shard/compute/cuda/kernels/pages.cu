// Storing keys and values in pages. Rows in blocks are rotated first.

#include "pages.cuh"

/// The one of two values that is farther from zero, or the first.
__device__ inline float farthest(float lowest, float highest) { return highest > -lowest ? highest : lowest; }

/// One over a scale; 0 where there is none, and for no number.
__device__ inline float inverse_of(float scale) {
    float inverse = 1.0f / scale;
    return fabsf(inverse) < __uint_as_float(0x7f800000u) ? inverse : 0.0f;
}

/// The nearest code of four bits.
__device__ inline u8 nearest_code(float value) {
    return (u8)(__float2int_rn(greater(0.0f, lesser(15.0f, value))) & 15);
}

/// The integers that codes of `iq4_nl` stand for.
__device__ inline float nonlinear_integer(u32 code) {
    const u32 TABLE[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
    return (float)(i8)(TABLE[code / 4] >> 8 * (code % 4) & 0xffu);
}

/// The nearest of those integers, of two the larger.
__device__ inline u32 nearest_nonlinear(float value) {
    u32 code = 0;
    for (u32 next = 1; next < 16; next++) {
        float middle = (nonlinear_integer(next - 1) + nonlinear_integer(next)) * 0.5f;
        code += middle <= value ? 1 : 0;
    }
    return code;
}

/// Rounds to `scale · (code − 8)`, where the value of the largest magnitude is −8 times the scale.
__device__ inline void round_symmetric(const float* values, u8* codes, u16* scale) {
    Range range = range_of(values);
    *scale = float_to_half(farthest(range.lowest, range.highest) / -8.0f + range.poison);
    float inverse = inverse_of(half_to_float(*scale));
    for (u32 i = 0; i < BLOCK; i++) {
        codes[i] = nearest_code(values[i] * inverse + 8.0f);
    }
}

/// Rounds to `scale · code + minimum`, from the smallest to the largest value.
__device__ inline void round_span(const float* values, u8* codes, u16* scale, u16* minimum) {
    Range range = range_of(values);
    *minimum = float_to_half(range.lowest);
    *scale = float_to_half((range.highest - range.lowest) / 15.0f + range.poison);
    float inverse = inverse_of(half_to_float(*scale));
    for (u32 i = 0; i < BLOCK; i++) {
        codes[i] = nearest_code((values[i] - half_to_float(*minimum)) * inverse);
    }
}

/// Rounds to `scale` times one of sixteen integers: the value of the largest magnitude is made the first of them, and then
/// the scale is fitted to the codes by least squares, large values counting more.
__device__ inline void round_nonlinear(const float* values, u8* codes, u16* scale) {
    Range range = range_of(values);
    float rough = farthest(range.lowest, range.highest) / nonlinear_integer(0);
    float inverse = inverse_of(rough);
    float products[LANES], squares[LANES];
    for (u32 lane = 0; lane < LANES; lane++) {
        products[lane] = 0.0f;
        squares[lane] = 0.0f;
        for (u32 half = 0; half < 2; half++) {
            float scaled = values[half * LANES + lane] * inverse;
            float integer = nonlinear_integer(nearest_nonlinear(scaled));
            float weighted = scaled * scaled * integer;
            products[lane] = fmaf(weighted, scaled, products[lane]);
            squares[lane] = fmaf(weighted, integer, squares[lane]);
        }
    }
    float product = sum_of_array(products), square = sum_of_array(squares);
    float fitted = square > 0.0f ? rough * (product / square) : 0.0f;
    *scale = float_to_half(fitted + range.poison);
    inverse = inverse_of(half_to_float(*scale));
    for (u32 i = 0; i < BLOCK; i++) {
        codes[i] = nearest_code((float)nearest_nonlinear(values[i] * inverse));
    }
}

/// Rounds and stores one block of a row.
__device__ inline void store_block(const Plane& plane, const StoredRow& row, u32 block, const float* values) {
    u16* scale = row.scales + block;
    if (plane.kind == KIND_Q8_0) {
        i8 bytes[BLOCK];
        *scale = float_to_half(round_to_bytes(values, bytes, true));
        for (u32 i = 0; i < BLOCK; i++) {
            row.codes[block * BLOCK + i] = (u8)bytes[i];
        }
        return;
    }
    u8 codes[BLOCK];
    if (plane.kind == KIND_Q4_0) {
        round_symmetric(values, codes, scale);
    } else if (plane.kind == KIND_Q4_1) {
        round_span(values, codes, scale, row.minimums + block);
    } else {
        round_nonlinear(values, codes, scale);
    }
    for (u32 i = 0; i < LANES; i++) {
        row.codes[block * LANES + i] = (u8)(codes[i] | codes[i + LANES] << 4);
    }
}

/// Stores the heads of keys and values `(rows, heads · dim)` where each row's session has its pages. A block of threads per
/// head of a row, first of all keys, then of all values; shared memory for two rows of a head.
extern "C" __global__ void store_rows(const Step* step, const Plane* planes, const float* keys, const float* values_of) {
    u32 heads = planes[0].heads, part = blockIdx.x / heads;
    const Plane plane = planes[part];
    const float* buffer = part == 0 ? keys : values_of;
    u32 row = blockIdx.y, head = blockIdx.x % heads;
    if (row >= step->counts[ROWS_OF_STEP]) {
        return;
    }
    const Chunk& chunk = table<Chunk>(step, step->chunks)[table<u32>(step, step->chunk_of_row)[row]];
    u32 token = chunk.start + row - chunk.first_row;
    u32 page = table<u32>(step, step->pages)[chunk.pages + token / plane.page_tokens];
    token %= plane.page_tokens;
    const float* values = buffer + ((u64)row * plane.heads + head) * plane.dim;
    if (plane.kind <= KIND_BF16) {
        for (u32 i = threadIdx.x; i < plane.dim; i += blockDim.x) {
            if (plane.kind == KIND_F32) {
                stored_floats<F32>(plane, page, head, token)[i] = values[i];
            } else if (plane.kind == KIND_F16) {
                stored_floats<F16>(plane, page, head, token)[i] = float_to_half(values[i]);
            } else {
                stored_floats<BF16>(plane, page, head, token)[i] = float_to_bfloat(values[i]);
            }
        }
        return;
    }
    DYNAMIC_SHARED(float, own);
    for (u32 i = threadIdx.x; i < plane.dim; i += blockDim.x) {
        own[i] = values[i];
    }
    __syncthreads();
    if (plane.rotation > 0) {
        rotate_by_hadamard(own, own + plane.dim, plane.dim, plane.rotation);
    }
    StoredRow stored = stored_row(plane, page, head, token);
    for (u32 block = threadIdx.x; block < plane.dim / BLOCK; block += blockDim.x) {
        store_block(plane, stored, block, own + block * BLOCK);
    }
}
