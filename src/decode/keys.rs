//! Dictionaries that are kept: which pages hold entries, and the launches of keys.cu.
//!
//! The entries of a column are a column of their own, of a leaf that is required and flat, behind those of the request:
//! the entries of its dictionary pages, and the values of its pages without a dictionary, one behind the other. Each such
//! page is entered a second time, behind the pages of the table, as a page of that column.

use std::collections::BTreeMap;

use super::pages::{Work, is_dictionary_encoded};
use super::{Request, Table};
use crate::device::Stream;
use crate::error::Result;
use crate::footer::{Leaf, LeafDecode};
use crate::kernels::abi::{self, EntriesArgs, KeysArgs, PageHeader, PagePair, PagePart, PageRun, encoding, page_kind};

/// The leaves of entries, a column each, with the column whose entries they are.
pub(super) fn entry_leaves(request: &Request<'_>) -> Vec<(usize, Leaf)> {
    let leaves = request.leaves.iter().enumerate();
    let entries = |(column, leaf): (usize, &&Leaf)| match (&leaf.decode, &leaf.data_type) {
        (LeafDecode::Dictionary { values, .. }, arrow::datatypes::DataType::Dictionary(_, data_type)) => {
            let (data_type, decode) = ((**data_type).clone(), (**values).clone());
            Some((column, Leaf { max_def: 0, max_rep: 0, data_type, decode, ..(*leaf).clone() }))
        }
        _ => None,
    };
    leaves.filter_map(entries).collect()
}

/// Entries that the pages of one column can have, at most: every page without a dictionary adds its values.
fn most_entries<'a>(headers: impl IntoIterator<Item = &'a PageHeader>) -> u64 {
    let entries = |header: &PageHeader| match header.kind {
        page_kind::INDEX => 0,
        page_kind::DICTIONARY => u64::from(header.num_values),
        _ if is_dictionary_encoded(header) => 0,
        _ => u64::from(header.num_values),
    };
    headers.into_iter().map(entries).fold(0, u64::saturating_add)
}

/// Why the keys of a column cannot count the entries that the pages of a batch may have; `headers`: those of all its chunks.
pub fn too_many_entries<'a>(leaf: &Leaf, headers: impl IntoIterator<Item = &'a PageHeader>) -> Option<&'static str> {
    match leaf.decode {
        LeafDecode::Dictionary { most, .. } if most_entries(headers) > most => {
            Some("more dictionary entries than keys of their type count")
        }
        _ => None,
    }
}

/// Work on dictionaries that are kept.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// Pages of entries, a column after the other, each with the page that it is a copy of.
    entries: Vec<PagePair>,
    /// Those of each column.
    runs: Vec<PageRun>,
    /// Parts of data pages, each with the page of the entries that its keys count in.
    pages: Vec<PagePart>,
    /// Slots that the entries of each column take at most.
    pub(super) bounds: Vec<u64>,
}

impl Keys {
    /// Enters the pages of entries into `work`, whose bodies have been placed. `leaves`: as [`entry_leaves`] tells.
    pub(super) fn new(request: &Request<'_>, leaves: &[(usize, Leaf)], work: &mut Work) -> Self {
        let mut chunks: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (chunk, column) in request.columns.iter().enumerate() {
            chunks.entry(*column).or_default().push(chunk);
        }
        let mut keys = Self::default();
        for (at, (column, leaf)) in leaves.iter().enumerate() {
            let own = request.leaves.len() + at;
            let first = keys.entries.len() as u32;
            let chunks = || chunks.get(column).into_iter().flatten();
            let mut dictionaries = BTreeMap::new();
            for &chunk in chunks() {
                for index in request.table.pages(chunk) {
                    let page = work.pages[index];
                    let dictionary = page.kind == page_kind::DICTIONARY;
                    let holds_values = dictionary || (page.kind != page_kind::INDEX && page.num_values > 0);
                    if !holds_values {
                        continue;
                    }
                    let entries = match page.dictionary {
                        abi::NONE => keys.enter(work, index, own, leaf),
                        dictionary => dictionaries.get(&dictionary).copied().unwrap_or(abi::NONE),
                    };
                    if dictionary {
                        dictionaries.insert(index as u32, entries);
                    } else {
                        keys.pages.extend(work.parts_with(index as u32, entries));
                    }
                }
            }
            keys.runs.push(PageRun { first_row: 0, first, end: keys.entries.len() as u32 });
            keys.bounds.push(most_entries(chunks().flat_map(|chunk| request.table.headers(*chunk))));
        }
        keys
    }

    /// Enters a copy of a page into the column `own`; its index.
    fn enter(&mut self, work: &mut Work, index: usize, own: usize, leaf: &Leaf) -> u32 {
        let mut page = abi::Page { column: own as u32, first_row: 0, is_first: 0, ..work.pages[index] };
        if page.kind == page_kind::DICTIONARY {
            (page.kind, page.encoding, page.entries) = (page_kind::DATA_V1, encoding::PLAIN, 0);
        }
        let entered = work.pages.len() as u32;
        work.pages.push(page);
        work.enter_values(&leaf.decode, entered);
        self.entries.push(PagePair { page: entered, other: index as u32 });
        entered
    }

    /// The page of the table that a page is or is a copy of.
    pub(super) fn source(&self, page: u64) -> u64 {
        let copy = self.entries.iter().find(|it| u64::from(it.page) == page);
        copy.map_or(page, |it| it.other.into())
    }

    /// Entries of each column, once the states have been read.
    pub(super) fn counts(&self, states: &[abi::PageState]) -> Vec<u64> {
        let last = |run: &PageRun| self.entries[run.first as usize..run.end as usize].last();
        let end = |pair: &PagePair| {
            let state = &states[pair.page as usize];
            state.first_slot + u64::from(state.slots)
        };
        self.runs.iter().map(|run| last(run).map_or(0, end)).collect()
    }

    /// The work lists: entries, runs, parts of data pages.
    pub(super) fn lists(&self) -> (&[PagePair], &[PageRun], &[PagePart]) {
        (&self.entries, &self.runs, &self.pages)
    }

    /// Places the entries, then makes the keys. The addresses are those of the [`lists`](Self::lists).
    pub(super) fn launch(&self, stream: &Stream, table: &Table, entries: u64, runs: u64, items: u64) -> Result<()> {
        let Table { pages, columns, states, fault } = *table;
        let count = super::blocks(self.runs.len())?;
        let args = EntriesArgs { pages, states, items: entries, runs, fault, count: count.into() };
        // SAFETY: the runs lie in the list of entries, whose pages are in the table; all live until the stream has been
        // synchronised.
        unsafe { stream.launch(count, &args)? };
        let count = super::blocks(self.pages.len())?;
        // SAFETY: the list holds `count` parts of pages of the table and live until the stream has been synchronised.
        unsafe { stream.launch(count, &KeysArgs { pages, columns, states, items, fault, count: count.into() }) }
    }
}
