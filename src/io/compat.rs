//! Compat modes, as KvikIO defines them: whether a file that cuFile refused is read otherwise.

use crate::error::{Error, Result};
use crate::options::CompatMode;

/// What a refusal by cuFile comes to. `Ok`: read the file through the host, for this reason. `on` never gets here, since
/// its plans have no direct range.
///
/// # Errors
/// The refusal itself with `off`.
pub fn refused(mode: CompatMode, error: Error) -> Result<String> {
    match mode {
        CompatMode::Off => Err(error),
        CompatMode::Auto | CompatMode::On => Ok(error.to_string()),
    }
}
