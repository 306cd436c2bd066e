//! Encryption at rest: to whom a log is encrypted, and how to change that.

use std::sync::Arc;

use strata_store::{ARCHIVE_NAME, Archive, Disk};

use crate::disk::changes::{clean_up, lock, replace};
use crate::disk::unwrap;
use crate::error::ArchiveError;
use crate::keys::{Identities, Recipients};

/// Sets the recipients for everything compacted from now on; with none, nothing is encrypted. Data
/// already compacted stay as they are.
///
/// # Errors
///
/// If another process compacts or prunes this log, or its manifest cannot be changed.
pub fn encrypt_to(disk: &Arc<dyn Disk>, recipients: &Recipients) -> Result<(), ArchiveError> {
    let _lock = lock(disk.as_ref())?;
    let (mut archive, _) = clean_up(disk.as_ref())?;
    if archive.encrypt_to != recipients.texts() {
        archive.encrypt_to = recipients.texts();
        replace(disk.as_ref(), &mut archive)?;
    }
    Ok(())
}

/// To whom compacted data are encrypted.
pub(crate) fn recipients(disk: &dyn Disk, archive: &Archive) -> Result<Recipients, ArchiveError> {
    let keys = archive.encrypt_to.iter().map(String::as_str);
    Recipients::parse(keys).map_err(|source| ArchiveError::Key {
        file: disk.display(ARCHIVE_NAME),
        source,
    })
}

/// Encrypts the keys of all parts to other recipients, who are also set for future compaction. The
/// files of the parts stay as they are. Either all keys change, in one replacement of
/// `archive.json`, or none. Returns the number of parts.
///
/// # Errors
///
/// As [`encrypt_to`]; and if the secret keys cannot open every encrypted part.
pub fn rotate(
    disk: &Arc<dyn Disk>,
    old: &Identities,
    recipients: &Recipients,
) -> Result<u64, ArchiveError> {
    let _lock = lock(disk.as_ref())?;
    let (mut archive, _) = clean_up(disk.as_ref())?;
    let mut rotated = 0_u64;
    for part in &mut archive.parts {
        let Some(wrapped) = &part.key else {
            continue;
        };
        let named = format!("part {} in {}", part.id, disk.display(ARCHIVE_NAME));
        let changed = unwrap(wrapped, Some(old)).and_then(|key| key.wrap(recipients));
        part.key = Some(changed.map_err(ArchiveError::io(named, "change the key"))?);
        rotated = rotated.saturating_add(1);
    }
    archive.encrypt_to = recipients.texts();
    replace(disk.as_ref(), &mut archive)?;
    Ok(rotated)
}
