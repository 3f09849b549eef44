#include "chain.cuh"
#include "indices.cuh"
#include "rows.cuh"

KERNEL(pqgpu_string_refs, StringRefsArgs, 128) {
    if (blockIdx.x >= args.count) return;
    // A page is either dictionary-encoded or PLAIN, or its values have been listed.
    union Source {
        struct { Runs runs; uint32_t indices[TILE_ROWS]; } dictionary;
        Chain plain;
    };
    __shared__ Source source;
    __shared__ Tile tile;
    const PagePart part = at<const PagePart>(args.items)[blockIdx.x];
    const uint32_t index = part.page;
    const Page page = at<const Page>(args.pages)[index];
    const PageState state = at<const PageState>(args.states)[index];
    if (state.values == 0) return;
    const Column column = at<const Column>(args.columns)[page.column];
    const bool dictionary = is_dictionary(page);
    const StringRef* listed = page.expanded ? at<const StringRef>(page.expanded) : nullptr;
    const uint32_t value_offset = (uint32_t)(state.values - page.body);
    // Where the values of a part start only the whole chain before it says, so one block follows it for all parts.
    const bool chained = !dictionary && !listed;
    if (chained && part.part != 0) return;
    Runs& runs = source.dictionary.runs;
    Chain& chain = source.plain;

    const StringRef* entries = nullptr;
    uint32_t entry_count = 0;
    if (dictionary) {
        entries = at<const StringRef>(at<const Page>(args.pages)[page.dictionary].entries);
        entry_count = at<const PageState>(args.states)[page.dictionary].valid;
        if (threadIdx.x == 0) indices_begin(runs, state);
        __syncthreads();
        if (runs.fault) {
            if (threadIdx.x == 0) raise_fault(args.fault, index, value_offset, runs.fault);
            return;
        }
    } else if (chained && threadIdx.x == 0) {
        chain_begin(chain, state.values, page.body, state.value_bytes);
    }

    const uint64_t first = state.first_slot;
    const uint64_t last = first + state.slots;
    const uint64_t validity = state.valid < state.slots || column.ranks ? column.validity : 0;
    uint32_t passed = 0; // values that the chain has passed
    uint32_t value = 0;  // the first that the tile's rows have
    if (part.part != 0 && !column.ranks) {
        value = values_before<128>(validity, first, part_tiles(part.part, part.parts, state).begin);
    }
    for (uint32_t own = part.part; own < (chained ? part.parts : part.part + 1); ++own) {
        const Slots tiles = part_tiles(own, part.parts, state);
        uint64_t bytes = 0;
        for (uint64_t row = tiles.begin; row < tiles.end; row += TILE_ROWS) {
            tile_load(tile, validity, state.valid, row, first, last, column.ranks, value);
            value = tile.end_value;
            // As many values at a time as there is room for: where rows are selected, those of a tile may lie far apart, and a
            // chain must be followed through all between.
            uint32_t window = chained ? passed : tile.first_value;
            bool begins = true;
            do {
                const uint32_t count = listed ? tile.end_value - window : min(TILE_ROWS, tile.end_value - window);
                uint32_t fault = FAULT_NONE;
                uint32_t position = 0;
                if (dictionary) {
                    if (!runs_expand(runs, source.dictionary.indices, window, count)) {
                        fault = runs.fault;
                        position = runs.position;
                    }
                } else if (chained) {
                    chain_next(chain, count);
                    passed += count;
                    fault = chain.fault;
                    if (fault == FAULT_NONE && chain.count < count) fault = FAULT_VALUES_TRUNCATED;
                    position = chain.position;
                }
                if (fault) {
                    if (threadIdx.x == 0) raise_fault(args.fault, index, value_offset + position, fault);
                    return;
                }
                for (uint32_t it = threadIdx.x; it < TILE_ROWS && row + it < last; it += blockDim.x) {
                    if (row + it < first) continue;
                    StringRef ref;
                    ref.address = 0;
                    ref.bytes = 0;
                    ref._pad = 0;
                    if (tile_valid(tile, it)) {
                        const uint32_t from = tile_value(tile, column.ranks, row, it) - window;
                        if (from >= count) continue; // another window has it
                        if (listed) {
                            ref = listed[window + from];
                        } else if (!dictionary) {
                            ref.address = state.values + chain.start[from];
                            ref.bytes = chain.length[from];
                        } else if (source.dictionary.indices[from] < entry_count) {
                            ref = entries[source.dictionary.indices[from]];
                        } else {
                            raise_fault(args.fault, index, value_offset, FAULT_DICTIONARY_INDEX);
                        }
                    } else if (!begins) {
                        continue;
                    }
                    at<StringRef>(column.refs)[row + it] = ref;
                    bytes += ref.bytes;
                }
                window += count;
                begins = false;
            } while (window < tile.end_value);
        }
        const uint64_t total = block_sum<128>(bytes);
        if (threadIdx.x == 0) at<uint64_t>(args.bytes)[blockIdx.x - part.part + own] = total;
    }
}

// Rows of a gather tile: four a thread.
#define GATHER_ROWS 512u

// Sixteen bytes of the output, filled from the low end.
struct Chunk {
    uint64_t low;
    uint64_t high;
};

DEVICE void chunk_put(Chunk& chunk, uint32_t position, uint32_t value) {
    if (position < 8) {
        chunk.low |= (uint64_t)value << (8 * position);
        // A word that crosses the middle.
        if (position > 4) chunk.high |= (uint64_t)value >> (8 * (8 - position));
    } else {
        chunk.high |= (uint64_t)value << (8 * (position - 8));
    }
}

// Every thread writes 16 aligned bytes at a time, whichever strings they come from, so that short and long strings
// keep all threads busy alike.
KERNEL(pqgpu_string_gather, StringGatherArgs, 128) {
    if (blockIdx.x >= args.count) return;
    __shared__ uint64_t address[GATHER_ROWS];
    __shared__ uint64_t start[GATHER_ROWS + 1]; // of each string among the tile's bytes
    const PagePart part = at<const PagePart>(args.items)[blockIdx.x];
    const uint32_t index = part.page;
    const Page page = at<const Page>(args.pages)[index];
    const Column column = at<const Column>(args.columns)[page.column];
    const PageState state = at<const PageState>(args.states)[index];
    const StringRef* refs = at<const StringRef>(column.refs);
    uint64_t base = at<const uint64_t>(args.bases)[blockIdx.x];
    const uint64_t page_end = state.first_slot + state.slots;
    const Slots own = part_slots(part, state);

    for (uint64_t slot = own.begin; slot < own.end; slot += GATHER_ROWS) {
        const uint32_t rows = (uint32_t)min((uint64_t)GATHER_ROWS, own.end - slot);
        __syncthreads();
        for (uint32_t it = threadIdx.x; it < GATHER_ROWS; it += blockDim.x) {
            StringRef ref;
            ref.address = 0;
            ref.bytes = 0;
            if (it < rows) ref = refs[slot + it];
            address[it] = ref.address;
            start[it] = ref.bytes;
        }
        __syncthreads();
        uint64_t sum = 0;
        for (uint32_t it = 0; it < 4; ++it) sum += start[4 * threadIdx.x + it];
        uint64_t bytes;
        uint64_t before = block_scan<128>(sum, bytes);
        for (uint32_t it = 0; it < 4; ++it) {
            const uint64_t own = start[4 * threadIdx.x + it];
            start[4 * threadIdx.x + it] = before;
            before += own;
        }
        if (threadIdx.x == 0) start[GATHER_ROWS] = bytes;
        __syncthreads();

        // Each row's offset; the column's last page adds the end, as does every page of views, since the next page may have
        // a dictionary and so no offsets.
        const bool last = slot + rows == column.rows || (column.values && slot + rows == page_end);
        const uint32_t ends = last ? 1 : 0;
        for (uint32_t it = threadIdx.x; it < rows + ends; it += blockDim.x) {
            if (column.out_width == 4) at<int32_t>(column.offsets)[slot + it] = (int32_t)(base + start[it]);
            else at<int64_t>(column.offsets)[slot + it] = (int64_t)(base + start[it]);
        }

        const uint64_t out = column.data + base;
        const uint64_t end = out + bytes;
        for (uint64_t chunk = (out & ~15ull) + 16ull * threadIdx.x; chunk < end; chunk += 16ull * blockDim.x) {
            const uint64_t from = max(chunk, out);
            const uint64_t to = min(chunk + 16, end);
            uint64_t next = from - out;
            // The last string that starts at or before `next`: never an empty one.
            uint32_t string = 0;
            for (uint32_t step = GATHER_ROWS / 2; step > 0; step /= 2) {
                if (start[string + step] <= next) string += step;
            }
            Chunk value = {0, 0};
            while (next < to - out) {
                while (start[string + 1] <= next) ++string;
                uint64_t in = address[string] + (next - start[string]);
                const uint64_t high = address[string] + (start[string + 1] - start[string]);
                uint64_t left = min(start[string + 1], to - out) - next;
                uint32_t position = (uint32_t)(next + out - chunk);
                next += left;
                while (left > 0) {
                    const uint32_t take = left < 4 ? (uint32_t)left : 4;
                    // Four bytes, the length, lie before every string.
                    const uint32_t word = take == 4 ? load32(in, address[string] - 4, high) : load_by_bytes(in, take);
                    chunk_put(value, position, word);
                    position += take;
                    in += take;
                    left -= take;
                }
            }
            if (to - from == 16) {
                at<uint64_t>(chunk)[0] = value.low;
                at<uint64_t>(chunk)[1] = value.high;
            } else {
                for (uint64_t it = from; it < to; ++it) {
                    const uint32_t byte = (uint32_t)(it - chunk);
                    *at<uint8_t>(it) = (uint8_t)(byte < 8 ? value.low >> (8 * byte) : value.high >> (8 * (byte - 8)));
                }
            }
        }
        base += bytes;
    }
}

// Of the buffers that the views of a column point into, the second: the bodies of its dictionaries. The first has the
// gathered strings of pages without one.
#define VIEW_DICTIONARIES 1u

// A view is 16 bytes: the length, then 12 bytes of the string itself or, of a longer one, its first 4 bytes, the number
// of its buffer and its offset there.
KERNEL(pqgpu_string_views, StringViewsArgs, 128) {
    if (blockIdx.x >= args.count) return;
    const PagePart part = at<const PagePart>(args.items)[blockIdx.x];
    const uint32_t index = part.page;
    const Page page = at<const Page>(args.pages)[index];
    const PageState state = at<const PageState>(args.states)[index];
    const Column column = at<const Column>(args.columns)[page.column];
    const int32_t* offsets = at<const int32_t>(column.offsets);
    const StringRef* refs = at<const StringRef>(column.refs);
    // Entries are not gathered a slot each: the dictionary's body was copied as it is.
    const bool dictionary = is_dictionary(page);
    const uint64_t body = dictionary ? at<const Page>(args.pages)[page.dictionary].body : 0;
    const uint64_t base = at<const uint64_t>(args.bases)[blockIdx.x];
    uint64_t* views = at<uint64_t>(column.values);
    const Slots own = part_slots(part, state);
    for (uint64_t row = own.begin + threadIdx.x; row < own.end; row += blockDim.x) {
        uint32_t start, bytes;
        uint64_t in;
        if (dictionary) {
            in = refs[row].address;
            bytes = refs[row].bytes;
            start = (uint32_t)(base + (in - body));
        } else {
            start = (uint32_t)offsets[row];
            bytes = (uint32_t)offsets[row + 1] - start;
            in = column.data + start;
        }
        const bool fits = bytes <= 12;
        uint64_t low = bytes;
        uint64_t high = fits ? 0 : (uint64_t)start << 32 | (dictionary ? VIEW_DICTIONARIES : 0);
        const uint32_t copied = fits ? bytes : 4;
        for (uint32_t it = 0; it < copied; ++it) {
            const uint64_t byte = *at<const uint8_t>(in + it);
            if (it < 4) low |= byte << (32 + 8 * it);
            else high |= byte << (8 * (it - 4));
        }
        views[2 * row] = low;
        views[2 * row + 1] = high;
    }
}
