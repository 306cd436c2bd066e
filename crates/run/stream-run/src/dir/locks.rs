//! Locks between processes: files that are locked as a whole (flock(2)), so that the kernel releases
//! them when a process ends, however it does.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::OFlags;

/// Where locks are.
#[derive(Clone, Debug)]
pub(crate) enum Locks {
    /// Files of this directory.
    Files(PathBuf),
    /// In a simulation, which is one thread: which are taken, and by how many.
    Simulated(Arc<Mutex<BTreeMap<String, u32>>>),
}

/// A lock, released when it is dropped.
#[derive(Debug)]
pub(crate) enum Lock {
    File(File),
    Simulated(Locks, String),
}

impl Lock {
    /// Others may have it too from now on.
    pub(crate) fn share(&self) -> io::Result<()> {
        match self {
            Self::File(file) => file.lock_shared(),
            Self::Simulated(..) => Ok(()),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Self::Simulated(Locks::Simulated(taken), name) = self {
            let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
            let holders = taken.get_mut(name).expect("it was taken");
            *holders -= 1;
            if *holders == 0 {
                taken.remove(name);
            }
        }
    }
}

impl Locks {
    fn open(root: &Path, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // Symbolic links are not followed.
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
        options
            .mode(0o640)
            .custom_flags(flags)
            .open(root.join(name))
    }

    /// Those of a stripe that has no place for files.
    pub(crate) fn of_stripe(&self, id: u64) -> Self {
        match self {
            Self::Files(root) => Self::Files(root.join("stripe-locks").join(format!("{id:016x}"))),
            Self::Simulated(_) => Self::Simulated(Arc::default()),
        }
    }

    /// Makes the directory that they are in.
    pub(crate) fn make(&self) -> io::Result<()> {
        match self {
            Self::Files(root) => DirBuilder::new().recursive(true).mode(0o750).create(root),
            Self::Simulated(_) => Ok(()),
        }
    }

    fn simulated(&self, taken: &Mutex<BTreeMap<String, u32>>, name: &str) -> Option<Lock> {
        let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = !taken.contains_key(name);
        is_free.then(|| {
            taken.insert(name.to_owned(), 1);
            Lock::Simulated(self.clone(), name.to_owned())
        })
    }

    /// Waits for a lock.
    pub(crate) fn wait(&self, name: &str) -> io::Result<Lock> {
        match self {
            Self::Files(root) => {
                let file = Self::open(root, name)?;
                file.lock()?;
                Ok(Lock::File(file))
            }
            Self::Simulated(taken) => {
                let lock = self.simulated(taken, name);
                lock.ok_or_else(|| io::ErrorKind::Deadlock.into())
            }
        }
    }

    /// Takes a lock unless another process has it.
    pub(crate) fn take(&self, name: &str) -> io::Result<Option<Lock>> {
        match self {
            Self::Files(root) => {
                let file = Self::open(root, name)?;
                match file.try_lock() {
                    Ok(()) => Ok(Some(Lock::File(file))),
                    Err(TryLockError::WouldBlock) => Ok(None),
                    Err(TryLockError::Error(error)) => Err(error),
                }
            }
            Self::Simulated(taken) => Ok(self.simulated(taken, name)),
        }
    }

    /// Takes a lock that others may have too.
    pub(crate) fn shared(&self, name: &str) -> io::Result<Lock> {
        match self {
            Self::Files(root) => {
                let file = Self::open(root, name)?;
                file.lock_shared()?;
                Ok(Lock::File(file))
            }
            Self::Simulated(taken) => {
                let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
                *taken.entry(name.to_owned()).or_default() += 1;
                Ok(Lock::Simulated(self.clone(), name.to_owned()))
            }
        }
    }

    /// Whether this is still the lock of that name: not if its file was removed, so that another process may have
    /// one of its own.
    pub(crate) fn holds(&self, name: &str, lock: &Lock) -> bool {
        let (Self::Files(root), Lock::File(file)) = (self, lock) else {
            return true;
        };
        let place = |found: fs::Metadata| (found.dev(), found.ino());
        match (fs::metadata(root.join(name)), file.metadata()) {
            (Ok(found), Ok(open)) => place(found) == place(open),
            // What cannot be examined for another reason is not gone.
            (Err(error), _) => !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ),
            _ => true,
        }
    }

    /// Whether a process has the lock alone. Needs no right to write.
    pub(crate) fn is_taken(&self, name: &str) -> io::Result<bool> {
        let root = match self {
            Self::Files(root) => root,
            Self::Simulated(taken) => {
                let taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
                return Ok(taken.contains_key(name));
            }
        };
        match File::open(root.join(name)) {
            Ok(file) => match file.try_lock_shared() {
                Ok(()) => Ok(false),
                Err(TryLockError::WouldBlock) => Ok(true),
                Err(TryLockError::Error(error)) => Err(error),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}
