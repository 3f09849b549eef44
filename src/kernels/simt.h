// What CUDA C++ gives a kernel, for a C++ compiler: the emulated device builds every `.cu` file with `-include simt.h`.
// A block's threads are fibers on one OS thread (simt.cc), so a kernel's plain code needs no change; what threads do
// together (barriers, warp functions) ends in a call here. Stricter than a GPU where CUDA leaves things undefined: a
// barrier or warp function that some thread named by it never reaches fails the launch, naming where each one stands.
//
// One block runs at a time, and a thread gives way only at the functions below. So a kernel must not spin on memory
// that another thread writes, other than through atomics.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SIMT_EMULATED 1

#define __host__
#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// One section holds all shared memory, so that the launcher finds it and fills it with a pattern before each block:
// as on a GPU it starts undefined. Not thread-local: launches take turns, and AddressSanitizer guards only plain statics.
#define __shared__ static __attribute__((section("simt_shared")))

struct uint3 { unsigned x, y, z; };
typedef uint3 dim3;
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(4) uchar4 { unsigned char x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct alignas(16) longlong2 { long long x, y; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

namespace simt {

// Where a thread called from; the kernel's file and line.
struct Site {
    const char* file;
    unsigned line;
};

enum class Barrier : unsigned { Sync, Count, And, Or };
enum class Warp : unsigned { Sync, Shuffle, Ballot, MatchAny, Add, Min, Max, And, Or, Xor };

// The part of a fiber that kernels read.
struct Thread {
    uint3 index;
};

extern Thread* current;
extern uint3 block_index, block_size, grid_size;

unsigned barrier(Barrier kind, unsigned predicate, Site site);
// `value` is what the lane brings; for a shuffle, `lane` is the source lane of the warp, or the lane itself.
uint64_t warp(Warp kind, unsigned mask, uint64_t value, unsigned lane, Site site);
// Gives way to another thread when the seed says so: where a GPU's memory traffic would let another thread in.
void shuffle_threads();

// Registers a kernel with the block size and argument size that its source states.
struct Registration {
    const char* name;
    unsigned threads;
    unsigned args_bytes;
    const Registration* next;
    Registration(const char* name, unsigned threads, unsigned args_bytes);
};

template <typename A, typename B> struct Same { static constexpr bool value = false; };
template <typename A> struct Same<A, A> { static constexpr bool value = true; };
template <typename T, typename... Types> constexpr bool one_of = (Same<T, Types>::value || ...);
template <typename T> struct Identity { typedef T type; };
template <typename T> using As = typename Identity<T>::type;

template <typename T> static inline uint64_t to_bits(T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "warp functions take 32-bit and 64-bit values");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    return bits;
}

template <typename T> static inline T from_bits(uint64_t bits) {
    T value;
    memcpy(&value, &bits, sizeof(T));
    return value;
}

template <typename T> static inline T shuffle(unsigned mask, T value, unsigned lane, Site site) {
    return from_bits<T>(warp(Warp::Shuffle, mask, to_bits(value), lane, site));
}

static inline unsigned lane_id() { return current->index.x % 32; }

} // namespace simt

#define threadIdx (simt::current->index)
#define blockIdx (simt::block_index)
#define blockDim (simt::block_size)
#define gridDim (simt::grid_size)
static constexpr int warpSize = 32;

// The default arguments are evaluated where the kernel calls.
#define SIMT_SITE const char *file = __builtin_FILE(), unsigned line = __builtin_LINE()

static inline void __syncthreads(SIMT_SITE) { simt::barrier(simt::Barrier::Sync, 0, {file, line}); }
static inline int __syncthreads_count(int predicate, SIMT_SITE) {
    return (int)simt::barrier(simt::Barrier::Count, predicate != 0, {file, line});
}
static inline int __syncthreads_and(int predicate, SIMT_SITE) {
    return (int)simt::barrier(simt::Barrier::And, predicate != 0, {file, line});
}
static inline int __syncthreads_or(int predicate, SIMT_SITE) {
    return (int)simt::barrier(simt::Barrier::Or, predicate != 0, {file, line});
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_SITE) {
    simt::warp(simt::Warp::Sync, mask, 0, 0, {file, line});
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_SITE) {
    return (unsigned)simt::warp(simt::Warp::Ballot, mask, predicate != 0, 0, {file, line});
}
static inline int __any_sync(unsigned mask, int predicate, SIMT_SITE) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, SIMT_SITE) {
    return __ballot_sync(mask, predicate, file, line) == mask;
}
template <typename T> static inline unsigned __match_any_sync(unsigned mask, T value, SIMT_SITE) {
    return (unsigned)simt::warp(simt::Warp::MatchAny, mask, simt::to_bits(value), 0, {file, line});
}

// Shuffles, as in the CUDA C++ guide: `width` cuts the warp into sections; a source outside the section means the lane
// itself. A source that the mask does not name has no defined value, here a pattern.
template <typename T>
static inline auto __shfl_sync(unsigned mask, T value, int source, int width = 32, SIMT_SITE) -> decltype(+value) {
    const unsigned lane = simt::lane_id();
    const unsigned from = (lane & ~(unsigned)(width - 1)) | ((unsigned)source & (unsigned)(width - 1));
    return simt::shuffle(mask, +value, from, {file, line});
}
template <typename T>
static inline auto __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_SITE) -> decltype(+value) {
    const unsigned lane = simt::lane_id();
    const unsigned in_section = lane & (unsigned)(width - 1);
    return simt::shuffle(mask, +value, delta <= in_section ? lane - delta : lane, {file, line});
}
template <typename T>
static inline auto __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_SITE) -> decltype(+value) {
    const unsigned lane = simt::lane_id();
    const unsigned in_section = lane & (unsigned)(width - 1);
    return simt::shuffle(mask, +value, delta < (unsigned)width - in_section ? lane + delta : lane, {file, line});
}
template <typename T>
static inline auto __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, SIMT_SITE) -> decltype(+value) {
    const unsigned lane = simt::lane_id();
    const unsigned from = lane ^ (unsigned)lane_mask;
    const unsigned section_end = (lane & ~(unsigned)(width - 1)) + (unsigned)width;
    return simt::shuffle(mask, +value, from < section_end ? from : lane, {file, line});
}

#define SIMT_REDUCE(name, kind, T)                                                                                     \
    static inline T name(unsigned mask, T value, SIMT_SITE) {                                                          \
        return (T)simt::warp(simt::Warp::kind, mask, (uint64_t)(int64_t)value, 0, {file, line});                       \
    }
SIMT_REDUCE(__reduce_add_sync, Add, unsigned)
SIMT_REDUCE(__reduce_add_sync, Add, int)
SIMT_REDUCE(__reduce_min_sync, Min, unsigned)
SIMT_REDUCE(__reduce_min_sync, Min, int)
SIMT_REDUCE(__reduce_max_sync, Max, unsigned)
SIMT_REDUCE(__reduce_max_sync, Max, int)
SIMT_REDUCE(__reduce_and_sync, And, unsigned)
SIMT_REDUCE(__reduce_or_sync, Or, unsigned)
SIMT_REDUCE(__reduce_xor_sync, Xor, unsigned)

static inline void __threadfence_block() { simt::shuffle_threads(); }
static inline void __threadfence() { simt::shuffle_threads(); }
static inline void __threadfence_system() { simt::shuffle_threads(); }
static inline void __nanosleep(unsigned) { simt::shuffle_threads(); }

// Atomics. Plain operations are enough: launches take turns, and fibers change only at calls. The types are those that
// CUDA has, so that a kernel that builds here does not fail under NVRTC; both 64-bit spellings count as one.
#define SIMT_ATOMIC(name, result, ...)                                                                                 \
    template <typename T> static inline T name(T* address, simt::As<T> value) {                                        \
        static_assert(simt::one_of<T, __VA_ARGS__>, #name " is not defined for this type in CUDA");                    \
        simt::shuffle_threads();                                                                                       \
        const T old = *address;                                                                                        \
        *address = (T)(result);                                                                                        \
        return old;                                                                                                    \
    }
SIMT_ATOMIC(atomicAdd, old + value, int, unsigned, unsigned long, unsigned long long, float, double)
SIMT_ATOMIC(atomicSub, old - value, int, unsigned)
SIMT_ATOMIC(atomicMin, value < old ? value : old, int, unsigned, long, long long, unsigned long, unsigned long long)
SIMT_ATOMIC(atomicMax, value > old ? value : old, int, unsigned, long, long long, unsigned long, unsigned long long)
SIMT_ATOMIC(atomicAnd, old & value, int, unsigned, unsigned long, unsigned long long)
SIMT_ATOMIC(atomicOr, old | value, int, unsigned, unsigned long, unsigned long long)
SIMT_ATOMIC(atomicXor, old ^ value, int, unsigned, unsigned long, unsigned long long)
SIMT_ATOMIC(atomicExch, value, int, unsigned, unsigned long, unsigned long long, float)
template <typename T> static inline T atomicCAS(T* address, simt::As<T> compare, simt::As<T> value) {
    static_assert(simt::one_of<T, unsigned short, int, unsigned, unsigned long, unsigned long long>,
                  "atomicCAS is not defined for this type in CUDA");
    simt::shuffle_threads();
    const T old = *address;
    if (old == compare) *address = value;
    return old;
}

static inline int __popc(unsigned value) { return __builtin_popcount(value); }
static inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
static inline int __ffs(int value) { return __builtin_ffs(value); }
static inline int __ffsll(long long value) { return __builtin_ffsll(value); }
static inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz((unsigned)value); }
static inline int __clzll(long long value) { return value == 0 ? 64 : __builtin_clzll((unsigned long long)value); }
static inline unsigned long long __brevll(unsigned long long value) {
    value = (value >> 1 & 0x5555555555555555ull) | (value & 0x5555555555555555ull) << 1;
    value = (value >> 2 & 0x3333333333333333ull) | (value & 0x3333333333333333ull) << 2;
    value = (value >> 4 & 0x0f0f0f0f0f0f0f0full) | (value & 0x0f0f0f0f0f0f0f0full) << 4;
    return __builtin_bswap64(value);
}
static inline unsigned __brev(unsigned value) { return (unsigned)(__brevll(value) >> 32); }
// Four bytes picked from the eight of `y:x`; bit 3 of a selector spreads the byte's sign instead.
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned pick = selector >> 4 * i & 15;
        unsigned byte = (unsigned)(bytes >> 8 * (pick & 7)) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)((((uint64_t)high << 32 | low) << (shift & 31)) >> 32);
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    __extension__ typedef unsigned __int128 Wide;
    return (unsigned long long)((Wide)a * b >> 64);
}

template <typename T> static inline T __ldg(const T* address) { return *address; }
template <typename T> static inline T __ldcs(const T* address) { return *address; }
template <typename T> static inline T __ldcg(const T* address) { return *address; }
template <typename T> static inline void __stcs(T* address, simt::As<T> value) { *address = value; }

template <typename A, typename B> static constexpr inline auto min(A a, B b) -> decltype(a + b) {
    typedef decltype(a + b) C;
    return (C)b < (C)a ? (C)b : (C)a;
}
template <typename A, typename B> static constexpr inline auto max(A a, B b) -> decltype(a + b) {
    typedef decltype(a + b) C;
    return (C)a < (C)b ? (C)b : (C)a;
}
