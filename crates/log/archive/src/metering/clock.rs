//! The time that passes between packets, for flows that end by it. Packets of several workers and inputs come somewhat
//! out of order, and a capture's time may step: by hours, back or forth, without a pause.

/// A time of packets, and what it is in the time that passes, ns.
#[derive(Clone, Copy, Debug)]
struct Mark {
    packets_ns: u64,
    passed_ns: u64,
}

/// A clock that packets advance.
///
/// A packet that is older than the latest by at most a limit is late. A packet that is older by more means that the
/// time of packets was set back: no time passes, and from there on, it passes with the packets. If the time of packets
/// then jumps, to a time that it had already reached before it was set back, the time goes on from there.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    limit_ns: u64,
    /// Of the packet that came last; `None` without any.
    now: Option<Mark>,
    /// The most that has passed.
    latest_ns: u64,
    /// Where the time of packets was when it was set back.
    before: Option<Mark>,
}

impl Clock {
    /// Packets are late by at most this limit, ns.
    pub(super) const fn new(limit_ns: u64) -> Self {
        Self {
            limit_ns,
            now: None,
            latest_ns: 0,
            before: None,
        }
    }

    /// The time that has passed: that of the last packet, as long as the time of packets was not set back. `None` until
    /// a packet has come.
    pub(super) fn now_ns(&self) -> Option<u64> {
        self.now.map(|now| now.passed_ns)
    }

    /// By how much this is ahead of the time of packets.
    pub(super) fn ahead_ns(&self) -> u64 {
        self.now
            .map_or(0, |now| now.passed_ns.saturating_sub(now.packets_ns))
    }

    /// A packet of this time has come, ns.
    pub(super) fn packet(&mut self, packets_ns: u64) {
        let ahead_ns = self.ahead_ns();
        let straight_ns = packets_ns.saturating_add(ahead_ns);
        let is_first = self.now.is_none();
        let passed_ns = if is_first {
            packets_ns
        } else if straight_ns < self.latest_ns.saturating_sub(self.limit_ns) {
            // Set back.
            let reached = Mark {
                packets_ns: self.latest_ns.saturating_sub(ahead_ns),
                passed_ns: self.latest_ns,
            };
            let before = self.before.filter(|it| it.packets_ns > reached.packets_ns);
            self.before = Some(before.unwrap_or(reached));
            self.latest_ns
        } else {
            self.forth(packets_ns, straight_ns)
        };
        self.latest_ns = self.latest_ns.max(passed_ns);
        self.now = Some(Mark {
            packets_ns,
            passed_ns,
        });
    }

    /// It is at least this time of packets, ns: later packets are not older, unless they are late.
    pub(super) fn pass(&mut self, packets_ns: u64) {
        let is_ahead = |now: Mark| now.packets_ns < packets_ns;
        if self.now.is_none_or(is_ahead) {
            self.packet(packets_ns);
        }
    }

    /// What has passed at a time of packets that was not set back.
    fn forth(&mut self, packets_ns: u64, straight_ns: u64) -> u64 {
        let Some(before) = self.before else {
            return straight_ns;
        };
        let Some(further_ns) = packets_ns.checked_sub(before.packets_ns) else {
            return straight_ns;
        };
        self.before = None;
        if straight_ns > self.latest_ns.saturating_add(self.limit_ns) {
            let passed_ns = before.passed_ns.saturating_add(further_ns);
            return passed_ns.max(self.latest_ns);
        }
        straight_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What has passed after each packet, from 10,000 on; packets are late by 60 at most.
    fn passed(times: &[u64]) -> Vec<u64> {
        let mut clock = Clock::new(60);
        let passed = |time: &u64| {
            clock.packet(10_000 + *time);
            clock.now_ns().unwrap() - 10_000
        };
        times.iter().map(passed).collect()
    }

    #[test]
    fn time_is_that_of_packets_in_order_and_of_late_ones() {
        assert_eq!(passed(&[0, 100, 40, 41, 5_000]), [0, 100, 40, 41, 5_000]);
    }

    #[test]
    fn time_goes_on_where_it_was_set_back_and_after_that_where_it_had_been() {
        // There and back.
        assert_eq!(
            passed(&[5_000, 5_001, 1_000, 1_001, 5_002]),
            [5_000, 5_001, 5_001, 5_002, 5_002]
        );
        // It stays set back, and reaches the time of before by itself.
        let times = [5_000, 4_900, 4_950, 4_999, 5_001, 5_050, 5_070];
        let expected = [5_000, 5_000, 5_050, 5_099, 5_101, 5_150, 5_170];
        assert_eq!(passed(&times), expected);
        // A pause is one, also then.
        let times = [5_000, 1_000, 1_500, 9_000];
        assert_eq!(passed(&times), [5_000, 5_000, 5_500, 9_000]);
        // Back twice, and forth to the latest.
        let times = [5_000, 4_000, 3_000, 3_010, 5_005];
        assert_eq!(passed(&times), [5_000, 5_000, 5_000, 5_010, 5_010]);
    }

    #[test]
    fn impossible_times_do_not_overflow() {
        let mut clock = Clock::new(60);
        for time in [0, u64::MAX, 0, u64::MAX, 1, u64::MAX - 1, 5] {
            clock.packet(time);
            clock.pass(u64::MAX);
            clock.pass(7);
        }
        assert!(clock.now_ns().is_some());
    }
}
