//! The file system of a path, and what cuFile can learn of it.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Check, State};

/// Local file systems whose block device cuFile looks up with udev.
const LOCAL: &[&str] = &["ext4", "xfs"];
/// Network and parallel file systems that NVIDIA lists for GPUDirect Storage.
const REMOTE: &[&str] = &["nfs", "nfs4", "lustre", "beegfs", "gpfs", "wekafs", "vastnfs", "scatefs"];

pub fn checks(path: &Path) -> Vec<Check> {
    let device = match fs::metadata(path) {
        Ok(metadata) => metadata.dev(),
        Err(error) => {
            let found = format!("{}: {error}", path.display());
            return vec![Check::new("file system", State::Missing, found, "nothing can be read from there")];
        }
    };
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let canonical = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let kind = file_system(&mounts, &number, &canonical);
    let mut checks = vec![kind_check(path, kind.as_deref(), &number)];
    if kind.as_deref().is_some_and(|it| LOCAL.contains(&it)) {
        checks.push(udev(&number, Path::new("/run/udev/data")));
    }
    checks
}

/// The type of the mount that holds `path`: the deepest one of its device.
fn file_system(mountinfo: &str, number: &str, path: &Path) -> Option<String> {
    // proc(5): ID, parent, major:minor, root, mount point, options, …, a hyphen, type, source
    let mount = |line: &str| {
        let (mounted, described) = line.split_once(" - ")?;
        let mut words = mounted.split(' ').skip(2);
        let (device, point) = (words.next()?, words.nth(1)?.replace("\\040", " "));
        let kind = described.split(' ').next()?.to_string();
        path.starts_with(&point).then_some((device == number, point.len(), kind))
    };
    mountinfo.lines().filter_map(mount).max_by_key(|(same, depth, _)| (*same, *depth)).map(|it| it.2)
}

fn kind_check(path: &Path, kind: Option<&str>, number: &str) -> Check {
    let found = format!("{}: {} on device {number}", path.display(), kind.unwrap_or("unknown"));
    match kind {
        Some("ext4") => Check::new("file system", State::Ok, found, "direct with nvidia-fs, if mounted data=ordered"),
        Some(kind) if LOCAL.contains(&kind) || REMOTE.contains(&kind) => {
            Check::new("file system", State::Ok, found, "direct with nvidia-fs and the vendor's support")
        }
        _ => Check::new("file system", State::Warn, found, "cuFile reads it through CPU memory, or refuses it")
            .fix("keep the files on ext4 or XFS on NVMe, or on a file system that NVIDIA lists"),
    }
}

fn udev(number: &str, records: &Path) -> Check {
    let path = records.join(format!("b{number}"));
    let name = path.display();
    let record = fs::read_to_string(&path);
    let fix =
        "in a container, bind-mount /run/udev; elsewhere start udev, or `udevadm trigger --subsystem-match=block`";
    let refused = "cuFile refuses the file (5027), and our own threads read it";
    match record {
        Ok(text) if text.lines().any(|line| line == "E:ID_FS_USAGE=filesystem") => {
            Check::new("udev record", State::Ok, name.to_string(), "cuFile can tell the block device")
        }
        Ok(_) => {
            Check::new("udev record", State::Warn, format!("{name} lacks E:ID_FS_USAGE=filesystem"), refused).fix(fix)
        }
        Err(error) => Check::new("udev record", State::Missing, format!("{name}: {error}"), refused).fix(fix),
    }
}

/// Whether this user may write to a path; asks, and writes nothing.
#[cfg(feature = "cuda")]
pub fn writable(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the string ends with a zero and lives through the call.
    unsafe { libc::access(path.as_ptr(), libc::W_OK) == 0 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn deepest_mount_of_the_device() {
        let mounts = "22 1 254:1 / / rw - ext4 /dev/vda rw\n\
                      23 22 0:30 / /data rw shared:1 - tmpfs tmpfs rw\n\
                      24 23 259:3 / /data/nvme\\040one rw - xfs /dev/nvme0n1 rw\n";
        let kind = |number: &str, path: &str| file_system(mounts, number, Path::new(path));
        assert_eq!(kind("254:1", "/home").as_deref(), Some("ext4"));
        assert_eq!(kind("0:30", "/data/x").as_deref(), Some("tmpfs"));
        assert_eq!(kind("259:3", "/data/nvme one/x").as_deref(), Some("xfs"));
        assert_eq!(file_system("", "1:1", Path::new("/")), None);
    }

    #[test]
    fn udev_records() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(udev("8:1", folder.path()).state, State::Missing);
        fs::write(folder.path().join("b8:1"), "S:disk\n").unwrap();
        assert_eq!(udev("8:1", folder.path()).state, State::Warn);
        fs::write(folder.path().join("b8:1"), "S:disk\nE:ID_FS_USAGE=filesystem\n").unwrap();
        assert_eq!(udev("8:1", folder.path()).state, State::Ok);
    }
}
