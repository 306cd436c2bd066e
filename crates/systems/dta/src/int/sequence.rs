//! Which of a node's datagrams have come, by their numbers.
//!
//! A gap counts as lost at once. What comes late is taken off again only if its gap is remembered:
//! it is of the latest [`LATE_MAX`] numbers, and was not there yet at the second last
//! [`Sequences::settle`]. So a node that starts again, and sends the numbers of its losses once more,
//! does not take them back. A number that is neither new nor late by these bounds is a jump: the
//! node has started again, was given another number, or another node uses its name.

use std::collections::BTreeMap;

use super::report::Packet;
use crate::gaps::Gaps;

/// Parts of nodes whose sequence numbers are followed; of further ones loss is not counted.
const SOURCES_MAX: usize = 4096;
/// Datagrams of a source that may be lost between two times of settling, 0.1 s or so; a larger gap is a
/// jump. Without this bound, a restart would look like millions of losses, and a single forged
/// datagram would too.
const LOST_MAX: u32 = 1 << 16;
/// A number that is further back is a jump.
const LATE_MAX: u32 = 1 << 12;

/// Who numbers: a part of a node, in one version of the format. Each version has numbers of its own
/// length, so a node that changes its version begins anew.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Source {
    node: u32,
    hw_id: u8,
    version: u8,
}

/// What the number of a datagram says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Number {
    /// It is new; this many before it are missing now.
    New { missing: u32 },
    /// It was missing, and is not any more.
    Late,
    /// It came before, or is too late to be missed.
    Repeated,
    /// Numbers go on from here.
    Jump,
    /// There are too many sources to follow this one.
    NotFollowed,
}

/// The numbers of one source, counted on to 32 bits.
#[derive(Debug)]
struct Sequence {
    /// The next number, as the source has it.
    next: u32,
    /// And counted on, also across its wrap.
    counted: u32,
    /// Whether each was there at the last time of settling.
    gaps: Gaps<bool>,
    /// Datagrams that may still be lost before the next time of settling.
    credit: u32,
    /// The number after one that came before: if that comes next, the source counts again from there.
    after_repeated: Option<u32>,
}

impl Sequence {
    fn new(next: u32, credit: u32) -> Self {
        Self {
            next,
            counted: 0,
            gaps: Gaps::default(),
            credit,
            after_repeated: None,
        }
    }

    /// A datagram with this number has come.
    fn arrive(&mut self, number: u32, modulus: Modulus) -> Number {
        let after = modulus.of(number.wrapping_add(1));
        let ahead = modulus.of(number.wrapping_sub(self.next));
        if let Some(credit) = self.credit.checked_sub(ahead) {
            self.credit = credit;
            if ahead > 0 {
                self.gaps.open(self.counted, ahead, false);
            }
            self.counted = self.counted.wrapping_add(ahead).wrapping_add(1);
            self.next = after;
            self.after_repeated = None;
            return Number::New { missing: ahead };
        }
        let behind = modulus.of(self.next.wrapping_sub(number));
        let goes_on = self.after_repeated == Some(number);
        if behind > LATE_MAX || goes_on {
            *self = Self::new(after, self.credit);
            return Number::Jump;
        }
        self.after_repeated = None;
        match self.gaps.close(self.counted.wrapping_sub(behind), 1) {
            Some(_) => Number::Late,
            None => {
                self.after_repeated = Some(after);
                Number::Repeated
            }
        }
    }
}

/// The largest number of a version, all ones: numbers are taken modulo one more.
#[derive(Clone, Copy, Debug)]
struct Modulus(u32);

impl Modulus {
    /// `number` modulo it.
    fn of(self, number: u32) -> u32 {
        number & self.0
    }
}

/// The numbers of all sources.
#[derive(Debug, Default)]
pub(super) struct Sequences(BTreeMap<Source, Sequence>);

impl Sequences {
    /// A datagram has come.
    pub(super) fn arrive(&mut self, packet: &Packet<'_>) -> Number {
        let source = Source {
            node: packet.node(),
            hw_id: packet.hw_id(),
            version: packet.version(),
        };
        let (number, modulus) = (packet.sequence(), Modulus(packet.sequence_max()));
        if let Some(sequence) = self.0.get_mut(&source) {
            return sequence.arrive(number, modulus);
        }
        if self.0.len() >= SOURCES_MAX {
            return Number::NotFollowed;
        }
        let next = modulus.of(number.wrapping_add(1));
        self.0.insert(source, Sequence::new(next, LOST_MAX));
        Number::New { missing: 0 }
    }

    /// Gaps that were there at the last time are not filled any more.
    pub(super) fn settle(&mut self) {
        for sequence in self.0.values_mut() {
            sequence.credit = LOST_MAX;
            sequence.gaps.retain(|is_old| {
                let was_old = std::mem::replace(is_old, true);
                !was_old
            });
        }
    }
}
