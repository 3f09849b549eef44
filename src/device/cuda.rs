//! CUDA devices; the only user of cudarc.

use std::sync::Arc;

use super::Backend;
use crate::error::{Error, Result};

/// A CUDA device.
#[derive(Debug)]
pub struct CudaBackend {}

impl CudaBackend {
    /// Opens a device by ordinal.
    pub fn open(ordinal: u32) -> Result<Arc<dyn Backend>> {
        Err(Error::Device { device: format!("cuda:{ordinal}"), message: "stub".into() })
    }
}
