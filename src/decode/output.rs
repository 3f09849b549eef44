//! The buffers of the arrays.

use arrow::datatypes::DataType;

use super::zero::Zeros;
use crate::batch::{DeviceArray, Memory};
use crate::device::{DeviceBuffer, Stream};
use crate::error::{Error, Result};
use crate::footer::{Leaf, LeafDecode};
use crate::kernels::abi::{self, conversion};

/// Buffers are padded to a multiple of this many bytes, as the Arrow columnar format recommends.
const PADDING: u64 = 64;

/// Bytes of a view in an array of views.
const VIEW: u64 = 16;

/// One column's buffers.
#[derive(Debug, Default)]
pub(super) struct Output {
    validity: Option<DeviceBuffer>,
    /// Values, or offsets.
    values: Option<DeviceBuffer>,
    /// Views, which stand for the offsets in the array.
    views: Option<DeviceBuffer>,
    data: Option<DeviceBuffer>,
    /// The bodies of dictionaries, into which views point.
    dictionaries: Option<DeviceBuffer>,
}

fn padded(bytes: Option<u64>, what: &'static str, stream: &Stream) -> Result<u64> {
    bytes.and_then(|it| it.checked_next_multiple_of(PADDING)).ok_or_else(|| Error::Budget {
        what: what.into(),
        needed: u64::MAX,
        left: stream.gpu().budget().limit(),
    })
}

/// Memory of a padded size; `None`: one beyond 64 bits.
pub(super) fn alloc(stream: &Stream, bytes: Option<u64>, what: &'static str) -> Result<DeviceBuffer> {
    stream.gpu().alloc(padded(bytes, what, stream)?, stream, what)
}

/// A number of slots as Arrow counts them.
pub(super) fn count(slots: u64) -> Result<usize> {
    usize::try_from(slots).map_err(|_| Error::Argument(format!("{slots} rows in one batch")))
}

impl Output {
    /// Allocates all but the bytes of strings, whose size is not known yet, and enters the addresses into `column`, which has
    /// its rows. `has_nulls`: whether there are validity bits.
    pub(super) fn alloc(
        stream: &Stream,
        leaf: &Leaf,
        has_nulls: bool,
        column: &mut abi::Column,
        zeros: &mut Zeros,
    ) -> Result<Self> {
        let rows = column.rows;
        let alloc = |bytes: Option<u64>, what| alloc(stream, bytes, what);
        let validity = match has_nulls {
            false => None,
            true => Some(alloc(Some(rows.div_ceil(8)), "validity")?),
        };
        let width = u64::from(column.out_width);
        // What kernels fill; the rest, and words that pages share, are zeroed first.
        let (bytes, filled, what) = match leaf.decode {
            LeafDecode::Strings { .. } => {
                let bytes = rows.checked_add(1).and_then(|it| it.checked_mul(width));
                (bytes, if rows == 0 { Some(0) } else { bytes }, "offsets")
            }
            LeafDecode::Levels => (Some(0), Some(0), "values"),
            _ if column.conversion == conversion::BOOL => (Some(rows.div_ceil(8)), Some(0), "values"),
            _ => (rows.checked_mul(width), rows.checked_mul(width), "values"),
        };
        let values = alloc(bytes, what)?;
        if let Some(validity) = &validity {
            zeros.push(validity, 0);
            column.validity = validity.address();
        }
        zeros.push(&values, filled.unwrap_or(0));
        let views = match leaf.decode {
            LeafDecode::Strings { view: true, .. } => {
                let bytes = rows.checked_mul(VIEW);
                let views = alloc(bytes, "views")?;
                zeros.push(&views, bytes.unwrap_or(0));
                column.values = views.address();
                Some(views)
            }
            _ => None,
        };
        match leaf.decode {
            LeafDecode::Strings { .. } => column.offsets = values.address(),
            _ => column.values = values.address(),
        }
        Ok(Self { validity, values: Some(values), views, data: None, dictionaries: None })
    }

    /// Zeroes everything, for a column that may turn out to have fewer rows.
    pub(super) fn zero(&self, zeros: &mut Zeros) {
        for buffer in [&self.values, &self.views].into_iter().flatten() {
            zeros.push(buffer, 0);
        }
    }

    /// Allocates the bytes of strings and returns their address.
    pub(super) fn alloc_data(&mut self, stream: &Stream, bytes: u64, zeros: &mut Zeros) -> Result<u64> {
        let what = "bytes of strings";
        let data = stream.gpu().alloc(padded(Some(bytes), what, stream)?, stream, what)?;
        zeros.push(&data, bytes);
        let address = data.address();
        self.data = Some(data);
        Ok(address)
    }

    /// Allocates the bodies of dictionaries and returns their address.
    pub(super) fn alloc_dictionaries(&mut self, stream: &Stream, bytes: u64, zeros: &mut Zeros) -> Result<u64> {
        let dictionaries = alloc(stream, Some(bytes), "dictionaries of views")?;
        zeros.push(&dictionaries, bytes);
        let address = dictionaries.address();
        self.dictionaries = Some(dictionaries);
        Ok(address)
    }

    /// The array. A validity buffer without nulls is dropped. Arrow's type of nulls has no buffers at all, and as in
    /// arrow-rs no null that such a buffer would tell.
    pub(super) fn into_array(mut self, data_type: DataType, rows: u64, mut nulls: u64) -> Result<DeviceArray> {
        if data_type == DataType::Null {
            (self, nulls) = (Self::default(), 0);
        }
        Ok(DeviceArray {
            data_type,
            len: count(rows)?,
            null_count: count(nulls)?,
            validity: self.validity.filter(|_| nulls > 0).map(Memory::Device),
            buffers: [self.views.or(self.values), self.data, self.dictionaries]
                .into_iter()
                .flatten()
                .map(Memory::Device)
                .collect(),
            children: Vec::new(),
        })
    }
}
