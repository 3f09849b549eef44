//! Panics of the `parquet` crate on hostile input, turned into its errors.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use parquet::errors::{ParquetError, Result};

thread_local! {
    /// Whether a panic on this thread is expected, and so not worth a message on standard error.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, which reads only what a file dictates; its panic becomes an error that says so.
///
/// The process's panic hook is wrapped once, so that a guarded panic prints nothing; all others print as before.
///
/// # Errors
/// Those of `work`, or [`ParquetError::General`] with the panic's message.
pub fn catch<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                previous(info);
            }
        }));
    });
    let before = GUARDED.replace(true);
    // The values that `work` holds are dropped with it, so nothing half-written is seen afterwards.
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(before);
    outcome.unwrap_or_else(|panic| Err(ParquetError::General(format!("the parser panicked: {}", message(&*panic)))))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_and_results_pass() {
        let error = catch::<u8>(|| panic!("a level")).expect_err("it panics");
        assert!(error.to_string().contains("a level"), "{error}");
        assert_eq!(catch(|| Ok(7)).expect("no panic"), 7);
    }
}
