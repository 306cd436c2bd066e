//! The directory of a log: created for its owner, and removed again if no recording started in it.

use std::fs;
use std::path::{Path, PathBuf};

use strata_sandbox::{Owner, make_log_dir};
use strata_store::{Disk as _, LOG_ENTRIES, Log, MANIFEST_NAME, RealDisk, StoreError};

use crate::error::{At as _, Result};

/// Fails if the directory contains something other than a log.
pub(crate) fn refuse_foreign(dir: &Path) -> Result<()> {
    // A missing directory will be created; one that cannot be listed is refused when opened.
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

/// Creates the directory of a log for its owner, unless it contains something other than a log;
/// returns it as a disk.
///
/// # Errors
///
/// If it cannot be created, or contains something else.
pub fn log_directory(dir: &Path, owner: &Owner) -> Result<RealDisk> {
    refuse_foreign(dir)?;
    make_log_dir(dir, MANIFEST_NAME, &LOG_ENTRIES, owner).at("cannot create the log")?;
    Ok(RealDisk::at(dir))
}

/// A log's directory that may not exist yet. Until a recording has started in it, whatever was
/// created is removed when this is dropped: a failed start leaves nothing behind.
#[derive(Debug)]
pub(crate) struct NewDirectory {
    /// Directories that did not exist, the innermost first.
    missing: Vec<PathBuf>,
}

impl NewDirectory {
    /// To be called before anything is created there.
    pub(crate) fn at(dir: &Path) -> Self {
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        let missing = dir.ancestors().take_while(|dir| !dir.exists());
        Self {
            missing: missing.map(Path::to_owned).collect(),
        }
    }

    /// Keeps what was created.
    pub(crate) fn keep(mut self) {
        self.missing.clear();
    }

    /// Removes a log that was created here, if its one recording has ended without a packet. An
    /// older log, or one in use by another process, stays.
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
        // With a manifest, it is a log.
        if dir.join(MANIFEST_NAME).exists() {
            return;
        }
        // If the lock is held, another process has started one here meanwhile.
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
        // Only empty directories are removed: other contents stay, and so do theirs.
        for name in ["blocks", "models"] {
            let _ = fs::remove_dir(dir.join(name));
        }
        for dir in &self.missing {
            let _ = fs::remove_dir(dir);
        }
    }
}
