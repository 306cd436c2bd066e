//! How far each flow has come, for the budget of detail.
//!
//! A flow's bucket in the sketch is a cache line without a bit to spare, and packets without a
//! bucket have flows too, so this is a table of its own, which fits in the second level of cache.
//! Each place holds one flow, the latest: a flow that loses its place starts anew, which changes in
//! what order detail is given, and never how much.

use strata_wire::wide::{GROUP, Lanes};

/// Places of the table: 65,536.
const FLOWS: usize = 1 << 16;

/// The payload of each flow so far. In the high half of a place is the tag of its flow, in the low half
/// units of 16 bytes, rounded up per packet: no more than 1 MiB are told apart. The last place is that of
/// packets without payload.
#[derive(Debug)]
pub(super) struct Positions(Box<[u32; FLOWS + 1]>);

/// The place of packets without payload.
#[allow(clippy::cast_possible_truncation, reason = "65,536")]
const NO_PLACE: u32 = FLOWS as u32;
/// The units of a place.
pub(super) const UNITS_MAX: u32 = u16::MAX as u32;

impl Positions {
    pub(super) fn new() -> Self {
        let places = vec![0; FLOWS + 1].into_boxed_slice();
        Self(places.try_into().expect("as many"))
    }

    /// Counts a packet of this many units; returns how many of its flow there are with it. One without
    /// units changes nothing.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "cut on purpose")]
    pub(super) fn end(&mut self, fingerprint: u64, units: u32) -> u32 {
        let place = match units {
            0 => NO_PLACE,
            _ => u32::from((fingerprint >> 16) as u16),
        };
        self.at(place, (fingerprint >> 32) as u32 & !UNITS_MAX, units)
    }

    /// The same for packets of a group; returns their ends. The high halves of fingerprints are handed
    /// over.
    #[inline(always)]
    pub(super) fn ends<L: Lanes>(
        &mut self,
        l: L,
        (flows, high): (&[u64; GROUP], L::U32),
        units: L::U32,
    ) -> L::U32 {
        let (mut places, mut tags, mut ends) = ([0; GROUP], [0; GROUP], [0; GROUP]);
        let place = l.and(
            l.narrow(l.shr_64(l.load_64(flows), 16)),
            l.set(u16::MAX.into()),
        );
        let is_any = l.le(l.set(1), units);
        l.store(l.choose(is_any, place, l.set(NO_PLACE)), &mut places);
        l.store(l.and(high, l.set(!UNITS_MAX)), &mut tags);
        l.store(units, &mut ends);
        for lane in 0..GROUP {
            ends[lane] = self.at(places[lane], tags[lane], ends[lane]);
        }
        l.load(&ends)
    }

    /// Counts units of the flow with a tag at a place.
    #[inline(always)]
    fn at(&mut self, place: u32, tag: u32, units: u32) -> u32 {
        let place = &mut self.0[(place as usize).min(FLOWS)];
        let other = *place ^ tag;
        let before = if other <= UNITS_MAX { other } else { 0 };
        let end = (before + units).min(UNITS_MAX);
        *place = tag | end;
        end
    }

    /// All flows have come half as far.
    #[cold]
    pub(super) fn halve(&mut self) {
        for place in self.0.iter_mut() {
            *place = (*place & !UNITS_MAX) | ((*place & UNITS_MAX) / 2);
        }
    }
}
