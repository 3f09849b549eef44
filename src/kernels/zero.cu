#include "prelude.cuh"

// Paddings and words that pages share: recycled device memory must not reach a consumer.
KERNEL(pqgpu_zero, ZeroArgs, 128) {
    if (blockIdx.x >= args.count) return;
    const ZeroEntry entry = at<const ZeroEntry>(args.entries)[blockIdx.x];
    zero_bytes(entry.target, entry.bytes);
}
