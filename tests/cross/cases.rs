//! Which files: the cross is far too large, so each new case is the one of a few random ones that brings the most pairs
//! of properties that no case before it had.

use std::collections::BTreeSet;

use arrow::datatypes::DataType;
use parquet::basic::{BrotliLevel, Compression, Encoding, GzipLevel, Type, ZstdLevel};
use parquet::file::properties::WriterVersion;

use crate::generate::{Random, types};
use crate::shapes::Shape;
use crate::{Cut, Groups, Rows};

/// How the leaves of a column are encoded; each leaf takes what its physical type allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Style {
    Dictionary,
    /// A dictionary that soon is full, and then PLAIN.
    Fallback,
    /// A dictionary that soon is full, and then one of the other encodings.
    FallbackToDelta,
    Plain,
    Delta,
    Split,
}

impl Style {
    pub const ALL: &[Self] =
        &[Self::Dictionary, Self::Fallback, Self::FallbackToDelta, Self::Plain, Self::Delta, Self::Split];

    /// Whether a dictionary comes first.
    pub fn dictionary(self) -> bool {
        matches!(self, Self::Dictionary | Self::Fallback | Self::FallbackToDelta)
    }

    pub fn encoding(self, physical: Type) -> Encoding {
        use Type::*;
        match (self, physical) {
            (Self::Delta | Self::FallbackToDelta, INT32 | INT64) => Encoding::DELTA_BINARY_PACKED,
            (Self::Delta | Self::FallbackToDelta, BYTE_ARRAY) => Encoding::DELTA_LENGTH_BYTE_ARRAY,
            (Self::Delta | Self::FallbackToDelta, FIXED_LEN_BYTE_ARRAY) => Encoding::DELTA_BYTE_ARRAY,
            (Self::Delta | Self::Split, BOOLEAN) => Encoding::RLE,
            (Self::Split, INT32 | INT64 | FLOAT | DOUBLE | FIXED_LEN_BYTE_ARRAY) => Encoding::BYTE_STREAM_SPLIT,
            (Self::Split, BYTE_ARRAY) => Encoding::DELTA_BYTE_ARRAY,
            _ => Encoding::PLAIN,
        }
    }
}

/// A column of a case.
#[derive(Debug, Clone)]
pub struct Column {
    pub shape: Shape,
    pub leaf: DataType,
    pub style: Style,
    pub nullable: bool,
}

/// Which leaves are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Projection {
    All,
    One,
    Half,
}

/// A file: how it is written and read.
#[derive(Debug, Clone)]
pub struct Case {
    pub seed: u64,
    pub rows: usize,
    pub group_rows: usize,
    pub page_rows: usize,
    pub nulls: u64,
    pub empties: u64,
    pub different: u64,
    pub version: WriterVersion,
    pub codec: Compression,
    pub page_index: bool,
    pub cut: Cut,
    pub projection: Projection,
    pub selected: Rows,
    pub groups: Groups,
    pub columns: Vec<Column>,
}

#[allow(deprecated)] // Compression::LZ4: the writer makes it, so readers meet it
fn codecs() -> [Compression; 7] {
    [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
    ]
}

impl Case {
    fn random(random: &mut Random) -> Self {
        fn one<T: Clone>(random: &mut Random, of: &[T]) -> T {
            of[random.below(of.len() as u64) as usize].clone()
        }
        // Uncompressed and Snappy twice: what kernels do not decompress tells less of kernels.
        let codecs = [&codecs()[..], &codecs()[..2]].concat();
        let rows = one(random, &[1, 40, 150, 150, 400, 700]);
        let types = types();
        let count = 1 + random.below(4);
        let columns = (0..count).map(|_| Column {
            shape: if random.below(4) == 0 { Shape::Flat } else { one(random, Shape::ALL) },
            leaf: one(random, &types),
            style: one(random, Style::ALL),
            nullable: random.below(4) > 0,
        });
        Self {
            columns: columns.collect(),
            seed: random.next(),
            rows,
            group_rows: one(random, &[30, rows.div_ceil(3), rows, rows]).max(rows / 12).max(1),
            page_rows: one(random, &[1, 7, 100, 20_000]),
            nulls: one(random, &[0, 15, 60, 100]),
            empties: one(random, &[0, 30, 80, 100]),
            different: one(random, &[2, 100, u64::MAX]),
            version: one(random, &[WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0]),
            codec: one(random, &codecs),
            page_index: random.below(2) == 0,
            cut: one(random, &[Cut::No, Cut::Rows(1), Cut::Rows(100), Cut::Memory]),
            selected: one(random, &[Rows::All, Rows::All, Rows::Range, Rows::Scattered, Rows::Nothing]),
            groups: one(random, &[Groups::All, Groups::All, Groups::All, Groups::Reversed, Groups::Odd]),
            projection: one(random, &[Projection::All, Projection::All, Projection::One, Projection::Half]),
        }
    }

    /// Properties, as `name value`, those of each column together with those of the file.
    fn pairs(&self) -> BTreeSet<(String, String)> {
        let file = [
            format!("codec {}", self.codec),
            format!("{:?}", self.version),
            format!("page rows {}", self.page_rows),
            format!("row groups {}", (self.rows / self.group_rows).min(3)),
            format!("nulls {}", self.nulls),
            format!("empties {}", self.empties),
            format!("different {}", self.different),
            format!("{:?}", self.cut),
            format!("{:?}", self.projection),
            format!("{:?}", self.selected),
            format!("groups {:?}", self.groups),
            format!("page index {}", self.page_index),
        ];
        let mut pairs = BTreeSet::new();
        for column in &self.columns {
            let own = [format!("{:?}", column.shape), format!("type {}", column.leaf), format!("{:?}", column.style)];
            let all: Vec<&String> = file.iter().chain(&own).collect();
            for (at, one) in all.iter().enumerate() {
                pairs.extend(all[at + 1..].iter().map(|other| ((*one).clone(), (*other).clone())));
            }
        }
        pairs
    }
}

/// `count` cases, the same in every run, and how many pairs they cover.
pub fn sample(count: usize) -> (Vec<Case>, usize) {
    const CANDIDATES: usize = 6;
    let mut random = Random(0x5eed);
    let mut covered = BTreeSet::new();
    let mut cases = Vec::new();
    for _ in 0..count {
        let candidates = (0..CANDIDATES).map(|_| Case::random(&mut random));
        let news = |case: &Case| case.pairs().difference(&covered).count() * 100 / case.columns.len();
        let best = candidates.max_by_key(news).unwrap();
        covered.extend(best.pairs());
        cases.push(best);
    }
    (cases, covered.len())
}
