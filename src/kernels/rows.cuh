// Rows of a page and the ranks of those that are not null.
#pragma once
#include "prelude.cuh"

// Rows of a tile: one 32-bit validity word a lane of a warp.
#define TILE_ROWS 1024u

// Validity of a tile of rows, in shared memory. A tile starts at a row of the column that is a multiple of 32.
struct Tile {
    uint32_t word[32];   // bits of this page's rows that are not null
    uint32_t before[33]; // bits set before each word
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
// `validity` 0: every row of the page is valid when `valid` is not 0, and none otherwise.
DEVICE void tile_load(Tile& tile, uint64_t validity, uint32_t valid, uint64_t row, uint64_t first, uint64_t last) {
    __syncthreads();
    if (threadIdx.x < 32) {
        const uint64_t mine = row + 32ull * lane();
        uint32_t word = valid ? rows_mask(mine, first, last) : 0;
        if (validity && word) word &= at<const uint32_t>(validity)[mine / 32];
        uint32_t total;
        tile.before[lane()] = warp_scan<uint32_t>(__popc(word), total);
        tile.word[lane()] = word;
        if (lane() == 0) tile.before[32] = total;
    }
    __syncthreads();
}

DEVICE bool tile_valid(const Tile& tile, uint32_t row) { return tile.word[row / 32] >> (row % 32) & 1; }

// Valid rows of the tile before `row`.
DEVICE uint32_t tile_rank(const Tile& tile, uint32_t row) {
    return tile.before[row / 32] + __popc(tile.word[row / 32] & ((1u << (row % 32)) - 1));
}
