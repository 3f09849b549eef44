//! libnvcomp: its batched decompression of ZSTD and GZIP, from the headers of 4.0 to 6.0. No policy.

use std::error::Error as _;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::search;
use crate::error::{Error, Result};

/// Names the library to load instead of the one that is found.
pub const LIBRARY_VARIABLE: &str = "PARQUET_GPU_NVCOMP_LIBRARY";

/// The library's name in messages.
pub const LIBRARY: &str = "libnvcomp";

/// `nvcompSuccess`.
pub const SUCCESS: c_int = 0;
/// `nvcompErrorInternal`: what statuses are filled with before nvCOMP runs.
pub const INTERNAL: c_int = 10_000;

/// Exported by libraries that stand in for nvCOMP in tests, and by no other.
const FAKE: &str = "pqgpu_fake_nvcomp";

/// What nvCOMP decompresses for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Codec {
    /// RFC 8878.
    Zstd,
    /// RFC 1952, of one member.
    Gzip,
}

/// `nvcompAlignmentRequirements_t`: powers of two, in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignments {
    /// Of each compressed buffer.
    pub input: usize,
    /// Of each plain buffer.
    pub output: usize,
    /// Of the temporary memory.
    pub temporary: usize,
}

/// A batch, by the addresses of its arrays in device memory, each of `count` elements.
#[derive(Debug, Clone, Copy)]
pub struct Batch {
    /// Addresses of compressed buffers (`u64`).
    pub inputs: u64,
    /// Their bytes (`u64`).
    pub input_bytes: u64,
    /// Addresses of plain buffers (`u64`).
    pub outputs: u64,
    /// Their bytes (`u64`).
    pub output_bytes: u64,
    /// Where the bytes that were written go (`u64`).
    pub written: u64,
    /// Where statuses go (`i32`).
    pub statuses: u64,
    /// Buffers.
    pub count: usize,
    /// Temporary memory.
    pub temporary: u64,
    /// Its bytes.
    pub temporary_bytes: usize,
}

/// `nvcompProperties_t`.
#[repr(C)]
#[derive(Default)]
struct Properties {
    version: u32,
    cudart_version: u32,
}

/// `nvcompBatchedZstdDecompressOpts_t` and `nvcompBatchedGzipDecompressOpts_t`: 64 bytes from 5.0 on. All zeros are the
/// defaults of both in every version: backend chosen by nvCOMP, and its first algorithm.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Options([c_int; 16]);

type GetProperties = unsafe extern "C" fn(*mut Properties) -> c_int;
type TemporarySize4 = unsafe extern "C" fn(usize, usize, *mut usize, usize) -> c_int;
type TemporarySize5 = unsafe extern "C" fn(usize, usize, Options, *mut usize, usize) -> c_int;
type TemporarySize6 = unsafe extern "C" fn(usize, usize, Options, *mut usize, usize, *mut c_void) -> c_int;
type RequiredAlignments = unsafe extern "C" fn(Options, *mut Alignments) -> c_int;
type Pointer = *mut c_void;
type Decompress4 = unsafe extern "C" fn(
    Pointer, // const void* const* compressed
    Pointer, // const size_t* compressed bytes
    Pointer, // const size_t* plain bytes
    Pointer, // size_t* written bytes
    usize,
    Pointer, // temporary memory
    usize,
    Pointer, // void* const* plain
    Pointer, // nvcompStatus_t*
    Pointer, // stream
) -> c_int;
type Decompress5 = unsafe extern "C" fn(
    Pointer,
    Pointer,
    Pointer,
    Pointer,
    usize,
    Pointer,
    usize,
    Pointer,
    Options,
    Pointer,
    Pointer,
) -> c_int;

/// The functions of one codec, as the library's version has them.
#[derive(Debug, Clone, Copy)]
enum Functions {
    Four { size: TemporarySize4, run: Decompress4 },
    Five { size: TemporarySize5, align: RequiredAlignments, run: Decompress5 },
    Six { size: TemporarySize6, align: RequiredAlignments, run: Decompress5 },
}

/// A loaded libnvcomp.
#[derive(Debug)]
pub struct NvComp {
    zstd: Functions,
    gzip: Functions,
    version: u32,
    path: PathBuf,
    is_fake: bool,
    /// The functions live in it. It is never unloaded: the CUDA runtime in it has registered its kernels.
    _library: ManuallyDrop<libloading::Library>,
}

impl NvComp {
    /// Loads the library at `named`, at `$PARQUET_GPU_NVCOMP_LIBRARY`, or the first that is found.
    ///
    /// # Errors
    /// [`Error::Library`] with the places searched and what to install.
    pub fn find(named: Option<&Path>) -> Result<Self> {
        let variable = std::env::var_os(LIBRARY_VARIABLE).filter(|it| !it.is_empty()).map(PathBuf::from);
        if let Some(path) = named.map(Path::to_path_buf).or(variable) {
            return Self::load(&path).map_err(|why| Error::Library { library: LIBRARY, message: why });
        }
        let mut tried = Vec::new();
        let names = ["libnvcomp.so.6", "libnvcomp.so.5", "libnvcomp.so.4", "libnvcomp.so"];
        for candidate in search::candidates(&names, &["nvidia/libnvcomp/lib64", "nvidia/nvcomp", "nvidia/cu13/lib"]) {
            match Self::load(&candidate) {
                Ok(library) => return Ok(library),
                Err(why) => tried.push(why),
            }
        }
        let message = format!(
            "not found; tried: {}. It is in the PyPI packages nvidia-libnvcomp-cu12 and -cu13; {LIBRARY_VARIABLE} names a \
             file of your own",
            tried.join("; ")
        );
        Err(Error::Library { library: LIBRARY, message })
    }

    /// As [`find`](Self::find); what was found without a name is loaded once in a process.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn get(named: Option<&Path>) -> Result<Arc<Self>> {
        static FOUND: OnceLock<std::result::Result<Arc<NvComp>, String>> = OnceLock::new();
        if named.is_some() {
            return Ok(Arc::new(Self::find(named)?));
        }
        let found = FOUND.get_or_init(|| match Self::find(None) {
            Ok(library) => Ok(Arc::new(library)),
            Err(Error::Library { message, .. }) => Err(message),
            Err(other) => Err(other.to_string()),
        });
        found.clone().map_err(|message| Error::Library { library: LIBRARY, message })
    }

    /// Loads one file. Nothing is asked of a GPU.
    ///
    /// # Errors
    /// What the loader says, the function that is missing, or a version that is not known.
    pub fn load(path: &Path) -> Result<Self, String> {
        let at = |why: &str| format!("{}: {why}", path.display());
        // SAFETY: nvCOMP's constructors register its kernels with the CUDA runtime that is linked into it.
        let library = unsafe { libloading::Library::new(path) }.map_err(|why| match why.source() {
            Some(cause) => at(&cause.to_string()), // what the loader says
            None => at(&why.to_string()),
        })?;
        // SAFETY: nvcomp.h of every version declares it so.
        let properties: GetProperties = unsafe { symbol(&library, "nvcompGetProperties") }.map_err(|why| at(&why))?;
        let mut found = Properties::default();
        // SAFETY: it writes one struct.
        let status = unsafe { properties(&mut found) };
        if status != SUCCESS {
            return Err(at(&format!("nvcompGetProperties failed with {}", describe(status))));
        }
        let functions = |name: &str| Functions::load(&library, name, found.version / 1000).map_err(|why| at(&why));
        let (zstd, gzip) = (functions("Zstd")?, functions("Gzip")?);
        // SAFETY: only whether it is there is asked.
        let is_fake = unsafe { library.get::<*const u8>(FAKE) }.is_ok();
        Ok(Self {
            zstd,
            gzip,
            version: found.version,
            path: path.to_path_buf(),
            is_fake,
            _library: ManuallyDrop::new(library),
        })
    }

    /// The name or path under which it was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// 1000 · major + 100 · minor + patch.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// `5.3.0`.
    pub fn version_text(&self) -> String {
        format!("{}.{}.{}", self.version / 1000, self.version % 1000 / 100, self.version % 100)
    }

    /// Whether it stands in for nvCOMP in tests, and works on host memory.
    pub fn is_fake(&self) -> bool {
        self.is_fake
    }

    fn functions(&self, codec: Codec) -> &Functions {
        match codec {
            Codec::Zstd => &self.zstd,
            Codec::Gzip => &self.gzip,
        }
    }

    /// How buffers must be aligned; before 5.0 no function says, and 8 is what the headers ask for at the most.
    ///
    /// # Errors
    /// nvCOMP's status.
    pub fn alignments(&self, codec: Codec) -> Result<Alignments, c_int> {
        let mut found = Alignments { input: 8, output: 8, temporary: 8 };
        let status = match *self.functions(codec) {
            Functions::Four { .. } => SUCCESS,
            // SAFETY: it writes one struct.
            Functions::Five { align, .. } | Functions::Six { align, .. } => unsafe {
                align(Options::default(), &mut found)
            },
        };
        if status == SUCCESS { Ok(found) } else { Err(status) }
    }

    /// Bytes of temporary memory for `count` buffers of at most `largest` and in all `total` plain bytes.
    ///
    /// # Errors
    /// nvCOMP's status.
    ///
    /// # Safety
    /// The device's context is current, and `stream` is a stream of it.
    pub unsafe fn temporary_bytes(
        &self,
        codec: Codec,
        count: usize,
        largest: usize,
        total: usize,
        stream: u64,
    ) -> Result<usize, c_int> {
        let mut bytes = 0;
        // SAFETY: each writes one number; the stream is the caller's promise.
        let status = unsafe {
            match *self.functions(codec) {
                Functions::Four { size, .. } => size(count, largest, &mut bytes, total),
                Functions::Five { size, .. } => size(count, largest, Options::default(), &mut bytes, total),
                Functions::Six { size, .. } => {
                    size(count, largest, Options::default(), &mut bytes, total, stream as Pointer)
                }
            }
        };
        if status == SUCCESS { Ok(bytes) } else { Err(status) }
    }

    /// Queues the decompression of a batch.
    ///
    /// # Errors
    /// nvCOMP's status when nothing was queued.
    ///
    /// # Safety
    /// The device's context is current; every address in `batch`, and those in its arrays, are device memory of the sizes
    /// stated and aligned as [`alignments`](Self::alignments) says, until `stream` has been waited for.
    pub unsafe fn decompress(&self, codec: Codec, batch: &Batch, stream: u64) -> Result<(), c_int> {
        let [inputs, input_bytes, output_bytes, written, temporary, outputs, statuses, stream] = [
            batch.inputs,
            batch.input_bytes,
            batch.output_bytes,
            batch.written,
            batch.temporary,
            batch.outputs,
            batch.statuses,
            stream,
        ]
        .map(|it| it as Pointer);
        let (count, bytes) = (batch.count, batch.temporary_bytes);
        // SAFETY: the caller's promise.
        let status = unsafe {
            match *self.functions(codec) {
                Functions::Four { run, .. } => {
                    run(inputs, input_bytes, output_bytes, written, count, temporary, bytes, outputs, statuses, stream)
                }
                Functions::Five { run, .. } | Functions::Six { run, .. } => run(
                    inputs,
                    input_bytes,
                    output_bytes,
                    written,
                    count,
                    temporary,
                    bytes,
                    outputs,
                    Options::default(),
                    statuses,
                    stream,
                ),
            }
        };
        if status == SUCCESS { Ok(()) } else { Err(status) }
    }
}

impl Functions {
    fn load(library: &libloading::Library, codec: &str, major: u32) -> Result<Self, String> {
        let name = |function: &str| format!("nvcompBatched{codec}Decompress{function}");
        // SAFETY: nvcomp/zstd.h and nvcomp/gzip.h of the major version declare the functions with these signatures.
        unsafe {
            Ok(match major {
                4 => {
                    Self::Four { size: symbol(library, &name("GetTempSizeEx"))?, run: symbol(library, &name("Async"))? }
                }
                5 => Self::Five {
                    size: symbol(library, &name("GetTempSizeAsync"))?,
                    align: symbol(library, &name("GetRequiredAlignments"))?,
                    run: symbol(library, &name("Async"))?,
                },
                6 => Self::Six {
                    size: symbol(library, &name("GetTempSize"))?,
                    align: symbol(library, &name("GetRequiredAlignments"))?,
                    run: symbol(library, &name("Async"))?,
                },
                other => return Err(format!("nvCOMP {other} is not among 4, 5 and 6, whose functions are known")),
            })
        }
    }
}

/// A function by name.
///
/// # Safety
/// It has the type `T`.
unsafe fn symbol<T: Copy>(library: &libloading::Library, name: &str) -> Result<T, String> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<T>(name) }.map(|it| *it).map_err(|_| format!("it lacks {name}"))
}

/// The name of a status.
pub fn describe(status: c_int) -> String {
    let name = match status {
        10 => "nvcompErrorInvalidValue",
        11 => "nvcompErrorNotSupported",
        12 => "nvcompErrorCannotDecompress",
        13 => "nvcompErrorBadChecksum",
        14 => "nvcompErrorCannotVerifyChecksums",
        15 => "nvcompErrorOutputBufferTooSmall",
        16 => "nvcompErrorWrongHeaderLength",
        17 => "nvcompErrorAlignment",
        18 => "nvcompErrorChunkSizeTooLarge",
        20 => "nvcompErrorWrongInputLength",
        21 => "nvcompErrorBatchSizeTooLarge",
        1000 => "nvcompErrorCudaError",
        INTERNAL => "nvcompErrorInternal",
        other => return format!("nvCOMP status {other}"),
    };
    name.into()
}
