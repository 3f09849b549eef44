//! The ranges of a batch, each by its route.

use std::sync::Arc;

use super::host::HostBytes;
use super::ledger::Ledger;
use super::source::Source;
use crate::device::{DeviceBuffer, Gpu, Stream};
use crate::error::{Error, Result};
use crate::options::IoOptions;
use crate::plan::RangePlan;

/// Reads ranges of one source. Threads, pinned buffers and cuFile handles are made on first use and kept.
#[derive(Debug)]
pub struct Fetcher {
    source: Arc<Source>,
    options: IoOptions,
    gpu: Option<Gpu>,
    ledger: Arc<Ledger>,
}

impl Fetcher {
    /// A fetcher that has opened nothing yet.
    pub fn new(source: Arc<Source>, options: IoOptions, gpu: Option<Gpu>, ledger: Arc<Ledger>) -> Self {
        Self { source, options, gpu, ledger }
    }

    /// Reads every range: into `target.0` where the plan gives a slab offset, else into the host bytes returned. Work
    /// queued on `target.1` after this call sees the bytes; every byte of the source has been read when it returns.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::CuFile`] (compat mode off), [`Error::Device`].
    pub fn fetch(&mut self, ranges: &[RangePlan], target: Option<(&DeviceBuffer, &Stream)>) -> Result<HostBytes> {
        let _ = (ranges, target, &self.source, &self.options, &self.gpu, &self.ledger);
        Err(Error::Argument("stub".into()))
    }
}
