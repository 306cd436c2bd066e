//! The disk of a log, with what is stored elsewhere.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use strata_objects::ObjectDisk;
use strata_store::{Disk, Log, RealDisk};

/// Opens the log in a directory.
///
/// # Errors
///
/// If there is no log: a capture is not one.
pub fn open_log(dir: &Path) -> Result<Log> {
    ensure!(
        !dir.is_file(),
        "{0}: this is a file, not a log: `strata record -r {0} -o log/` makes a log from a capture",
        dir.display()
    );
    Ok(Log::open(dir)?)
}

/// The disk of the log in a directory, including what is stored elsewhere.
///
/// # Errors
///
/// If there is no log.
pub fn disk(dir: &Path) -> Result<Arc<dyn Disk>> {
    drop(open_log(dir)?);
    Ok(Arc::new(ObjectDisk::new(Arc::new(RealDisk::at(dir)))))
}
