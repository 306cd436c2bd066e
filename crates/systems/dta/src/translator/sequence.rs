//! Which of a reporter's numbered reports have come.

use crate::gaps::Gaps;

/// Datagrams in a row that came before, or from before a restart, until they are believed. Duplicates
/// do not come like that; what does is a reporter whose numbers somebody else has used, since anyone
/// can forge a datagram from the future.
const SEEN_MAX: u8 = 64;

/// Reports that may be missing at once. With a larger gap the numbers go on elsewhere, and how many
/// were lost is not known: otherwise a single forged datagram would count two billion losses.
const LOST_MAX: u32 = 1 << 20;
/// As many may be missing again after this time for each: more reports than that are not lost for long.
const LOST_EVERY_NS: u64 = 1_000;

/// What is to be done with numbered reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrival {
    /// They are new; `missing` before them are missing now.
    New { missing: u32 },
    /// They are new, and the reporter's numbers go on from them: those before say nothing.
    Jump,
    /// They were missing, and are not any more.
    Late,
    /// They were dropped `drops` times, and come again.
    Again { drops: u8 },
    /// They came before.
    Seen,
}

/// Where numbered reports come from and when: the session and the time that they say, and the time here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    pub(super) session: u8,
    pub(super) time_ns: u64,
    pub(super) now_ns: u64,
}

/// Numbers of one session of a reporter, from the first that came on.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    session: u8,
    /// Of the latest datagram.
    time_ns: u64,
    next: u32,
    /// Numbers that have not come, or were dropped when they did; how often they were dropped.
    missing: Gaps<u8>,
    /// The latest datagrams that came before.
    seen: u8,
    credit: Credit,
}

/// How many reports may be missing, by the time here: it fills with it.
#[derive(Clone, Copy, Debug)]
struct Credit {
    reports: u32,
    at_ns: u64,
}

impl Credit {
    /// Takes as many, if there are as many.
    fn take(&mut self, reports: u32, now_ns: u64) -> bool {
        let more = now_ns.saturating_sub(self.at_ns) / LOST_EVERY_NS;
        if more > 0 {
            let sum = more.saturating_add(u64::from(self.reports));
            // As it was, if that were more than there may be.
            self.reports = u32::try_from(sum).map_or(LOST_MAX, |sum| sum.min(LOST_MAX));
            self.at_ns = now_ns;
        }
        let left = self.reports.checked_sub(reports);
        self.reports = left.unwrap_or(self.reports);
        left.is_some()
    }
}

impl Sequence {
    /// Begins with reports `first..first + count`.
    pub(super) fn new(stamp: Stamp, first: u32, count: u32) -> Self {
        let Stamp {
            session,
            time_ns,
            now_ns,
        } = stamp;
        Self {
            session,
            time_ns,
            next: first.wrapping_add(count),
            missing: Gaps::default(),
            seen: 0,
            credit: Credit {
                reports: LOST_MAX,
                at_ns: now_ns,
            },
        }
    }

    /// Begins again; what may be missing stays bounded.
    fn begin(&mut self, stamp: Stamp, first: u32, count: u32) {
        let credit = self.credit;
        *self = Self::new(stamp, first, count);
        self.credit = credit;
    }

    /// Reports `first..first + count` have come: what is to be done with the first of them, and with how many (at
    /// least one). It is asked again for the others, whose numbers have another history.
    pub(super) fn arrive(&mut self, stamp: Stamp, first: u32, count: u32) -> (Arrival, u32) {
        let (arrival, alike) = self.place(stamp, first, count);
        if arrival != Arrival::Seen {
            self.seen = 0;
            return (arrival, alike);
        }
        if alike < count {
            return (arrival, alike);
        }
        self.seen = self.seen.saturating_add(1);
        if self.seen < SEEN_MAX {
            return (arrival, alike);
        }
        self.begin(stamp, first, count);
        (Arrival::Jump, count)
    }

    fn place(&mut self, stamp: Stamp, first: u32, count: u32) -> (Arrival, u32) {
        if stamp.session != self.session {
            // The reporter has started again, unless this comes from before that.
            if stamp.time_ns <= self.time_ns {
                return (Arrival::Seen, count);
            }
            // It begins with 0.
            self.begin(stamp, 0, 0);
        }
        let latest_ns = self.time_ns.max(stamp.time_ns);
        self.time_ns = latest_ns;
        let ahead = first.wrapping_sub(self.next).cast_signed();
        if let Ok(missing) = u32::try_from(ahead) {
            if !self.credit.take(missing, stamp.now_ns) {
                self.begin(stamp, first, count);
                self.time_ns = latest_ns;
                return (Arrival::Jump, count);
            }
            if missing > 0 {
                self.missing.open(self.next, missing, 0);
            }
            self.next = first.wrapping_add(count);
            return (Arrival::New { missing }, count);
        }
        // Those from the next number on are new.
        let alike = count.min(ahead.unsigned_abs());
        match self.missing.close_first(first, alike) {
            (Some(0), closed) => (Arrival::Late, closed),
            (Some(drops), closed) => (Arrival::Again { drops }, closed),
            (None, known) => (Arrival::Seen, known),
        }
    }

    /// Reports that had come were dropped, `drops` times by now: they may come again.
    pub(super) fn reopen(&mut self, first: u32, count: u32, drops: u8) {
        self.missing.open(first, count, drops);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gaps::RANGES_MAX;

    fn stamp(session: u8, time_ns: u64) -> Stamp {
        Stamp {
            session,
            time_ns,
            now_ns: 0,
        }
    }

    #[test]
    fn gaps_are_counted_and_filled_once_across_the_wrap() {
        let mut sequence = Sequence::new(stamp(1, 10), u32::MAX - 9, 5);
        let mut arrive = |first: u32, count| sequence.arrive(stamp(1, 10), first, count);
        assert_eq!(arrive(10, 5), (Arrival::New { missing: 15 }, 5));
        assert_eq!(arrive(10, 5), (Arrival::Seen, 5));
        assert_eq!(arrive(u32::MAX, 3), (Arrival::Late, 3));
        assert_eq!(arrive(u32::MAX, 3), (Arrival::Seen, 3));
        assert_eq!(arrive(0, 1), (Arrival::Seen, 1));
        // MAX - 4 to MAX - 1 are missing, MAX to 1 have come, 2 to 9 are missing, 10 to 14 have come, 15 is next.
        assert_eq!(arrive(u32::MAX - 4, 22), (Arrival::Late, 4));
        assert_eq!(arrive(u32::MAX, 18), (Arrival::Seen, 3));
        assert_eq!(arrive(2, 15), (Arrival::Late, 8));
        assert_eq!(arrive(10, 7), (Arrival::Seen, 5));
        assert_eq!(arrive(15, 2), (Arrival::New { missing: 0 }, 2));
        assert_eq!(arrive(16, 2), (Arrival::Seen, 1));
        assert_eq!(arrive(17, 1), (Arrival::New { missing: 0 }, 1));
    }

    #[test]
    fn a_reporter_may_start_again_and_its_past_stays_past() {
        let mut sequence = Sequence::new(stamp(1, 10), 1000, 5);
        assert_eq!(
            sequence.arrive(stamp(2, 20), 3, 2),
            (Arrival::New { missing: 3 }, 2)
        );
        assert_eq!(sequence.arrive(stamp(1, 15), 1005, 5), (Arrival::Seen, 5));
        assert_eq!(sequence.arrive(stamp(2, 19), 0, 3), (Arrival::Late, 3));
        sequence.reopen(3, 1, 2);
        let again = sequence.arrive(stamp(2, 20), 3, 1);
        assert_eq!(again, (Arrival::Again { drops: 2 }, 1));
    }

    #[test]
    fn a_forged_datagram_does_not_silence_its_reporter() {
        // From the future, and with too many gaps: the reporter's numbers are forgotten.
        let future: &[(u8, u64, u32)] = &[(9, u64::MAX, 0)];
        let gaps: Vec<(u8, u64, u32)> = (1..100).map(|n| (1, 10, n << 24)).collect();
        for forged in [future, &gaps] {
            let mut sequence = Sequence::new(stamp(1, 10), 0, 1);
            for &(session, time_ns, first) in forged {
                sequence.arrive(stamp(session, time_ns), first, 1);
            }
            let mut arrive = |n: u32| sequence.arrive(stamp(1, 10 + u64::from(n)), n, 1).0;
            let refused = (1..1000).find(|&n| arrive(n) != Arrival::Seen);
            assert_eq!(refused, Some(u32::from(SEEN_MAX)));
            let taken = (65..1000).all(|n| arrive(n) == Arrival::New { missing: 0 });
            assert!(taken);
        }
    }

    #[test]
    fn forged_numbers_do_not_own_the_losses() {
        let mut sequence = Sequence::new(stamp(1, 10), 0, 1);
        let (mut missing, mut jumps) = (0, 0);
        for n in 1..20_000_u32 {
            // In steps of any size, and as one that starts again: 10 s in all.
            for (session, first) in [
                (1, n.wrapping_mul(1 << 30)),
                (1, n.wrapping_mul(1 << 19)),
                (n.to_le_bytes()[0], u32::MAX >> 1),
            ] {
                let stamp = Stamp {
                    session,
                    time_ns: u64::from(n),
                    now_ns: u64::from(n) * 500_000,
                };
                match sequence.arrive(stamp, first, 1).0 {
                    Arrival::New { missing: more } => missing += u64::from(more),
                    Arrival::Jump => jumps += 1,
                    _ => {}
                }
            }
        }
        assert!(missing <= u64::from(LOST_MAX) + 10_000_000, "{missing}");
        assert!(jumps > 10_000, "{jumps}");
        // A reporter is believed that one in 10 of its reports is lost, as long as it says so.
        let mut sequence = Sequence::new(stamp(1, 10), 0, 1);
        let mut missing = 0;
        for n in 1..100_000_u32 {
            let stamp = Stamp {
                session: 1,
                time_ns: 10,
                now_ns: u64::from(n) * 100_000,
            };
            match sequence.arrive(stamp, n * 100, 90).0 {
                Arrival::New { missing: more } => missing += u64::from(more),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(missing, 99 + 99_998 * 10);
    }

    #[test]
    fn memory_of_gaps_is_bounded() {
        let mut sequence = Sequence::new(stamp(1, 10), 0, 1);
        for n in 1..1000 {
            sequence.arrive(stamp(1, 10), n * 10, 1);
        }
        assert_eq!(sequence.missing.len(), RANGES_MAX);
        assert_eq!(
            sequence.arrive(stamp(1, 10), 5, 1),
            (Arrival::Seen, 1),
            "forgotten"
        );
        assert_eq!(sequence.arrive(stamp(1, 10), 9985, 1).0, Arrival::Late);
    }
}
