// A compressed stream as one warp reads it: through a ring in shared memory that is filled ahead.
#pragma once
#include "prelude.cuh"

// Fills the body of the block's page, which does not decompress. Kernels that come to the page before the host learns of
// its fault must not find what was in the memory before. All threads call it.
DEVICE void clear_body(uint64_t pages, uint64_t items) {
    const Page& page = at<const Page>(pages)[at<const uint32_t>(items)[blockIdx.x]]; // read again: registers are scarce
    for (uint32_t it = threadIdx.x; it < page.body_bytes; it += blockDim.x) at<uint8_t>(page.body)[it] = 0;
}

static constexpr unsigned BLOCK = 512;      // bytes that a warp loads at once
static constexpr unsigned RING = 2 * BLOCK; // of the stream in shared memory

// Where warp 0 stands; the same in all its lanes but for `ahead`. The ring holds blocks `block` and `block` + 1 of the
// stream, counted from the 16-byte edge at or before its first byte, and `ahead` is the lane's share of the one after.
struct Decoder {
    uint64_t begin, end; // addresses of the stream
    uint64_t edge;
    uint64_t block;
    uint32_t* ring;
    uint4 ahead;
    uint32_t at;     // offset in the stream
    uint32_t bytes;  // of the stream
    uint32_t output; // offset in the output
    uint32_t limit;  // bytes of the output
};

// The lane's 16 bytes of a block; reads nothing outside the stream.
DEVICE uint4 load_share(const Decoder& decoder, uint64_t block) {
    const uint64_t source = decoder.edge + block * BLOCK + lane() * 16;
    if (source >= decoder.begin && source < decoder.end && decoder.end - source >= 16) return *at<const uint4>(source);
    uint32_t words[4] = {0, 0, 0, 0};
    for (unsigned i = 0; i < 16; i++) {
        const uint64_t byte = source + i;
        if (byte >= decoder.begin && byte < decoder.end) words[i / 4] |= (uint32_t)*at<const uint8_t>(byte) << i % 4 * 8;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

DEVICE void store_share(const Decoder& decoder, uint64_t block, uint4 share) {
    *(uint4*)(decoder.ring + (block * BLOCK % RING) / 4 + lane() * 4) = share;
}

DEVICE void open_at(Decoder& decoder, uint64_t block) {
    decoder.block = block;
    const uint4 first = load_share(decoder, block), second = load_share(decoder, block + 1);
    decoder.ahead = load_share(decoder, block + 2);
    __syncwarp(); // no lane still reads the ring
    store_share(decoder, block, first);
    store_share(decoder, block + 1, second);
    __syncwarp();
}

// Makes the ring hold the BLOCK bytes from where the decoder stands.
DEVICE void advance_ring(Decoder& decoder) {
    const uint64_t block = (decoder.begin - decoder.edge + decoder.at) / BLOCK;
    if (block == decoder.block) return;
    if (block != decoder.block + 1) return open_at(decoder, block);
    __syncwarp(); // no lane still reads the ring
    store_share(decoder, block + 1, decoder.ahead);
    decoder.block = block;
    decoder.ahead = load_share(decoder, block + 2);
    __syncwarp();
}

// The five bytes from offset `at` of the stream: the first, and the four after it.
DEVICE void peek(const Decoder& decoder, uint32_t at, unsigned& first, uint32_t& next) {
    const unsigned byte = (unsigned)((decoder.begin - decoder.edge + at) % RING);
    const uint32_t low = decoder.ring[byte / 4], high = decoder.ring[(byte / 4 + 1) % (RING / 4)];
    const unsigned shift = byte % 4 * 8;
    const uint32_t word = __funnelshift_r(low, high, shift);
    first = word & 0xff;
    next = word >> 8 | high >> shift << 24;
}
