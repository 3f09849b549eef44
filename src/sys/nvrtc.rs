//! NVRTC, which compiles CUDA C++ at run time. It needs no GPU and no driver.
//!
//! It needs its built-in declarations, `libnvrtc-builtins.so.MAJOR.MINOR`, beside it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::search;
use crate::error::{Error, Result};

/// Names the library to load instead of the one that is found.
pub const LIBRARY_VARIABLE: &str = "PARQUET_GPU_NVRTC_LIBRARY";

/// What every kernel is compiled with, the architecture aside. `-lineinfo` lets profilers and compute-sanitizer name
/// source lines and changes no instruction. Fast-math, register caps and `-default-device` are left out: they change
/// results or hide what the host compiler would refuse.
pub const OPTIONS: &[&str] = &["--std=c++17", "-lineinfo"];

const LIBRARY: &str = "libnvrtc";

/// `NVRTC_SUCCESS` and `NVRTC_ERROR_BUILTIN_OPERATION_FAILURE` in nvrtc.h.
const SUCCESS: c_int = 0;
const BUILTIN_OPERATION_FAILURE: c_int = 7;

/// `nvrtcProgram`.
type RawProgram = *mut c_void;

/// What a compilation makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Machine code for `sm_N`.
    Cubin(u32),
    /// Assembly for `compute_N`, which the driver compiles for a newer GPU.
    Ptx(u32),
}

impl Target {
    /// The architecture option and file name part: `sm_90` or `compute_90`.
    pub fn architecture(self) -> String {
        match self {
            Self::Cubin(number) => format!("sm_{number}"),
            Self::Ptx(number) => format!("compute_{number}"),
        }
    }
}

/// A compiled module.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// A cubin (ELF), or PTX that ends in a NUL.
    pub image: Vec<u8>,
    /// Warnings, and what `--ptxas-options` asked for.
    pub log: String,
}

macro_rules! functions {
    ($($name:ident($($arg:ty),*) -> $result:ty;)*) => {
        #[allow(non_snake_case)]
        #[derive(Debug)]
        struct Functions { $($name: unsafe extern "C" fn($($arg),*) -> $result,)* }

        impl Functions {
            fn load(library: &libloading::Library) -> Result<Self, String> {
                Ok(Self {
                    $(
                        // SAFETY: nvrtc.h declares the function with this signature; the same in 12.x and 13.x.
                        $name: *unsafe { library.get(concat!(stringify!($name), "\0")) }
                            .map_err(|_| concat!("it lacks ", stringify!($name)).to_string())?,
                    )*
                })
            }
        }
    };
}

functions! {
    nvrtcVersion(*mut c_int, *mut c_int) -> c_int;
    nvrtcGetNumSupportedArchs(*mut c_int) -> c_int;
    nvrtcGetSupportedArchs(*mut c_int) -> c_int;
    nvrtcGetErrorString(c_int) -> *const c_char;
    nvrtcCreateProgram(
        *mut RawProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    ) -> c_int;
    nvrtcDestroyProgram(*mut RawProgram) -> c_int;
    nvrtcCompileProgram(RawProgram, c_int, *const *const c_char) -> c_int;
    nvrtcGetPTXSize(RawProgram, *mut usize) -> c_int;
    nvrtcGetPTX(RawProgram, *mut c_char) -> c_int;
    nvrtcGetCUBINSize(RawProgram, *mut usize) -> c_int;
    nvrtcGetCUBIN(RawProgram, *mut c_char) -> c_int;
    nvrtcGetProgramLogSize(RawProgram, *mut usize) -> c_int;
    nvrtcGetProgramLog(RawProgram, *mut c_char) -> c_int;
}

/// A loaded NVRTC. Programs may be compiled on several threads at once.
#[derive(Debug)]
pub struct Nvrtc {
    functions: Functions,
    path: PathBuf,
    version: (u32, u32),
    architectures: Vec<u32>,
    builtins: OnceLock<Option<libloading::Library>>,
    _library: libloading::Library, // the functions live in it
}

/// The libraries loaded so far, by the driver's major version: a process keeps what it has loaded.
static LOADED: Mutex<BTreeMap<Option<u32>, &'static Nvrtc>> = Mutex::new(BTreeMap::new());

impl Nvrtc {
    /// The process's NVRTC, loaded by the first call. Machine code of a newer CUDA generation does not load into an
    /// older driver, so `driver_major` (12 for a 12.x driver) decides which generation is tried first.
    ///
    /// # Errors
    /// [`Error::Library`] with the places searched and what to install.
    pub fn get(driver_major: Option<u32>) -> Result<&'static Self> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nvrtc) = loaded.get(&driver_major) {
            return Ok(nvrtc);
        }
        let nvrtc: &'static Self = Box::leak(Box::new(Self::find(driver_major)?));
        loaded.insert(driver_major, nvrtc);
        Ok(nvrtc)
    }

    fn find(driver_major: Option<u32>) -> Result<Self> {
        let named = std::env::var_os(LIBRARY_VARIABLE).filter(|it| !it.is_empty());
        if let Some(path) = named {
            return Self::load(Path::new(&path)).map_err(|why| Error::Library {
                library: LIBRARY,
                message: format!("{why} (the file that {LIBRARY_VARIABLE} names)"),
            });
        }
        let mut tried = Vec::new();
        for candidate in candidates(driver_major) {
            // A bare name goes to the loader's own search; a path that is not there would only lengthen the message.
            if candidate.is_absolute() && !candidate.exists() {
                continue;
            }
            match Self::load(&candidate) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(why) => tried.push(why),
            }
        }
        let package = match driver_major {
            Some(12) => "nvidia-cuda-nvrtc-cu12",
            _ => "nvidia-cuda-nvrtc",
        };
        Err(Error::Library {
            library: LIBRARY,
            message: format!(
                "not found, and the kernels are compiled for the GPU at hand by it. Searched: the loader's path \
                 (LD_LIBRARY_PATH), $CUDA_HOME, $CUDA_PATH, /usr/local/cuda, and nvidia/cu13/lib and \
                 nvidia/cuda_nvrtc/lib in the Python environments around ({}). Install the CUDA toolkit or `pip \
                 install {package}`, or set {LIBRARY_VARIABLE} to the file",
                tried.join("; ")
            ),
        })
    }

    /// Loads the library from a file, or by a name that the system's loader finds.
    ///
    /// # Errors
    /// The file and why it cannot be used.
    pub fn load(path: &Path) -> Result<Self, String> {
        // SAFETY: NVRTC's initialisers only set up the compiler.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| {
            // The outer error only says that dlopen failed; the inner one names the file.
            std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
        })?;
        Self::from_library(library, path).map_err(|why| format!("{}: {why}", path.display()))
    }

    fn from_library(library: libloading::Library, path: &Path) -> Result<Self, String> {
        let functions = Functions::load(&library)?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: the function writes two ints.
        let result = unsafe { (functions.nvrtcVersion)(&mut major, &mut minor) };
        if result != SUCCESS {
            return Err(format!("nvrtcVersion failed with {result}"));
        }
        // SAFETY: the function writes one int.
        let result = unsafe { (functions.nvrtcGetNumSupportedArchs)(&mut count) };
        if result != SUCCESS {
            return Err(format!("nvrtcGetNumSupportedArchs failed with {result}"));
        }
        let mut architectures = vec![0 as c_int; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the function writes as many ints as it counted.
        let result = unsafe { (functions.nvrtcGetSupportedArchs)(architectures.as_mut_ptr()) };
        if result != SUCCESS {
            return Err(format!("nvrtcGetSupportedArchs failed with {result}"));
        }
        let mut architectures: Vec<u32> = architectures.iter().filter_map(|it| u32::try_from(*it).ok()).collect();
        architectures.sort_unstable();
        Ok(Self {
            path: file_of(functions.nvrtcVersion as *const c_void).unwrap_or_else(|| path.to_path_buf()),
            version: (u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0)),
            functions,
            architectures,
            builtins: OnceLock::new(),
            _library: library,
        })
    }

    /// The file that was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor version, those of the CUDA toolkit it belongs to.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Architectures it makes machine code for, such as 90 for `sm_90`, ascending.
    pub fn architectures(&self) -> &[u32] {
        &self.architectures
    }

    /// What to compile for a GPU of this compute capability: machine code where this NVRTC knows the GPU, else assembly
    /// for the newest architecture before it.
    ///
    /// # Errors
    /// [`Error::Library`] when the GPU is older than all that this NVRTC knows.
    pub fn target(&self, capability: (u32, u32)) -> Result<Target> {
        let number = capability.0 * 10 + capability.1;
        match self.architectures.iter().rfind(|it| **it <= number) {
            Some(known) if *known == number => Ok(Target::Cubin(number)),
            Some(older) => Ok(Target::Ptx(*older)),
            None => Err(Error::Library {
                library: LIBRARY,
                message: format!(
                    "{} (version {}.{}) no longer compiles for compute capability {}.{}; install an older one, such \
                     as `pip install nvidia-cuda-nvrtc-cu12`, and set {LIBRARY_VARIABLE} to it",
                    self.path.display(),
                    self.version.0,
                    self.version.1,
                    capability.0,
                    capability.1
                ),
            }),
        }
    }

    /// Loads the builtins from beside the library, where NVRTC then finds them loaded. Its own search follows $ORIGIN,
    /// which the loader ignores in privileged programs and which AddressSanitizer's `dlopen` loses.
    fn load_builtins(&self) {
        self.builtins.get_or_init(|| {
            let name = format!("libnvrtc-builtins.so.{}.{}", self.version.0, self.version.1);
            // SAFETY: its initialisers only register data. Without it NVRTC searches, and reports what it misses.
            unsafe { libloading::Library::new(self.path.parent()?.join(name)) }.ok()
        });
    }

    /// Compiles one source. `headers` are pairs of the name in the `#include` and the text; nothing is read from disk.
    ///
    /// # Errors
    /// [`Error::Library`] with the compiler's log.
    pub fn compile(
        &self,
        name: &str,
        source: &str,
        headers: &[(&str, &str)],
        target: Target,
        options: &[&str],
    ) -> Result<Compiled> {
        let fail = |what: &str, code: c_int, log: &str| {
            // SAFETY: the function returns a static string for any code.
            let text = unsafe { CStr::from_ptr((self.functions.nvrtcGetErrorString)(code)) }.to_string_lossy();
            let hint = if code == BUILTIN_OPERATION_FAILURE {
                format!(
                    "; libnvrtc-builtins.so.{}.{} has to lie beside {}",
                    self.version.0,
                    self.version.1,
                    self.path.display()
                )
            } else {
                String::new()
            };
            Error::Library {
                library: LIBRARY,
                message: format!(
                    "{what} failed for {name} and {} with {text}{hint}\n{}",
                    target.architecture(),
                    log.trim_end()
                )
                .trim_end()
                .to_string(),
            }
        };
        let c_string =
            |text: &str| CString::new(text).map_err(|_| Error::Argument(format!("{name}: a NUL in a source")));

        let source = c_string(source)?;
        let title = c_string(name)?;
        let mut texts = Vec::new();
        let mut names = Vec::new();
        for (name, text) in headers {
            names.push(c_string(name)?);
            texts.push(c_string(text)?);
        }
        let architecture = format!("--gpu-architecture={}", target.architecture());
        let arguments = OPTIONS
            .iter()
            .chain(options)
            .copied()
            .chain([architecture.as_str()])
            .map(c_string)
            .collect::<Result<Vec<_>>>()?;
        let pointers = |strings: &[CString]| strings.iter().map(|it| it.as_ptr()).collect::<Vec<_>>();
        let (text_pointers, name_pointers) = (pointers(&texts), pointers(&names));
        let argument_pointers = pointers(&arguments);

        self.load_builtins();
        let mut program = Program { functions: &self.functions, raw: std::ptr::null_mut() };
        // SAFETY: all strings end in NUL and outlive the call; both arrays have the stated length.
        let result = unsafe {
            (self.functions.nvrtcCreateProgram)(
                &mut program.raw,
                source.as_ptr(),
                title.as_ptr(),
                text_pointers.len() as c_int,
                text_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        if result != SUCCESS {
            return Err(fail("nvrtcCreateProgram", result, ""));
        }
        // SAFETY: the program is live; the options end in NUL and outlive the call.
        let result = unsafe {
            (self.functions.nvrtcCompileProgram)(
                program.raw,
                argument_pointers.len() as c_int,
                argument_pointers.as_ptr(),
            )
        };
        let log = program
            .bytes(self.functions.nvrtcGetProgramLogSize, self.functions.nvrtcGetProgramLog)
            .map(|it| String::from_utf8_lossy(it.strip_suffix(&[0]).unwrap_or(&it)).into_owned());
        if result != SUCCESS {
            return Err(fail("nvrtcCompileProgram", result, log.as_deref().unwrap_or("")));
        }
        let image = match target {
            Target::Cubin(_) => program.bytes(self.functions.nvrtcGetCUBINSize, self.functions.nvrtcGetCUBIN),
            Target::Ptx(_) => program.bytes(self.functions.nvrtcGetPTXSize, self.functions.nvrtcGetPTX),
        }
        .map_err(|code| fail("fetching the compiled module", code, ""))?;
        Ok(Compiled { image, log: log.unwrap_or_default() })
    }
}

/// A live `nvrtcProgram`, or null.
struct Program<'a> {
    functions: &'a Functions,
    raw: RawProgram,
}

impl Program<'_> {
    /// Asks for a size, then for that many bytes.
    fn bytes(
        &self,
        size: unsafe extern "C" fn(RawProgram, *mut usize) -> c_int,
        get: unsafe extern "C" fn(RawProgram, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, c_int> {
        let mut len = 0;
        // SAFETY: the program is live, and the function writes one size.
        let result = unsafe { size(self.raw, &mut len) };
        if result != SUCCESS {
            return Err(result);
        }
        let mut bytes = vec![0u8; len];
        // SAFETY: the function writes as many bytes as its size function said.
        let result = unsafe { get(self.raw, bytes.as_mut_ptr().cast()) };
        if result == SUCCESS { Ok(bytes) } else { Err(result) }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the program is live and used by nobody else.
            unsafe { (self.functions.nvrtcDestroyProgram)(&mut self.raw) };
        }
    }
}

/// The file that holds a loaded function.
fn file_of(function: *const c_void) -> Option<PathBuf> {
    // SAFETY: an all-zero Dl_info is valid; dladdr fills it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr takes any address and only writes `info`.
    if unsafe { libc::dladdr(function, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr returned a C string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(name.to_string_lossy().into_owned()))
}

/// Where NVRTC may be, best first: the loader's own search, CUDA's folders, Python wheels.
fn candidates(driver_major: Option<u32>) -> Vec<PathBuf> {
    // A 12.x driver loads nothing that 13.x made; the reverse works.
    let generations: [u32; 2] = if driver_major.is_some_and(|it| it < 13) { [12, 13] } else { [13, 12] };
    let folders = search::cuda_folders();
    let packages = search::site_packages();
    let mut found = Vec::new();
    for generation in generations {
        let name = format!("libnvrtc.so.{generation}");
        let wheel = if generation == 12 { "nvidia/cuda_nvrtc/lib" } else { "nvidia/cu13/lib" };
        found.push(PathBuf::from(&name));
        found.extend(folders.iter().map(|it| it.join(&name)));
        found.push(format!("/usr/local/cuda-{generation}/lib64/{name}").into());
        found.extend(packages.iter().map(|it| it.join(wheel).join(&name)));
    }
    found.push("libnvrtc.so".into());
    found
}
