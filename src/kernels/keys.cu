#include "indices.cuh"
#include "rows.cuh"

// Where the entries of dictionaries that are kept go: the entries of the column's dictionary pages, and the values of its
// pages without a dictionary, one behind the other in the order of the file. Each is a page of its own, PLAIN or as its
// source is encoded, with a slot for every value. A block a column.
KERNEL(pqgpu_entries, EntriesArgs, 128) {
    if (blockIdx.x >= args.count) return;
    const PageRun run = at<const PageRun>(args.runs)[blockIdx.x];
    uint64_t base = 0;
    for (uint32_t from = run.first; from < run.end; from += blockDim.x) {
        const uint32_t it = from + threadIdx.x;
        PagePair pair;
        pair.page = 0;
        PageState state;
        state.values = 0;
        state.value_bytes = 0;
        state.valid = 0;
        state.rows = 0;
        if (it < run.end) {
            pair = at<const PagePair>(args.items)[it];
            state = at<const PageState>(args.states)[pair.other];
            const Page source = at<const Page>(args.pages)[pair.other];
            // Entries of fixed width need no counting: the host checked that the body holds them.
            if (source.kind == PAGE_DICTIONARY && state.values == 0 && !has_fault(args.fault, pair.other)) {
                state.values = source.body;
                state.value_bytes = source.body_bytes;
                state.valid = source.num_values;
            }
        }
        state.slots = state.values ? state.valid : 0;
        state.string_bytes = 0;
        uint64_t total;
        state.first_slot = base + block_scan<128>((uint64_t)state.slots, total);
        if (it < run.end) at<PageState>(args.states)[pair.page] = state;
        base += total;
    }
}

DEVICE void store_key(uint64_t keys, uint64_t slot, uint32_t width, uint64_t key) {
    switch (width) {
        case 1: at<uint8_t>(keys)[slot] = (uint8_t)key; break;
        case 2: at<uint16_t>(keys)[slot] = (uint16_t)key; break;
        case 4: at<uint32_t>(keys)[slot] = (uint32_t)key; break;
        default: at<uint64_t>(keys)[slot] = key;
    }
}

// Keys of a page: indices into its dictionary, or the numbers of its own values, counted from where those entries lie.
KERNEL(pqgpu_keys, KeysArgs, 128) {
    if (blockIdx.x >= args.count) return;
    __shared__ Runs runs;
    __shared__ Tile tile;
    __shared__ uint32_t indices[TILE_ROWS];
    const PagePart part = at<const PagePart>(args.items)[blockIdx.x];
    const uint32_t index = part.page;
    const Page page = at<const Page>(args.pages)[index];
    const PageState state = at<const PageState>(args.states)[index];
    if (state.values == 0) return;
    // Not in registers: they are scarce here.
    __shared__ uint64_t keys, ranks, base;
    __shared__ uint32_t width, entries;
    const Column& column = at<const Column>(args.columns)[page.column];
    if (threadIdx.x == 0) {
        keys = column.values;
        ranks = column.ranks;
        width = column.out_width;
        base = at<const PageState>(args.states)[part.other].first_slot;
        entries = at<const PageState>(args.states)[part.other].slots;
    }
    __syncthreads();
    const bool dictionary = is_dictionary(page);
    const uint32_t value_offset = (uint32_t)(state.values - page.body);
    if (dictionary) {
        if (threadIdx.x == 0) indices_begin(runs, state);
        __syncthreads();
        if (runs.fault) {
            if (threadIdx.x == 0) raise_fault(args.fault, index, value_offset, runs.fault);
            return;
        }
    }

    const uint64_t first = state.first_slot;
    const uint64_t last = first + state.slots;
    const uint64_t validity = state.valid < state.slots || ranks ? column.validity : 0;
    const Slots own = part_tiles(part.part, part.parts, state);
    uint32_t value = ranks ? 0 : values_before<128>(validity, first, own.begin); // the first that the tile's rows have
    for (uint64_t row = own.begin; row < own.end; row += TILE_ROWS) {
        tile_load(tile, validity, state.valid, row, first, last, ranks, value);
        value = tile.end_value;
        // As many values at a time as there is room for: where rows are selected, those of a tile may lie far apart.
        uint32_t window = tile.first_value;
        bool begins = true;
        do {
            const uint32_t count = dictionary ? min(TILE_ROWS, tile.end_value - window) : tile.end_value - window;
            if (dictionary && !runs_expand(runs, indices, window, count)) {
                if (threadIdx.x == 0) raise_fault(args.fault, index, value_offset + runs.position, runs.fault);
                return;
            }
            for (uint32_t it = threadIdx.x; it < TILE_ROWS && row + it < last; it += blockDim.x) {
                if (row + it < first) continue;
                if (!tile_valid(tile, it)) {
                    if (begins) store_key(keys, row + it, width, 0);
                    continue;
                }
                uint32_t key = tile_value(tile, ranks, row, it);
                if (key - window >= count) continue; // another window has it
                if (dictionary) key = indices[key - window];
                if (key >= entries) {
                    raise_fault(args.fault, index, value_offset, FAULT_DICTIONARY_INDEX);
                    key = 0;
                }
                store_key(keys, row + it, width, base + key);
            }
            window += count;
            begins = false;
        } while (window < tile.end_value);
    }
}
