//! What can go wrong with a log.

mod damage;

use std::io;

use strata_blocks::SinkError;

pub use damage::{Damage, MissingFile, damage_counts, damage_texts};

/// Why a log cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operating system refused.
    #[error("{file}: cannot {action}: {source}")]
    Io {
        /// The file.
        file: String,
        /// What was tried.
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// No space is left for the log.
    #[error(
        "{file}: the disk is full{}; packets already written are in the log, {} counted as dropped \
         (disk_full): make room (`strata prune`){}",
        if *.goes_on { "" } else { ": the recording ends" },
        if *.goes_on { "the others are" } else { "those that were in memory are" },
        if *.goes_on { "" } else { ", or continue and count lost packets (--when-full drop)" }
    )]
    DiskFull {
        /// The file.
        file: String,
        /// Whether recording continues, and writes again once there is space.
        goes_on: bool,
    },
    /// The log is no longer where it was.
    #[error(
        "{dir}: the log is no longer there: its directory, or the file that was being written, \
         was removed, renamed or unmounted; recording has ended"
    )]
    Gone {
        /// The directory.
        dir: String,
    },
    /// Something else is at that path.
    #[error(
        "{dir}: this directory is neither a Strata log nor empty: name a new directory, or one \
         that `strata record` made"
    )]
    NotALog {
        /// The directory.
        dir: String,
    },
    /// Another process writes this log.
    #[error(
        "{dir}: another process is recording into this log: stop it, or record into another directory"
    )]
    Locked {
        /// The directory.
        dir: String,
    },
    /// The manifest cannot be understood.
    #[error(
        "{file}: damaged, or not the manifest of a log: {problem}; without it the log cannot be \
         read: restore it from a copy"
    )]
    Manifest {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// There is no log.
    #[error(
        "{dir}: no log here ({file} is missing): name a directory that `strata record -o` made"
    )]
    Missing {
        /// The directory.
        dir: String,
        /// What is missing.
        file: String,
    },
    /// There are files of a log, without the one that lists them.
    #[error(
        "{dir}: {file} of this log is missing: it lists the recordings and their files, and the log \
         cannot be read without it: restore it from a copy, since it cannot be made from the other \
         files"
    )]
    Lost {
        /// The directory.
        dir: String,
        /// What is missing.
        file: String,
    },
    /// Bytes that differ from what was written.
    #[error("{0}")]
    Damage(#[from] Damage),
    /// Another connection of the same switch writes the stream.
    #[error("an earlier connection from this switch is still open")]
    StreamTaken,
    /// Blocks go nowhere.
    #[error(transparent)]
    Sink(SinkError),
}

impl From<SinkError> for StoreError {
    fn from(error: SinkError) -> Self {
        match error {
            SinkError::Full { file, goes_on } => Self::DiskFull { file, goes_on },
            SinkError::Failed(error) => match error.downcast() {
                Ok(own) => *own,
                Err(foreign) => Self::Sink(SinkError::Failed(foreign)),
            },
            other => Self::Sink(other),
        }
    }
}

impl From<StoreError> for SinkError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Sink(error) => error,
            StoreError::DiskFull { file, goes_on } => Self::Full { file, goes_on },
            other => Self::Failed(Box::new(other)),
        }
    }
}

impl StoreError {
    /// Whether something failed for lack of space.
    pub(crate) fn lacks_room(&self) -> bool {
        match self {
            Self::DiskFull { .. } => true,
            Self::Io { source, .. } => is_full(source),
            _ => false,
        }
    }

    /// A copy of the error, for someone else who needs to know.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Io {
                file,
                action,
                source,
            } => Self::Io {
                file: file.clone(),
                action,
                source: match source.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::new(source.kind(), source.to_string()),
                },
            },
            Self::DiskFull { file, goes_on } => Self::DiskFull {
                file: file.clone(),
                goes_on: *goes_on,
            },
            Self::Gone { dir } => Self::Gone { dir: dir.clone() },
            _ => SinkError::WriterGone.into(),
        }
    }
}

/// Whether the operating system reports that there is no space, or none for this user.
pub(crate) fn is_full(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
    kinds.contains(&error.kind())
}

/// Wraps an I/O error with the file and what was tried.
pub(crate) fn io_error(file: String, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io {
        file,
        action,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_is_told_is_what_happened() {
        let goes_on = |goes_on| StoreError::DiskFull {
            file: "a".into(),
            goes_on,
        };
        let told = SinkError::from(goes_on(true));
        assert!(matches!(told, SinkError::Full { .. }), "{told:?}");
        for error in [
            goes_on(true),
            goes_on(false),
            StoreError::Gone { dir: "b".into() },
            SinkError::RelayLost.into(),
        ] {
            let (debug, text) = (format!("{error:?}"), error.to_string());
            let told = SinkError::from(error);
            if !matches!(told, SinkError::Full { .. }) {
                assert_eq!(told.to_string(), text);
            }
            assert_eq!(format!("{:?}", StoreError::from(told)), debug);
        }
    }
}
