//! What modes and policies ask for, for the packets of one class.

use strata_policy::ModeDemands;
use strata_wire::{Decider, Granularity, Keep, Outcome};

use crate::reasons::{BY_CLASS, DeciderId, Reasons, join_decided};

/// What is kept of a packet in columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Bytes after the headers; [`WHOLE`] for all.
    pub(crate) payload: u32,
    /// The class, [`KeepKind::code`](strata_wire::KeepKind::code) from bit 8 on, and from
    /// [`DECIDER_BITS`] on who decided so: [`VARIES`] if that has to be found out for each packet.
    pub(crate) kind: u32,
}

/// Where the decider begins in [`Kept::kind`].
pub(crate) const DECIDER_BITS: u32 = 16;
/// More than any packet in a batch in columns has.
const WHOLE: u32 = 1 << 30;
/// Not every packet is recorded, or what is kept is sampled; stands in place of a decider.
pub(crate) const VARIES: DeciderId = DeciderId::MAX;

impl Kept {
    /// What is kept of a packet of a class, and who decided so.
    #[inline(always)]
    pub(crate) fn new(keep: Keep, decider: DeciderId, class: u8) -> Self {
        let payload = match keep {
            Keep::Nothing => unreachable!("what nobody keeps is discarded or sampled out"),
            Keep::Header => 0,
            Keep::Partial(payload) => payload.min(WHOLE),
            Keep::Full => WHOLE,
        };
        let kind = u32::from(class) | u32::from(keep.kind().code()) << 8;
        Self {
            payload,
            kind: kind | u32::from(decider) << DECIDER_BITS,
        }
    }

    pub(crate) fn is_by_class(self) -> bool {
        self.kind >> DECIDER_BITS == u32::from(BY_CLASS)
    }
}

/// What one class gets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Demand {
    /// The same for every packet, and who decided so.
    Always(Outcome, DeciderId),
    /// Sampled: decided packet by packet.
    Sampled(Vec<(Granularity, DeciderId)>),
}

impl Demand {
    /// Demands as computed; `modes` are those of the modes, which the context names.
    pub(crate) fn new(
        demands: Vec<(Granularity, Decider)>,
        modes: &ModeDemands,
        reasons: &mut Reasons,
    ) -> Self {
        let is_sampled = demands.iter().any(|(demand, _)| demand.sampling.is_some());
        // Where modes alone decide, and for every packet alike, the context says who.
        let by_class = demands == *modes && (!is_sampled || demands.len() == 1);
        // A single mode is the one that the context names.
        let mut number = |decider: Decider| {
            if by_class || matches!(modes.as_slice(), [(_, only)] if *only == decider) {
                BY_CLASS
            } else {
                reasons.decider(decider)
            }
        };
        let demands: Vec<(Granularity, DeciderId)> = demands
            .into_iter()
            .map(|(demand, decider)| (demand, number(decider)))
            .collect();
        if is_sampled {
            Self::Sampled(demands)
        } else {
            let (outcome, decider) = join_decided(&demands, 0, 0);
            Self::Always(outcome, decider)
        }
    }

    /// The same for packets of this class in columns.
    pub(crate) fn kept(&self, class: u8) -> Kept {
        match self {
            Self::Always(Outcome::Log(keep), decider) => Kept::new(*keep, *decider, class),
            _ => Kept {
                payload: 0,
                kind: u32::from(class) | u32::from(VARIES) << DECIDER_BITS,
            },
        }
    }
}
