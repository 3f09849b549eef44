//! The launcher of emulated kernels, `kernels/simt.cc`.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// What one emulated thread runs.
pub type KernelBody = unsafe extern "C" fn(args: *const c_void);

// SAFETY: the signatures are those of `kernels/simt.cc`.
unsafe extern "C" {
    fn simt_launch(
        kernel: *const c_char,
        body: KernelBody,
        blocks: u32,
        threads: u32,
        args: *const c_void,
        seed: u64,
        error: *mut c_char,
        error_bytes: usize,
    ) -> c_int;
    fn simt_kernel(name: *const c_char, threads: *mut u32, args_bytes: *mut u32) -> bool;
}

/// The fibers, their stacks and all shared memory exist once in a process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `blocks` blocks of `threads` threads to their end. The seed chooses the order; 0 is the natural one.
///
/// # Errors
/// A message that names kernel, block and threads when some threads wait for others that never come.
///
/// # Safety
/// `body` may be called with `args`, and every address in them is valid for what it does.
pub(crate) unsafe fn launch(
    name: &str,
    body: KernelBody,
    blocks: u32,
    threads: u32,
    args: &[u64],
    seed: u64,
) -> Result<(), String> {
    let kernel = CString::new(name).map_err(|error| error.to_string())?;
    let mut message = [0u8; 1024];
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: calls take turns; the message has room; body and args are the caller's promise.
    let failed = unsafe {
        simt_launch(
            kernel.as_ptr(),
            body,
            blocks,
            threads,
            args.as_ptr().cast(),
            seed,
            message.as_mut_ptr().cast(),
            message.len(),
        )
    };
    if failed == 0 {
        return Ok(());
    }
    let end = message.iter().position(|it| *it == 0).unwrap_or(message.len());
    Err(String::from_utf8_lossy(&message[..end]).into_owned())
}

/// Threads of a block and bytes of the argument struct, as the source of the kernel `name` states them.
pub(crate) fn declared(name: &str) -> Option<(u32, u32)> {
    let name = CString::new(name).ok()?;
    let (mut threads, mut args_bytes) = (0, 0);
    // SAFETY: a C string and two valid pointers.
    unsafe { simt_kernel(name.as_ptr(), &mut threads, &mut args_bytes) }.then_some((threads, args_bytes))
}

#[cfg(test)]
#[path = "simt_tests.rs"]
mod tests;
