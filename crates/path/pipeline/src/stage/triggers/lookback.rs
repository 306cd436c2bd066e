//! Look-back: the packets seen last, whole in memory, for flows that turn out to matter.
//!
//! ```text
//! ring:   | entry | entry | ...          the oldest is overwritten
//! entry:  previous u64, seq u64, captured u32, kept u32, wire u32, keep u8, class u8,
//!         verdict u16, then the packet; at multiples of 32 bytes
//! heads:  fingerprint u64, newest u64    four to a line; the oldest of a line gives way
//! ```
//!
//! Positions count bytes since the start, skipped ones too, so one comparison tells whether an
//! entry is still there: it is while it lies within the ring's length before the end.

use strata_classify::VerdictId;
use strata_wire::{KeepKind, exact, prefetch};

const ENTRY_HEADER_LEN: usize = 32;
/// Heads in one cache line.
const WAYS: usize = 4;
/// Bytes of the ring per head.
const BYTES_PER_HEAD: usize = 1024;
const HEADS_MIN: usize = 1 << 10;
const HEADS_MAX: usize = 1 << 22;

/// The newest entry of a flow: its position plus one, 0 for none.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    fingerprint: u64,
    newest: u64,
}

/// A packet that was logged only in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remembered<'a> {
    /// Its flow.
    pub(crate) fingerprint: u64,
    pub(crate) packet: Cut<'a>,
}

/// What is known of a packet besides its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut<'a> {
    /// Its sequence number.
    pub(crate) seq: u64,
    /// Its verdict, and that one's class.
    pub(crate) verdict: VerdictId,
    pub(crate) class: u8,
    /// How much of it was kept.
    pub(crate) keep: KeepKind,
    /// Bytes in its record.
    pub(crate) kept_len: u32,
    /// Bytes on the wire.
    pub(crate) wire_len: u32,
    /// Every byte that was captured.
    pub(crate) data: &'a [u8],
}

/// The packets seen last.
///
/// Memory: the ring, and 16 bytes for each KiB of it, allocated and touched at the start. Time: for
/// each packet one copy, and one memory access for its flow's head.
#[derive(Debug)]
pub(crate) struct LookBack {
    ring: Box<[u8]>,
    /// After the last entry.
    end: u64,
    /// Where that is in the ring.
    next: usize,
    heads: Box<[[Head; WAYS]]>,
    /// Positions of a flow's entries while they are handed out.
    found: Vec<u64>,
}

impl LookBack {
    /// A look-back of this many bytes, at least 64 KiB.
    #[must_use]
    pub(crate) fn new(bytes: usize) -> Self {
        let bytes = bytes.max(64 << 10) / ENTRY_HEADER_LEN * ENTRY_HEADER_LEN;
        let heads = (bytes / BYTES_PER_HEAD).next_power_of_two();
        let lines = heads.clamp(HEADS_MIN, HEADS_MAX) / WAYS;
        // Ones, not zeros, so that every page is there before packets come.
        let mut ring = vec![1; bytes].into_boxed_slice();
        ring.fill(0);
        let touched = Head {
            fingerprint: 1,
            newest: 0,
        };
        Self {
            ring,
            end: 0,
            next: 0,
            heads: vec![[touched; WAYS]; lines].into_boxed_slice(),
            found: Vec::with_capacity(1 << 12),
        }
    }

    /// Forgets everything: as if the ring had been written over once, whose places stay the same.
    pub(crate) fn forget(&mut self) {
        self.end += self.ring.len() as u64;
    }

    #[allow(clippy::cast_possible_truncation)]
    fn line(&self, fingerprint: u64) -> usize {
        (fingerprint >> 32) as usize & (self.heads.len() - 1)
    }

    /// Fetches a flow's head ahead of its use.
    #[inline]
    pub(crate) fn prefetch(&self, fingerprint: u64) {
        let line = &self.heads[self.line(fingerprint)];
        prefetch(std::slice::from_ref(line), 0);
    }

    fn is_there(&self, position: u64) -> bool {
        position + self.ring.len() as u64 >= self.end
    }

    /// Remembers a packet, unless it is longer than the ring.
    #[inline(always)]
    pub(crate) fn push(&mut self, remembered: &Remembered<'_>) {
        let packet = &remembered.packet;
        let len = ENTRY_HEADER_LEN + packet.data.len();
        let len = len.next_multiple_of(ENTRY_HEADER_LEN);
        let capacity = self.ring.len();
        if len > capacity {
            return;
        }
        if self.next + len > capacity {
            self.end += (capacity - self.next) as u64;
            self.next = 0;
        }
        let (position, at) = (self.end, self.next);
        self.end += len as u64;
        self.next += len;
        let previous = self.replace_head(remembered.fingerprint, position + 1);
        let captured_len = exact::<u32>(packet.data.len());
        let lens = u64::from(captured_len) | u64::from(packet.kept_len) << 32;
        let kept = u32::from(packet.keep.code())
            | u32::from(packet.class) << 8
            | u32::from(packet.verdict) << 16;
        let last = u64::from(packet.wire_len) | u64::from(kept) << 32;
        let entry = &mut self.ring[at..at + len];
        let (header, data) = entry.split_at_mut(ENTRY_HEADER_LEN);
        let words = [previous, packet.seq, lens, last];
        for (field, word) in header.as_chunks_mut().0.iter_mut().zip(words) {
            *field = word.to_le_bytes();
        }
        data[..packet.data.len()].copy_from_slice(packet.data);
    }

    /// Whether a flow has entries, or had some that are overwritten.
    #[inline]
    pub(crate) fn remembers(&self, fingerprint: u64) -> bool {
        let line = &self.heads[self.line(fingerprint)];
        let is_head = |head: &Head| head.fingerprint == fingerprint && head.newest > 0;
        line.iter().any(is_head)
    }

    /// Makes an entry the newest of its flow, and returns the one that was.
    #[inline]
    fn replace_head(&mut self, fingerprint: u64, newest: u64) -> u64 {
        let line = self.line(fingerprint);
        let line = &mut self.heads[line];
        // Branchless: the way cannot be predicted.
        let mut ways = 0;
        for (way, head) in line.iter().enumerate() {
            ways |= u32::from(head.fingerprint == fingerprint) << way;
        }
        if ways != 0 {
            let head = &mut line[ways.trailing_zeros() as usize % WAYS];
            return std::mem::replace(&mut head.newest, newest);
        }
        if let Some(head) = line.iter_mut().min_by_key(|head| head.newest) {
            *head = Head {
                fingerprint,
                newest,
            };
        }
        0
    }

    /// Hands out what is remembered of a flow, oldest packet first, and forgets it. The first error
    /// ends it; the rest is forgotten too.
    ///
    /// # Errors
    ///
    /// Those of `take`.
    pub(crate) fn take<E>(
        &mut self,
        fingerprint: u64,
        mut take: impl FnMut(&Cut<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let line = self.line(fingerprint);
        let head = self.heads[line]
            .iter_mut()
            .find(|head| head.fingerprint == fingerprint && head.newest > 0);
        let Some(head) = head else {
            return Ok(());
        };
        let mut next = std::mem::take(&mut head.newest);
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        while let Some(position) = next.checked_sub(1)
            && self.is_there(position)
        {
            found.push(position);
            next = u64::from_le_bytes(self.field(position, 0));
        }
        let given = found.iter().rev().try_for_each(|&position| {
            let word = |from| u32::from_le_bytes(self.field(position, from));
            let [keep, class] = self.field(position, 28);
            let data = &self.ring[self.offset(position) + ENTRY_HEADER_LEN..];
            take(&Cut {
                seq: u64::from_le_bytes(self.field(position, 8)),
                verdict: VerdictId::from_le_bytes(self.field(position, 30)),
                class,
                keep: KeepKind::of_flags(keep),
                kept_len: word(20),
                wire_len: word(24),
                data: &data[..word(16) as usize],
            })
        });
        self.found = found;
        given
    }

    /// A field of an entry's header.
    fn field<const LEN: usize>(&self, position: u64, from: usize) -> [u8; LEN] {
        let bytes = self.ring[self.offset(position) + from..].first_chunk();
        *bytes.expect("an entry lies whole in the ring")
    }

    #[allow(clippy::cast_possible_truncation)]
    fn offset(&self, position: u64) -> usize {
        // Below the ring's length.
        (position % self.ring.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The naive twin: every packet, and where it would lie in the ring.
    struct Naive {
        packets: Vec<(u64, u64, Vec<u8>)>,
        positions: Vec<u64>,
        end: u64,
        capacity: u64,
    }

    impl Naive {
        fn push(&mut self, fingerprint: u64, seq: u64, data: &[u8]) {
            let len = (data.len() as u64 + 32).next_multiple_of(32);
            if len > self.capacity {
                return;
            }
            let left = self.capacity - self.end % self.capacity;
            self.end += if left < len { left } else { 0 };
            self.positions.push(self.end);
            self.packets.push((fingerprint, seq, data.to_vec()));
            self.end += len;
        }

        fn take(&mut self, fingerprint: u64) -> Vec<(u64, Vec<u8>)> {
            let mut taken = Vec::new();
            for ((of, seq, data), &position) in self.packets.iter_mut().zip(&self.positions) {
                if *of == fingerprint {
                    *of = 0;
                    if position + self.capacity >= self.end {
                        taken.push((*seq, std::mem::take(data)));
                    }
                }
            }
            taken
        }
    }

    fn remembered(fingerprint: u64, seq: u64, data: &[u8]) -> Remembered<'_> {
        Remembered {
            fingerprint,
            packet: Cut {
                seq,
                verdict: (seq % 1000) as u16,
                class: (seq % 7) as u8,
                keep: KeepKind::Header,
                kept_len: 3,
                wire_len: 9,
                data,
            },
        }
    }

    proptest! {
        #[test]
        fn what_is_given_out_is_what_the_twin_gives(
            steps in prop::collection::vec((1_u64..12, 0_usize..70_000, any::<bool>()), 1..300)
        ) {
            let mut look_back = LookBack::new(200_000);
            let capacity = look_back.ring.len() as u64;
            let mut naive = Naive { packets: Vec::new(), positions: Vec::new(), end: 0, capacity };
            for (seq, (flow, len, flagged)) in (0..).zip(steps) {
                // Spread over lines, so that no head replaces another.
                let fingerprint = flow << 34;
                if flagged {
                    let mut taken = Vec::new();
                    look_back
                        .take(fingerprint, |packet| {
                            assert_eq!((packet.kept_len, packet.wire_len), (3, 9));
                            assert_eq!(u64::from(packet.class), packet.seq % 7);
                            assert_eq!(u64::from(packet.verdict), packet.seq % 1000);
                            taken.push((packet.seq, packet.data.to_vec()));
                            Ok::<(), ()>(())
                        })
                        .unwrap();
                    prop_assert_eq!(taken, naive.take(fingerprint));
                } else {
                    let data: Vec<u8> = (0..len).map(|n| (n as u64 * 31 + seq).to_le_bytes()[0]).collect();
                    look_back.push(&remembered(fingerprint, seq, &data));
                    naive.push(fingerprint, seq, &data);
                }
            }
        }
    }

    #[test]
    fn a_flow_whose_head_gave_way_is_forgotten_and_no_other_is_touched() {
        let mut look_back = LookBack::new(64 << 10);
        // All in one line: the fifth takes the place of the first.
        for flow in 1..=5_u64 {
            look_back.push(&remembered(flow, flow, &[flow.to_le_bytes()[0]; 40]));
        }
        for flow in 1..=5_u64 {
            let mut taken = Vec::new();
            look_back
                .take(flow, |packet| {
                    taken.push((packet.seq, packet.data[0]));
                    Ok::<(), ()>(())
                })
                .unwrap();
            let expected = if flow == 1 {
                vec![]
            } else {
                vec![(flow, flow.to_le_bytes()[0])]
            };
            assert_eq!(taken, expected);
        }
    }
}
