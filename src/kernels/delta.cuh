// DELTA_BINARY_PACKED (parquet-format, Encodings.md, "Delta Encoding"): a header, then blocks of miniblocks.
//
// Where a block lies is known when the one before it has been read. So one thread reads block headers, a window of
// miniblocks at a time, into shared memory; all threads unpack the window's deltas and add them up.
#pragma once
#include "bytes.cuh"

#define DELTA_MINIBLOCKS 64u
#define DELTA_EACH 8u // values of a thread at a time; a miniblock has a multiple of 32

// Bytes of the longest varint that arrow-rs reads.
#define DELTA_VARINT_BYTES 10u

// A stream of deltas, and a window of its miniblocks, in shared memory. Thread 0 writes, between barriers.
struct Delta {
    uint64_t data; // address of the header
    uint32_t bytes; // that the stream may have
    uint32_t fault;
    uint64_t position;        // of the next byte: of a block's header, or of a miniblock's deltas
    uint64_t widths;          // position of the next bit width, while a block has miniblocks left
    uint64_t miniblocks_left; // in the block
    uint64_t miniblocks;      // of a block
    uint64_t values;          // of a miniblock
    uint64_t count;           // values of the stream, as its header says
    uint64_t needed;          // deltas that must be there: of the first values, without the very first
    uint64_t next;            // deltas in the miniblocks read so far
    uint64_t first;           // the first value
    uint64_t min_delta;
    uint32_t value_bits;
    uint32_t window;                   // miniblocks in the window
    uint64_t start[DELTA_MINIBLOCKS];  // first delta of each
    uint64_t offset[DELTA_MINIBLOCKS]; // of its bits
    uint64_t minimum[DELTA_MINIBLOCKS];
    uint8_t width[DELTA_MINIBLOCKS];
};

DEVICE uint64_t delta_varint(Delta& delta) {
    uint64_t value = 0;
    for (uint32_t it = 0; it < DELTA_VARINT_BYTES; ++it) {
        if (delta.position >= delta.bytes) break;
        const uint64_t byte = *at<const uint8_t>(delta.data + delta.position++);
        value |= (byte & 0x7f) << (7 * it);
        if (byte < 0x80) return value;
    }
    delta.fault = FAULT_DELTA;
    return 0;
}

// A zigzag integer that fits `bits` bits.
DEVICE uint64_t delta_zigzag(Delta& delta) {
    const uint64_t value = delta_varint(delta);
    const int64_t number = (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
    if (delta.value_bits == 32 && number != (int32_t)number) delta.fault = FAULT_DELTA;
    return (uint64_t)number;
}

// Reads the header of a stream of values of 32 or 64 bits. Thread 0.
DEVICE void delta_begin(Delta& delta, uint64_t data, uint32_t bytes, uint32_t value_bits) {
    delta.data = data;
    delta.bytes = bytes;
    delta.fault = FAULT_NONE;
    delta.position = 0;
    delta.miniblocks_left = 0;
    delta.next = 0;
    delta.needed = 0;
    delta.window = 0;
    delta.value_bits = value_bits;
    const uint64_t block = delta_varint(delta);
    delta.miniblocks = delta_varint(delta);
    delta.count = delta_varint(delta);
    delta.first = delta_zigzag(delta);
    if (delta.fault) return;
    // As arrow-rs checks it. Larger blocks than 2^31 values have no use, and their sizes would not stay within 64 bits.
    if (delta.miniblocks == 0 || block % 128 != 0 || block % delta.miniblocks != 0 || block > 1ull << 31) {
        delta.fault = FAULT_DELTA;
        return;
    }
    delta.values = block / delta.miniblocks;
    if (delta.values % 32 != 0) delta.fault = FAULT_DELTA;
}

// Reads the next window of miniblocks. Unless it sets the fault, it adds at least one while deltas are missing. Thread 0.
DEVICE void delta_next(Delta& delta) {
    delta.window = 0;
    if (delta.values == 0 && delta.next < delta.needed) delta.fault = FAULT_DELTA;
    while (delta.fault == FAULT_NONE && delta.window < DELTA_MINIBLOCKS && delta.next < delta.needed) {
        if (delta.miniblocks_left == 0) {
            delta.min_delta = delta_zigzag(delta);
            if (delta.fault) return;
            if (delta.miniblocks > delta.bytes - delta.position) {
                delta.fault = FAULT_DELTA;
                return;
            }
            delta.widths = delta.position;
            delta.position += delta.miniblocks;
            delta.miniblocks_left = delta.miniblocks;
        }
        const uint32_t width = *at<const uint8_t>(delta.data + delta.widths++);
        --delta.miniblocks_left;
        if (width > delta.value_bits) {
            delta.fault = FAULT_DELTA;
            return;
        }
        // The last miniblock may be cut short: only the bits that are needed must be there.
        const uint64_t missing = delta.needed - delta.next;
        const uint64_t used = missing < delta.values ? missing : delta.values;
        const uint64_t left = delta.position < delta.bytes ? delta.bytes - delta.position : 0;
        if ((used * width + 7) / 8 > left) {
            delta.fault = FAULT_VALUES_TRUNCATED;
            return;
        }
        delta.start[delta.window] = delta.next;
        delta.offset[delta.window] = delta.position;
        delta.minimum[delta.window] = delta.min_delta;
        delta.width[delta.window] = (uint8_t)width;
        ++delta.window;
        delta.next += delta.values;
        delta.position += delta.values / 8 * width; // a multiple of 32 values
        // Widths of miniblocks without values say nothing.
        if (delta.next >= delta.needed) delta.miniblocks_left = 0;
    }
}

// `width` bits, at most 64, from bit `position` on; all of them lie inside [low, high).
DEVICE uint64_t delta_bits(uint64_t address, uint64_t position, uint32_t width, uint64_t low, uint64_t high) {
    if (width <= 32) return load_bits(address, position, width, low, high);
    const uint64_t first = load_bits(address, position, 32, low, high);
    return first | (uint64_t)load_bits(address, position + 32, width - 32, low, high) << 32;
}

// Goes through the first `needed` values of a stream, of which its header promises as many. For every DELTA_EACH of
// them, `each` is called by a thread with the index of the first, the values, and how many there are; in a round all
// threads call it, some with none. All threads call this. False: a fault.
template <unsigned THREADS, typename Each>
DEVICE bool delta_decode(Delta& delta, uint64_t needed, Each each) {
    if (needed == 0) return true;
    __syncthreads();
    if (threadIdx.x == 0) delta.needed = needed - 1;
    uint64_t last = delta.first;
    {
        uint64_t value[DELTA_EACH];
        value[0] = last;
        each(0ull, value, threadIdx.x == 0 ? 1u : 0u);
    }
    uint64_t done = 0;
    while (done < needed - 1) {
        __syncthreads();
        if (threadIdx.x == 0) delta_next(delta);
        __syncthreads();
        if (delta.fault) return false;
        const uint64_t end = min(delta.next, needed - 1);
        for (; done < end; done += THREADS * DELTA_EACH) {
            const uint64_t mine = done + threadIdx.x * DELTA_EACH;
            const uint32_t count = mine < end ? (uint32_t)min((uint64_t)DELTA_EACH, end - mine) : 0;
            uint64_t value[DELTA_EACH];
            uint64_t sum = 0;
            if (count != 0) {
                // Miniblocks start at multiples of 32 deltas, so the thread's lie in one.
                uint32_t low = 0;
                uint32_t high = delta.window;
                while (high - low > 1) {
                    const uint32_t middle = (low + high) / 2;
                    if (delta.start[middle] <= mine) low = middle; else high = middle;
                }
                const uint32_t width = delta.width[low];
                const uint64_t minimum = delta.minimum[low];
                const uint64_t bits = (mine - delta.start[low]) * width;
                const uint64_t address = delta.data + delta.offset[low];
                for (uint32_t it = 0; it < DELTA_EACH; ++it) {
                    if (it < count) {
                        sum += minimum;
                        if (width != 0) {
                            sum += delta_bits(address, bits + it * width, width, delta.data, delta.data + delta.bytes);
                        }
                    }
                    value[it] = sum;
                }
            }
            uint64_t total;
            const uint64_t before = last + block_scan<THREADS>(sum, total);
            for (uint32_t it = 0; it < DELTA_EACH; ++it) value[it] += before;
            last += total;
            each(mine + 1, value, count);
        }
        done = end;
    }
    __syncthreads();
    return true;
}

// Where the stream ends, once all its values have been decoded: behind its last miniblock, the padding included.
DEVICE uint64_t delta_end(const Delta& delta) { return delta.position; }
