//! What has to be done for a stream in time: records become visible, and durable; old pages go.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::stream::appender::StreamAppender;

/// Records that came are in the file after this long, and survive a loss of power after the other.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How often pages are looked for that are too old to keep, also if nothing comes.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);

/// When a stream that is appended to has to be flushed, synced and looked through.
#[derive(Clone, Copy, Debug)]
pub struct Upkeep {
    unflushed: Option<Instant>,
    unsynced: Option<Instant>,
    expires: Instant,
}

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// Nothing was due.
    Nothing,
    /// All records are in the file.
    Flushed,
    /// All records survive a loss of power.
    Synced,
}

impl Upkeep {
    /// Of a stream that was just opened.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            unflushed: None,
            unsynced: None,
            expires: now + EXPIRE_EVERY,
        }
    }

    /// Records were appended.
    pub fn appended(&mut self, now: Instant) {
        self.unflushed.get_or_insert(now + FLUSH_EVERY);
        self.unsynced.get_or_insert(now + SYNC_EVERY);
    }

    /// The records that came are to be synced now.
    pub fn hurry(&mut self, now: Instant) {
        self.unsynced = self.unsynced.map(|due| due.min(now));
    }

    /// When something is due.
    #[must_use]
    pub fn due(&self) -> Instant {
        let writes = self.unflushed.or(self.unsynced);
        writes.map_or(self.expires, |due| self.expires.min(due))
    }

    /// Does what is due.
    ///
    /// # Errors
    ///
    /// If the disk fails or is full.
    pub fn run(
        &mut self,
        appender: &mut StreamAppender,
        now: Instant,
        now_ns: u64,
    ) -> Result<Kept> {
        let is_due = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        let mut kept = Kept::Nothing;
        if is_due(self.unsynced) {
            appender.sync(now_ns)?;
            (self.unflushed, self.unsynced) = (None, None);
            kept = Kept::Synced;
        } else if is_due(self.unflushed) {
            appender.flush(now_ns)?;
            self.unflushed = None;
            kept = Kept::Flushed;
        }
        if self.expires <= now {
            appender.expire(now_ns)?;
            self.expires = now + EXPIRE_EVERY;
        }
        Ok(kept)
    }
}
