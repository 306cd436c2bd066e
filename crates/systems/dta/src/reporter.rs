//! A reporter: packs reports into datagrams of version 2, and sends again what was dropped.
//!
//! Reports of the same shape (primitive, lengths, redundancy, flags) share a datagram until it is
//! full or old. Retransmittable ones are kept; a negative acknowledgement has them sent again, after
//! a time that doubles with each attempt, and a few times at most. Were they sent again at once, a
//! translator at its rate limit would drop and refuse them just as fast, and every datagram that the
//! network duplicates would add to the storm.

use std::collections::VecDeque;

use crate::protocol::packed::{self, HEADER_LEN};
use crate::protocol::{Flags, Nack, Report};
use crate::tally;

/// Shapes of reports that are packed at the same time; with more, the oldest datagram leaves early.
const OPEN_MAX: usize = 8;

/// The parameters of a reporter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReporterOptions {
    /// A number that changes whenever the reporter restarts.
    pub session: u8,
    /// Maximum bytes of a datagram.
    pub datagram_len_max: usize,
    /// Maximum time that a report waits for others of its shape.
    pub wait_ns_max: u64,
    /// Maximum number of kept datagrams with retransmittable reports.
    pub kept_max: usize,
    /// Time before the first retransmission; it doubles before each further one.
    pub backoff_ns: u64,
    /// Maximum number of retransmissions of a datagram, or of parts of it.
    pub retries_max: u8,
}

impl ReporterOptions {
    /// Datagrams for an MTU of 1500, reports wait for 1 ms; 1,024 datagrams are kept (1.4 MiB) and
    /// sent again after 1, 2, 4 and 8 ms.
    #[must_use]
    pub fn new(session: u8) -> Self {
        Self {
            session,
            datagram_len_max: 1432,
            wait_ns_max: 1_000_000,
            kept_max: 1024,
            backoff_ns: 1_000_000,
            retries_max: 4,
        }
    }
}

/// Counters of a reporter, in reports unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SentCounters {
    /// Reports sent, without retransmissions.
    pub reports: u64,
    /// Datagrams, without retransmissions.
    pub datagrams: u64,
    /// Reports sent again.
    pub retransmitted: u64,
    /// Reports dropped by the translator and not sent again: they were no longer kept, or sent too often.
    pub given_up: u64,
}

/// A datagram that is being filled. Its number and count are set when it leaves.
#[derive(Debug)]
struct Open {
    repr: packed::Repr,
    count: u16,
    since_ns: u64,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Kept {
    first: u32,
    count: u16,
    retries: u8,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    first: u32,
    count: u16,
    due_ns: u64,
}

/// A reporter. Memory: `kept_max` datagrams, and 8 that are being filled.
#[derive(Debug)]
pub struct Reporter {
    options: ReporterOptions,
    next: u32,
    open: Vec<Open>,
    kept: VecDeque<Kept>,
    retries: Vec<Retry>,
    counters: SentCounters,
}

impl Reporter {
    /// A reporter whose first report has number 0.
    ///
    /// # Panics
    ///
    /// If a datagram has no room for the largest report, or is longer than UDP permits.
    #[must_use]
    pub fn new(options: ReporterOptions) -> Self {
        let lens = HEADER_LEN + 128..=65_507;
        assert!(lens.contains(&options.datagram_len_max), "datagram length");
        Self {
            options,
            next: 0,
            open: Vec::with_capacity(OPEN_MAX),
            kept: VecDeque::new(),
            retries: Vec::new(),
            counters: SentCounters::default(),
        }
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> SentCounters {
        self.counters
    }

    /// Number of the next report to be sent.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Adds a report, made at `time_ns` since 1970; datagrams that become full go to `send`.
    ///
    /// # Panics
    ///
    /// If the protocol has no place for it: a key longer than 40 bytes, data longer than 64.
    pub fn report(
        &mut self,
        report: &Report<'_>,
        flags: Flags,
        time_ns: u64,
        now_ns: u64,
        send: &mut dyn FnMut(&[u8]),
    ) {
        let mut repr = packed::Repr::of(report, flags);
        repr.session = self.options.session;
        let same = |open: &Open| open.repr.has_shape_of(&repr);
        let index = match self.open.iter().position(same) {
            Some(index) => index,
            None => {
                if self.open.len() == OPEN_MAX {
                    self.close(0, send);
                }
                let index = self.open.len();
                repr.time_ns = time_ns;
                let mut bytes = Vec::with_capacity(self.options.datagram_len_max);
                repr.emit_header(1, &mut bytes);
                self.open.push(Open {
                    repr,
                    count: 0,
                    since_ns: now_ns,
                    bytes,
                });
                index
            }
        };
        let open = &mut self.open[index];
        open.repr.emit_report(report, &mut open.bytes);
        // Closed before it has all that 16 bits can count.
        open.count = open.count.wrapping_add(1);
        let next = open.count.saturating_add(1);
        let is_full = open.repr.buffer_len(next) > self.options.datagram_len_max;
        if is_full || next == u16::MAX {
            self.close(index, send);
        }
    }

    /// Sends all reports that wait for others.
    pub fn flush(&mut self, send: &mut dyn FnMut(&[u8])) {
        while !self.open.is_empty() {
            self.close(0, send);
        }
    }

    /// Processes the payload of a datagram from the translator. What is not a negative
    /// acknowledgement, or of a number that was never sent, changes nothing.
    pub fn receive(&mut self, bytes: &[u8], now_ns: u64) {
        let Some(Nack::Packed { sequence, count }) = Nack::parse(bytes) else {
            return;
        };
        let age = self.next.wrapping_sub(sequence);
        if count == 0 || age < u32::from(count) || age > 1 << 31 {
            return;
        }
        let overlaps = |retry: &Retry| {
            sequence.wrapping_sub(retry.first) < u32::from(retry.count)
                || retry.first.wrapping_sub(sequence) < u32::from(count)
        };
        if self.retries.iter().any(overlaps) {
            return;
        }
        let (retries_max, backoff) = (self.options.retries_max, self.options.backoff_ns);
        match find(&mut self.kept, sequence, count) {
            Some(kept) if kept.retries < retries_max => {
                let wait = 1_u64.checked_shl(kept.retries.into());
                let wait = wait.map_or(u64::MAX, |times| backoff.saturating_mul(times));
                kept.retries = kept.retries.saturating_add(1);
                self.retries.push(Retry {
                    first: sequence,
                    count,
                    due_ns: now_ns.saturating_add(wait),
                });
            }
            _ => tally::add(&mut self.counters.given_up, u64::from(count)),
        }
    }

    /// When [`Reporter::tick`] is due.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        let open = self
            .open
            .iter()
            .map(|open| open.since_ns.saturating_add(self.options.wait_ns_max));
        let retries = self.retries.iter().map(|retry| retry.due_ns);
        open.chain(retries).min()
    }

    /// Lets time pass: what has waited long enough goes to `send`.
    pub fn tick(&mut self, now_ns: u64, send: &mut dyn FnMut(&[u8])) {
        let wait = self.options.wait_ns_max;
        while let Some(index) = self
            .open
            .iter()
            .position(|open| open.since_ns.saturating_add(wait) <= now_ns)
        {
            self.close(index, send);
        }
        while let Some(index) = self.retries.iter().position(|retry| retry.due_ns <= now_ns) {
            let retry = self.retries.remove(index);
            self.retransmit(retry, send);
        }
    }

    fn close(&mut self, index: usize, send: &mut dyn FnMut(&[u8])) {
        let mut open = self.open.remove(index);
        let first = self.next;
        packed::number(&mut open.bytes, first, open.count);
        self.next = first.wrapping_add(u32::from(open.count));
        tally::add(&mut self.counters.reports, u64::from(open.count));
        tally::one(&mut self.counters.datagrams);
        send(&open.bytes);
        if open.repr.flags.retransmittable && self.options.kept_max > 0 {
            if self.kept.len() == self.options.kept_max {
                self.kept.pop_front();
            }
            self.kept.push_back(Kept {
                first,
                count: open.count,
                retries: 0,
                bytes: open.bytes,
            });
        }
    }

    fn retransmit(&mut self, retry: Retry, send: &mut dyn FnMut(&[u8])) {
        let Some(kept) = find(&mut self.kept, retry.first, retry.count) else {
            tally::add(&mut self.counters.given_up, u64::from(retry.count));
            return;
        };
        let (header, reports) = kept.bytes.split_at(HEADER_LEN);
        let report_len = reports.len().checked_div(usize::from(kept.count));
        let report_len = report_len.expect("a datagram has reports");
        let skipped = usize::try_from(retry.first.wrapping_sub(kept.first)).expect("below a count");
        let mut reports = reports.chunks_exact(report_len).skip(skipped);
        let mut bytes = header.to_vec();
        for _ in 0..retry.count {
            bytes.extend_from_slice(reports.next().expect("reports of this datagram"));
        }
        packed::number(&mut bytes, retry.first, retry.count);
        tally::add(&mut self.counters.retransmitted, u64::from(retry.count));
        send(&bytes);
    }
}

/// The datagram that holds these reports, all of them.
fn find(kept: &mut VecDeque<Kept>, first: u32, count: u16) -> Option<&mut Kept> {
    let oldest = kept.front()?.first;
    let after =
        kept.partition_point(|kept| kept.first.wrapping_sub(oldest) <= first.wrapping_sub(oldest));
    let kept = kept.get_mut(after.checked_sub(1)?)?;
    // Many, if it is older than all that are kept.
    let skipped = first.wrapping_sub(kept.first);
    let end = skipped.checked_add(u32::from(count))?;
    (end <= u32::from(kept.count)).then_some(kept)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::protocol::Datagram;

    const KEPT: Flags = Flags {
        immediate: false,
        retransmittable: true,
    };

    fn value(n: &[u8; 4]) -> Report<'_> {
        Report::KeyWrite {
            redundancy: 2,
            key: n,
            data: n,
        }
    }

    /// Sequence number and values of a datagram.
    fn read(bytes: &[u8]) -> (u32, Vec<Vec<u8>>) {
        let Ok(Datagram::Packed(packet)) = Datagram::new_checked(bytes) else {
            panic!("{bytes:?}");
        };
        let data = |report| match report {
            Report::KeyWrite { data, .. } | Report::Append { data, .. } => data.to_vec(),
            other => panic!("{other:?}"),
        };
        (packet.sequence(), packet.reports().map(data).collect())
    }

    #[test]
    fn reports_of_a_shape_share_datagrams_that_are_full_or_old() {
        let mut options = ReporterOptions::new(7);
        options.datagram_len_max = HEADER_LEN + 128;
        let mut reporter = Reporter::new(options);
        let mut sent = Vec::new();
        let mut send = |bytes: &[u8]| sent.push(read(bytes));
        for n in 0..20_u32 {
            reporter.report(&value(&n.to_be_bytes()), KEPT, 5, 100, &mut send);
            let entry = Report::Append {
                list: 3,
                data: &[1; 18],
            };
            reporter.report(&entry, KEPT, 5, 101, &mut send);
        }
        assert_eq!(reporter.deadline_ns(), Some(1_000_100));
        reporter.tick(1_000_100, &mut send);
        reporter.tick(1_000_101, &mut send);
        assert_eq!(reporter.deadline_ns(), None);
        // 16 of 8 bytes fit, 5 of 22.
        let sizes: Vec<_> = sent.iter().map(|(_, data)| data.len()).collect();
        assert_eq!(sizes, [5, 5, 5, 16, 5, 4]);
        let mut next = 0;
        for (first, data) in &sent {
            assert_eq!(*first, next);
            next += u32::try_from(data.len()).unwrap();
        }
        assert_eq!((reporter.counters().reports, reporter.next()), (40, 40));
    }

    #[test]
    fn what_was_dropped_is_sent_again_later_each_time_and_not_for_ever() {
        let mut reporter = Reporter::new(ReporterOptions::new(1));
        let mut sent = Vec::new();
        for n in 0..10_u32 {
            reporter.report(&value(&n.to_be_bytes()), KEPT, 0, 0, &mut |_| {});
        }
        reporter.flush(&mut |bytes| sent.push(read(bytes)));
        let mut nack = Vec::new();
        let dropped = Nack::Packed {
            sequence: 4,
            count: 3,
        };
        dropped.emit(&mut nack);
        let mut now = 0;
        for attempt in 0..4 {
            // Duplicates of a negative acknowledgement change nothing.
            reporter.receive(&nack, now);
            reporter.receive(&nack, now);
            let due = reporter.deadline_ns().unwrap();
            assert_eq!(due, now + (1_000_000 << attempt));
            reporter.tick(due - 1, &mut |_| panic!("too early"));
            reporter.tick(due, &mut |bytes| sent.push(read(bytes)));
            now = due;
        }
        reporter.receive(&nack, now);
        assert_eq!(reporter.deadline_ns(), None);
        assert_eq!(reporter.counters().given_up, 3);
        let values = (4..7_u32).map(|n| n.to_be_bytes().to_vec());
        let again = (4, values.collect::<Vec<_>>());
        assert_eq!(sent[1..], vec![again; 4]);
    }

    #[test]
    fn negative_acknowledgements_of_what_was_never_sent_change_nothing() {
        let mut options = ReporterOptions::new(1);
        options.kept_max = 2;
        let mut reporter = Reporter::new(options);
        for n in 0..3_u32 {
            reporter.report(&value(&n.to_be_bytes()), KEPT, 0, 0, &mut |_| {});
            reporter.flush(&mut |_| {});
        }
        for (sequence, count, given_up) in [
            (3, 1, 0),
            (2, 2, 0),
            (0, 0, 0),
            (u32::MAX, 1, 1),
            // From before the first: its distance from what is kept and its count overflowed together.
            (u32::MAX, 4, 5),
            // Not kept any more; of two datagrams.
            (0, 1, 6),
            (1, 2, 8),
        ] {
            let mut nack = Vec::new();
            Nack::Packed { sequence, count }.emit(&mut nack);
            reporter.receive(&nack, 0);
            let counted = reporter.counters().given_up;
            assert_eq!(counted, given_up, "{sequence}, {count}");
        }
        for junk in [
            &b""[..],
            b"\x09\x80",
            b"\x2f\x00\0\x01\0\0\0\0",
            &[0xff; 200],
        ] {
            reporter.receive(junk, 0);
        }
        assert_eq!(reporter.deadline_ns(), None);
    }
}
