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
/// time of packets was set back: no time passes, and from there on, it passes with the packets, ahead of their time.
/// Once a packet's own time is nearer to the latest than that, the time of packets is what it was before it was set
/// back: one packet may have had a wrong time, inputs may take turns, or the capture's time was put right.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    limit_ns: u64,
    /// Of the packet that came last; `None` without any.
    now: Option<Mark>,
    /// The most that has passed.
    latest_ns: u64,
}

impl Clock {
    /// Packets are late by at most this limit, ns.
    pub(super) const fn new(limit_ns: u64) -> Self {
        Self {
            limit_ns,
            now: None,
            latest_ns: 0,
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
        let is_first = self.now.is_none();
        let passed_ns = match is_first {
            true => packets_ns,
            false => self.passed_at(packets_ns),
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

    /// It is about this time of packets, ns. That may have been set back without a packet.
    pub(super) fn tell(&mut self, packets_ns: u64) {
        let was_set_back = self
            .now
            .is_some_and(|now| packets_ns < now.packets_ns.saturating_sub(self.limit_ns));
        match was_set_back {
            true => self.packet(packets_ns),
            false => self.pass(packets_ns),
        }
    }

    /// What has passed at a time of packets that is not the first.
    fn passed_at(&self, packets_ns: u64) -> u64 {
        let ahead_ns = packets_ns.saturating_add(self.ahead_ns());
        let is_own = packets_ns.abs_diff(self.latest_ns) < ahead_ns.abs_diff(self.latest_ns);
        let passed_ns = if is_own { packets_ns } else { ahead_ns };
        match passed_ns < self.latest_ns.saturating_sub(self.limit_ns) {
            // Set back.
            true => self.latest_ns,
            false => passed_ns,
        }
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
        assert_eq!(passed(&times), [5_000, 5_000, 5_000, 5_010, 5_005]);
    }

    #[test]
    fn one_wrong_time_changes_nothing_also_if_packets_are_late() {
        for wrong in [-10_000, -3_600, -61] {
            let times = [0, 1, wrong, -1, 2, 1, 3].map(|time: i64| time.saturating_add(10_000));
            let times = times.map(|time| u64::try_from(time).unwrap());
            let expected = times.map(|time| if time < 9_999 { 10_001 } else { time });
            assert_eq!(passed(&times), expected, "{wrong}");
        }
        let mut clock = Clock::new(60);
        for time in [1_700_000_000, 0, 1_699_999_999] {
            clock.packet(time);
        }
        assert_eq!(clock.now_ns(), Some(1_699_999_999));
    }

    /// Two inputs of which one is behind the other, with packets that are late: what passes is what passes of the
    /// first one.
    #[test]
    fn inputs_that_take_turns_do_not_make_time_pass() {
        for behind in [61, 70, 100, 119, 150, 3_600] {
            let mut clock = Clock::new(60);
            let mut newest = 0;
            for at in 0..20_000_u64 {
                // In an order that does not repeat soon.
                let mixed = (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 7;
                let turn = if mixed % 2 == 0 { behind } else { 0 };
                let time = 10_000 + at - turn - mixed / 3;
                newest = newest.max(time);
                clock.packet(time);
                let over = clock.latest_ns.saturating_sub(newest);
                assert!(over <= behind, "{behind}: {over} too much at {at}");
            }
        }
    }

    #[test]
    fn time_that_is_set_back_without_a_packet_passes() {
        let mut clock = Clock::new(60);
        clock.packet(10_000);
        for (told, expected) in [
            (9_990, 10_000),
            (6_400, 10_000),
            (6_410, 10_010),
            (6_500, 10_100),
        ] {
            clock.tell(told);
            assert_eq!(clock.now_ns(), Some(expected), "{told}");
        }
    }

    #[test]
    fn impossible_times_do_not_overflow() {
        let mut clock = Clock::new(60);
        for time in [0, u64::MAX, 0, u64::MAX, 1, u64::MAX - 1, 5] {
            clock.packet(time);
            clock.pass(u64::MAX);
            clock.pass(7);
            clock.tell(7);
        }
        assert!(clock.now_ns().is_some());
    }
}
