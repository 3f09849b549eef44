// The launcher behind simt.h: runs a grid block by block, a block's threads as fibers on the calling OS thread.
//
// A fiber runs until it waits at a barrier or a warp function; then the next ready one is switched to directly. The
// seed picks which: 0 means the order of the thread index, any other value a random order of threads and of blocks.
// When no fiber is ready and some have not returned, they wait for a thread that will never come: the launch ends with
// an error. Fibers that are given up run no destructors; kernels have none.
//
// Measured on a 2-core x86_64 machine: 15 ns a thread and barrier, 35 ns under AddressSanitizer.
#include "simt.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SIMT_ASAN 1
#define SIMT_NO_ASAN __attribute__((no_sanitize_address))
#else
#define SIMT_ASAN 0
#define SIMT_NO_ASAN
#endif

// void simt_switch(void** save, void* load): pushes the callee-saved registers, stores the stack pointer to *save, and
// continues where `load` was stored. swapcontext would make two system calls for the signal mask.
extern "C" void simt_switch(void** save, void* load);
extern "C" void simt_entry();
#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.globl simt_switch
.hidden simt_switch
.type simt_switch, @function
simt_switch:
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
.size simt_switch, .-simt_switch
)");
// The frame that the first switch to a fiber pops: six registers, where to return to, and a zero return address of its
// caller, which keeps the stack 16-byte aligned as at any function's entry.
static const size_t FRAME_WORDS = 8;
static const size_t FRAME_ENTRY = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.globl simt_switch
.hidden simt_switch
.type simt_switch, %function
simt_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size simt_switch, .-simt_switch
)");
static const size_t FRAME_WORDS = 20;
static const size_t FRAME_ENTRY = 11; // x30
#else
#error "the emulated device has a fiber switch for x86_64 and aarch64 only"
#endif

// Bounds of the section that __shared__ names, by the linker. The anchor makes the section exist and start on an edge.
extern "C" __attribute__((visibility("hidden"))) char __start_simt_shared[];
extern "C" __attribute__((visibility("hidden"))) char __stop_simt_shared[];
__shared__ __align__(64) volatile char anchor[64];

namespace simt {

Thread* current;
uint3 block_index, block_size, grid_size;

static const unsigned MAX_THREADS = 1024; // CUDA's limit of a block
static const size_t PAGE = 64 << 10;      // a guard page of any page size in use
static const size_t STACK = SIMT_ASAN ? 256 << 10 : 64 << 10;

enum class State : uint8_t { Ready, Barrier, Warp, Exited };

struct Fiber : Thread {
    State state;
    void* stack_pointer;
    char* stack; // lowest address; a guard page lies below it
    void* fake_stack;
    // Where it waits and what it brought; `value` becomes the result.
    Site site;
    unsigned kind;
    unsigned mask;
    unsigned lane;
    uint64_t value;
};

struct Launch {
    const char* kernel;
    void (*body)(const void*);
    const void* args;
    unsigned threads;
    uint64_t random; // 0: natural order
    char* error;
    size_t error_bytes;
    bool failed;
    unsigned at_barrier;
    unsigned exited;
    unsigned waiting[MAX_THREADS / 32]; // lanes that wait in a warp function
    unsigned queue[MAX_THREADS];        // ring of ready fibers
    unsigned head, count;
};

static Fiber fibers[MAX_THREADS];
static Fiber host; // the caller of simt_launch
static Launch launch;
static char* stacks;
static const Registration* registrations;

Registration::Registration(const char* name, unsigned threads, unsigned args_bytes)
    : name(name), threads(threads), args_bytes(args_bytes), next(registrations) {
    registrations = this;
}

// splitmix64's finaliser (Steele, Lea, Flood 2014).
static uint64_t mix(uint64_t value) {
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

// xorshift64; never 0 once it is not.
static inline uint64_t next_random() {
    launch.random ^= launch.random << 13;
    launch.random ^= launch.random >> 7;
    launch.random ^= launch.random << 17;
    return launch.random;
}

static unsigned number(const Fiber& fiber) { return (unsigned)(&fiber - fibers); }

static inline void make_ready(Fiber& fiber) {
    fiber.state = State::Ready;
    launch.queue[(launch.head + launch.count++) % MAX_THREADS] = number(fiber);
}

static void switch_to(Fiber& to) {
    Fiber& from = *static_cast<Fiber*>(current);
    if (&from == &to) return;
    current = &to;
#if SIMT_ASAN
    // A fiber that has returned gives its fake stack up.
    __sanitizer_start_switch_fiber(from.state == State::Exited ? nullptr : &from.fake_stack, to.stack, STACK);
#endif
    simt_switch(&from.stack_pointer, to.stack_pointer);
#if SIMT_ASAN
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

static void switch_to_host() {
    Fiber& from = *static_cast<Fiber*>(current);
    current = &host;
#if SIMT_ASAN
    __sanitizer_start_switch_fiber(from.state == State::Exited ? nullptr : &from.fake_stack, host.stack, (size_t)host.value);
#endif
    simt_switch(&from.stack_pointer, host.stack_pointer);
    __builtin_unreachable(); // a fiber that hands over to the host is never resumed
}

// Ends the launch: what the fibers were doing is given up.
[[noreturn]] __attribute__((format(printf, 1, 2))) static void fail(const char* format, ...) {
    int used = snprintf(launch.error, launch.error_bytes, "kernel %s, block %u of %u: ", launch.kernel, block_index.x, grid_size.x);
    if (used > 0 && (size_t)used < launch.error_bytes) {
        va_list list;
        va_start(list, format);
        vsnprintf(launch.error + used, launch.error_bytes - (size_t)used, format, list);
        va_end(list);
    }
    launch.failed = true;
    switch_to_host();
    __builtin_unreachable();
}

static const char* base_name(const char* path) {
    const char* slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const char* describe(const Fiber& fiber, char (&text)[160]) {
    static const char* const barriers[] = {"__syncthreads", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or"};
    static const char* const warps[] = {"__syncwarp",        "a shuffle",         "a ballot",
                                        "__match_any_sync",  "__reduce_add_sync", "__reduce_min_sync",
                                        "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync",
                                        "__reduce_xor_sync"};
    switch (fiber.state) {
        case State::Ready: return "runs";
        case State::Exited: return "has returned";
        case State::Barrier:
            snprintf(text, sizeof text, "waits at %s in %s:%u", barriers[fiber.kind], base_name(fiber.site.file), fiber.site.line);
            return text;
        case State::Warp:
            snprintf(text, sizeof text, "waits at %s with mask %08x in %s:%u", warps[fiber.kind], fiber.mask,
                     base_name(fiber.site.file), fiber.site.line);
            return text;
    }
    return "";
}

static bool same(const Site& a, const Site& b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

// No fiber can go on. Names one that waits and one in another place.
[[noreturn]] static void fail_stuck() {
    unsigned at_warp = 0, first = 0;
    for (unsigned i = 0; i < launch.threads; i++) at_warp += fibers[i].state == State::Warp;
    while (fibers[first].state == State::Exited) first++;
    const Fiber& waits = fibers[first];
    unsigned other = 0;
    while (other < launch.threads && fibers[other].state == waits.state && fibers[other].kind == waits.kind &&
           fibers[other].mask == waits.mask && same(fibers[other].site, waits.site))
        other++;
    char first_text[160], other_text[160];
    if (other == launch.threads) {
        fail("%u of %u threads wait for lanes that the block does not have; thread %u %s", at_warp, launch.threads, first,
             describe(waits, first_text));
    }
    fail("not all threads reach a barrier or warp function: of %u threads, %u wait at a block barrier, %u at a warp "
         "function, %u have returned; thread %u %s, thread %u %s",
         launch.threads, launch.at_barrier, at_warp, launch.exited, first, describe(waits, first_text), other,
         describe(fibers[other], other_text));
}

// Runs the next ready fiber; comes back when the caller, who has said what it waits for, is picked again.
static void yield() {
    if (launch.count == 0) {
        if (launch.exited == launch.threads) switch_to_host();
        fail_stuck();
    }
    if (launch.random) {
        const unsigned pick = (launch.head + (unsigned)((next_random() >> 32) * launch.count >> 32)) % MAX_THREADS;
        const unsigned chosen = launch.queue[pick];
        launch.queue[pick] = launch.queue[launch.head];
        launch.queue[launch.head] = chosen;
    }
    Fiber& next = fibers[launch.queue[launch.head]];
    launch.head = (launch.head + 1) % MAX_THREADS;
    launch.count--;
    switch_to(next);
}

void shuffle_threads() {
    // One time in eight: often enough to part a read from its write, rarely enough to stay fast.
    if (launch.random == 0 || (next_random() & 0x700) != 0) return;
    make_ready(*static_cast<Fiber*>(current));
    yield();
}

unsigned barrier(Barrier kind, unsigned predicate, Site site) {
    Fiber& self = *static_cast<Fiber*>(current);
    self.state = State::Barrier;
    self.kind = (unsigned)kind;
    self.site = site;
    self.mask = 0;
    self.value = predicate;
    if (++launch.at_barrier < launch.threads) {
        yield();
        return (unsigned)self.value;
    }
    unsigned count = 0;
    for (unsigned i = 0; i < launch.threads; i++) {
        const Fiber& fiber = fibers[i];
        // CUDA leaves it undefined when threads of a block wait at different barriers.
        if (fiber.kind != self.kind || !same(fiber.site, site)) {
            char self_text[160], other_text[160];
            fail("threads wait at different barriers: thread %u %s, thread %u %s", number(self),
                 describe(self, self_text), i, describe(fiber, other_text));
        }
        count += (unsigned)fiber.value;
    }
    const unsigned all = launch.threads;
    const unsigned result = kind == Barrier::Count ? count : kind == Barrier::And ? count == all : count != 0;
    launch.at_barrier = 0;
    for (unsigned i = 0; i < launch.threads; i++) {
        fibers[i].value = result;
        make_ready(fibers[i]);
    }
    yield();
    return (unsigned)self.value;
}

// The results of a warp function for all lanes of `mask`, who all wait with it.
static void complete(Fiber* lanes, Warp kind, unsigned mask) {
    uint64_t values[32];
    unsigned ballot = 0;
    uint64_t folded = 0;
    bool first = true;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const unsigned lane = (unsigned)__builtin_ctz(rest);
        const uint64_t value = values[lane] = lanes[lane].value;
        ballot |= (unsigned)(value != 0) << lane;
        // Signed values come sign-extended, unsigned ones zero-extended: one comparison orders both.
        const bool less = (int64_t)value < (int64_t)folded;
        if (first) folded = value;
        else if (kind == Warp::Add) folded += value;
        else if (kind == Warp::Min) folded = less ? value : folded;
        else if (kind == Warp::Max) folded = less ? folded : value;
        else if (kind == Warp::And) folded &= value;
        else if (kind == Warp::Or) folded |= value;
        else if (kind == Warp::Xor) folded ^= value;
        first = false;
    }
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        const unsigned lane = (unsigned)__builtin_ctz(rest);
        Fiber& fiber = lanes[lane];
        switch (kind) {
            case Warp::Sync: break;
            case Warp::Shuffle: {
                const unsigned from = fiber.lane;
                fiber.value = from < 32 && (mask >> from & 1) ? values[from] : 0xa5a5a5a5a5a5a5a5ull;
                break;
            }
            case Warp::Ballot: fiber.value = ballot; break;
            case Warp::MatchAny: {
                unsigned same = 0;
                for (unsigned others = mask; others; others &= others - 1) {
                    const unsigned other = (unsigned)__builtin_ctz(others);
                    same |= (unsigned)(values[other] == values[lane]) << other;
                }
                fiber.value = same;
                break;
            }
            default: fiber.value = folded; break;
        }
    }
}

uint64_t warp(Warp kind, unsigned mask, uint64_t value, unsigned lane, Site site) {
    Fiber& self = *static_cast<Fiber*>(current);
    const unsigned warp_number = number(self) / 32, own = number(self) % 32;
    Fiber* lanes = fibers + warp_number * 32;
    self.state = State::Warp;
    self.kind = (unsigned)kind;
    self.site = site;
    self.mask = mask;
    self.lane = lane;
    self.value = value;
    if (!(mask >> own & 1)) {
        char text[160];
        fail("the mask does not name the caller: thread %u %s", number(self), describe(self, text));
    }
    unsigned& waiting = launch.waiting[warp_number];
    waiting |= 1u << own;
    bool complete_now = (waiting & mask) == mask;
    for (unsigned rest = complete_now ? mask : 0; rest; rest &= rest - 1) {
        const Fiber& other = lanes[__builtin_ctz(rest)];
        // A lane that waits with another mask may still come here once its own call is complete.
        if (other.mask != mask) {
            complete_now = false;
            break;
        }
        if (other.kind != self.kind) {
            char self_text[160], other_text[160];
            fail("lanes of one mask call different warp functions: thread %u %s, thread %u %s", number(self),
                 describe(self, self_text), number(other), describe(other, other_text));
        }
    }
    if (complete_now) {
        complete(lanes, kind, mask);
        waiting &= ~mask;
        for (unsigned rest = mask; rest; rest &= rest - 1) make_ready(lanes[__builtin_ctz(rest)]);
    }
    yield();
    return self.value;
}

// What the first switch to a fiber runs. It never returns, so AddressSanitizer must not put guards into its frame: they
// would stay on the stack.
SIMT_NO_ASAN static void run_fiber() {
#if SIMT_ASAN
    // The first fiber of a launch learns where the host's stack lies; later ones come from other fibers.
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (!host.stack) {
        host.stack = (char*)bottom;
        host.value = bytes;
    }
#endif
    launch.body(launch.args);
    Fiber& self = *static_cast<Fiber*>(current);
    self.state = State::Exited;
    launch.exited++;
    yield();
    __builtin_trap(); // nobody resumes it
}

static bool map_stacks() {
    if (stacks) return true;
    // Address space only: pages become memory when a thread first uses them.
    void* memory = mmap(nullptr, MAX_THREADS * (PAGE + STACK), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    for (unsigned i = 0; i < MAX_THREADS; i++) {
        fibers[i].stack = (char*)memory + i * (PAGE + STACK) + PAGE;
        if (mprotect(fibers[i].stack, STACK, PROT_READ | PROT_WRITE) != 0) {
            munmap(memory, MAX_THREADS * (PAGE + STACK));
            return false;
        }
    }
    stacks = (char*)memory;
    return true;
}

static void prepare(Fiber& fiber) {
    const unsigned i = number(fiber);
    fiber.index = {i, 0, 0};
    fiber.fake_stack = nullptr;
    // Stacks lie a power of two apart; without an offset their tops would share one set of the cache.
    void** frame = (void**)(fiber.stack + STACK - i % 32 * 128) - FRAME_WORDS;
    memset(frame, 0, FRAME_WORDS * sizeof(void*));
    frame[FRAME_ENTRY] = (void*)&run_fiber;
    fiber.stack_pointer = frame;
    make_ready(fiber);
}

// Writes over the guards that AddressSanitizer puts between the variables too, so it may not look.
SIMT_NO_ASAN static void fill_shared(uint64_t pattern) {
    anchor[0] = 0;
    uintptr_t at = (uintptr_t)__start_simt_shared;
    const uintptr_t end = (uintptr_t)__stop_simt_shared;
    for (; at + 8 <= end; at += 8) *(uint64_t*)at = pattern;
    for (; at < end; at++) *(char*)at = (char)pattern;
}

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void run(unsigned blocks, uint64_t seed) {
    // Blocks in the order (first + i * step) mod blocks: each once, since the step shares no factor with their number.
    uint64_t first = 0, step = 1;
    if (seed && blocks > 1) {
        first = mix(seed ^ 1) % blocks;
        step = mix(seed ^ 2) % blocks;
        while (greatest_common_divisor(step, blocks) != 1) step = (step + 1) % blocks;
    }
    for (uint64_t i = 0; i < blocks && !launch.failed; i++) {
        block_index = {(unsigned)((first + i * step) % blocks), 0, 0};
        launch.random = seed ? mix(seed + block_index.x) | 1 : 0;
        launch.at_barrier = launch.exited = launch.head = launch.count = 0;
        memset(launch.waiting, 0, sizeof launch.waiting);
        // No byte of it is zero, so that nothing passes for cleared.
        fill_shared(mix(seed * 31 + block_index.x) | 0x8181818181818181ull);
        for (unsigned thread = 0; thread < launch.threads; thread++) prepare(fibers[thread]);
        host.state = State::Ready;
        current = &host;
        yield();
    }
}

} // namespace simt

// Runs a grid to its end. Returns 0, or 1 with a message. Calls must not overlap.
extern "C" int simt_launch(const char* kernel, void (*body)(const void*), uint32_t blocks, uint32_t threads,
                           const void* args, uint64_t seed, char* error, size_t error_bytes) {
    using namespace simt;
    if (threads == 0 || threads > MAX_THREADS || !map_stacks()) {
        snprintf(error, error_bytes, "kernel %s: cannot run blocks of %u threads", kernel, threads);
        return 1;
    }
    launch.kernel = kernel;
    launch.body = body;
    launch.args = args;
    launch.threads = threads;
    launch.error = error;
    launch.error_bytes = error_bytes;
    launch.failed = false;
    host.stack = nullptr;
    block_size = {threads, 1, 1};
    grid_size = {blocks, 1, 1};
    run(blocks, seed);
    current = nullptr;
#if SIMT_ASAN
    // Frames that were given up left their variables' guards behind.
    if (launch.failed) __asan_unpoison_memory_region(stacks, threads * (PAGE + STACK));
#endif
    return launch.failed;
}

// Block and argument size that the source of a kernel states; false when no kernel has the name.
extern "C" bool simt_kernel(const char* name, uint32_t* threads, uint32_t* args_bytes) {
    for (const simt::Registration* it = simt::registrations; it; it = it->next) {
        if (strcmp(it->name, name) == 0) {
            *threads = it->threads;
            *args_bytes = it->args_bytes;
            return true;
        }
    }
    return false;
}
