//! The Thrift compact protocol, as far as footers need it beside the `parquet` crate.

/// Structs within structs: parquet.thrift needs fewer than ten, and a stack has an end.
pub(super) const DEEPEST: u32 = 32;

// Types of the Thrift compact protocol.
pub(super) const TRUE: u8 = 1;
pub(super) const FALSE: u8 = 2;
pub(super) const BYTE: u8 = 3;
pub(super) const I16: u8 = 4;
pub(super) const I32: u8 = 5;
pub(super) const I64: u8 = 6;
pub(super) const DOUBLE: u8 = 7;
pub(super) const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
pub(super) const SET: u8 = 10;
pub(super) const MAP: u8 = 11;
pub(super) const STRUCT: u8 = 12;
pub(super) const UUID: u8 = 13;

/// The rest of a message in the Thrift compact protocol.
pub(super) struct Thrift<'a> {
    bytes: &'a [u8],
}

impl<'a> Thrift<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// What has not been read.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes
    }
}

impl Thrift<'_> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    pub(super) fn advance(&mut self, bytes: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Calls `each` with the number and type of each field of a struct; it consumes the value.
    pub(super) fn fields(&mut self, mut each: impl FnMut(&mut Self, i64, u8) -> Option<()>) -> Option<()> {
        let mut field = 0i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            field = match head >> 4 {
                0 => {
                    let zigzag = self.varint()?;
                    (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)
                }
                delta => field.checked_add(delta.into())?,
            };
            each(self, field, head & 15)?;
        }
    }

    /// The length and element type of a list or set.
    pub(super) fn list(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let length = if head >> 4 == 15 { self.varint()? } else { (head >> 4).into() };
        Some((length, head & 15))
    }

    /// Calls `each` with the index of each struct of a list; it consumes the struct.
    pub(super) fn structs(&mut self, mut each: impl FnMut(&mut Self, usize) -> Option<()>) -> Option<()> {
        let (length, kind) = self.list()?;
        // Each takes a byte at least, so a length that lies ends with the bytes.
        (kind == STRUCT).then_some(())?;
        (0..usize::try_from(length).ok()?).try_for_each(|at| each(self, at))
    }

    pub(super) fn skip(&mut self, kind: u8, depth: u32) -> Option<()> {
        match kind {
            TRUE | FALSE => Some(()), // in the field's head
            _ => self.skip_element(kind, depth),
        }
    }

    pub(super) fn skip_element(&mut self, kind: u8, depth: u32) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }
        match kind {
            TRUE | FALSE | BYTE => self.advance(1),
            I16 | I32 | I64 => self.varint().map(|_| ()),
            DOUBLE => self.advance(8),
            UUID => self.advance(16),
            BINARY => {
                let length = self.varint()?;
                self.advance(length)
            }
            LIST | SET => {
                let (length, kind) = self.list()?;
                (0..length).try_for_each(|_| self.skip_element(kind, depth + 1))
            }
            MAP => {
                let length = self.varint()?;
                if length == 0 {
                    return Some(());
                }
                let kinds = self.byte()?;
                (0..length).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth + 1)?;
                    self.skip_element(kinds & 15, depth + 1)
                })
            }
            STRUCT => self.fields(|thrift, _, kind| thrift.skip(kind, depth + 1)),
            _ => None,
        }
    }
}
