//! What can go wrong with a log at rest.

use std::io;

use strata_capture::WriteError;
use strata_store::StoreError;

use crate::keys::KeyError;

/// The cause of an error in a table or payload file.
pub(crate) type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a log cannot be compacted, searched, verified or pruned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The log itself.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A compacted file is invalid.
    #[error("{file}: {source}; `strata verify` names the damaged bytes")]
    Table {
        /// The file.
        file: String,
        /// What is wrong.
        source: Source,
    },
    /// A file cannot be written or read.
    #[error("{file}: cannot {action}: {source}")]
    Io {
        /// The file.
        file: String,
        /// What was tried.
        action: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The output of an export.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A key in a file is invalid.
    #[error("{file}: {source}")]
    Key {
        /// The file.
        file: String,
        /// What is wrong with it.
        source: KeyError,
    },
    /// Another process changes the archive.
    #[error("{dir}: another process is compacting or pruning this log: wait for it, or stop it")]
    Busy {
        /// The log.
        dir: String,
    },
}

impl ArchiveError {
    pub(crate) fn table(file: &str, source: Source) -> Self {
        Self::Table {
            file: file.to_owned(),
            source,
        }
    }

    pub(crate) fn io(file: String, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            file,
            action,
            source,
        }
    }
}
