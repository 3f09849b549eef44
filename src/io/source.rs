//! Where bytes come from: a local file, memory, or an object store.

use bytes::Bytes;

use crate::error::{Error, Result};

/// An opened source of known length.
#[derive(Debug)]
pub struct Source {
    name: String,
    len: u64,
}

impl Source {
    /// Opens a path or, with the feature `object-store`, a URL.
    ///
    /// # Errors
    /// [`Error::NotFound`], with no credentials in its text.
    pub fn open(path_or_url: &str) -> Result<Self> {
        Err(Error::NotFound { source_name: path_or_url.into(), cause: "stub".into() })
    }

    /// Bytes in memory, under a name for messages.
    pub fn from_bytes(name: impl Into<String>, bytes: Bytes) -> Self {
        Self { name: name.into(), len: bytes.len() as u64 }
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
    pub fn file(&self) -> Option<&std::fs::File> {
        None
    }

    /// Fills `target` from `offset`; blocks.
    ///
    /// # Errors
    /// [`Error::Io`]; also when the source ends before `target` is full.
    pub fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let _ = (offset, target);
        Err(Error::io(&self.name, "stub"))
    }
}
