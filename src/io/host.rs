//! Ranges of a file that are in host memory, as a `ChunkReader` for arrow-rs.

use std::ops::Range;

use bytes::{Buf, Bytes, buf::Reader};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// Some ranges of a file. Reads outside them are errors: the plan decides what is read, nobody else.
#[derive(Debug, Clone, Default)]
pub struct HostBytes {
    file_bytes: u64,
    /// Sorted by start, not overlapping.
    ranges: Vec<(Range<u64>, Bytes)>,
}

impl HostBytes {
    /// No ranges yet, of a file of `file_bytes`.
    pub fn new(file_bytes: u64) -> Self {
        Self { file_bytes, ranges: Vec::new() }
    }

    /// Adds the bytes that start at `offset`.
    pub fn insert(&mut self, offset: u64, bytes: Bytes) {
        let at = self.ranges.partition_point(|(range, _)| range.start < offset);
        self.ranges.insert(at, (offset..offset + bytes.len() as u64, bytes));
    }

    /// Adds the ranges of another read of the same file.
    pub fn extend(&mut self, other: Self) {
        for (range, bytes) in other.ranges {
            self.insert(range.start, bytes);
        }
    }

    /// The bytes from `start` to the end of the range that holds it.
    fn from(&self, start: u64) -> Result<Bytes> {
        let after = self.ranges.partition_point(|(range, _)| range.start <= start);
        // Ranges overlap only where a file's chunks do, so the first look nearly always finds it.
        match self.ranges[..after].iter().rev().find(|(range, _)| start < range.end) {
            Some((range, bytes)) => Ok(bytes.slice((start - range.start) as usize..)),
            None => Err(ParquetError::EOF(format!("offset {start} is outside the ranges that were read"))),
        }
    }
}

impl Length for HostBytes {
    fn len(&self) -> u64 {
        self.file_bytes
    }
}

impl ChunkReader for HostBytes {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let bytes = self.from(start)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} run past the range that was read")));
        }
        Ok(bytes.slice(..length))
    }
}
