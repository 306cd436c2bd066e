//! What can go wrong with a log at rest.

use std::error::Error;
use std::io;

use strata_capture::WriteError;
use strata_store::StoreError;
pub(crate) use strata_tables::Source;
use strata_tables::{Interrupted, TableError};
use strata_wire::human_bytes;

use crate::keys::KeyError;

/// Bytes that are not those that were written.
#[derive(Debug, thiserror::Error)]
#[error("the checksum of the {len} bytes at offset {offset} does not match")]
pub(crate) struct Mismatch {
    /// How many.
    pub(crate) len: usize,
    /// Bytes from the start of the file.
    pub(crate) offset: u64,
}

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
    /// This user may not change the log.
    #[error(
        "{file}: cannot lock: {source}: run this command as the owner of the log, who may write to \
         its directory"
    )]
    NotAllowed {
        /// The lock file.
        file: String,
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
    /// Told to stop before it was done.
    #[error("interrupted")]
    Interrupted,
    /// Deletion by age would take most of a log whose newest packet is old by this clock.
    #[error(transparent)]
    MostWouldGo(#[from] MostWouldGo),
}

/// Deletion by age would take most of a log whose newest packet is old by this clock: the clock may be
/// wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "nothing was deleted: {} of {} are old enough to delete, but by this clock the newest packet \
     is {} hours old; if the clock is right, give --yes",
    human_bytes(*.bytes),
    human_bytes(*.of_bytes),
    .newest_age_ns / HOUR_NS
)]
pub struct MostWouldGo {
    /// Bytes that are too old.
    pub bytes: u64,
    /// Bytes of the log.
    pub of_bytes: u64,
    /// How long ago its newest packet arrived, ns.
    pub newest_age_ns: u64,
}

/// An hour.
pub(crate) const HOUR_NS: u64 = 3_600_000_000_000;

impl ArchiveError {
    /// Whether bytes of a compacted file are not those that were written, or make no sense.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Table { .. } => true,
            Self::Io { source, .. } => source.kind() == io::ErrorKind::InvalidData,
            _ => false,
        }
    }

    /// Whether a compacted file is not there.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether a file is encrypted and the key for it is not given, or another one is.
    #[must_use]
    pub fn lacks_key(&self) -> bool {
        // The system's own denial has its number.
        matches!(self, Self::Io { source, .. }
            if source.kind() == io::ErrorKind::PermissionDenied && source.raw_os_error().is_none())
    }

    /// Where the bytes that are not those that were written begin; the start of the file if no
    /// checksum of a piece of it says so.
    #[must_use]
    pub fn damaged_at(&self) -> u64 {
        let mut cause: Option<&(dyn Error + 'static)> = match self {
            Self::Table { source, .. } => Some(source.as_ref()),
            Self::Io { source, .. } => Some(source),
            _ => None,
        };
        while let Some(error) = cause {
            let inner = error
                .downcast_ref::<io::Error>()
                .and_then(io::Error::get_ref);
            if let Some(mismatch) = inner.and_then(|inner| inner.downcast_ref::<Mismatch>()) {
                return mismatch.offset;
            }
            cause = inner.map(|inner| inner as _).or_else(|| error.source());
        }
        0
    }

    /// Whether another process holds the log's lock, which ends by itself.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. })
    }

    pub(crate) fn table(file: &str, source: Source) -> Self {
        if source.is::<Interrupted>() {
            return Self::Interrupted;
        }
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

impl From<TableError> for ArchiveError {
    fn from(error: TableError) -> Self {
        Self::table(&error.file, error.source)
    }
}
