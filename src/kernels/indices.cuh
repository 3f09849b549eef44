// The values of a page as dictionary indices, a tile of ranks at a time.
#pragma once
#include "rle.cuh"

DEVICE bool is_dictionary(const Page& page) {
    return page.encoding == ENCODING_RLE_DICTIONARY || page.encoding == ENCODING_PLAIN_DICTIONARY;
}

// Prepares the runs of a dictionary-encoded page: a byte with the bit width, then runs. Thread 0; the fault says what is
// wrong. A page without values is checked as far as arrow-rs checks it.
DEVICE void indices_begin(Runs& runs, const PageState& state) {
    if (state.value_bytes == 0) {
        runs_begin(runs, state.values, 0, 0, RUNS_VALUES, 0);
        runs.fault = FAULT_VALUES_TRUNCATED;
        return;
    }
    const uint32_t width = *at<const uint8_t>(state.values);
    runs_begin(runs, state.values + 1, state.value_bytes - 1, width, RUNS_VALUES, state.valid);
    if (width > 32) runs.fault = FAULT_RLE; // indices are 32-bit integers
    else if (state.valid == 0) runs_check_first(runs);
}

// Prepares the runs of an RLE-encoded boolean page: their length in four bytes, then runs of width 1. Thread 0.
DEVICE void booleans_begin(Runs& runs, const PageState& state) {
    const uint32_t length = state.value_bytes >= 4 ? load_by_bytes(state.values, 4) : 0;
    const bool fits = state.value_bytes >= 4 && length <= state.value_bytes - 4;
    runs_begin(runs, state.values + 4, fits ? length : 0, 1, RUNS_VALUES, state.valid);
    if (!fits) runs.fault = FAULT_VALUES_TRUNCATED;
    else if (state.valid == 0) runs_check_first(runs);
}
