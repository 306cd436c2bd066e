//! Which datagrams of a source arrived: what is lost, late or repeated.

use crate::datagram::{Datagram, Numbered};

/// How many datagrams back one may be late; what is older is counted as lost.
const WINDOW: u64 = 1024;
const WORDS: usize = 16;

/// The datagrams of one source, in one of its sessions.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// A bit for each of the last datagrams, by its number.
    seen: [u64; WORDS],
    /// Whether numbers are known: a datagram has arrived, or was announced.
    has_begun: bool,
    first_datagram: u64,
    next_datagram: u64,
    next_packet: u64,
    counters: SequenceCounters,
}

/// The outcome of a source's packets. Each packet that the source numbered is in `before`, `packets` or `lost`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SequenceCounters {
    /// Datagrams that arrived and were accepted.
    pub datagrams: u64,
    /// Packets of these datagrams.
    pub packets: u64,
    /// Datagrams that did not arrive.
    pub lost_datagrams: u64,
    /// Packets that did not arrive: they were lost with their datagrams, or before they were in one.
    pub lost: u64,
    /// Packets that were numbered before the first datagram that arrived, or the first announcement.
    pub before: u64,
    /// Datagrams that arrived after later ones, and were accepted.
    pub late: u64,
    /// Datagrams that had arrived before, or arrived too late to tell; they are not accepted.
    pub refused: u64,
    /// Datagrams and announcements whose numbers contradict earlier ones; they are not accepted.
    pub contradicting: u64,
}

impl Sequence {
    /// Whether the datagram is to be read: it is the first with its number. Counts its packets.
    #[must_use]
    pub fn accept(&mut self, datagram: &Datagram) -> bool {
        let packets = u64::from(datagram.packets);
        let (number, first_packet) = (datagram.number, datagram.first_packet);
        let counters = &mut self.counters;
        if !self.has_begun {
            self.has_begun = true;
            self.first_datagram = number;
            counters.before = first_packet;
        } else if number < self.next_datagram {
            if self.next_datagram.wrapping_sub(number) > WINDOW
                || self.seen[word(number)] & bit(number) != 0
            {
                counters.refused = counters.refused.wrapping_add(1);
                return false;
            }
            let is_before = number < self.first_datagram;
            let missing = if is_before {
                &mut counters.before
            } else {
                &mut counters.lost
            };
            let Some(rest) = missing.checked_sub(packets) else {
                counters.contradicting = counters.contradicting.wrapping_add(1);
                return false;
            };
            *missing = rest;
            counters.lost_datagrams = counters.lost_datagrams.wrapping_sub(u64::from(!is_before));
            counters.late = counters.late.wrapping_add(1);
            counters.datagrams = counters.datagrams.wrapping_add(1);
            counters.packets = counters.packets.wrapping_add(packets);
            self.seen[word(number)] |= bit(number);
            return true;
        } else {
            let Some(lost) = first_packet.checked_sub(self.next_packet) else {
                counters.contradicting = counters.contradicting.wrapping_add(1);
                return false;
            };
            self.miss(number, lost);
        }
        self.seen[word(number)] |= bit(number);
        self.next_datagram = number.wrapping_add(1);
        self.next_packet = first_packet.wrapping_add(packets);
        self.counters.datagrams = self.counters.datagrams.wrapping_add(1);
        self.counters.packets = self.counters.packets.wrapping_add(packets);
        true
    }

    /// Processes an announcement of what the source has sent: what has not arrived of it is lost, unless it arrives
    /// late. A late announcement changes nothing, and a repeated one counts once.
    pub fn announced(&mut self, sent: Numbered) {
        if !self.has_begun {
            self.has_begun = true;
            self.first_datagram = sent.datagrams;
            self.next_datagram = sent.datagrams;
            self.counters.before = sent.packets;
            self.next_packet = sent.packets;
            return;
        }
        if sent.datagrams < self.next_datagram {
            return;
        }
        let Some(lost) = sent.packets.checked_sub(self.next_packet) else {
            self.counters.contradicting = self.counters.contradicting.wrapping_add(1);
            return;
        };
        self.miss(sent.datagrams, lost);
        self.next_datagram = sent.datagrams;
        self.next_packet = sent.packets;
    }

    /// Counts all datagrams before this one that are not known yet as lost, and adds `packets` lost
    /// packets.
    fn miss(&mut self, until: u64, packets: u64) {
        self.counters.lost = self.counters.lost.wrapping_add(packets);
        self.counters.lost_datagrams = self
            .counters
            .lost_datagrams
            .wrapping_add(until.wrapping_sub(self.next_datagram));
        for missing in self.next_datagram.max(until.saturating_sub(WINDOW))..until {
            self.seen[word(missing)] &= !bit(missing);
        }
    }

    /// The outcome of the packets so far.
    #[must_use]
    pub fn counters(&self) -> SequenceCounters {
        self.counters
    }

    /// The number of packets that the source had numbered when it sent the latest datagram or announcement.
    #[must_use]
    pub fn numbered(&self) -> u64 {
        self.next_packet
    }
}

fn word(number: u64) -> usize {
    const PLACES: u64 = WORDS as u64;
    strata_wire::exact::<usize>((number / 64) % PLACES)
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

const _: () = assert!(WORDS as u64 * 64 == WINDOW);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::{Kind, Source};
    use proptest::prelude::*;
    use strata_wire::LinkType;

    fn datagram(number: u64, first_packet: u64, packets: u16) -> Datagram {
        Datagram {
            kind: Kind::Headers,
            source: Source {
                identity: 1,
                session: 1,
            },
            link: LinkType::ETHERNET,
            number,
            first_packet,
            packets,
            time_ns: 0,
            time_bits: 0,
            in_microseconds: false,
        }
    }

    proptest! {
        /// Whatever is lost, repeated or out of order, of datagrams and of what was announced after them: with the
        /// last announcement, every packet is counted once, and nothing beyond what was sent.
        #[test]
        fn what_is_announced_is_counted_once(
            sizes in prop::collection::vec(0_u16..9, 1..200),
            arrivals in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..300),
        ) {
            let first = |number: usize| sizes[..number].iter().map(|&size| u64::from(size)).sum::<u64>();
            let sent = |number: usize| Numbered { datagrams: number as u64, packets: first(number) };
            let mut sequence = Sequence::default();
            // A reader that listens from the start misses nothing.
            sequence.announced(sent(0));
            let mut arrived = std::collections::BTreeSet::new();
            for (index, is_announcement) in arrivals {
                let number = index.index(sizes.len());
                if is_announcement {
                    sequence.announced(sent(number));
                } else {
                    let datagram = datagram(number as u64, first(number), sizes[number]);
                    prop_assert_eq!(sequence.accept(&datagram), arrived.insert(number));
                }
                let counters = sequence.counters();
                prop_assert_eq!(counters.packets + counters.lost, sequence.numbered());
            }
            sequence.announced(sent(sizes.len()));
            sequence.announced(sent(sizes.len()));
            let counters = sequence.counters();
            let packets: u64 = arrived.iter().map(|&number| u64::from(sizes[number])).sum();
            prop_assert_eq!((counters.packets, counters.before, counters.contradicting), (packets, 0, 0));
            prop_assert_eq!(counters.lost, first(sizes.len()) - packets);
            prop_assert_eq!(counters.lost_datagrams, (sizes.len() - arrived.len()) as u64);
        }

        /// Whatever, repeated or out of order: every packet is counted once.
        #[test]
        fn every_packet_is_counted_once(
            sizes in prop::collection::vec(0_u16..9, 1..200),
            arrivals in prop::collection::vec(any::<prop::sample::Index>(), 0..300),
        ) {
            let first = |number: usize| sizes[..number].iter().map(|&size| u64::from(size)).sum::<u64>();
            let mut sequence = Sequence::default();
            let mut arrived = std::collections::BTreeSet::new();
            let mut first_number = None;
            for index in arrivals {
                let number = index.index(sizes.len());
                first_number.get_or_insert(number);
                let is_first = arrived.insert(number);
                let datagram = datagram(number as u64, first(number), sizes[number]);
                prop_assert_eq!(sequence.accept(&datagram), is_first);
            }
            let counters = sequence.counters();
            let packets: u64 = arrived.iter().map(|&number| u64::from(sizes[number])).sum();
            prop_assert_eq!(counters.packets, packets);
            prop_assert_eq!(counters.datagrams, arrived.len() as u64);
            let sum = counters.before + counters.packets + counters.lost;
            prop_assert_eq!(sum, sequence.numbered());
            if let (Some(&first), Some(&last)) = (first_number.as_ref(), arrived.last()) {
                let there = arrived.range(first..).count();
                prop_assert_eq!(counters.lost_datagrams, (last + 1 - first - there) as u64);
            }
        }
    }

    #[test]
    fn what_comes_after_it_was_announced_is_not_lost() {
        let sent = |datagrams, packets| Numbered { datagrams, packets };
        let mut sequence = Sequence::default();
        assert!(sequence.accept(&datagram(0, 0, 10)));
        sequence.announced(sent(3, 30));
        assert_eq!(sequence.counters().lost, 20);
        assert!(sequence.accept(&datagram(1, 10, 10)));
        assert!(
            !sequence.accept(&datagram(2, 20, 11)),
            "there were but 10 more"
        );
        // Announced again, late, and lost by the sender before they had a datagram.
        sequence.announced(sent(3, 30));
        sequence.announced(sent(1, 10));
        sequence.announced(sent(3, 35));
        // Contradictory.
        sequence.announced(sent(4, 29));
        let counters = sequence.counters();
        assert_eq!(
            (counters.packets, counters.lost, counters.contradicting),
            (20, 15, 2)
        );
        // A reader that comes later has missed what was before.
        let mut later = Sequence::default();
        later.announced(sent(3, 30));
        assert!(later.accept(&datagram(4, 40, 10)));
        let counters = later.counters();
        assert_eq!((counters.before, counters.lost), (30, 10));
        assert!(later.accept(&datagram(2, 20, 10)), "late");
        assert_eq!(later.counters().before, 20);
    }

    #[test]
    fn what_is_too_old_or_contradicts_is_refused() {
        let mut sequence = Sequence::default();
        assert!(sequence.accept(&datagram(5, 50, 10)));
        assert!(!sequence.accept(&datagram(5, 50, 10)), "repeated");
        assert!(
            !sequence.accept(&datagram(6, 59, 10)),
            "packet 59 had arrived"
        );
        assert!(sequence.accept(&datagram(2_000, 20_000, 10)));
        assert!(
            !sequence.accept(&datagram(900, 9_000, 10)),
            "too old to know"
        );
        assert!(sequence.accept(&datagram(1_500, 15_000, 10)));
        let counters = sequence.counters();
        assert_eq!(
            (counters.refused, counters.contradicting, counters.late),
            (2, 1, 1)
        );
        assert_eq!(counters.before + counters.packets + counters.lost, 20_010);
    }
}
