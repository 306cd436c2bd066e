//! Small disks of a test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{may_use_kernel, runs_if};

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

/// Whether this machine lets a test have block devices; says so if it does not.
///
/// # Panics
///
/// If it does not, where all tests have to run (`CI`).
#[must_use]
pub fn may_use_loop_devices() -> bool {
    may_use_kernel("a loop device")
        && runs_if(
            Path::new("/dev/loop-control").exists(),
            "a loop device needs /dev/loop-control (modprobe loop)",
        )
}

/// A file as a block device, until the value is dropped.
#[derive(Debug)]
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Attaches a file to a free one; `options` as `losetup` takes them.
    ///
    /// # Panics
    /// If there is no device: see [`may_use_loop_devices`].
    #[must_use]
    pub fn attach(file: &Path, options: &[&str]) -> Self {
        let mut losetup = Command::new("losetup");
        let losetup = losetup.args(options).args(["--show", "-f"]).arg(file);
        let output = losetup.output().expect("losetup (util-linux)");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{losetup:?}: {said}");
        let path = String::from_utf8_lossy(&output.stdout);
        Self(PathBuf::from(path.trim()))
    }

    /// The device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}
