#include "prelude.cuh"

// Paddings and words that pages share: recycled device memory must not reach a consumer.
KERNEL(pqgpu_zero, ZeroArgs, 128) {
    if (blockIdx.x >= args.count) return;
    const ZeroEntry entry = at<const ZeroEntry>(args.entries)[blockIdx.x];
    const uint64_t end = entry.target + entry.bytes;
    uint64_t words = (entry.target + 7) & ~7ull; // 8-byte stores between unaligned edges
    if (words > end) words = end;
    const uint64_t tail = words + ((end - words) & ~7ull);
    for (uint64_t it = entry.target + threadIdx.x; it < words; it += blockDim.x) *at<uint8_t>(it) = 0;
    for (uint64_t it = words + 8ull * threadIdx.x; it < tail; it += 8ull * blockDim.x) *at<uint64_t>(it) = 0;
    for (uint64_t it = tail + threadIdx.x; it < end; it += blockDim.x) *at<uint8_t>(it) = 0;
}
