//! Files written by arrow-rs's writer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema};
use bytes::Bytes;
use parquet::arrow::{ArrowSchemaConverter, ArrowWriter};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::SchemaDescriptor;
use rayon::prelude::*;

use crate::cases::{Case, Projection, Style, sample};
use crate::generate::Random;
use crate::shapes::{Values, column};
use crate::{Subject, Tally, case_count};

/// Bytes of a dictionary that is soon full.
const SMALL_DICTIONARY: usize = 200;

fn batch(case: &Case, random: &mut Random) -> RecordBatch {
    let values = Values { nulls: case.nulls, empties: case.empties, different: case.different };
    let columns = case.columns.iter().map(|it| {
        let data_type = it.shape.around(random, &it.leaf);
        (column(random, &data_type, it.nullable, case.rows, values), it.nullable)
    });
    let columns: Vec<(ArrayRef, bool)> = columns.collect();
    let fields = columns
        .iter()
        .enumerate()
        .map(|(at, (it, nullable))| Field::new(format!("c{at}"), it.data_type().clone(), *nullable));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    RecordBatch::try_new(schema, columns.into_iter().map(|it| it.0).collect()).unwrap()
}

/// Each leaf of each column encoded in the column's style.
pub fn encode(
    builder: WriterPropertiesBuilder,
    schema: &SchemaDescriptor,
    styles: &[Style],
) -> WriterPropertiesBuilder {
    (0..schema.num_columns()).fold(builder, |builder, leaf| {
        let style = styles[schema.get_column_root_idx(leaf)];
        let descriptor = schema.column(leaf);
        let path = descriptor.path().clone();
        let limit = if style == Style::Dictionary { 1 << 20 } else { SMALL_DICTIONARY };
        builder
            .set_column_encoding(path.clone(), style.encoding(descriptor.physical_type()))
            .set_column_dictionary_enabled(path.clone(), style.dictionary())
            .set_column_dictionary_page_size_limit(path, limit)
    })
}

/// `chosen`, and what arrow-rs wants beside it: a map's key with its value, and its value with its key.
fn with_maps(schema: &SchemaDescriptor, chosen: &[usize]) -> Vec<usize> {
    let path = |leaf: usize| schema.column(leaf).path().string();
    let mut leaves: BTreeSet<usize> = chosen.iter().copied().collect();
    for leaf in chosen.iter().map(|it| path(*it)) {
        for (at, _) in leaf.match_indices(".entries.") {
            let prefix = &leaf[..at + ".entries.".len()];
            let is_key = leaf[prefix.len()..] == *"key";
            let wanted = |other: &String| other.starts_with(prefix) && (is_key || other[prefix.len()..] == *"key");
            leaves.extend((0..schema.num_columns()).filter(|it| wanted(&path(*it))));
        }
    }
    leaves.into_iter().collect()
}

/// The file of a case, and its schema.
pub fn write(case: &Case) -> (Bytes, SchemaDescriptor) {
    let batch = batch(case, &mut Random(case.seed));
    let schema = ArrowSchemaConverter::new().convert(&batch.schema()).unwrap();
    let styles: Vec<Style> = case.columns.iter().map(|it| it.style).collect();
    let statistics = if case.page_index { EnabledStatistics::Page } else { EnabledStatistics::None };
    let properties = WriterProperties::builder()
        .set_writer_version(case.version)
        .set_data_page_row_count_limit(case.page_rows)
        .set_write_batch_size(case.page_rows.clamp(1, 64))
        .set_max_row_group_row_count(Some(case.group_rows))
        .set_compression(case.codec)
        .set_offset_index_disabled(!case.page_index)
        .set_statistics_enabled(statistics);
    let properties = encode(properties, &schema, &styles).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    (writer.into_inner().unwrap().into(), schema)
}

/// The leaves that a case reads; `None`: all.
pub fn leaves_of(case: &Case, schema: &SchemaDescriptor) -> Option<Vec<usize>> {
    let mut random = Random(case.seed ^ 1);
    let count = schema.num_columns();
    let leaves: Vec<usize> = match case.projection {
        Projection::All => return None,
        Projection::One => vec![random.below(count as u64) as usize],
        Projection::Half => (0..count).filter(|_| random.below(2) == 0).collect(),
    };
    (!leaves.is_empty()).then(|| with_maps(schema, &leaves))
}

fn check(case: &Case, tally: &Mutex<Tally>) {
    let (bytes, schema) = write(case);
    let leaves = leaves_of(case, &schema);
    let name = format!("{case:?}, leaves {leaves:?}");
    Subject { name, bytes, leaves, cut: case.cut, rows: case.selected, groups: case.groups }
        .check(case.seed % 7, tally);
}

#[test]
fn written_by_arrow_rs() {
    let (cases, pairs) = sample(case_count(400));
    let tally = Mutex::default();
    cases.par_iter().for_each(|case| check(case, &tally));
    let tally = tally.into_inner().unwrap();
    tally.finish(&format!("{} cases, {pairs} pairs of properties", cases.len()), cases.len());
}
