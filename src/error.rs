//! The one error type. A corrupt file names row group, column, page and byte offset.

use std::fmt;

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where in a file something was found; each part is present when it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Row group, counted from 0 in file order.
    pub row_group: Option<usize>,
    /// The leaf's dotted path, such as `a.list.element`.
    pub column: Option<String>,
    /// Page in the column chunk, counted from 0, a dictionary page included.
    pub page: Option<usize>,
    /// Byte offset in the file.
    pub offset: Option<u64>,
}

impl Place {
    /// A place that names a column chunk.
    pub fn chunk(row_group: usize, column: impl Into<String>) -> Self {
        Self { row_group: Some(row_group), column: Some(column.into()), ..Self::default() }
    }

    /// The same place, narrowed to a page.
    pub fn with_page(mut self, page: usize) -> Self {
        self.page = Some(page);
        self
    }

    /// The same place, narrowed to a byte offset in the file.
    pub fn with_offset(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.row_group.map(|it| format!("row group {it}")),
            self.column.as_ref().map(|it| format!("column {it}")),
            self.page.map(|it| format!("page {it}")),
            self.offset.map(|it| format!("offset {it}")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// The cause behind an error, kept for `source()`.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What can go wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A source does not exist or may not be opened.
    NotFound {
        /// The path or URL, without credentials.
        source_name: String,
        /// Why.
        cause: Cause,
    },
    /// Reading bytes failed.
    Io {
        /// What was being read, without credentials.
        what: String,
        /// Why.
        cause: Cause,
    },
    /// The file contradicts itself or the format.
    Corrupt {
        /// Where.
        place: Place,
        /// What is wrong.
        message: String,
    },
    /// The file asks for something that no decoder here has.
    Unsupported {
        /// Where.
        place: Place,
        /// What is missing.
        message: String,
    },
    /// An argument makes no sense, or not for this file.
    Argument(String),
    /// The memory budget does not hold what the operation needs.
    Budget {
        /// What the memory is for.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes that the budget has left.
        left: u64,
    },
    /// A library is missing, too old, or lacks a symbol.
    Library {
        /// The library, such as `libcufile`.
        library: &'static str,
        /// What happened, the places searched, and the fix.
        message: String,
    },
    /// cuFile refused or failed.
    CuFile {
        /// The call, such as `cuFileRead`.
        call: &'static str,
        /// cuFile's code (5000 and up), or a CUDA driver code or errno as `message` says.
        code: i32,
        /// The code's name and what it means.
        message: String,
    },
    /// CUDA failed, or the device is missing. A sticky error poisons the device: later calls repeat the first cause.
    Device {
        /// The device, such as `cuda:0`.
        device: String,
        /// What failed and why.
        message: String,
    },
    /// `require_gds` was set, and not every direct operation provably took an accelerated path.
    GdsRequired {
        /// What was seen instead.
        message: String,
    },
}

impl Error {
    /// The word for this error in `--json` and in tests; stable.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not_found",
            Self::Io { .. } => "io",
            Self::Corrupt { .. } => "corrupt",
            Self::Unsupported { .. } => "unsupported",
            Self::Argument(_) => "argument",
            Self::Budget { .. } => "budget",
            Self::Library { .. } => "library",
            Self::CuFile { .. } => "cufile",
            Self::Device { .. } => "device",
            Self::GdsRequired { .. } => "gds_required",
        }
    }

    /// Where in the file, when the error is about a place in a file.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Corrupt { place, .. } | Self::Unsupported { place, .. } => Some(place),
            _ => None,
        }
    }

    /// A corrupt file.
    pub fn corrupt(place: Place, message: impl Into<String>) -> Self {
        Self::Corrupt { place, message: message.into() }
    }

    /// Something that cannot be decoded here.
    pub fn unsupported(place: Place, message: impl Into<String>) -> Self {
        Self::Unsupported { place, message: message.into() }
    }

    /// A failed read of `what`.
    pub fn io(what: impl Into<String>, cause: impl Into<Cause>) -> Self {
        Self::Io { what: what.into(), cause: cause.into() }
    }

    /// An error of the `parquet` crate at a place.
    pub fn from_parquet(place: Place, error: parquet::errors::ParquetError) -> Self {
        use parquet::errors::ParquetError;
        match error {
            ParquetError::NYI(message) => Self::Unsupported { place, message },
            other => Self::Corrupt { place, message: other.to_string() },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |place: &Place| match place.to_string() {
            empty if empty.is_empty() => String::new(),
            place => format!(" ({place})"),
        };
        match self {
            Self::NotFound { source_name, cause } => write!(f, "cannot open {source_name}: {cause}"),
            Self::Io { what, cause } => write!(f, "cannot read {what}: {cause}"),
            Self::Corrupt { place, message } => write!(f, "corrupt file: {message}{}", at(place)),
            Self::Unsupported { place, message } => write!(f, "unsupported: {message}{}", at(place)),
            Self::Argument(message) => write!(f, "{message}"),
            Self::Budget { what, needed, left } => {
                write!(
                    f,
                    "{what} needs {needed} bytes and the memory budget has {left} left; raise --memory or read fewer columns"
                )
            }
            Self::Library { library, message } => write!(f, "{library}: {message}"),
            Self::CuFile { call, code, message } => write!(f, "{call} failed with {code}: {message}"),
            Self::Device { device, message } => write!(f, "{device}: {message}"),
            Self::GdsRequired { message } => write!(f, "GPUDirect Storage is required: {message}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotFound { cause, .. } | Self::Io { cause, .. } => Some(cause.as_ref()),
            _ => None,
        }
    }
}
