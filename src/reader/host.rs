//! A batch on the CPU device: arrow-rs decodes its row groups side by side.

use rayon::prelude::*;

use super::Scan;
use crate::batch::{DeviceArray, DeviceBatch};
use crate::cpu;
use crate::error::Result;
use crate::io::fetch::Fetcher;
use crate::plan::BatchPlan;

/// Reads and decodes a batch. Row groups are not joined: that would copy every value.
pub(super) fn read(scan: &Scan, plan: &BatchPlan, fetcher: &mut Fetcher) -> Result<Vec<DeviceBatch>> {
    let bytes = fetcher.fetch(&plan.ranges, None)?;
    let decoded = plan
        .row_groups
        .par_iter()
        .map(|it| {
            if scan.check_crc {
                cpu::check_crc(&scan.footer, &scan.projection, it.index, &bytes)?;
            }
            cpu::decode(&scan.footer, &scan.projection, it.index, it.selection().as_ref(), &bytes)
        })
        .collect::<Result<Vec<_>>>()?;
    decoded
        .into_iter()
        .flatten()
        .map(|batch| {
            let columns = batch.columns().iter().map(|column| DeviceArray::from_host(&column.to_data()));
            let columns = columns.collect::<Result<_>>()?;
            Ok(DeviceBatch { schema: scan.schema.clone(), rows: batch.num_rows(), columns, stream: None })
        })
        .collect()
}
