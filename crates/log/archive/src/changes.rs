//! How a log at rest changes: files are staged, listed, renamed and deleted.
//!
//! The commit point is one replacement of `archive.json`; whatever is interrupted before or after
//! it, [`clean_up`] undoes or finishes.

use std::collections::HashSet;

use strata_store::{
    ARCHIVE_NAME, Archive, Disk, Gone, Part, STAGING, index_name, is_remote, read_archive,
};

use crate::error::ArchiveError;
use crate::part::staging_name;

/// Keeps a second compaction away.
pub(crate) fn lock(disk: &dyn Disk) -> Result<Box<dyn std::any::Any + Send>, ArchiveError> {
    let dir = disk.display("");
    let lock = disk.lock_for_compacting();
    let lock = lock.map_err(ArchiveError::io(dir.clone(), "lock"))?;
    lock.ok_or(ArchiveError::Busy { dir })
}

/// Finishes or undoes an interrupted compaction.
pub(crate) fn clean_up(disk: &dyn Disk) -> Result<Archive, ArchiveError> {
    let mut archive = read_archive(disk)?;
    name_files(disk, &archive.parts)?;
    remove_staged(disk, &archive)?;
    delete_gone(disk, &mut archive)?;
    Ok(archive)
}

/// Moves listed files that are still in `staging/` to their final names.
pub(crate) fn name_files(disk: &dyn Disk, parts: &[Part]) -> Result<(), ArchiveError> {
    let staged = staged(disk)?;
    for part in parts {
        for file in &part.files {
            let from = staging_name(part.id, file.kind, file.is_encrypted());
            if staged.contains(&from) {
                let renamed = disk.rename(&from, &file.name);
                renamed.map_err(ArchiveError::io(disk.display(&file.name), "name"))?;
            }
        }
    }
    Ok(())
}

fn staged(disk: &dyn Disk) -> Result<HashSet<String>, ArchiveError> {
    let names = disk.list(STAGING);
    let names = names.map_err(ArchiveError::io(disk.display(STAGING), "list"))?;
    Ok(names
        .iter()
        .map(|name| format!("{STAGING}/{name}"))
        .collect())
}

/// Deletes files of parts that are not listed.
pub(crate) fn remove_staged(disk: &dyn Disk, archive: &Archive) -> Result<(), ArchiveError> {
    let listed: HashSet<String> = archive
        .parts
        .iter()
        .flat_map(|part| {
            part.files
                .iter()
                .map(|file| staging_name(part.id, file.kind, file.is_encrypted()))
        })
        .collect();
    for name in staged(disk)? {
        if !listed.contains(&name) {
            let removed = disk.remove(&name);
            removed.map_err(ArchiveError::io(disk.display(&name), "delete"))?;
        }
    }
    Ok(())
}

/// Deletes files that are no longer part of the log; false if some are left because somebody reads
/// the log or a store does not answer: the next compaction then deletes them.
pub(crate) fn delete_gone(disk: &dyn Disk, archive: &mut Archive) -> Result<bool, ArchiveError> {
    let names = disk.list("blocks");
    let names = names.map_err(ArchiveError::io(disk.display("blocks"), "list"))?;
    let gone: HashSet<&str> = archive.gone.iter().map(|gone| gone.name.as_str()).collect();
    let indexes: HashSet<String> = gone.iter().map(|name| index_name(name)).collect();
    let blocks: Vec<String> = names
        .iter()
        .map(|name| format!("blocks/{name}"))
        .filter(|name| gone.contains(name.as_str()) || indexes.contains(name))
        .collect();
    if blocks.is_empty() && archive.deleted.is_empty() {
        return Ok(true);
    }
    let lock = disk.lock_for_deleting();
    let lock = lock.map_err(ArchiveError::io(disk.display(""), "lock"))?;
    if lock.is_none() {
        return Ok(false);
    }
    let mut left = Vec::new();
    let mut elsewhere = false;
    for name in blocks.iter().chain(&archive.deleted) {
        if !is_remote(name) {
            let removed = disk.remove(name);
            removed.map_err(ArchiveError::io(disk.display(name), "delete"))?;
        } else if left.is_empty() && disk.remove(name).is_ok() {
            elsewhere = true;
        } else {
            // A store that does not answer is not asked again for each file.
            left.push(name.clone());
        }
    }
    // Stay listed until the next change: deleting a missing file does nothing, but asks a store.
    archive.deleted = left;
    if elsewhere {
        replace(disk, archive)?;
    }
    Ok(archive.deleted.is_empty())
}

/// Replaces the archive's manifest.
pub(crate) fn replace(disk: &dyn Disk, archive: &mut Archive) -> Result<(), ArchiveError> {
    archive.generation = archive.generation.wrapping_add(1);
    let replaced = disk.replace(ARCHIVE_NAME, &archive.to_json());
    replaced.map_err(ArchiveError::io(disk.display(ARCHIVE_NAME), "write"))
}

/// Lists new parts in place of the block files they replace.
pub(crate) fn commit(
    disk: &dyn Disk,
    archive: &mut Archive,
    parts: &[Part],
    gone: Vec<Gone>,
) -> Result<(), ArchiveError> {
    let next = parts.iter().map(|part| part.id.saturating_add(1)).max();
    archive.next_part = next.unwrap_or(archive.next_part);
    archive.parts.extend(parts.iter().cloned());
    archive.gone.extend(gone);
    replace(disk, archive)?;
    name_files(disk, parts)
}
