//! The ranges of a batch, each by its route.

use std::sync::Arc;

use super::compat;
use super::cufile::DirectReader;
use super::host::HostBytes;
use super::ledger::Ledger;
use super::posix::HostReader;
use super::source::Source;
use crate::device::{DeviceBuffer, Gpu, Stream};
use crate::error::{Error, Result};
use crate::options::IoOptions;
use crate::plan::{RangePlan, Route, RouteReason};

/// Reads ranges of one source. Threads, pinned buffers and cuFile are made on first use and kept.
#[derive(Debug)]
pub struct Fetcher {
    source: Arc<Source>,
    options: IoOptions,
    gpu: Option<Gpu>,
    ledger: Arc<Ledger>,
    direct: Direct,
    host: HostReader,
}

/// What is known of cuFile and this file.
#[derive(Debug)]
enum Direct {
    Unopened,
    Open(Box<DirectReader>),
    Refused(String),
}

impl Fetcher {
    /// A fetcher that has opened nothing yet.
    pub fn new(source: Arc<Source>, options: IoOptions, gpu: Option<Gpu>, ledger: Arc<Ledger>) -> Self {
        let host = HostReader::new(source.clone(), &options);
        Self { source, options, gpu, ledger, direct: Direct::Unopened, host }
    }

    /// How bytes travel.
    pub fn options(&self) -> &IoOptions {
        &self.options
    }

    /// Reads every range: into `target.0` where the plan gives a slab offset, else into the host bytes returned. Work
    /// queued on `target.1` after this call sees the bytes; every byte of the source has been read when it returns.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::CuFile`] and [`Error::Library`] when cuFile is refused and compat mode is off, and for a
    /// read that fails after it was accepted; [`Error::Device`]; [`Error::Argument`] for a slab range without a slab.
    pub fn fetch(&mut self, ranges: &[RangePlan], target: Option<(&DeviceBuffer, &Stream)>) -> Result<HostBytes> {
        let (to_slab, to_host): (Vec<_>, Vec<_>) = ranges.iter().partition(|it| it.slab_offset.is_some());
        if !to_slab.is_empty() {
            let (slab, stream) = target.ok_or_else(|| Error::Argument("a slab range without a slab".into()))?;
            let (direct, host): (Vec<_>, Vec<_>) = to_slab.into_iter().partition(|it| it.route == Route::Direct);
            let refusal = self.read_direct(&direct, slab)?;
            let fallen_back = if refusal.is_some() { direct } else { Vec::new() };
            let all: Vec<&RangePlan> = host.iter().copied().chain(fallen_back.iter().copied()).collect();
            self.host.read_to_device(&all, slab, stream, self.options.gds_threshold)?;
            host.iter().for_each(|range| self.enter(&range.reason, range));
            let reason = RouteReason::CuFileRefused(refusal.unwrap_or_default());
            fallen_back.iter().for_each(|range| self.enter(&reason, range));
        }
        let bytes = self.host.read_to_host(&to_host)?;
        to_host.iter().for_each(|range| self.enter(&range.reason, range));
        Ok(bytes)
    }

    fn enter(&self, reason: &RouteReason, range: &RangePlan) {
        self.ledger.host(reason, range.tasks.len() as u64, range.read.end - range.read.start);
    }

    /// Reads ranges through cuFile. `Some`: it refused the file, for this reason, and nothing was read.
    fn read_direct(&mut self, ranges: &[&RangePlan], slab: &DeviceBuffer) -> Result<Option<String>> {
        if ranges.is_empty() {
            return Ok(None);
        }
        if matches!(self.direct, Direct::Unopened) {
            let gpu = self.gpu.as_ref().ok_or_else(|| Error::Argument("a direct range without a GPU".into()))?;
            self.direct = match DirectReader::open(&self.source, &self.options, gpu) {
                Ok(reader) => Direct::Open(Box::new(reader)),
                Err(error) => Direct::Refused(compat::refused(self.options.compat_mode, error)?),
            };
        }
        match &mut self.direct {
            Direct::Open(reader) => reader.read(ranges, slab, &self.ledger).map(|()| None),
            Direct::Refused(reason) => Ok(Some(reason.clone())),
            Direct::Unopened => Ok(None),
        }
    }

    /// Ends what ties the slab to cuFile. Call it before a slab that was fetched into is freed.
    pub fn release_slab(&mut self) {
        if let Direct::Open(reader) = &mut self.direct {
            reader.release();
        }
    }
}
