//! Whose packets a ring of many interfaces has dropped.
//!
//! The kernel counts them for the whole ring only. Its program counts what it admits of each member; what of
//! that we have not seen is dropped, or still in the ring. Once everything in the ring at a moment was seen,
//! the difference at that moment is what was dropped:
//!
//! ```text
//! admitted by then - seen with a time up to then <= dropped by then
//! ```
//!
//! They are equal, but for packets that the program had not yet counted at that moment, since the kernel notes
//! a packet's time before: so it is never too much. When the ring is empty, it is exact.

/// What we have seen of a member.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Its number in a worker.
    pub(super) interface: u16,
    /// The time of its last packet.
    pub(super) last_ts_ns: u64,
    pub(super) seen: u64,
    /// Of these, how many came after the moment at which losses are looked at.
    pub(super) seen_after: u64,
}

/// Losses, by member.
#[derive(Debug)]
pub(super) struct Losses {
    dropped: Vec<u64>,
    /// The sum of these.
    sum: u64,
    moment: Option<Moment>,
}

#[derive(Debug)]
struct Moment {
    /// By the clock of packets.
    at_ns: u64,
    admitted: Vec<u64>,
    /// What the ring had dropped.
    drops: u64,
}

impl Losses {
    pub(super) fn new(members: usize) -> Self {
        Self {
            dropped: vec![0; members],
            sum: 0,
            moment: None,
        }
    }

    pub(super) fn dropped(&self) -> &[u64] {
        &self.dropped
    }

    /// Whether it is known whose `drops` packets were.
    pub(super) fn are_known(&self, drops: u64) -> bool {
        self.sum == drops
    }

    /// The moment at which losses are looked at, until [`Losses::passed`].
    pub(super) fn moment_ns(&self) -> Option<u64> {
        self.moment.as_ref().map(|moment| moment.at_ns)
    }

    /// Forgets the moment: the next look begins another.
    pub(super) fn forget(&mut self) {
        self.moment = None;
    }

    /// At `now_ns` at the earliest, the packets of each member that were admitted, and what the ring had
    /// dropped before and after they were counted.
    pub(super) fn look(
        &mut self,
        now_ns: u64,
        admitted: &[u64],
        [before, drops]: [u64; 2],
        tallies: &mut [Tally],
    ) {
        if self.are_known(drops) {
            return;
        }
        let missing = admitted.iter().zip(&*tallies);
        let missing = missing.map(|(admitted, tally)| admitted.saturating_sub(tally.seen));
        if before == drops && missing.clone().sum::<u64>() == drops {
            // Nothing is in the ring.
            self.dropped = missing.collect();
            self.sum = drops;
            self.moment = None;
        } else if self.moment.is_none() {
            for tally in tallies {
                tally.seen_after = 0;
            }
            self.moment = Some(Moment {
                at_ns: now_ns,
                admitted: admitted.to_vec(),
                drops,
            });
        }
    }

    /// All packets that were in the ring at the moment have been seen.
    pub(super) fn passed(&mut self, tallies: &[Tally]) {
        let Some(moment) = self.moment.take() else {
            return;
        };
        let each = self.dropped.iter().zip(&moment.admitted).zip(tallies);
        let dropped: Vec<u64> = each
            .map(|((&known, admitted), tally)| {
                let until_then = tally.seen.saturating_sub(tally.seen_after);
                known.max(admitted.saturating_sub(until_then))
            })
            .collect();
        let sum = dropped.iter().sum();
        // More than that only if the clock was set back meanwhile.
        if sum <= moment.drops {
            (self.dropped, self.sum) = (dropped, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// A ring of a number of packets, by member and time, and what it has dropped of each.
    struct Ring {
        room: usize,
        waiting: VecDeque<(usize, u64)>,
        admitted: Vec<u64>,
        dropped: Vec<u64>,
    }

    impl Ring {
        fn put(&mut self, member: usize, now_ns: u64) {
            self.admitted[member] += 1;
            match self.waiting.len() < self.room {
                true => self.waiting.push_back((member, now_ns)),
                false => self.dropped[member] += 1,
            }
        }
    }

    proptest! {
        /// Never more than what was dropped, and exactly that once the ring is empty or was read past the
        /// moment.
        #[test]
        fn losses_are_whose_packets_were_dropped(
            room in 1..20_usize,
            steps in proptest::collection::vec((0..6_u8, 0..4_usize), 1..400),
        ) {
            const MEMBERS: usize = 4;
            let mut ring = Ring { room, waiting: VecDeque::new(), admitted: vec![0; MEMBERS], dropped: vec![0; MEMBERS] };
            let mut losses = Losses::new(MEMBERS);
            let mut tallies: Vec<Tally> = (0..MEMBERS).map(|_| Tally::default()).collect();
            let mut at_moment = Vec::new();
            let mut now_ns = 0;
            let see = |ring: &mut Ring, losses: &Losses, tallies: &mut [Tally]| {
                let Some((member, ts_ns)) = ring.waiting.pop_front() else { return false };
                tallies[member].seen += 1;
                let after = losses.moment_ns().is_some_and(|moment| ts_ns > moment);
                tallies[member].seen_after += u64::from(after);
                after
            };
            for (step, member) in steps {
                now_ns += 1;
                match step {
                    0..=2 => ring.put(member, now_ns),
                    3 | 4 => {
                        if see(&mut ring, &losses, &mut tallies) {
                            losses.passed(&tallies);
                            prop_assert_eq!(losses.dropped(), &at_moment);
                        }
                    }
                    _ => {
                        let drops = ring.dropped.iter().sum();
                        let had_moment = losses.moment_ns().is_some();
                        losses.look(now_ns, &ring.admitted, [drops; 2], &mut tallies);
                        if !had_moment {
                            at_moment.clone_from(&ring.dropped);
                        }
                    }
                }
                for (said, dropped) in losses.dropped().iter().zip(&ring.dropped) {
                    prop_assert!(said <= dropped);
                }
            }
            while !ring.waiting.is_empty() {
                see(&mut ring, &losses, &mut tallies);
            }
            let drops = ring.dropped.iter().sum();
            losses.look(now_ns, &ring.admitted, [drops; 2], &mut tallies);
            prop_assert_eq!(losses.dropped(), &ring.dropped);
        }
    }
}
