// Little-endian loads from addresses of any alignment that never touch a byte outside [low, high).
#pragma once
#include "prelude.cuh"

// Up to four bytes, each on its own.
DEVICE uint32_t load_by_bytes(uint64_t address, uint32_t bytes) {
    uint32_t value = 0;
    for (uint32_t it = 0; it < bytes; ++it) value |= (uint32_t)*at<const uint8_t>(address + it) << (8 * it);
    return value;
}

// Four bytes that lie inside [low, high), through one or two aligned words where those do too.
DEVICE uint32_t load32(uint64_t address, uint64_t low, uint64_t high) {
    const uint32_t shift = 8 * (uint32_t)(address & 3);
    if (shift == 0) return *at<const uint32_t>(address);
    const uint64_t word = address & ~3ull;
    if (word < low || word + 8 > high) return load_by_bytes(address, 4);
    const uint32_t first = at<const uint32_t>(word)[0];
    const uint32_t second = at<const uint32_t>(word)[1];
    return (first >> shift) | (second << (32 - shift));
}

DEVICE uint64_t load64(uint64_t address, uint64_t low, uint64_t high) {
    if ((address & 7) == 0) return *at<const uint64_t>(address);
    return load32(address, low, high) | (uint64_t)load32(address + 4, low, high) << 32;
}

// `width` bits, at most 32, from bit `position` after `address`, lowest bit first. All of them lie inside [low, high).
DEVICE uint32_t load_bits(uint64_t address, uint64_t position, uint32_t width, uint64_t low, uint64_t high) {
    if (width == 0) return 0;
    const uint64_t first = address + (position >> 3);
    const uint64_t word = first & ~3ull;
    const uint32_t shift = 8 * (uint32_t)(first & 3) + (uint32_t)(position & 7);
    const uint32_t words = shift + width > 32 ? 2 : 1;
    uint64_t bits;
    if (word >= low && word + 4 * words <= high) {
        bits = *at<const uint32_t>(word);
        if (words == 2) bits |= (uint64_t)at<const uint32_t>(word)[1] << 32;
        bits >>= shift;
    } else {
        const uint32_t inside = (uint32_t)(position & 7);
        const uint32_t bytes = (inside + width + 7) / 8;
        bits = load_by_bytes(first, bytes < 4 ? bytes : 4);
        if (bytes > 4) bits |= (uint64_t)*at<const uint8_t>(first + 4) << 32;
        bits >>= inside;
    }
    return (uint32_t)(bits & ((1ull << width) - 1));
}
