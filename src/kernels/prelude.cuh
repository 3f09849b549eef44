// What every kernel includes. The same source is compiled by NVRTC for a GPU and, against simt.h, by the C++ compiler.
#pragma once
#include "abi.h"

// A kernel: one argument struct `args`, by value, and a fixed block size.
#if defined(__CUDACC__)
#define DEVICE static __device__ __forceinline__
// Left to itself, ptxas spills to fit more blocks; asked for 768 threads a multiprocessor, it has 80 registers a thread.
#define KERNEL(name, Args, threads)                                                                                    \
    extern "C" __global__ void __launch_bounds__(threads, (threads) < 768 ? 768 / (threads) : 1) name(const Args args)
#else
#define DEVICE static inline
// The exported function is what one emulated thread runs; the registration lets the host check its own table.
#define KERNEL(name, Args, threads)                                                                                    \
    static void name##_body(const Args args);                                                                          \
    extern "C" void name(const void* args) { name##_body(*(const Args*)args); }                                        \
    static const simt::Registration name##_registration(#name, threads, sizeof(Args));                                 \
    static void name##_body(const Args args)
#endif

static constexpr unsigned ALL_LANES = 0xffffffffu;

// Lowers the fault word to this fault.
DEVICE void raise_fault(uint64_t slot, uint32_t page, uint64_t offset, uint32_t kind) {
    const uint64_t limit = (1ull << 28) - 1;
    const uint64_t word = ((uint64_t)page << 36) | ((offset < limit ? offset : limit) << 8) | kind;
    atomicMin((unsigned long long*)slot, (unsigned long long)word);
}

// Whether the fault word names this page, for one thread: others may lower the word at any time. A page that is not
// named although it has a fault is not the first of those that have one, so that its further faults are not told either.
DEVICE bool has_fault(uint64_t slot, uint32_t page) { return *(volatile const uint64_t*)slot >> 36 == page; }

template <typename T>
DEVICE T* at(uint64_t address) { return (T*)address; }

// The calling thread's place.
DEVICE unsigned lane() { return threadIdx.x % 32; }
DEVICE unsigned warp() { return threadIdx.x / 32; }

// Little-endian loads from an address of any alignment. Only the bytes themselves are read.
DEVICE uint16_t load_u16(const void* address) {
    const uint8_t* bytes = (const uint8_t*)address;
    return (uint16_t)(bytes[0] | bytes[1] << 8);
}

DEVICE uint32_t load_u32(const void* address) {
    if (((uint64_t)address & 3) == 0) return *(const uint32_t*)address;
    const uint8_t* bytes = (const uint8_t*)address;
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

DEVICE uint64_t load_u64(const void* address) {
    if (((uint64_t)address & 7) == 0) return *(const uint64_t*)address;
    const uint8_t* bytes = (const uint8_t*)address;
    return load_u32(bytes) | (uint64_t)load_u32(bytes + 4) << 32;
}

// The sum of `value` over the lanes below this one; `total` is the sum over the warp. All 32 lanes call.
template <typename T>
DEVICE T warp_scan(T value, T& total) {
    T inclusive = value;
    for (unsigned delta = 1; delta < 32; delta *= 2) {
        const T below = __shfl_up_sync(ALL_LANES, inclusive, delta);
        if (lane() >= delta) inclusive += below;
    }
    total = __shfl_sync(ALL_LANES, inclusive, 31);
    return inclusive - value;
}

// The sum of `value` over the threads before this one; `total` is the sum over the block. Every thread of a block of
// `THREADS` (a multiple of 32) calls. It holds barriers, so what threads wrote before it is seen after it.
template <unsigned THREADS, typename T>
DEVICE T block_scan(T value, T& total) {
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps");
    __shared__ T sums[THREADS / 32];
    T warp_total;
    T before = warp_scan(value, warp_total);
    if (lane() == 0) sums[warp()] = warp_total;
    __syncthreads();
    total = 0;
    for (unsigned i = 0; i < THREADS / 32; i++) {
        if (i < warp()) before += sums[i];
        total += sums[i];
    }
    __syncthreads(); // the next call writes `sums` again
    return before;
}

// The sum of `value` over the block, for every thread; as `block_scan`.
template <unsigned THREADS, typename T>
DEVICE T block_sum(T value) {
    T total;
    block_scan<THREADS>(value, total);
    return total;
}

// The greatest `value` of the block, for every thread; as `block_scan`.
template <unsigned THREADS, typename T>
DEVICE T block_max(T value) {
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps");
    __shared__ T greatest[THREADS / 32];
    for (unsigned delta = 16; delta > 0; delta /= 2) {
        const T other = __shfl_xor_sync(ALL_LANES, value, delta);
        value = other > value ? other : value;
    }
    if (lane() == 0) greatest[warp()] = value;
    __syncthreads();
    for (unsigned i = 0; i < THREADS / 32; i++) value = greatest[i] > value ? greatest[i] : value;
    __syncthreads(); // the next call writes `greatest` again
    return value;
}

// The smallest `value` of the block, for every thread; as `block_scan`.
template <unsigned THREADS, typename T>
DEVICE T block_min(T value) { return ~block_max<THREADS>((T)~value); }

// Copies `bytes` bytes between ranges that do not overlap, of any alignment, by threads 0 to `threads` - 1 of which the
// caller is number `thread`. No byte outside the two ranges is touched. Ends without a barrier.
DEVICE void copy_bytes(void* target, const void* source, uint64_t bytes, unsigned thread, unsigned threads) {
    uint8_t* to = (uint8_t*)target;
    const uint8_t* from = (const uint8_t*)source;
    // Bytes up to a 16-byte edge of the target, then whole words, then the rest.
    uint64_t head = (16 - ((uint64_t)to & 15)) & 15;
    if (head > bytes) head = bytes;
    const uint64_t words = (bytes - head) / 16;
    const uint64_t tail = head + words * 16;
    for (uint64_t i = thread; i < head; i += threads) to[i] = from[i];
    const unsigned skew = (unsigned)((uint64_t)(from + head) & 15);
    uint4* to_words = (uint4*)(to + head);
    if (skew == 0) {
        const uint4* from_words = (const uint4*)(from + head);
        for (uint64_t i = thread; i < words; i += threads) to_words[i] = from_words[i];
    } else if (skew % 4 == 0) {
        for (uint64_t i = thread; i < words; i += threads) {
            const uint32_t* word = (const uint32_t*)(from + head + i * 16);
            to_words[i] = make_uint4(word[0], word[1], word[2], word[3]);
        }
    } else {
        for (uint64_t i = thread; i < words; i += threads) {
            // The aligned words that hold these 16 bytes. The outer two reach past them, which at the ends of `source`
            // would be outside it; there, bytes.
            const uint64_t done = head + i * 16;
            const uint8_t* byte = from + done;
            const unsigned back = skew % 4, shift = back * 8;
            const uint32_t* word = (const uint32_t*)(byte - back);
            const uint32_t first = done >= back ? word[0] : load_u32(byte) << shift;
            const uint32_t last = done + 20 - back <= bytes ? word[4] : load_u32(byte + 12) >> (32 - shift);
            to_words[i] = make_uint4(__funnelshift_r(first, word[1], shift), __funnelshift_r(word[1], word[2], shift),
                                     __funnelshift_r(word[2], word[3], shift), __funnelshift_r(word[3], last, shift));
        }
    }
    for (uint64_t i = tail + thread; i < bytes; i += threads) to[i] = from[i];
}
