//! The directory of a log: created for its owner, and removed again if no recording started in it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use strata_sandbox::{Owner, make_log_dir};
use strata_store::{Disk as _, LOG_ENTRIES, Log, MANIFEST_NAME, RealDisk, StoreError};

use crate::error::{At as _, Result};
use crate::notice::{Notice, Tell};

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
    make_log_dir(dir, MANIFEST_NAME, &LOG_ENTRIES, owner).at("cannot make the log")?;
    Ok(RealDisk::at(dir))
}

/// Warns of a directory that everybody can write to, or replace: others could put what they like in the
/// place of a log, a store or keys.
pub(crate) fn warn_if_shared(dir: &Path, tell: &Tell) {
    if let Some(problem) = shared(dir) {
        tell(&Notice::Warning(problem));
    }
}

fn shared(dir: &Path) -> Option<String> {
    const OTHERS_WRITE: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let found = fs::metadata(&dir).ok();
    let is_shared = |found: &fs::Metadata| found.mode() & OTHERS_WRITE != 0;
    if found.as_ref().is_some_and(is_shared) {
        return Some(format!(
            "{0}: everybody can write there: chmod o-w {0}, or name another directory",
            dir.display()
        ));
    }
    let above = dir.ancestors().skip(1).find(|above| above.exists())?;
    let above_found = fs::metadata(above).ok().filter(is_shared)?;
    let is_sticky = above_found.mode() & STICKY != 0;
    let ours = [0, rustix::process::geteuid().as_raw()];
    let is_ours = found.is_some_and(|found| ours.contains(&found.uid()));
    // There, only the owner of a directory can rename it.
    (!is_sticky || !is_ours).then(|| {
        format!(
            "{}: everybody can write to {}, and have {}: name a directory elsewhere",
            dir.display(),
            above.display(),
            match is_sticky {
                true => "made it before, as another user",
                false => "another one take its place",
            }
        )
    })
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_that_everybody_can_write_to_is_warned_of() {
        let top = tempfile::tempdir().unwrap();
        let with = |path: &Path, mode| {
            fs::create_dir_all(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let (above, dir) = (top.path().join("above"), top.path().join("above/log"));
        for (mode_above, mode, wanted) in [
            (0o755, 0o750, None),
            (0o755, 0o777, Some("chmod o-w")),
            (0o777, 0o750, Some("another one take its place")),
            (0o1777, 0o750, None),
        ] {
            with(&above, mode_above);
            with(&dir, mode);
            let said = shared(&dir);
            let is_so = match (&said, wanted) {
                (Some(said), Some(wanted)) => said.contains(wanted),
                (said, wanted) => said.is_none() && wanted.is_none(),
            };
            assert!(is_so, "{mode_above:o} {mode:o}: {said:?}");
        }
        fs::remove_dir(&dir).unwrap();
        assert!(shared(&dir).unwrap().contains("made it before"));
    }
}
