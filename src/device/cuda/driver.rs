//! The driver's functions, found in the library that cudarc loads.
//!
//! The functions are called through a table of our own, not through cudarc's: a missing one is then an error instead of
//! a panic, and a result code that is newer than cudarc's enum stays a number. cudarc's bindings still check each
//! signature when this is compiled.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUjit_option, CUmemPool_attribute,
    CUmemPoolProps, CUmemoryPool, CUmodule, CUstream, CUuuid,
};

use crate::device::Properties;
use crate::error::{Error, Result};

/// A `CUresult`.
pub(super) type Code = u32;

/// `CUDA_SUCCESS`.
pub(super) const SUCCESS: Code = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: Code = 2;

/// The oldest driver whose functions and machine code are used, as `cuDriverGetVersion` counts: 12.0.
const OLDEST_DRIVER: c_int = 12_000;

macro_rules! functions {
    ($($name:ident($($arg:ty),*);)*) => {
        /// The driver's functions by their exported names.
        #[allow(non_snake_case)]
        pub(super) struct Functions { $(pub $name: unsafe extern "C" fn($($arg),*) -> Code,)* }

        // cudarc's bindings, which were generated from cuda.h, take the same arguments.
        $(const _: unsafe fn($($arg),*) -> sys::CUresult = sys::$name;)*

        impl Functions {
            fn load(library: &'static libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $(
                        // SAFETY: the exported function has this signature, as checked above.
                        $name: *unsafe { library.get(concat!(stringify!($name), "\0")) }
                            .map_err(|_| stringify!($name))?,
                    )*
                })
            }
        }
    };
}

functions! {
    cuDriverGetVersion(*mut c_int);
    cuInit(c_uint);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxGetCurrent(*mut CUcontext);
    cuCtxSetCurrent(CUcontext);
    cuCtxSynchronize();
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemPoolCreate(*mut CUmemoryPool, *const CUmemPoolProps);
    cuMemPoolDestroy(CUmemoryPool);
    cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, *mut c_void);
    cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, *mut c_void);
    cuMemPoolTrimTo(CUmemoryPool, usize);
    cuMemAllocFromPoolAsync(*mut CUdeviceptr, usize, CUmemoryPool, CUstream);
    cuMemFreeAsync(CUdeviceptr, CUstream);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamSynchronize(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventSynchronize(CUevent);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);
    cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void);
    cuModuleUnload(CUmodule);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
    );
}

/// `cuGetErrorName` and `cuGetErrorString`: cudarc's take its enum, which cannot hold a code that is newer than it.
type ErrorText = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;

/// The loaded driver.
pub(super) struct Driver {
    pub functions: Functions,
    error_name: ErrorText,
    error_string: ErrorText,
}

impl Driver {
    /// The process's driver library, loaded by the first call and new enough for this crate.
    pub fn get() -> Result<&'static Self> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        let fail = |message: String| Error::Library { library: "libcuda", message };
        // SAFETY: loading the driver runs its initialisers, which any CUDA program does.
        let library = std::panic::catch_unwind(|| unsafe { sys::is_culib_present().then(|| sys::culib()) });
        let library = library.ok().flatten().ok_or_else(|| {
            fail(
                "libcuda.so and libcuda.so.1 were not found by the system's loader (LD_LIBRARY_PATH, /etc/ld.so.cache). \
                 They belong to NVIDIA's driver: install it on the host (12.0 or newer), and start a container with \
                 `--gpus all`"
                    .into(),
            )
        })?;
        let missing = |name: &str| {
            fail(format!("the driver lacks {name}: it is older than CUDA 12.0, which this needs; install a newer one"))
        };
        let functions = Functions::load(library).map_err(missing)?;
        let text = |name: &'static str| -> Result<ErrorText> {
            // SAFETY: cuda.h: CUresult name(CUresult, const char**); an enum travels as an int.
            Ok(*unsafe { library.get(name) }.map_err(|_| missing(name))?)
        };
        let driver = Self { functions, error_name: text("cuGetErrorName")?, error_string: text("cuGetErrorString")? };
        let version = driver.version()?;
        if version < OLDEST_DRIVER {
            return Err(fail(format!(
                "the driver supports CUDA {}.{} and this needs 12.0; install a driver of the 525 series or newer",
                version / 1000,
                version % 1000 / 10
            )));
        }
        Ok(DRIVER.get_or_init(|| driver))
    }

    /// As `cuDriverGetVersion` counts: 1000 · major + 10 · minor.
    fn version(&self) -> Result<c_int> {
        let mut version = 0;
        // SAFETY: the function writes one int and needs no initialisation.
        let code = unsafe { (self.functions.cuDriverGetVersion)(&mut version) };
        if code != SUCCESS {
            return Err(self.error("cuda", "cuDriverGetVersion", code));
        }
        Ok(version)
    }

    /// A code's name and what it means.
    pub fn describe(&self, code: Code) -> String {
        let text = |function: ErrorText| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: the function writes a pointer to a static string, or null for a code that it does not know.
            let known = unsafe { function(code, &mut text) } == SUCCESS && !text.is_null();
            // SAFETY: as above.
            known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (text(self.error_name), text(self.error_string)) {
            (Some(name), Some(meaning)) => format!("{name} ({meaning})"),
            (Some(name), None) => name,
            _ => format!("CUDA error {code}"),
        }
    }

    /// A failed call as an error.
    pub fn error(&self, device: &str, call: &str, code: Code) -> Error {
        Error::Device { device: device.into(), message: format!("{call} failed with {}", self.describe(code)) }
    }

    /// Initialises the driver, for the whole process and once; makes no context.
    pub fn initialise(&self) -> Result<()> {
        // SAFETY: 0 is the only flag that there is.
        let code = unsafe { (self.functions.cuInit)(0) };
        // Codes of cuda.h that have a known cause.
        let hint = match code {
            SUCCESS => return Ok(()),
            34 => "libcuda.so is the toolkit's stub; take its `stubs` folder out of LD_LIBRARY_PATH",
            46 | 100 => {
                "no GPU is visible or free: see `nvidia-smi`, CUDA_VISIBLE_DEVICES, and a container's `--gpus` option"
            }
            802 => "the GPUs' fabric is not up; start nvidia-fabricmanager on the host",
            803 => "libcuda and the loaded kernel module are of different versions; reboot, or reinstall the driver",
            804 => "the CUDA compatibility package does not support this GPU; take its folder out of LD_LIBRARY_PATH",
            _ => "see `nvidia-smi` and the kernel's log",
        };
        Err(Error::Device {
            device: "cuda".into(),
            message: format!("cuInit failed with {}: {hint}", self.describe(code)),
        })
    }

    /// Devices that the driver shows, after [`initialise`](Self::initialise).
    pub fn count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: the function writes one int.
        let code = unsafe { (self.functions.cuDeviceGetCount)(&mut count) };
        if code != SUCCESS {
            return Err(self.error("cuda", "cuDeviceGetCount", code));
        }
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// A device's handle and what it is. Needs no context.
    pub fn device(&self, ordinal: u32) -> Result<(CUdevice, Properties)> {
        let name = format!("cuda:{ordinal}");
        let check = |call: &str, code: Code| if code == SUCCESS { Ok(()) } else { Err(self.error(&name, call, code)) };
        let at = c_int::try_from(ordinal)
            .map_err(|_| Error::Device { device: name.clone(), message: "no such device".into() })?;
        let it = &self.functions;
        let mut device: CUdevice = 0;
        let mut product = [0 as c_char; 256];
        let mut uuid = CUuuid { bytes: [0; 16] };
        let mut memory = 0;
        // SAFETY: the function writes one handle.
        check("cuDeviceGet", unsafe { (it.cuDeviceGet)(&mut device, at) })?;
        // SAFETY: it writes at most the stated bytes, NUL included; the last byte stays NUL in any case.
        let code = unsafe { (it.cuDeviceGetName)(product.as_mut_ptr(), product.len() as c_int - 1, device) };
        check("cuDeviceGetName", code)?;
        // SAFETY: it writes 16 bytes.
        check("cuDeviceGetUuid_v2", unsafe { (it.cuDeviceGetUuid_v2)(&mut uuid, device) })?;
        // SAFETY: it writes one size.
        check("cuDeviceTotalMem_v2", unsafe { (it.cuDeviceTotalMem_v2)(&mut memory, device) })?;
        let attribute =
            |which| self.attribute(device, which).map_err(|code| self.error(&name, "cuDeviceGetAttribute", code));
        let capability = (
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let multiprocessors = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        // SAFETY: the buffer ends in a NUL.
        let product = unsafe { CStr::from_ptr(product.as_ptr()) }.to_string_lossy().into_owned();
        let properties = Properties {
            name: name.clone(),
            product,
            ordinal,
            host_addressable: false,
            uuid: Some(uuid.bytes.map(|it| it as u8)),
            capability,
            multiprocessors,
            memory: memory as u64,
        };
        Ok((device, properties))
    }

    /// One attribute of a device.
    pub fn attribute(&self, device: CUdevice, which: CUdevice_attribute) -> Result<u32, Code> {
        let mut value = 0;
        // SAFETY: the function writes one int.
        let code = unsafe { (self.functions.cuDeviceGetAttribute)(&mut value, which, device) };
        if code == SUCCESS { Ok(u32::try_from(value).unwrap_or(0)) } else { Err(code) }
    }
}

/// The newest CUDA version that the installed driver supports, as (major, minor). Initialises nothing.
///
/// # Errors
/// [`Error::Library`] when there is no driver, or one older than 12.0.
pub fn driver_version() -> Result<(u32, u32)> {
    let version = u32::try_from(Driver::get()?.version()?).unwrap_or(0);
    Ok((version / 1000, version % 1000 / 10))
}

/// Every device that the driver shows. Initialises the driver and makes no context.
///
/// # Errors
/// [`Error::Library`] without a driver, [`Error::Device`] where it shows no device, each with what to do.
pub fn devices() -> Result<Vec<Properties>> {
    let driver = Driver::get()?;
    driver.initialise()?;
    (0..driver.count()?).map(|ordinal| driver.device(ordinal).map(|it| it.1)).collect()
}
