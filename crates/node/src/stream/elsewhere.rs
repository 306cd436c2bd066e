//! Where other disks of a directory are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use strata_store::{Disk, RealDisk};

use super::locks::Locks;

/// How stripes are reached.
#[derive(Clone)]
pub(super) enum Elsewhere {
    /// Their paths are those of directories.
    Real,
    /// Their paths are indices of these, `0`, `1`, and so on.
    Simulated(Arc<Vec<(Arc<dyn Disk>, Locks)>>),
}

impl Elsewhere {
    pub(super) fn at(&self, path: &str) -> (Arc<dyn Disk>, Locks) {
        match self {
            Self::Real => (
                Arc::new(RealDisk::at(Path::new(path))),
                Locks::Files(PathBuf::from(path)),
            ),
            Self::Simulated(disks) => {
                let index: usize = path.parse().expect("a simulated stripe");
                disks[index].clone()
            }
        }
    }
}
