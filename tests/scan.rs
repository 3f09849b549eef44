//! Whole scans of generated files, on every device, equal arrow-rs; and damaged ones end with a result or an error.
#![allow(clippy::unwrap_used)]

mod devices;
mod generate;

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{Field, Fields, Schema};
use bytes::Bytes;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet_gpu::io::Source;
use parquet_gpu::verify::Verifier;
use parquet_gpu::{Device, Error, GpuReaderBuilder, IoOptions, ReadOptions, Result, ScanReport};
use proptest::prelude::*;

use generate::{Random, array, types};

/// How a file is written and read.
#[derive(Debug, Clone)]
struct Case {
    seed: u64,
    rows: usize,
    group_rows: usize,
    page_rows: usize,
    nulls: u64,
    values: u64,
    version: WriterVersion,
    dictionary: bool,
    dictionary_bytes: usize,
    codec: Compression,
    columns: usize,
    threshold: u64,
    task: u64,
    batch_rows: Option<u64>,
}

fn cases() -> impl Strategy<Value = Case> {
    let written = (
        any::<u64>(),
        0..700usize,
        1..400usize,
        1..300usize,
        prop_oneof![Just(0u64), Just(100), 1..99u64],
        prop_oneof![1..4u64, 1..1000u64, Just(u64::MAX)],
        any::<bool>(),
        any::<bool>(),
    );
    let stored = (
        prop_oneof![Just(64usize), Just(1000), Just(1 << 20)],
        prop_oneof![
            Just(Compression::UNCOMPRESSED),
            Just(Compression::SNAPPY),
            Just(Compression::LZ4_RAW),
            Just(Compression::ZSTD(Default::default()))
        ],
        1..12usize,
        prop_oneof![Just(0u64), Just(1 << 10), Just(16 << 10)],
        prop_oneof![Just(1000u64), Just(4 << 20)],
        proptest::option::of(1..300u64),
    );
    (written, stored).prop_map(
        |(
            (seed, rows, group_rows, page_rows, nulls, values, v2, dictionary),
            (dictionary_bytes, codec, columns, threshold, task, batch_rows),
        )| Case {
            seed,
            rows,
            group_rows,
            page_rows,
            nulls,
            values,
            version: if v2 { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 },
            dictionary,
            dictionary_bytes,
            codec,
            columns,
            threshold,
            task,
            batch_rows,
        },
    )
}

/// A column of a random type: flat, a struct of one, or a list of one.
fn column(random: &mut Random, case: &Case) -> ArrayRef {
    let types = types();
    let data_type = &types[random.below(types.len() as u64) as usize];
    let rows = case.rows;
    match random.below(8) {
        0 => {
            let child = array(random, data_type, rows, case.nulls, case.values);
            let field = Field::new("inner", data_type.clone(), true);
            let validity = NullBuffer::from((0..rows).map(|_| random.below(100) >= case.nulls).collect::<Vec<_>>());
            Arc::new(StructArray::new(Fields::from(vec![field]), vec![child], Some(validity)))
        }
        1 => {
            let lengths: Vec<usize> = (0..rows).map(|_| random.below(4) as usize).collect();
            let child = array(random, data_type, lengths.iter().sum(), case.nulls, case.values);
            let field = Arc::new(Field::new("item", data_type.clone(), true));
            let validity = NullBuffer::from((0..rows).map(|_| random.below(100) >= case.nulls).collect::<Vec<_>>());
            Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths), child, Some(validity)))
        }
        _ => array(random, data_type, rows, case.nulls, case.values),
    }
}

fn write(case: &Case) -> Bytes {
    let mut random = Random(case.seed);
    let columns: Vec<ArrayRef> = (0..case.columns).map(|_| column(&mut random, case)).collect();
    let fields = columns.iter().enumerate().map(|(at, it)| {
        let nullable = it.null_count() > 0 || random.below(2) == 0 || !it.data_type().is_primitive();
        Field::new(format!("{at} {}", it.data_type()), it.data_type().clone(), nullable)
    });
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let batch = RecordBatch::try_new(schema.clone(), columns).unwrap();
    let properties = WriterProperties::builder()
        .set_writer_version(case.version)
        .set_encoding(Encoding::PLAIN)
        .set_dictionary_enabled(case.dictionary)
        .set_dictionary_page_size_limit(case.dictionary_bytes)
        .set_data_page_row_count_limit(case.page_rows)
        .set_write_batch_size(case.page_rows.clamp(1, 64))
        .set_max_row_group_row_count(Some(case.group_rows))
        .set_compression(case.codec)
        .set_statistics_enabled(if case.seed.is_multiple_of(2) {
            EnabledStatistics::Page
        } else {
            EnabledStatistics::None
        })
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap().into()
}

fn options(case: &Case) -> ReadOptions {
    let io = IoOptions::default().with_gds_threshold(case.threshold).with_task_size(case.task).with_threads(2);
    let options = ReadOptions::default().with_io(io).with_memory(256 << 20);
    case.batch_rows.map_or(options.clone(), |rows| options.with_batch_rows(rows))
}

/// Scans and compares. `Err`: the scan refused the file.
fn verify(source: &Arc<Source>, device: Device, options: ReadOptions) -> Result<ScanReport> {
    let builder = GpuReaderBuilder::try_new(source.clone(), device)?.with_options(options);
    let mut verifier = Verifier::new(source.clone(), builder.footer(), &ProjectionMask::all(), None, None)?;
    let mut reader = builder.build()?;
    for batch in &mut reader {
        assert_eq!(verifier.check(&batch?)?.map(|it| it.to_string()), None);
    }
    assert_eq!(verifier.finish()?.map(|it| it.to_string()), None);
    Ok(reader.report())
}

fn devices(seed: u64) -> Vec<Device> {
    devices::devices(seed).into_iter().map(Device::Gpu).chain([Device::Cpu]).collect()
}

proptest! {
    #[test]
    fn a_scan_equals_arrow_rs(case in cases()) {
        // In memory, and as a file, which cuFile may be asked for.
        let bytes = write(&case);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let sources = [Source::from_bytes("memory", bytes), Source::open(file.path().to_str().unwrap()).unwrap()];
        for source in sources.map(Arc::new) {
            for device in devices(case.seed % 5) {
                let name = device.name();
                let report = verify(&source, device, options(&case)).unwrap_or_else(|error| panic!("{name}: {error}"));
                prop_assert_eq!(report.rows, case.rows as u64, "{}", name);
                prop_assert!(report.columns_on_cpu.is_empty() || name != "cpu");
            }
        }
    }

    /// Cut, flipped or overwritten files: an error, or what arrow-rs reads too. Then a whole file reads as before.
    #[test]
    fn a_damaged_file_ends_with_a_result_or_an_error(case in cases(), damage in 0..3u8, at in any::<u64>(), bits in 1..=255u8) {
        let good = write(&case);
        let mut bytes = good.to_vec();
        let position = (at % bytes.len() as u64) as usize;
        match damage {
            0 => bytes.truncate(position),
            1 => bytes[position] ^= bits,
            _ => {
                let end = (position + usize::from(bits)).min(bytes.len());
                bytes[position..end].fill(bits);
            }
        }
        let (bad, good) = (Source::from_bytes("damaged", bytes.into()), Source::from_bytes("good", good));
        let (bad, good) = (Arc::new(bad), Arc::new(good));
        for device in devices(case.seed % 5) {
            if let Err(error) = verify(&bad, device.clone(), options(&case)) {
                prop_assert!(!error.to_string().is_empty());
                let kinds = ["corrupt", "unsupported", "budget", "io"];
                prop_assert!(kinds.contains(&error.kind()), "{}: {}", error.kind(), error);
                if let Error::Corrupt { message, .. } = &error {
                    prop_assert!(!message.contains("not valid"), "a kernel made an invalid array: {message}");
                }
            }
            verify(&good, device, options(&case)).unwrap();
        }
    }
}

/// A row group that states 0 rows while its pages hold some: read as arrow-rs reads it.
#[test]
fn a_row_group_of_no_rows_with_values() {
    use parquet::file::metadata::{ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData};
    let good = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/row_groups.parquet")).unwrap();
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&Bytes::from(good.clone())).unwrap();
    let mut builder = metadata.into_builder();
    let groups = builder.take_row_groups();
    // The first one alone: the writer sums them up, and arrow-rs reads nothing of a file that states no rows.
    let lie = |(at, group): (usize, _)| match (at, group) {
        (0, group) => RowGroupMetaData::into_builder(group).set_num_rows(0).build().unwrap(),
        (_, group) => group,
    };
    let groups = groups.into_iter().enumerate().map(lie).collect();
    let lying = builder.set_row_groups(groups).build();
    let mut bytes = good.clone();
    ParquetMetaDataWriter::new(&mut bytes, &lying).finish().unwrap();
    let source = Arc::new(Source::from_bytes("lying", bytes.into()));
    for device in devices(1) {
        let name = device.name();
        // `verify` compares with what arrow-rs makes of it, the number of rows included.
        let report = verify(&source, device, ReadOptions::default().with_memory(256 << 20)).unwrap();
        assert_eq!(report.columns_on_cpu, Default::default(), "{name}");
    }
}
