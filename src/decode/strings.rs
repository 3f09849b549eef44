//! Launches the kernels of strings.cu, and between them sizes the buffers that the second one fills.

use std::collections::BTreeMap;

use super::output::Output;
use super::pages::Work;
use super::zero::Zeros;
use super::{Request, Table, blocks, pages, utf8};
use crate::device::Stream;
use crate::device::staging::Staging;
use crate::error::{Error, Place, Result};
use crate::footer::LeafDecode;
use crate::kernels::abi::{
    self, PagePart, ScatterArgs, ScatterEntry, StringGatherArgs, StringRefsArgs, StringViewsArgs,
};

/// `bytes`: the address of 8 bytes for each item.
pub(super) fn launch_refs(stream: &Stream, table: &Table, items: u64, bytes: u64, count: u32) -> Result<()> {
    let Table { pages, columns, states, fault } = *table;
    // SAFETY: the list holds `count` parts of pages of the table, and both live until the stream has been synchronised.
    unsafe {
        stream.launch(count, &StringRefsArgs { pages, columns, states, items, bytes, fault, count: count.into() })
    }
}

fn launch_gather(stream: &Stream, table: &Table, items: u64, bases: u64, count: u32) -> Result<()> {
    let Table { pages, columns, states, .. } = *table;
    // SAFETY: the lists hold `count` parts of pages of the table, and all live until the stream has been synchronised.
    unsafe { stream.launch(count, &StringGatherArgs { pages, columns, states, items, bases, count: count.into() }) }
}

fn launch_views(stream: &Stream, table: &Table, items: u64, bases: u64, count: u32) -> Result<()> {
    let Table { pages, columns, states, .. } = *table;
    // SAFETY: the lists hold `count` parts of pages of the table, and all live until the stream has been synchronised.
    unsafe { stream.launch(count, &StringViewsArgs { pages, columns, states, items, bases, count: count.into() }) }
}

/// Bytes of a dictionary that one block copies.
const COPY_PART: u64 = 64 << 10;

/// Views, which point to the entries of dictionaries without a copy for each slot.
#[derive(Debug, Default)]
struct Views {
    items: Vec<PagePart>,
    bases: Vec<u64>,
    /// Where the body of each dictionary lies in the buffer of its column.
    dictionaries: BTreeMap<u32, u64>,
    /// Bytes of that buffer, by column.
    totals: Vec<u64>,
    copies: Vec<ScatterEntry>,
}

impl Views {
    fn new(request: &Request<'_>, work: &Work, parts: &[PagePart]) -> Self {
        let mut views = Self { totals: vec![0; request.leaves.len()], ..Self::default() };
        for &index in work.string_dictionaries.iter().filter(|index| is_view(request, work, **index)) {
            let page = &work.pages[index as usize];
            let total = &mut views.totals[page.column as usize];
            views.dictionaries.insert(index, *total);
            *total += u64::from(page.body_bytes); // at most 2^28 pages of less than 2^32 bytes
        }
        for part in parts.iter().filter(|part| is_view(request, work, part.page)) {
            views.items.push(*part);
            let dictionary = views.dictionaries.get(&work.pages[part.page as usize].dictionary);
            views.bases.push(dictionary.copied().unwrap_or(0));
        }
        views
    }

    /// Allocates the buffers, once their sizes have been checked.
    fn alloc(&mut self, stream: &Stream, work: &Work, outputs: &mut [Output], zeros: &mut Zeros) -> Result<()> {
        let mut buffers = vec![0u64; self.totals.len()];
        for (column, total) in self.totals.iter().enumerate().filter(|(_, total)| **total > 0) {
            buffers[column] = outputs[column].alloc_dictionaries(stream, *total, zeros)?;
        }
        for (&index, base) in &self.dictionaries {
            let page = &work.pages[index as usize];
            for part in (0..u64::from(page.body_bytes)).step_by(COPY_PART as usize) {
                self.copies.push(ScatterEntry {
                    source: page.body + part,
                    target: buffers[page.column as usize] + base + part,
                    bytes: COPY_PART.min(u64::from(page.body_bytes) - part),
                });
            }
        }
        Ok(())
    }
}

fn is_view(request: &Request<'_>, work: &Work, page: u32) -> bool {
    let leaf = request.leaves[work.pages[page as usize].column as usize];
    matches!(leaf.decode, LeafDecode::Strings { view: true, .. })
}

/// Writes offsets, bytes and views of all string columns, and checks those that must be UTF-8. `parts` and `bytes`: those
/// of all pages of byte arrays, in the order of each column's rows. Waits for the device once; the fault word is read by
/// `read_fault` in that wait.
#[expect(clippy::too_many_arguments)] // everything that the first half of `decode_batch` made
pub(super) fn gather(
    stream: &Stream,
    request: &Request<'_>,
    work: &Work,
    parts: &[PagePart],
    bytes: &[u64],
    outputs: &mut [Output],
    columns: &mut [abi::Column],
    table: &Table,
    read_fault: impl FnOnce() -> Result<()>,
) -> Result<()> {
    // Where each part's strings start in its column's bytes.
    let mut totals = vec![0u64; columns.len()];
    let (mut gathered, mut bases) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
    let (mut checked, mut checked_bases, mut checked_bytes) = (Vec::new(), Vec::new(), Vec::new());
    for (part, own) in parts.iter().zip(bytes) {
        let page = &work.pages[part.page as usize];
        let is_dictionary = pages::is_dictionary_encoding(page.encoding);
        if !is_string(request, page.column) || (is_dictionary && is_view(request, work, part.page)) {
            continue; // decimals, or views of the dictionary's own bytes
        }
        let total = &mut totals[page.column as usize];
        gathered.push(*part);
        if !is_dictionary && is_utf8(request, page.column) {
            checked.push(*part);
            checked_bases.push(*total);
            checked_bytes.push(*own);
        }
        bases.push(*total);
        *total = total.checked_add(*own).ok_or_else(|| too_long(request, page.column))?;
    }
    for &index in &work.string_dictionaries {
        if is_utf8(request, work.pages[index as usize].column) {
            checked.extend(work.parts_with(index, abi::NONE));
        }
    }
    // The entries of dictionaries are where they are.
    checked_bases.resize(checked.len(), 0);
    checked_bytes.resize(checked.len(), 0);
    let mut views = Views::new(request, work, parts);
    let mut zeros = Zeros::default();
    for (index, output) in outputs.iter_mut().enumerate() {
        if !is_string(request, index as u32) {
            continue;
        }
        if columns[index].out_width == 4 && totals[index].max(views.totals[index]) > i32::MAX as u64 {
            return Err(too_long(request, index as u32));
        }
        columns[index].data = output.alloc_data(stream, totals[index], &mut zeros)?;
    }

    views.alloc(stream, work, outputs, &mut zeros)?;

    let mut staging = Staging::default();
    let columns = staging.push(columns);
    let items = staging.push(&gathered);
    let item_bases = staging.push(&bases);
    let checked_items = staging.push(&checked);
    let checked_bases = staging.push(&checked_bases);
    let checked_bytes = staging.push(&checked_bytes);
    let (view_items, view_bases) = (staging.push(&views.items), staging.push(&views.bases));
    let copies = staging.push(&views.copies);
    let zero_items = zeros.stage(&mut staging);
    let staged = staging.upload(stream, "work lists for strings")?;
    let table = Table { columns: staged.address(columns), ..*table };
    zeros.launch(stream, staged.address(zero_items))?;
    launch_gather(stream, &table, staged.address(items), staged.address(item_bases), blocks(bases.len())?)?;
    let count = blocks(views.copies.len())?;
    // SAFETY: the entries lie inside bodies of dictionaries and inside the buffers made for them, all of which live until
    // the stream has been synchronised.
    unsafe { stream.launch(count, &ScatterArgs { entries: staged.address(copies), count: count.into() })? };
    let count = blocks(views.items.len())?;
    launch_views(stream, &table, staged.address(view_items), staged.address(view_bases), count)?;
    let count = blocks(checked.len())?;
    let [items, bases, bytes] = [checked_items, checked_bases, checked_bytes].map(|it| staged.address(it));
    utf8::launch(stream, &table, items, bases, bytes, count)?;
    read_fault()
}

fn is_string(request: &Request<'_>, column: u32) -> bool {
    matches!(request.leaves[column as usize].decode, LeafDecode::Strings { .. })
}

fn is_utf8(request: &Request<'_>, column: u32) -> bool {
    matches!(request.leaves[column as usize].decode, LeafDecode::Strings { utf8: true, .. })
}

fn too_long(request: &Request<'_>, column: u32) -> Error {
    let leaf = request.leaves[column as usize];
    let place = Place { column: Some(leaf.path.clone()), ..Place::default() };
    let message =
        format!("the strings of one batch do not fit the offsets of {}: read fewer rows at a time", leaf.data_type);
    Error::unsupported(place, message)
}
