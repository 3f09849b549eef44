//! DELTA_* and BYTE_STREAM_SPLIT pages become what the value kernels know: plain values, or a reference a string. Launches the
//! kernels of delta.cu, and those of split.cu through [`split`].

use parquet::basic::Type as PhysicalType;

use super::{Table, blocks, split};
use crate::device::staging::{Slot, Staged, Staging};
use crate::device::{DeviceBuffer, Stream};
use crate::error::{Error, Result};
use crate::footer::{Leaf, LeafDecode};
use crate::kernels::abi::{
    self, DeltaIntegersArgs, DeltaLengthsArgs, DeltaStringsArgs, PageState, StringRef, encoding,
};

/// Expanded pages start at multiples of this, so that plain values can be loaded whole.
const ALIGN: u64 = 16;

/// Whether kernels expand pages of this encoding in a column.
pub(super) fn decodes(page_encoding: u8, leaf: &Leaf) -> bool {
    use PhysicalType as P;
    matches!(
        (page_encoding, leaf.physical),
        (encoding::DELTA_LENGTH_BYTE_ARRAY | encoding::DELTA_BYTE_ARRAY, P::BYTE_ARRAY)
            | (encoding::DELTA_BINARY_PACKED, P::INT32 | P::INT64)
            | (encoding::DELTA_BYTE_ARRAY, P::FIXED_LEN_BYTE_ARRAY)
            | (encoding::BYTE_STREAM_SPLIT, P::FLOAT | P::DOUBLE | P::INT32 | P::INT64 | P::FIXED_LEN_BYTE_ARRAY)
    )
}

/// Pages to expand, by kernel.
#[derive(Debug, Default)]
pub(super) struct Expand {
    integers: Vec<u32>,
    split: Vec<u32>,
    lengths: Vec<u32>,
    /// Those of `lengths` that have prefixes.
    strings: Vec<u32>,
    /// Bytes of what the pages are expanded to, but for whole strings.
    bytes: u64,
}

/// The work lists in a staging buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lists {
    integers: Slot,
    split: Slot,
    lengths: Slot,
    strings: Slot,
}

impl Expand {
    /// Enters a page if it is one to expand. Its `expanded` is an offset until [`place`](Self::place).
    pub(super) fn enter(&mut self, leaf: &Leaf, page: &mut abi::Page, index: u32) {
        let width = match leaf.decode.values() {
            LeafDecode::Fixed { in_width, .. } => u64::from(*in_width),
            LeafDecode::Levels => return, // there is nothing to decode
            _ => 0,
        };
        let reference = size_of::<StringRef>() as u64;
        let (list, each) = match page.encoding {
            encoding::DELTA_BINARY_PACKED => (&mut self.integers, width),
            encoding::BYTE_STREAM_SPLIT => (&mut self.split, width),
            encoding::DELTA_LENGTH_BYTE_ARRAY => (&mut self.lengths, reference),
            encoding::DELTA_BYTE_ARRAY => {
                self.strings.push(index);
                (&mut self.lengths, reference)
            }
            _ => return,
        };
        list.push(index);
        page.expanded = self.bytes;
        // At most 2^28 pages of less than 2^31 values of less than 2^31 bytes; saturated, it fits no budget.
        let bytes = (u64::from(page.num_values) * each).next_multiple_of(ALIGN);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Gives the pages their room, and returns it.
    pub(super) fn place(&self, stream: &Stream, pages: &mut [abi::Page]) -> Result<DeviceBuffer> {
        let memory = stream.gpu().alloc(self.bytes, stream, "expanded pages")?;
        for &index in self.integers.iter().chain(&self.split).chain(&self.lengths) {
            pages[index as usize].expanded += memory.address();
        }
        Ok(memory)
    }

    pub(super) fn stage(&self, staging: &mut Staging) -> Lists {
        Lists {
            integers: staging.push(&self.integers),
            split: staging.push(&self.split),
            lengths: staging.push(&self.lengths),
            strings: staging.push(&self.strings),
        }
    }

    /// Whether the device must say how long strings are, before they can be put together.
    pub(super) fn has_strings(&self) -> bool {
        !self.strings.is_empty()
    }

    /// Queues all but putting strings together. The levels of the pages have been decoded.
    pub(super) fn launch(&self, stream: &Stream, table: &Table, staged: &Staged, lists: Lists) -> Result<()> {
        let Table { pages, columns, states, fault } = *table;
        let [integers, lengths] = [lists.integers, lists.lengths].map(|it| staged.address(it));
        let count = blocks(self.integers.len())?;
        let args = DeltaIntegersArgs { pages, columns, states, items: integers, fault, count: count.into() };
        // SAFETY: the table and the list hold `count` pages and live until the stream has been synchronised; their
        // scratch memory, too.
        unsafe { stream.launch(count, &args)? };
        split::launch(stream, table, staged.address(lists.split), blocks(self.split.len())?)?;
        let count = blocks(self.lengths.len())?;
        // SAFETY: as above.
        unsafe { stream.launch(count, &DeltaLengthsArgs { pages, states, items: lengths, fault, count: count.into() }) }
    }

    /// Queues putting strings together, whose lengths `states` have, and returns their memory.
    pub(super) fn launch_strings(
        &self,
        stream: &Stream,
        table: &Table,
        staged: &Staged,
        lists: Lists,
        states: &[PageState],
    ) -> Result<Option<(DeviceBuffer, Staged)>> {
        if self.strings.is_empty() {
            return Ok(None);
        }
        let what = "strings put together from prefixes";
        let too_many = || Error::Budget { what: what.into(), needed: u64::MAX, left: stream.gpu().budget().limit() };
        let mut bytes = 0u64;
        let mut targets = Vec::with_capacity(self.strings.len());
        for &index in &self.strings {
            targets.push(bytes);
            // Strings without bytes have a place, too: an address of 0 means a page with a fault.
            let own =
                states[index as usize].string_bytes.max(1).checked_next_multiple_of(ALIGN).ok_or_else(too_many)?;
            bytes = bytes.checked_add(own).ok_or_else(too_many)?;
        }
        let memory = stream.gpu().alloc(bytes, stream, what)?;
        targets.iter_mut().for_each(|target| *target += memory.address());
        let mut staging = Staging::default();
        let slot = staging.push(&targets);
        let staged_targets = staging.upload(stream, "targets of strings")?;
        let Table { pages, columns, states, fault } = *table;
        let (items, targets) = (staged.address(lists.strings), staged_targets.address(slot));
        let count = blocks(self.strings.len())?;
        let args = DeltaStringsArgs { pages, columns, states, items, targets, fault, count: count.into() };
        // SAFETY: as in `launch`; the targets lie in memory that the caller keeps.
        unsafe { stream.launch(count, &args)? };
        Ok(Some((memory, staged_targets)))
    }
}
