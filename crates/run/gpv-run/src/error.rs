//! What can go wrong with vectors at work.

use std::error::Error;
use std::io;

use parquet::errors::ParquetError;
use strata_gpv::format::FormatError;
use strata_role::RoleError;
use strata_store::OutputError;

use crate::form::Form;

/// Why vectors cannot be made, received or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VectorError {
    /// The request cannot be fulfilled. The text says what to do instead.
    #[error("{0}")]
    Refused(String),
    /// A file cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The file or address at fault, and what was to be done with it; the source says why it failed.
    #[error("{what}")]
    At {
        /// Its name, and what was to be done.
        what: String,
        /// What is wrong.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A file contains something other than vectors of this form.
    #[error("{file}: not valid {form} vectors from byte {at}: {source}")]
    NoVectors {
        /// The file.
        file: String,
        /// Where what cannot be read begins.
        at: u64,
        /// The form that was expected.
        form: Form,
        /// What is wrong with it.
        source: FormatError,
    },
    /// A file is empty, where even one without packets has a datagram.
    #[error("{0}: the file is empty: was the command that wrote it killed?")]
    Empty(String),
    /// A file is not a readable ring, or is too small for one.
    #[error("{ring}: {problem}")]
    Ring {
        /// The file.
        ring: String,
        /// What is wrong, and where.
        problem: String,
    },
    /// Too many destinations are given for vectors.
    #[error("--send-to is given {targets} times; at most {most} are allowed")]
    TooManyTargets {
        /// How many.
        targets: usize,
        /// How many are possible.
        most: usize,
    },
    /// A file of records has too many parts.
    #[error("{file}: already has {parts} parts, the maximum: rotate files (-G, -C)")]
    TooManyParts {
        /// The file.
        file: String,
        /// How many there are.
        parts: u32,
    },
    /// A file or a socket cannot be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Rows cannot be written.
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    /// An error that any role can have.
    #[error(transparent)]
    Role(#[from] RoleError),
}

pub(crate) type Result<T, E = VectorError> = std::result::Result<T, E>;

/// Names what went wrong.
pub(crate) trait At<T> {
    /// With this file or address, and what was to be done with it.
    fn at_with(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> At<T> for std::result::Result<T, E> {
    fn at_with(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| VectorError::At {
            what: what(),
            source: error.into(),
        })
    }
}
