//! What modes and policies ask for, for the packets of one class.

use strata_policy::ModeDemands;
use strata_wire::{Decider, Granularity, Outcome};

use crate::reasons::{BY_CLASS, DeciderId, Reasons, join_decided};

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
}
