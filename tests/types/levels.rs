//! Columns of which nothing but levels is decoded: of unknown type, and of values without bytes.

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Schema};
use parquet::data_type::{FixedLenByteArray, FixedLenByteArrayType, Int32Type};

use crate::{check, styles, write, write_raw};

#[test]
fn columns_of_unknown_type() {
    let rows = 300;
    let list = ListArray::new(
        Arc::new(Field::new("item", DataType::Null, true)),
        OffsetBuffer::from_lengths((0..rows).map(|row| row % 4)),
        Arc::new(NullArray::new((0..rows).map(|row| row % 4).sum())),
        Some((0..rows).map(|row| row % 7 != 0 || row % 4 != 0).collect()),
    );
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter((0..rows as i32).map(|it| (it % 3 > 0).then_some(it))));
    let pair = StructArray::new(
        vec![Field::new("x", DataType::Null, true), Field::new("y", DataType::Int32, true)].into(),
        vec![Arc::new(NullArray::new(rows)), numbers],
        Some(NullBuffer::from_iter((0..rows).map(|row| row % 5 > 0))),
    );
    let columns: Vec<ArrayRef> = vec![Arc::new(NullArray::new(rows)), Arc::new(list), Arc::new(pair)];
    let fields: Vec<_> =
        columns.iter().enumerate().map(|(at, it)| Field::new(format!("c{at}"), it.data_type().clone(), true)).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    for (style, properties) in styles() {
        check(&style, &write(&batch, properties, 130), 0..2);
    }
}

/// A column that its type says is always null, and that holds values: arrow-rs drops them.
#[test]
fn values_of_unknown_type_are_dropped() {
    for (style, properties) in styles() {
        for field in ["optional int32 a (UNKNOWN)", "required int32 a (UNKNOWN)"] {
            let required = field.starts_with("required");
            let group: Vec<_> = (0..200).map(|it| (required || it % 3 == 0).then_some(it)).collect();
            check(&format!("{style}, {field}"), &write_raw::<Int32Type>(field, properties.clone(), &[group]), 0..2);
        }
    }
}

#[test]
fn values_of_no_bytes() {
    for (style, properties) in styles() {
        for field in ["optional fixed_len_byte_array(0) a", "required fixed_len_byte_array(0) a"] {
            let required = field.starts_with("required");
            let value = || FixedLenByteArray::from(Vec::new());
            let group = |rows| (0..rows).map(|it| (required || it % 3 > 0).then(value)).collect::<Vec<_>>();
            let bytes = write_raw::<FixedLenByteArrayType>(field, properties.clone(), &[group(100), group(7)]);
            check(&format!("{style}, {field}"), &bytes, 0..2);
        }
    }
}
