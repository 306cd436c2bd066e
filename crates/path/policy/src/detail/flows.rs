//! What is known of flows for the budget of detail.
//!
//! A flow's bucket in the sketch is a cache line without a bit to spare, and packets without a
//! bucket have flows too, so these are tables of their own, which fit in the second level of cache.
//! Each place holds one flow, the latest: a flow that loses its place starts anew, which changes in
//! what order detail is given, and never how much.

/// Places of each table: 65,536.
const FLOWS: usize = 1 << 16;
/// Payload is counted in units of 64 bytes, rounded up per packet.
const UNIT_BITS: u32 = 6;

/// How far each flow has come: 4 bytes a place.
#[derive(Debug)]
pub(super) struct Positions(Box<[Position; FLOWS]>);

/// One flow's payload so far.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    tag: u16,
    /// No more than 4 MiB are told apart.
    units: u16,
}

const _: () = assert!(size_of::<Position>() == 4);

impl Positions {
    pub(super) fn new() -> Self {
        let places = vec![Position::default(); FLOWS].into_boxed_slice();
        Self(places.try_into().expect("as many"))
    }

    /// Where a packet's payload ends in its flow, in units, at least 1.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "bounded or cut on purpose")]
    pub(super) fn end(&mut self, fingerprint: u64, payload: u32) -> u16 {
        let place = &mut self.0[usize::from((fingerprint >> 16) as u16)];
        let tag = (fingerprint >> 48) as u16;
        let before = if place.tag == tag { place.units } else { 0 };
        let end = u32::from(before) + (payload >> UNIT_BITS) + 1;
        let units = end.min(u32::from(u16::MAX)) as u16;
        *place = Position { tag, units };
        units
    }
}

/// The flows that have detail: a bit of each place, and its flow in the others.
#[derive(Debug)]
pub(super) struct Holders(Box<[u16; FLOWS]>);

impl Holders {
    pub(super) fn new() -> Self {
        let places = vec![0; FLOWS].into_boxed_slice();
        Self(places.try_into().expect("as many"))
    }

    /// The place of the flow with this fingerprint, and what is there if it has detail.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "16 bits each")]
    fn place(&mut self, fingerprint: u64) -> (&mut u16, u16) {
        let held = (fingerprint >> 48) as u16 | 1;
        (&mut self.0[usize::from((fingerprint >> 16) as u16)], held)
    }

    /// Whether a flow has detail.
    #[inline(always)]
    pub(super) fn holds(&mut self, fingerprint: u64) -> bool {
        let (place, held) = self.place(fingerprint);
        *place == held
    }

    /// Notes whether it has.
    #[inline(always)]
    pub(super) fn note(&mut self, fingerprint: u64, holds: bool) {
        let (place, held) = self.place(fingerprint);
        if holds {
            *place = held;
        } else if *place == held {
            *place = 0;
        }
    }
}
