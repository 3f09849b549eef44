//! Where foreign libraries may be.

use std::path::{Path, PathBuf};

/// Files that may be the library, best first: the loader's own search by each name, CUDA's folders, and Python wheels,
/// which keep it in one of `wheels` below their `site-packages`. Only files that are there, the bare names aside.
pub fn candidates(names: &[&str], wheels: &[&str]) -> Vec<PathBuf> {
    let mut folders = cuda_folders();
    folders.push("/usr/local/cuda/targets/x86_64-linux/lib".into());
    folders.extend(site_packages().iter().flat_map(|it| wheels.iter().map(move |wheel| it.join(wheel))));
    let in_folders = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    names.iter().map(PathBuf::from).chain(in_folders.filter(|it| it.exists())).collect()
}

/// The library folders of CUDA toolkits.
pub(super) fn cuda_folders() -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let mut folders: Vec<PathBuf> = named.flat_map(|it| [it.join("lib64"), it.join("lib")]).collect();
    folders.push("/usr/local/cuda/lib64".into());
    folders
}

/// Folders that hold Python packages: of the active environment, the user's and the system's.
pub(super) fn site_packages() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    if let Some(home) = std::env::var_os("HOME") {
        roots.push(Path::new(&home).join(".local"));
    }
    roots.extend(["/usr/local".into(), "/usr".into()]);
    let mut folders = Vec::new();
    for root in roots {
        // lib/python3.12/site-packages, or dist-packages on Debian
        let Ok(entries) = std::fs::read_dir(root.join("lib")) else { continue };
        let mut pythons: Vec<PathBuf> = entries
            .flatten()
            .filter(|it| it.file_name().to_string_lossy().starts_with("python3"))
            .map(|it| it.path())
            .collect();
        pythons.sort();
        folders.extend(pythons.iter().rev().flat_map(|it| [it.join("site-packages"), it.join("dist-packages")]));
    }
    folders
}
