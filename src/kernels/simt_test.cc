// Small kernels for the tests of simt.h and of prelude.cuh (device/simt_tests.rs, device/emulated_tests.rs).
#include "prelude.cuh"

struct TestArgs {
    uint64_t input;
    uint64_t output;
    uint64_t number;
};

KERNEL(simt_test_scan, TestArgs, 256) {
    const uint64_t value = at<uint64_t>(args.input)[threadIdx.x];
    uint64_t total;
    const uint64_t before = block_scan<256>(value, total);
    at<uint64_t>(args.output)[threadIdx.x] = before;
    const uint64_t greatest = block_max<256>(value), smallest = block_min<256>(value);
    uint32_t narrow_total;
    const uint32_t narrow = block_scan<256>((uint32_t)value, narrow_total);
    const uint64_t sum = block_sum<256>(value);
    if (threadIdx.x == 200) {
        at<uint64_t>(args.output)[256] = total;
        at<uint64_t>(args.output)[257] = greatest;
        at<uint64_t>(args.output)[258] = smallest;
        at<uint64_t>(args.output)[259] = narrow == (uint32_t)before && narrow_total == (uint32_t)total && sum == total;
    }
}

// Where each thread says it is.
KERNEL(simt_test_places, TestArgs, 96) {
    const uint64_t self = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    at<uint64_t>(args.output)[self] = (uint64_t)blockIdx.x << 32 | warp() << 16 | lane() << 8 | gridDim.x;
}

// One result a row of 64 threads.
KERNEL(simt_test_warp, TestArgs, 64) {
    const unsigned t = threadIdx.x;
    const uint64_t wide = at<uint64_t>(args.input)[t];
    const uint32_t narrow = (uint32_t)wide;
    uint64_t* out = at<uint64_t>(args.output) + t;
    unsigned row = 0;
    const auto put = [&](uint64_t value) { out[64 * row++] = value; };
    put(__shfl_sync(ALL_LANES, wide, (int)(wide % 32)));
    put(__shfl_sync(ALL_LANES, narrow, 35));
    put(__shfl_up_sync(ALL_LANES, wide, 3));
    put(__shfl_down_sync(ALL_LANES, narrow, 5));
    put(__shfl_xor_sync(ALL_LANES, wide, 9));
    put(__shfl_up_sync(ALL_LANES, narrow, 1, 8));
    put(__shfl_down_sync(ALL_LANES, narrow, 2, 16));
    put(__shfl_sync(ALL_LANES, narrow, 1, 4));
    put(__ballot_sync(ALL_LANES, wide & 1));
    put((uint64_t)__any_sync(ALL_LANES, wide == at<uint64_t>(args.input)[7]));
    put((uint64_t)__all_sync(ALL_LANES, t < 32));
    put(__match_any_sync(ALL_LANES, narrow % 3));
    put(__reduce_add_sync(ALL_LANES, narrow));
    put(__reduce_min_sync(ALL_LANES, narrow));
    put(__reduce_max_sync(ALL_LANES, narrow));
    put((uint64_t)(int64_t)__reduce_min_sync(ALL_LANES, (int)narrow));
    put(__reduce_xor_sync(ALL_LANES, narrow));
}

// The halves of a warp go their own ways, meet, and part again.
KERNEL(simt_test_masks, TestArgs, 64) {
    const unsigned l = lane();
    const unsigned own = l < 16 ? 0x0000ffffu : 0xffff0000u;
    uint64_t sum = 0;
    for (unsigned round = 0; round < (l < 16 ? 3u : 7u); round++) {
        sum += __shfl_xor_sync(own, l + round, 1);
        __syncwarp(own);
    }
    sum += 1000ull * (unsigned)__popc(__ballot_sync(ALL_LANES, l % 2));
    if (l % 4 == 0) sum += 100000ull * (unsigned)__popc(__ballot_sync(0x11111111u, 1));
    at<uint64_t>(args.output)[threadIdx.x] = sum;
}

KERNEL(simt_test_barriers, TestArgs, 128) {
    __shared__ uint32_t turns[128];
    const unsigned t = threadIdx.x;
    uint64_t sum = 0;
    for (unsigned round = 0; round < 50; round++) {
        turns[t] = round * 1000 + t;
        __syncthreads();
        sum += turns[(t + round) % 128] == round * 1000 + (t + round) % 128;
        __syncthreads();
    }
    uint64_t* out = at<uint64_t>(args.output) + t * 4;
    out[0] = sum;
    out[1] = (uint64_t)__syncthreads_count(t % 3 == 0);
    out[2] = (uint64_t)(__syncthreads_or(t == 77) * 2 + __syncthreads_or(t > 200));
    out[3] = (uint64_t)(__syncthreads_and(t < 128) * 2 + __syncthreads_and(t < 127));
}

KERNEL(simt_test_atomics, TestArgs, 64) {
    const uint64_t self = (uint64_t)blockIdx.x * 64 + threadIdx.x;
    unsigned long long* wide = at<unsigned long long>(args.output);
    unsigned* narrow = at<unsigned>(args.output + 80);
    atomicAdd(wide, self);
    atomicMin(wide + 1, self + 5);
    atomicMax(wide + 2, self);
    atomicOr(wide + 3, 1ull << self % 64);
    atomicAnd(wide + 4, ~(1ull << self % 61));
    atomicXor(wide + 5, self);
    // A counter by compare-and-swap, each number handed out once.
    unsigned long long seen = wide[6];
    while (true) {
        const unsigned long long before = atomicCAS(wide + 6, seen, seen + 1);
        if (before == seen) break;
        seen = before;
    }
    atomicAdd(wide + 7, seen);
    atomicAdd(wide + 8, (unsigned long long)(atomicExch(wide + 9, self) == self));
    atomicAdd(narrow, 3);
    atomicSub(narrow + 1, 1);
    atomicMin((int*)narrow + 2, (int)self - 100);
    atomicMax(narrow + 3, (unsigned)self);
    atomicAdd(narrow + 4, atomicAdd(narrow + 5, 1));
}

KERNEL(simt_test_bits, TestArgs, 32) {
    const uint64_t value = at<uint64_t>(args.input)[threadIdx.x];
    const uint32_t low = (uint32_t)value, high = (uint32_t)(value >> 32);
    uint64_t* out = at<uint64_t>(args.output) + threadIdx.x * 16;
    out[0] = (uint64_t)__popc(low);
    out[1] = (uint64_t)__popcll(value);
    out[2] = (uint64_t)__ffs((int)low);
    out[3] = (uint64_t)__ffsll((long long)value);
    out[4] = (uint64_t)__clz((int)low);
    out[5] = (uint64_t)__clzll((long long)value);
    out[6] = __brev(low);
    out[7] = __brevll(value);
    out[8] = __byte_perm(low, high, 0x6341);
    out[9] = __byte_perm(low, high, 0x08f7);
    out[10] = __funnelshift_r(low, high, 13);
    out[11] = __funnelshift_l(low, high, 13);
    out[12] = __umul64hi(value, value);
    out[13] = min(low, high) + (max(low, high) * 2ull);
    out[14] = (uint64_t)min((int)low, 5);
    out[15] = __funnelshift_r(low, high, 32);
}

// Each thread copies its neighbour's word. Without the barrier it is right only if the neighbour came first.
DEVICE void neighbours(const TestArgs& args, bool wait) {
    __shared__ uint64_t words[64];
    words[threadIdx.x] = threadIdx.x + 1;
    if (wait) __syncthreads();
    at<uint64_t>(args.output)[threadIdx.x] = threadIdx.x == 0 ? 0 : words[threadIdx.x - 1];
}
KERNEL(simt_test_race, TestArgs, 64) { neighbours(args, false); }
KERNEL(simt_test_no_race, TestArgs, 64) { neighbours(args, true); }

// Each block relies on the one before it, which a grid does not promise.
KERNEL(simt_test_block_race, TestArgs, 32) {
    uint64_t* out = at<uint64_t>(args.output);
    if (threadIdx.x == 0) out[blockIdx.x + 1] = out[blockIdx.x] + 1;
}

// An increment that is not atomic, with an atomic operation elsewhere between its read and its write.
KERNEL(simt_test_lost_update, TestArgs, 64) {
    uint64_t* out = at<uint64_t>(args.output);
    const uint64_t before = out[0];
    atomicAdd((unsigned long long*)out + 1, 1ull);
    out[0] = before + 1;
}

// What shared memory holds before anybody wrote it.
KERNEL(simt_test_undefined, TestArgs, 32) {
    __shared__ uint64_t words[32];
    at<uint64_t>(args.output)[threadIdx.x] = words[threadIdx.x];
    words[threadIdx.x] = 0;
}

// One way each in which threads miss each other.
KERNEL(simt_test_diverge, TestArgs, 64) {
    const unsigned t = threadIdx.x;
    unsigned result = 0;
    switch (blockIdx.x == 1 ? args.number : 0) {
        case 1: // returns before a barrier
            if (t == 3) return;
            __syncthreads();
            break;
        case 2: // another barrier
            if (t < 32) __syncthreads();
            else __syncthreads();
            break;
        case 3: // another kind of barrier
            if (t < 32) __syncthreads();
            else result = (unsigned)__syncthreads_or(1);
            break;
        case 4: // returns before a warp function
            if (t == 37) return;
            result = __shfl_sync(ALL_LANES, t, 0);
            break;
        case 5: // a mask without the caller
            result = __ballot_sync(0xfffffffeu, 1);
            break;
        case 6: // another function
            if (lane() < 16) __syncwarp();
            else result = __ballot_sync(ALL_LANES, 1);
            break;
        case 7: // masks that overlap and differ
            __syncwarp(lane() < 16 ? 0x0001ffffu : 0xffff8000u);
            break;
        case 8: // one warp at a barrier, the other at a warp function with a lane that is at the barrier
            if (t < 33) __syncthreads();
            else __syncwarp();
            break;
        default: break;
    }
    at<uint64_t>(args.output)[t] = result;
}

// Copies `number >> 16` bytes from input to output; `number & 0xffff` is the number of threads that take part.
KERNEL(simt_test_copy, TestArgs, 64) {
    const unsigned threads = (unsigned)(args.number & 0xffff);
    if (threadIdx.x < threads) {
        copy_bytes(at<void>(args.output), at<void>(args.input), args.number >> 16, threadIdx.x, threads);
    }
}

// Loads at every alignment, of the last bytes that there are.
KERNEL(simt_test_loads, TestArgs, 32) {
    const uint8_t* bytes = at<uint8_t>(args.input) + threadIdx.x;
    uint64_t* out = at<uint64_t>(args.output) + threadIdx.x * 3;
    out[0] = load_u16(bytes + 6);
    out[1] = load_u32(bytes + 4);
    out[2] = load_u64(bytes);
}

KERNEL(simt_test_fault, TestArgs, 32) {
    raise_fault(args.output, 40 - threadIdx.x, 1000ull * threadIdx.x, threadIdx.x + 1);
}

// What the sanitizers must see; 0 is nothing.
KERNEL(simt_test_wrong, TestArgs, 32) {
    __shared__ uint32_t words[32];
    uint32_t* volatile hidden = words; // from UBSan, which knows the array's size and would come first
    hidden[threadIdx.x + (args.number == 2)] = 7;
    __syncthreads();
    uint64_t* out = at<uint64_t>(args.output) + threadIdx.x;
    if (args.number == 1) out += 1;
    if (args.number == 3) out = (uint64_t*)((uint8_t*)out + 4 * (threadIdx.x == 0));
    *out = words[31 - threadIdx.x];
    if (args.number == 4) *out = (uint64_t)((int)words[0] + 0x7ffffff9);
}
