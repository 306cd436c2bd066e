//! The object tier: parts move to another place and back, each as a whole.
//!
//! New files are written under names that `archive.json` lists for deletion, read back and
//! compared; then one replacement of it makes them the part's files, and lists the old ones for
//! deletion. So a part's files are in exactly one place at any moment, and leftovers of an
//! interruption are deleted with the next change.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use strata_store::{Archive, Damage, Disk, Part, PartFile, is_file_name, tier_of};

use crate::compact::NEVER;
use crate::disk::changes::{Away, clean_up, delete_gone, lock, replace};
use crate::error::ArchiveError;
use crate::files::{Input, Sums};
use crate::part::{final_name, name_of};

const BUFFER_BYTES: usize = 1 << 20;

/// Where to store parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the log's directory.
    Log,
    /// Below a URL.
    Elsewhere(String),
}

impl Place {
    /// Below a URL: `s3://bucket/prefix` or `file:///directory`.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn elsewhere(url: &str) -> Result<Self, String> {
        let prefix = url.trim_end_matches('/');
        let has_prefix = prefix.split_once("://").is_some_and(|(scheme, rest)| {
            (scheme == "s3" && rest.contains('/')) || (scheme == "file" && rest.len() > 1)
        });
        if has_prefix && is_file_name(&format!("{prefix}/x")) {
            return Ok(Self::Elsewhere(prefix.to_owned()));
        }
        Err(format!(
            "'{url}': write s3://BUCKET/PREFIX or file:///DIRECTORY, only with letters, digits and \
             -_./=, and with another prefix for each log"
        ))
    }

    fn name(&self, part: &Part, file: &PartFile) -> String {
        let name = final_name(part, file.kind, file.is_encrypted());
        match self {
            Self::Log => name,
            Self::Elsewhere(prefix) => format!("{prefix}/{name}"),
        }
    }
}

/// The result of a move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Parts.
    pub parts: u64,
    /// Packets in them.
    pub packets: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Parts left where they are because they are damaged.
    pub damage: Vec<Damage>,
    /// Whether old files are still there because somebody reads the log or a tier is away: the next
    /// change deletes them.
    pub waits_for_readers: bool,
    /// The tiers that are away.
    pub away: Vec<Away>,
    /// Whether it was told to stop before everything was moved.
    pub interrupted: bool,
}

/// Moves the parts whose packets all arrived by `until_ns` and that are not there yet. `progress`
/// is called after each part.
///
/// # Errors
///
/// If another process compacts or prunes this log, or a file cannot be read or written. Parts
/// already moved stay moved.
pub fn relocate(
    disk: &Arc<dyn Disk>,
    to: &Place,
    until_ns: u64,
    progress: impl FnMut(&Moved),
) -> Result<Moved, ArchiveError> {
    relocate_until(disk, to, until_ns, &NEVER, progress)
}

/// As [`relocate`], but ends soon after `stop` is set: the part that it copies stays where it was.
///
/// # Errors
///
/// As [`relocate`].
pub fn relocate_until(
    disk: &Arc<dyn Disk>,
    to: &Place,
    until_ns: u64,
    stop: &AtomicBool,
    mut progress: impl FnMut(&Moved),
) -> Result<Moved, ArchiveError> {
    let disk = disk.as_ref();
    let _lock = lock(disk)?;
    let (mut archive, _) = clean_up(disk)?;
    // Somebody may still be reading these.
    let waiting: HashSet<String> = archive.deleted.iter().cloned().collect();
    let mut moved = Moved::default();
    let mut is_ready = false;
    for at in 0..archive.parts.len() {
        let part = archive.parts[at].clone();
        let names: Vec<String> = part.files.iter().map(|file| to.name(&part, file)).collect();
        let there = part
            .files
            .iter()
            .zip(&names)
            .all(|(file, name)| file.name == *name);
        if part.ts_max_ns > until_ns || there {
            continue;
        }
        if names.iter().any(|name| waiting.contains(name)) {
            moved.waits_for_readers = true;
            continue;
        }
        if stop.load(Ordering::Relaxed) {
            moved.interrupted = true;
            break;
        }
        if !is_ready {
            make_ready(disk, &archive, to)?;
            is_ready = true;
        }
        for name in &names {
            is_free(disk, name)?;
        }
        archive.deleted.extend(names.iter().cloned());
        replace(disk, &mut archive)?;
        match copy_all(disk, &part, &names, stop) {
            Ok(None) => {}
            Ok(Some(damage)) => {
                moved.damage.push(damage);
                continue;
            }
            Err(ArchiveError::Interrupted) => {
                moved.interrupted = true;
                break;
            }
            Err(error) => return Err(error),
        }
        take_over(&mut archive, at, names);
        replace(disk, &mut archive)?;
        moved.parts += 1;
        moved.packets += part.packets;
        moved.bytes += part.bytes();
        progress(&moved);
    }
    let left = delete_gone(disk, &mut archive)?;
    moved.waits_for_readers |= !left.is_none();
    moved.away = left.away;
    Ok(moved)
}

/// Makes the tier, unless files of this log are already there or wait there to be deleted. An error if such a tier is
/// away: the disk would hide files written in its place as soon as it is mounted again.
fn make_ready(disk: &dyn Disk, archive: &Archive, to: &Place) -> Result<(), ArchiveError> {
    let Place::Elsewhere(tier) = to else {
        return Ok(());
    };
    let files = archive.parts.iter().flat_map(|part| &part.files);
    let mut names = files.map(|file| &file.name).chain(&archive.deleted);
    let is_new = !names.any(|name| tier_of(name) == Some(tier));
    let reached = disk.reach(tier, is_new);
    reached.map_err(ArchiveError::io(tier.clone(), "move files there"))
}

/// An error if there is already a file of this name, put there by somebody else: it must not be
/// listed for deletion.
fn is_free(disk: &dyn Disk, name: &str) -> Result<(), ArchiveError> {
    let problem = match disk.open(name, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => error,
        Ok(_) => io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is a file of this name already: give each log its own prefix",
        ),
    };
    Err(ArchiveError::io(disk.display(name), "create")(problem))
}

/// Makes the files of these names the part's, and lists its old ones for deletion.
fn take_over(archive: &mut Archive, at: usize, names: Vec<String>) {
    archive.deleted.retain(|name| !names.contains(name));
    for (file, name) in archive.parts[at].files.iter_mut().zip(names) {
        let old = std::mem::replace(&mut file.name, name);
        archive.deleted.push(old);
    }
}

/// Copies the files of a part; returns the damage found in them, if any.
fn copy_all(
    disk: &dyn Disk,
    part: &Part,
    names: &[String],
    stop: &AtomicBool,
) -> Result<Option<Damage>, ArchiveError> {
    for (file, to) in part.files.iter().zip(names) {
        let from = name_of(disk, part, file);
        let is_right = |sums: &Sums| (sums.bytes, sums.crc) == (file.bytes, file.crc);
        if !is_right(&copy(disk, &from, to, stop)?) {
            return Ok(Some(Damage {
                file: disk.display(&from),
                offset: 0,
                problem:
                    "its checksum does not match, so its part stays in place; `strata verify` \
                          shows where the file is damaged"
                        .into(),
                missing: None,
            }));
        }
        let written = Input::open(disk, to)?.sums();
        let written = written.map_err(ArchiveError::io(disk.display(to), "read back"))?;
        if !is_right(&written) {
            let problem = io::Error::other("the data read back differs from the data written");
            return Err(ArchiveError::io(disk.display(to), "read back")(problem));
        }
    }
    Ok(None)
}

/// Copies a file; returns the checksums of what was read.
fn copy(disk: &dyn Disk, from: &str, to: &str, stop: &AtomicBool) -> Result<Sums, ArchiveError> {
    let input = Input::open(disk, from)?;
    let created = disk.create(to);
    let mut output = created.map_err(ArchiveError::io(disk.display(to), "create"))?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut sums = Sums::default();
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(ArchiveError::Interrupted);
        }
        let read = input.read_at(&mut buffer, sums.bytes);
        let read = read.map_err(ArchiveError::io(disk.display(from), "read"))?;
        if read == 0 {
            break;
        }
        let written = output.write_at(&buffer[..read], sums.bytes);
        written.map_err(ArchiveError::io(disk.display(to), "write"))?;
        sums.add(&buffer[..read]);
    }
    let synced = output.sync();
    synced.map_err(ArchiveError::io(disk.display(to), "write"))?;
    Ok(sums)
}
