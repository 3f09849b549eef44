// Checksums of pages as they are stored, a block a page: each thread has the CRC of a part of it, and the parts are put
// together. The polynomial is that of gzip, which parquet.thrift names for PageHeader.crc; for how checksums of parts
// combine, a CRC is a remainder of polynomials over GF(2), so that bytes behind a part multiply it by a power of x.
#include "prelude.cuh"

static constexpr unsigned THREADS = 256;            // as in kernels/mod.rs
static constexpr uint32_t POLYNOMIAL = 0xedb88320u; // bits reversed: bit 31 is x^0
static constexpr uint32_t ONE = 0x80000000u;
static constexpr unsigned TABLES = 4;               // bytes taken together

// The product of two polynomials.
DEVICE uint32_t multiply(uint32_t one, uint32_t other) {
    uint32_t product = 0;
    for (unsigned i = 0; i < 32; i++) {
        if (one & (ONE >> i)) product ^= other;
        other = (other & 1) != 0 ? other >> 1 ^ POLYNOMIAL : other >> 1;
    }
    return product;
}

// x to the power of 8 * `bytes`.
DEVICE uint32_t shift_by(uint64_t bytes) {
    uint32_t power = ONE, square = ONE >> 8; // x^8
    for (; bytes != 0; bytes >>= 1) {
        if ((bytes & 1) != 0) power = multiply(square, power);
        square = multiply(square, square);
    }
    return power;
}

KERNEL(pqgpu_crc, CrcArgs, 256) {
    __shared__ uint32_t tables[TABLES][256];
    __shared__ uint32_t sum;
    if (blockIdx.x >= args.count) return;
    const CrcItem item = at<const CrcItem>(args.items)[blockIdx.x];
    uint32_t entry = threadIdx.x;
    for (unsigned i = 0; i < 8; i++) entry = (entry & 1) != 0 ? entry >> 1 ^ POLYNOMIAL : entry >> 1;
    tables[0][threadIdx.x] = entry;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    for (unsigned table = 1; table < TABLES; table++) {
        entry = tables[0][entry & 0xff] ^ entry >> 8;
        tables[table][threadIdx.x] = entry;
    }
    __syncthreads();

    // Parts of whole words, counted from the word that holds the first byte.
    const uint64_t begin = item.source, end = item.source + item.bytes;
    const uint64_t edge = begin & ~3ull;
    const uint64_t part = ((end - edge + THREADS - 1) / THREADS + 3) & ~3ull;
    uint64_t from = edge + threadIdx.x * part, to = from + part;
    if (from < begin) from = begin;
    if (to > end) to = end;
    if (from < to) {
        uint32_t crc = ~0u;
        for (; from < to && (from & 3) != 0; from++) crc = tables[0][(crc ^ *at<const uint8_t>(from)) & 0xff] ^ crc >> 8;
        for (; to - from >= 4; from += 4) {
            crc ^= *at<const uint32_t>(from);
            crc = tables[3][crc & 0xff] ^ tables[2][crc >> 8 & 0xff] ^ tables[1][crc >> 16 & 0xff] ^ tables[0][crc >> 24];
        }
        for (; from < to; from++) crc = tables[0][(crc ^ *at<const uint8_t>(from)) & 0xff] ^ crc >> 8;
        crc = ~crc;
        if (to < end) crc = multiply(shift_by(end - to), crc);
        atomicXor(&sum, crc);
    }
    __syncthreads();
    if (threadIdx.x == 0 && sum != item.crc) raise_fault(args.fault, item.page, 0, FAULT_CRC);
}
