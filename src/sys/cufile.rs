//! libcufile: its functions and structures, from `cufile.h` of 1.11 to 1.20. No policy.

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};

use super::search;
use crate::error::{Error, Result};

/// Names the library to load instead of the one that is found.
pub const LIBRARY_VARIABLE: &str = "PARQUET_GPU_CUFILE_LIBRARY";

/// The library's name in messages.
pub const LIBRARY: &str = "libcufile";

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
pub const HANDLE_TYPE_FD: c_int = 1;

/// `CU_FILE_CUDA_DRIVER_ERROR`: the second word of the error is a `CUresult`.
pub const CUDA_DRIVER_ERROR: c_int = 5011;
/// `CU_FILE_MEMORY_ALREADY_REGISTERED`.
pub const MEMORY_ALREADY_REGISTERED: c_int = 5023;
/// `CU_FILE_HANDLE_NOT_REGISTERED`.
pub const HANDLE_NOT_REGISTERED: c_int = 5027;

/// cuFile's codes start here (`CUFILEOP_BASE_ERR`); smaller ones are errno.
pub const BASE: c_int = 5000;

/// `CUfileError_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Status {
    /// 0, or 5001 and up.
    pub code: c_int,
    /// A `CUresult`, with [`CUDA_DRIVER_ERROR`].
    pub cuda: c_int,
}

/// `CUfileDescr_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Descriptor {
    /// [`HANDLE_TYPE_FD`].
    pub kind: c_int,
    /// The file descriptor, in a union as wide as a pointer.
    pub fd: FdOrPointer,
    /// File system operations of user space; null.
    pub operations: *const c_void,
}

/// The union in `CUfileDescr_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union FdOrPointer {
    /// Linux.
    pub fd: c_int,
    /// Windows.
    pub pointer: *mut c_void,
}

impl std::fmt::Debug for FdOrPointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FdOrPointer")
    }
}

/// `CUfileHandle_t`.
pub type Handle = *mut c_void;

/// Where things lie in `CUfileStatsLevel3_t`. The structure changed at 1.19 under the same symbol and soname: `readv` and
/// `writev` counters entered level 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of level 1.
    pub level1: usize,
    /// Bytes of level 2.
    pub level2: usize,
    /// Bytes of level 3.
    pub level3: usize,
    /// Offset of `num_gpus` in level 3.
    pub gpus: usize,
    /// Offset of `per_gpu_stats` in level 3.
    pub rows: usize,
}

impl Layout {
    /// Up to 1.18.
    pub const OLD: Self = Self { level1: 512, level2: 1024, level3: 5000, gpus: 1024, rows: 1032 };
    /// From 1.19.
    pub const NEW: Self = Self { level1: 624, level2: 1136, level3: 5112, gpus: 1136, rows: 1144 };

    /// The layout of a version, as `cuFileGetVersion` states it: 1000 · major + 10 · minor.
    pub fn of(version: c_int) -> Self {
        if version >= 1190 { Self::NEW } else { Self::OLD }
    }
}

/// A buffer for level 3 statistics: larger than both layouts, so that a newer library does not write past it.
pub const STATISTICS_BUFFER: usize = 8192;

/// Rows of level 3.
pub const GPU_ROWS: usize = 16;
/// Bytes of a row, in both layouts.
pub const GPU_ROW: usize = 248;
/// Offset of the number of reads in a row.
pub const ROW_READS: usize = 48;
/// Offset of the reads through PCIe peer to peer.
pub const ROW_P2P: usize = 56;
/// Offset of the reads through nvidia-fs.
pub const ROW_NVFS: usize = 64;
/// Offset of the reads through POSIX.
pub const ROW_POSIX: usize = 72;

macro_rules! functions {
    (required { $($name:ident($($arg:ty),*) $(-> $result:ty)?;)* } optional { $($later:ident($($larg:ty),*) -> $lresult:ty;)* }) => {
        #[allow(non_snake_case, missing_docs)]
        #[derive(Debug)]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
            $(pub $later: Option<unsafe extern "C" fn($($larg),*) -> $lresult>,)*
        }

        impl Functions {
            fn load(library: &libloading::Library) -> Result<Self, String> {
                Ok(Self {
                    $(
                        // SAFETY: cufile.h declares the function with this signature in every version.
                        $name: *unsafe { library.get(concat!(stringify!($name), "\0")) }
                            .map_err(|_| concat!("it lacks ", stringify!($name)).to_string())?,
                    )*
                    $(
                        // SAFETY: cufile.h declares the function with this signature wherever it has it.
                        $later: unsafe { library.get(concat!(stringify!($later), "\0")) }.ok().map(|it| *it),
                    )*
                })
            }
        }
    };
}

functions! {
    required {
        cuFileDriverOpen() -> Status;
        cuFileDriverClose() -> Status;
        cuFileHandleRegister(*mut Handle, *mut Descriptor) -> Status;
        cuFileHandleDeregister(Handle);
        cuFileBufRegister(*const c_void, usize, c_int) -> Status;
        cuFileBufDeregister(*const c_void) -> Status;
        cuFileRead(Handle, *mut c_void, usize, i64, i64) -> isize;
    }
    optional {
        cuFileGetVersion(*mut c_int) -> Status; // 1.8
        cuFileSetStatsLevel(c_int) -> Status; // 1.15, as the rest
        cuFileGetStatsLevel(*mut c_int) -> Status;
        cuFileGetStatsL1(*mut c_void) -> Status;
        cuFileGetStatsL3(*mut c_void) -> Status;
    }
}

/// A loaded libcufile. Nothing has been opened in it.
#[derive(Debug)]
pub struct CuFile {
    /// Its functions.
    pub functions: Functions,
    path: PathBuf,
    version: c_int,
    _library: libloading::Library, // the functions live in it
}

impl CuFile {
    /// Loads the library at `named`, at `$PARQUET_GPU_CUFILE_LIBRARY`, or the first that is found.
    ///
    /// # Errors
    /// [`Error::Library`] with the places searched and what to install.
    pub fn find(named: Option<&Path>) -> Result<Self> {
        let variable = std::env::var_os(LIBRARY_VARIABLE).filter(|it| !it.is_empty()).map(PathBuf::from);
        if let Some(path) = named.map(Path::to_path_buf).or(variable) {
            return Self::load(&path).map_err(|why| Error::Library { library: LIBRARY, message: why });
        }
        let mut tried = Vec::new();
        for candidate in
            search::candidates(&["libcufile.so.0", "libcufile.so"], &["nvidia/cufile/lib", "nvidia/cu13/lib"])
        {
            match Self::load(&candidate) {
                Ok(library) => return Ok(library),
                Err(why) => tried.push(why),
            }
        }
        let message = format!(
            "not found; tried: {}. It belongs to the CUDA toolkit (package `gds-tools` or `libcufile`) and to the PyPI \
             package nvidia-cufile; {LIBRARY_VARIABLE} names a file of your own",
            tried.join("; ")
        );
        Err(Error::Library { library: LIBRARY, message })
    }

    /// Loads one file.
    ///
    /// # Errors
    /// What the loader says, or the function that is missing.
    pub fn load(path: &Path) -> Result<Self, String> {
        // SAFETY: loading libcufile runs its constructors, which set up logging and nothing else.
        let library = unsafe { libloading::Library::new(path) }.map_err(|why| format!("{}: {why}", path.display()))?;
        let functions = Functions::load(&library).map_err(|why| format!("{}: {why}", path.display()))?;
        let mut version = 0;
        if let Some(get) = functions.cuFileGetVersion {
            // SAFETY: it writes one int.
            unsafe { get(&mut version) };
        }
        Ok(Self { functions, path: path.to_path_buf(), version, _library: library })
    }

    /// The name or path under which it was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// 1000 · major + 10 · minor; 0 when it does not say.
    pub fn version(&self) -> c_int {
        self.version
    }

    /// `1.15`, or `unknown`.
    pub fn version_text(&self) -> String {
        match self.version {
            0 => "unknown".into(),
            version => format!("{}.{}", version / 1000, version % 1000 / 10),
        }
    }
}

/// Whether `cuFileDriverOpen` of this version never returns where `/proc/modules` is missing: 1.16 to 1.20 do so, later
/// ones and those that do not say their version may.
pub fn hangs_without_modules(version: c_int) -> bool {
    version == 0 || version >= 1160
}

/// The name and meaning of a code of 5000 and up.
pub fn describe(code: c_int) -> &'static str {
    match code - BASE {
        1 => "CU_FILE_DRIVER_NOT_INITIALIZED: nvidia-fs is not loaded, and compat mode is off in cufile.json",
        2 => "CU_FILE_DRIVER_INVALID_PROPS: an invalid property",
        3 => "CU_FILE_DRIVER_UNSUPPORTED_LIMIT: a property is out of range",
        4 => "CU_FILE_DRIVER_VERSION_MISMATCH: nvidia-fs and libcufile do not fit together",
        5 => "CU_FILE_DRIVER_VERSION_READ_ERROR: the version of nvidia-fs cannot be read",
        6 => "CU_FILE_DRIVER_CLOSING: the driver is shutting down",
        7 => "CU_FILE_PLATFORM_NOT_SUPPORTED: this platform has no GPUDirect Storage",
        8 => "CU_FILE_IO_NOT_SUPPORTED: GPUDirect Storage does not support this file",
        9 => "CU_FILE_DEVICE_NOT_SUPPORTED: GPUDirect Storage does not support this GPU",
        10 => "CU_FILE_NVFS_DRIVER_ERROR: an ioctl of nvidia-fs failed",
        11 => "CU_FILE_CUDA_DRIVER_ERROR: CUDA failed",
        12 => "CU_FILE_CUDA_POINTER_INVALID: not a device address",
        13 => "CU_FILE_CUDA_MEMORY_TYPE_INVALID: memory of the wrong kind",
        14 => "CU_FILE_CUDA_POINTER_RANGE_ERROR: the address range exceeds its allocation",
        15 => "CU_FILE_CUDA_CONTEXT_MISMATCH: the memory belongs to another CUDA context",
        16 => "CU_FILE_INVALID_MAPPING_SIZE: beyond the largest size that can be pinned",
        17 => "CU_FILE_INVALID_MAPPING_RANGE: beyond what is mapped",
        18 => "CU_FILE_INVALID_FILE_TYPE: this kind of file is not supported",
        19 => "CU_FILE_INVALID_FILE_OPEN_FLAG: the file was opened with flags that are not supported",
        20 => "CU_FILE_DIO_NOT_SET: the file was not opened with O_DIRECT",
        22 => "CU_FILE_INVALID_VALUE: an invalid argument",
        23 => "CU_FILE_MEMORY_ALREADY_REGISTERED: the memory is registered already",
        24 => "CU_FILE_MEMORY_NOT_REGISTERED: the memory is not registered",
        25 => "CU_FILE_PERMISSION_DENIED: the driver or the file may not be accessed",
        26 => "CU_FILE_DRIVER_ALREADY_OPEN: the driver is open already",
        27 => "CU_FILE_HANDLE_NOT_REGISTERED: the file could not be registered",
        28 => "CU_FILE_HANDLE_ALREADY_REGISTERED: the file is registered already",
        29 => "CU_FILE_DEVICE_NOT_FOUND: no such GPU",
        30 => "CU_FILE_INTERNAL_ERROR: an internal error",
        31 => "CU_FILE_GETNEWFD_FAILED: no file descriptor is left",
        33 => "CU_FILE_NVFS_SETUP_ERROR: nvidia-fs could not be set up",
        34 => "CU_FILE_IO_DISABLED: cufile.json disables GPUDirect Storage for this file",
        35 => "CU_FILE_BATCH_SUBMIT_FAILED: a batch could not be submitted",
        36 => "CU_FILE_GPU_MEMORY_PINNING_FAILED: device memory could not be pinned",
        37 => "CU_FILE_BATCH_FULL: the batch queue is full",
        38 => "CU_FILE_ASYNC_NOT_SUPPORTED: stream operations are not supported",
        39 => "CU_FILE_INTERNAL_BATCH_SETUP_ERROR: setting up a batch failed",
        40 => "CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR: submitting a batch failed",
        41 => "CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR: the state of a batch cannot be read",
        42 => "CU_FILE_INTERNAL_BATCH_CANCEL_ERROR: a batch could not be cancelled",
        43 => "CU_FILE_NOMEM_ERROR: cuFile is out of memory",
        44 => "CU_FILE_IO_ERROR: an I/O error",
        45 => "CU_FILE_INTERNAL_BUF_REGISTER_ERROR: registering memory failed",
        46 => "CU_FILE_HASH_OPR_ERROR: an internal table failed",
        47 => "CU_FILE_INVALID_CONTEXT_ERROR: no valid CUDA context is current",
        48 => "CU_FILE_NVFS_INTERNAL_DRIVER_ERROR: nvidia-fs failed inside",
        49 => "CU_FILE_BATCH_NOCOMPAT_ERROR: compat mode is off",
        _ => "a code that cufile.h 1.20 does not name",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_hold_sixteen_rows() {
        for layout in [Layout::OLD, Layout::NEW] {
            assert_eq!(layout.rows + GPU_ROWS * GPU_ROW, layout.level3);
            assert_eq!(layout.gpus, layout.level2);
            assert_eq!(layout.level2, layout.level1 + 2 * 32 * 8);
            assert!(layout.level3 < STATISTICS_BUFFER);
        }
        assert_eq!((Layout::of(1180), Layout::of(1190)), (Layout::OLD, Layout::NEW));
        assert_eq!((size_of::<Descriptor>(), size_of::<Status>()), (24, 8));
    }
}
