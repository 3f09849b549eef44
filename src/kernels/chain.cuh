// PLAIN byte arrays: each value is a 4-byte length and its bytes, so that only the chain of lengths says where a value
// starts. The bytes pass through shared memory in tiles, and one thread follows the chain there.
#pragma once
#include "bytes.cuh"

#define CHAIN_BYTES 4096u
#define CHAIN_VALUES 1024u

// In shared memory. Thread 0 writes all but `tile`, between barriers.
struct Chain {
    uint64_t body;     // of the first length
    uint64_t low;      // nothing before this address is read
    uint32_t bytes;    // of the whole chain
    uint32_t position; // of the next length
    uint64_t tile_at;  // address of the tile's first byte, a multiple of 4
    uint32_t tile_bytes;
    uint32_t fault;
    uint32_t count;    // values found by the last call
    uint32_t done;
    uint32_t start[CHAIN_VALUES];  // of each value's bytes, from `body`
    uint32_t length[CHAIN_VALUES];
    uint32_t tile[CHAIN_BYTES / 4];
};

DEVICE void chain_begin(Chain& chain, uint64_t body, uint64_t low, uint32_t bytes) {
    chain.body = body;
    chain.low = low;
    chain.bytes = bytes;
    chain.position = 0;
    chain.tile_at = 0;
    chain.tile_bytes = 0;
    chain.fault = FAULT_NONE;
    chain.count = 0;
    chain.done = 0;
}

// Follows the chain as far as the tile goes. Thread 0.
DEVICE void chain_walk(Chain& chain, uint32_t wanted) {
    uint32_t count = chain.count;
    uint32_t position = chain.position;
    chain.done = 1;
    while (count < wanted) {
        const uint32_t left = chain.bytes - position;
        if (left == 0) break;
        if (left < 4) {
            chain.fault = FAULT_STRING_LENGTH;
            break;
        }
        const uint64_t offset = chain.body + position - chain.tile_at;
        if (chain.tile_bytes == 0 || offset + 4 > chain.tile_bytes) {
            chain.done = 0;
            break;
        }
        const uint32_t shift = 8 * (uint32_t)(offset & 3);
        uint32_t length = chain.tile[offset / 4] >> shift;
        if (shift) length |= chain.tile[offset / 4 + 1] << (32 - shift);
        if (length > left - 4) {
            chain.fault = FAULT_STRING_LENGTH;
            break;
        }
        chain.start[count] = position + 4;
        chain.length[count] = length;
        ++count;
        position += 4 + length;
    }
    chain.count = count;
    chain.position = position;
}

// Finds the next `wanted` values, or as many as there are. All threads call it and are in step afterwards.
DEVICE void chain_next(Chain& chain, uint32_t wanted) {
    __syncthreads();
    if (threadIdx.x == 0) chain.count = 0;
    for (;;) {
        if (threadIdx.x == 0) chain_walk(chain, wanted);
        __syncthreads();
        if (chain.done) break;
        const uint64_t high = chain.body + chain.bytes;
        const uint64_t from = (chain.body + chain.position) & ~3ull;
        const uint32_t bytes = (uint32_t)min((uint64_t)CHAIN_BYTES, high - from);
        for (uint32_t it = threadIdx.x; it < (bytes + 3) / 4; it += blockDim.x) {
            const uint64_t address = from + 4ull * it;
            uint32_t word = 0;
            if (address >= chain.low && address + 4 <= high) {
                word = *at<const uint32_t>(address);
            } else {
                for (uint32_t byte = 0; byte < 4; ++byte) {
                    if (address + byte >= chain.low && address + byte < high) {
                        word |= (uint32_t)*at<const uint8_t>(address + byte) << (8 * byte);
                    }
                }
            }
            chain.tile[it] = word;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            chain.tile_at = from;
            chain.tile_bytes = bytes;
        }
    }
}
