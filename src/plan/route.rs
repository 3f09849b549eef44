//! Which way a range travels, and why.

use std::fmt;

use super::Context;
use crate::options::{CompatMode, IoOptions};

/// Stage one of the path choice; stage two is cuFile's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Route {
    /// Through cuFile into device memory.
    Direct,
    /// Through our own reads and page-locked memory.
    Host,
}

/// Why a range took its route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RouteReason {
    /// A local file, large enough, and cuFile is allowed.
    Eligible,
    /// Smaller than `gds_threshold`.
    BelowThreshold,
    /// The source is not a local file.
    RemoteSource,
    /// Compat mode is on.
    CompatOn,
    /// The arrays stay in host memory.
    CpuDevice,
    /// arrow-rs decodes these bytes, for the reason given.
    CpuDecode(String),
    /// The CPU decompresses these bytes with the codec named, and kernels decode them.
    CpuDecompress(String),
    /// cuFile refused, with its error.
    CuFileRefused(String),
}

impl fmt::Display for RouteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eligible => f.write_str("local file at or above gds_threshold"),
            Self::BelowThreshold => f.write_str("below gds_threshold"),
            Self::RemoteSource => f.write_str("remote source"),
            Self::CompatOn => f.write_str("compat mode is on"),
            Self::CpuDevice => f.write_str("arrays stay in host memory"),
            Self::CpuDecode(reason) => write!(f, "decoded on the CPU: {reason}"),
            Self::CpuDecompress(codec) => write!(f, "decompressed on the CPU: {codec}"),
            Self::CuFileRefused(reason) => write!(f, "cuFile refused: {reason}"),
        }
    }
}

/// Where the bytes of a range go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Destination {
    /// Into the device slab.
    Slab,
    /// Into host memory, because arrow-rs decodes them on the way to a device, for the reason given.
    CpuDecode(String),
    /// Into host memory, because the CPU decompresses them with the codec named; from there also into the slab, where
    /// kernels read the page headers.
    CpuDecompress(String),
    /// Into host memory, because the arrays stay there.
    Host,
}

/// Chooses the route of a range of `bytes` bytes. The only place that does.
pub(super) fn choose(
    bytes: u64,
    destination: &Destination,
    options: &IoOptions,
    context: &Context<'_>,
) -> (Route, RouteReason) {
    let reason = match destination {
        Destination::Host => RouteReason::CpuDevice,
        Destination::CpuDecode(reason) => RouteReason::CpuDecode(reason.clone()),
        Destination::CpuDecompress(codec) => RouteReason::CpuDecompress(codec.clone()),
        Destination::Slab if !context.local => RouteReason::RemoteSource,
        Destination::Slab if options.compat_mode == CompatMode::On => RouteReason::CompatOn,
        Destination::Slab if bytes < options.gds_threshold => RouteReason::BelowThreshold,
        Destination::Slab => return (Route::Direct, RouteReason::Eligible),
    };
    (Route::Host, reason)
}
