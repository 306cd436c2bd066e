//! Where the records of a role go as well: a stream, in practice. Roles know no more of it than this; live ones do
//! not wait for it.

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Instant;

use crate::error::Result;
use crate::notice::Tell;

/// What became of records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FeedCounts {
    /// In the stream's file.
    pub written: u64,
    /// Not in it: the queue was full, the disk failed, or they are too long; an upper bound.
    pub lost: u64,
}

/// A feed that has not begun. It is made before a role is in its sandbox.
pub trait FeedSpec: Debug + Send {
    /// What it writes: for [`Reach::write`](crate::sandbox::Reach).
    fn writes(&self) -> Vec<PathBuf>;

    /// Begins, in the sandbox; warns when records begin to be lost, and when they no longer are.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    fn open(self: Box<Self>, tell: &Tell) -> Result<Box<dyn Feed>>;
}

/// Takes records, which may be lost unless it was made to wait for room.
pub trait Feed: Debug + Send {
    /// Gives it a record. One for which there is no room now is lost, and counted, or waited for.
    ///
    /// # Errors
    ///
    /// If it cannot be written, and was made to wait.
    fn put(&mut self, record: &[u8]) -> Result<()>;

    /// The same, but waits for room until then.
    fn put_by(&mut self, record: &[u8], deadline: Instant);

    /// Counts records that could not be given to it at all.
    fn lose(&mut self, records: u64);

    /// What became of records so far; those that wait are neither.
    fn counts(&self) -> FeedCounts;

    /// Has everything written, except what a disk that stalls holds up: that is lost.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    fn finish(self: Box<Self>) -> Result<FeedCounts>;
}
