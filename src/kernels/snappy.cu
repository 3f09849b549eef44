// Snappy pages, a block a page: warp 0 turns the stream into batches of up to 32 symbols, the other warps write the
// bytes of the batch before. One barrier a batch is all that the two sides share.
//
// Decoding: every lane reads the symbol that would begin at its byte of the next 32; which of those do begin a symbol
// follows from the first by pointer jumping, where each writes from a scan of their lengths.
//
// Writing: each thread traces its byte back to a literal, or to output before the batch. A copy within the batch thus
// costs a second look into the table, and no thread waits for another's bytes.
//
// Malformed streams are told by what the `snap` crate refuses, but that the stated length must be the header's.
#include "ring.cuh"

static constexpr unsigned THREADS = 128; // as in kernels/mod.rs
static constexpr unsigned WRITERS = THREADS - 32;
static constexpr unsigned SYMBOLS = 32;
static constexpr unsigned STEP = 32;            // bytes of the stream looked at together
static constexpr unsigned STEP_SYMBOLS = 16;    // a symbol has two bytes at the least
static constexpr uint32_t LONG_LITERAL = 64;    // from here on copied by words; not below STEP, so that it ends a step
static constexpr uint32_t COPY = 0x80000000u;   // marks a source as a distance
static constexpr uint32_t UNUSED = 0xffffffffu; // starts after every byte
static constexpr uint32_t MOST = 0x7fffffffu;   // no page is larger
static constexpr unsigned NOWHERE = 64;         // a successor outside the step

struct Batch {
    uint32_t start[SYMBOLS];  // output offset of each symbol's first byte, ascending
    uint32_t source[SYMBOLS]; // offset in the stream, or COPY and a distance
    uint32_t begin, end;      // output offsets that the table covers
    uint32_t literal, literal_bytes; // a long literal from `end` on: its offset in the stream
    uint32_t last;            // no batch follows
};

// The stated length: a varint of up to five bytes. False: there is none.
DEVICE bool preamble(Decoder& decoder, uint64_t& length) {
    length = 0;
    for (unsigned i = 0; i < 5 && i < decoder.bytes; i++) {
        unsigned byte;
        uint32_t unused;
        peek(decoder, i, byte, unused);
        length |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            decoder.at = i + 1;
            return true;
        }
    }
    return false;
}

// Makes a batch without bytes, the last.
DEVICE void close(Batch& batch) {
    if (lane() != 0) return;
    batch.begin = batch.end = batch.literal = batch.literal_bytes = 0;
    batch.last = 1;
}

// Fills a batch. Returns a fault kind, and then `decoder.at` is where; the batch is then empty and the last.
DEVICE uint32_t decode_batch(Decoder& decoder, Batch& batch) {
    const uint32_t begin = decoder.output;
    uint32_t end = begin, literal = 0, literal_bytes = 0, fault = FAULT_NONE;
    unsigned count = 0;
    while (decoder.at < decoder.bytes && count + STEP_SYMBOLS <= SYMBOLS && literal_bytes == 0) {
        advance_ring(decoder);
        // The symbol at this lane's byte, should one begin there.
        const uint32_t here = decoder.at + lane();
        const uint32_t left = here < decoder.bytes ? decoder.bytes - here : 0;
        unsigned tag;
        uint32_t next;
        peek(decoder, here, tag, next);
        const unsigned kind = tag & 3;
        uint32_t length, distance = 0, taken; // bytes written, and bytes of the stream
        bool good;
        if (kind == 0) {
            const unsigned extra = tag >> 2 < 60 ? 0 : (tag >> 2) - 59;
            length = tag >> 2;
            if (extra != 0) length = extra == 4 ? next : next & ((1u << extra * 8) - 1);
            good = length < MOST && 1 + extra <= left && length + 1 <= left - 1 - extra;
            length = good ? length + 1 : 0;
            taken = 1 + extra + length;
        } else {
            length = kind == 1 ? 4 + (tag >> 2 & 7) : (tag >> 2) + 1;
            distance = kind == 1 ? (tag >> 5) << 8 | (next & 0xff) : kind == 2 ? next & 0xffff : next;
            taken = kind == 1 ? 2 : kind == 2 ? 3 : 5;
            good = taken <= left;
        }
        // Which lanes begin a symbol: those that lane 0 reaches by jumping from symbol to symbol.
        uint32_t reached = left != 0 ? 1u << lane() : 0;
        unsigned jump = left != 0 && good && taken < STEP - lane() ? lane() + taken : NOWHERE;
        for (unsigned reach = 1; reach < STEP_SYMBOLS; reach *= 2) {
            const uint32_t more = __shfl_sync(ALL_LANES, reached, (int)(jump % 32));
            const unsigned further = __shfl_sync(ALL_LANES, jump, (int)(jump % 32));
            if (jump < STEP) {
                reached |= more;
                jump = further;
            }
        }
        reached = __shfl_sync(ALL_LANES, reached, 0);
        const bool begins = reached >> lane() & 1;
        // Where each writes. Only the last can be longer than 64 bytes, so 32 bits hold the sum.
        uint32_t total;
        const uint32_t start = decoder.output + warp_scan(begins ? length : 0u, total);
        good = good && (uint64_t)start + length <= decoder.limit;
        if (kind != 0) good = good && distance != 0 && distance <= start;
        const uint32_t bad = __ballot_sync(ALL_LANES, begins && !good);
        if (bad != 0) {
            decoder.at += (uint32_t)__ffs((int)bad) - 1;
            fault = FAULT_DECOMPRESS;
            break;
        }
        const unsigned tail = 31 - (unsigned)__clz((int)reached);
        const bool is_long = kind == 0 && length >= LONG_LITERAL;
        const uint32_t source = kind == 0 ? here + taken - length : COPY | distance;
        if (begins && !is_long) {
            const unsigned slot = count + (unsigned)__popc(reached & ((1u << lane()) - 1));
            batch.start[slot] = start;
            batch.source[slot] = source;
        }
        count += (unsigned)__popc(reached);
        end = decoder.output + total;
        decoder.at += tail + __shfl_sync(ALL_LANES, taken, (int)tail);
        decoder.output = end;
        // A long literal reaches beyond the step, so only the last symbol can be one.
        literal_bytes = __shfl_sync(ALL_LANES, is_long ? length : 0, (int)tail);
        literal = __shfl_sync(ALL_LANES, source, (int)tail);
        if (literal_bytes != 0) {
            count--;
            end -= literal_bytes;
        }
    }
    const bool done = decoder.at >= decoder.bytes;
    if (fault == FAULT_NONE && done && decoder.output != decoder.limit) fault = FAULT_DECOMPRESSED_LENGTH;
    if (fault != FAULT_NONE) {
        close(batch);
        return fault;
    }
    if (lane() >= count) batch.start[lane()] = UNUSED;
    if (lane() == 0) {
        batch.begin = begin;
        batch.end = end;
        batch.literal = literal;
        batch.literal_bytes = literal_bytes;
        batch.last = done;
    }
    return FAULT_NONE;
}

// Writes the batch's bytes.
DEVICE void write_batch(const Batch& batch, const uint8_t* stream, uint8_t* output, unsigned thread) {
    for (uint32_t target = batch.begin + thread; target < batch.end; target += WRITERS) {
        uint32_t offset = target;
        uint8_t byte;
        for (;;) {
            // The last symbol that starts at or before `offset`.
            unsigned symbol = 0;
            for (unsigned half = SYMBOLS / 2; half > 0; half /= 2) {
                if (batch.start[symbol + half] <= offset) symbol += half;
            }
            const uint32_t start = batch.start[symbol], source = batch.source[symbol];
            uint32_t within = offset - start;
            if (!(source & COPY)) {
                byte = stream[source + within];
                break;
            }
            const uint32_t distance = source & ~COPY;
            if (within >= distance) within %= distance; // a copy that reads its own bytes repeats them
            offset = start - distance + within;
            if (offset < batch.begin) {
                byte = output[offset];
                break;
            }
        }
        output[target] = byte;
    }
    copy_bytes(output + batch.end, stream + batch.literal, batch.literal_bytes, thread, WRITERS);
}

KERNEL(pqgpu_snappy, SnappyArgs, 128) {
    __shared__ Batch batches[2];
    __shared__ uint4 ring[RING / 16];
    __shared__ bool refused;
    if (blockIdx.x >= args.count) return;
    const uint32_t index = at<const uint32_t>(args.items)[blockIdx.x];
    const Page page = at<const Page>(args.pages)[index];
    // V2 pages begin with their levels as they are.
    const uint64_t levels = page.kind == PAGE_DATA_V2 ? (uint64_t)page.rep_bytes + page.def_bytes : 0;
    if (levels > page.source_bytes || levels > page.body_bytes || page.source_bytes > MOST || page.body_bytes > MOST) {
        if (threadIdx.x == 0) raise_fault(args.fault, index, 0, FAULT_DECOMPRESS);
        clear_body(args.pages, args.items);
        return;
    }
    const uint8_t* stream = at<const uint8_t>(page.source) + levels;
    uint8_t* output = at<uint8_t>(page.body) + levels;
    const bool decoding = warp() == 0;
    const unsigned writer = threadIdx.x - 32; // of those that write
    if (!decoding) copy_bytes(output - levels, stream - levels, levels, writer, WRITERS);
    if (levels == page.body_bytes) return; // no value that is not null: whatever the stream says

    Decoder decoder;
    uint32_t fault = FAULT_NONE;
    if (decoding) {
        decoder.begin = page.source + levels;
        decoder.end = page.source + page.source_bytes;
        decoder.edge = decoder.begin & ~15ull;
        decoder.ring = (uint32_t*)ring;
        decoder.at = decoder.output = 0;
        decoder.bytes = page.source_bytes - (uint32_t)levels;
        decoder.limit = page.body_bytes - (uint32_t)levels;
        open_at(decoder, 0);
        uint64_t length = 0;
        if (!preamble(decoder, length)) fault = FAULT_DECOMPRESS;
        else if (length != decoder.limit) fault = FAULT_DECOMPRESSED_LENGTH;
        if (fault == FAULT_NONE) fault = decode_batch(decoder, batches[0]);
        else close(batches[0]);
    }
    __syncthreads();
    for (unsigned current = 0;; current ^= 1) {
        const bool last = batches[current].last;
        if (decoding) {
            if (!last) fault = decode_batch(decoder, batches[current ^ 1]);
        } else {
            write_batch(batches[current], stream, output, writer);
        }
        if (last) break;
        __syncthreads();
    }
    if (decoding && lane() == 0) {
        refused = fault != FAULT_NONE;
        if (refused) raise_fault(args.fault, index, levels + decoder.at, fault);
    }
    __syncthreads();
    if (refused) clear_body(args.pages, args.items);
}
