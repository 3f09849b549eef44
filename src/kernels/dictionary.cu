#include "chain.cuh"

// The page's state counts the entries: a dictionary may end before the number that its header states (arrow-rs then
// has fewer entries), but not inside an entry.
KERNEL(pqgpu_dictionary_strings, DictionaryStringsArgs, 128) {
    if (blockIdx.x >= args.count) return;
    __shared__ Chain chain;
    const uint32_t index = at<const uint32_t>(args.items)[blockIdx.x];
    const Page page = at<const Page>(args.pages)[index];
    // A page that did not decompress has no entries.
    if (threadIdx.x == 0) chain_begin(chain, page.body, page.body, has_fault(args.fault, index) ? 0 : page.body_bytes);
    uint32_t found = 0;
    while (found < page.num_values) {
        const uint32_t wanted = min(CHAIN_VALUES, page.num_values - found);
        chain_next(chain, wanted);
        for (uint32_t it = threadIdx.x; it < chain.count; it += blockDim.x) {
            StringRef entry;
            entry.address = page.body + chain.start[it];
            entry.bytes = chain.length[it];
            entry._pad = 0;
            at<StringRef>(page.entries)[found + it] = entry;
        }
        found += chain.count;
        if (chain.fault || chain.count < wanted) break;
    }
    if (threadIdx.x == 0) {
        if (chain.fault) raise_fault(args.fault, index, chain.position, chain.fault);
        PageState state;
        state.values = page.body;
        state.value_bytes = page.body_bytes;
        state.valid = found;
        state.string_bytes = 0;
        state.first_slot = 0;
        state.slots = 0;
        state.rows = 0;
        at<PageState>(args.states)[index] = state;
    }
}
