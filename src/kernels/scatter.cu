#include "prelude.cuh"

// A block an entry: small ranges are at most a few KiB, and there are many.
KERNEL(pqgpu_scatter, ScatterArgs, 128) {
    for (uint64_t it = blockIdx.x; it < args.count; it += gridDim.x) {
        const ScatterEntry entry = at<const ScatterEntry>(args.entries)[it];
        copy_bytes(at<void>(entry.target), at<const void>(entry.source), entry.bytes, threadIdx.x, blockDim.x);
    }
}
