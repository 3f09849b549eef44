// What every kernel includes. The same source is compiled by NVRTC for a GPU and, against simt.h, by the C++ compiler.
#pragma once
#include "abi.h"

#if defined(__CUDACC__)
#define DEVICE static __device__ __forceinline__
// A kernel: one argument struct, by value, and a fixed block size.
#define KERNEL(name, Args, threads) extern "C" __global__ void __launch_bounds__(threads) name(const Args args)
#endif

// Lowers the fault word to this fault.
DEVICE void raise_fault(uint64_t slot, uint32_t page, uint64_t offset, uint32_t kind) {
    const uint64_t limit = (1ull << 28) - 1;
    const uint64_t word = ((uint64_t)page << 36) | ((offset < limit ? offset : limit) << 8) | kind;
    atomicMin((unsigned long long*)slot, (unsigned long long)word);
}

template <typename T>
DEVICE T* at(uint64_t address) { return (T*)address; }
