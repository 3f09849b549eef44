//! The fake libcufile of this workspace, built for tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The fake library. `cargo test` builds no cdylib of another package, so it is built here, into a folder of its own.
pub fn cufile() -> &'static Path {
    static FAKE: OnceLock<PathBuf> = OnceLock::new();
    FAKE.get_or_init(|| {
        if let Some(path) = std::env::var_os("PARQUET_GPU_FAKE_CUFILE") {
            return path.into();
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let target = root.join("target/fake-cufile");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "fake-cufile", "--target-dir"])
            .arg(&target)
            .current_dir(root)
            // Flags of the run around this one, such as a sanitizer's, are not for the fake.
            .env_remove("RUSTFLAGS")
            .status()
            .unwrap();
        assert!(status.success());
        target.join("debug/libfake_cufile.so")
    })
}
