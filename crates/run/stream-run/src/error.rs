//! What can go wrong with streams on disk.

use std::io;

use strata_role::RoleError;
use strata_stream::{DescriptionError, GeometryError};

/// Why streams cannot be created, appended to or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A file cannot be read or written.
    #[error("{file}: {source}")]
    File {
        /// Its path.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// The directory has something else.
    #[error(
        "{dir}: not a directory of streams: `strata stream create {dir} NAME` makes one, with a stream"
    )]
    NotStreams {
        /// Its path.
        dir: String,
    },
    /// A directory of streams is to be made where something else is.
    #[error("{dir}: holds other files: name a new or empty directory, or a directory of streams")]
    Foreign {
        /// Its path.
        dir: String,
    },
    /// It has a part of the pages of another.
    #[error("{dir}: a stripe of a directory of streams: name that directory")]
    IsStripe {
        /// Its path.
        dir: String,
    },
    /// There is no stream of that name.
    #[error(
        "{dir}: no stream {name}: `strata stream list` lists the streams, `strata stream create` \
         creates one"
    )]
    Unknown {
        /// The directory.
        dir: String,
        /// The name.
        name: String,
    },
    /// There is one already.
    #[error("{dir}: a stream {name} exists already")]
    Exists {
        /// The directory.
        dir: String,
        /// The name.
        name: String,
    },
    /// A directory was named as a spool that has a stream of its own.
    #[error(
        "{dir}: the stream {name} there is not a spool: name a new directory, or one that was a spool before"
    )]
    NotSpool {
        /// The directory.
        dir: String,
        /// The name.
        name: String,
    },
    /// Another process appends.
    #[error(
        "{dir}: another process is appending to {name}, and only one may: give each process its \
         own stream"
    )]
    InUse {
        /// The directory.
        dir: String,
        /// The name.
        name: String,
    },
    /// A file of the directory is damaged.
    #[error("{file}: {problem}")]
    Damaged {
        /// Its path.
        file: String,
        /// What is wrong, and where.
        problem: String,
    },
    /// A stream's description is damaged.
    #[error("{file}: {source}")]
    Description {
        /// Its path.
        file: String,
        /// What is wrong.
        source: DescriptionError,
    },
    /// Sizes of pages that cannot be.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A record is too long for the stream.
    #[error(
        "{name}: a record of {len} bytes is too long: records of this stream may be at most {max} \
         bytes long"
    )]
    TooLong {
        /// The stream.
        name: String,
        /// The record's bytes.
        len: usize,
        /// How many are allowed.
        max: usize,
    },
    /// The list of those that are connected would not fit into a page.
    #[error("{name}: too many producers are connected for the size of its pages")]
    Producers {
        /// The stream.
        name: String,
    },
    /// The server keeps no further cursor for a stream.
    #[error(
        "{name}: has {max} saved cursors already, the most that a server keeps: use the name of one, or delete \
         some of them from cursors/{name}.stream on the server's machine"
    )]
    Cursors {
        /// The stream.
        name: String,
        /// How many it may have.
        max: usize,
    },
    /// Stripes of the stream have failed, and these records with them.
    #[error(
        "{records} records were lost with a failed stripe: append them again, and they go to the other stripes"
    )]
    Lost {
        /// How many.
        records: u64,
    },
    /// A write has failed before, so nothing more is appended.
    #[error("{file}: an earlier write failed: open the stream again")]
    Failed {
        /// The file.
        file: String,
    },
    /// A server could not write the stream, and opens it again only after a while.
    #[error("{problem}; the server opens the stream again after a pause")]
    Paused {
        /// What the disk said.
        problem: String,
    },
}

impl StreamError {
    /// What a disk said, without the paths of this machine.
    pub(super) fn of_disk(&self) -> Option<String> {
        match self {
            Self::File { source, .. } => Some(format!("the stream's disk: {source}")),
            _ => None,
        }
    }

    /// Whether there is no more space.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::File { source, .. } if source.kind() == io::ErrorKind::StorageFull)
    }
}

impl From<StreamError> for RoleError {
    fn from(error: StreamError) -> Self {
        Self::own(error)
    }
}

pub(super) type Result<T> = std::result::Result<T, StreamError>;

/// Names the file in an error of the operating system.
pub(super) trait In<T> {
    fn in_file(self, file: impl FnOnce() -> String) -> Result<T>;
}

impl<T> In<T> for io::Result<T> {
    fn in_file(self, file: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| StreamError::File {
            file: file(),
            source,
        })
    }
}
