//! Pages of a few bytes that claim billions of levels.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;
use parquet_gpu::io::Source;
use parquet_gpu::{Device, Error, GpuReaderBuilder, ReadOptions};

use crate::devices;
use crate::pages::{self, encoding, varint};

/// One page of `count` nulls below a list: runs of a few bytes.
fn file(count: usize, rows: i64, stated: i64) -> Bytes {
    let schema = "message m { optional group l (LIST) { repeated group list { optional int32 item; } } }";
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(parse_message_type(schema).unwrap())));
    let mut out = b"PAR1".to_vec();
    let mut body = Vec::new();
    // A row that starts, and goes on.
    let run = |length: usize, level: u8| {
        let mut bytes = Vec::new();
        varint(&mut bytes, (length as u64) << 1);
        bytes.push(level);
        bytes
    };
    for runs in [[run(1, 0), run(count - 1, 1)].concat(), run(count, 2)] {
        body.extend_from_slice(&(runs.len() as u32).to_le_bytes());
        body.extend_from_slice(&runs);
    }
    let page = pages::v1(count, encoding::PLAIN, encoding::RLE, body.len(), &body);
    out.extend_from_slice(&page);
    let column = ColumnChunkMetaData::builder(schema.column(0))
        .set_encodings(vec![Encoding::PLAIN, Encoding::RLE])
        .set_compression(Compression::UNCOMPRESSED)
        .set_num_values(stated)
        .set_total_compressed_size(page.len() as i64)
        .set_total_uncompressed_size(page.len() as i64)
        .set_data_page_offset(4)
        .build()
        .unwrap();
    let group = RowGroupMetaData::builder(schema.clone()).set_num_rows(rows).set_total_byte_size(1);
    let group = group.add_column_metadata(column).build().unwrap();
    let metadata = FileMetaData::new(2, rows, None, None, schema, None);
    let metadata = ParquetMetaData::new(metadata, vec![group]);
    ParquetMetaDataWriter::new(&mut out, &metadata).finish().unwrap();
    out.into()
}

#[test]
fn levels_by_the_billion_are_refused_before_memory_is_asked_for() {
    let most = i32::MAX as usize;
    // What the footer says of them: the truth, less, and more.
    for (count, rows, stated) in [(most, 1, most as i64), (most, 1, 1), (most, 1, 1000), (1 << 26, 1, 1 << 26)] {
        for gpu in devices::devices(0) {
            let source = Arc::new(Source::from_bytes("huge", file(count, rows, stated)));
            let options = ReadOptions::default().with_memory(16 << 20);
            let builder = GpuReaderBuilder::try_new(source, Device::Gpu(gpu)).unwrap().with_options(options);
            let error = match builder.build() {
                Err(error) => error,
                Ok(mut reader) => reader.next().unwrap().map(|_| ()).unwrap_err(),
            };
            let is_clear = matches!(error, Error::Budget { .. } | Error::Corrupt { .. });
            assert!(is_clear, "{count} levels, {stated} stated: {error}");
        }
    }
}

#[test]
fn a_few_levels_of_the_same_kind_are_read() {
    for gpu in devices::devices(0) {
        let source = Arc::new(Source::from_bytes("few", file(1000, 1, 1000)));
        let mut reader = GpuReaderBuilder::try_new(source, Device::Gpu(gpu)).unwrap().build().unwrap();
        let batch = reader.next().unwrap().unwrap().to_host().unwrap();
        let lists = arrow::array::AsArray::as_list::<i32>(batch.column(0));
        assert_eq!((arrow::array::Array::len(lists), lists.value_length(0)), (1, 1000));
        assert_eq!(arrow::array::Array::null_count(lists.values()), 1000);
    }
}
