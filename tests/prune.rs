//! Row groups that statistics rule out.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use parquet_gpu::footer::Footer;
use parquet_gpu::io::Source;
use parquet_gpu::plan::prune::Filter;

fn kept(filter: &str) -> parquet_gpu::Result<Vec<usize>> {
    // 50 row groups of 10 rows; `order` is four times the row.
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/row_groups.parquet");
    let footer = Footer::read(&Arc::new(Source::open(path)?))?;
    filter.parse::<Filter>().unwrap().row_groups(&footer)
}

#[test]
fn comparisons_keep_what_may_match() {
    assert_eq!(kept("order < 40").unwrap(), [0]);
    assert_eq!(kept("order <= 40").unwrap(), [0, 1]);
    assert_eq!(kept("order > 1956").unwrap(), [49]);
    assert_eq!(kept("order >= 1956").unwrap(), [48, 49]);
    assert_eq!(kept("order = 124").unwrap(), [3]);
    assert_eq!(kept("order = 38").unwrap(), [0usize; 0]);
    assert_eq!(kept("order != 124").unwrap().len(), 50);
    assert_eq!(kept("order >= 80 AND order < 160").unwrap(), [2, 3]);
    assert_eq!(kept("mode > 'zzz'").unwrap(), [0usize; 0]);
    assert_eq!(kept("order IS NULL").unwrap(), [0usize; 0]);
    assert_eq!(kept("order IS NOT NULL").unwrap().len(), 50);
    assert_eq!(kept("price < -1.5").unwrap(), [0usize; 0]);
    assert_eq!(kept("day >= '2100-01-01'").unwrap(), [0usize; 0]);
}

#[test]
fn what_makes_no_sense_is_an_argument_error() {
    assert_eq!(kept("nosuch = 1").unwrap_err().kind(), "argument");
    assert_eq!(kept("order = abc").unwrap_err().kind(), "argument");
}
