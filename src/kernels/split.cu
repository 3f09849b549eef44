#include "prelude.cuh"

// BYTE_STREAM_SPLIT pages (parquet-format, Encodings.md): the first bytes of all values, then the second ones and so on.
// They become values as in a PLAIN page.
KERNEL(pqgpu_split, SplitArgs, 128) {
    if (blockIdx.x >= args.count) return;
    const uint32_t index = at<const uint32_t>(args.items)[blockIdx.x];
    const Page page = at<const Page>(args.pages)[index];
    const PageState state = at<const PageState>(args.states)[index];
    if (state.values == 0) return;
    const Column column = at<const Column>(args.columns)[page.column];
    const uint32_t width = column.in_width;
    const uint32_t streams = state.value_bytes / width; // bytes of each
    const bool uneven = (column.flags & COLUMN_FIXED_LEN) && state.value_bytes % width != 0;
    __syncthreads(); // the state is about to change
    if (uneven || streams < state.valid) {
        if (threadIdx.x == 0) {
            raise_fault(args.fault, index, state.values - page.body, FAULT_VALUES_TRUNCATED);
            at<PageState>(args.states)[index].values = 0;
        }
        return;
    }
    for (uint32_t it = threadIdx.x; it < state.valid; it += blockDim.x) {
        const uint64_t in = state.values + it;
        const uint64_t out = page.expanded + (uint64_t)it * width;
        for (uint32_t byte = 0; byte < width; ++byte) {
            *at<uint8_t>(out + byte) = *at<const uint8_t>(in + (uint64_t)byte * streams);
        }
    }
    if (threadIdx.x == 0) {
        at<PageState>(args.states)[index].values = page.expanded;
        at<PageState>(args.states)[index].value_bytes = state.valid * width;
    }
}
