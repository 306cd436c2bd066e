//! How a log at rest changes: files are staged, listed, renamed and deleted.
//!
//! The commit point is one replacement of `archive.json`; whatever is interrupted before or after
//! it, [`clean_up`] undoes or finishes.

use std::collections::HashSet;
use std::fmt;
use std::io;

use strata_store::{
    ARCHIVE_NAME, Archive, COMPACTION_NAME, Disk, Gone, Part, STAGING, index_name, is_remote,
    read_archive, tier_of,
};
use strata_wire::count_of;

use crate::error::ArchiveError;
use crate::part::staging_name;

/// A tier that does not respond, or whose disk is not mounted: files that are no longer part of the log are still
/// there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// Its URL.
    pub tier: String,
    /// How many such files are listed.
    pub files: u64,
    /// What is wrong.
    pub problem: String,
}

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tier,
            files,
            problem,
        } = self;
        let files = count_of(*files, "file");
        write!(
            f,
            "{tier}: {files} no longer in the log could not be deleted: {problem}"
        )
    }
}

/// Files that are no longer part of the log, and still there until the next change.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Whether somebody reads the log.
    is_read: bool,
    pub(crate) away: Vec<Away>,
}

impl Left {
    pub(crate) fn is_none(&self) -> bool {
        !self.is_read && self.away.is_empty()
    }
}

/// Keeps a second compaction away.
pub(crate) fn lock(disk: &dyn Disk) -> Result<Box<dyn std::any::Any + Send>, ArchiveError> {
    let file = disk.display(COMPACTION_NAME);
    let lock = disk
        .lock_for_compacting()
        .map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => ArchiveError::NotAllowed { file, source },
            _ => ArchiveError::io(file, "lock")(source),
        })?;
    let dir = disk.display("");
    lock.ok_or(ArchiveError::Busy { dir })
}

/// Finishes or undoes an interrupted compaction. Also returns what it could not delete.
pub(crate) fn clean_up(disk: &dyn Disk) -> Result<(Archive, Left), ArchiveError> {
    let mut archive = read_archive(disk)?;
    name_files(disk, &archive.parts)?;
    remove_staged(disk, &archive)?;
    let left = delete_gone(disk, &mut archive)?;
    Ok((archive, left))
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

/// Deletes files that are no longer part of the log; returns what is left because somebody reads the log or a tier
/// is away: the next change then deletes it.
pub(crate) fn delete_gone(disk: &dyn Disk, archive: &mut Archive) -> Result<Left, ArchiveError> {
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
        return Ok(Left::default());
    }
    let lock = disk.lock_for_deleting();
    let lock = lock.map_err(ArchiveError::io(disk.display(""), "lock"))?;
    if lock.is_none() {
        return Ok(Left {
            is_read: true,
            away: Vec::new(),
        });
    }
    let mut left = Vec::new();
    let mut away: Vec<Away> = Vec::new();
    let mut elsewhere = false;
    for name in blocks.iter().chain(&archive.deleted) {
        if !is_remote(name) {
            let removed = disk.remove(name);
            removed.map_err(ArchiveError::io(disk.display(name), "delete"))?;
            continue;
        }
        let tier = tier_of(name).unwrap_or(name);
        // A store that does not answer is not asked again for each file.
        if let Some(known) = away.iter_mut().find(|away| away.tier == tier) {
            known.files = known.files.saturating_add(1);
            left.push(name.clone());
        } else if let Err(error) = disk.remove(name) {
            away.push(Away {
                tier: tier.to_owned(),
                files: 1,
                problem: error.to_string(),
            });
            left.push(name.clone());
        } else {
            elsewhere = true;
        }
    }
    // Stay listed until the next change: deleting a missing file does nothing, but asks a store.
    archive.deleted = left;
    if elsewhere {
        replace(disk, archive)?;
    }
    Ok(Left {
        is_read: false,
        away,
    })
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
