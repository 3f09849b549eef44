//! A device's primary context: made current where it is needed, and remembered as dead after a sticky error.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{CUcontext, CUdevice};

use super::driver::{Code, Driver, SUCCESS};
use crate::error::{Error, Result};
use crate::kernels::Kernel;

/// The primary context, which this shares with the CUDA runtime and with other libraries of the process.
pub(super) struct Context {
    pub driver: &'static Driver,
    pub device: CUdevice,
    /// `cuda:0`.
    pub name: String,
    handle: CUcontext,
    /// The first sticky error.
    fault: OnceLock<String>,
    /// The last eight kernels launched, the newest in the low byte, each as its index plus 1.
    recent: AtomicU64,
}

// SAFETY: a context handle may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for Context {}

/// Calls a driver function and turns its code into a `Result`. To be used in an `unsafe` block.
macro_rules! call {
    ($context:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let context = $context;
        context.check(stringify!($name), (context.driver.functions.$name)($($arg),*))
    }};
}
pub(super) use call;

impl Context {
    /// Retains the primary context of a device, which makes it where nobody has yet (0.1 to 0.5 s).
    pub fn retain(driver: &'static Driver, device: CUdevice, name: &str) -> Result<Self> {
        let mut handle: CUcontext = std::ptr::null_mut();
        // SAFETY: the driver is initialised and the device came from it; the function writes one handle.
        let code = unsafe { (driver.functions.cuDevicePrimaryCtxRetain)(&mut handle, device) };
        if code != SUCCESS {
            return Err(driver.error(name, "cuDevicePrimaryCtxRetain", code));
        }
        Ok(Self { driver, device, name: name.into(), handle, fault: OnceLock::new(), recent: AtomicU64::new(0) })
    }

    /// Makes the context current on this thread; the first sticky error once there was one.
    ///
    /// The driver is asked each time what is current: it answers from thread-local storage, and a memory of our own
    /// would be wrong as soon as another library on this thread had changed it.
    pub fn bind(&self) -> Result<()> {
        if let Some(fault) = self.fault.get() {
            return Err(self.error(fault.clone()));
        }
        let mut current: CUcontext = std::ptr::null_mut();
        // SAFETY: the driver is initialised; the function writes one handle.
        unsafe { call!(self, cuCtxGetCurrent(&mut current))? };
        if current != self.handle {
            // SAFETY: the context is retained for as long as `self` lives.
            unsafe { call!(self, cuCtxSetCurrent(self.handle))? };
        }
        Ok(())
    }

    /// Notes a launch, for the message of a later fault.
    pub fn note(&self, kernel: Kernel) {
        let index = kernel as u64 + 1;
        let update = |recent: u64| Some(recent << 8 | (index & 0xff));
        // The closure never refuses.
        let _ = self.recent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
    }

    /// An error of this device.
    pub fn error(&self, message: String) -> Error {
        Error::Device { device: self.name.clone(), message }
    }

    /// A call's result. A sticky error is kept, and is what this and every later call reports.
    pub fn check(&self, call: &str, code: Code) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        if !is_sticky(code) {
            return Err(self.driver.error(&self.name, call, code));
        }
        let fault = self.fault.get_or_init(|| {
            format!(
                "{call} failed with {}{}; this process cannot use the device any more",
                self.driver.describe(code),
                self.launched()
            )
        });
        Err(self.error(fault.clone()))
    }

    /// The kernels launched last: a fault shows in a later call than the one that caused it.
    fn launched(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for byte in self.recent.load(Ordering::Relaxed).to_le_bytes() {
            let Some(kernel) = usize::from(byte).checked_sub(1).and_then(|it| Kernel::ALL.get(it)) else { break };
            if !names.contains(&kernel.symbol()) {
                names.push(kernel.symbol());
            }
        }
        if names.is_empty() { String::new() } else { format!(", launched last: {}", names.join(", ")) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `retain`, and nothing uses the handle any more.
        unsafe { (self.driver.functions.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// Codes after which cuda.h says that the process is "in an inconsistent state and any further CUDA work will return
/// the same error", and the two hardware errors that end the same way.
fn is_sticky(code: Code) -> bool {
    matches!(
        code,
        214 // CUDA_ERROR_ECC_UNCORRECTABLE
        | 220 // CUDA_ERROR_NVLINK_UNCORRECTABLE
        | 226 // CUDA_ERROR_CONTAINED
        | 700 // CUDA_ERROR_ILLEGAL_ADDRESS
        | 702 // CUDA_ERROR_LAUNCH_TIMEOUT
        | 709 // CUDA_ERROR_CONTEXT_IS_DESTROYED
        | 710 // CUDA_ERROR_ASSERT
        | 714
            ..=719 // HARDWARE_STACK_ERROR to LAUNCH_FAILED
        | 721 // CUDA_ERROR_TENSOR_MEMORY_LEAK
        | 810 // CUDA_ERROR_MPS_CLIENT_TERMINATED
        | 911 // CUDA_ERROR_EXTERNAL_DEVICE
    )
}
