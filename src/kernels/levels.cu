#include "levels.cuh"
#include "rows.cuh"

// Bits [row, row + 32) of the window, as far as it holds them: bit 0 is row `row`.
DEVICE uint32_t window_bits(const Runs& runs, uint32_t row, uint32_t end) {
    uint32_t bits = 0;
    uint32_t next = row;
    for (uint32_t run = runs_find(runs, row); next < end; ++run) {
        const uint32_t take = min(runs.start[run + 1], end) - next;
        uint32_t part;
        if (runs.packed[run]) {
            part = load_bits(runs.data + runs.value[run], next - runs.start[run], take, runs.data, runs.data + runs.bytes);
        } else {
            part = runs.value[run] ? 0xffffffffu >> (32 - take) : 0;
        }
        bits |= part << (next - row);
        next += take;
    }
    return bits;
}

// Levels are decoded here even where a header claims that there are no nulls.
KERNEL(pqgpu_levels, LevelsArgs, 128) {
    if (blockIdx.x >= args.count) return;
    __shared__ Runs runs;
    const uint32_t index = at<const uint32_t>(args.items)[blockIdx.x];
    const Page page = at<const Page>(args.pages)[index];
    const Column column = at<const Column>(args.columns)[page.column];

    const Sections found = sections(page, column);

    __shared__ bool malformed;
    if (threadIdx.x == 0) malformed = has_fault(args.fault, index);
    __syncthreads();

    PageState state;
    state.values = 0;
    state.value_bytes = 0;
    state.valid = 0;
    state.string_bytes = 0;
    state.first_slot = page.first_row;
    state.slots = page.num_values;
    state.rows = page.num_values;
    if (!found.fits || malformed) {
        if (threadIdx.x == 0) {
            if (!malformed) raise_fault(args.fault, index, 0, FAULT_LEVELS);
            at<PageState>(args.states)[index] = state;
        }
        return;
    }

    uint64_t valid = page.num_values;
    bool fault = false;
    if (column.max_def > 0 && page.num_values > 0) {
        if (threadIdx.x == 0) {
            runs_begin(runs, found.def, found.def_bytes, 1, RUNS_LEVELS, page.num_values);
            if (page.kind == PAGE_DATA_V1 && page.def_encoding == ENCODING_BIT_PACKED) runs_packed(runs);
        }
        uint64_t mine = 0;
        uint32_t done = 0;
        while (done < page.num_values) {
            if (threadIdx.x == 0 && done == runs_end(runs)) runs_next(runs);
            __syncthreads();
            fault = runs.fault != 0;
            if (fault) break;
            const uint32_t end = runs_end(runs);
            // The window's rows by words of the column: a word that the window does not fill is shared with others.
            const uint64_t first = page.first_row + done;
            const uint64_t last = page.first_row + end;
            for (uint64_t word = first / 32 + threadIdx.x; word * 32 < last; word += blockDim.x) {
                const uint64_t low = max(word * 32, first);
                const uint64_t high = min(word * 32 + 32, last);
                const uint32_t bits = window_bits(runs, (uint32_t)(low - page.first_row), (uint32_t)(high - page.first_row));
                uint32_t* out = at<uint32_t>(column.validity) + word;
                if (high - low == 32) *out = bits;
                else if (bits) atomicOr(out, bits << (uint32_t)(low - word * 32));
                mine += __popc(bits);
            }
            done = end;
            __syncthreads();
        }
        valid = block_sum<128>(mine);
    }
    if (threadIdx.x == 0) {
        if (fault) {
            raise_fault(args.fault, index, found.def - page.body + runs.position, FAULT_LEVELS);
        } else if (valid > page.stated_values) {
            // As arrow-rs, which takes no more values from a page than its header promises.
            raise_fault(args.fault, index, found.value_offset, FAULT_VALUES_TRUNCATED);
        } else {
            state.values = page.body + found.value_offset;
            state.value_bytes = page.body_bytes - (uint32_t)found.value_offset;
            state.valid = (uint32_t)valid;
        }
        at<PageState>(args.states)[index] = state;
    }
}
