//! What can go wrong with a table.

use std::error::Error;

/// The cause of an error in a table.
pub type Source = Box<dyn Error + Send + Sync>;

/// Told to stop while a table was written.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// A table that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {source}")]
pub struct TableError {
    /// The file, as messages show it.
    pub file: String,
    /// What is wrong.
    pub source: Source,
}

impl TableError {
    pub(crate) fn of(file: &str, source: Source) -> Self {
        Self {
            file: file.to_owned(),
            source,
        }
    }
}
