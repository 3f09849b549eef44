//! Which rows of a batch are wanted.

use std::ops::Range;

/// A bit for each row that the chunks of a batch cover. Rows that no chunk holds may lie among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SelectedRows {
    words: Vec<u32>,
    rows: u64,
}

impl SelectedRows {
    /// Selects `ranges` of `rows` rows. What lies beyond them is left out.
    pub fn new(rows: u64, ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut words = vec![0u32; usize::try_from(rows.div_ceil(32)).unwrap_or(0)];
        for range in ranges {
            let (mut at, end) = (range.start, range.end.min(rows));
            while at < end {
                let bit = at % 32;
                let take = (32 - bit).min(end - at);
                words[(at / 32) as usize] |= ((u64::from(u32::MAX) >> (32 - take)) << bit) as u32;
                at += take;
            }
        }
        Self { words, rows }
    }

    /// All rows, selected or not.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Rows that are selected.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_bits() {
        let selected = SelectedRows::new(100, [1..3, 31..70, 99..200]);
        let is_set = |row: u64| selected.words[(row / 32) as usize] >> (row % 32) & 1 == 1;
        let expected = |row: u64| (1..3).contains(&row) || (31..70).contains(&row) || row == 99;
        assert!((0..100).all(|row| is_set(row) == expected(row)));
        assert_eq!((selected.rows(), selected.count()), (100, 42));
        assert_eq!(SelectedRows::new(0, [0..1, 5..10]).count(), 0);
    }
}
