//! The directory that a log lives in, behind a trait so that tests can pull the plug.

use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A directory of files.
pub trait Disk: Send + Sync {
    /// A new, empty file whose name survives a crash. Fails if it exists.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// As [`Disk::create`], for a file that is written in blocks only: offset,
    /// length and address of each write are multiples of 4 096. Such a file
    /// bypasses the page cache where the file system can do that.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn create_for_blocks(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.create(name)
    }

    /// An existing file, for reading; for writing too if `writable`.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn open(&self, name: &str, writable: bool) -> io::Result<Box<dyn DiskFile>>;

    /// Replaces a file's content. After a crash it is either the old or the new
    /// one, and on return the new one.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()>;

    /// Whether a file of that name exists.
    fn exists(&self, name: &str) -> bool;

    /// Takes the lock that keeps a second writer away, until the value is
    /// dropped; `None` if another process holds it.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send>>>;

    /// How messages name a file.
    fn display(&self, name: &str) -> String;
}

/// One file of a [`Disk`].
pub trait DiskFile: Send {
    /// Reads as much as there is, up to the buffer's length.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of it.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes everything written so far survive a crash.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn sync(&mut self) -> io::Result<()>;

    /// Cuts or extends the file.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn set_len(&mut self, len: u64) -> io::Result<()>;

    /// Its length in bytes.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    fn size(&self) -> io::Result<u64>;
}

/// A directory of the operating system.
#[derive(Clone, Debug)]
pub struct RealDisk {
    root: PathBuf,
}

/// The file whose lock keeps a second writer away.
pub(crate) const LOCK_NAME: &str = "lock";

impl RealDisk {
    /// The directory at `root`, made if need be.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn create_dir(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        Ok(Self::at(root))
    }

    /// The directory at `root`, which exists.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn sync_dir(path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    }
}

impl Disk for RealDisk {
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        Self::sync_dir(&path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn create_for_blocks(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = self.create(name)?;
        let mut options = OpenOptions::new();
        let direct = options.read(true).write(true).custom_flags(libc::O_DIRECT);
        match direct.open(self.path(name)) {
            Ok(direct) => Ok(Box::new(RealFile(direct))),
            // tmpfs before Linux 6.6, and others, have no direct writes.
            Err(_) => Ok(file),
        }
    }

    fn open(&self, name: &str, writable: bool) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(writable).open(self.path(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.path(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let temporary = self.path(&format!("{name}.new"));
        let mut file = File::create(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        Self::sync_dir(&path)
    }

    fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Any + Send>>> {
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.path(LOCK_NAME))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    fn display(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.0.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
