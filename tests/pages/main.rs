//! Page tables and plain bodies against the `parquet` crate's page reader.
#![allow(clippy::unwrap_used)]

#[path = "../devices/mod.rs"]
mod devices;
mod files;
mod headers;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Type};
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet_gpu::decompress::{self, GPU_CODECS};
use parquet_gpu::device::staging::Staging;
use parquet_gpu::device::{DeviceBuffer, Stream};
use parquet_gpu::kernels::abi::{PageHeader, page_kind};
use parquet_gpu::page::{ChunkInput, PageTable, header};
use parquet_gpu::{Error, Result};

/// A column chunk in host memory.
#[derive(Debug, Clone)]
struct Chunk {
    bytes: Bytes,
    file_offset: u64,
    num_values: u64,
    codec: Compression,
    physical_type: Type,
    expected_pages: Option<usize>,
}

impl Chunk {
    fn plain(bytes: impl Into<Bytes>, num_values: u64) -> Self {
        Self {
            bytes: bytes.into(),
            file_offset: 0,
            num_values,
            codec: Compression::UNCOMPRESSED,
            physical_type: Type::INT32,
            expected_pages: None,
        }
    }
}

/// A stream of each device under test; the emulated one with each seed.
fn streams(seeds: &[u64]) -> Vec<Stream> {
    devices::devices_with(seeds).iter().map(|gpu| gpu.new_stream().unwrap()).collect()
}

/// Chunks on the device, each in memory of its own that ends where the chunk ends.
struct Loaded {
    _memory: Vec<DeviceBuffer>,
    inputs: Vec<ChunkInput>,
}

fn load(stream: &Stream, chunks: &[Chunk]) -> Loaded {
    let mut memory = Vec::new();
    let mut inputs = Vec::new();
    for (index, chunk) in chunks.iter().enumerate() {
        let skew = (index * 7 % 16) as u64;
        let buffer = stream.gpu().alloc(chunk.bytes.len() as u64 + skew, stream, "a test").unwrap();
        // SAFETY: waited for below.
        unsafe { stream.copy_to_device(&buffer, skew, &chunk.bytes).unwrap() };
        inputs.push(ChunkInput {
            address: buffer.address() + skew,
            bytes: chunk.bytes.len() as u64,
            file_offset: chunk.file_offset,
            num_values: chunk.num_values,
            num_rows: chunk.num_values,
            first_row: 0,
            first_page: 0,
            continues: false,
            row_group: index,
            column: "a.b".into(),
            codec: chunk.codec,
            physical_type: chunk.physical_type,
            expected_pages: chunk.expected_pages,
        });
        memory.push(buffer);
    }
    stream.synchronize().unwrap();
    Loaded { _memory: memory, inputs }
}

fn parse(stream: &Stream, chunks: &[Chunk]) -> Result<PageTable> {
    header::parse(stream, &load(stream, chunks).inputs)
}

/// Headers and, for a codec that kernels know, bodies.
fn read(stream: &Stream, chunks: &[Chunk]) -> Result<(PageTable, Vec<Option<Bytes>>)> {
    let loaded = load(stream, chunks);
    let table = header::parse(stream, &loaded.inputs)?;
    let mut pages = table.describe();
    if !chunks.iter().all(|it| GPU_CODECS.contains(&it.codec)) {
        return Ok((table, vec![None; pages.len()]));
    }
    let placed = decompress::place(stream, &table, &mut pages)?;
    let mut staging = Staging::default();
    let page_slot = staging.push(&pages);
    let (item_slot, lz4_slot) = (staging.push(&placed.snappy), staging.push(&placed.lz4));
    let fault_slot = staging.push(&[u64::MAX]);
    let staged = staging.upload(stream, "a test")?;
    let (at, items, fault) = (staged.address(page_slot), staged.address(item_slot), staged.address(fault_slot));
    // SAFETY: all of it lives until the wait below.
    unsafe {
        decompress::snappy::launch(stream, at, items, placed.snappy.len(), fault)?;
        decompress::lz4::launch(stream, at, staged.address(lz4_slot), placed.lz4.len(), fault)?;
    }
    let mut scratch = vec![0; placed.scratch.len() as usize];
    let mut word = [0; 8];
    // SAFETY: waited for below.
    unsafe { stream.copy_to_host(&mut scratch, &placed.scratch, 0)? };
    // SAFETY: the slot is 8 bytes; waited for below.
    unsafe { stream.gpu().backend().copy_to_host(stream.raw(), word.as_mut_ptr(), fault, 8)? };
    stream.synchronize()?;
    if let Some(error) = table.fault(u64::from_le_bytes(word)) {
        return Err(error);
    }
    let scratch = Bytes::from(scratch);
    let bodies = pages.iter().enumerate().map(|(index, page)| {
        let chunk = table.chunk_of(index);
        let length = page.body_bytes as usize;
        Some(if page.body == page.source {
            chunks[chunk].bytes.slice((page.body - loaded.inputs[chunk].address) as usize..).slice(..length)
        } else {
            assert_eq!(page.body % 16, 0);
            scratch.slice((page.body - placed.scratch.address()) as usize..).slice(..length)
        })
    });
    Ok((table.clone(), bodies.collect()))
}

/// The pages that arrow-rs sees until they hold `num_values`, or that it refuses one.
fn reference(file: &Bytes, chunk: &ColumnChunkMetaData, num_values: u64) -> Result<Vec<Page>, String> {
    let walk = || -> parquet::errors::Result<Vec<Page>> {
        let mut reader = SerializedPageReader::new(Arc::new(file.clone()), chunk, num_values as usize, None)?;
        let mut pages = Vec::new();
        let mut values = 0;
        while values < num_values {
            let Some(page) = reader.get_next_page()? else { break };
            values += if page.is_data_page() { u64::from(page.num_values()) } else { 0 };
            pages.push(page);
        }
        Ok(pages)
    };
    match catch_unwind(AssertUnwindSafe(walk)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("a panic".into()),
    }
}

fn values(pages: &[Page]) -> u64 {
    pages.iter().filter(|it| it.is_data_page()).map(|it| u64::from(it.num_values())).sum()
}

/// Whether two readers tell the same of a page.
fn assert_same(header: &PageHeader, body: Option<&Bytes>, page: &Page, what: &str) {
    assert_eq!(header.num_values, page.num_values(), "{what}: values");
    assert_eq!(i32::from(header.encoding), page.encoding() as i32, "{what}: encoding");
    match page {
        Page::DictionaryPage { .. } => assert_eq!(header.kind, page_kind::DICTIONARY, "{what}: kind"),
        Page::DataPage { def_level_encoding, rep_level_encoding, .. } => {
            assert_eq!(header.kind, page_kind::DATA_V1, "{what}: kind");
            assert_eq!(i32::from(header.def_encoding), *def_level_encoding as i32, "{what}: definition levels");
            assert_eq!(i32::from(header.rep_encoding), *rep_level_encoding as i32, "{what}: repetition levels");
        }
        Page::DataPageV2 { num_nulls, num_rows, def_levels_byte_len, rep_levels_byte_len, is_compressed, .. } => {
            assert_eq!(header.kind, page_kind::DATA_V2, "{what}: kind");
            let ours = (header.num_nulls, header.num_rows, header.def_bytes, header.rep_bytes);
            assert_eq!(ours, (*num_nulls, *num_rows, *def_levels_byte_len, *rep_levels_byte_len), "{what}: V2 facts");
            assert_eq!(header.is_compressed != 0, *is_compressed, "{what}: is_compressed");
        }
    }
    match body {
        Some(body) => assert!(body == page.buffer(), "{what}: bodies of {} and {}", body.len(), page.buffer().len()),
        None if header.is_compressed != 0 => {
            assert_eq!(header.uncompressed_bytes as usize, page.buffer().len(), "{what}: bytes")
        }
        None => assert_eq!(header.compressed_bytes as usize, page.buffer().len(), "{what}: bytes"),
    }
}

/// Where an error says that a file is wrong: row group, page, offset.
fn place(error: &Error) -> (Option<usize>, Option<usize>, Option<u64>) {
    let place = error.place().unwrap_or_else(|| panic!("{error}"));
    assert_eq!(place.column.as_deref(), Some("a.b"));
    (place.row_group, place.page, place.offset)
}
