//! Which of a reporter's numbered reports have come.

/// Ranges of missing numbers that are remembered; of older ones, what comes late is refused as if
/// it had come before.
const RANGES_MAX: usize = 64;

/// Datagrams in a row that came before, or from before a restart, until they are believed. Duplicates
/// do not come like that; what does is a reporter whose numbers somebody else has used, since anyone
/// can forge a datagram from the future.
const SEEN_MAX: u8 = 64;

/// What is to be done with numbered reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// They are new; so many before them are missing now.
    New { missing: u32 },
    /// They were missing, and are not any more.
    Late,
    /// They were dropped so many times, and come again.
    Again { drops: u8 },
    /// They came before.
    Seen,
}

/// Numbers of one session of a reporter, from the first that came on.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    session: u8,
    /// Of the latest datagram.
    time_ns: u64,
    next: u32,
    /// Oldest first.
    missing: Vec<Range>,
    /// The latest datagrams that came before.
    seen: u8,
}

/// Numbers that have not come, or were dropped when they did.
#[derive(Clone, Copy, Debug)]
struct Range {
    first: u32,
    count: u32,
    /// How often they came and were dropped.
    drops: u8,
}

impl Sequence {
    /// Begins with reports `first..first + count`.
    pub(super) fn new(session: u8, time_ns: u64, first: u32, count: u32) -> Self {
        Self {
            session,
            time_ns,
            next: first.wrapping_add(count),
            missing: Vec::new(),
            seen: 0,
        }
    }

    /// Reports `first..first + count` have come.
    pub(super) fn arrive(&mut self, session: u8, time_ns: u64, first: u32, count: u32) -> Arrival {
        let arrival = self.place(session, time_ns, first, count);
        if arrival != Arrival::Seen {
            self.seen = 0;
            return arrival;
        }
        self.seen += 1;
        if self.seen < SEEN_MAX {
            return arrival;
        }
        *self = Self::new(session, time_ns, first, count);
        Arrival::New { missing: 0 }
    }

    fn place(&mut self, session: u8, time_ns: u64, first: u32, count: u32) -> Arrival {
        if session != self.session {
            // The reporter has started again, unless this comes from before that.
            if time_ns <= self.time_ns {
                return Arrival::Seen;
            }
            // It begins with 0.
            *self = Self::new(session, time_ns, 0, 0);
        }
        self.time_ns = self.time_ns.max(time_ns);
        let ahead = first.wrapping_sub(self.next).cast_signed();
        if let Ok(missing) = u32::try_from(ahead) {
            if missing > 0 {
                self.open(self.next, missing, 0);
            }
            self.next = first.wrapping_add(count);
            return Arrival::New { missing };
        }
        match self.close(first, count) {
            Some(0) => Arrival::Late,
            Some(drops) => Arrival::Again { drops },
            None => Arrival::Seen,
        }
    }

    /// Reports that had come were dropped, so many times by now: they may come again.
    pub(super) fn reopen(&mut self, first: u32, count: u32, drops: u8) {
        self.open(first, count, drops);
    }

    fn open(&mut self, first: u32, count: u32, drops: u8) {
        if self.missing.len() == RANGES_MAX {
            self.missing.remove(0);
        }
        self.missing.push(Range {
            first,
            count,
            drops,
        });
    }

    /// Takes numbers out of those that are missing, if all of them are, in one range; how
    /// often that one was dropped.
    fn close(&mut self, first: u32, count: u32) -> Option<u8> {
        let inside = |range: &Range| {
            let offset = first.wrapping_sub(range.first);
            offset < range.count && range.count - offset >= count
        };
        let index = self.missing.iter().position(inside)?;
        let range = self.missing.remove(index);
        let before = first.wrapping_sub(range.first);
        let pieces = [
            (first.wrapping_add(count), range.count - before - count),
            (range.first, before),
        ];
        for (first, count) in pieces.into_iter().filter(|&(_, count)| count > 0) {
            let piece = Range {
                first,
                count,
                ..range
            };
            self.missing.insert(index, piece);
        }
        self.missing.truncate(RANGES_MAX);
        Some(range.drops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_counted_and_filled_once_across_the_wrap() {
        let mut sequence = Sequence::new(1, 10, u32::MAX - 9, 5);
        let mut arrive = |first: u32, count| sequence.arrive(1, 10, first, count);
        assert_eq!(arrive(10, 5), Arrival::New { missing: 15 });
        assert_eq!(arrive(10, 5), Arrival::Seen);
        assert_eq!(arrive(u32::MAX, 3), Arrival::Late);
        assert_eq!(arrive(u32::MAX, 3), Arrival::Seen);
        assert_eq!(arrive(0, 1), Arrival::Seen);
        assert_eq!(arrive(u32::MAX - 4, 5), Arrival::Seen, "not wholly missing");
        assert_eq!(arrive(u32::MAX - 4, 4), Arrival::Late);
        assert_eq!(arrive(2, 8), Arrival::Late);
        assert_eq!(arrive(15, 1), Arrival::New { missing: 0 });
    }

    #[test]
    fn a_reporter_may_start_again_and_its_past_stays_past() {
        let mut sequence = Sequence::new(1, 10, 1000, 5);
        assert_eq!(sequence.arrive(2, 20, 3, 2), Arrival::New { missing: 3 });
        assert_eq!(sequence.arrive(1, 15, 1005, 5), Arrival::Seen);
        assert_eq!(sequence.arrive(2, 19, 0, 3), Arrival::Late);
        sequence.reopen(3, 1, 2);
        let again = sequence.arrive(2, 20, 3, 1);
        assert_eq!(again, Arrival::Again { drops: 2 });
    }

    #[test]
    fn a_forged_datagram_does_not_silence_its_reporter() {
        // From the future, and with so many gaps that the reporter's numbers are forgotten.
        let future: &[(u8, u64, u32)] = &[(9, u64::MAX, 0)];
        let gaps: Vec<(u8, u64, u32)> = (1..100).map(|n| (1, 10, n << 24)).collect();
        for forged in [future, &gaps] {
            let mut sequence = Sequence::new(1, 10, 0, 1);
            for &(session, time_ns, first) in forged {
                sequence.arrive(session, time_ns, first, 1);
            }
            let mut arrive = |n: u32| sequence.arrive(1, 10 + u64::from(n), n, 1);
            let refused = (1..1000).find(|&n| arrive(n) != Arrival::Seen);
            assert_eq!(refused, Some(u32::from(SEEN_MAX)));
            let taken = (65..1000).all(|n| arrive(n) == Arrival::New { missing: 0 });
            assert!(taken);
        }
    }

    #[test]
    fn memory_of_gaps_is_bounded() {
        let mut sequence = Sequence::new(1, 10, 0, 1);
        for n in 1..1000 {
            sequence.arrive(1, 10, n * 10, 1);
        }
        assert_eq!(sequence.missing.len(), RANGES_MAX);
        assert_eq!(sequence.arrive(1, 10, 5, 1), Arrival::Seen, "forgotten");
        assert_eq!(sequence.arrive(1, 10, 9985, 1), Arrival::Late);
    }
}
