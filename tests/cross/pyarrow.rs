//! Files that pyarrow wrote: `testdata/pyarrow/`, made by `testdata/make_pyarrow.py`.

use std::path::PathBuf;
use std::sync::Mutex;

use parquet::file::metadata::ParquetMetaDataReader;
use rayon::prelude::*;

use crate::{Cut, Groups, Rows, Subject};

fn files() -> Vec<PathBuf> {
    let folder = crate::root().join("testdata/pyarrow");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Whole, in batches, and a leaf at a time where arrow-rs reads one leaf alone.
#[test]
fn written_by_pyarrow() {
    let tally = Mutex::default();
    let files = files();
    files.par_iter().enumerate().for_each(|(at, path)| {
        let bytes = bytes::Bytes::from(std::fs::read(path).unwrap());
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let seed = at as u64 % 7;
        for cut in [Cut::No, Cut::Rows(1), Cut::Memory] {
            Subject { cut, ..Subject::whole(format!("{name}, {cut:?}"), bytes.clone()) }.check(seed, &tally);
        }
        for (rows, groups) in
            [(Rows::Range, Groups::All), (Rows::Scattered, Groups::Reversed), (Rows::All, Groups::Odd)]
        {
            let whole = Subject::whole(format!("{name}, {rows:?}, {groups:?}"), bytes.clone());
            Subject { rows, groups, ..whole }.check(seed, &tally);
        }
        let schema = metadata.file_metadata().schema_descr();
        for leaf in (0..schema.num_columns()).filter(|it| !schema.column(*it).path().string().contains("key_value")) {
            let leaves = Some(vec![leaf]);
            Subject { leaves, ..Subject::whole(format!("{name}, leaf {leaf}"), bytes.clone()) }.check(seed, &tally);
        }
    });
    assert!(files.len() >= 50);
    let tally = tally.into_inner().unwrap();
    let scanned = tally.files;
    tally.finish(&format!("{} files of pyarrow", files.len()), scanned);
}
