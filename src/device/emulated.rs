//! The kernels on the CPU.

use std::ffi::c_void;
use std::sync::Arc;

use super::Backend;

/// What one emulated thread runs.
pub type KernelBody = unsafe extern "C" fn(args: *const c_void);

/// The emulated device.
#[derive(Debug)]
pub struct EmulatedBackend {}

impl EmulatedBackend {
    /// A device whose threads run in an order that `seed` chooses.
    pub fn new(seed: u64) -> Arc<dyn Backend> {
        let _ = seed;
        std::process::abort()
    }
}
