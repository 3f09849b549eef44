//! Ranges: sorted, merged, widened to 4 KiB edges, placed, split.

use super::{Context, RangePlan};
use super::{Route, RouteReason};
use crate::options::IoOptions;

pub(super) fn raw(file_bytes: u64, options: &IoOptions, context: &Context<'_>) -> RangePlan {
    let _ = (options, context);
    RangePlan {
        bytes: 0..file_bytes,
        read: 0..file_bytes,
        wasted: 0,
        route: Route::Host,
        reason: RouteReason::CpuDevice,
        slab_offset: None,
        tasks: Vec::new(),
    }
}
