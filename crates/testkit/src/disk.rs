//! Small disks of a test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system in memory of a fixed size, which is gone with the value.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    /// Mounts one at `disk` below `dir`; `size` as `mount` takes it: `24M`.
    ///
    /// # Panics
    ///
    /// If it cannot be mounted: see [`may_use_kernel`](crate::may_use_kernel).
    #[must_use]
    pub fn new(dir: &Path, size: &str) -> Self {
        let path = dir.join("disk");
        fs::create_dir(&path).expect("the test's directory is there");
        let option = format!("size={size}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &option, "strata-test"])
            .arg(&path)
            .status();
        assert!(mount.is_ok_and(|status| status.success()), "mount {size}");
        Self(path)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
