//! The result: Arrow arrays in device memory, or in host memory on the CPU device.

use std::fmt;

use arrow::array::{ArrayData, RecordBatch, RecordBatchOptions, make_array};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::compute::concat;
use arrow::datatypes::{DataType, SchemaRef};

use crate::device::{DeviceBuffer, Stream};
use crate::error::{Error, Place, Result};

/// Device buffers are padded with zeros to a multiple of this many bytes, as the Arrow columnar format recommends.
pub const PADDING: u64 = 64;

/// A buffer of an array.
#[derive(Debug)]
pub enum Memory {
    /// Host memory.
    Host(Buffer),
    /// Device memory; the first bytes of the buffer count, as many as the array's layout asks for.
    Device(DeviceBuffer),
}

impl Memory {
    /// Bytes held, padding included.
    pub fn len(&self) -> u64 {
        match self {
            Self::Host(buffer) => buffer.len() as u64,
            Self::Device(buffer) => buffer.len(),
        }
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One Arrow array with the layout of the Arrow columnar format and an offset of 0, its buffers in device memory.
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
    /// Children, for nested types; for dictionaries, whose own buffer holds the keys, the one array of values.
    pub children: Vec<DeviceArray>,
}

impl DeviceArray {
    /// An array that stays in host memory. Copies only what has an offset.
    pub fn from_host(data: &ArrayData) -> Result<Self> {
        Self::build(&without_offsets(data)?, &mut |buffer| Ok(Memory::Host(buffer.clone())))
    }

    /// Copies arrays to the device of `stream`, with one host wait for all of them.
    ///
    /// # Errors
    /// [`Error::Budget`] and [`Error::Device`].
    pub fn upload(arrays: &[ArrayData], stream: &Stream) -> Result<Vec<Self>> {
        let arrays = arrays.iter().map(without_offsets).collect::<Result<Vec<_>>>()?;
        let queued = arrays.iter().map(|data| Self::build(data, &mut |it| upload_buffer(it, stream))).collect();
        // Also after a failure: the copies that were queued read `arrays`.
        stream.synchronize()?;
        queued
    }

    fn build(data: &ArrayData, place: &mut impl FnMut(&Buffer) -> Result<Memory>) -> Result<Self> {
        let validity = data.nulls().filter(|nulls| nulls.null_count() > 0);
        Ok(Self {
            data_type: data.data_type().clone(),
            len: data.len(),
            null_count: data.null_count(),
            validity: validity.map(|nulls| place(&nulls.inner().sliced())).transpose()?,
            buffers: data.buffers().iter().map(&mut *place).collect::<Result<_>>()?,
            children: data.child_data().iter().map(|child| Self::build(child, place)).collect::<Result<_>>()?,
        })
    }

    /// Bytes of all buffers, padding and children included.
    pub fn memory(&self) -> u64 {
        let own = self.validity.iter().chain(&self.buffers).map(Memory::len).sum::<u64>();
        own + self.children.iter().map(Self::memory).sum::<u64>()
    }

    /// The array in host memory: copies device buffers, with one wait for all of them, and shares host buffers.
    ///
    /// # Errors
    /// [`Error::Device`]; [`Error::Corrupt`] when the buffers do not form a valid array, which a decoder's bug would do.
    pub fn to_host(&self, stream: Option<&Stream>) -> Result<ArrayData> {
        let mut copied = Vec::new();
        let queued = self.queue_copies(stream, &mut copied);
        if let Some(stream) = stream {
            // Also after a failure, before the targets are dropped. Not a wait of the scan, so not counted as one.
            stream.gpu().backend().synchronize(stream.raw())?;
        }
        queued?;
        self.assemble(&mut copied.into_iter())
    }

    /// Copies of all buffers, in the order in which [`assemble`](Self::assemble) takes them.
    fn queue_copies(&self, stream: Option<&Stream>, copied: &mut Vec<Buffer>) -> Result<()> {
        for memory in self.validity.iter().chain(&self.buffers) {
            copied.push(match memory {
                Memory::Host(buffer) => buffer.clone(),
                Memory::Device(buffer) => queue_download(buffer, stream)?,
            });
        }
        self.children.iter().try_for_each(|child| child.queue_copies(stream, copied))
    }

    fn assemble(&self, copied: &mut impl Iterator<Item = Buffer>) -> Result<ArrayData> {
        let data = ArrayData::builder(self.data_type.clone())
            .len(self.len)
            .null_bit_buffer(self.validity.as_ref().and_then(|_| copied.next()))
            .buffers(copied.take(self.buffers.len()).collect())
            .child_data(self.children.iter().map(|it| it.assemble(copied)).collect::<Result<_>>()?)
            .build();
        data.map_err(|error| Error::corrupt(Place::default(), format!("the decoded array is not valid: {error}")))
    }

    /// Stops counting device memory against the budget of the scan that made it: it is the consumer's now.
    pub(crate) fn hand_over(&mut self) {
        for memory in self.validity.iter_mut().chain(&mut self.buffers) {
            if let Memory::Device(buffer) = memory {
                buffer.hand_over();
            }
        }
        self.children.iter_mut().for_each(Self::hand_over);
    }
}

/// The same array with every offset 0.
fn without_offsets(data: &ArrayData) -> Result<ArrayData> {
    fn has_offset(data: &ArrayData) -> bool {
        let bits = data.nulls().is_some_and(|nulls| nulls.offset() != 0);
        data.offset() != 0 || bits || data.child_data().iter().any(has_offset)
    }
    if !has_offset(data) {
        return Ok(data.clone());
    }
    // Two parts, so that it copies instead of handing the one input back.
    let array = make_array(data.clone());
    let copied = concat(&[&array.slice(0, 0), &array]);
    copied.map(|it| it.to_data()).map_err(|error| Error::Argument(format!("cannot copy an array: {error}")))
}

fn upload_buffer(buffer: &Buffer, stream: &Stream) -> Result<Memory> {
    let bytes = buffer.len() as u64;
    let device = stream.gpu().alloc(bytes.next_multiple_of(PADDING), stream, "a column decoded on the CPU")?;
    if bytes > 0 {
        // SAFETY: `DeviceArray::upload` holds the source until it has synchronised the stream.
        unsafe { stream.copy_to_device(&device, 0, buffer)? };
        stream.fill(&device, bytes, (device.len() - bytes) as usize, 0)?;
    }
    Ok(Memory::Device(device))
}

/// Queues a copy; the buffer holds its bytes once the stream has been synchronised.
fn queue_download(buffer: &DeviceBuffer, stream: Option<&Stream>) -> Result<Buffer> {
    let stream = stream.ok_or_else(|| Error::Argument("a device array without a stream".into()))?;
    let mut host = MutableBuffer::from_len_zeroed(buffer.len() as usize);
    if !buffer.is_empty() {
        // SAFETY: `to_host` neither reads nor drops the target before it has synchronised the stream. Becoming a Buffer
        // does not move its bytes.
        unsafe { stream.copy_to_host(&mut host, buffer, 0)? };
    }
    Ok(host.into())
}

/// Columns of the same length on one device.
pub struct DeviceBatch {
    pub(crate) schema: SchemaRef,
    pub(crate) rows: usize,
    pub(crate) columns: Vec<DeviceArray>,
    pub(crate) stream: Option<Stream>,
}

impl DeviceBatch {
    /// Names and types.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows.
    pub fn num_rows(&self) -> usize {
        self.rows
    }

    /// One array a top-level field.
    pub fn columns(&self) -> &[DeviceArray] {
        &self.columns
    }

    /// Bytes of all buffers, padding included.
    pub fn memory(&self) -> u64 {
        self.columns.iter().map(DeviceArray::memory).sum()
    }

    /// The stream on which the arrays were made; `None` in host memory. All work on them is done when the batch is
    /// handed out, and device memory is freed in the order of this stream.
    pub fn stream(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }

    /// The batch in host memory: copies device buffers, shares host buffers, and validates what the kernels made.
    ///
    /// # Errors
    /// As [`DeviceArray::to_host`].
    pub fn to_host(&self) -> Result<RecordBatch> {
        let columns = self.columns.iter().map(|it| Ok(make_array(it.to_host(self.stream.as_ref())?)));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|error| Error::corrupt(Place::default(), format!("the decoded columns form no batch: {error}")))
    }
}

impl fmt::Debug for DeviceBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBatch")
            .field("rows", &self.rows)
            .field("columns", &self.columns.len())
            .field("bytes", &self.memory())
            .finish_non_exhaustive()
    }
}
