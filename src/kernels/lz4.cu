// Raw LZ4 blocks, a block a page, with the division of work of snappy.cu: warp 0 turns the stream into batches of up to
// 32 sequences, the other warps write the bytes of the batch before.
//
// A sequence is a token, literals, and a copy. Every lane reads the sequence that would begin at its byte of the next
// 32, as far as its lengths fit the token; which of those do begin one follows from the first by pointer jumping. A
// sequence with longer lengths, and the last one, is read by all lanes together.
//
// Malformed streams are told by what the `lz4_flex` crate refuses: a stream ends with the literals of its last sequence,
// and may end anywhere else in the rules of the format's encoder.
#include "ring.cuh"

static constexpr unsigned THREADS = 128; // as in kernels/mod.rs
static constexpr unsigned WRITERS = THREADS - 32;
static constexpr unsigned SEQUENCES = 32;
static constexpr unsigned STEP = 32;            // bytes of the stream looked at together
static constexpr unsigned STEP_SEQUENCES = 11;  // a sequence with a copy has three bytes at the least
static constexpr unsigned MIN_COPY = 4;         // bytes of the shortest copy, see the block format
static constexpr unsigned LONG = 15;            // a length in the token that says that bytes follow which add to it
static constexpr uint32_t LONG_LITERAL = 64;    // from here on copied by words
static constexpr uint32_t UNUSED = 0xffffffffu; // starts after every byte
static constexpr uint32_t MOST = 0x7fffffffu;   // no page is larger
static constexpr unsigned NOWHERE = 64;         // a successor outside the step

struct Batch {
    uint32_t start[SEQUENCES];    // output offset of each sequence's first byte, ascending
    uint32_t literal[SEQUENCES];  // offset in the stream of its literals
    uint32_t copy[SEQUENCES];     // output offset of its copy's first byte
    uint32_t distance[SEQUENCES]; // from which that is copied
    uint32_t begin, end;          // output offsets that the table covers
    uint32_t long_literal, long_bytes; // a long literal from `end` on: its offset in the stream
    uint32_t last;                // no batch follows
};

// A copy behind a long literal, which the next batch begins with.
struct Pending {
    uint32_t bytes; // 0: none
    uint32_t distance;
};

// One sequence that all lanes have read.
struct Sequence {
    uint64_t literals, copied; // bytes
    uint32_t literal;          // offset in the stream
    uint32_t distance;
};

// Makes a batch without bytes, the last.
DEVICE void close(Batch& batch) {
    if (lane() != 0) return;
    batch.begin = batch.end = batch.long_literal = batch.long_bytes = 0;
    batch.last = 1;
}

DEVICE void enter(Batch& batch, unsigned slot, uint32_t start, uint32_t literal, uint32_t copy, uint32_t distance) {
    batch.start[slot] = start;
    batch.literal[slot] = literal;
    batch.copy[slot] = copy;
    batch.distance[slot] = distance;
}

// Adds the bytes that lengthen a length, up to one that is not 255. False: the stream ends before.
DEVICE bool lengthen(Decoder& decoder, uint64_t& length) {
    for (;;) {
        advance_ring(decoder);
        const uint32_t here = decoder.at + lane();
        unsigned byte;
        uint32_t unused;
        peek(decoder, here, byte, unused);
        const uint32_t stops = __ballot_sync(ALL_LANES, here >= decoder.bytes || byte != 255);
        if (stops == 0) {
            length += 255 * 32;
            decoder.at += 32;
            continue;
        }
        const unsigned stop = (unsigned)__ffs((int)stops) - 1;
        byte = __shfl_sync(ALL_LANES, byte, (int)stop);
        if (decoder.at + stop >= decoder.bytes) return false;
        length += 255 * stop + byte;
        decoder.at += stop + 1;
        return true;
    }
}

// Reads the sequence where the decoder stands, with all lanes; `last`: the stream ends with its literals. False: it is
// malformed, and then the decoder stands somewhere in it.
DEVICE bool read_sequence(Decoder& decoder, Sequence& sequence, bool& last) {
    advance_ring(decoder);
    unsigned token, low;
    uint32_t next;
    peek(decoder, decoder.at, token, next);
    decoder.at++;
    sequence.literals = token >> 4;
    if (sequence.literals == LONG && !lengthen(decoder, sequence.literals)) return false;
    if (sequence.literals > decoder.bytes - decoder.at) return false;
    if (sequence.literals > decoder.limit - decoder.output) return false;
    sequence.literal = decoder.at;
    sequence.copied = 0;
    sequence.distance = 1;
    decoder.at += (uint32_t)sequence.literals;
    last = decoder.at == decoder.bytes;
    if (last) return true;
    if (decoder.bytes - decoder.at < 2) return false;
    advance_ring(decoder);
    peek(decoder, decoder.at, low, next);
    sequence.distance = low | (next & 0xff) << 8;
    decoder.at += 2;
    sequence.copied = token & 15;
    if (sequence.copied == LONG && !lengthen(decoder, sequence.copied)) return false;
    sequence.copied += MIN_COPY;
    const uint32_t copy = decoder.output + (uint32_t)sequence.literals;
    if (sequence.distance == 0 || sequence.distance > copy) return false;
    if (sequence.copied > decoder.limit - copy) return false;
    return decoder.at < decoder.bytes; // no stream ends with a copy
}

// Fills a batch. Returns a fault kind, and then `decoder.at` is where; the batch is then empty and the last.
DEVICE uint32_t decode_batch(Decoder& decoder, Pending& pending, Batch& batch) {
    const uint32_t begin = decoder.output;
    uint32_t end = begin, long_literal = 0, long_bytes = 0, fault = FAULT_NONE;
    bool last = false;
    unsigned count = 0;
    if (pending.bytes != 0) {
        if (lane() == 0) enter(batch, 0, begin, 0, begin, pending.distance);
        count = 1;
        end = decoder.output = begin + pending.bytes;
        pending.bytes = 0;
    }
    while (!last && long_bytes == 0 && count + STEP_SEQUENCES <= SEQUENCES) {
        advance_ring(decoder);
        // The sequence at this lane's byte, should one begin there: a short one, with another after it.
        const uint32_t here = decoder.at + lane();
        const uint32_t left = here < decoder.bytes ? decoder.bytes - here : 0;
        unsigned token, low;
        uint32_t next;
        peek(decoder, here, token, next);
        const unsigned literals = token >> 4, copied = MIN_COPY + (token & 15), taken = 3 + literals;
        peek(decoder, here + 1 + literals, low, next);
        const uint32_t distance = low | (next & 0xff) << 8;
        const bool is_short = literals < LONG && (token & 15) < LONG && taken < left;
        // Which lanes begin a sequence: those that lane 0 reaches by jumping from sequence to sequence.
        uint32_t reached = left != 0 ? 1u << lane() : 0;
        unsigned jump = is_short && taken < STEP - lane() ? lane() + taken : NOWHERE;
        for (unsigned reach = 1; reach < STEP_SEQUENCES; reach *= 2) {
            const uint32_t more = __shfl_sync(ALL_LANES, reached, (int)(jump % 32));
            const unsigned further = __shfl_sync(ALL_LANES, jump, (int)(jump % 32));
            if (jump < STEP) {
                reached |= more;
                jump = further;
            }
        }
        reached = __shfl_sync(ALL_LANES, reached, 0);
        const bool begins = (reached >> lane() & 1) && is_short;
        uint32_t total;
        const uint32_t start = decoder.output + warp_scan(begins ? literals + copied : 0u, total);
        const uint32_t copy = start + literals;
        const bool good = distance != 0 && distance <= copy && copy + copied <= decoder.limit;
        const uint32_t bad = __ballot_sync(ALL_LANES, begins && !good);
        if (bad != 0) {
            decoder.at += (uint32_t)__ffs((int)bad) - 1;
            fault = FAULT_DECOMPRESS;
            break;
        }
        const uint32_t entered = __ballot_sync(ALL_LANES, begins);
        if (begins) {
            enter(batch, count + (unsigned)__popc(entered & ((1u << lane()) - 1)), start, here + 1, copy, distance);
        }
        count += (unsigned)__popc(entered);
        end = decoder.output += total;
        // Only the last that was reached can be other than short.
        const unsigned tail = reached != 0 ? 31 - (unsigned)__clz((int)reached) : 0;
        decoder.at += tail;
        if (entered >> tail & 1) {
            decoder.at += __shfl_sync(ALL_LANES, taken, (int)tail);
            continue;
        }
        const uint32_t token_at = decoder.at;
        Sequence sequence;
        if (decoder.at >= decoder.bytes || !read_sequence(decoder, sequence, last)) {
            decoder.at = token_at;
            fault = FAULT_DECOMPRESS;
            break;
        }
        const uint32_t literal_bytes = (uint32_t)sequence.literals, copy_bytes = (uint32_t)sequence.copied;
        if (literal_bytes >= LONG_LITERAL) {
            long_literal = sequence.literal;
            long_bytes = literal_bytes;
            decoder.output = end + literal_bytes;
            pending.bytes = copy_bytes;
            pending.distance = sequence.distance;
        } else {
            if (lane() == 0) {
                enter(batch, count, end, sequence.literal, end + literal_bytes, sequence.distance);
            }
            count++;
            end = decoder.output = end + literal_bytes + copy_bytes;
        }
    }
    if (fault == FAULT_NONE && last && decoder.output != decoder.limit) fault = FAULT_DECOMPRESSED_LENGTH;
    if (fault != FAULT_NONE) {
        close(batch);
        return fault;
    }
    if (lane() >= count) batch.start[lane()] = UNUSED;
    if (lane() == 0) {
        batch.begin = begin;
        batch.end = end;
        batch.long_literal = long_literal;
        batch.long_bytes = long_bytes;
        batch.last = last;
    }
    return FAULT_NONE;
}

// Writes the batch's bytes: each thread traces its byte back to a literal, or to output before the batch.
DEVICE void write_batch(const Batch& batch, const uint8_t* stream, uint8_t* output, unsigned thread) {
    for (uint32_t target = batch.begin + thread; target < batch.end; target += WRITERS) {
        uint32_t offset = target;
        uint8_t byte;
        for (;;) {
            // The last sequence that starts at or before `offset`.
            unsigned sequence = 0;
            for (unsigned half = SEQUENCES / 2; half > 0; half /= 2) {
                if (batch.start[sequence + half] <= offset) sequence += half;
            }
            const uint32_t copy = batch.copy[sequence];
            if (offset < copy) {
                byte = stream[batch.literal[sequence] + (offset - batch.start[sequence])];
                break;
            }
            const uint32_t distance = batch.distance[sequence];
            uint32_t within = offset - copy;
            if (within >= distance) within %= distance; // a copy that reads its own bytes repeats them
            offset = copy - distance + within;
            if (offset < batch.begin) {
                byte = output[offset];
                break;
            }
        }
        output[target] = byte;
    }
    copy_bytes(output + batch.end, stream + batch.long_literal, batch.long_bytes, thread, WRITERS);
}

KERNEL(pqgpu_lz4, Lz4Args, 128) {
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
    Pending pending = {0, 0};
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
        fault = decode_batch(decoder, pending, batches[0]);
    }
    __syncthreads();
    for (unsigned current = 0;; current ^= 1) {
        const bool last = batches[current].last;
        if (decoding) {
            if (!last) fault = decode_batch(decoder, pending, batches[current ^ 1]);
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
