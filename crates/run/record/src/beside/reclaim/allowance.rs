//! The bytes that a log with a limit may still grow by: writers take them block by block, and wait while a
//! thread deletes.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strata_store::Room;

/// How often the log is measured: files that no writer asks for, such as those of compaction, count too.
pub(super) const MEASURE_EVERY: Duration = Duration::from_millis(100);
/// Space is freed ahead for the growth of this many intervals: deleting takes no longer.
const TIMES_AHEAD: u64 = 5;
/// How long to wait before trying again.
pub(super) const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// A part of the limit is left to the ends of block files and to small files, up to a maximum.
const SMALL_FILES_SHARE: u64 = 64;
const SMALL_FILES_MAX: u64 = 64 << 20;

/// A size that the log keeps below.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    /// A file of each writer.
    pub(crate) reserve: u64,
    pub(crate) growth: Growth,
}

/// How a log with a limit grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Its writers ask before each block, and wait: their input can, too.
    Waits,
    /// They ask, but packets are lost if they wait for long. Space is freed ahead, for a file of each at most.
    Asks,
    /// They do not ask. Space is freed ahead, for at least a file of each.
    Free,
}

impl Growth {
    /// How long a writer waits for space. Then the log grows beyond its limit.
    fn patience(self) -> Duration {
        match self {
            Self::Waits => Duration::from_secs(10),
            Self::Asks | Self::Free => Duration::from_millis(500),
        }
    }
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Allowance {
    growth: Growth,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    limit: Option<Limit>,
    /// Bytes that may be written before the log is measured again.
    left: u64,
    /// Taken, and not in a file yet.
    in_flight: u64,
    /// Taken in all.
    taken: u64,
    /// Writers that wait, and the most that one of them waits for.
    waiting: usize,
    wanted: u64,
    /// Until when it is known that nothing can be deleted, or not in time: writers go on.
    in_vain: Option<Instant>,
    /// Bytes when last measured, and the largest recent growth per interval.
    size: u64,
    growth: u64,
    measured: Option<Instant>,
    has_ended: bool,
}

impl State {
    fn is_free(&self) -> bool {
        self.has_ended || self.in_vain.is_some_and(|until| Instant::now() < until)
    }

    fn take(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
        self.in_flight = self.in_flight.saturating_add(bytes);
        self.taken = self.taken.wrapping_add(bytes);
    }

    /// Space to free ahead of what is asked for now.
    fn ahead(&self, limit: Limit) -> u64 {
        let soon = self.growth.saturating_mul(TIMES_AHEAD);
        match limit.growth {
            Growth::Waits => 0,
            Growth::Asks => soon.min(limit.reserve),
            // With less than half of the log left there may be nothing to delete.
            Growth::Free => soon.min(limit.bytes / 2).max(limit.reserve),
        }
    }
}

/// What was taken when a measurement of the log began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    in_flight: u64,
    taken: u64,
}

impl Allowance {
    pub(crate) fn new(limit: Limit) -> Self {
        let state = State {
            limit: Some(limit),
            ..State::default()
        };
        Self {
            growth: limit.growth,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the bytes of files being written from now on.
    pub(super) fn set_reserve(&self, bytes: u64) {
        if let Some(limit) = &mut self.lock().limit {
            // Even if the log is too small for its writers, half of it is kept.
            limit.reserve = bytes.min(limit.bytes / 2);
        }
    }

    /// Waits until the log is to be measured; `None` once nothing more is written.
    pub(super) fn until_due(&self) -> Option<Before> {
        let mut state = self.lock();
        if state.waiting == 0 || state.is_free() {
            let waited = self.changed.wait_timeout(state, MEASURE_EVERY);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        (!state.has_ended).then_some(Before {
            in_flight: state.in_flight,
            taken: state.taken,
        })
    }

    /// The log has `size` bytes, measured since `before`; if it is compacted, a file of each writer is left free for
    /// that. Returns the bytes to delete, if there is not enough space for what is asked for; else writers may go on.
    pub(super) fn measured(&self, before: Before, size: u64, is_compacted: bool) -> Option<u64> {
        let mut state = self.lock();
        let limit = state.limit?;
        let now = Instant::now();
        let is_due = state.measured.is_none_or(|at| now - at >= MEASURE_EVERY);
        if is_due {
            let first = state.measured.replace(now).is_none();
            let grown = size.saturating_sub(std::mem::replace(&mut state.size, size));
            let decayed = state.growth - state.growth / 8;
            // A log that was there before has not grown.
            state.growth = if first { 0 } else { grown.max(decayed) };
        }
        // Blocks that have landed meanwhile may count twice: rather too little is left than too much.
        let since = state.taken.wrapping_sub(before.taken);
        let small = (limit.bytes / SMALL_FILES_SHARE).min(SMALL_FILES_MAX);
        let extra = if is_compacted { limit.reserve } else { 0 };
        let used = [before.in_flight, since, small, extra];
        let used = used.into_iter().fold(size, u64::saturating_add);
        state.left = limit.bytes.saturating_sub(used);
        let wanted = match state.waiting {
            0 => 0,
            _ => state.wanted,
        };
        let needed = used.saturating_add(state.ahead(limit).max(wanted));
        let above = needed.saturating_sub(limit.bytes);
        if state.waiting > 0 && state.left >= wanted {
            self.changed.notify_all();
        }
        (above > 0).then_some(above)
    }

    /// Nothing can be deleted for now: writers go on.
    pub(super) fn in_vain(&self) {
        self.lock().in_vain = Some(Instant::now() + AGAIN_AFTER);
        self.changed.notify_all();
    }

    /// Something was deleted: writers ask again.
    pub(super) fn helped(&self) {
        self.lock().in_vain = None;
    }

    /// Nothing more is deleted.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        self.changed.notify_all();
    }
}

impl Room for Allowance {
    fn take(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        let may = state.left >= bytes || state.is_free();
        if may {
            state.take(bytes);
        }
        may
    }

    fn wait(&self, bytes: u64) {
        let mut state = self.lock();
        state.waiting += 1;
        state.wanted = state.wanted.max(bytes);
        self.changed.notify_all();
        let until = Instant::now() + self.growth.patience();
        while state.left < bytes && !state.is_free() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Others need not wait as long in vain.
                state.in_vain = Some(Instant::now() + AGAIN_AFTER);
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
        if state.waiting == 0 {
            state.wanted = 0;
        }
        state.take(bytes);
    }

    fn landed(&self, bytes: u64) {
        let mut state = self.lock();
        state.in_flight = state.in_flight.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    fn allowance(growth: Growth) -> Allowance {
        Allowance::new(Limit {
            bytes: 6_400,
            reserve: 1_000,
            growth,
        })
    }

    /// A hundredth or so is for small files; the rest is given out to the last byte, and no more.
    #[test]
    fn a_log_is_filled_to_its_limit_before_anything_is_deleted() {
        let room = allowance(Growth::Waits);
        assert!(!room.take(1), "it was not measured yet");
        let before = room.until_due().unwrap();
        assert_eq!(room.measured(before, 5_000, false), None);
        assert!(room.take(1_000) && room.take(300));
        assert!(!room.take(1), "1,300 were left besides 100 for small files");
        // What is in flight counts, until it has landed and is measured.
        let before = room.until_due().unwrap();
        assert_eq!(room.measured(before, 5_000, false), None);
        assert!(!room.take(1));
        room.landed(1_300);
        let before = room.until_due().unwrap();
        assert_eq!(room.measured(before, 6_100, false), None);
        assert!(room.take(200) && !room.take(1));
    }

    /// What is taken while the log is measured may be in a file that was measured before.
    #[test]
    fn bytes_taken_during_a_measurement_count() {
        let room = allowance(Growth::Waits);
        let before = room.until_due().unwrap();
        room.measured(before, 0, false);
        let before = room.until_due().unwrap();
        assert!(room.take(2_000));
        room.landed(2_000);
        assert_eq!(room.measured(before, 0, false), None);
        assert!(room.take(4_300) && !room.take(1));
    }

    #[test]
    fn a_writer_waits_until_there_is_space() {
        let room = Arc::new(allowance(Growth::Waits));
        let writer = Arc::clone(&room);
        let waiting = thread::spawn(move || writer.wait(1_000));
        let mut deleted = 0;
        // As a thread that deletes: 500 bytes are too many at first.
        while !waiting.is_finished() {
            let Some(before) = room.until_due() else {
                break;
            };
            if let Some(above) = room.measured(before, 5_800 - deleted, false) {
                assert_eq!(above, 500);
                deleted += above;
            }
        }
        waiting.join().unwrap();
        assert_eq!(deleted, 500);
        assert!(!room.take(1), "it has taken all that was left");
    }

    #[test]
    fn a_writer_goes_on_if_nothing_can_be_deleted() {
        let room = Arc::new(allowance(Growth::Waits));
        let writer = Arc::clone(&room);
        let waiting = thread::spawn(move || writer.wait(10_000));
        room.in_vain();
        waiting.join().unwrap();
        assert!(room.take(10_000));
        room.helped();
        assert!(!room.take(1));
    }

    /// Where packets would be lost, space is freed for the growth of some intervals, but never for more than a file.
    #[test]
    fn a_live_capture_frees_a_file_ahead_at_most() {
        let room = allowance(Growth::Asks);
        let measure = |size| {
            let before = room.until_due().unwrap();
            room.measured(before, size, false)
        };
        assert_eq!(measure(5_000), None, "it was there before");
        assert_eq!(measure(5_050), None);
        // Of 5,000 bytes in an interval, no more than 1,000 are freed ahead.
        let above = measure(6_200).unwrap();
        assert_eq!(above, 6_200 + 100 + 1_000 - 6_400);
    }
}
