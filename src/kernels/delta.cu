// Pages of DELTA_* encodings become what the value kernels know: integers as in a PLAIN page, or a reference a string.
#include "delta.cuh"

static constexpr unsigned THREADS = 128; // as in kernels/mod.rs

KERNEL(pqgpu_delta_integers, DeltaIntegersArgs, 128) {
    if (blockIdx.x >= args.count) return;
    __shared__ Delta delta;
    const uint32_t index = at<const uint32_t>(args.items)[blockIdx.x];
    const Page page = at<const Page>(args.pages)[index];
    const PageState state = at<const PageState>(args.states)[index];
    if (state.values == 0) return;
    const uint32_t width = at<const Column>(args.columns)[page.column].in_width;
    if (threadIdx.x == 0) {
        delta_begin(delta, state.values, state.value_bytes, 8 * width);
        if (delta.fault == FAULT_NONE && delta.count < state.valid) delta.fault = FAULT_VALUES_TRUNCATED;
    }
    __syncthreads();
    const uint64_t out = page.expanded;
    const auto store = [&](uint64_t first, const uint64_t* value, uint32_t count) {
        for (uint32_t it = 0; it < DELTA_EACH; ++it) {
            if (it >= count) continue;
            if (width == 4) at<uint32_t>(out)[first + it] = (uint32_t)value[it];
            else at<uint64_t>(out)[first + it] = value[it];
        }
    };
    const bool sound = delta.fault == FAULT_NONE && delta_decode<THREADS>(delta, state.valid, store);
    if (threadIdx.x != 0) return;
    PageState& shared = at<PageState>(args.states)[index];
    if (!sound) {
        raise_fault(args.fault, index, state.values - page.body + delta.position, delta.fault);
        shared.values = 0;
    } else {
        shared.values = out;
        shared.value_bytes = state.valid * width;
    }
}

// The lengths of the strings of DELTA_LENGTH_BYTE_ARRAY pages and, of DELTA_BYTE_ARRAY pages, those of prefixes and
// suffixes; the references are to suffixes then, and have the prefix's length in their padding.
KERNEL(pqgpu_delta_lengths, DeltaLengthsArgs, 128) {
    if (blockIdx.x >= args.count) return;
    __shared__ Delta delta;
    const uint32_t index = at<const uint32_t>(args.items)[blockIdx.x];
    const Page page = at<const Page>(args.pages)[index];
    const PageState state = at<const PageState>(args.states)[index];
    if (state.values == 0) return;
    StringRef* refs = at<StringRef>(page.expanded);
    const bool prefixed = page.encoding == ENCODING_DELTA_BYTE_ARRAY;
    uint32_t fault = FAULT_NONE;
    uint64_t position = 0; // of the stream, and where it has a fault
    uint64_t values = 0;   // of the page
    uint64_t bytes = 0;    // of the strings as they will be

    for (uint32_t stream = prefixed ? 0 : 1; stream < 2 && fault == FAULT_NONE; ++stream) {
        __syncthreads();
        if (threadIdx.x == 0) delta_begin(delta, state.values + position, (uint32_t)(state.value_bytes - position), 32);
        __syncthreads();
        // The header may promise more values than the levels have places, and not fewer.
        if (delta.fault == FAULT_NONE && (delta.count < state.valid || delta.count > page.num_values)) {
            fault = FAULT_VALUES_TRUNCATED;
            break;
        }
        if (stream == 1 && prefixed && delta.count != values) {
            fault = FAULT_DELTA;
            break;
        }
        values = delta.count;
        uint64_t before = 0; // bytes of the suffixes so far
        uint64_t mine = 0;   // of the thread's strings
        bool negative = false;
        const auto store = [&](uint64_t first, const uint64_t* value, uint32_t count) {
            uint64_t sum = 0;
            for (uint32_t it = 0; it < DELTA_EACH; ++it) {
                if (it >= count) continue;
                negative = negative || (int32_t)value[it] < 0;
                sum += (uint32_t)value[it];
            }
            mine += sum;
            uint64_t total = 0;
            uint64_t at_byte = stream == 1 ? before + block_scan<THREADS>(sum, total) : 0;
            before += total;
            for (uint32_t it = 0; it < DELTA_EACH; ++it) {
                if (it >= count) continue;
                const uint32_t length = (uint32_t)value[it];
                StringRef& ref = refs[first + it];
                if (stream == 0) {
                    ref._pad = length;
                } else {
                    if (!prefixed) ref._pad = 0;
                    ref.address = at_byte; // from where the suffixes start
                    ref.bytes = length;
                    at_byte += length;
                }
            }
        };
        const bool sound = delta.fault == FAULT_NONE && delta_decode<THREADS>(delta, values, store);
        bytes += block_sum<THREADS>(mine);
        const bool any_negative = block_max<THREADS>((uint32_t)negative) != 0;
        if (!sound) fault = delta.fault;
        else if (any_negative) fault = FAULT_STRING_LENGTH;
        position += delta_end(delta);
        if (!sound || any_negative) break;
        if (position + (stream == 1 ? before : 0) > state.value_bytes) fault = FAULT_STRING_LENGTH;
    }
    __syncthreads(); // the references are written
    if (fault == FAULT_NONE) {
        const uint64_t suffixes = state.values + position;
        bool beyond = false;
        for (uint64_t it = threadIdx.x; it < values; it += THREADS) {
            // A prefix is part of the string before, whose length is known when its own prefix is sound.
            const uint64_t length = it == 0 ? 0 : (uint64_t)refs[it - 1]._pad + refs[it - 1].bytes;
            beyond = beyond || refs[it]._pad > length;
            refs[it].address += suffixes;
        }
        if (block_max<THREADS>((uint32_t)beyond) != 0) fault = FAULT_STRING_LENGTH;
    }
    if (threadIdx.x != 0) return;
    PageState& shared = at<PageState>(args.states)[index];
    if (fault) {
        raise_fault(args.fault, index, state.values - page.body + position, fault);
        shared.values = 0;
    } else {
        shared.string_bytes = bytes;
    }
}

// Strings of a batch: a string takes its prefix from those before it, one of which may be in the batch.
#define STRINGS 128u

// Puts the strings of DELTA_BYTE_ARRAY pages together, at the item's target, and makes the references those to whole
// strings. Values of FIXED_LEN_BYTE_ARRAY columns lie there as in a PLAIN page.
KERNEL(pqgpu_delta_strings, DeltaStringsArgs, 128) {
    if (blockIdx.x >= args.count) return;
    __shared__ uint32_t prefix[STRINGS];
    __shared__ uint64_t suffix[STRINGS]; // addresses
    const uint32_t index = at<const uint32_t>(args.items)[blockIdx.x];
    const Page page = at<const Page>(args.pages)[index];
    const PageState state = at<const PageState>(args.states)[index];
    if (state.values == 0) return;
    const Column column = at<const Column>(args.columns)[page.column];
    const bool fixed = column.flags & COLUMN_FIXED_LEN;
    StringRef* refs = at<StringRef>(page.expanded);
    const uint64_t target = at<const uint64_t>(args.targets)[blockIdx.x];
    uint64_t out = target;   // of the batch's first string
    uint64_t previous = 0;   // address of the string before the batch
    bool sound = true;
    for (uint32_t first = 0; first < state.valid; first += STRINGS) {
        const uint32_t it = first + threadIdx.x;
        StringRef ref;
        ref.address = 0;
        ref.bytes = 0;
        ref._pad = 0;
        if (it < state.valid) ref = refs[it];
        const uint32_t bytes = ref._pad + ref.bytes;
        prefix[threadIdx.x] = ref._pad;
        suffix[threadIdx.x] = ref.address;
        uint64_t total;
        const uint64_t mine = out + block_scan<THREADS>((uint64_t)bytes, total);
        sound = sound && (!fixed || it >= state.valid || bytes == column.in_width);
        if (it < state.valid) {
            for (uint32_t byte = 0; byte < ref.bytes; ++byte) {
                *at<uint8_t>(mine + ref._pad + byte) = *at<const uint8_t>(ref.address + byte);
            }
            // Each string before has, from its own prefix on, what may still be wanted.
            uint32_t wanted = ref._pad;
            for (uint32_t before = threadIdx.x; wanted > 0 && before-- > 0;) {
                const uint32_t from = prefix[before];
                if (from >= wanted) continue;
                for (uint32_t byte = from; byte < wanted; ++byte) {
                    *at<uint8_t>(mine + byte) = *at<const uint8_t>(suffix[before] + (byte - from));
                }
                wanted = from;
            }
            for (uint32_t byte = 0; byte < wanted; ++byte) {
                *at<uint8_t>(mine + byte) = *at<const uint8_t>(previous + byte);
            }
            ref.address = mine;
            ref.bytes = bytes;
            ref._pad = 0;
            refs[it] = ref;
        }
        __shared__ uint64_t last;
        if (threadIdx.x == STRINGS - 1) last = mine;
        __syncthreads(); // the batch is written, and read
        previous = last;
        out += total;
        __syncthreads();
    }
    if (!sound) raise_fault(args.fault, index, 0, FAULT_STRING_LENGTH);
    if (threadIdx.x == 0 && fixed) {
        PageState& shared = at<PageState>(args.states)[index];
        shared.values = target;
        shared.value_bytes = (uint32_t)(out - target); // what is there, also where a value is too short
    }
}
