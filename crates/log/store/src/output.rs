//! Files that a user asks for (`-w`, `-o`): they overwrite what was there, as with tcpdump, but
//! never their own input, nor a file of any log.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::log::Log;
use crate::manifest::MANIFEST_NAME;
use crate::manifest::archive::{ARCHIVE_NAME, LOG_ENTRIES};
use crate::names::is_remote;

/// A file of a log lies at most this many levels below its directory: `packets/hour=H/retention=C/N.parquet`.
const LEVELS: usize = 4;
/// A manifest names its format within this many bytes.
const FORMAT_WITHIN_BYTES: u64 = 64;

/// Why a file is not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The operating system refused.
    #[error("{}: cannot write: {source}", path.display())]
    Cannot {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// It would replace a file that is still to be read.
    #[error("{}: this is the input {input}: write to another file", path.display())]
    IsInput {
        /// The file.
        path: PathBuf,
        /// The input, as the user named it.
        input: String,
    },
    /// It would be mistaken for a file of the log, or replace one.
    #[error("{}: this file is inside the log {}: write to a file outside it", path.display(), log.display())]
    InLog {
        /// The file.
        path: PathBuf,
        /// The log's directory.
        log: PathBuf,
    },
    /// It would replace a file of a log that the command does not read, or be taken for one.
    #[error(
        "{}: this is a file of the log {}, or has the name of one: write to another file",
        path.display(),
        log.display()
    )]
    OfLog {
        /// The file.
        path: PathBuf,
        /// The log's directory.
        log: PathBuf,
    },
}

/// What identifies a file, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// What a command reads and must not overwrite.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    files: Vec<(Identity, String)>,
    logs: Vec<(Identity, PathBuf)>,
}

impl Sources {
    /// Adds a file that is read; `-` is standard input. Its reader reports a missing one.
    #[must_use]
    pub fn file(mut self, path: &Path) -> Self {
        let metadata = if path.as_os_str() == "-" {
            let input = io::stdin().as_fd().try_clone_to_owned();
            input.map(File::from).and_then(|input| input.metadata())
        } else {
            fs::metadata(path)
        };
        if let Ok(metadata) = metadata.as_ref()
            && metadata.is_file()
        {
            let name = match path.as_os_str() == "-" {
                true => String::from("standard input"),
                false => path.display().to_string(),
            };
            self.files.push((Identity::of(metadata), name));
        }
        self
    }

    /// Adds files that are read.
    #[must_use]
    pub fn files<P: AsRef<Path>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        let add = |sources: Self, path: P| sources.file(path.as_ref());
        paths.into_iter().fold(self, add)
    }

    /// Adds the log in `dir`, with its files that were moved to another disk.
    #[must_use]
    pub fn log(mut self, dir: &Path, log: &Log) -> Self {
        if let Ok(metadata) = fs::metadata(dir) {
            self.logs.push((Identity::of(&metadata), dir.to_owned()));
        }
        let parts = log.archive().parts.iter();
        let names = parts.flat_map(|part| part.files.iter().map(|file| file.name.as_str()));
        let moved = names.filter(|name| is_remote(name));
        self.files(moved.filter_map(|name| name.strip_prefix("file://")))
    }

    /// Opens `path` for writing from its start: created if missing, truncated if it exists. A
    /// device or pipe is opened as it is.
    ///
    /// # Errors
    ///
    /// If it is one of these sources or lies in one of these logs, under any name, or is a file of
    /// another log; it is then left unchanged.
    pub fn create(&self, path: &Path) -> Result<File, OutputError> {
        let (file, _) = self.open(path)?;
        let cannot = |source| OutputError::Cannot {
            path: path.to_owned(),
            source,
        };
        if file.metadata().map_err(cannot)?.is_file() {
            file.set_len(0).map_err(cannot)?;
        }
        Ok(file)
    }

    /// Checks that [`Sources::create`] could open `path`, without changing it.
    ///
    /// # Errors
    ///
    /// As [`Sources::create`].
    pub fn check(&self, path: &Path) -> Result<(), OutputError> {
        let (_, made) = self.open(path)?;
        if made {
            remove(path)?;
        }
        Ok(())
    }

    /// Opens `path` for writing without truncating it; also returns whether it was created.
    ///
    /// # Errors
    ///
    /// As [`Sources::create`].
    pub fn open(&self, path: &Path) -> Result<(File, bool), OutputError> {
        let cannot = |source| OutputError::Cannot {
            path: path.to_owned(),
            source,
        };
        let existed = path.exists();
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = options.open(path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        if !metadata.is_file() {
            return Ok((file, false));
        }
        let refused = self.refuse(path, !existed, &metadata);
        if let Err(error) = refused.map_err(cannot)? {
            if !existed {
                remove(path)?;
            }
            return Err(error);
        }
        Ok((file, !existed))
    }

    fn refuse(
        &self,
        path: &Path,
        is_new: bool,
        metadata: &Metadata,
    ) -> io::Result<Result<(), OutputError>> {
        let identity = Identity::of(metadata);
        if let Some((_, input)) = self.files.iter().find(|(file, _)| *file == identity) {
            let (path, input) = (path.to_owned(), input.clone());
            return Ok(Err(OutputError::IsInput { path, input }));
        }
        let place = fs::canonicalize(path)?;
        for (log, dir) in &self.logs {
            let mut above = place.ancestors().skip(1);
            let lies_below = above.any(|dir| {
                let metadata = fs::metadata(dir);
                metadata.is_ok_and(|metadata| Identity::of(&metadata) == *log)
            });
            // Another hard link of the file may be anywhere on its file system.
            if lies_below || (metadata.nlink() > 1 && holds(dir, identity)?) {
                let (path, log) = (path.to_owned(), dir.clone());
                return Ok(Err(OutputError::InLog { path, log }));
            }
        }
        if let Some(log) = log_of(&place, is_new) {
            let path = path.to_owned();
            return Ok(Err(OutputError::OfLog { path, log }));
        }
        Ok(Ok(()))
    }
}

/// The directory of the log that a file is a part of. A new file belongs to a log only if the log
/// itself would give it this name; others may lie beside it.
fn log_of(place: &Path, is_new: bool) -> Option<PathBuf> {
    let mut below = place;
    for _ in 0..LEVELS {
        let dir = below.parent()?;
        let name = below.file_name()?;
        let is_its_own = LOG_ENTRIES.iter().any(|entry| name == *entry);
        if is_its_own && (!is_new || below == place) && is_log(dir) {
            return Some(dir.to_owned());
        }
        below = dir;
    }
    None
}

/// Whether a directory is that of a log: one of its manifests says so, even if it is damaged.
#[must_use]
pub fn is_log(dir: &Path) -> bool {
    let formats = [
        (MANIFEST_NAME, "\"strata-log\""),
        (ARCHIVE_NAME, "\"strata-archive\""),
    ];
    formats.iter().any(|(name, format)| {
        let begins = begin_of(&dir.join(name));
        begins.is_ok_and(|begin| String::from_utf8_lossy(&begin).contains(format))
    })
}

/// The first bytes of a file.
fn begin_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut begin = Vec::new();
    // What is no file may never end, or not be there to be read.
    if fs::metadata(path)?.is_file() {
        let file = File::open(path)?;
        file.take(FORMAT_WITHIN_BYTES).read_to_end(&mut begin)?;
    }
    Ok(begin)
}

/// Removes what was created; a link that leads to it stays.
fn remove(path: &Path) -> Result<(), OutputError> {
    let removed = fs::canonicalize(path).and_then(fs::remove_file);
    removed.map_err(|source| OutputError::Cannot {
        path: path.to_owned(),
        source,
    })
}

/// Whether a file is below a directory. Links are not followed, so this terminates.
fn holds(dir: &Path, wanted: Identity) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if Identity::of(&metadata) == wanted || (metadata.is_dir() && holds(&entry.path(), wanted)?)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::manifest::Manifest;

    #[test]
    fn what_is_read_is_not_written_over_by_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("input");
        fs::write(&input, "packets").unwrap();
        let [link, hard] = ["link", "hard"].map(|name| dir.path().join(name));
        symlink(&input, &link).unwrap();
        fs::hard_link(&input, &hard).unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let sources = Sources::default().file(&input);
        for path in [&input, &link, &hard, &dir.path().join("sub/../input")] {
            let refused = sources.create(path).unwrap_err();
            assert!(matches!(refused, OutputError::IsInput { .. }), "{refused}");
        }
        assert_eq!(fs::read(&input).unwrap(), b"packets");
        // Anything else is overwritten.
        let other = dir.path().join("other");
        fs::write(&other, "old").unwrap();
        sources.check(&other).unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"old");
        drop(sources.create(&other).unwrap());
        assert_eq!(fs::read(&other).unwrap(), b"");
        let new = dir.path().join("new");
        sources.check(&new).unwrap();
        assert!(!new.exists() && sources.check(&new.join("below")).is_err());
    }

    #[test]
    fn nothing_is_written_into_a_log_by_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        fs::create_dir_all(log.join("blocks")).unwrap();
        let block = log.join("blocks/1.strata");
        fs::write(&block, "block").unwrap();
        let [hard, dangling, aside] = ["hard", "dangling", "aside"].map(|n| dir.path().join(n));
        fs::hard_link(&block, &hard).unwrap();
        symlink(log.join("new"), &dangling).unwrap();
        symlink(&log, &aside).unwrap();
        let mut sources = Sources::default();
        let identity = Identity::of(&fs::metadata(&log).unwrap());
        sources.logs.push((identity, log.clone()));
        let new = log.join("blocks/../new");
        for path in [&block, &hard, &dangling, &new, &aside.join("new")] {
            let refused = sources.create(path).unwrap_err();
            assert!(matches!(refused, OutputError::InLog { .. }), "{refused}");
        }
        assert_eq!(fs::read(&block).unwrap(), b"block");
        assert!(!log.join("new").exists() && dangling.symlink_metadata().is_ok());
        drop(sources.create(&dir.path().join("new")).unwrap());
    }

    #[test]
    fn files_of_any_log_stay_and_others_may_lie_beside_them() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let hour = log.join("packets/hour=2026-01-31T13/retention=benign");
        fs::create_dir_all(&hour).unwrap();
        let manifest = log.join(MANIFEST_NAME);
        fs::write(&manifest, Manifest::default().to_json()).unwrap();
        let part = hour.join("00000001.parquet");
        fs::write(&part, "rows").unwrap();
        let link = dir.path().join("link");
        symlink(&part, &link).unwrap();
        let (sources, new) = (Sources::default(), log.join(ARCHIVE_NAME));
        for path in [&manifest, &part, &link, &new] {
            for refused in [sources.create(path).map(drop), sources.check(path)] {
                let refused = refused.unwrap_err();
                assert!(matches!(refused, OutputError::OfLog { .. }), "{refused}");
            }
        }
        assert_eq!(fs::read(&part).unwrap(), b"rows");
        assert_eq!(fs::read(&manifest).unwrap(), Manifest::default().to_json());
        assert!(!new.exists());
        // The user's own files, new or not, and the same names elsewhere.
        let (own, other) = (log.join("out.pcapng"), dir.path().join(MANIFEST_NAME));
        for path in [&own, &own, &other, &other] {
            drop(sources.create(path).unwrap());
        }
    }
}
