//! What a recording reserves in advance, so that its log can be written when others have taken the
//! last descriptor or the last block of the file system.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{AtFlags, FallocateFlags, RenameFlags, fallocate, renameat_with, unlinkat};
use rustix::io::Errno;
use strata_sys::pause;

use super::writing;
use crate::error::is_full;

/// Suffix of a spare file's name, after the name of the file it is for.
const SPARE: &str = ".spare";
/// How long to retry opening a file without free descriptors, and how often.
const RETRY_FOR: Duration = Duration::from_secs(10);
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(100);

/// Whether the process or the system has no file descriptors left.
pub(super) fn is_out_of_descriptors(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    code == Some(libc::EMFILE) || code == Some(libc::ENFILE)
}

/// Whether both are the same file.
pub(super) fn is_same(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Descriptors and a spare file. Clones of a disk share them.
#[derive(Debug, Default)]
pub(super) struct Held {
    descriptors: Mutex<Descriptors>,
    spare: Mutex<Option<Spare>>,
}

#[derive(Debug, Default)]
struct Descriptors {
    wanted: usize,
    files: Vec<File>,
}

/// A file with space and descriptors for the next content of another one, which it replaces when no
/// new file can be created.
#[derive(Debug)]
struct Spare {
    name: String,
    /// The directory of both.
    dir: File,
    spare: Reserved,
    /// The file that the spare one replaces. It then becomes the next spare, on a disk that is full: so it needs its
    /// space before.
    current: Reserved,
}

/// A file with space for the next content.
#[derive(Debug)]
struct Reserved {
    file: File,
    /// Bytes of that space, from the start of the file.
    bytes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Held {
    /// Opens `root` this many times to reserve descriptors, or as often as possible.
    pub(super) fn take_descriptors(&self, root: &Path, wanted: usize) {
        lock(&self.descriptors).wanted = wanted;
        self.refill(root);
    }

    fn refill(&self, root: &Path) {
        let mut held = lock(&self.descriptors);
        while held.files.len() < held.wanted {
            // Tried again when the next file is opened.
            let Ok(file) = File::open(root) else { return };
            held.files.push(file);
        }
    }

    /// Closes one descriptor; returns whether there was one.
    fn give_up_one(&self) -> bool {
        lock(&self.descriptors).files.pop().is_some()
    }

    fn is_patient(&self) -> bool {
        lock(&self.descriptors).wanted > 0
    }

    /// Opens something; if no descriptor is free, with one of those reserved, and if those are
    /// gone, as soon as there is one, within [`RETRY_FOR`].
    pub(super) fn opening<T>(
        &self,
        root: &Path,
        open: impl Fn() -> io::Result<T>,
    ) -> io::Result<T> {
        let (mut wait, mut waited) = (RETRY_FIRST, Duration::ZERO);
        loop {
            match open() {
                Err(error)
                    if is_out_of_descriptors(&error) && waited < RETRY_FOR && self.is_patient() =>
                {
                    if !self.give_up_one() {
                        pause::backoff(wait);
                        waited += wait;
                        wait = (wait * 2).min(RETRY_MAX);
                    }
                }
                opened => {
                    self.refill(root);
                    return opened;
                }
            }
        }
    }

    /// Makes a spare for the file `name` in `root`, which exists.
    pub(super) fn make_spare(&self, root: &Path, name: &str) -> io::Result<()> {
        let mut options = writing();
        options.read(true).write(true);
        let current = options.open(root.join(name))?;
        let spare = options
            .create(true)
            .truncate(false)
            .open(root.join(format!("{name}{SPARE}")))?;
        let content_len = current.metadata()?.len();
        let mut made = Spare {
            name: name.to_owned(),
            dir: File::open(root)?,
            spare: Reserved::new(spare),
            current: Reserved::new(current),
        };
        made.reserve(content_len);
        *lock(&self.spare) = Some(made);
        Ok(())
    }

    /// Deletes the spare file, and closes everything reserved.
    pub(super) fn let_go(&self) {
        if let Some(held) = lock(&self.spare).take() {
            // If it cannot be deleted, the next recording into this log uses it.
            let _ = unlinkat(&held.dir, format!("{}{SPARE}", held.name), AtFlags::empty());
            held.current.release();
        }
        let mut descriptors = lock(&self.descriptors);
        descriptors.wanted = 0;
        descriptors.files.clear();
    }

    /// Whether there is a spare for this file.
    pub(super) fn has_spare(&self, name: &str) -> bool {
        lock(&self.spare).as_ref().is_some_and(|s| s.name == name)
    }

    /// Fails if `root` no longer leads to the directory of the spare file.
    pub(super) fn check_root(&self, root: &Path) -> io::Result<()> {
        let held = lock(&self.spare);
        let Some(held) = held.as_ref() else {
            return Ok(());
        };
        if is_same(&fs::metadata(root)?, &held.dir.metadata()?) {
            return Ok(());
        }
        let problem = "the directory was removed, renamed or unmounted";
        Err(io::Error::new(io::ErrorKind::NotFound, problem))
    }

    /// Syncs the entries of the spare file's directory, if `name` is in it.
    pub(super) fn sync_dir(&self, name: &str) -> Option<io::Result<()>> {
        let held = lock(&self.spare);
        let held = held.as_ref().filter(|held| held.name == name)?;
        Some(held.dir.sync_all())
    }

    /// Says that `file` has replaced the file that there is a spare for.
    pub(super) fn replaced(&self, name: &str, file: File, content_len: usize) {
        if let Some(held) = lock(&self.spare).as_mut().filter(|held| held.name == name) {
            held.current = Reserved::new(file);
            held.reserve(content_len as u64);
        }
    }

    /// Replaces a file with its spare; `None` without a spare.
    pub(super) fn replace(&self, name: &str, content: &[u8]) -> Option<io::Result<()>> {
        let mut slot = lock(&self.spare);
        let held = slot.as_mut().filter(|held| held.name == name)?;
        let exchanged = held.exchange(content);
        if matches!(exchanged, Ok(false)) {
            *slot = None;
        }
        Some(exchanged.map(|_| ()))
    }
}

impl Reserved {
    fn new(file: File) -> Self {
        Self { file, bytes: 0 }
    }

    /// Reserves this number of bytes, if the disk has them and they are not reserved yet.
    fn reserve(&mut self, wanted: u64) {
        if self.bytes < wanted
            && fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, wanted).is_ok()
        {
            self.bytes = wanted;
        }
    }

    /// Frees the space after what the file holds.
    fn release(&self) {
        // What stays reserved is a few blocks, which only cost space.
        if self.bytes > 0
            && let Ok(about) = self.file.metadata()
        {
            let _ = self.file.set_len(about.len());
        }
    }

    /// Replaces what the file holds.
    fn write(&mut self, content: &[u8]) -> io::Result<()> {
        let len = content.len() as u64;
        self.file.write_all_at(content, 0)?;
        if self.file.metadata()?.len() > len {
            // This frees the space after it, too, and others may take that before it is reserved again: the next
            // content then fits only if it needs no more than is left. Spaces in its place would be no way out, since
            // a manifest is read only as it was written.
            self.file.set_len(len)?;
            let bytes = self.bytes;
            self.bytes = 0;
            self.reserve(bytes);
        }
        self.file.sync_all()
    }
}

impl Spare {
    /// Reserves space for more than `content_len` bytes in both files.
    fn reserve(&mut self, content_len: u64) {
        // The next content is seldom much longer than this one. A file has at most 2^63 bytes.
        let wanted = (content_len * 2 + (8 << 10)).next_multiple_of(4 << 10);
        self.spare.reserve(wanted);
        self.current.reserve(wanted);
    }

    /// Writes the spare file and exchanges it with the current one; returns whether there is still
    /// a spare.
    fn exchange(&mut self, content: &[u8]) -> io::Result<bool> {
        self.spare.write(content)?;
        let from = format!("{}{SPARE}", self.name);
        let rename = |flags| renameat_with(&self.dir, &from, &self.dir, &self.name, flags);
        let kept = match rename(RenameFlags::EXCHANGE) {
            Ok(()) => true,
            // Not every file system supports this.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rename(RenameFlags::empty())?;
                false
            }
            Err(error) => return Err(error.into()),
        };
        std::mem::swap(&mut self.spare, &mut self.current);
        self.reserve(content.len() as u64);
        self.dir.sync_all()?;
        Ok(kept)
    }
}

/// Whether this is a shortage that the reserves are for.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    is_full(error) || is_out_of_descriptors(error)
}
