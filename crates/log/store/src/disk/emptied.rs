//! Directories of hours and classes that no longer hold a file.

use std::fs;
use std::path::{Path, PathBuf};

/// How the names of directories begin that are removed when they are empty. The directories above them stay: that
/// `packets` is there shows that a tier is mounted ([`super::Disk::reach`]).
const PARTITIONS: [&str; 2] = ["hour=", "retention="];

/// Removes the directories of an hour and a class above a file that are empty, but never `root`. Returns the
/// uppermost path that was removed, or that of the file itself: the directory that holds it has changed.
pub(super) fn remove_directories(root: &Path, file: &str) -> PathBuf {
    let mut removed = Path::new(file);
    for dir in removed.ancestors().skip(1).take(PARTITIONS.len()) {
        let name = dir.file_name().and_then(|name| name.to_str());
        let is_partition =
            name.is_some_and(|name| PARTITIONS.iter().any(|start| name.starts_with(start)));
        // One with files in it stays: the system removes no other.
        if !is_partition || fs::remove_dir(root.join(dir)).is_err() {
            break;
        }
        removed = dir;
    }
    root.join(removed)
}

#[cfg(test)]
mod tests {
    use crate::{Disk, RealDisk};

    #[test]
    fn a_directory_goes_with_its_last_file_and_no_other_does() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::at(dir.path());
        let names = ["benign/1", "benign/2", "anomalous/3"]
            .map(|name| format!("packets/hour=2026-01-31T13/retention={name}.parquet"));
        for name in names.iter().map(String::as_str).chain(["blocks/4"]) {
            disk.create(name).unwrap();
        }
        let is_dir = |name: &str| dir.path().join(name).is_dir();
        let hour = "packets/hour=2026-01-31T13";
        disk.remove(&names[0]).unwrap();
        assert!(is_dir(&format!("{hour}/retention=benign")));
        disk.remove(&names[1]).unwrap();
        assert!(!is_dir(&format!("{hour}/retention=benign")) && is_dir(hour));
        // As after a crash between the two.
        std::fs::remove_file(dir.path().join(&names[2])).unwrap();
        disk.remove(&names[2]).unwrap();
        assert!(!is_dir(hour) && is_dir("packets"));
        disk.remove(&names[2]).unwrap();
        disk.remove("blocks/4").unwrap();
        assert!(is_dir("packets") && is_dir("blocks"));
    }
}
