#include "rows.cuh"

// Decimals in byte arrays, from a reference a slot: big-endian two's complement of any length up to the Arrow value's,
// no bytes at all being 0. A slot without a reference is one of no bytes. As arrow-rs, whatever is longer is refused,
// leading zeros included.
KERNEL(pqgpu_byte_decimals, ByteDecimalsArgs, 128) {
    if (blockIdx.x >= args.count) return;
    const PagePart part = at<const PagePart>(args.items)[blockIdx.x];
    const uint32_t index = part.page;
    const Page page = at<const Page>(args.pages)[index];
    const PageState state = at<const PageState>(args.states)[index];
    if (state.values == 0) return;
    const Column column = at<const Column>(args.columns)[page.column];
    const StringRef* refs = at<const StringRef>(column.refs);
    const Slots own = part_slots(part, state);
    const uint32_t words = column.out_width / 8;
    bool fits = true;
    for (uint64_t slot = own.begin + threadIdx.x; slot < own.end; slot += blockDim.x) {
        StringRef ref = refs[slot];
        if (ref.bytes > column.out_width) {
            fits = false;
            ref.bytes = 0;
        }
        const uint8_t* in = at<const uint8_t>(ref.address);
        const uint64_t sign = ref.bytes > 0 && in[0] & 0x80 ? ~0ull : 0;
        uint64_t* out = at<uint64_t>(column.values) + slot * words;
        for (uint32_t word = 0; word < words; ++word) {
            // From the last byte backwards; what is not there is the sign.
            const uint32_t below = 8 * word;
            const uint32_t bytes = ref.bytes > below ? min(8u, ref.bytes - below) : 0;
            uint64_t value = bytes < 8 ? sign << (8 * bytes) : 0;
            for (uint32_t it = 0; it < bytes; ++it) value |= (uint64_t)in[ref.bytes - 1 - below - it] << (8 * it);
            out[word] = value;
        }
    }
    if (!fits) raise_fault(args.fault, index, state.values - page.body, FAULT_DECIMAL_LENGTH);
}
