// Columns of which the levels say more than which rows are null: below lists and structs, and all of a scan that selects
// rows. Their levels become bytes once, and the other kernels read those: one strikes out rows that are not selected, one
// counts slots, from which the host sizes the arrays and knows where each page's slots start, and one writes list offsets
// and validity bits there. See Node in abi.h for what a slot is.
#include "levels.cuh"

static constexpr unsigned THREADS = 128; // as in kernels/mod.rs
static constexpr unsigned EACH = 8;      // positions of a thread in a tile
static constexpr unsigned TILE = THREADS * EACH;

// In the place of the repetition level of a row that is not selected: no slot of any class has so large a one.
static constexpr uint8_t STRUCK_OUT = 255;

// A fixed-size list that is not there counts for no more slots than this, so that sums over a page cannot wrap around.
// More are refused by the host.
static constexpr uint64_t MOST_SLOTS = 1ull << 32;

// The slots of class `at_class` for which a position stands.
DEVICE uint64_t slots_at(const Node* nodes, uint32_t at_class, uint32_t def, uint32_t rep) {
    uint64_t absent = 1;
    for (uint32_t it = at_class; it > 0; --it) {
        const Node& list = nodes[it - 1];
        if (def >= list.def && rep <= list.rep) return absent;
        if (!list.is_fixed_size) return 0;
        absent *= list.size;
        if (absent > MOST_SLOTS) absent = MOST_SLOTS;
    }
    return rep == 0 ? absent : 0;
}

// Whether the position itself is a slot of the class, and does not stand for absent ones.
DEVICE bool is_slot(const Node* nodes, uint32_t at_class, uint32_t def, uint32_t rep) {
    if (at_class == 0) return rep == 0;
    return def >= nodes[at_class - 1].def && rep <= nodes[at_class - 1].rep;
}

// Expands one kind of levels into bytes. All threads call it. False: a fault at byte `position` of them.
DEVICE bool expand_levels(Runs& runs, uint64_t out, uint64_t data, uint32_t bytes, uint32_t max, bool bit_packed,
                          uint32_t count) {
    if (max == 0) {
        for (uint32_t it = threadIdx.x; it < count; it += blockDim.x) *at<uint8_t>(out + it) = 0;
        return true;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        runs_begin(runs, data, bytes, level_width(max), RUNS_VALUES, count);
        if (bit_packed) runs_packed(runs);
    }
    uint32_t done = 0;
    bool above = false;
    while (done < count) {
        if (threadIdx.x == 0 && done == runs_end(runs)) runs_next(runs);
        __syncthreads();
        if (runs.fault) return false;
        const uint32_t end = runs_end(runs);
        for (uint32_t it = done + threadIdx.x; it < end; it += blockDim.x) {
            const uint32_t level = runs_value(runs, it);
            above = above || level > max;
            *at<uint8_t>(out + it) = (uint8_t)level;
        }
        done = end;
        __syncthreads();
    }
    return block_max<THREADS>((uint32_t)above) == 0;
}

// Where a page's level bytes lie.
struct Levels {
    const uint8_t* def;
    const uint8_t* rep; // null: all 0, and every row selected
};

DEVICE uint32_t rep_at(const Levels& levels, uint32_t position) { return levels.rep ? levels.rep[position] : 0; }

DEVICE Levels levels_of(const Page& page, const Column& column) {
    Levels levels;
    levels.def = at<const uint8_t>(page.levels);
    const bool has_rep = column.max_rep != 0 || (column.flags & COLUMN_SELECTED);
    levels.rep = !has_rep ? nullptr : levels.def + (((uint64_t)page.num_values + 7) & ~7ull);
    return levels;
}

KERNEL(pqgpu_nested_levels, NestedLevelsArgs, 128) {
    if (blockIdx.x >= args.count) return;
    __shared__ Runs runs;
    __shared__ bool malformed;
    const uint32_t index = at<const uint32_t>(args.items)[blockIdx.x];
    const Page page = at<const Page>(args.pages)[index];
    const Column column = at<const Column>(args.columns)[page.column];
    const Sections found = sections(page, column);
    if (threadIdx.x == 0) malformed = has_fault(args.fault, index);
    __syncthreads();

    PageState state;
    state.values = 0;
    state.value_bytes = 0;
    state.valid = 0;
    state.string_bytes = 0;
    state.first_slot = 0;
    state.slots = 0;
    state.rows = 0;
    uint32_t fault = FAULT_NONE;
    uint64_t fault_at = 0;
    const Levels levels = levels_of(page, column);
    const bool v1 = page.kind == PAGE_DATA_V1;
    if (!found.fits) {
        fault = FAULT_LEVELS;
    } else if (!malformed) {
        if (levels.rep && !expand_levels(runs, (uint64_t)levels.rep, found.rep, found.rep_bytes, column.max_rep,
                                         v1 && page.rep_encoding == ENCODING_BIT_PACKED, page.num_values)) {
            fault = FAULT_REPETITION_LEVELS;
            fault_at = found.rep - page.body + runs.position;
        } else if (!expand_levels(runs, (uint64_t)levels.def, found.def, found.def_bytes, column.max_def,
                                  v1 && page.def_encoding == ENCODING_BIT_PACKED, page.num_values)) {
            fault = FAULT_LEVELS;
            fault_at = found.def - page.body + runs.position;
        }
    }
    if (fault || malformed) {
        if (threadIdx.x == 0) {
            if (!malformed) raise_fault(args.fault, index, fault_at, fault);
            at<PageState>(args.states)[index] = state;
        }
        return;
    }
    __syncthreads();

    // Nothing comes before the first row of a chunk, and pages of version 2 start with rows: arrow-rs ends the row before
    // such a page, whatever its levels say.
    const bool at_row = page.is_first || page.kind == PAGE_DATA_V2;
    if (threadIdx.x == 0 && at_row && levels.rep && page.num_values != 0 && levels.rep[0] != 0) {
        raise_fault(args.fault, index, found.rep - page.body, FAULT_REPETITION_LEVELS);
    }
    uint32_t valid = 0;
    uint32_t rows = 0;
    for (uint32_t it = threadIdx.x; it < page.num_values; it += blockDim.x) {
        valid += levels.def[it] == column.max_def;
        rows += rep_at(levels, it) == 0;
    }
    valid = block_sum<THREADS>(valid);
    state.rows = block_sum<THREADS>(rows);
    if (threadIdx.x == 0) {
        if (valid > page.stated_values) {
            // As arrow-rs, which takes no more values from a page than its header promises.
            raise_fault(args.fault, index, found.value_offset, FAULT_VALUES_TRUNCATED);
        } else {
            state.values = page.body + found.value_offset;
            state.value_bytes = page.body_bytes - (uint32_t)found.value_offset;
            state.valid = valid;
        }
        at<PageState>(args.states)[index] = state;
    }
}

// The rows before each page: `items` is a list of runs of pages that follow each other, of each its first row.
KERNEL(pqgpu_page_rows, PageRowsArgs, 32) {
    const uint64_t run = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (run >= args.count) return;
    const PageRun pages = at<const PageRun>(args.runs)[run];
    uint64_t row = pages.first_row;
    for (uint32_t it = pages.first; it < pages.end; ++it) {
        PageState& state = at<PageState>(args.states)[at<const uint32_t>(args.items)[it]];
        state.first_slot = row; // until the page's slots are known
        row += state.rows;
    }
}

// Strikes out the rows that are not selected. `selected` has a bit for each row.
KERNEL(pqgpu_strike_out, StrikeOutArgs, 128) {
    if (blockIdx.x >= args.count) return;
    const uint32_t index = at<const uint32_t>(args.items)[blockIdx.x];
    const Page page = at<const Page>(args.pages)[index];
    const PageState state = at<const PageState>(args.states)[index];
    if (state.values == 0) return;
    const Column column = at<const Column>(args.columns)[page.column];
    uint8_t* reps = (uint8_t*)levels_of(page, column).rep;
    uint64_t base = state.first_slot;
    for (uint32_t first = 0; first < page.num_values; first += TILE) {
        const uint32_t begin = min(first + threadIdx.x * EACH, page.num_values);
        const uint32_t end = min(begin + EACH, page.num_values);
        uint32_t rows = 0;
        for (uint32_t it = begin; it < end; ++it) rows += reps[it] == 0;
        uint32_t all;
        uint64_t row = base + block_scan<THREADS>(rows, all);
        base += all;
        for (uint32_t it = begin; it < end; ++it) {
            row += reps[it] == 0;
            // A page may go on with the row of the one before it.
            const uint64_t own = row == 0 ? 0 : row - 1;
            const bool selected = own < args.rows && (at<const uint32_t>(args.selected)[own / 32] >> (own % 32) & 1);
            if (!selected) reps[it] = STRUCK_OUT;
        }
    }
}

KERNEL(pqgpu_slot_counts, SlotCountsArgs, 128) {
    if (blockIdx.x >= args.count) return;
    const uint32_t index = at<const uint32_t>(args.items)[blockIdx.x];
    const Page page = at<const Page>(args.pages)[index];
    if (at<const PageState>(args.states)[index].values == 0) return;
    const Column column = at<const Column>(args.columns)[page.column];
    const Node* nodes = at<const Node>(args.nodes) + column.first_node;
    const Levels levels = levels_of(page, column);
    uint64_t* counts = at<uint64_t>(page.counts);

    for (uint32_t which = 0; which <= column.lists; ++which) {
        uint64_t slots = 0;
        for (uint32_t it = threadIdx.x; it < page.num_values; it += blockDim.x) {
            slots += slots_at(nodes, which, levels.def[it], rep_at(levels, it));
        }
        slots = block_sum<THREADS>(slots);
        if (threadIdx.x == 0) counts[which] = slots;
    }
    for (uint32_t which = 0; which < column.lists + column.structs; ++which) {
        const Node& node = nodes[which];
        // A list is there when its level says so or that it is empty, which is one less.
        const uint32_t there = which < column.lists ? node.def - 1 : node.def;
        uint64_t slots = 0;
        for (uint32_t it = threadIdx.x; it < page.num_values; it += blockDim.x) {
            const uint32_t def = levels.def[it];
            slots += def >= there && is_slot(nodes, node.slot_class, def, rep_at(levels, it));
        }
        slots = block_sum<THREADS>(slots);
        if (threadIdx.x == 0) counts[column.lists + 1 + which] = slots;
    }
    uint64_t valid = 0;
    for (uint32_t it = threadIdx.x; it < page.num_values; it += blockDim.x) {
        valid += levels.def[it] == column.max_def && is_slot(nodes, column.lists, levels.def[it], rep_at(levels, it));
    }
    valid = block_sum<THREADS>(valid);
    if (threadIdx.x == 0) counts[2 * column.lists + 1 + column.structs] = valid;
}

// Bits for slots in ascending order, gathered into words before they are written.
struct Bits {
    uint64_t out; // address of the first word
    uint64_t word;
    uint32_t bits;
};

DEVICE void bits_flush(Bits& bits) {
    if (bits.bits) atomicOr(at<uint32_t>(bits.out) + bits.word, bits.bits);
    bits.bits = 0;
}

DEVICE void bits_set(Bits& bits, uint64_t slot) {
    if (slot / 32 != bits.word) {
        bits_flush(bits);
        bits.word = slot / 32;
    }
    bits.bits |= 1u << (slot % 32);
}

// The positions of a thread in a tile. Level bytes are read again at each use: they are in the cache, and an array of
// them would not be in registers.
struct Positions {
    Levels levels;
    uint32_t first;
    uint32_t end;
};

// Sets the bit of every slot of the class from which the definition level reaches `there`.
DEVICE void write_validity(uint64_t out, const Node* nodes, uint32_t slot_class, uint32_t there,
                           const Positions& positions, uint64_t slot) {
    Bits bits;
    bits.out = out;
    bits.word = 0;
    bits.bits = 0;
    for (uint32_t it = positions.first; it < positions.end; ++it) {
        const uint32_t def = positions.levels.def[it];
        const uint32_t rep = rep_at(positions.levels, it);
        if (def >= there && is_slot(nodes, slot_class, def, rep)) bits_set(bits, slot);
        slot += slots_at(nodes, slot_class, def, rep);
    }
    bits_flush(bits);
}

// Writes which of the page's values each slot has, if it has one. `rank`: values before the thread's positions.
DEVICE void write_ranks(uint64_t out, const Node* nodes, uint32_t slot_class, uint32_t max_def,
                        const Positions& positions, uint64_t slot, uint32_t rank) {
    for (uint32_t it = positions.first; it < positions.end; ++it) {
        const uint32_t def = positions.levels.def[it];
        const uint32_t rep = rep_at(positions.levels, it);
        if (def == max_def && is_slot(nodes, slot_class, def, rep)) at<uint32_t>(out)[slot] = rank;
        rank += def == max_def;
        slot += slots_at(nodes, slot_class, def, rep);
    }
}

DEVICE void write_offset(const Node& list, uint64_t slot, uint64_t child) {
    if (list.offset_width == 4) at<int32_t>(list.offsets)[slot] = (int32_t)child;
    else at<int64_t>(list.offsets)[slot] = (int64_t)child;
}

// Writes the offsets of a list, whose slots and elements start at `slot` and `child`, and checks fixed sizes. False: a
// fixed-size list of another size.
DEVICE bool write_offsets(const Node* nodes, uint32_t which, const Positions& positions, uint64_t slot, uint64_t child) {
    const Node& list = nodes[which];
    for (uint32_t it = positions.first; it < positions.end; ++it) {
        const uint32_t def = positions.levels.def[it];
        const uint32_t rep = rep_at(positions.levels, it);
        const uint64_t slots = slots_at(nodes, which, def, rep);
        if (slots != 0 && list.is_fixed_size && child != slot * list.size) return false;
        // Deeper repetition of an element that is not there.
        if (list.is_fixed_size && rep > list.rep && rep != STRUCK_OUT && def < list.def && is_slot(nodes, which, def, 0)) {
            return false;
        }
        if (list.offsets) {
            for (uint64_t more = 0; more < slots; ++more) write_offset(list, slot + more, child);
        }
        slot += slots;
        child += slots_at(nodes, which + 1, def, rep);
    }
    return true;
}

KERNEL(pqgpu_shape, ShapeArgs, 128) {
    if (blockIdx.x >= args.count) return;
    const uint32_t index = at<const uint32_t>(args.items)[blockIdx.x];
    const Page page = at<const Page>(args.pages)[index];
    if (at<const PageState>(args.states)[index].values == 0) return;
    const Column column = at<const Column>(args.columns)[page.column];
    const Node* nodes = at<const Node>(args.nodes) + column.first_node;
    const Levels levels = levels_of(page, column);
    const uint64_t* bases = at<const uint64_t>(args.bases) + at<const uint64_t>(args.first_bases)[blockIdx.x];
    const uint64_t* counts = at<const uint64_t>(page.counts);
    bool sound = true;

    if (threadIdx.x == 0) {
        PageState& state = at<PageState>(args.states)[index];
        state.first_slot = bases[column.lists];
        state.slots = (uint32_t)counts[column.lists];
    }
    // One class after the other, so that only two sums are at hand at a time; level bytes come from the cache.
    for (uint32_t which = 0; which <= column.lists; ++which) {
        uint64_t slot_base = bases[which];
        uint32_t rank_base = 0;
        uint64_t child_base = which < column.lists ? bases[which + 1] : 0;
        for (uint32_t first = 0; first < page.num_values; first += TILE) {
            Positions positions;
            positions.levels = levels;
            positions.first = min(first + threadIdx.x * EACH, page.num_values);
            positions.end = min(positions.first + EACH, page.num_values);
            uint64_t slots = 0;
            uint64_t children = 0;
            for (uint32_t it = positions.first; it < positions.end; ++it) {
                slots += slots_at(nodes, which, levels.def[it], rep_at(levels, it));
                if (which < column.lists) children += slots_at(nodes, which + 1, levels.def[it], rep_at(levels, it));
            }
            uint64_t all_slots, all_children;
            const uint64_t slot = slot_base + block_scan<THREADS>(slots, all_slots);
            const uint64_t child = child_base + block_scan<THREADS>(children, all_children);
            slot_base += all_slots;
            child_base += all_children;

            for (uint32_t it = column.lists; it < column.lists + column.structs; ++it) {
                if (nodes[it].slot_class != which || !nodes[it].validity) continue;
                write_validity(nodes[it].validity, nodes, which, nodes[it].def, positions, slot);
            }
            if (which == column.lists) {
                if (column.validity) write_validity(column.validity, nodes, which, column.max_def, positions, slot);
                if (column.ranks) {
                    uint32_t values = 0;
                    for (uint32_t it = positions.first; it < positions.end; ++it) values += levels.def[it] == column.max_def;
                    uint32_t all_values;
                    const uint32_t rank = rank_base + block_scan<THREADS>(values, all_values);
                    rank_base += all_values;
                    write_ranks(column.ranks, nodes, which, column.max_def, positions, slot, rank);
                }
                continue;
            }
            const Node& list = nodes[which];
            if (list.validity) write_validity(list.validity, nodes, which, list.def - 1, positions, slot);
            sound = write_offsets(nodes, which, positions, slot, child) && sound;
        }
        // The end of the last list: of the pages, one or more, after which nothing comes.
        if (which < column.lists && nodes[which].offsets && threadIdx.x == 0 && slot_base == nodes[which].slots &&
            child_base == nodes[which].children) {
            write_offset(nodes[which], slot_base, child_base);
        }
    }
    if (!sound) raise_fault(args.fault, index, 0, FAULT_FIXED_SIZE_LIST);
}
