// Small kernels for the tests of simt.h and of prelude.cuh (device/simt_tests.rs).
#include "prelude.cuh"

struct TestArgs {
    uint64_t input;
    uint64_t output;
};

KERNEL(simt_test_scan, TestArgs, 256) {
    const uint64_t value = at<uint64_t>(args.input)[threadIdx.x];
    uint64_t total;
    const uint64_t before = block_scan<256>(value, total);
    at<uint64_t>(args.output)[threadIdx.x] = before;
    const uint64_t greatest = block_max<256>(value), smallest = block_min<256>(value);
    if (threadIdx.x == 200) {
        at<uint64_t>(args.output)[256] = total;
        at<uint64_t>(args.output)[257] = greatest;
        at<uint64_t>(args.output)[258] = smallest;
    }
}
