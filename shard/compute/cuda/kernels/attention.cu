// Attention over pages.
//
// The keys of a sequence are cut into segments of 256 by absolute position. A query meets each segment up to its own
// position (or the end of its chunk): scores, their largest, exponentials, their sum, and the weighted sum of values. These
// parts are joined in the order of segments, either by one block that takes a query through all of them, or in a second
// launch where blocks have dealt them out. Both give the same bits.

#include "activations.cuh"
#include "pages.cuh"

/// Keys per segment: part of the definition of the result.
#define SEGMENT 256u
#define ATTENTION_THREADS 128u
#define NO_GATE 0xffffffffu

/// What stays the same from step to step.
struct Attention {
    Plane keys;
    Plane values;
    /// Values per row of the queries.
    u32 query_width;
    u32 heads;
    /// Values of a query head, and from one to the next.
    u32 dim;
    u32 stride;
    /// Query heads that share a key head.
    u32 group;
    /// Where a head's gate is behind the head's start.
    u32 gate_offset;
    u32 causal;
    float scale;
};

/// A query on its way through segments, in shared memory.
struct Query {
    /// `(dim)`.
    float* values;
    /// The same in blocks: codes, scales, and sums of values as they are rounded.
    i8* codes;
    float* scales;
    float* sums;
    /// Scores of a segment, then their exponentials.
    float* scores;
    /// Joined weighted values, `(value dim)`.
    float* joined;
    /// Space for rotating, and for what all threads get from one.
    float* other;
    float* total;
};

/// Largest score and sum of exponentials.
struct Part {
    float largest;
    float sum;
};

/// Where the row's keys are, and how many it sees.
struct Sight {
    const u32* pages;
    u32 end;
};

__device__ inline u32 larger_dim(const Attention& attention) {
    return attention.dim > attention.values.dim ? attention.dim : attention.values.dim;
}

/// The parts of shared memory; the host reserves as much.
__device__ inline Query query_in(float* shared, const Attention& attention) {
    Query query;
    query.values = shared;
    query.scores = query.values + attention.dim;
    query.joined = query.scores + SEGMENT;
    query.other = query.joined + attention.values.dim;
    query.total = query.other + larger_dim(attention);
    query.scales = query.total + 2;
    query.sums = query.scales + attention.dim / BLOCK;
    query.codes = (i8*)(query.sums + attention.dim / BLOCK);
    return query;
}

__device__ inline Sight sight_of(const Step* step, const Attention& attention, u32 row) {
    const Chunk& chunk = table<Chunk>(step, step->chunks)[table<u32>(step, step->chunk_of_row)[row]];
    u32 own = row - chunk.first_row;
    u32 end = chunk.start + (attention.causal ? own + 1 : chunk.rows);
    return Sight{table<u32>(step, step->pages) + chunk.pages, end};
}

/// Brings a query into shared memory, rotated and rounded to blocks where keys are.
__device__ inline void load_query(const Attention& attention, const float* row, u32 head, const Query& query) {
    for (u32 i = threadIdx.x; i < attention.dim; i += blockDim.x) {
        query.values[i] = row[head * attention.stride + i];
    }
    __syncthreads();
    if (attention.keys.kind <= KIND_BF16) {
        return;
    }
    if (attention.keys.rotation > 0) {
        rotate_by_hadamard(query.values, query.other, attention.dim, attention.keys.rotation);
    }
    for (u32 block = threadIdx.x; block < attention.dim / BLOCK; block += blockDim.x) {
        i8* codes = query.codes + block * BLOCK;
        float scale = round_to_bytes(query.values + block * BLOCK, codes, false);
        int sum = 0;
        for (u32 i = 0; i < BLOCK; i++) {
            sum += codes[i];
        }
        query.scales[block] = scale;
        query.sums[block] = scale * (float)sum;
    }
    __syncthreads();
}

/// The product with a key of floats, summed in sixteen lanes.
template <class Type>
__device__ inline float float_score(const typename Type::Stored* key, const float* query, u32 dim) {
    float lanes[LANES];
    for (u32 lane = 0; lane < LANES; lane++) {
        lanes[lane] = 0.0f;
    }
    for (u32 first = 0; first < dim; first += LANES) {
        for (u32 lane = 0; lane < LANES; lane++) {
            if (first + lane < dim) {
                lanes[lane] = fmaf(query[first + lane], Type::widen(key[first + lane]), lanes[lane]);
            }
        }
    }
    return sum_of_array(lanes);
}

/// The signed bytes of a block of keys or values.
__device__ inline void load_codes(u32 kind, const u8* codes, u32 block, u32* bytes) {
    if (kind == KIND_Q8_0) {
        for (u32 group = 0; group < 8; group++) {
            bytes[group] = word<4>(codes + block * BLOCK + 4 * group);
        }
        return;
    }
    nibbles<4>(codes + block * LANES, bytes);
    for (u32 group = 0; group < 8; group++) {
        if (kind == KIND_Q4_0) {
            bytes[group] = lower(bytes[group], 8);
        } else if (kind == KIND_IQ4_NL) {
            bytes[group] = look_up_nonlinear(bytes[group]);
        }
    }
}

/// The product with a key in blocks: exact sums of integers, times both scales, in the order of blocks.
__device__ inline float block_score(const Plane& keys, const StoredRow& key, const Query& query) {
    float product = 0.0f;
    for (u32 block = 0; block < keys.dim / BLOCK; block++) {
        u32 bytes[8];
        load_codes(keys.kind, key.codes, block, bytes);
        const int* codes = (const int*)(query.codes + block * BLOCK);
        int dot = 0;
        for (u32 group = 0; group < 8; group++) {
            dot = __dp4a((int)bytes[group], codes[group], dot);
        }
        product = fmaf((float)dot, half_to_float(key.scales[block]) * query.scales[block], product);
        if (keys.kind == KIND_Q4_1) {
            product = fmaf(half_to_float(key.minimums[block]), query.sums[block], product);
        }
    }
    return product;
}

__device__ inline float score(const Plane& keys, u32 page, u32 head, u32 token, const Query& query) {
    switch (keys.kind) {
        case KIND_F32: return float_score<F32>(stored_floats<F32>(keys, page, head, token), query.values, keys.dim);
        case KIND_F16: return float_score<F16>(stored_floats<F16>(keys, page, head, token), query.values, keys.dim);
        case KIND_BF16: return float_score<BF16>(stored_floats<BF16>(keys, page, head, token), query.values, keys.dim);
        default: return block_score(keys, stored_row(keys, page, head, token), query);
    }
}

/// Replaces the scores of a segment by `exp(score − largest)`; every thread gets the largest and the sum.
__device__ inline Part softmax(const Query& query, u32 visible) {
    if (threadIdx.x < WARP) {
        float largest = -__uint_as_float(0x7f800000u);
        for (u32 key = threadIdx.x; key < visible; key += WARP) {
            largest = greater(largest, query.scores[key]);
        }
        largest = largest_of_warp(largest);
        if (threadIdx.x == 0) {
            query.total[0] = largest;
        }
    }
    __syncthreads();
    float largest = query.total[0];
    for (u32 key = threadIdx.x; key < visible; key += blockDim.x) {
        query.scores[key] = exponential(query.scores[key] - largest);
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        float lane = 0.0f;
        for (u32 key = threadIdx.x % LANES; key < visible; key += LANES) {
            lane += query.scores[key];
        }
        float sum = sum_of_lanes(lane);
        if (threadIdx.x == 0) {
            query.total[1] = sum;
        }
    }
    __syncthreads();
    return Part{largest, query.total[1]};
}

/// Adds a value, times its weight, to one column's sum.
template <class Type>
__device__ inline float add_float(const Plane& values, u32 page, u32 head, u32 token, u32 column, float weight, float sum) {
    return fmaf(weight, Type::widen(stored_floats<Type>(values, page, head, token)[column]), sum);
}

__device__ inline float add_block(const Plane& values, u32 page, u32 head, u32 token, u32 column, float weight, float sum) {
    StoredRow row = stored_row(values, page, head, token);
    u32 block = column / BLOCK, place = column % BLOCK;
    float scale = half_to_float(row.scales[block]);
    if (values.kind == KIND_Q8_0) {
        return fmaf(weight * scale, (float)(i8)row.codes[column], sum);
    }
    u32 code = row.codes[block * LANES + place % LANES] >> (place < LANES ? 0 : 4) & 15u;
    if (values.kind == KIND_Q4_1) {
        return fmaf(weight, fmaf((float)code, scale, half_to_float(row.minimums[block])), sum);
    }
    int integer = values.kind == KIND_Q4_0 ? (int)code - 8 : (i8)(look_up_nonlinear(code) & 0xffu);
    return fmaf(weight * scale, (float)integer, sum);
}

/// The weighted sum of a segment's values in one column, in the order of keys.
__device__ inline float weighted_values(
    const Plane& values, const Sight& sight, u32 head, u32 start, u32 visible, const float* weights, u32 column) {
    float sum = 0.0f;
    u32 key = 0;
    while (key < visible) {
        u32 page = sight.pages[(start + key) / values.page_tokens];
        u32 token = (start + key) % values.page_tokens;
        u32 in_page = values.page_tokens - token;
        u32 last = visible - key < in_page ? visible : key + in_page;
        for (; key < last; key++, token++) {
            switch (values.kind) {
                case KIND_F32: sum = add_float<F32>(values, page, head, token, column, weights[key], sum); break;
                case KIND_F16: sum = add_float<F16>(values, page, head, token, column, weights[key], sum); break;
                case KIND_BF16: sum = add_float<BF16>(values, page, head, token, column, weights[key], sum); break;
                default: sum = add_block(values, page, head, token, column, weights[key], sum);
            }
        }
    }
    return sum;
}

/// Scores of a query with the segment at `start`, and their exponentials, in shared memory.
__device__ inline Part meet(const Attention& attention, const Sight& sight, u32 key_head, u32 start, const Query& query) {
    u32 visible = sight.end - start < SEGMENT ? sight.end - start : SEGMENT;
    u32 page_tokens = attention.keys.page_tokens;
    for (u32 key = threadIdx.x; key < visible; key += blockDim.x) {
        u32 token = start + key;
        u32 page = sight.pages[token / page_tokens];
        query.scores[key] = score(attention.keys, page, key_head, token % page_tokens, query) * attention.scale;
    }
    __syncthreads();
    return softmax(query, visible);
}

/// Joins a column's part of the next segment to what came before: both are scaled to the larger of their largest scores.
__device__ inline float join_column(float value, float partial, const Part& total, const Part& part) {
    float largest = greater(total.largest, part.largest);
    float added = partial * exponential(part.largest - largest);
    return fmaf(value, exponential(total.largest - largest), added);
}

__device__ inline Part join_parts(const Part& total, const Part& part) {
    float largest = greater(total.largest, part.largest);
    float added = part.sum * exponential(part.largest - largest);
    return Part{largest, fmaf(total.sum, exponential(total.largest - largest), added)};
}

/// Rotates joined values back where they were rotated, divides by the sum, and applies the gate; rounds to blocks as well if
/// these are wanted (of heads of whole blocks). All of it from the row's first head on.
__device__ inline void finish(
    const Attention& attention, const Query& query, const Part& total, const float* row, u32 head, float* output,
    Activations* blocks) {
    u32 dim = attention.values.dim;
    __syncthreads();
    if (attention.values.rotation > 0) {
        rotate_by_hadamard(query.joined, query.other, dim, attention.values.rotation);
    }
    for (u32 column = threadIdx.x; column < dim; column += blockDim.x) {
        float result = query.joined[column] / total.sum;
        if (attention.gate_offset != NO_GATE) {
            result *= sigmoid(row[head * attention.stride + attention.gate_offset + column]);
        }
        output[head * dim + column] = result;
        if (blocks != nullptr) {
            round_to_block(result, blocks[(head * dim + column) / BLOCK]);
        }
    }
}

/// The blocks of a row of results, if there are any.
__device__ inline Activations* blocks_of(const Attention& attention, Activations* blocks, u32 row) {
    return blocks == nullptr ? nullptr : blocks + (u64)row * (attention.heads * attention.values.dim / BLOCK);
}

/// Takes each query through all of its segments. A block of `ATTENTION_THREADS` per head of a row.
extern "C" __global__ void attention(
    const Step* step, const Attention* attention_of, const float* queries, float* output, Activations* blocks) {
    const Attention attention = *attention_of;
    DYNAMIC_SHARED(float, shared);
    u32 head = blockIdx.x, row = blockIdx.y;
    if (row >= step->counts[ROWS_OF_STEP]) {
        return;
    }
    u32 dim = attention.values.dim;
    const float* own = queries + (u64)row * attention.query_width;
    Query query = query_in(shared, attention);
    Sight sight = sight_of(step, attention, row);
    load_query(attention, own, head, query);
    Part total = Part{0.0f, 0.0f};
    for (u32 start = 0; start < sight.end; start += SEGMENT) {
        u32 key_head = head / attention.group;
        Part part = meet(attention, sight, key_head, start, query);
        u32 visible = sight.end - start < SEGMENT ? sight.end - start : SEGMENT;
        for (u32 column = threadIdx.x; column < dim; column += blockDim.x) {
            float partial = weighted_values(attention.values, sight, key_head, start, visible, query.scores, column);
            query.joined[column] = start == 0 ? partial : join_column(query.joined[column], partial, total, part);
        }
        total = start == 0 ? part : join_parts(total, part);
        __syncthreads();
    }
    output += (u64)row * attention.heads * dim;
    finish(attention, query, total, own, head, output, blocks_of(attention, blocks, row));
}

/// Where the part of a query in a segment is kept: its weighted values, then its largest score and sum.
__device__ inline float* kept_part(float* parts, const Step* step, const Attention& attention, u32 row, u32 head, u32 segment) {
    u64 index = ((u64)row * attention.heads + head) * step->counts[SEGMENTS] + segment;
    return parts + index * (attention.values.dim + 2);
}

/// Takes each query through one segment and keeps its part. A block of `ATTENTION_THREADS` per head of a row and segment.
extern "C" __global__ void attention_parts(
    const Step* step, const Attention* attention_of, const float* queries, float* parts) {
    const Attention attention = *attention_of;
    DYNAMIC_SHARED(float, shared);
    u32 head = blockIdx.x, row = blockIdx.y, start = blockIdx.z * SEGMENT;
    if (row >= step->counts[ROWS_OF_STEP]) {
        return;
    }
    Sight sight = sight_of(step, attention, row);
    if (start >= sight.end) {
        return;
    }
    Query query = query_in(shared, attention);
    load_query(attention, queries + (u64)row * attention.query_width, head, query);
    u32 key_head = head / attention.group;
    Part part = meet(attention, sight, key_head, start, query);
    u32 visible = sight.end - start < SEGMENT ? sight.end - start : SEGMENT;
    float* kept = kept_part(parts, step, attention, row, head, blockIdx.z);
    for (u32 column = threadIdx.x; column < attention.values.dim; column += blockDim.x) {
        kept[column] = weighted_values(attention.values, sight, key_head, start, visible, query.scores, column);
    }
    if (threadIdx.x == 0) {
        kept[attention.values.dim] = part.largest;
        kept[attention.values.dim + 1] = part.sum;
    }
}

/// Joins the parts of each query, in order. A block of `ATTENTION_THREADS` per head of a row.
extern "C" __global__ void attention_join(
    const Step* step, const Attention* attention_of, const float* queries, float* parts, float* output,
    Activations* blocks) {
    const Attention attention = *attention_of;
    DYNAMIC_SHARED(float, shared);
    u32 head = blockIdx.x, row = blockIdx.y, dim = attention.values.dim;
    if (row >= step->counts[ROWS_OF_STEP]) {
        return;
    }
    Query query = query_in(shared, attention);
    Sight sight = sight_of(step, attention, row);
    Part total = Part{0.0f, 0.0f};
    for (u32 segment = 0; segment * SEGMENT < sight.end; segment++) {
        const float* kept = kept_part(parts, step, attention, row, head, segment);
        Part part = Part{kept[dim], kept[dim + 1]};
        for (u32 column = threadIdx.x; column < dim; column += blockDim.x) {
            query.joined[column] = segment == 0 ? kept[column] : join_column(query.joined[column], kept[column], total, part);
        }
        total = segment == 0 ? part : join_parts(total, part);
    }
    output += (u64)row * attention.heads * dim;
    const float* own = queries + (u64)row * attention.query_width;
    finish(attention, query, total, own, head, output, blocks_of(attention, blocks, row));
}
