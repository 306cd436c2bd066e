//! Small files of a log, read whole.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use crate::disk::Disk;
use crate::error::{StoreError, io_error};
use crate::manifest::{MANIFEST_NAME, Manifest};

/// How many times to read a manifest that changes while it is read.
const READ_TRIES: u32 = 10;

/// The log's manifest; `None` without one.
///
/// # Errors
///
/// If it cannot be read or understood.
pub(crate) fn read_manifest(disk: &dyn Disk) -> Result<Option<Manifest>, StoreError> {
    if !disk.exists(MANIFEST_NAME) {
        return Ok(None);
    }
    let named = disk.display(MANIFEST_NAME);
    let mut before = None;
    let mut tries = 0..READ_TRIES;
    loop {
        let again = tries.next().is_some();
        let content = read_all(disk, MANIFEST_NAME).map_err(io_error(named.clone(), "read"))?;
        match Manifest::from_json(&content) {
            Ok(parsed) => return Ok(Some(parsed)),
            // On a full disk a recorder writes two files in turn. If the one opened is two versions
            // old, it is being written now; a damaged one would not change.
            Err(_) if before.as_ref() != Some(&content) && again => {
                before = Some(content);
            }
            Err(problem) => {
                let problem = match content.is_empty() {
                    true => String::from("it is empty"),
                    false => problem,
                };
                return Err(StoreError::Manifest {
                    file: named,
                    problem,
                });
            }
        }
    }
}

/// The whole content of a small file.
pub(crate) fn read_all(disk: &dyn Disk, name: &str) -> std::io::Result<Vec<u8>> {
    let file = disk.open(name, false)?;
    let len = usize::try_from(file.size()?).map_err(std::io::Error::other)?;
    let mut content = vec![0; len];
    let read = file.read_at(&mut content, 0)?;
    content.truncate(read);
    Ok(content)
}
