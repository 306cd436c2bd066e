//! What a command keeps only while it runs: files in memory for the Python package, and a directory for a recording.

use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use strata_terminal::output::Output;
use strata_terminal::signals;

/// A file that is only in memory: however this process ends, nothing of it is left. Programs that this process starts
/// inherit it.
pub(crate) struct InMemory {
    file: File,
    /// In messages.
    name: String,
}

impl InMemory {
    pub(crate) fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let file = memfd_create("strata", MemfdFlags::empty());
        let file = file.with_context(|| format!("{name}: cannot keep it in memory"))?;
        let file = File::from(file);
        Ok(Self { file, name })
    }

    pub(crate) fn of(name: impl Into<String>, content: &[u8]) -> Result<Self> {
        let mut new = Self::new(name)?;
        new.file.write_all(content).with_context(|| new.failed())?;
        Ok(new)
    }

    fn failed(&self) -> String {
        format!("{}: cannot keep it in memory", self.name)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn output(&self) -> Result<Output> {
        let file = self.file.try_clone().with_context(|| self.failed())?;
        Ok(Output::of_file(file, self.name.clone()))
    }

    /// Its path in this process, and in those that it starts.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// The directories to remove if a signal ends the program.
static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn directories() -> MutexGuard<'static, Vec<PathBuf>> {
    DIRECTORIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory in `$TMPDIR` for this user only. It is removed with all files when this is dropped, or when INT or TERM
/// ends the program.
pub(crate) struct Directory(tempfile::TempDir);

impl Directory {
    pub(crate) fn new() -> Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder
            .prefix("strata-")
            .permissions(Permissions::from_mode(0o700));
        signals::before_ending(remove)?;
        // Held, so that a signal finds the directory in the list.
        let mut all = directories();
        let made = builder.tempdir().with_context(crate::no_temporary_files)?;
        all.push(made.path().to_owned());
        Ok(Self(made))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Removes it.
    ///
    /// # Errors
    ///
    /// If something of it is still there.
    pub(crate) fn remove(self) -> Result<()> {
        let path = self.path().to_owned();
        let removed: io::Result<()> = self.0.close();
        removed.with_context(|| {
            format!(
                "{}: cannot remove this directory: it has packet headers, so remove it yourself",
                path.display()
            )
        })?;
        directories().retain(|other| *other != path);
        Ok(())
    }
}

/// Removes all directories; a signal ends the program.
fn remove() {
    for path in directories().drain(..) {
        // The program that wrote into it was killed.
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!("{}: cannot remove this directory: {error}", path.display());
            }
            _ => {}
        }
    }
}
