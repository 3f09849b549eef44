//! Compiled kernels on disk, so that a process starts without compiling.
//!
//! A file holds a magic number, the SHA-256 of the rest, and the compiled module. What does not match is not used: the
//! kernel is compiled again and the file replaced. Nothing here is an error; without a writable folder each process
//! compiles for itself.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sha2::{Digest, Sha256};

/// Names the folder; empty: no cache.
pub const FOLDER_VARIABLE: &str = "PARQUET_GPU_CACHE_DIR";

/// Changes when the layout of a file changes.
const MAGIC: &[u8; 8] = b"PQGPUK01";
const HASH: usize = 32;

/// A folder of compiled modules, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelCache {
    folder: Option<PathBuf>,
}

/// What a compiled module depends on, as a file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// A key over everything that decides the compiler's output. Each part is hashed with its length, so that no two
    /// lists of parts run together.
    pub fn new<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().iter().map(|it| format!("{it:02x}")).collect())
    }
}

impl KernelCache {
    /// The cache of this user: `$PARQUET_GPU_CACHE_DIR`, else `parquet-gpu` in `$XDG_CACHE_HOME` or `~/.cache`, else none.
    pub fn from_environment() -> Self {
        Self { folder: folder_from(|name| std::env::var_os(name)) }
    }

    /// A cache in `folder`, which is made, for this user alone, by the first write.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// The folder.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        self.folder.as_ref().map(|it| it.join(&key.0))
    }

    /// The module under `key`, when it is there, whole, and written by this user (or root): machine code that anybody
    /// else could have written is not run.
    pub fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.path(key)?;
        let owner = fs::metadata(&path).ok()?.uid();
        // SAFETY: geteuid has no preconditions.
        if owner != unsafe { libc::geteuid() } && owner != 0 {
            return None;
        }
        let file = fs::read(path).ok()?;
        let rest = file.strip_prefix(MAGIC)?;
        let (hash, module) = rest.split_at_checked(HASH)?;
        (Sha256::digest(module).as_slice() == hash).then(|| module.to_vec())
    }

    /// Stores a module. Readers see the old file or the whole new one. Returns whether it was stored.
    pub fn put(&self, key: &Key, module: &[u8]) -> bool {
        self.path(key).is_some_and(|path| write(&path, module).is_ok())
    }
}

fn write(path: &Path, module: &[u8]) -> std::io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Unique in this process by the count and between processes by the id; a leftover of an older process goes first.
    let temporary = folder.join(format!(".{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let _ = fs::remove_file(&temporary);
    let result = (|| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(module))?;
        file.write_all(module)?;
        drop(file);
        fs::rename(&temporary, path)
    })();
    if result.is_err() {
        // Best effort: the folder is a cache.
        let _ = fs::remove_file(&temporary);
    }
    result
}

fn folder_from(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(folder) = variable(FOLDER_VARIABLE) {
        return Some(PathBuf::from(folder)).filter(|it| !it.as_os_str().is_empty());
    }
    // The XDG base directory specification: a relative path is to be ignored.
    let absolute = |it: OsString| Some(PathBuf::from(it)).filter(|it| it.is_absolute());
    let cache = variable("XDG_CACHE_HOME")
        .and_then(absolute)
        .or_else(|| variable("HOME").and_then(absolute).map(|it| it.join(".cache")))?;
    Some(cache.join("parquet-gpu"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key(text: &str) -> Key {
        Key::new([text.as_bytes()])
    }

    #[test]
    fn what_was_stored_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let cache = KernelCache::at(folder.path().join("a/b"));
        assert_eq!(cache.get(&key("x")), None);
        assert!(cache.put(&key("x"), b"module"));
        assert!(cache.put(&key("y"), b""));
        assert_eq!(cache.get(&key("x")).unwrap(), b"module");
        assert_eq!(cache.get(&key("y")).unwrap(), b"");
        assert!(cache.put(&key("x"), b"newer"));
        assert_eq!(cache.get(&key("x")).unwrap(), b"newer");

        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder.path().join("a")), 0o700);
        assert_eq!(mode(cache.folder().unwrap()), 0o700);
        let files: Vec<_> = fs::read_dir(cache.folder().unwrap()).unwrap().map(|it| it.unwrap().path()).collect();
        assert_eq!(files.len(), 2, "temporary files stay behind: {files:?}");
    }

    #[test]
    fn a_torn_or_changed_file_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let cache = KernelCache::at(folder.path());
        assert!(cache.put(&key("x"), b"a compiled module"));
        let path = cache.path(&key("x")).unwrap();
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(cache.get(&key("x")), None, "{len} bytes of it");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert_eq!(cache.get(&key("x")), None, "byte {at} changed");
        }
        assert!(cache.put(&key("x"), b"a compiled module"));
        assert_eq!(cache.get(&key("x")).unwrap(), b"a compiled module");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = KernelCache::at(file.path().join("below a file"));
        assert!(!cache.put(&key("x"), b"module"));
        assert_eq!(cache.get(&key("x")), None);
        assert!(!KernelCache::default().put(&key("x"), b"module"));
    }

    #[test]
    fn keys_tell_lists_of_parts_apart() {
        let of = |parts: &[&str]| Key::new(parts.iter().map(|it| it.as_bytes()));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["ab"]), of(&["ab", ""]));
    }

    #[test]
    fn the_folder_follows_the_environment() {
        let folder = |pairs: &[(&str, &str)]| {
            let find = |name: &str| pairs.iter().find(|it| it.0 == name).map(|it| it.1.into());
            folder_from(find).map(|it| it.to_str().unwrap().to_string())
        };
        assert_eq!(folder(&[]), None);
        assert_eq!(folder(&[("HOME", "/h")]).as_deref(), Some("/h/.cache/parquet-gpu"));
        assert_eq!(folder(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]).as_deref(), Some("/x/parquet-gpu"));
        assert_eq!(folder(&[("HOME", "/h"), ("XDG_CACHE_HOME", "x")]).as_deref(), Some("/h/.cache/parquet-gpu"));
        assert_eq!(folder(&[("HOME", "/h"), (FOLDER_VARIABLE, "/c")]).as_deref(), Some("/c"));
        assert_eq!(folder(&[("HOME", "/h"), (FOLDER_VARIABLE, "")]), None);
    }
}
