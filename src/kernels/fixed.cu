#include "indices.cuh"
#include "rows.cuh"

// Julian day of 1970-01-01 and nanoseconds of a day, as in Int96 of arrow-rs.
#define JULIAN_DAY_OF_EPOCH 2440588
#define NANOS_IN_DAY 86400000000000ll

// Where the values of a page are. Value `i` is at first + i * stride, and loads stay inside [low, high).
struct Values {
    uint64_t first;
    uint64_t low;
    uint64_t high;
    uint32_t stride;
};

DEVICE void store_bytes(uint64_t out, uint64_t in, uint32_t bytes) {
    for (uint32_t it = 0; it < bytes; ++it) *at<uint8_t>(out + it) = *at<const uint8_t>(in + it);
}

DEVICE void store_copy(uint64_t out, uint64_t in, uint32_t bytes, const Values& values) {
    if (bytes == 4) {
        *at<uint32_t>(out) = load32(in, values.low, values.high);
    } else if (bytes % 8 == 0 && out % 8 == 0) {
        for (uint32_t it = 0; it < bytes; it += 8) *at<uint64_t>(out + it) = load64(in + it, values.low, values.high);
    } else {
        store_bytes(out, in, bytes);
    }
}

// A signed integer of `bytes` bytes, at most 8.
DEVICE int64_t load_signed(uint64_t in, uint32_t bytes, const Values& values) {
    if (bytes == 4) return (int32_t)load32(in, values.low, values.high);
    if (bytes == 8) return (int64_t)load64(in, values.low, values.high);
    uint64_t value = 0;
    for (uint32_t it = 0; it < bytes; ++it) value |= (uint64_t)*at<const uint8_t>(in + it) << (8 * it);
    const uint32_t unused = 64 - 8 * bytes;
    return (int64_t)(value << unused) >> unused;
}

// Stores the low `bytes` bytes of a sign-extended value.
DEVICE void store_signed(uint64_t out, int64_t value, uint32_t bytes) {
    switch (bytes) {
        case 1: *at<int8_t>(out) = (int8_t)value; break;
        case 2: *at<int16_t>(out) = (int16_t)value; break;
        case 4: *at<int32_t>(out) = (int32_t)value; break;
        default:
            *at<int64_t>(out) = value;
            for (uint32_t it = 8; it < bytes; it += 8) *at<int64_t>(out + it) = value >> 63;
    }
}

// Apart from the rest: 64-bit division is a long piece of code, and inlined it takes the registers of all conversions.
static __device__ __noinline__ int64_t divide(int64_t value, int64_t divisor) { return value / divisor; }

// Writes one value of any conversion but CONVERT_BOOL.
DEVICE void convert(uint64_t out, uint64_t in, const Column& column, const Values& values) {
    switch (column.conversion) {
        case CONVERT_COPY: store_copy(out, in, column.out_width, values); break;
        case CONVERT_COPY_TAIL:
            store_copy(out, in + column.in_width - column.out_width, column.out_width, values);
            break;
        case CONVERT_SIGN_EXTEND:
            store_signed(out, load_signed(in, column.in_width, values), column.out_width);
            break;
        case CONVERT_BIG_ENDIAN: {
            // Words of the result from the last input bytes backwards; what the input lacks is its sign.
            const uint64_t sign = *at<const uint8_t>(in) & 0x80 ? ~0ull : 0;
            const uint32_t step = column.out_width < 8 ? column.out_width : 8;
            for (uint32_t low = 0; low < column.out_width; low += step) {
                uint64_t word = 0;
                for (uint32_t it = 0; it < step; ++it) {
                    const uint32_t from_end = low + it + 1;
                    const uint64_t byte =
                        from_end <= column.in_width ? *at<const uint8_t>(in + column.in_width - from_end) : sign & 0xff;
                    word |= byte << (8 * it);
                }
                store_signed(out + low, (int64_t)word, step);
            }
            break;
        }
        case CONVERT_INT96_NANOS: {
            const int64_t nanos = (int64_t)((uint64_t)load32(in, values.low, values.high) |
                                            (uint64_t)load32(in + 4, values.low, values.high) << 32);
            const int64_t day = (int32_t)load32(in + 8, values.low, values.high);
            // Unsigned, since arrow-rs wraps.
            const uint64_t days = (uint64_t)(day - JULIAN_DAY_OF_EPOCH) * (uint64_t)divide(NANOS_IN_DAY, column.factor);
            *at<uint64_t>(out) = days + (uint64_t)divide(nanos, column.factor);
            break;
        }
        case CONVERT_DIVIDE:
            *at<int64_t>(out) = divide(load_signed(in, column.in_width, values), column.factor);
            break;
        case CONVERT_MULTIPLY:
            *at<uint64_t>(out) = (uint64_t)load_signed(in, column.in_width, values) * (uint64_t)column.factor;
            break;
    }
}

KERNEL(pqgpu_fixed, FixedArgs, 128) {
    if (blockIdx.x >= args.count) return;
    __shared__ Runs runs;
    __shared__ Tile tile;
    __shared__ uint32_t indices[TILE_ROWS];
    const PagePart part = at<const PagePart>(args.items)[blockIdx.x];
    const uint32_t index = part.page;
    const Page page = at<const Page>(args.pages)[index];
    const PageState state = at<const PageState>(args.states)[index];
    if (state.values == 0) return;
    __shared__ Column column; // not in registers: they are scarce here
    if (threadIdx.x == 0) column = at<const Column>(args.columns)[page.column];
    __syncthreads();
    const bool dictionary = is_dictionary(page);
    const bool boolean = column.conversion == CONVERT_BOOL;
    const bool runs_of_values = dictionary || page.encoding == ENCODING_RLE;
    const uint32_t value_offset = page.expanded ? 0 : (uint32_t)(state.values - page.body);

    // Where values are read, and whether all that the levels ask for are there.
    Values values;
    uint32_t entries = boolean ? 2 : 0;
    uint32_t fault = FAULT_NONE;
    values.stride = column.in_width;
    if (runs_of_values) {
        if (dictionary) {
            // The host checked that the dictionary's body holds this many values.
            const Page from = at<const Page>(args.pages)[page.dictionary];
            values.first = values.low = from.body;
            values.high = from.body + from.body_bytes;
            entries = from.num_values;
        }
        if (threadIdx.x == 0) {
            if (dictionary) indices_begin(runs, state); else booleans_begin(runs, state);
        }
        __syncthreads();
        fault = runs.fault;
    } else {
        values.first = state.values;
        values.low = page.expanded ? state.values : page.body;
        values.high = state.values + state.value_bytes;
        // arrow-rs sizes the pages of fixed-length byte arrays exactly, V2 pages by what their header states.
        const bool exact = (column.flags & COLUMN_FIXED_LEN) && !page.expanded;
        const uint64_t count = exact && page.kind == PAGE_DATA_V2 ? page.stated_values : state.valid;
        const uint64_t needed = boolean ? (count + 7) / 8 : count * column.in_width;
        if (exact && needed != state.value_bytes) {
            // Old writers put a length before each value; arrow-rs reads that when the page's size proves it.
            values.stride = column.in_width + 4;
            values.first += 4;
            if (count * values.stride != state.value_bytes) fault = FAULT_VALUES_TRUNCATED;
        } else if (needed > state.value_bytes) {
            fault = FAULT_VALUES_TRUNCATED;
        }
    }
    if (fault) {
        if (threadIdx.x == 0) raise_fault(args.fault, index, value_offset, fault);
        return;
    }
    const bool prefixed = !runs_of_values && values.stride != column.in_width;

    const uint64_t first = state.first_slot;
    const uint64_t last = first + state.slots;
    const uint64_t validity = state.valid < state.slots || column.ranks ? column.validity : 0;
    const Slots own = part_tiles(part.part, part.parts, state);
    // The first that the tile's rows have.
    uint32_t value = column.ranks ? 0 : values_before<128>(validity, first, own.begin);
    for (uint64_t row = own.begin; row < own.end; row += TILE_ROWS) {
        tile_load(tile, validity, state.valid, row, first, last, column.ranks, value);
        value = tile.end_value;
        // As many values at a time as there is room for: where rows are selected, those of a tile may lie far apart.
        uint32_t window = tile.first_value;
        bool again;
        do {
            const uint32_t count = runs_of_values ? min(TILE_ROWS, tile.end_value - window) : tile.end_value - window;
            const bool begins = window == tile.first_value;
            if (runs_of_values && !runs_expand(runs, indices, window, count)) {
                if (threadIdx.x == 0) raise_fault(args.fault, index, value_offset + runs.position, runs.fault);
                return;
            }
            for (uint32_t it = threadIdx.x; it < TILE_ROWS && row + it < ((last + 31) & ~31ull); it += blockDim.x) {
                const bool present = tile_valid(tile, it);
                uint32_t from = 0;
                bool known = present;
                bool later = false; // or before: another window has the value
                if (present) {
                    from = tile_value(tile, column.ranks, row, it);
                    later = from - window >= count;
                    if (later) {
                        known = false;
                    } else if (runs_of_values) {
                        from = indices[from - window];
                        if (dictionary && from >= entries) {
                            raise_fault(args.fault, index, value_offset, FAULT_DICTIONARY_INDEX);
                            known = false;
                        }
                    }
                }
                if (boolean) {
                    bool bit = false;
                    if (known) bit = runs_of_values ? from != 0 : *at<const uint8_t>(values.first + from / 8) >> (from % 8) & 1;
                    // A warp holds the 32 rows of one word of the output, and all its lanes are here.
                    const uint32_t word = __ballot_sync(ALL_LANES, bit);
                    if (lane() == 0) {
                        uint32_t* out = at<uint32_t>(column.values) + (row + it) / 32;
                        if (begins && row + it >= first && row + it + 32 <= last) *out = word;
                        else if (word) atomicOr(out, word);
                    }
                    continue;
                }
                if (row + it < first || row + it >= last || later) continue;
                const uint64_t out = column.values + (row + it) * column.out_width;
                if (!known) {
                    if (!begins) continue;
                    for (uint32_t byte = 0; byte < column.out_width; ++byte) *at<uint8_t>(out + byte) = 0;
                    continue;
                }
                const uint64_t in = values.first + (uint64_t)from * values.stride;
                if (prefixed && load_by_bytes(in - 4, 4) != column.in_width) {
                    raise_fault(args.fault, index, value_offset, FAULT_VALUES_TRUNCATED);
                }
                convert(out, in, column, values);
            }
            window += count;
            again = window < tile.end_value;
        } while (again);
    }
}
