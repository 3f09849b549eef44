#include "rows.cuh"

// Checks the byte at `it` of the text [first, end), which starts with a character: a lead byte against those after it, a
// continuation byte against its lead (Unicode 15, table 3-7).
DEVICE bool utf8_byte(uint64_t first, uint64_t end, uint64_t it) {
    const uint32_t byte = *at<const uint8_t>(it);
    if (byte < 0x80) return true;
    if (byte < 0xc0) {
        for (uint32_t back = 1; back <= 3; ++back) {
            if (it - first < back) return false;
            const uint32_t lead = *at<const uint8_t>(it - back);
            if (lead >= 0xc0) return back < (lead < 0xe0 ? 2u : lead < 0xf0 ? 3u : 4u);
            if (lead < 0x80) return false;
        }
        return false;
    }
    if (byte < 0xc2 || byte > 0xf4) return false;
    const uint32_t after = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    if (end - it <= after) return false;
    for (uint32_t next = 1; next <= after; ++next) {
        if ((*at<const uint8_t>(it + next) & 0xc0) != 0x80) return false;
    }
    // No overlong forms, no surrogates, nothing above U+10FFFF.
    const uint32_t second = *at<const uint8_t>(it + 1);
    return byte == 0xe0 ? second >= 0xa0 : byte == 0xed ? second < 0xa0 : byte == 0xf0 ? second >= 0x90
         : byte == 0xf4 ? second < 0x90 : true;
}

// Checks the text [first, end), `threads` threads together, eight bytes each at a time.
DEVICE bool utf8_text(uint64_t first, uint64_t end, uint32_t thread, uint32_t threads) {
    bool valid = true;
    for (uint64_t word = (first & ~7ull) + 8ull * thread; word < end; word += 8ull * threads) {
        const uint64_t from = word > first ? word : first;
        const uint64_t to = word + 8 < end ? word + 8 : end;
        if (to - from == 8 && (*at<const uint64_t>(word) & 0x8080808080808080ull) == 0) continue;
        for (uint64_t it = from; it < to; ++it) valid = valid && utf8_byte(first, end, it);
    }
    return valid;
}

// Strings of at most this many bytes are checked by one thread, longer ones by a warp.
#define UTF8_SHORT 64u

// As arrow-rs: dictionaries are checked whole, used or not, and rows that take their string from one are not checked
// again; the strings of a part of another page are checked as one text, and that none starts inside a character.
KERNEL(pqgpu_utf8, Utf8Args, 256) {
    if (blockIdx.x >= args.count) return;
    const PagePart part = at<const PagePart>(args.items)[blockIdx.x];
    const uint32_t index = part.page;
    const Page page = at<const Page>(args.pages)[index];
    const PageState state = at<const PageState>(args.states)[index];
    bool valid = true;
    if (page.kind == PAGE_DICTIONARY) {
        const StringRef* entries = at<const StringRef>(page.entries);
        const uint32_t rounds = (state.valid + blockDim.x - 1) / blockDim.x;
        for (uint32_t round = part.part; round < rounds; round += part.parts) {
            const uint32_t it = round * blockDim.x + threadIdx.x;
            StringRef entry;
            entry.address = 0;
            entry.bytes = 0;
            if (it < state.valid) entry = entries[it];
            const uint64_t end = entry.address + entry.bytes;
            const bool is_long = entry.bytes > UTF8_SHORT;
            if (!is_long) valid = utf8_text(entry.address, end, 0, 1) && valid;
            for (uint32_t left = __ballot_sync(ALL_LANES, is_long); left != 0; left &= left - 1) {
                const uint32_t owner = __ffs(left) - 1;
                const uint64_t first = __shfl_sync(ALL_LANES, entry.address, owner);
                const uint32_t bytes = __shfl_sync(ALL_LANES, entry.bytes, owner);
                valid = utf8_text(first, first + bytes, lane(), 32) && valid;
            }
        }
    } else {
        const Column column = at<const Column>(args.columns)[page.column];
        const uint64_t first = column.data + at<const uint64_t>(args.bases)[blockIdx.x];
        valid = utf8_text(first, first + at<const uint64_t>(args.bytes)[blockIdx.x], threadIdx.x, blockDim.x);
        const Slots own = part_slots(part, state);
        for (uint64_t row = own.begin + threadIdx.x; row < own.end; row += blockDim.x) {
            uint64_t start, end;
            if (column.out_width == 4) {
                start = (uint64_t)at<const int32_t>(column.offsets)[row];
                end = (uint64_t)at<const int32_t>(column.offsets)[row + 1];
            } else {
                start = (uint64_t)at<const int64_t>(column.offsets)[row];
                end = (uint64_t)at<const int64_t>(column.offsets)[row + 1];
            }
            if (end > start && (*at<const uint8_t>(column.data + start) & 0xc0) == 0x80) valid = false;
        }
    }
    if (!valid) raise_fault(args.fault, index, page.kind == PAGE_DICTIONARY ? 0 : state.values - page.body, FAULT_UTF8);
}
