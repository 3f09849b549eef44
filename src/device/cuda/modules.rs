//! Compiled kernels: from the disk cache or NVRTC, loaded on first use.

use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{CUfunc_st, CUfunction, CUjit_option, CUmodule};

use super::context::{Context, call};
use super::driver::SUCCESS;
use crate::device::cache::{KernelCache, Key};
use crate::error::{Error, Result};
use crate::kernels::{HEADERS, Kernel};
use crate::sys::nvrtc::{Nvrtc, OPTIONS};

/// The kernels of one device.
pub(super) struct Modules {
    /// The driver's major CUDA version.
    driver_major: u32,
    capability: (u32, u32),
    cache: KernelCache,
    /// One for each file of kernels: taken by the thread that loads it.
    slots: Vec<Slot>,
    /// One for each kernel by its index; null until its module is loaded.
    functions: Vec<AtomicPtr<CUfunc_st>>,
    compiled: AtomicU64,
    cached: AtomicU64,
}

struct Slot {
    module: &'static str,
    /// Null until it is loaded.
    handle: Mutex<Handle>,
}

struct Handle(CUmodule);

// SAFETY: a module handle may be used from any thread.
unsafe impl Send for Handle {}

impl Modules {
    /// Loads nothing yet.
    pub fn new(driver_major: u32, capability: (u32, u32), cache: KernelCache) -> Self {
        let mut slots: Vec<Slot> = Vec::new();
        for kernel in Kernel::ALL {
            if slots.iter().all(|it| it.module != kernel.module()) {
                slots.push(Slot { module: kernel.module(), handle: Mutex::new(Handle(std::ptr::null_mut())) });
            }
        }
        Self {
            driver_major,
            capability,
            cache,
            slots,
            functions: Kernel::ALL.iter().map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
            compiled: AtomicU64::new(0),
            cached: AtomicU64::new(0),
        }
    }

    /// Modules compiled, and modules read from the disk cache.
    pub fn counts(&self) -> (u64, u64) {
        (self.compiled.load(Ordering::Relaxed), self.cached.load(Ordering::Relaxed))
    }

    /// A kernel's function, its module loaded if need be. The context is bound.
    pub fn function(&self, context: &Context, kernel: Kernel) -> Result<CUfunction> {
        let slot = &self.functions[kernel as usize];
        let function = slot.load(Ordering::Acquire);
        if !function.is_null() {
            return Ok(function);
        }
        self.load(context, kernel)?;
        Ok(slot.load(Ordering::Acquire))
    }

    /// Loads the modules of `kernels`, several at a time: a compilation takes 50 to 500 ms of one core.
    pub fn prepare(&self, context: &Context, kernels: &[Kernel]) -> Result<()> {
        let missing = |it: &&Kernel| self.functions[**it as usize].load(Ordering::Acquire).is_null();
        let mut wanted: Vec<Kernel> = Vec::new();
        for kernel in kernels.iter().filter(missing) {
            if wanted.iter().all(|it| it.module() != kernel.module()) {
                wanted.push(*kernel);
            }
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(wanted.len());
        if threads <= 1 {
            return wanted.into_iter().try_for_each(|it| self.load(context, it));
        }
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            context.bind()?;
            while let Some(kernel) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.load(context, *kernel)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut result = work();
            for other in others {
                let panicked = || context.error("a thread that compiled kernels panicked".into());
                result = result.and(other.join().unwrap_or_else(|_| Err(panicked())));
            }
            result
        })
    }

    /// Loads a kernel's module and finds the functions of all its kernels.
    fn load(&self, context: &Context, kernel: Kernel) -> Result<()> {
        let slot = self.slots.iter().find(|it| it.module == kernel.module()).expect("every kernel's module has a slot");
        let mut handle = slot.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if !handle.0.is_null() {
            return Ok(());
        }
        let module = self.build(context, kernel)?;
        let found = self.find_functions(context, kernel.module(), module);
        if let Err(error) = found {
            // SAFETY: the module is loaded and none of its functions was handed out.
            let _ = unsafe { call!(context, cuModuleUnload(module)) };
            return Err(error);
        }
        handle.0 = module;
        Ok(())
    }

    fn find_functions(&self, context: &Context, name: &str, module: CUmodule) -> Result<()> {
        let mut found = Vec::new();
        for kernel in Kernel::ALL.iter().filter(|it| it.module() == name) {
            let symbol = CString::new(kernel.symbol()).expect("a symbol is a Rust identifier");
            let mut function: CUfunction = std::ptr::null_mut();
            // SAFETY: the module is loaded, the name ends in NUL, and the function writes one handle.
            unsafe { call!(context, cuModuleGetFunction(&mut function, module, symbol.as_ptr())) }.map_err(
                |error| match error {
                    Error::Device { device, message } => {
                        Error::Device { device, message: format!("{}: {message}", kernel.symbol()) }
                    }
                    other => other,
                },
            )?;
            found.push((*kernel, function));
        }
        for (kernel, function) in found {
            self.functions[kernel as usize].store(function, Ordering::Release);
        }
        Ok(())
    }

    /// The loaded module of a kernel: from the cache where the driver takes it, else compiled.
    fn build(&self, context: &Context, kernel: Kernel) -> Result<CUmodule> {
        let nvrtc = Nvrtc::get(Some(self.driver_major))?;
        let target = nvrtc.target(self.capability)?;
        let architecture = target.architecture();
        let version = format!("{}.{}", nvrtc.version().0, nvrtc.version().1);
        let mut parts = vec![env!("CARGO_PKG_VERSION"), version.as_str(), architecture.as_str(), kernel.module()];
        parts.push(kernel.source());
        parts.extend(OPTIONS);
        parts.extend(HEADERS.iter().flat_map(|(name, text)| [*name, *text]));
        let key = Key::new(parts.into_iter().map(str::as_bytes));

        if let Some(image) = self.cache.get(&key)
            && let Ok(module) = load_image(context, kernel, &image)
        {
            self.cached.fetch_add(1, Ordering::Relaxed);
            return Ok(module);
        }
        let name = format!("{}.cu", kernel.module());
        let image = nvrtc.compile(&name, kernel.source(), HEADERS, target, &[])?.image;
        self.compiled.fetch_add(1, Ordering::Relaxed);
        let module = load_image(context, kernel, &image)?;
        self.cache.put(&key, &image);
        Ok(module)
    }
}

/// Gives a cubin, or PTX that ends in a NUL, to the driver.
fn load_image(context: &Context, kernel: Kernel, image: &[u8]) -> Result<CUmodule> {
    // Both kinds say how long they are: a cubin is an ELF file, PTX a string. A cut one must not reach the driver.
    let whole = image.starts_with(b"\x7fELF") || image.ends_with(&[0]);
    if !whole {
        return Err(context.error(format!("the compiled {}.cu is neither a cubin nor PTX", kernel.module())));
    }
    let mut log = [0 as c_char; 4096];
    let mut options = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The size travels in the pointer; one byte is left so that the log always ends in a NUL.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), (log.len() - 1) as *mut c_void];
    let mut module: CUmodule = std::ptr::null_mut();
    // SAFETY: the image is whole; both arrays have the stated length and the values that these options take.
    let code = unsafe {
        (context.driver.functions.cuModuleLoadDataEx)(
            &mut module,
            image.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    if code == SUCCESS {
        return Ok(module);
    }
    // SAFETY: the buffer ends in a NUL.
    let log = unsafe { std::ffi::CStr::from_ptr(log.as_ptr()) }.to_string_lossy();
    context.check("cuModuleLoadDataEx", code).map_err(|error| {
        let hint = match code {
            // CUDA_ERROR_INVALID_IMAGE, _NO_BINARY_FOR_GPU, _UNSUPPORTED_PTX_VERSION in cuda.h
            200 | 209 | 222 => {
                "; NVRTC is newer than the driver: update the driver, or take an NVRTC of its generation or older"
            }
            _ => "",
        };
        context.error(format!("loading {}.cu: {error}{hint} {}", kernel.module(), log.trim_end()).trim_end().into())
    })?;
    Err(context.error("cuModuleLoadDataEx failed".into()))
}
