//! The disk of a log, with what is stored elsewhere.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use strata_objects::ObjectDisk;
use strata_store::{Disk, Log, RealDisk, StoreError};

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
    Log::open(dir).map_err(|error| match &error {
        StoreError::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => anyhow!(
            "{error}: only the owner of a log and the members of its group can read it (`ls -ld {}` shows both; \
             `strata record --group GROUP` gives new files to another group)",
            dir.display()
        ),
        _ => error.into(),
    })
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
