//! The devices under test: the emulated one in several orders, and a GPU where there is one.
//! `PARQUET_GPU_REQUIRE_GPU=1` makes a missing GPU a failure.

use std::sync::OnceLock;

use parquet_gpu::device::Gpu;

/// The emulated device with a seed of its own, in builds that have it, and the GPU.
pub fn devices(seed: u64) -> Vec<Gpu> {
    let mut devices = Vec::new();
    #[cfg(feature = "emulated")]
    devices.push(Gpu::new(parquet_gpu::device::emulated::EmulatedBackend::new(seed)));
    devices.extend(cuda());
    let _ = seed;
    devices
}

/// The emulated device with each seed, and the GPU.
#[allow(dead_code)] // not every test has kernels that race
pub fn devices_with(seeds: &[u64]) -> Vec<Gpu> {
    let mut devices: Vec<Gpu> =
        seeds.iter().flat_map(|seed| devices(*seed)).filter(|it| it.name() != "cuda:0").collect();
    devices.extend(cuda());
    devices
}

/// The GPU, opened once.
fn cuda() -> Option<Gpu> {
    static CUDA: OnceLock<Option<Gpu>> = OnceLock::new();
    CUDA.get_or_init(open).clone()
}

#[cfg(feature = "cuda")]
fn open() -> Option<Gpu> {
    match parquet_gpu::device::cuda::CudaBackend::open(0) {
        Ok(backend) => Some(Gpu::new(backend)),
        Err(error) if std::env::var("PARQUET_GPU_REQUIRE_GPU").is_ok_and(|it| it == "1") => {
            panic!("PARQUET_GPU_REQUIRE_GPU is set, and there is no GPU: {error}")
        }
        Err(error) => {
            println!("skipped on cuda:0: {error}");
            None
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn open() -> Option<Gpu> {
    println!("skipped on cuda:0: built without the feature `cuda`");
    None
}
