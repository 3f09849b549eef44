//! Whole files: written by arrow-rs, then damaged, and those that others wrote.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::Int32Type;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::column::page::Page;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet_gpu::Result;
use parquet_gpu::decompress::GPU_CODECS;
use parquet_gpu::device::Stream;
use parquet_gpu::page::PageTable;
use proptest::prelude::*;

use super::{Chunk, assert_same, parse, read, reference, streams, values};

/// A file of 3,000 rows in two row groups, with many pages.
fn write(version: WriterVersion, codec: Compression) -> Bytes {
    let rows = 3_000i64;
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..rows))),
        ("few", Arc::new(Int64Array::from_iter((0..rows).map(|it| (it % 7 != 0).then_some(it % 50))))),
        ("flag", Arc::new(BooleanArray::from_iter((0..rows).map(|it| Some(it % 3 == 0))))),
        (
            "text",
            Arc::new(StringArray::from_iter((0..rows).map(|it| (it % 5 != 0).then(|| format!("row number {it}"))))),
        ),
        ("void", Arc::new(StringArray::from_iter((0..rows).map(|_| None::<&str>)))),
        (
            "list",
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(
                (0..rows as i32).map(|it| (it % 4 != 0).then(|| (0..it % 6).map(Some).collect::<Vec<_>>())),
            )),
        ),
    ];
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, it)| (name, it, true))).unwrap();
    let properties = WriterProperties::builder()
        .set_writer_version(version)
        .set_compression(codec)
        .set_data_page_row_count_limit(150)
        .set_write_batch_size(50)
        .set_max_row_group_row_count(Some(2_000))
        .set_column_dictionary_enabled("id".into(), false)
        .build();
    let mut out = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut out, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    out.into()
}

fn metadata(file: &Bytes) -> Option<ParquetMetaData> {
    // The crate panics on some footers.
    std::panic::catch_unwind(|| ParquetMetaDataReader::new().parse_and_finish(file).ok()).ok()?
}

/// The chunks of a file that lie in it, with row group and column.
fn chunks(file: &Bytes, metadata: &ParquetMetaData) -> Vec<(usize, usize, Chunk)> {
    let mut all = Vec::new();
    for (row_group, group) in metadata.row_groups().iter().enumerate() {
        for (column, chunk) in group.columns().iter().enumerate() {
            let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
            let (Ok(start), Ok(bytes)) = (usize::try_from(start), usize::try_from(chunk.compressed_size())) else {
                continue;
            };
            let Some(end) = start.checked_add(bytes).filter(|end| *end <= file.len()) else { continue };
            let flat = chunk.column_descr().max_rep_level() == 0;
            let Ok(num_values) = u64::try_from(if flat { group.num_rows() } else { chunk.num_values() }) else {
                continue;
            };
            let chunk = Chunk {
                bytes: file.slice(start..end),
                file_offset: start as u64,
                num_values,
                codec: chunk.compression(),
                physical_type: chunk.column_type(),
                expected_pages: None,
            };
            all.push((row_group, column, chunk));
        }
    }
    all
}

fn assert_equal(table: &PageTable, chunk: usize, bodies: &[Option<Bytes>], pages: &[Page], what: &str) {
    assert_eq!(table.pages(chunk).len(), pages.len(), "{what}: pages");
    for (at, page) in table.pages(chunk).zip(pages) {
        assert_same(table.header(at), bodies[at].as_ref(), page, what);
    }
}

const VERSIONS: [WriterVersion; 2] = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];

#[test]
fn equal_to_arrow_rs() {
    for version in VERSIONS {
        for codec in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::LZ4_RAW] {
            let file = write(version, codec);
            let metadata = metadata(&file).unwrap();
            let chunks = chunks(&file, &metadata);
            assert_eq!(chunks.len(), 12);
            let inputs: Vec<Chunk> = chunks.iter().map(|it| it.2.clone()).collect();
            for stream in streams(&[1, 2, 3]) {
                let (table, bodies) = read(&stream, &inputs).unwrap();
                assert!(table.len() > 100);
                for (at, (row_group, column, chunk)) in chunks.iter().enumerate() {
                    let column = metadata.row_group(*row_group).column(*column);
                    let pages = reference(&file, column, chunk.num_values).unwrap();
                    let what = format!("{version:?} {codec} {}", column.column_path());
                    assert_equal(&table, at, &bodies, &pages, &what);
                }
            }
        }
    }
}

/// Reads one chunk of a damaged file both ways. Whether there is a result must agree, and the result.
fn compare_damaged(
    stream: &Stream,
    file: &Bytes,
    metadata: &ParquetMetaData,
    at: usize,
) -> std::result::Result<(), TestCaseError> {
    let (row_group, column, chunk) = chunks(file, metadata).swap_remove(at);
    let ours = read(stream, std::slice::from_ref(&chunk));
    if ours.as_ref().is_err_and(|error| error.kind() == "budget") {
        return Ok(()); // arrow-rs would take gigabytes
    }
    let column = metadata.row_group(row_group).column(column);
    let theirs = reference(file, column, chunk.num_values);
    match (theirs, ours) {
        (Ok(pages), Ok((table, bodies))) => assert_equal(&table, 0, &bodies, &pages, "damaged"),
        (Err(_), Err(error)) => prop_assert!(error.place().is_some(), "{}", error),
        // What arrow-rs's page reader alone does not refuse: see `check` in page/header.rs, and the Snappy kernel.
        (Ok(pages), Err(error)) => {
            let text = error.to_string();
            let count = values(&pages);
            let known = count != chunk.num_values && (text.contains("values") || text.contains("runs past"))
                || text.contains("dictionary page")
                || text.contains("bytes of levels") // arrow-rs panics when it cuts them off
                || text.contains("does not decompress to the length")
                || pages
                    .iter()
                    .any(|it| matches!(it, Page::DataPageV2 { num_nulls, num_values, .. } if num_nulls > num_values))
                || pages.is_empty();
            prop_assert!(known, "arrow-rs reads {} pages, {} values: {}", pages.len(), count, text);
        }
        (Err(theirs), Ok(_)) => prop_assert!(false, "arrow-rs: {}", theirs),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_headers(
        version in 0usize..2,
        snappy in any::<bool>(),
        seed in any::<u64>(),
        chunk in 0usize..12,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0u8..8), 1..3),
    ) {
        let file = write(VERSIONS[version], if snappy { Compression::SNAPPY } else { Compression::UNCOMPRESSED });
        let metadata = metadata(&file).unwrap();
        let input = chunks(&file, &metadata).swap_remove(chunk).2;
        for stream in streams(&[seed]) {
            let table = parse(&stream, std::slice::from_ref(&input)).unwrap();
            let stream = stream.gpu().with_budget(16 << 20).new_stream().unwrap();
            // Several damages of each header: each byte of it is worth as much.
            for round in 0..12 {
                let mut damaged = file.to_vec();
                for (page, byte, bit) in &flips {
                    let header = table.header((page.index(table.len()) + round) % table.len());
                    let length = (header.body_offset - header.header_offset) as usize;
                    let byte = (byte.index(length) + 5 * round) % length;
                    damaged[(input.file_offset + header.header_offset) as usize + byte] ^= 1 << bit;
                }
                compare_damaged(&stream, &damaged.into(), &metadata, chunk)?;
            }
        }
    }
}

fn corpus(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            corpus(&path, files);
        } else if path.file_name().is_none_or(|it| it != "INDEX.tsv" && it != "README.md") {
            files.push(path);
        }
    }
}

/// Reads the chunks of a file; those that fail, one at a time.
fn read_each(stream: &Stream, chunks: &[Chunk]) -> Vec<Result<(PageTable, Vec<Option<Bytes>>)>> {
    chunks.iter().map(|it| read(stream, std::slice::from_ref(it))).collect()
}

#[test]
fn files_that_others_wrote() {
    let Some(folder) = std::env::var_os("PARQUET_GPU_CORPUS") else {
        println!("skipped: PARQUET_GPU_CORPUS names no folder of Parquet files");
        return;
    };
    let mut files = Vec::new();
    corpus(Path::new(&folder), &mut files);
    files.sort();
    for stream in streams(&[4]) {
        let stream = stream.gpu().with_budget(512 << 20).new_stream().unwrap();
        println!("on {}", stream.gpu().name());
        read_corpus(&stream, &files);
    }
}

fn read_corpus(stream: &Stream, files: &[PathBuf]) {
    let (mut equal, mut refused, mut stricter) = (0, 0, Vec::new());
    for path in files {
        let file = Bytes::from(std::fs::read(path).unwrap());
        let Some(metadata) = metadata(&file) else { continue };
        let all = chunks(&file, &metadata);
        let (kernels, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| GPU_CODECS.contains(&it.2.codec));
        for group in [kernels, others] {
            let inputs: Vec<Chunk> = group.iter().map(|it| it.2.clone()).collect();
            let whole = read(stream, &inputs);
            let each = if whole.is_err() { read_each(stream, &inputs) } else { Vec::new() };
            for (at, (row_group, column, chunk)) in group.iter().enumerate() {
                let column = metadata.row_group(*row_group).column(*column);
                let what = format!("{} row group {row_group} column {}", path.display(), column.column_path());
                let (ours, index) = match &whole {
                    Ok(whole) => (Ok(whole), at),
                    Err(_) => (each[at].as_ref(), 0),
                };
                match (reference(&file, column, chunk.num_values), ours) {
                    (Ok(pages), Ok((table, bodies))) => {
                        assert_equal(table, index, bodies, &pages, &what);
                        equal += 1;
                    }
                    // A codec that no kernel knows may fail where only headers are read here.
                    (Err(_), Ok(_)) if !GPU_CODECS.contains(&chunk.codec) => refused += 1,
                    (Err(theirs), Ok(_)) => panic!("{what}: arrow-rs refuses it: {theirs}"),
                    (Err(_), Err(_)) => refused += 1,
                    (Ok(pages), Err(error)) => {
                        stricter.push(format!("{what}: {} of {} values: {error}", values(&pages), chunk.num_values));
                    }
                }
            }
        }
    }
    println!("{} files: {equal} chunks equal, {refused} refused by both, {} only here:", files.len(), stricter.len());
    for line in &stricter {
        println!("  {line}");
    }
    assert!(equal > 0);
}
