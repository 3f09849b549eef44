// Rows of a page and the ranks of those that are not null.
#pragma once
#include "prelude.cuh"

// Rows of a tile: one 32-bit validity word a lane of a warp.
#define TILE_ROWS 1024u

// Validity of a tile of rows, in shared memory. A tile starts at a row of the column that is a multiple of 32.
struct Tile {
    uint32_t word[32];   // bits of this page's rows that are not null
    uint32_t before[33]; // bits set before each word
    // The page's values that the tile's rows have lie from the first to before the end, all of them unless rows are selected.
    uint32_t first_value;
    uint32_t end_value;
};

// The bits of the 32 rows from `row` on that lie inside [first, last).
DEVICE uint32_t rows_mask(uint64_t row, uint64_t first, uint64_t last) {
    if (row >= last || row + 32 <= first) return 0;
    uint32_t mask = 0xffffffffu;
    if (row < first) mask &= 0xffffffffu << (uint32_t)(first - row);
    if (row + 32 > last) mask &= 0xffffffffu >> (uint32_t)(row + 32 - last);
    return mask;
}

// Fills the tile from row `row`; the first warp works, all threads call and are in step afterwards.
// `validity` 0: every row of the page is valid when `valid` is not 0, and none otherwise. `ranks`: as in Column; where
// there are none, `value` is the first of the page's values that the tile's rows have.
DEVICE void tile_load(Tile& tile, uint64_t validity, uint32_t valid, uint64_t row, uint64_t first, uint64_t last,
                      uint64_t ranks, uint32_t value) {
    __syncthreads();
    if (threadIdx.x < 32) {
        const uint64_t mine = row + 32ull * lane();
        uint32_t word = valid ? rows_mask(mine, first, last) : 0;
        if (validity && word) word &= at<const uint32_t>(validity)[mine / 32];
        uint32_t total;
        tile.before[lane()] = warp_scan<uint32_t>(__popc(word), total);
        tile.word[lane()] = word;
        const uint32_t filled = __ballot_sync(ALL_LANES, word != 0);
        if (lane() == 0) {
            tile.before[32] = total;
            tile.first_value = value;
            tile.end_value = value + total;
        }
        __syncwarp();
        if (ranks && filled) {
            if (lane() == (unsigned)__ffs(filled) - 1) tile.first_value = at<const uint32_t>(ranks)[mine + __ffs(word) - 1];
            if (lane() == 31 - (unsigned)__clz(filled)) tile.end_value = at<const uint32_t>(ranks)[mine + 31 - __clz(word)] + 1;
        }
    }
    __syncthreads();
}

DEVICE bool tile_valid(const Tile& tile, uint32_t row) { return tile.word[row / 32] >> (row % 32) & 1; }

// Valid rows of the tile before `row`.
DEVICE uint32_t tile_rank(const Tile& tile, uint32_t row) {
    return tile.before[row / 32] + __popc(tile.word[row / 32] & ((1u << (row % 32)) - 1));
}

// Which of the page's values a valid row of the tile has. `row`: the tile's first.
DEVICE uint32_t tile_value(const Tile& tile, uint64_t ranks, uint64_t row, uint32_t it) {
    return ranks ? at<const uint32_t>(ranks)[row + it] : tile.first_value + tile_rank(tile, it);
}

// Slots of a column.
struct Slots {
    uint64_t begin;
    uint64_t end;
};

// The tiles of a part: from its first tile's first row, which may lie before the page's own slots, to before the end.
// Parts share no tile, and so no word of validity.
DEVICE Slots part_tiles(uint32_t part, uint32_t parts, const PageState& state) {
    const uint64_t begin = state.first_slot & ~31ull;
    const uint64_t end = state.first_slot + state.slots;
    const uint64_t tiles = (end - begin + TILE_ROWS - 1) / TILE_ROWS;
    const uint64_t rows = (tiles + parts - 1) / parts * TILE_ROWS;
    Slots slots;
    slots.begin = min(begin + part * rows, end);
    slots.end = min(slots.begin + rows, end);
    return slots;
}

// The slots of a part.
DEVICE Slots part_slots(const PagePart& part, const PageState& state) {
    Slots slots = part_tiles(part.part, part.parts, state);
    slots.begin = max(slots.begin, state.first_slot);
    return slots;
}

// How many of the page's values the slots before `row`, a multiple of 32 or the page's end, have, where no rows are
// selected. All threads of the block call it. `validity` as in `tile_load`; where there is none, all slots have values.
template <unsigned THREADS>
DEVICE uint32_t values_before(uint64_t validity, uint64_t first, uint64_t row) {
    if (row <= first) return 0;
    if (!validity) return (uint32_t)(row - first);
    uint32_t count = 0;
    for (uint64_t word = first / 32 + threadIdx.x; word * 32 < row; word += THREADS) {
        count += __popc(at<const uint32_t>(validity)[word] & rows_mask(word * 32, first, row));
    }
    return block_sum<THREADS>(count);
}
