//! Wires the stages together: a builder that people know from arrow-rs, and an iterator of batches.

/// Builds a [`GpuReader`].
#[derive(Debug)]
pub struct GpuReaderBuilder {}

/// An iterator of [`DeviceBatch`](crate::DeviceBatch)es.
#[derive(Debug)]
pub struct GpuReader {}

/// What a scan did.
#[derive(Debug, Clone, Default)]
pub struct ScanReport {}
