// CUDA's C++ for kernels that run on a CPU.
//
// The blocks of a launch run one after another on the calling thread. Every thread of a block is a fiber with a stack of
// its own; one that waits for its warp or its block lets the next go on. When none can go on though not all are done, the
// launch fails: on a GPU it would hang. Fibers and blocks run forwards or backwards, so that a missing barrier shows, and
// dynamic shared memory begins as garbage, so that what nobody wrote shows.
//
// All lanes of a warp that are still running must take part in warp operations, whatever mask they name.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __shared__ static thread_local
#define __align__(bytes) alignas(bytes)

struct uint3 {
    unsigned x, y, z;
};

namespace emulation {

struct Warp {
    uint64_t generation;
    unsigned arrived;
    unsigned running;
    // Two sets, so that lanes of the next exchange do not overwrite what others have yet to read.
    uint64_t slots[2][32];
};

struct Fiber {
    void* stack_pointer;
    uint3 thread;
    unsigned lane;
    Warp* warp;
    // It waits while the generation is still this one.
    const uint64_t* waits_for;
    uint64_t generation;
    bool done;
};

struct Machine {
    Fiber* current;
    uint3 block, block_size, grid_size;
    void* shared;
    uint64_t block_generation;
    unsigned block_arrived;
    unsigned block_running;
};

extern thread_local Machine machine;

/// Lets the next fiber go on until the generation is another one.
void wait(const uint64_t* generation);

inline void* dynamic_shared() { return machine.shared; }

inline void arrive_in_warp(Warp& warp) {
    if (++warp.arrived >= warp.running) {
        warp.arrived = 0;
        warp.generation++;
    } else {
        wait(&warp.generation);
    }
}

/// Gives a value to the warp and takes that of another lane.
template <class T>
inline T exchange(T value, unsigned from) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a value fits a slot");
    Fiber& fiber = *machine.current;
    Warp& warp = *fiber.warp;
    uint64_t* slots = warp.slots[warp.generation & 1];
    memcpy(&slots[fiber.lane], &value, sizeof value);
    arrive_in_warp(warp);
    memcpy(&value, &slots[from & 31], sizeof value);
    return value;
}

float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);

}  // namespace emulation

#define threadIdx (emulation::machine.current->thread)
#define blockIdx (emulation::machine.block)
#define blockDim (emulation::machine.block_size)
#define gridDim (emulation::machine.grid_size)

inline void __syncthreads() {
    emulation::Machine& machine = emulation::machine;
    if (++machine.block_arrived >= machine.block_running) {
        machine.block_arrived = 0;
        machine.block_generation++;
    } else {
        emulation::wait(&machine.block_generation);
    }
}

inline void __syncwarp() { emulation::arrive_in_warp(*emulation::machine.current->warp); }

template <class T>
inline T __shfl_xor_sync(unsigned, T value, unsigned mask) {
    return emulation::exchange(value, emulation::machine.current->lane ^ mask);
}

inline int __dp4a(int a, int b, int sum) {
    for (int byte = 0; byte < 4; byte++) {
        sum += (int)(int8_t)(a >> 8 * byte) * (int)(int8_t)(b >> 8 * byte);
    }
    return sum;
}

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned places) {
    uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned result = 0;
    for (int byte = 0; byte < 4; byte++) {
        result |= (unsigned)(bytes >> 8 * (places >> 4 * byte & 7) & 0xff) << 8 * byte;
    }
    return result;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline double __longlong_as_double(long long bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/// To nearest, halves to even; 0 for no number, the nearest integer for what is too large.
inline int __float2int_rn(float value) {
    if (!(value == value)) {
        return 0;
    }
    float rounded = rintf(value);
    return rounded >= 2147483648.0f ? INT32_MAX : rounded < -2147483648.0f ? INT32_MIN : (int)rounded;
}
