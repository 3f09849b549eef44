//! Pages for the kernels that decompress, each in a launch of its own, and bytes worth compressing.
#![allow(clippy::unwrap_used)]
#![allow(dead_code)] // each test takes what it needs

use parquet_gpu::device::staging::Staging;
use parquet_gpu::device::{DeviceBuffer, Gpu, Stream};
use parquet_gpu::kernels::abi::{self, page_kind};

/// `snappy::launch` or one like it.
pub type Launch = unsafe fn(&Stream, u64, u64, usize, u64) -> parquet_gpu::Result<()>;

/// A page: `levels` bytes as they are, then the stream.
#[derive(Debug, Clone, Default)]
pub struct Case {
    pub stored: Vec<u8>,
    pub levels: u32,
    pub body_bytes: u32,
}

impl Case {
    pub fn of(stream: Vec<u8>, length: usize) -> Self {
        Self { stored: stream, levels: 0, body_bytes: length as u32 }
    }
}

/// Memory that ends where the bytes end, which begin `skew` bytes after an aligned address.
pub fn on_device(stream: &Stream, bytes: &[u8], skew: u64) -> (DeviceBuffer, u64) {
    let buffer = stream.gpu().alloc(bytes.len() as u64 + skew, stream, "a test").unwrap();
    // SAFETY: waited for below, while `bytes` is borrowed.
    unsafe { stream.copy_to_device(&buffer, skew, bytes).unwrap() };
    stream.synchronize().unwrap();
    let address = buffer.address() + skew;
    (buffer, address)
}

/// Decompresses each case in a launch of its own: the body, or the fault word.
pub fn run(launch: Launch, gpu: &Gpu, cases: &[Case]) -> Vec<Result<Vec<u8>, u64>> {
    let stream = gpu.new_stream().unwrap();
    let mut memory = Vec::new();
    let mut pages = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let (stored, source) = on_device(&stream, &case.stored, (index % 17) as u64);
        let (out, body) = on_device(&stream, &vec![0xAA; case.body_bytes as usize], (index % 5) as u64);
        pages.push(abi::Page {
            source,
            body,
            source_bytes: case.stored.len() as u32,
            body_bytes: case.body_bytes,
            def_bytes: case.levels / 3,
            rep_bytes: case.levels - case.levels / 3,
            kind: if case.levels > 0 { page_kind::DATA_V2 } else { page_kind::DATA_V1 },
            ..abi::Page::default()
        });
        memory.push((stored, out));
    }
    let mut staging = Staging::default();
    let page_slot = staging.push(&pages);
    let item_slot = staging.push(&(0..cases.len() as u32).collect::<Vec<_>>());
    let staged = staging.upload(&stream, "a test").unwrap();
    let (faults, fault_address) = on_device(&stream, &vec![0xff; 8 * cases.len()], 0);
    for index in 0..cases.len() as u64 {
        let items = staged.address(item_slot) + 4 * index;
        // SAFETY: all of it lives until the wait below.
        unsafe { launch(&stream, staged.address(page_slot), items, 1, fault_address + 8 * index).unwrap() };
    }
    let mut words = vec![0u8; 8 * cases.len()];
    // SAFETY: waited for below.
    unsafe { stream.copy_to_host(&mut words, &faults, 0).unwrap() };
    stream.synchronize().unwrap();
    let words: Vec<u64> = words.chunks_exact(8).map(|it| u64::from_le_bytes(it.try_into().unwrap())).collect();
    let mut results = Vec::new();
    for ((case, (_, out)), word) in cases.iter().zip(&memory).zip(words) {
        let mut body = vec![0; case.body_bytes as usize];
        let skew = out.len() - body.len() as u64;
        // SAFETY: waited for below.
        unsafe { stream.copy_to_host(&mut body, out, skew).unwrap() };
        stream.synchronize().unwrap();
        results.push(if word == u64::MAX { Ok(body) } else { Err(word) });
    }
    drop(staged);
    results
}

/// A plain generator: the tests need the same bytes each time.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Repeats of earlier bytes at distances up to `distance`, between short runs of new ones.
pub fn repeats(random: &mut Random, count: usize, distance: usize, fresh: usize) -> Vec<u8> {
    let mut out = random.bytes(8);
    while out.len() < count {
        let fresh = random.next() as usize % (fresh + 1);
        out.extend(random.bytes(fresh));
        let back = 1 + random.next() as usize % distance.min(out.len());
        for _ in 0..4 + random.next() % 90 {
            out.push(out[out.len() - back]);
        }
    }
    out.truncate(count);
    out
}

pub fn inputs() -> Vec<Vec<u8>> {
    let mut random = Random(7);
    let mut all = vec![vec![1], vec![0; 2], b"abcd".repeat(3)];
    for length in
        [15, 16, 17, 31, 32, 33, 59, 60, 61, 62, 63, 64, 65, 127, 128, 255, 256, 257, 511, 512, 513, 1024, 4096]
    {
        all.push(random.bytes(length));
        all.push(vec![length as u8; length]);
    }
    for period in 1..=64 {
        let pattern = random.bytes(period);
        all.push(pattern.iter().cycle().take(period * 3 + 700).copied().collect());
    }
    for length in [65_535, 65_536, 65_537, 131_072, 200_001] {
        all.push(repeats(&mut random, length, 70_000, 20));
    }
    all.push(random.bytes(150_000));
    for (distance, fresh) in [(8, 0), (64, 2), (2_000, 5), (60_000, 100)] {
        all.push(repeats(&mut random, 50_000, distance, fresh));
    }
    // Columns as they are stored: small integers, ascending integers, words.
    all.push((0..20_000u64).flat_map(|it| (it % 50).to_le_bytes()).collect());
    all.push((0..20_000u32).flat_map(|it| (it * 3).to_le_bytes()).collect());
    let words = ["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"];
    all.push((0..5_000).flat_map(|_| words[random.next() as usize % 4].bytes().collect::<Vec<_>>()).collect());
    all
}
