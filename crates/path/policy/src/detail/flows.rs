//! How far each flow has come, for the budget of detail.
//!
//! A flow's bucket in the sketch is a cache line without a bit to spare, and packets without a
//! bucket have flows too, so this is a table of its own, which fits in the second level of cache.
//! Each place holds one flow, the latest: a flow that loses its place starts anew, which changes in
//! what order detail is given, and never how much.

/// Places of the table: 65,536.
const FLOWS: usize = 1 << 16;

/// The payload of each flow so far: 4 bytes a place.
#[derive(Debug)]
pub(super) struct Positions(Box<[Position; FLOWS]>);

/// One flow's payload so far.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    tag: u16,
    /// Of 16 bytes, rounded up per packet: no more than 1 MiB are told apart.
    units: u16,
}

const _: () = assert!(size_of::<Position>() == 4);

impl Positions {
    pub(super) fn new() -> Self {
        let places = vec![Position::default(); FLOWS].into_boxed_slice();
        Self(places.try_into().expect("as many"))
    }

    /// Counts a packet of this many units; returns how many of its flow there are with it, at least 1.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "bounded or cut on purpose")]
    pub(super) fn end(&mut self, fingerprint: u64, units: u32) -> u16 {
        let place = &mut self.0[usize::from((fingerprint >> 16) as u16)];
        let tag = (fingerprint >> 48) as u16;
        let before = if place.tag == tag { place.units } else { 0 };
        let end = u32::from(before) + units;
        let units = end.min(u32::from(u16::MAX)) as u16;
        *place = Position { tag, units };
        units
    }

    /// All flows have come half as far.
    #[cold]
    pub(super) fn halve(&mut self) {
        for place in self.0.iter_mut() {
            place.units /= 2;
        }
    }
}
