//! The command `pqgpu`.
fn main() {}
