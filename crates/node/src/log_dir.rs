//! The directory of a log: made for its owner, and gone again if nothing was begun in it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use strata_sandbox::{Owner, make_log_dir};
use strata_store::{Disk as _, LOG_ENTRIES, Log, MANIFEST_NAME, RealDisk, StoreError};

/// Fails if something that is no log lies in the directory.
pub(crate) fn refuse_foreign(dir: &Path) -> Result<()> {
    // What is not there yet is made; what cannot be listed is refused when it is opened.
    let Ok(entries) = fs::read_dir(dir) else {
        return Ok(());
    };
    let ours = [
        "lock",
        "models",
        "blocks",
        "drift",
        "manifest.json.new",
        "manifest.json.spare",
        strata_control::saved::FILE_NAME,
    ];
    let foreign = entries
        .flatten()
        .any(|e| !ours.iter().any(|name| e.file_name() == *name));
    if foreign && !dir.join(MANIFEST_NAME).exists() {
        let dir = dir.display().to_string();
        return Err(StoreError::NotALog { dir }.into());
    }
    Ok(())
}

/// Makes the directory of a log for its owner, unless something that is no log lies there; as a
/// disk.
///
/// # Errors
///
/// If it cannot be made, or is something else's.
pub fn log_directory(dir: &Path, owner: &Owner) -> Result<RealDisk> {
    refuse_foreign(dir)?;
    make_log_dir(dir, MANIFEST_NAME, &LOG_ENTRIES, owner).context("cannot make the log")?;
    Ok(RealDisk::at(dir))
}

/// A log's directory that may not be there yet. Until a recording has begun in it, what was made
/// of it goes when this is dropped: a start that fails leaves nothing behind.
#[derive(Debug)]
pub struct NewDirectory {
    /// Directories that were not there, the innermost first.
    missing: Vec<PathBuf>,
}

impl NewDirectory {
    /// To be called before anything is made there.
    #[must_use]
    pub fn at(dir: &Path) -> Self {
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        let missing = dir.ancestors().take_while(|dir| !dir.exists());
        Self {
            missing: missing.map(Path::to_owned).collect(),
        }
    }

    /// What was made stays.
    pub fn keep(mut self) {
        self.missing.clear();
    }

    /// Takes a log away again that was made here, in which the one recording has ended without
    /// a packet. One that was there before, or that another process goes on with, stays.
    pub(crate) fn take_back(&self) {
        let Some(dir) = self.missing.first() else {
            return;
        };
        let Ok(Some(_lock)) = RealDisk::at(dir).lock() else {
            return;
        };
        if Log::open(dir).is_ok_and(|log| log.recordings().len() > 1) {
            return;
        }
        let _ = fs::remove_file(dir.join(MANIFEST_NAME));
        for name in ["blocks", "drift"] {
            let made = fs::read_dir(dir.join(name)).into_iter().flatten();
            for file in made.flatten() {
                let _ = fs::remove_file(file.path());
            }
            let _ = fs::remove_dir(dir.join(name));
        }
        let _ = fs::remove_file(dir.join("readers"));
    }
}

impl Drop for NewDirectory {
    fn drop(&mut self) {
        let Some(dir) = self.missing.first() else {
            return;
        };
        // With a manifest it is a log.
        if dir.join(MANIFEST_NAME).exists() {
            return;
        }
        // Who holds the lock has begun one here meanwhile.
        let lock = dir.join("lock");
        if let Ok(file) = fs::File::open(&lock) {
            if file.try_lock().is_err() {
                return;
            }
            let models = fs::read_dir(dir.join("models")).into_iter().flatten();
            for made in models.flatten().map(|entry| entry.path()).chain([lock]) {
                let _ = fs::remove_file(made);
            }
        }
        // Only empty ones go: whatever else lies there stays, and so do they.
        for name in ["blocks", "models"] {
            let _ = fs::remove_dir(dir.join(name));
        }
        for dir in &self.missing {
            let _ = fs::remove_dir(dir);
        }
    }
}
