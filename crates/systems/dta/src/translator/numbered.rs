//! Datagrams of many reports, whose numbers tell which of them have come before.

use super::Translator;
use super::sequence::{Arrival, Sequence, Stamp};
use crate::protocol::{Nack, Refusal, packed};
use crate::sink::{Origin, Sink};
use crate::tally;

/// Maximum number of negative acknowledgements of a report. Without a bound, reporters that answer each at once and a
/// network that duplicates datagrams would keep a translator at its limit busy with what it drops.
const NACKS_MAX: u8 = 8;

/// Reports of a datagram that are treated alike: from which on, counted from 0, and how many.
type Piece = (u32, u32);

impl Translator {
    pub(super) fn packed<S: Sink>(
        &mut self,
        packet: &packed::Packet<'_>,
        origin: Origin,
        now_ns: u64,
        sinks: &mut [S],
        nacks: &mut Vec<Nack>,
    ) {
        let (first, count) = (packet.sequence(), u32::from(packet.count()));
        let stamp = Stamp {
            session: packet.session(),
            time_ns: packet.time_ns(),
            now_ns,
        };
        let reporter = &mut self.reporters[usize::from(origin.0)];
        tally::add(&mut reporter.counters.reports, u64::from(count));
        let mut from = 0;
        // Usually once: a datagram may also hold some reports that have come and some that have not.
        while let Some(left) = count.checked_sub(from).filter(|&left| left > 0) {
            let reporter = &mut self.reporters[usize::from(origin.0)];
            let (next, is_several) = (first.wrapping_add(from), reporter.is_several);
            let (arrival, alike) = match &mut reporter.sequence {
                _ if is_several => (Arrival::New { missing: 0 }, left),
                Some(sequence) => sequence.arrive(stamp, next, left),
                begun @ None => {
                    *begun = Some(Sequence::new(stamp, next, left));
                    (Arrival::New { missing: 0 }, left)
                }
            };
            if let Some(drops) = self.count_arrival(origin, arrival, alike) {
                self.put_piece(
                    (packet, (from, alike)),
                    drops,
                    (origin, now_ns),
                    sinks,
                    nacks,
                );
            }
            from = from.saturating_add(alike);
        }
    }

    /// Counts `count` reports by their numbers. How often they were dropped before, unless they have come: then they
    /// are not to be put.
    fn count_arrival(&mut self, origin: Origin, arrival: Arrival, count: u32) -> Option<u8> {
        let counters = &mut self.reporters[usize::from(origin.0)].counters;
        match arrival {
            Arrival::New { missing } => tally::add(&mut counters.missing, u64::from(missing)),
            Arrival::Jump => tally::one(&mut counters.jumps),
            // They were counted when their gap began.
            Arrival::Late => {
                counters.missing = counters.missing.saturating_sub(u64::from(count));
            }
            Arrival::Again { drops } => {
                tally::add(&mut counters.again, u64::from(count));
                return Some(drops);
            }
            Arrival::Seen => {
                counters.refused.add(Refusal::Duplicate, u64::from(count));
                return None;
            }
        }
        Some(0)
    }

    /// Puts reports of a datagram, which were dropped `drops` times before.
    fn put_piece<S: Sink>(
        &mut self,
        (packet, (from, alike)): (&packed::Packet<'_>, Piece),
        drops: u8,
        (origin, now_ns): (Origin, u64),
        sinks: &mut [S],
        nacks: &mut Vec<Nack>,
    ) {
        let is_whole = alike == u32::from(packet.count());
        if is_whole && self.put_all(packet, origin, now_ns, sinks) {
            return;
        }
        // Dropped ones, as runs of numbers.
        let mut run: Option<(u32, u16)> = None;
        let is_several = self.reporters[usize::from(origin.0)].is_several;
        let can_nack = packet.flags().retransmittable && drops < NACKS_MAX && !is_several;
        let drops = drops.saturating_add(1);
        let numbered = (0..u32::from(packet.count())).zip(packet.reports());
        let of_piece = numbered.filter(|&(number, _)| number.wrapping_sub(from) < alike);
        for (number, report) in of_piece {
            let taken = self.put(report, origin, now_ns, sinks);
            let dropped = self.count(origin, taken);
            run = match (dropped && can_nack, run) {
                // Not more than the datagram's.
                (true, Some((first, count))) => Some((first, count.saturating_add(1))),
                (true, None) => Some((packet.sequence().wrapping_add(number), 1)),
                (false, Some(ended)) => {
                    self.nack(origin, ended, drops, nacks);
                    None
                }
                (false, None) => None,
            };
        }
        if let Some(ended) = run {
            self.nack(origin, ended, drops, nacks);
        }
    }

    fn nack(
        &mut self,
        origin: Origin,
        (sequence, count): (u32, u16),
        drops: u8,
        nacks: &mut Vec<Nack>,
    ) {
        let reporter = &mut self.reporters[usize::from(origin.0)];
        tally::add(&mut reporter.counters.nacked, u64::from(count));
        if let Some(numbers) = &mut reporter.sequence {
            numbers.reopen(sequence, u32::from(count), drops);
        }
        nacks.push(Nack::Packed { sequence, count });
    }
}
