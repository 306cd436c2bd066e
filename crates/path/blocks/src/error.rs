//! Why blocks go nowhere.

use std::error::Error;

/// Why a sink does not store a block, or takes no more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// No space is left.
    #[error(
        "{file}: the disk is full: {}packets that do not fit are counted as dropped (disk_full)",
        if *.goes_on { "" } else { "the recording ends; " }
    )]
    Full {
        /// The file.
        file: String,
        /// Whether later blocks are tried again.
        goes_on: bool,
    },
    /// Data sent to a relay may not have reached its disk.
    #[error("the connection to the relay was lost")]
    RelayLost,
    /// The relay cannot store what it receives, and says why.
    #[error("{0}; packets that the relay had not stored are lost, and counted")]
    RelayFailed(String),
    /// The writer thread ended on its own.
    #[error("the log's writer thread ended unexpectedly")]
    WriterGone,
    /// It cannot be written.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}
