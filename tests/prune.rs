//! Row groups that statistics rule out.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use parquet_gpu::footer::Footer;
use parquet_gpu::io::Source;
use parquet_gpu::plan::prune::Filter;

fn kept(filter: &str) -> parquet_gpu::Result<Vec<usize>> {
    // 36 row groups of 50 rows; `id` counts them.
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/many_row_groups.parquet");
    let footer = Footer::read(&Arc::new(Source::open(path)?))?;
    filter.parse::<Filter>().unwrap().row_groups(&footer)
}

#[test]
fn comparisons_keep_what_may_match() {
    assert_eq!(kept("id < 50").unwrap(), [0]);
    assert_eq!(kept("id <= 50").unwrap(), [0, 1]);
    assert_eq!(kept("id > 1748").unwrap(), [34, 35]);
    assert_eq!(kept("id >= 1750").unwrap(), [35]);
    assert_eq!(kept("id = 125").unwrap(), [2]);
    assert_eq!(kept("id != 125").unwrap().len(), 36);
    assert_eq!(kept("id >= 100 AND id < 200").unwrap(), [2, 3]);
    assert_eq!(kept("id < 0").unwrap(), [0usize; 0]);
    assert_eq!(kept("text > 'zzz'").unwrap(), [0usize; 0]);
    assert_eq!(kept("id IS NULL").unwrap(), [0usize; 0]);
    assert_eq!(kept("id IS NOT NULL").unwrap().len(), 36);
}

#[test]
fn what_makes_no_sense_is_an_argument_error() {
    assert_eq!(kept("nosuch = 1").unwrap_err().kind(), "argument");
    assert_eq!(kept("id = abc").unwrap_err().kind(), "argument");
}
