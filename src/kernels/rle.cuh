// The RLE / bit-packed hybrid, shared by levels, dictionary indices and booleans (parquet-format, Encodings.md, "RLE").
//
// Run headers form a chain, so one thread reads them, a window of runs at a time, into shared memory; the values of the
// window are then expanded by all threads.
#pragma once
#include "bytes.cuh"

#define RUNS 64u

// Longest run that arrow-rs accepts; the format allows no longer one either.
#define MAX_RUN_VALUES 0x7fffffffull
// Bytes of the longest varint that arrow-rs reads.
#define MAX_VARINT_BYTES 10u

// What the runs encode decides what arrow-rs makes of odd ones.
enum RunKind : uint32_t {
    RUNS_LEVELS = 0, // empty runs are skipped; any value but 0 means 1
    RUNS_VALUES = 1, // an empty RLE run is padding and ends the runs, unless it comes first; values must fit the width
};

// A window of runs, in shared memory. Thread 0 writes, between barriers.
struct Runs {
    uint64_t data;     // address of the first run
    uint32_t bytes;    // of all runs
    uint32_t width;    // bits of a value
    uint32_t kind;     // RunKind
    uint32_t needed;   // values that the runs must hold
    uint32_t position; // byte of the next header
    uint32_t fault;    // FaultKind
    uint32_t count;    // runs in the window
    uint32_t start[RUNS + 1]; // first value of each run, and of the window after this one
    uint32_t value[RUNS];     // RLE: the value; bit-packed: byte of the first value
    uint8_t packed[RUNS];
};

DEVICE void runs_begin(Runs& runs, uint64_t data, uint32_t bytes, uint32_t width, uint32_t kind, uint32_t needed) {
    runs.data = data;
    runs.bytes = bytes;
    runs.width = width;
    runs.kind = kind;
    runs.needed = needed;
    runs.position = 0;
    runs.fault = FAULT_NONE;
    runs.count = 0;
    runs.start[0] = 0;
}

// The value after the window's last.
DEVICE uint32_t runs_end(const Runs& runs) { return runs.start[runs.count]; }

// Makes the whole BIT_PACKED level section one run. arrow-rs reads its bits lowest first, as in the hybrid.
DEVICE void runs_packed(Runs& runs) {
    runs.count = 1;
    runs.start[1] = runs.needed;
    runs.value[0] = 0;
    runs.packed[0] = 1;
    if (((uint64_t)runs.needed * runs.width + 7) / 8 > runs.bytes) runs.fault = FAULT_LEVELS;
}

// Reads the next window. Unless it sets the fault, it adds at least one value while values are missing.
DEVICE void runs_next(Runs& runs) {
    const uint8_t* data = at<const uint8_t>(runs.data);
    const uint32_t short_fault = runs.kind == RUNS_LEVELS ? FAULT_LEVELS : FAULT_VALUES_TRUNCATED;
    const uint32_t run_fault = runs.kind == RUNS_LEVELS ? FAULT_LEVELS : FAULT_RLE;
    const uint32_t value_bytes = (runs.width + 7) / 8;
    uint32_t next = runs_end(runs);
    uint32_t count = 0;
    uint32_t position = runs.position;
    runs.start[0] = next;
    while (count < RUNS && next < runs.needed) {
        uint64_t header = 0;
        uint32_t shift = 0;
        uint32_t byte = 0x80;
        while (byte & 0x80) {
            if (position == runs.bytes) {
                runs.fault = short_fault;
                return;
            }
            if (shift == 7 * MAX_VARINT_BYTES) {
                runs.fault = run_fault;
                return;
            }
            byte = data[position++];
            header |= (uint64_t)(byte & 0x7f) << shift;
            shift += 7;
        }
        const uint32_t missing = runs.needed - next;
        uint64_t values = header >> 1;
        if (header & 1) {
            if (values > MAX_RUN_VALUES / 8) {
                runs.fault = run_fault;
                return;
            }
            values *= 8;
            // Writers may cut the last group short: only the bits of values that are needed must be there.
            const uint64_t used = values < missing ? values : missing;
            if ((used * runs.width + 7) / 8 > runs.bytes - position) {
                runs.fault = short_fault;
                return;
            }
            if (used != 0) {
                runs.value[count] = position;
                runs.packed[count] = 1;
            }
            const uint64_t bytes = values / 8 * runs.width;
            position = bytes < runs.bytes - position ? position + (uint32_t)bytes : runs.bytes;
        } else {
            if (header == 0 && runs.kind == RUNS_VALUES) {
                if (position == 1) continue;
                runs.fault = short_fault;
                return;
            }
            if (values > MAX_RUN_VALUES || value_bytes > runs.bytes - position) {
                runs.fault = run_fault;
                return;
            }
            uint32_t value = load_by_bytes(runs.data + position, value_bytes);
            position += value_bytes;
            if (runs.kind == RUNS_LEVELS) {
                value = value != 0;
            } else if (runs.width < 32 && value >> runs.width != 0) {
                runs.fault = run_fault;
                return;
            }
            runs.value[count] = value;
            runs.packed[count] = 0;
        }
        if (values == 0) continue;
        next += values < missing ? (uint32_t)values : missing;
        runs.start[++count] = next;
    }
    runs.count = count;
    runs.position = position;
}

// The run of the window that holds value `index`.
DEVICE uint32_t runs_find(const Runs& runs, uint32_t index) {
    uint32_t low = 0;
    uint32_t high = runs.count;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (runs.start[middle] <= index) low = middle; else high = middle;
    }
    return low;
}

// Value `index` of the window.
DEVICE uint32_t runs_value(const Runs& runs, uint32_t index) {
    const uint32_t run = runs_find(runs, index);
    if (!runs.packed[run]) return runs.value[run];
    const uint64_t bit = (uint64_t)(index - runs.start[run]) * runs.width;
    return load_bits(runs.data + runs.value[run], bit, runs.width, runs.data, runs.data + runs.bytes);
}

// Expands values [first, first + count) into `out`, which lie behind those of the call before. All threads call it, with
// the same arguments. False: a fault.
DEVICE bool runs_expand(Runs& runs, uint32_t* out, uint32_t first, uint32_t count) {
    const uint32_t end = first + count;
    uint32_t done = first;
    while (done < end) {
        if (threadIdx.x == 0 && done >= runs_end(runs)) runs_next(runs);
        __syncthreads();
        if (runs.fault) return false;
        const uint32_t limit = min(runs_end(runs), end);
        for (uint32_t it = done + threadIdx.x; it < limit; it += blockDim.x) out[it - first] = runs_value(runs, it);
        done = max(done, limit);
        __syncthreads();
    }
    return true;
}

// What arrow-rs checks of values that nothing asks for: the first run is read as soon as a page is opened.
DEVICE void runs_check_first(Runs& runs) {
    runs.needed = 1;
    if (runs.bytes != 0 && *at<const uint8_t>(runs.data) != 0) runs_next(runs);
    if (runs.fault == FAULT_VALUES_TRUNCATED) runs.fault = FAULT_NONE;
    runs.needed = 0;
    runs.count = 0;
    runs.start[0] = 0;
}
