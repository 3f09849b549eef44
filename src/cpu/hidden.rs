//! Nulls of required fields, which nothing but a null above them can make. arrow-rs hands them out with a mask of the
//! field's own; arrow then takes the array for invalid once it looks, when it joins two of them for one.

use arrow::array::{Array, ArrayData, RecordBatch, RecordBatchOptions, make_array};
use arrow::datatypes::DataType;
use parquet::errors::Result;

/// The same batch, its required fields below others without masks.
///
/// # Errors
/// None that a batch of arrow-rs would give.
pub(super) fn unmask(batch: RecordBatch) -> Result<RecordBatch> {
    if !batch.schema_ref().fields().iter().any(|field| hides(field.data_type())) {
        return Ok(batch);
    }
    let columns = batch.columns().iter().map(|column| make_array(below(&column.to_data()))).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(batch.schema(), columns, &options)?)
}

/// Whether a field somewhere in the type is required.
fn hides(data_type: &DataType) -> bool {
    let is = |field: &arrow::datatypes::Field| !field.is_nullable() || hides(field.data_type());
    match data_type {
        DataType::Struct(fields) => fields.iter().any(|field| is(field)),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => is(field),
        _ => false,
    }
}

/// The array with its children unmasked.
fn below(data: &ArrayData) -> ArrayData {
    let nullable: Vec<bool> = match data.data_type() {
        DataType::Struct(fields) => fields.iter().map(|field| field.is_nullable()).collect(),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => vec![field.is_nullable()],
        _ => return data.clone(),
    };
    let children = data.child_data().iter().zip(nullable).map(|(child, nullable)| {
        let child = below(child);
        // A key that is null points nowhere, so it stays null where there is no entry.
        match nullable || matches!(child.data_type(), DataType::Dictionary(..)) {
            true => child,
            // SAFETY: every buffer stays; what was null is a value that the mask above still hides.
            false => unsafe { child.into_builder().nulls(None).build_unchecked() },
        }
    });
    let children = children.collect();
    // SAFETY: the children have the lengths and types that they had.
    unsafe { data.clone().into_builder().child_data(children).build_unchecked() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int32Array, StructArray};
    use arrow::buffer::NullBuffer;
    use arrow::compute::concat_batches;
    use arrow::datatypes::{Field, Schema};

    use super::*;

    #[test]
    fn a_required_field_below_a_null_struct_can_be_joined() {
        let values: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3)]));
        let inner = DataType::Struct(vec![Field::new("x", DataType::Int32, false)].into());
        let outer = DataType::Struct(vec![Field::new("inner", inner.clone(), false)].into());
        // As arrow-rs makes them: without a look.
        let build = |data_type: DataType, nulls: Option<NullBuffer>, child: ArrayData| {
            let builder = ArrayData::builder(data_type).len(3).nulls(nulls).child_data(vec![child]);
            // SAFETY: the child has as many values; that its nulls are its own is what is tested.
            unsafe { builder.build_unchecked() }
        };
        let data = build(inner, None, values.to_data());
        let data = build(outer.clone(), Some(NullBuffer::from(vec![true, false, true])), data);
        let schema = Arc::new(Schema::new(vec![Field::new("outer", outer, true)]));
        let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(StructArray::from(data))]).expect("a batch");
        assert!(batch.column(0).to_data().validate_full().is_err(), "or arrow has become lenient");

        let unmasked = unmask(batch.clone()).expect("a batch");
        unmasked.column(0).to_data().validate_full().expect("a valid array");
        assert_eq!(unmasked, batch);
        assert_eq!(concat_batches(&schema, [&unmasked, &unmasked]).expect("joined").num_rows(), 6);
    }
}
