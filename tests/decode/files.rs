//! Files that arrow-rs wrote, decoded from their pages, equal what arrow-rs reads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};

use crate::generate::{Random, array, types};
use crate::support::{assert_equal, columns_of, decode, devices, read, write};

fn batch(random: &mut Random, rows: usize, nulls: u64, values: u64) -> RecordBatch {
    let arrays = types().iter().map(|it| array(random, it, rows, nulls, values)).collect::<Vec<_>>();
    let name = |index: usize, it: &DataType| format!("{index}: {it}");
    let fields = types().into_iter().enumerate();
    let fields = fields.map(|(index, it)| Field::new(name(index, &it), it, nulls > 0));
    RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), arrays).unwrap()
}

fn properties(version: u32, dictionary: bool, page_rows: usize) -> WriterProperties {
    let version = if version == 1 { WriterVersion::PARQUET_1_0 } else { WriterVersion::PARQUET_2_0 };
    WriterProperties::builder()
        .set_writer_version(version)
        .set_encoding(Encoding::PLAIN)
        .set_dictionary_enabled(dictionary)
        .set_data_page_row_count_limit(page_rows)
        .set_write_batch_size(page_rows.clamp(1, 64))
        .set_statistics_enabled(EnabledStatistics::None)
        .build()
}

fn assert_file(what: &str, file: &Bytes, seeds: std::ops::Range<u64>) {
    let theirs = read(file).unwrap();
    let columns = columns_of(file).unwrap();
    for (name, gpu) in devices(seeds) {
        for skew in [0, 5] {
            let what = format!("{what} on {name}, skew {skew}");
            let ours = decode(&gpu, &columns, skew).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_equal(&what, &ours, &theirs, &columns);
        }
    }
}

#[test]
fn every_flat_type_in_every_kind_of_page() {
    let mut random = Random(1);
    let mut cases = 0;
    for version in [1, 2] {
        for dictionary in [false, true] {
            for (rows, page_rows) in [(1, 10), (33, 7), (200, 64), (1500, 1200)] {
                for nulls in [0, 30, 100] {
                    let values = 1 + random.below(300);
                    let groups = if rows < 1000 { 2 } else { 1 };
                    let batches = (0..groups).map(|_| batch(&mut random, rows, nulls, values)).collect::<Vec<_>>();
                    let file = write(&batches, properties(version, dictionary, page_rows));
                    let what =
                        format!("V{version}, dictionary {dictionary}, {rows} rows by {page_rows}, {nulls} % null");
                    assert_file(&what, &file, cases..cases + 1);
                    cases += 1;
                }
            }
        }
    }
    println!("{cases} files, {} columns each", types().len());
}

/// Pages of more slots than one block decodes; the second row group starts inside a word of validity.
#[test]
fn several_blocks_share_a_large_page() {
    let mut random = Random(6);
    let mut seed = 0;
    for (version, dictionary) in [(1, true), (2, true), (1, false), (2, false)] {
        for nulls in [0, 20] {
            let values = if dictionary { 300 } else { 1 << 40 };
            let batches = [777, 17_000].map(|rows| batch(&mut random, rows, nulls, values));
            let properties = properties(version, dictionary, 20_000).into_builder();
            let properties = properties.set_data_page_size_limit(64 << 20).set_dictionary_page_size_limit(1 << 20);
            let file = write(&batches, properties.build());
            let values = |column: usize, chunk: usize| {
                columns_of(&file).unwrap()[column].chunks[chunk].headers.last().unwrap().num_values
            };
            assert_eq!((values(3, 1), values(28, 1)), (17_000, 17_000));
            assert_file(
                &format!("large pages, V{version}, dictionary {dictionary}, {nulls} % null"),
                &file,
                seed..seed + 1,
            );
            seed += 1;
        }
    }
}

#[test]
fn a_dictionary_that_grows_too_large_falls_back_to_plain_within_the_chunk() {
    let mut random = Random(2);
    for version in [1, 2] {
        let batches = [batch(&mut random, 700, 20, 1 << 40), batch(&mut random, 40, 20, 3)];
        let properties = properties(version, true, 50).into_builder().set_dictionary_page_size_limit(600).build();
        let file = write(&batches, properties);
        let columns = columns_of(&file).unwrap();
        let encodings = |column: usize| columns[column].chunks[0].headers.iter().map(|it| it.encoding);
        // INT32 and Utf8: the dictionary page, a page of each kind.
        for column in [3, 28] {
            let plain = encodings(column).filter(|it| *it == Encoding::PLAIN as u8).count();
            assert!(plain > 1 && plain < columns[column].chunks[0].headers.len(), "{:?}", columns[column].leaf.path);
        }
        assert_file(&format!("fallback, V{version}"), &file, 0..3);
    }
}

#[test]
fn run_length_encoded_booleans() {
    let mut random = Random(3);
    for nulls in [0, 40, 100] {
        let flags = array(&mut random, &DataType::Boolean, 900, nulls, 9);
        let steady: ArrayRef = Arc::new((0..900).map(|it| Some(it / 300 == 1)).collect::<BooleanArray>());
        let batch = RecordBatch::try_from_iter([("flags", flags), ("steady", steady)]).unwrap();
        let builder = properties(2, false, 100).into_builder();
        let file = write(&[batch], builder.set_encoding(Encoding::RLE).build());
        assert!(columns_of(&file).unwrap()[0].chunks[0].headers.iter().all(|it| it.encoding == Encoding::RLE as u8));
        assert_file(&format!("RLE booleans, {nulls} % null"), &file, 0..3);
    }
}

#[test]
fn long_strings_and_many_short_ones() {
    let mut random = Random(4);
    let long = (0..40).map(|it| {
        let len = if it % 7 == 0 { 9000 + random.below(3000) } else { random.below(5) };
        Some("日".repeat(len as usize / 3) + &"x".repeat(len as usize % 3))
    });
    let long = long.collect::<Vec<_>>();
    let short = (0..3000).map(|it| Some((it % 10).to_string())).collect::<Vec<_>>();
    for strings in [long, short] {
        let column: ArrayRef = Arc::new(strings.iter().cloned().collect::<StringArray>());
        let batch = RecordBatch::try_from_iter([("strings", column)]).unwrap();
        for dictionary in [false, true] {
            assert_file("strings", &write(std::slice::from_ref(&batch), properties(1, dictionary, 2000)), 0..3);
        }
    }
}

/// Bytes of a file are changed at random places of its pages. What arrow-rs reads, the kernels read alike; what it
/// refuses, they refuse.
#[test]
fn changed_bytes_have_the_outcome_that_they_have_in_arrow_rs() {
    let mut random = Random(5);
    let (mut equal, mut refused, mut ahead) = (0, 0, 0);
    let gpus = devices(0..2);
    for case in 0..28u64 {
        let dictionary = case % 2 == 0;
        let (rows, nulls) = (60 + random.below(60) as usize, if case % 3 == 0 { 0 } else { 30 });
        let types = [
            DataType::Int32,
            DataType::Utf8,
            DataType::Boolean,
            DataType::Float64,
            DataType::Binary,
            DataType::Decimal128(38, 3),
            DataType::FixedSizeBinary(3),
        ];
        let data_type = &types[case as usize % types.len()];
        let column = array(&mut random, data_type, rows, nulls, 20);
        let schema = Schema::new(vec![Field::new("column", data_type.clone(), nulls > 0)]);
        let batch = RecordBatch::try_new(Arc::new(schema), vec![column]).unwrap();
        let file = write(&[batch], properties(1 + (case % 4 / 2) as u32, dictionary, 25)).to_vec();
        let clean = columns_of(&file.clone().into()).unwrap();
        let bodies: Vec<_> = clean[0].chunks[0]
            .headers
            .iter()
            .map(|it| &clean[0].chunks[0].bytes[it.body_offset as usize..][..it.compressed_bytes as usize])
            .filter(|it| it.len() > 3)
            .map(|body| (file.windows(body.len()).position(|it| it == body).unwrap(), body.len()))
            .collect();
        for _ in 0..40 {
            let mut file = file.clone();
            for _ in 0..1 + random.below(3) {
                let (start, len) = bodies[random.below(bodies.len() as u64) as usize];
                // Levels and bit widths come first.
                let within =
                    if random.below(2) == 0 { random.below(len.min(8) as u64) } else { random.below(len as u64) };
                file[start + within as usize] = random.next() as u8 >> random.below(8);
            }
            let file = Bytes::from(file);
            let Ok(columns) = columns_of(&file) else { continue };
            let theirs = catch_unwind(AssertUnwindSafe(|| read(&file))).unwrap_or_else(|_| Err("a panic".into()));
            for (name, gpu) in &gpus {
                let ours = decode(gpu, &columns, 3);
                match (&ours, &theirs) {
                    (Ok(ours), Ok(theirs)) => {
                        assert_equal(name, ours, theirs, &columns);
                        equal += 1;
                    }
                    (Err(_), Err(_)) => refused += 1,
                    // arrow-rs reads indices of byte arrays 1,024 at a time and so refuses malformed runs behind the
                    // last value, too.
                    (Ok(_), Err(theirs)) if theirs.contains("RLE") => ahead += 1,
                    (Ok(_), Err(theirs)) => panic!("case {case} {data_type} on {name}: arrow-rs refuses it: {theirs}"),
                    (Err(ours), Ok(_)) => panic!("case {case} {data_type} on {name}: arrow-rs reads it: {ours}"),
                }
            }
        }
    }
    println!("{equal} equal, {refused} refused by both, {ahead} refused by arrow-rs for what no value needs");
    assert!(gpus.is_empty() || (equal > 50 && refused > 50), "{equal} equal, {refused} refused");
}
