//! Recordings that keep the same on a full disk as on an empty one.

use std::fs;
use std::path::{Path, PathBuf};

/// Part of a configuration: how full the disk of this machine is changes nothing.
pub(crate) const NEVER_FULL: &str = "[elastic]\ndisk_space_percent = 1000\n";

/// A configuration file in a directory, with [`NEVER_FULL`] only.
pub(crate) fn never_full(dir: &Path) -> PathBuf {
    let path = dir.join("never-full.toml");
    fs::write(&path, NEVER_FULL).unwrap();
    path
}
