//! The result: Arrow arrays in device memory, or in host memory on the CPU device.

use arrow::array::{ArrayData, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, SchemaRef};

use crate::device::{DeviceBuffer, Stream};
use crate::error::{Error, Result};

/// A buffer of an array.
#[derive(Debug)]
pub enum Memory {
    /// Host memory.
    Host(Buffer),
    /// Device memory; the first bytes of the buffer count, as many as the array's layout asks for.
    Device(DeviceBuffer),
}

/// One Arrow array with the layout of the Arrow columnar format, its buffers in device memory.
#[derive(Debug)]
pub struct DeviceArray {
    /// Arrow type.
    pub data_type: DataType,
    /// Values.
    pub len: usize,
    /// Nulls.
    pub null_count: usize,
    /// Validity bits, one a value, least significant first; `None` when there are no nulls.
    pub validity: Option<Memory>,
    /// The other buffers, in the order of the columnar format.
    pub buffers: Vec<Memory>,
    /// Children, for nested types.
    pub children: Vec<DeviceArray>,
}

/// Columns of the same length on one device.
#[derive(Debug)]
pub struct DeviceBatch {
    /// Names and types.
    pub schema: SchemaRef,
    /// Rows.
    pub rows: usize,
    /// One array a top-level field.
    pub columns: Vec<DeviceArray>,
    /// The row groups of the file that it holds, in order.
    pub row_groups: Vec<usize>,
}

impl DeviceArray {
    /// An array that stays in host memory.
    pub fn from_host(data: &ArrayData) -> Self {
        let _ = data;
        Self {
            data_type: data.data_type().clone(),
            len: data.len(),
            null_count: 0,
            validity: None,
            buffers: vec![],
            children: vec![],
        }
    }

    /// Copies an array to the device of `stream`; done when the call returns.
    pub fn upload(data: &ArrayData, stream: &Stream) -> Result<Self> {
        let _ = (data, stream);
        Err(Error::Argument("stub".into()))
    }
}

impl DeviceBatch {
    /// The batch in host memory: copies device buffers, shares host buffers.
    pub fn to_host(&self) -> Result<RecordBatch> {
        Err(Error::Argument("stub".into()))
    }
}
