// Fibers, the order in which they run, and the launch of a kernel by its name.

#include "cuda_on_cpu.h"

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emulation {

thread_local Machine machine;

namespace {

const size_t STACK_BYTES = 64 << 10;
// Tops of stacks lie at different places of a page, or they would crowd out one another in the cache.
const size_t STAGGER_BYTES = 192;
const unsigned MOST_THREADS = 1024;
const size_t MOST_SHARED_BYTES = 96 << 10;

struct Fibers {
    std::unique_ptr<char[]> stacks{new char[STACK_BYTES * MOST_THREADS]};
    std::unique_ptr<uint64_t[]> shared{new uint64_t[MOST_SHARED_BYTES / sizeof(uint64_t)]};
    Fiber fibers[MOST_THREADS];
    Warp warps[MOST_THREADS / 32];
    unsigned count = 0;
    int direction = 1;
    void* launcher = nullptr;
#ifndef __x86_64__
    ucontext_t contexts[MOST_THREADS];
    ucontext_t launcher_context;
#endif
};

thread_local std::unique_ptr<Fibers> fibers;

/// What the threads of the current launch do.
struct Body {
    void (*call)(const void* kernel, void** arguments);
    const void* kernel;
    void** arguments;
};

thread_local Body body;

#ifdef __x86_64__

// Keeps what a function must keep on the stack that is left, and goes on with the other.
extern "C" void paceline_switch_stacks(void** from, void* to);
asm(R"(
.text
.globl paceline_switch_stacks
paceline_switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

void go_on(Fiber* from, Fiber* to) {
    machine.current = to;
    paceline_switch_stacks(from ? &from->stack_pointer : &fibers->launcher, to ? to->stack_pointer : fibers->launcher);
}

void prepare(Fiber& fiber, unsigned index, void (*start)()) {
    char* top = fibers->stacks.get() + STACK_BYTES * (index + 1) - STAGGER_BYTES * (index % 64);
    void** stack = (void**)((uintptr_t)top & ~(uintptr_t)15);
    *--stack = nullptr;
    *--stack = (void*)start;
    for (int saved = 0; saved < 6; saved++) {
        *--stack = nullptr;
    }
    fiber.stack_pointer = stack;
}

#else

void go_on(Fiber* from, Fiber* to) {
    machine.current = to;
    ucontext_t* left = from ? &fibers->contexts[from - fibers->fibers] : &fibers->launcher_context;
    swapcontext(left, to ? &fibers->contexts[to - fibers->fibers] : &fibers->launcher_context);
}

void prepare(Fiber&, unsigned index, void (*start)()) {
    ucontext_t& context = fibers->contexts[index];
    getcontext(&context);
    context.uc_stack.ss_sp = fibers->stacks.get() + STACK_BYTES * index;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, start, 0);
}

#endif

bool can_go_on(const Fiber& fiber) {
    return !fiber.done && (fiber.waits_for == nullptr || *fiber.waits_for != fiber.generation);
}

/// The next fiber that can go on, or none: then the launcher does.
Fiber* next_fiber() {
    unsigned at = machine.current - fibers->fibers;
    for (unsigned tried = 0; tried < fibers->count; tried++) {
        at = (at + fibers->count + fibers->direction) % fibers->count;
        if (can_go_on(fibers->fibers[at])) {
            fibers->fibers[at].waits_for = nullptr;
            return &fibers->fibers[at];
        }
    }
    return nullptr;
}

void run_fiber() {
    body.call(body.kernel, body.arguments);
    Fiber* own = machine.current;
    own->done = true;
    Warp& warp = *own->warp;
    // Whoever is done is not waited for.
    if (--warp.running > 0 && warp.arrived >= warp.running) {
        warp.arrived = 0;
        warp.generation++;
    }
    if (--machine.block_running > 0 && machine.block_arrived >= machine.block_running) {
        machine.block_arrived = 0;
        machine.block_generation++;
    }
    go_on(own, next_fiber());
}

/// Runs one block; says whether all of its threads came to their end.
bool run_block() {
    unsigned count = fibers->count;
    machine.block_generation = 0;
    machine.block_arrived = 0;
    machine.block_running = count;
    memset((void*)fibers->warps, 0, sizeof fibers->warps);
    for (unsigned index = 0; index < count; index++) {
        Fiber& fiber = fibers->fibers[index];
        unsigned row = index / machine.block_size.x;
        fiber.thread = uint3{index % machine.block_size.x, row % machine.block_size.y, row / machine.block_size.y};
        fiber.lane = index % 32;
        fiber.warp = &fibers->warps[index / 32];
        fiber.warp->running++;
        fiber.waits_for = nullptr;
        fiber.done = false;
        prepare(fiber, index, run_fiber);
    }
    go_on(nullptr, &fibers->fibers[fibers->direction > 0 ? 0 : count - 1]);
    return machine.block_running == 0;
}

template <class... Arguments, size_t... Places>
void call_unpacked(void (*kernel)(Arguments...), void** arguments, std::index_sequence<Places...>) {
    kernel(*(std::remove_reference_t<Arguments>*)arguments[Places]...);
}

template <class... Arguments>
struct Caller {
    static void call(const void* kernel, void** arguments) {
        call_unpacked((void (*)(Arguments...))kernel, arguments, std::index_sequence_for<Arguments...>{});
    }
};

struct Kernel {
    const char* name;
    void (*call)(const void* kernel, void** arguments);
    const void* kernel;
    unsigned arguments;
};

template <class... Arguments>
Kernel kernel(const char* name, void (*function)(Arguments...)) {
    return Kernel{name, Caller<Arguments...>::call, (const void*)function, (unsigned)sizeof...(Arguments)};
}

}  // namespace

void wait(const uint64_t* generation) {
    Fiber* own = machine.current;
    own->waits_for = generation;
    own->generation = *generation;
    go_on(own, next_fiber());
}

float half_to_float(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 0) {
        float magnitude = ldexpf((float)fraction, -24);
        return sign ? -magnitude : magnitude;
    }
    uint32_t widened = exponent == 31 ? 255 : exponent + 112;
    return __uint_as_float(sign | widened << 23 | fraction << 13);
}

uint16_t float_to_half(float value) {
    uint32_t bits = __float_as_uint(value);
    uint16_t sign = bits >> 16 & 0x8000;
    float magnitude = fabsf(value);
    if (!(magnitude == magnitude)) {
        return sign | 0x7e00;
    }
    if (magnitude >= 65520.0f) {
        return sign | 0x7c00;
    }
    if (magnitude < 6.103515625e-05f) {
        // Multiples of the smallest number; the largest of them carries over to the first normal one.
        return sign | (uint16_t)rintf(ldexpf(magnitude, 24));
    }
    uint32_t rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);
    return sign | (uint16_t)((rounded >> 13) - (112 << 10));
}

}  // namespace emulation

#include "kernels.inc"

namespace {

const emulation::Kernel KERNELS[] = {
#include "names.inc"
};

const unsigned KERNEL_COUNT = sizeof KERNELS / sizeof KERNELS[0];

}  // namespace

/// The place of a kernel among all, or −1; and how many arguments it takes.
extern "C" int paceline_emulation_find(const char* name, unsigned* arguments) {
    for (unsigned index = 0; index < KERNEL_COUNT; index++) {
        if (strcmp(KERNELS[index].name, name) == 0) {
            *arguments = KERNELS[index].arguments;
            return (int)index;
        }
    }
    return -1;
}

/// Runs a kernel over all blocks. 0: done; 1: more threads or shared memory than there is; 2: threads wait for others for ever.
extern "C" int paceline_emulation_launch(
    int index, const unsigned* grid, const unsigned* block, unsigned shared_bytes, void** arguments, int backwards) {
    using namespace emulation;
    unsigned count = block[0] * block[1] * block[2];
    if (count == 0 || count > MOST_THREADS || shared_bytes > MOST_SHARED_BYTES) {
        return 1;
    }
    if (!fibers) {
        fibers.reset(new Fibers);
    }
    fibers->count = count;
    fibers->direction = backwards ? -1 : 1;
    body = Body{KERNELS[index].call, KERNELS[index].kernel, arguments};
    machine.shared = fibers->shared.get();
    machine.block_size = uint3{block[0], block[1], block[2]};
    machine.grid_size = uint3{grid[0], grid[1], grid[2]};
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    for (uint64_t at = 0; at < blocks; at++) {
        uint64_t number = backwards ? blocks - 1 - at : at;
        machine.block = uint3{
            (unsigned)(number % grid[0]), (unsigned)(number / grid[0] % grid[1]), (unsigned)(number / grid[0] / grid[1])};
        memset(fibers->shared.get(), 0xff, shared_bytes);
        if (!run_block()) {
            return 2;
        }
    }
    return 0;
}
