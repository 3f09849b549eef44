//! Where bytes come from: a local file, memory, or an object store.

use std::fs::File;
use std::os::unix::fs::FileExt;

use bytes::Bytes;

use crate::error::{Error, Result};

/// An opened source of known length.
#[derive(Debug)]
pub struct Source {
    name: String,
    len: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Local(File),
    Memory(Bytes),
}

impl Source {
    /// Opens a path or, with the feature `object-store`, a URL.
    ///
    /// # Errors
    /// [`Error::NotFound`], with no credentials in its text.
    pub fn open(path_or_url: &str) -> Result<Self> {
        let refuse = |cause: crate::error::Cause| Error::NotFound { source_name: path_or_url.into(), cause };
        let file = File::open(path_or_url).map_err(|error| refuse(error.into()))?;
        let metadata = file.metadata().map_err(|error| refuse(error.into()))?;
        if !metadata.is_file() {
            return Err(refuse("not a regular file".into()));
        }
        Ok(Self { name: path_or_url.into(), len: metadata.len(), kind: Kind::Local(file) })
    }

    /// Bytes in memory, under a name for messages.
    pub fn from_bytes(name: impl Into<String>, bytes: Bytes) -> Self {
        Self { name: name.into(), len: bytes.len() as u64, kind: Kind::Memory(bytes) }
    }

    /// Path or URL without credentials.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Length in bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The local file, which cuFile and pread can read.
    pub fn file(&self) -> Option<&File> {
        match &self.kind {
            Kind::Local(file) => Some(file),
            Kind::Memory(_) => None,
        }
    }

    /// Fills `target` from `offset`; blocks.
    ///
    /// # Errors
    /// [`Error::Io`]; also when the source ends before `target` is full.
    pub fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let bytes = target.len();
        let what = || format!("{bytes} bytes at {offset} of {}", self.name);
        let end = offset.checked_add(bytes as u64).filter(|end| *end <= self.len);
        let end = end.ok_or_else(|| Error::io(what(), format!("the source has {} bytes", self.len)))?;
        match &self.kind {
            Kind::Local(file) => file.read_exact_at(target, offset).map_err(|error| Error::io(what(), error)),
            Kind::Memory(bytes) => {
                target.copy_from_slice(&bytes[offset as usize..end as usize]);
                Ok(())
            }
        }
    }
}
