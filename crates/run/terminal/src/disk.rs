//! The disk of a log, with what is stored elsewhere.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use strata_objects::ObjectDisk;
use strata_store::{Disk, Log, RealDisk};

/// The disk of the log in a directory, including what is stored elsewhere.
pub fn disk(dir: &Path) -> Result<Arc<dyn Disk>> {
    ensure!(
        !dir.is_file(),
        "{0}: a file, and no log: `strata record -r {0} -o log/` makes a log of a capture",
        dir.display()
    );
    // Its error says what is missing where there is no log.
    drop(Log::open(dir)?);
    Ok(Arc::new(ObjectDisk::new(Arc::new(RealDisk::at(dir)))))
}
