//! When cuFile is used and when not, in one place.

use crate::error::{Error, Result};
use crate::options::CompatMode;
use crate::plan::RouteReason;

/// What a file's direct ranges go through.
#[derive(Debug)]
pub(crate) enum Choice<T> {
    /// cuFile, opened.
    Direct(T),
    /// Our own reads, and why.
    Host(RouteReason),
}

/// Opens cuFile for a file if the mode allows it. The modes mean what they mean in KvikIO: `on` never asks cuFile, `off`
/// takes no refusal, `auto` takes a refusal for this file and keeps its reason.
///
/// # Errors
/// What `open` failed with, in mode `off`; in mode `auto` when it is no refusal: a broken device is not cuFile's doing.
pub(crate) fn choose<T>(mode: CompatMode, open: impl FnOnce() -> Result<T>) -> Result<Choice<T>> {
    match mode {
        CompatMode::On => Ok(Choice::Host(RouteReason::CompatOn)),
        CompatMode::Off => open().map(Choice::Direct),
        CompatMode::Auto => match open() {
            Ok(opened) => Ok(Choice::Direct(opened)),
            Err(error @ Error::Device { .. }) => Err(error),
            Err(error) => Ok(Choice::Host(RouteReason::CuFileRefused(error.to_string()))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse() -> Result<()> {
        Err(Error::CuFile { call: "cuFileHandleRegister", code: 5027, message: "not registered".into() })
    }

    #[test]
    fn on_never_opens() {
        let choice = choose(CompatMode::On, || -> Result<()> { panic!("cuFile was asked") });
        assert!(matches!(choice, Ok(Choice::Host(RouteReason::CompatOn))), "{choice:?}");
    }

    #[test]
    fn off_takes_no_refusal() {
        assert!(matches!(choose(CompatMode::Off, refuse), Err(Error::CuFile { code: 5027, .. })));
        assert!(matches!(choose(CompatMode::Off, || Ok(1)), Ok(Choice::Direct(1))));
    }

    #[test]
    fn auto_falls_back_and_keeps_the_reason() {
        match choose(CompatMode::Auto, refuse) {
            Ok(Choice::Host(RouteReason::CuFileRefused(reason))) => assert!(reason.contains("5027"), "{reason}"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(choose(CompatMode::Auto, || Ok(1)), Ok(Choice::Direct(1))));
        let broken = || -> Result<()> { Err(Error::Device { device: "cuda:0".into(), message: "gone".into() }) };
        assert!(matches!(choose(CompatMode::Auto, broken), Err(Error::Device { .. })));
    }
}
