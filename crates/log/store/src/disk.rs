//! The directory that a log lives in, behind a trait so that tests can pull the plug.
//!
//! ```text
//! layer     disks and files that change some of what lies below them
//! emptied   directories of hours and classes that no longer hold a file
//! held      descriptors and space that a recording reserves in advance
//! measure   which way of writing blocks is fastest here
//! queue     several blocks in flight at once
//! real      a file of a directory
//! ```

mod emptied;
mod held;
mod layer;
mod measure;
mod queue;
mod real;

use std::any::Any;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use strata_sys::disk::Pending;

use crate::names::{COMPACTION_NAME, LOCK_NAME, READERS_NAME, is_remote};
use held::{Held, is_same, is_shortage};
use real::RealFile;

pub use layer::{DiskLayer, ReadOnlyFile};
pub use measure::{DiskChoice, DiskReport};
pub use queue::WriteQueue;

/// A directory of files. Methods with a default are for logs at rest, which not every disk needs to
/// hold.
pub trait Disk: Send + Sync {
    /// A new, empty file whose name survives a crash. Fails if it exists.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// As [`Disk::create`], for a copy of what is elsewhere: its name need not survive a crash, so
    /// nothing waits for the disk.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn create_copy(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.create(name)
    }

    /// As [`Disk::create`], for a file that is written in blocks only: offset,
    /// length and address of each write are multiples of 4 096. Such a file
    /// bypasses the page cache where the file system can do that.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn create_for_blocks(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.create(name)
    }

    /// An existing file of [`Disk::create_for_blocks`], to be written in the same way.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn open_for_blocks(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.open(name, true)
    }

    /// How many blocks in flight to such a file at a time are best: the size for its
    /// [`WriteQueue`].
    fn in_flight(&self) -> usize {
        1
    }

    /// An existing file, for reading; for writing too if `writable`.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn open(&self, name: &str, writable: bool) -> io::Result<Box<dyn DiskFile>>;

    /// An existing file of [`Disk::create_for_blocks`], to be read once and only in blocks.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn open_direct(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.open(name, false)
    }

    /// Replaces a file's content. After a crash it is either the old or the new
    /// one, and on return the new one.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()>;

    /// Whether a file of that name exists.
    fn exists(&self, name: &str) -> bool;

    /// Takes the lock that keeps a second writer away, until the value is
    /// dropped; `None` if another process holds it.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send>>>;

    /// As [`Disk::lock`], for processes that change the archive: compaction and retention.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn lock_for_compacting(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes the readers' lock until the value is dropped, so that no file is deleted meanwhile.
    /// `None` on a read-only file system.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn lock_for_reading(&self) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        Ok(None)
    }

    /// Keeps readers away until the value is dropped; `None` while there are any.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn lock_for_deleting(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        Ok(None)
    }

    /// Removes a file; does nothing if it does not exist. Survives a crash. Of the directories above it, those of
    /// an hour and a class (`hour=H/retention=C`) are removed too once they are empty.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn remove(&self, name: &str) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, name))
    }

    /// Checks that a tier ([`crate::tier_of`]) is there, so that a file that is not found in it does not exist; of
    /// a disk that is not mounted, none is found. Makes its directories if it `is_new`. Object stores answer for
    /// themselves.
    ///
    /// # Errors
    ///
    /// If the tier is away, or cannot be made.
    fn reach(&self, _tier: &str, _is_new: bool) -> io::Result<()> {
        Ok(())
    }

    /// Renames a file, perhaps into another directory. Survives a crash.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{from} to {to}"),
        ))
    }

    /// Names of the files in a directory, sorted; none if there is no such directory.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        Err(io::Error::new(io::ErrorKind::Unsupported, dir))
    }

    /// Reserves what is needed to replace `name`, which exists, and to open this many files at a
    /// time, so that both work when others have used up all space and all descriptors. From now on,
    /// opening a file waits a while for descriptors.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn hold_ahead(&self, _name: &str, _descriptors: usize) -> io::Result<()> {
        Ok(())
    }

    /// Releases what [`Disk::hold_ahead`] has reserved.
    fn let_go(&self) {}

    /// Whether `name` refers to this open file. It no longer does once the file or a directory
    /// above it was removed, renamed or unmounted.
    fn leads_to(&self, _name: &str, _file: &dyn DiskFile) -> bool {
        true
    }

    /// A file's name as shown in messages.
    fn display(&self, name: &str) -> String;
}

/// One file of a [`Disk`].
pub trait DiskFile: Send {
    /// Reads as much as there is, up to the buffer's length.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all bytes.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Begins to write all bytes, of which it keeps a copy; `None`: this file writes them at once
    /// ([`DiskFile::write_at`]).
    fn begin_write(&mut self, _bytes: &[u8], _offset: u64) -> Option<Box<dyn Pending>> {
        None
    }

    /// Makes everything written so far survive a crash.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn sync(&mut self) -> io::Result<()>;

    /// Cuts or extends the file.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn set_len(&mut self, len: u64) -> io::Result<()>;

    /// Its length in bytes.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    fn size(&self) -> io::Result<u64>;

    /// Allocates space for the first `len` bytes, without changing the content.
    ///
    /// # Errors
    ///
    /// If there is not enough space.
    fn allocate(&mut self, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Makes sure that these bytes have space, and that the file has at least this length: they are zeros
    /// until they are written. File systems write several blocks at a time within a file, but those that
    /// make it longer one after the other. Others may do the same with the bytes after them.
    ///
    /// # Errors
    ///
    /// If there is no space.
    fn grow(&mut self, bytes: Range<u64>) -> io::Result<()> {
        self.allocate(bytes.end)
    }

    /// These bytes will be read soon: a disk answers many requests at a time sooner than one after
    /// another.
    fn will_read(&self, _bytes: Range<u64>) {}

    /// The operating system's file, if there is one.
    fn shared(&self) -> Option<Arc<File>> {
        None
    }

    /// Where in that file this one begins, if it is a part of it.
    fn start(&self) -> u64 {
        0
    }
}

/// A directory of the operating system.
#[derive(Clone, Debug)]
pub struct RealDisk {
    root: PathBuf,
    /// Whether files for blocks bypass the page cache.
    direct: bool,
    /// Holds nothing unless the directory is recorded into.
    held: Arc<Held>,
}

/// Blocks in flight at a time: enough to keep a disk busy while the next are filled.
const IN_FLIGHT: usize = 4;

/// Files: writable by their owner, readable by their group.
const FILE_MODE: u32 = 0o640;
/// Directories, likewise.
const DIR_MODE: u32 = 0o750;

/// How files are opened for writing: new ones are not readable by everyone, and symbolic links are
/// not followed.
fn writing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE).custom_flags(libc::O_NOFOLLOW);
    options
}

/// Whether what cannot be opened to write may still be there to be read.
fn may_only_read(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

fn make_dirs(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(path)
}

impl RealDisk {
    /// The directory at `root`, made if need be.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    pub fn create_dir(root: &Path) -> io::Result<Self> {
        make_dirs(root)?;
        Ok(Self::at(root))
    }

    /// The directory at `root`, which exists.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
            direct: true,
            held: Arc::default(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Files stored elsewhere cannot be reached through the directory, and are not missing. Names
    /// come from files of the log, which somebody else may have written: they must stay below the
    /// directory.
    fn reached(name: &str) -> io::Result<()> {
        let mut parts = Path::new(name).components();
        if !is_remote(name) && !parts.all(|part| matches!(part, Component::Normal(_))) {
            let problem = format!("the name {name:?} leads out of the directory");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        if is_remote(name) {
            let problem = "it is stored in a place that this command cannot reach";
            return Err(io::Error::new(io::ErrorKind::Unsupported, problem));
        }
        Ok(())
    }

    /// Opens a file; see [`Disk::hold_ahead`].
    fn opened(&self, options: &OpenOptions, path: &Path) -> io::Result<File> {
        self.held.opening(&self.root, || options.open(path))
    }

    /// Creates the directories of a file within this one. This one is not created: if it is gone,
    /// that must be noticed.
    fn make_directories_of(&self, name: &str) -> io::Result<()> {
        let mut path = self.root.clone();
        for dir in Path::new(name).parent().into_iter().flatten() {
            path.push(dir);
            match DirBuilder::new().mode(DIR_MODE).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
        }
        Ok(())
    }

    /// A file to lock: a process that may only read can see, and report, who is at work.
    fn lock_file(&self, name: &str) -> io::Result<File> {
        let mut options = writing();
        options.write(true).create(true).truncate(false);
        match self.opened(&options, &self.path(name)) {
            // If it is not there either, the first error says why.
            Err(error) if may_only_read(&error) => self
                .opened(OpenOptions::new().read(true), &self.path(name))
                .map_err(|_| error),
            opened => opened,
        }
    }

    fn try_lock(&self, name: &str) -> io::Result<Option<Box<dyn Any + Send>>> {
        let file = self.lock_file(name)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(parent) => self
                .opened(OpenOptions::new().read(true), parent)?
                .sync_all(),
            None => Ok(()),
        }
    }

    /// Replaces a file with a new one.
    fn replace_by_new(&self, name: &str, content: &[u8]) -> io::Result<File> {
        let path = self.path(name);
        let temporary = self.path(&format!("{name}.new"));
        // A leftover one has its old mode.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = writing();
        options.read(true).write(true).create_new(true);
        // No need to wait if there is a spare.
        let mut file = if self.held.has_spare(name) {
            options.open(&temporary)?
        } else {
            self.opened(&options, &temporary)?
        };
        let written = file.write_all(content).and_then(|()| file.sync_all());
        let renamed = written.and_then(|()| fs::rename(&temporary, &path));
        if let Err(error) = renamed {
            // It would take up scarce space.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        let synced = self.held.sync_dir(name);
        synced.unwrap_or_else(|| self.sync_dir(&path))?;
        Ok(file)
    }
}

impl Disk for RealDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = self.create_copy(name)?;
        self.sync_dir(&self.path(name))?;
        Ok(file)
    }

    fn create_copy(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Self::reached(name)?;
        self.make_directories_of(name)?;
        let mut options = writing();
        options.read(true).write(true).create_new(true);
        let file = self.opened(&options, &self.path(name))?;
        Ok(Box::new(RealFile(Arc::new(file))))
    }

    fn create_for_blocks(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.create(name)?;
        self.open_for_blocks(name)
    }

    fn open_for_blocks(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Self::reached(name)?;
        let mut options = writing();
        let direct = options.read(true).write(true);
        direct.custom_flags(libc::O_DIRECT | libc::O_NOFOLLOW);
        let opened = self.direct.then(|| self.opened(direct, &self.path(name)));
        match opened {
            Some(Ok(direct)) => Ok(Box::new(RealFile(Arc::new(direct)))),
            // tmpfs before Linux 6.6, and others, have no direct writes.
            _ => self.open(name, true),
        }
    }

    fn in_flight(&self) -> usize {
        IN_FLIGHT
    }

    fn open_direct(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        let direct = options.read(true).custom_flags(libc::O_DIRECT);
        let opened = self.direct.then(|| direct.open(self.path(name)));
        match opened {
            Some(Ok(direct)) => Ok(Box::new(RealFile(Arc::new(direct)))),
            _ => self.open(name, false),
        }
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<Box<dyn DiskFile>> {
        Self::reached(name)?;
        let mut options = if writable {
            writing()
        } else {
            OpenOptions::new()
        };
        let options = options.read(true).write(writable);
        let file = self.opened(options, &self.path(name))?;
        Ok(Box::new(RealFile(Arc::new(file))))
    }

    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        Self::reached(name)?;
        self.held.check_root(&self.root)?;
        self.make_directories_of(name)?;
        match self.replace_by_new(name, content) {
            Ok(file) => {
                self.held.replaced(name, file, content.len());
                Ok(())
            }
            Err(error) if is_shortage(&error) => {
                self.held.replace(name, content).unwrap_or(Err(error))
            }
            Err(error) => Err(error),
        }
    }

    fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        self.try_lock(LOCK_NAME)
    }

    fn lock_for_compacting(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        self.try_lock(COMPACTION_NAME)
    }

    fn lock_for_reading(&self) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        // Where it cannot be made, nothing is deleted either.
        let Ok(file) = self.lock_file(READERS_NAME) else {
            return Ok(None);
        };
        file.lock_shared()?;
        Ok(Some(Box::new(file)))
    }

    fn lock_for_deleting(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        self.try_lock(READERS_NAME)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Self::reached(name)?;
        let path = self.path(name);
        match fs::remove_file(&path) {
            // After a crash, the directories may still be there.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                emptied::remove_directories(&self.root, name);
                return Ok(());
            }
            removed => removed?,
        }
        self.sync_dir(&emptied::remove_directories(&self.root, name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Self::reached(from)?;
        Self::reached(to)?;
        self.make_directories_of(to)?;
        let (from, to) = (self.path(from), self.path(to));
        fs::rename(&from, &to)?;
        self.sync_dir(&to)?;
        self.sync_dir(&from)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.path(dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            if let Some(name) = entry?.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    fn hold_ahead(&self, name: &str, descriptors: usize) -> io::Result<()> {
        self.held.take_descriptors(&self.root, descriptors);
        self.held.make_spare(&self.root, name)
    }

    fn let_go(&self) {
        self.held.let_go();
    }

    fn leads_to(&self, name: &str, file: &dyn DiskFile) -> bool {
        let Some(Ok(open)) = file.shared().map(|file| file.metadata()) else {
            return true;
        };
        // What cannot be examined for another reason is not gone.
        match fs::metadata(self.path(name)) {
            Ok(found) => is_same(&found, &open),
            Err(error) => !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ),
        }
    }

    fn display(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}
