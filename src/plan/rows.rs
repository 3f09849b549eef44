//! Which rows of each row group are wanted, and which pages hold them.

use std::ops::Range;

use parquet::arrow::arrow_reader::{RowSelection, RowSelector};

use super::PageSpan;
use crate::footer::Footer;

/// Cuts a selection, which counts through the row groups in their order, into ranges of rows of each, by the number of
/// their rows. Rows behind the selection's end are not selected; what it selects behind the last row is not there.
pub(super) fn split(selection: &RowSelection, rows: &[u64]) -> Vec<Vec<Range<u64>>> {
    let mut groups = rows.iter();
    let mut split = Vec::with_capacity(rows.len());
    let mut current: Vec<Range<u64>> = Vec::new();
    let mut left = groups.next().copied();
    let mut at = 0;
    for selector in selection.iter() {
        let mut count = selector.row_count as u64;
        while let Some(rest) = left {
            let take = count.min(rest - at);
            if !selector.skip && take > 0 {
                match current.last_mut().filter(|last| last.end == at) {
                    Some(last) => last.end += take,
                    None => current.push(at..at + take),
                }
            }
            at += take;
            count -= take;
            if at < rest {
                break;
            }
            split.push(std::mem::take(&mut current));
            left = groups.next().copied();
            at = 0;
            if count == 0 {
                break;
            }
        }
    }
    if left.is_some() {
        split.push(current);
    }
    split.resize(rows.len(), Vec::new());
    split
}

/// The ranges as arrow-rs has them.
pub(super) fn as_selection(ranges: &[Range<u64>]) -> RowSelection {
    let mut selectors = Vec::with_capacity(2 * ranges.len());
    let mut at = 0;
    let count = |rows: u64| usize::try_from(rows).unwrap_or(usize::MAX);
    for range in ranges {
        selectors.push(RowSelector::skip(count(range.start - at)));
        selectors.push(RowSelector::select(count(range.end - range.start)));
        at = range.end;
    }
    selectors.into()
}

pub(super) fn count(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|it| it.end - it.start).sum()
}

/// The parts of a column chunk, which lies in `chunk`, that hold selected rows: pages that follow each other, and the
/// dictionary. `None`: all of it, also where there is no offset index or one that cannot be true.
pub(super) fn parts(
    footer: &Footer,
    row_group: usize,
    leaf: usize,
    rows: u64,
    chunk: &Range<u64>,
    ranges: &[Range<u64>],
) -> Option<Vec<(Range<u64>, PageSpan)>> {
    let index = footer.page_index.as_ref()?.page_index_for_row_group(row_group);
    let locations = index.page_locations(leaf)?;
    let mut pages: Vec<(Range<u64>, Range<u64>)> = Vec::with_capacity(locations.len());
    for (at, location) in locations.iter().enumerate() {
        let start = u64::try_from(location.offset).ok()?;
        let end = start.checked_add(u64::try_from(location.compressed_page_size).ok()?)?;
        let first = u64::try_from(location.first_row_index).ok()?;
        let next = match locations.get(at + 1) {
            Some(next) => u64::try_from(next.first_row_index).ok()?,
            None => rows,
        };
        let (before, first_expected) = pages.last().map_or((chunk.start, 0), |(bytes, rows)| (bytes.end, rows.end));
        if start < before || end > chunk.end || first != first_expected || next <= first || next > rows {
            return None;
        }
        pages.push((start..end, first..next));
    }
    let dictionary = chunk.start..pages.first()?.0.start;
    let has_dictionary = !dictionary.is_empty();
    let mut parts: Vec<(Range<u64>, PageSpan)> = Vec::new();
    if has_dictionary {
        parts.push((dictionary, PageSpan { first_page: 0, first_row: 0, rows: 0, is_first: true }));
    }
    let mut wanted = ranges.iter().peekable();
    let mut all = true;
    for (at, (bytes, held)) in pages.iter().enumerate() {
        while wanted.next_if(|it| it.end <= held.start).is_some() {}
        if wanted.peek().is_none_or(|it| it.start >= held.end) {
            all = false;
            continue;
        }
        let rows = held.end - held.start;
        match parts.last_mut() {
            Some((last, span)) if last.end == bytes.start => {
                last.end = bytes.end;
                if span.rows == 0 {
                    span.first_row = held.start;
                }
                span.rows += rows;
            }
            _ => {
                let (first_page, is_first) = (at + usize::from(has_dictionary), parts.is_empty());
                parts.push((bytes.clone(), PageSpan { first_page, first_row: held.start, rows, is_first }));
            }
        }
    }
    (!all).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(ranges: &[Range<usize>], rows: usize) -> RowSelection {
        RowSelection::from_consecutive_ranges(ranges.iter().cloned(), rows)
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init)] // ranges are what is meant
    fn a_selection_is_cut_at_row_groups() {
        let groups = [10, 0, 5, 20];
        assert_eq!(
            split(&selection(&[2..4, 8..12, 14..16], 35), &groups),
            [vec![2..4, 8..10], vec![], vec![0..2, 4..5], vec![0..1]]
        );
        assert_eq!(split(&selection(&[], 0), &groups), [vec![], vec![], vec![], vec![]]);
        assert_eq!(split(&selection(&[0..35], 35), &groups), [vec![0..10], vec![], vec![0..5], vec![0..20]]);
        // Shorter and longer than the rows.
        assert_eq!(split(&selection(&[3..7], 7), &[5]), [vec![3..5]]);
        assert_eq!(split(&selection(&[1..2], 2), &[5, 5]), [vec![1..2], vec![]]);
    }

    #[test]
    fn ranges_go_to_arrow_rs_and_back() {
        let ranges = vec![2..4, 8..10];
        assert_eq!(split(&as_selection(&ranges), &[12]), std::slice::from_ref(&ranges));
        assert_eq!(count(&ranges), 4);
    }
}
