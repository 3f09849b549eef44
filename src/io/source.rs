//! Where bytes come from: a local file, memory, or an object store.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

#[cfg(feature = "object-store")]
use super::object::Object;
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
    #[cfg(feature = "object-store")]
    Object(Object),
}

impl Source {
    /// Opens a path or, with the feature `object-store`, a URL: `file`, `http`, `https`, `s3` and what else `object_store`
    /// was built for, with `object_store`'s settings from the environment (`AWS_*`). Opening a URL costs a request.
    ///
    /// # Errors
    /// [`Error::NotFound`], with no credentials in its text.
    pub fn open(path_or_url: &str) -> Result<Self> {
        match path_or_url.split_once("://") {
            Some((scheme, _)) if is_scheme(scheme) => Self::open_url(scheme, path_or_url),
            _ => Self::open_path(path_or_url),
        }
    }

    #[cfg(feature = "object-store")]
    fn open_url(scheme: &str, url: &str) -> Result<Self> {
        // A name that cannot be taken apart may hold a password anywhere.
        let refuse = |cause: String| Err(Error::NotFound { source_name: format!("{scheme}://"), cause: cause.into() });
        match url::Url::parse(url) {
            Ok(url) if scheme == "file" => {
                match url.to_file_path().ok().and_then(|it| it.into_os_string().into_string().ok()) {
                    Some(path) => Self::open_path(&path),
                    None => refuse("not a path of this machine".into()),
                }
            }
            Ok(url) => Object::open(&url).map(Self::from_object),
            Err(error) => refuse(error.to_string()),
        }
    }

    #[cfg(not(feature = "object-store"))]
    fn open_url(scheme: &str, _: &str) -> Result<Self> {
        let cause = "this build reads local files; URLs need the feature `object-store`".into();
        Err(Error::NotFound { source_name: format!("{scheme}://"), cause })
    }

    /// An object of a store. Costs a request.
    ///
    /// # Errors
    /// [`Error::NotFound`], also when the store does not answer.
    #[cfg(feature = "object-store")]
    pub fn from_store(
        store: std::sync::Arc<dyn object_store::ObjectStore>,
        path: impl Into<object_store::path::Path>,
    ) -> Result<Self> {
        Object::from_store(store, path.into()).map(Self::from_object)
    }

    #[cfg(feature = "object-store")]
    fn from_object(object: Object) -> Self {
        Self { name: object.name().into(), len: object.len(), kind: Kind::Object(object) }
    }

    fn open_path(path_or_url: &str) -> Result<Self> {
        let refuse = |cause: crate::error::Cause| Error::NotFound { source_name: path_or_url.into(), cause };
        // Without it, opening a FIFO waits for a writer. It changes nothing for files.
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path_or_url);
        let file = opened.map_err(|error| refuse(error.into()))?;
        let metadata = file.metadata().map_err(|error| refuse(error.into()))?;
        if metadata.is_dir() {
            return Err(refuse("it is a directory".into()));
        }
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
            _ => None,
        }
    }

    /// A range of a source in memory, shared and not copied.
    pub(super) fn slice(&self, range: &std::ops::Range<u64>) -> Option<Bytes> {
        match &self.kind {
            Kind::Memory(bytes) if range.end <= self.len => Some(bytes.slice(range.start as usize..range.end as usize)),
            _ => None,
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
            Kind::Local(file) => file.read_exact_at(target, offset).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => {
                    let had = self.len;
                    Error::io(what(), format!("the file ended early; it had {had} bytes when it was opened"))
                }
                _ => Error::io(what(), error),
            }),
            Kind::Memory(bytes) => {
                target.copy_from_slice(&bytes[offset as usize..end as usize]);
                Ok(())
            }
            #[cfg(feature = "object-store")]
            Kind::Object(object) => object.read_at(offset, target),
        }
    }
}

/// Whether it can be the scheme of a URL: RFC 3986, 3.1.
fn is_scheme(text: &str) -> bool {
    let rest = |it: char| it.is_ascii_alphanumeric() || "+-.".contains(it);
    text.starts_with(|it: char| it.is_ascii_alphabetic()) && text.chars().all(rest)
}

/// A whole source, for the `parquet` crate: its own requests, one at a time.
#[derive(Debug, Clone)]
pub struct SourceReader(Arc<Source>);

impl SourceReader {
    /// A reader of `source`.
    pub fn new(source: Arc<Source>) -> Self {
        Self(source)
    }
}

/// Reads a source from an offset on.
#[derive(Debug)]
pub struct SourceRead {
    source: Arc<Source>,
    offset: u64,
}

impl Read for SourceRead {
    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        let left = self.source.len().saturating_sub(self.offset);
        let bytes = target.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.source.read_at(self.offset, &mut target[..bytes]).map_err(std::io::Error::other)?;
        self.offset += bytes as u64;
        Ok(bytes)
    }
}

impl Length for SourceReader {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for SourceReader {
    type T = BufReader<SourceRead>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(BufReader::new(SourceRead { source: self.0.clone(), offset: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        // Before it allocates: the length is what a header claims.
        if start.checked_add(length as u64).is_none_or(|end| end > self.0.len()) {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} run past the end of the file")));
        }
        let mut bytes = vec![0; length];
        self.0.read_at(start, &mut bytes).map_err(|error| ParquetError::External(Box::new(error)))?;
        Ok(bytes.into())
    }
}
