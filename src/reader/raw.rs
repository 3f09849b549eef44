//! A whole file, undecoded, into device memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{Device, DeviceBuffer, Gpu, Stream};
use crate::error::Result;
use crate::io::fetch::Fetcher;
use crate::io::ledger::{Ledger, PathReport};
use crate::io::source::Source;
use crate::options::ReadOptions;
use crate::plan::{self, Context, RangePlan};

/// Bytes that are compared at a time.
const VERIFY_PIECE: usize = 16 << 20;

/// Reads one file raw, as often as asked, into the same device memory; on the CPU device into host memory.
#[derive(Debug)]
pub struct RawReader {
    source: Arc<Source>,
    range: RangePlan,
    fetcher: Fetcher,
    target: Option<(DeviceBuffer, Stream)>,
    ledger: Arc<Ledger>,
}

impl RawReader {
    /// Takes the memory; reads nothing.
    ///
    /// # Errors
    /// [`Error::Budget`](crate::Error::Budget) when the file does not fit, [`Error::Device`](crate::Error::Device).
    pub fn try_new(source: Arc<Source>, device: &Device, options: &ReadOptions) -> Result<Self> {
        let gpu = match device {
            Device::Gpu(gpu) => {
                let memory = options.memory.map_or_else(|| gpu.free_memory().map(|free| free / 10 * 8), Ok)?;
                Some(gpu.with_budget(memory))
            }
            Device::Cpu => None,
        };
        let context = Context {
            local: source.file().is_some(),
            gpu: gpu.is_some(),
            codecs: &[],
            host_codecs: &[],
            encodings: &[],
            memory: gpu.as_ref().map_or(u64::MAX, |gpu: &Gpu| gpu.budget().limit()),
        };
        let range = plan::raw(source.len(), options, &context);
        let target = gpu.as_ref().map(|gpu| {
            let bytes = range.slab_offset.unwrap_or(0).saturating_add(range.read.end - range.read.start);
            Ok((gpu.alloc_slab(bytes, "the file")?, gpu.new_stream()?))
        });
        let target = target.transpose()?;
        let ledger = Arc::new(Ledger::default());
        let fetcher = Fetcher::new(source.clone(), options.io.clone(), gpu, ledger.clone());
        Ok(Self { source, range, fetcher, target, ledger })
    }

    /// Reads the file once. The time runs until the last byte is in device memory; a first call also makes threads,
    /// pinned buffers and the cuFile driver.
    ///
    /// # Errors
    /// As [`Fetcher::fetch`].
    pub fn read(&mut self) -> Result<Duration> {
        let start = Instant::now();
        let target = self.target.as_ref().map(|(slab, stream)| (slab, stream));
        let fetched = self.fetcher.fetch(std::slice::from_ref(&self.range), target);
        if let Some((_, stream)) = &self.target {
            stream.synchronize()?;
        }
        fetched?;
        Ok(start.elapsed())
    }

    /// Compares what is on the device with the source, byte by byte. `Some`: the first offset that differs. On the CPU
    /// device there is nothing to compare: its bytes are not kept.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), [`Error::Device`](crate::Error::Device).
    pub fn verify(&self) -> Result<Option<u64>> {
        let Some((slab, stream)) = &self.target else { return Ok(None) };
        let mut device = vec![0; VERIFY_PIECE];
        let mut file = vec![0; VERIFY_PIECE];
        for piece in plan::split(&self.range.bytes, VERIFY_PIECE as u64) {
            let bytes = (piece.end - piece.start) as usize;
            let offset = self.range.slab_offset.unwrap_or(0) + (piece.start - self.range.read.start);
            // SAFETY: the target is not touched before the stream has been synchronised.
            unsafe { stream.copy_to_host(&mut device[..bytes], slab, offset)? };
            stream.synchronize()?;
            self.source.read_at(piece.start, &mut file[..bytes])?;
            if let Some(at) = device[..bytes].iter().zip(&file[..bytes]).position(|(ours, theirs)| ours != theirs) {
                return Ok(Some(piece.start + at as u64));
            }
        }
        Ok(None)
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.range.bytes.end - self.range.bytes.start
    }

    /// Operations of one read.
    pub fn operations(&self) -> usize {
        self.range.tasks.len()
    }

    /// The device memory that holds the file, and where in it the file starts.
    pub fn target(&self) -> Option<(&DeviceBuffer, u64)> {
        self.target.as_ref().map(|(slab, _)| (slab, self.range.slab_offset.unwrap_or(0)))
    }

    /// Which path every operation took, of all reads so far.
    pub fn report(&self) -> PathReport {
        self.ledger.report()
    }
}
