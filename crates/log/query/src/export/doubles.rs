//! Packets that were captured twice, as at two mirror ports.

use std::collections::{HashMap, VecDeque};

use foldhash::quality::RandomState;
use strata_wire::sighting::{Differing, Identities, Sighting};

use crate::exporter::{LoggedPacket, PacketCopy};

/// Packets that wait, and their bytes: beyond, the first of them is handed out before its time.
const WAITING_MAX: usize = 1 << 20;
const WAITING_BYTES: usize = 256 << 20;
/// Packets with the same headers but other payloads that are compared.
const ALIKE_MAX: usize = 16;
/// What is remembered of a packet that waits, beside its bytes.
const PACKET_BYTES: usize = 512;

/// Removes packets that were seen before, within a time; of each, the copy is handed out of which most
/// was kept, at the time of the first.
///
/// Two packets are the same if their headers, their lengths, and what was kept of both their payloads are;
/// bytes that may differ do not count. Headers without a checksum of the payload do not tell packets apart: such a
/// packet is only compared if all of it was kept.
pub struct Doubles {
    window_ns: u64,
    identities: Identities<RandomState>,
    /// By identity of a packet, the number of the newest copy that waits.
    seen: HashMap<[u64; 2], u64, RandomState>,
    /// Copies in order of time.
    waiting: VecDeque<Waiting>,
    /// The number of the first of them.
    first: u64,
    waiting_bytes: usize,
    newest_ns: u64,
    counts: DoublesCounts,
}

struct Waiting {
    identity: [u64; 2],
    /// The number of the copy before it with the same headers but another payload.
    before: Option<u64>,
    /// Bytes kept, without those that may differ.
    kept: usize,
    ts_ns: u64,
    log: usize,
    packet: PacketCopy,
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoublesCounts {
    /// Packets that were seen before.
    pub removed: u64,
    /// Packets that could not wait for their doubles, for lack of memory.
    pub unchecked: u64,
    /// Packets without a checksum of their payload, of which not all was kept: they were not compared.
    pub uncompared: u64,
}

impl std::fmt::Debug for Doubles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doubles")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Doubles {
    /// Removes packets that were seen at most `window_ns` before.
    #[must_use]
    pub fn new(window_ns: u64, differing: Differing) -> Self {
        Self {
            window_ns,
            identities: Identities::new(
                differing,
                [RandomState::default(), RandomState::default()],
            ),
            seen: HashMap::default(),
            waiting: VecDeque::new(),
            first: 0,
            waiting_bytes: 0,
            newest_ns: 0,
            counts: DoublesCounts::default(),
        }
    }

    /// Takes a packet of a log, and hands out those whose time is over. A packet without a timestamp is
    /// handed out as it is.
    ///
    /// # Errors
    ///
    /// If `take` fails.
    pub fn packet<E>(
        &mut self,
        log: usize,
        packet: &LoggedPacket<'_>,
        mut take: impl FnMut(usize, &LoggedPacket<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if !packet.has_timestamp {
            self.flush(&mut take)?;
            return take(log, packet);
        }
        if packet.ts_ns.saturating_add(self.window_ns) < self.newest_ns {
            // Another recording, which began earlier.
            self.flush(&mut take)?;
        }
        self.newest_ns = self.newest_ns.max(packet.ts_ns);
        while let Some(oldest) = self.waiting.front() {
            let is_over = oldest.ts_ns.saturating_add(self.window_ns) < self.newest_ns;
            let has_room = self.waiting.len() < WAITING_MAX && self.waiting_bytes < WAITING_BYTES;
            if !is_over && has_room {
                break;
            }
            self.counts.unchecked = self.counts.unchecked.saturating_add(u64::from(!is_over));
            self.hand_out(&mut take)?;
        }
        let sighting = Sighting {
            link: packet.link,
            data: packet.data,
            wire_len: packet.wire_len,
            header_len: packet.header_len.into(),
        };
        // Headers that stand for the payload tell packets apart, of which different amounts were kept.
        let is_whole = !sighting.has_checksum();
        let compared = match is_whole {
            true => packet.data.len(),
            false => packet.header_len.into(),
        };
        let of = self.identities.of(&sighting, compared);
        let (identity, kept) = (of.hash, of.same_len);
        let is_compared = !(is_whole && sighting.is_cut());
        let newest = self.seen.get(&identity).copied();
        let newest = newest.filter(|_| is_compared);
        if let Some(place) = self.place_of_same(newest, packet, is_whole) {
            let first = &mut self.waiting[place];
            self.counts.removed = self.counts.removed.saturating_add(1);
            if kept > first.kept {
                let copy = PacketCopy::of(packet).at(first.ts_ns);
                self.waiting_bytes = self.waiting_bytes.saturating_sub(cost(&first.packet));
                self.waiting_bytes = self.waiting_bytes.saturating_add(cost(&copy));
                (first.log, first.packet, first.kept) = (log, copy, kept);
            }
            return Ok(());
        }
        let copy = PacketCopy::of(packet);
        self.waiting_bytes = self.waiting_bytes.saturating_add(cost(&copy));
        let number = self.first.wrapping_add(self.waiting.len() as u64);
        match is_compared {
            true => {
                self.seen.insert(identity, number);
            }
            false => self.counts.uncompared = self.counts.uncompared.saturating_add(1),
        }
        self.waiting.push_back(Waiting {
            identity,
            before: newest,
            kept,
            ts_ns: packet.ts_ns,
            log,
            packet: copy,
        });
        Ok(())
    }

    /// Where the copy waits that is the same as a packet: that with this number, or one before it.
    fn place_of_same(
        &self,
        newest: Option<u64>,
        packet: &LoggedPacket<'_>,
        is_whole: bool,
    ) -> Option<usize> {
        let mut number = newest;
        for _ in 0..ALIKE_MAX {
            let place = usize::try_from(number?.wrapping_sub(self.first)).ok()?;
            let waiting = self.waiting.get(place)?;
            if is_whole || has_same_payload(&waiting.packet.packet(), packet) {
                return Some(place);
            }
            number = waiting.before;
        }
        None
    }

    /// Hands out what still waits, and says what was removed.
    ///
    /// # Errors
    ///
    /// If `take` fails.
    pub fn finish<E>(
        mut self,
        mut take: impl FnMut(usize, &LoggedPacket<'_>) -> Result<(), E>,
    ) -> Result<DoublesCounts, E> {
        self.flush(&mut take)?;
        Ok(self.counts)
    }

    fn flush<E>(
        &mut self,
        take: &mut impl FnMut(usize, &LoggedPacket<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while !self.waiting.is_empty() {
            self.hand_out(take)?;
        }
        self.newest_ns = 0;
        Ok(())
    }

    /// Hands out the oldest packet.
    fn hand_out<E>(
        &mut self,
        take: &mut impl FnMut(usize, &LoggedPacket<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(oldest) = self.waiting.pop_front() else {
            return Ok(());
        };
        if self.seen.get(&oldest.identity) == Some(&self.first) {
            self.seen.remove(&oldest.identity);
        }
        self.first = self.first.wrapping_add(1);
        self.waiting_bytes = self.waiting_bytes.saturating_sub(cost(&oldest.packet));
        take(oldest.log, &oldest.packet.packet())
    }
}

/// Whether the payloads are the same as far as both were kept.
fn has_same_payload(one: &LoggedPacket<'_>, other: &LoggedPacket<'_>) -> bool {
    let payloads = [one, other].map(payload_of);
    payloads[0].iter().zip(payloads[1]).all(|(a, b)| a == b)
}

/// What was kept of the payload.
fn payload_of<'a>(packet: &LoggedPacket<'a>) -> &'a [u8] {
    let payload = packet.data.get(usize::from(packet.header_len)..);
    payload.unwrap_or(&[])
}

fn cost(packet: &PacketCopy) -> usize {
    packet.kept_bytes().saturating_add(PACKET_BYTES)
}
