//! What is known of a flow for the budget of detail.
//!
//! A flow's bucket in the sketch is a cache line without a bit to spare, and packets without a
//! bucket have flows too, so this is a table of its own: 256 KiB, which fit in the second level of
//! cache. Only packets whose score comes close to the threshold look at it. Each place holds one
//! flow, the latest: a flow that loses its place starts anew, which changes in what order detail is
//! given, and never how much.

/// Places: 65,536 of 4 bytes.
const FLOWS: usize = 1 << 16;
/// Payload is counted in units of 64 bytes, ...
const UNIT_BITS: u32 = 6;
/// ... as far as the start of a flow reaches: 4 KiB.
const START_UNITS: u8 = 64;

/// Why a flow has detail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Held {
    /// It has none.
    #[default]
    Not = 0,
    /// Its packets were at the threshold.
    ByRank = 1,
    /// Its packets' scores were above.
    ByScore = 2,
}

impl Held {
    pub(super) const COUNT: usize = 3;
}

/// One flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    tag: u16,
    /// Payload so far.
    units: u8,
    pub(super) held: Held,
}

const _: () = assert!(size_of::<Flow>() == 4);

impl Flow {
    /// How early in its flow a packet is: from 9 within the first 4 KiB (15 is the first packet), else
    /// 0 plus `others`, at most 8.
    #[inline(always)]
    pub(super) fn earliness(self, others: u16) -> u16 {
        if self.units < START_UNITS {
            15 - exact_bits(self.units)
        } else {
            others
        }
    }

    /// Counts a packet's payload.
    #[inline(always)]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "at most the units of a start"
    )]
    pub(super) fn add(&mut self, payload: u32) {
        let units = (payload >> UNIT_BITS).min(u32::from(START_UNITS)) as u8 + 1;
        self.units = (self.units + units).min(START_UNITS);
    }

    /// A number from 0 to 7 that stays with the flow.
    #[inline(always)]
    pub(super) fn spread(self) -> u16 {
        self.tag & 7
    }
}

/// Bits of a number below 64.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "at most 8")]
fn exact_bits(units: u8) -> u16 {
    (8 - units.leading_zeros()) as u16
}

/// The flows whose packets came close to the threshold.
#[derive(Debug)]
pub(super) struct Flows(Box<[Flow]>);

impl Flows {
    pub(super) fn new() -> Self {
        Self(vec![Flow::default(); FLOWS].into_boxed_slice())
    }

    /// The flow with this fingerprint.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "16 bits each")]
    pub(super) fn get(&mut self, fingerprint: u64) -> &mut Flow {
        let place = (fingerprint >> 16) as usize % FLOWS;
        let tag = (fingerprint >> 48) as u16;
        let flow = &mut self.0[place];
        if flow.tag != tag {
            *flow = Flow {
                tag,
                ..Flow::default()
            };
        }
        flow
    }
}
