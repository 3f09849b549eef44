//! Ranges: sorted, merged, widened to 4 KiB edges, placed, split.

use std::ops::Range;

use super::route::{self, Destination};
use super::{ChunkPlan, Context, RangePlan, Route, codec_name};
use crate::options::IoOptions;

/// The edges to which direct ranges are widened: a page and a sector of every file system that cuFile supports. A
/// request with other edges is staged by cuFile through a buffer of its own.
pub const EDGE: u64 = 4096;

/// Small ranges lie in the slab at multiples of this, enough for the widest loads of kernels.
const SMALL_EDGE: u64 = 16;

/// What some chunks want read together.
#[derive(Debug)]
struct Want {
    bytes: Range<u64>,
    /// Bytes of gaps between its chunks.
    gaps: u64,
    destination: Destination,
    /// Indices of its chunks.
    chunks: Vec<usize>,
}

/// Plans the reads of a batch's chunks, sets where each lands, and returns the ranges by file offset and the slab's size.
pub(super) fn plan(
    chunks: &mut [ChunkPlan],
    file_bytes: u64,
    options: &IoOptions,
    context: &Context<'_>,
) -> (Vec<RangePlan>, u64) {
    let mut wants: Vec<Want> = Vec::new();
    let mut order: Vec<usize> = (0..chunks.len()).filter(|at| !chunks[*at].bytes.is_empty()).collect();
    order.sort_by_key(|at| (chunks[*at].bytes.start, chunks[*at].bytes.end));
    for at in order {
        let want = Want {
            bytes: chunks[at].bytes.clone(),
            gaps: 0,
            destination: destination(&chunks[at], context),
            chunks: vec![at],
        };
        // Only neighbours: a gap never holds what another range reads anyway.
        match wants.last_mut().filter(|it| it.destination == want.destination) {
            Some(last) if joins(last, &want, options) => join(last, want),
            _ => wants.push(want),
        }
    }
    let mut cursor = 0;
    let mut ranges: Vec<RangePlan> = wants
        .into_iter()
        .map(|want| {
            let range = place(&want, file_bytes, &mut cursor, options, context);
            for &at in &want.chunks {
                chunks[at].slab_offset = match &want.destination {
                    Destination::CpuDecompress(_) => Some(beside(&chunks[at], &mut cursor)),
                    _ => range.slab_offset.map(|it| it + (chunks[at].bytes.start - range.read.start)),
                };
            }
            range
        })
        .collect();
    for chunk in chunks.iter_mut().filter(|it| it.bytes.is_empty() && it.on_cpu.is_none() && context.gpu) {
        chunk.slab_offset = Some(0); // nothing of it is read, but a kernel finds that out
    }
    ranges.sort_by_key(|range| range.bytes.start);
    (ranges, cursor)
}

/// A place in the slab for a chunk that is read into host memory and copied.
fn beside(chunk: &ChunkPlan, cursor: &mut u64) -> u64 {
    let offset = cursor.next_multiple_of(SMALL_EDGE);
    *cursor = offset + (chunk.bytes.end - chunk.bytes.start);
    offset
}

/// Plans to read a whole file.
pub(super) fn raw(file_bytes: u64, options: &IoOptions, context: &Context<'_>) -> RangePlan {
    let destination = if context.gpu { Destination::Slab } else { Destination::Host };
    let want = Want { bytes: 0..file_bytes, gaps: 0, destination, chunks: Vec::new() };
    place(&want, file_bytes, &mut 0, options, context)
}

fn destination(chunk: &ChunkPlan, context: &Context<'_>) -> Destination {
    match &chunk.on_cpu {
        _ if !context.gpu => Destination::Host,
        Some(reason) => Destination::CpuDecode(reason.clone()),
        None => match chunk.host_codec {
            Some(codec) => Destination::CpuDecompress(codec_name(codec)),
            None => Destination::Slab,
        },
    }
}

/// Whether one request costs less than two. `next` starts at or after `last`.
fn joins(last: &Want, next: &Want, options: &IoOptions) -> bool {
    let gap = next.bytes.start.saturating_sub(last.bytes.end);
    gap <= options.merge_gap && last.gaps.saturating_add(gap) <= options.merge_waste
}

fn join(last: &mut Want, next: Want) {
    last.gaps += next.bytes.start.saturating_sub(last.bytes.end);
    last.bytes.end = last.bytes.end.max(next.bytes.end);
    last.chunks.extend(next.chunks);
}

/// Gives a want its route, its edges, its place in the slab and its operations.
fn place(want: &Want, file_bytes: u64, cursor: &mut u64, options: &IoOptions, context: &Context<'_>) -> RangePlan {
    let bytes = want.bytes.clone();
    let (route, reason) = route::choose(bytes.end - bytes.start, &want.destination, options, context);
    let read = match route {
        Route::Direct => bytes.start / EDGE * EDGE..bytes.end.next_multiple_of(EDGE).min(file_bytes),
        Route::Host => bytes.clone(),
    };
    let length = read.end - read.start;
    let slab_offset = (want.destination == Destination::Slab).then(|| {
        let offset = match length < options.gds_threshold {
            true => cursor.next_multiple_of(SMALL_EDGE),
            // Congruent with the file, so that a whole number of pages stays one.
            false => cursor.next_multiple_of(EDGE) + read.start % EDGE,
        };
        *cursor = offset + length;
        offset
    });
    let wasted = want.gaps + (bytes.start - read.start) + (read.end - bytes.end);
    let tasks = split(&read, options.task_size);
    RangePlan { bytes, read, wasted, route, reason, slab_offset, tasks }
}

/// Cuts a range into operations of at most `task_size` bytes, all but the first starting on an edge where the size
/// allows it.
pub(crate) fn split(range: &Range<u64>, task_size: u64) -> Vec<Range<u64>> {
    let task_size = task_size.max(1);
    let task_size = if task_size < EDGE { task_size } else { task_size / EDGE * EDGE };
    let mut tasks = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let full = start.saturating_add(task_size);
        let edge = full / EDGE * EDGE;
        let end = if edge > start { edge } else { full }.min(range.end);
        tasks.push(start..end);
        start = end;
    }
    tasks
}
