//! Datagrams that another part of the program reads.

use std::time::Duration;

use crate::error::Result;

/// Datagrams that come one after the other from something that is no socket, ring or file: a directory, a stream.
pub trait Datagrams: Send {
    /// Its name, for messages.
    fn name(&self) -> String;

    /// Whether more datagrams may come at any time, until reading is stopped.
    fn is_live(&self) -> bool;

    /// Gives datagrams to `take`, until it returns false or there are no more for now. Then, if more may come, it waits
    /// for them, at most for this time. False if no more can come.
    ///
    /// # Errors
    ///
    /// If the datagrams cannot be read.
    fn read(&mut self, wait: Duration, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<bool>;

    /// Records that could not be read so far, each of which had a datagram, or frames, each of which had a vector.
    fn unread(&self) -> u64 {
        0
    }

    /// What the user should know of those that could not be read, given once.
    fn warning(&mut self) -> Option<String> {
        None
    }
}
