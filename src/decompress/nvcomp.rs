//! ZSTD and GZIP pages by nvCOMP, all pages of a codec in one call.
//!
//! nvCOMP looks little at what it is given: its headers call the outcome of a corrupt buffer undefined. So a page counts
//! as done only when its status, which starts as a failure, says so and it came to the length in its header; any other
//! sends its chunk to the CPU, whose codecs have the last word. nvCOMP reads no GZIP of several members, for one.

use std::collections::BTreeMap;
use std::ffi::c_int;

use parquet::basic::{Compression, GzipLevel, ZstdLevel};

use super::{ALIGN, check_levels};
use crate::device::staging::Staging;
use crate::device::{DeviceBuffer, Stream};
use crate::error::{Error, Result};
use crate::kernels::abi::{ScatterArgs, ScatterEntry, page_kind};
use crate::page::PageTable;
use crate::sys::nvcomp::{self, Alignments, Batch, Codec, NvComp};

/// Codecs that nvCOMP decompresses, where it is there; a level matters to writers alone.
pub fn codecs() -> Vec<Compression> {
    vec![Compression::ZSTD(ZstdLevel::default()), Compression::GZIP(GzipLevel::default())]
}

fn codec(compression: Compression) -> Option<Codec> {
    match compression {
        Compression::ZSTD(_) => Some(Codec::Zstd),
        Compression::GZIP(_) => Some(Codec::Gzip),
        _ => None,
    }
}

/// What has become of the chunks.
#[derive(Debug, Default)]
#[must_use]
pub struct Outcome {
    /// Memory of the plain bodies; keep it until the last kernel that reads pages is done.
    pub scratch: Vec<DeviceBuffer>,
    /// Chunks that are not done, by index in the table, with the reason.
    pub refused: BTreeMap<usize, String>,
}

/// A page and where it goes, in addresses or, of the scratch memory, offsets.
#[derive(Debug, Clone, Copy)]
struct Item {
    page: usize,
    chunk: usize,
    source: u64,
    levels: u64,
    /// Bytes of the compressed values, and of the plain ones.
    stored: u64,
    plain: u64,
    /// Offset of the body.
    body: u64,
}

impl Item {
    /// Whether there is something for nvCOMP in it. A page without values is done with its levels; one too short for a
    /// frame is not shown to it.
    fn has_values(&self, codec: Codec) -> bool {
        self.plain > 0 && self.stored >= shortest(codec)
    }
}

/// Bytes of the shortest stream: a GZIP header of 10, an empty block of 2, a trailer of 8 (RFC 1952); a ZSTD magic
/// number of 4, a frame header of 2, a block header of 3 (RFC 8878).
fn shortest(codec: Codec) -> u64 {
    match codec {
        Codec::Gzip => 20,
        Codec::Zstd => 9,
    }
}

/// Decompresses the pages of those of `chunks` (indices in the table, ascending) that are ZSTD or GZIP, and enters the
/// plain bodies of every chunk whose pages all succeed. One host wait in all.
///
/// The scratch memory that nvCOMP asks for is counted; where the budget has no room for it, the chunks are refused.
///
/// # Errors
/// [`Error::Corrupt`] for V2 pages whose levels do not fit; [`Error::Budget`] when the bodies do not fit, before anything
/// is allocated; [`Error::Device`].
///
/// # Safety
/// The bytes of every chunk are valid device memory, and whatever writes them is ordered before the work queued on
/// `stream` from now on. `library` works on the device of `stream`.
pub unsafe fn run(library: &NvComp, stream: &Stream, table: &mut PageTable, chunks: &[usize]) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut running = Vec::new();
    for wanted in [Codec::Zstd, Codec::Gzip] {
        let of: Vec<usize> =
            chunks.iter().copied().filter(|at| codec(table.chunks()[*at].codec) == Some(wanted)).collect();
        if of.is_empty() {
            continue;
        }
        // SAFETY: the caller's promise.
        match unsafe { Running::start(library, wanted, stream, table, &of)? } {
            Ok(started) => running.push((of, started)),
            Err(why) => outcome.refused.extend(of.into_iter().map(|chunk| (chunk, why.clone()))),
        }
    }
    if !running.is_empty() {
        // The stream is waited for before a buffer that is on its way is freed: a failure here drops `running` after it.
        let read: Result<Vec<()>> = running.iter_mut().map(|(_, it)| it.read(stream)).collect();
        stream.synchronize()?;
        read?;
    }
    for (of, it) in running {
        it.results(&mut outcome.refused);
        for chunk in of.into_iter().filter(|chunk| !outcome.refused.contains_key(chunk)) {
            let items = it.items.iter().filter(|item| item.chunk == chunk);
            table.set_plain(chunk, items.map(|item| (item.page, it.scratch.address() + item.body)));
        }
        outcome.scratch.push(it.scratch);
    }
    Ok(outcome)
}

/// A batch of one codec under way.
struct Running {
    codec: Codec,
    items: Vec<Item>,
    scratch: DeviceBuffer,
    /// Values by index in `items`; the rest have none.
    values: Vec<usize>,
    results: DeviceBuffer,
    read: Vec<u8>,
    _kept: Vec<DeviceBuffer>,
    _staged: crate::device::staging::Staged,
}

impl Running {
    /// Queues a batch. The inner error: nvCOMP cannot, and why.
    ///
    /// # Safety
    /// As [`run`].
    unsafe fn start(
        library: &NvComp,
        codec: Codec,
        stream: &Stream,
        table: &PageTable,
        chunks: &[usize],
    ) -> Result<Result<Self, String>> {
        let refused = |status: c_int| Ok(Err(format!("nvCOMP: {}", nvcomp::describe(status))));
        stream.gpu().backend().bind()?;
        let alignments = match library.alignments(codec) {
            Ok(alignments) => alignments,
            Err(status) => return refused(status),
        };
        let (items, total) = items(table, chunks, &alignments)?;
        let scratch = stream.gpu().alloc(total, stream, "plain page bodies")?;

        let values: Vec<usize> = (0..items.len()).filter(|at| items[*at].has_values(codec)).collect();
        let (mut moves, packed_bytes) = moves(&items, &values, &alignments);
        let largest = values.iter().map(|at| items[*at].plain).max().unwrap_or(0);
        let plain: u64 = values.iter().map(|at| items[*at].plain).sum();
        let asked = match values.len() {
            0 => Ok(0),
            // SAFETY: the context was made current above.
            count => unsafe { library.temporary_bytes(codec, count, largest as usize, plain as usize, stream.raw()) },
        };
        let temporary_bytes = match asked {
            Ok(bytes) => bytes,
            Err(status) => return refused(status),
        };
        let allocated = stream
            .gpu()
            .alloc(temporary_bytes as u64, stream, "nvCOMP's scratch")
            .and_then(|temporary| Ok((temporary, stream.gpu().alloc(packed_bytes, stream, "aligned pages")?)));
        let (temporary, packed) = match allocated {
            Ok(both) => both,
            Err(Error::Budget { .. }) => return Ok(Err("nvCOMP: its scratch memory does not fit the budget".into())),
            Err(error) => return Err(error),
        };
        for it in &mut moves {
            it.target += if it.is_input { packed.address() } else { scratch.address() };
        }

        let count = values.len();
        let mut inputs: Vec<u64> = values.iter().map(|at| items[*at].source + items[*at].levels).collect();
        for it in moves.iter().filter(|it| it.is_input) {
            inputs[it.value] = it.target;
        }
        let of = |pick: fn(&Item) -> u64| values.iter().map(|at| pick(&items[*at])).collect::<Vec<u64>>();
        let mut outputs = of(|it| it.body + it.levels);
        outputs.iter_mut().for_each(|it| *it += scratch.address());
        let entries: Vec<ScatterEntry> = moves.iter().map(|it| it.entry()).collect();
        let mut staging = Staging::default();
        let entry_slot = staging.push(&entries);
        let [input_slot, input_bytes, output_slot, output_bytes] =
            [inputs, of(|it| it.stored), outputs, of(|it| it.plain)].map(|it| staging.push(&it));
        let staged = staging.upload(stream, "nvCOMP's arrays")?;
        // Written lengths, then statuses: neither is a success before nvCOMP has said so.
        let results = stream.gpu().alloc((count * 12) as u64, stream, "nvCOMP's results")?;
        stream.fill(&results, 0, count * 12, 0x7f)?;
        let args = ScatterArgs { entries: staged.address(entry_slot), count: entries.len() as u64 };
        let blocks = u32::try_from(entries.len()).unwrap_or(u32::MAX).min(MAX_BLOCKS);
        // SAFETY: pages are the caller's promise; targets lie in `packed` and `scratch`, which outlive the wait.
        unsafe { stream.launch(blocks, &args)? };
        let batch = Batch {
            inputs: staged.address(input_slot),
            input_bytes: staged.address(input_bytes),
            outputs: staged.address(output_slot),
            output_bytes: staged.address(output_bytes),
            written: results.address(),
            statuses: results.address() + 8 * count as u64,
            count,
            temporary: temporary.address(),
            temporary_bytes,
        };
        if library.is_fake() {
            stream.synchronize()?; // it knows nothing of streams
        }
        if count > 0 {
            // SAFETY: the context is current still; the arrays are in `staged` and `results`, and what they name was
            // said above.
            if let Err(status) = unsafe { library.decompress(codec, &batch, stream.raw()) } {
                stream.synchronize()?;
                return refused(status);
            }
        }
        let _kept = vec![temporary, packed];
        let read = vec![0; count * 12];
        Ok(Ok(Self { codec, items, scratch, values, results, read, _kept, _staged: staged }))
    }

    /// Queues the copy of the results; the caller waits.
    fn read(&mut self, stream: &Stream) -> Result<()> {
        if self.read.is_empty() {
            return Ok(()); // no page has values
        }
        // SAFETY: `read` is not touched before the caller's wait, and lives as long.
        unsafe { stream.copy_to_host(&mut self.read, &self.results, 0) }
    }

    /// Adds the chunks of which a page failed.
    fn results(&self, refused: &mut BTreeMap<usize, String>) {
        for item in self.items.iter().filter(|it| it.plain > 0 && !it.has_values(self.codec)) {
            refused.entry(item.chunk).or_insert_with(|| "a page is too short for nvCOMP".into());
        }
        let (written, statuses) = self.read.split_at(8 * self.values.len());
        for ((&at, written), status) in self.values.iter().zip(written.chunks_exact(8)).zip(statuses.chunks_exact(4)) {
            let item = &self.items[at];
            let written: u64 = bytemuck::pod_read_unaligned(written);
            let status: c_int = bytemuck::pod_read_unaligned(status);
            if status != nvcomp::SUCCESS {
                refused.entry(item.chunk).or_insert_with(|| format!("nvCOMP: {}", nvcomp::describe(status)));
            } else if written != item.plain {
                let why = || "nvCOMP: a page of another length than its header states".into();
                refused.entry(item.chunk).or_insert_with(why);
            }
        }
    }
}

/// The kernel strides over what is more.
const MAX_BLOCKS: u32 = 1 << 20;

/// The compressed pages, placed so that values are aligned, and the bytes of all bodies.
fn items(table: &PageTable, chunks: &[usize], alignments: &Alignments) -> Result<(Vec<Item>, u64)> {
    let align = ALIGN.max(alignments.output as u64);
    let mut items = Vec::new();
    let mut total = 0u64; // at most 2^28 pages of at most 2 GiB
    for &chunk in chunks {
        for page in table.pages(chunk) {
            let header = table.header(page);
            check_levels(table, page, header.compressed_bytes)?;
            if header.kind == page_kind::DATA_V2 && header.is_compressed == 0 {
                continue;
            }
            let levels = u64::from(header.def_bytes) + u64::from(header.rep_bytes); // checked against both sizes
            let stored = u64::from(header.compressed_bytes) - levels;
            let plain = u64::from(header.uncompressed_bytes).saturating_sub(levels);
            let body = (total + levels).next_multiple_of(align) - levels;
            total = body + levels + plain;
            let source = table.chunks()[chunk].address + header.body_offset;
            items.push(Item { page, chunk, source, levels, stored, plain, body });
        }
    }
    Ok((items, total))
}

/// Bytes that are to be copied before nvCOMP runs.
struct Move {
    source: u64,
    /// An offset, until the memory is there.
    target: u64,
    bytes: u64,
    /// A compressed buffer that is not aligned, of this value; else the levels of a page.
    is_input: bool,
    value: usize,
}

impl Move {
    fn entry(&self) -> ScatterEntry {
        ScatterEntry { source: self.source, target: self.target, bytes: self.bytes }
    }
}

/// Levels to the bodies, and compressed values to places where they are aligned; and the bytes of those places.
fn moves(items: &[Item], values: &[usize], alignments: &Alignments) -> (Vec<Move>, u64) {
    let levels = items.iter().filter(|it| it.levels > 0);
    let levels =
        levels.map(|it| Move { source: it.source, target: it.body, bytes: it.levels, is_input: false, value: 0 });
    let mut moves: Vec<Move> = levels.collect();
    let align = alignments.input.max(1) as u64;
    let mut packed = 0u64;
    for (value, &at) in values.iter().enumerate() {
        let source = items[at].source + items[at].levels;
        if !source.is_multiple_of(align) {
            let target = packed.next_multiple_of(align.max(ALIGN));
            packed = target + items[at].stored;
            moves.push(Move { source, target, bytes: items[at].stored, is_input: true, value });
        }
    }
    (moves, packed)
}
