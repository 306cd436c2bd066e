//! What modes and policies ask for, for the packets of one class.

use strata_policy::{DetailPlan, ModeDemands};
use strata_wire::{Decider, Granularity, Keep, Outcome};

use crate::reasons::{BY_CLASS, DeciderId, Reasons, join_decided};

/// What is kept of a packet in columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
        let payload = payload_wanted(keep);
        let kind = u32::from(class) | u32::from(keep.kind().code()) << 8;
        Self {
            payload,
            kind: kind | u32::from(decider) << DECIDER_BITS,
        }
    }

    /// It has to be found out for each packet of a class.
    fn varies(class: u8) -> Self {
        Self {
            payload: 0,
            kind: u32::from(class) | u32::from(VARIES) << DECIDER_BITS,
        }
    }

    /// Who decided, or [`VARIES`].
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "16 bits are left")]
    pub(crate) fn decider(self) -> DeciderId {
        (self.kind >> DECIDER_BITS) as DeciderId
    }

    pub(crate) fn is_by_class(self) -> bool {
        self.kind >> DECIDER_BITS == u32::from(BY_CLASS)
    }
}

/// Bytes after the headers of a packet in columns of which this is kept; [`WHOLE`] for all.
#[inline(always)]
pub(crate) fn payload_wanted(keep: Keep) -> u32 {
    match keep {
        Keep::Nothing => unreachable!("what is not kept is discarded or sampled out"),
        Keep::Header => 0,
        Keep::Partial(payload) => payload.min(WHOLE),
        Keep::Full => WHOLE,
    }
}

/// Whether the budget of detail decides about packets of one class in columns, and what they get.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Budgeted {
    /// Others decide.
    Outside,
    /// It does, but what they get has to be found out for each.
    Varies,
    /// It does, and they get this.
    Same {
        /// Without detail, and with it.
        kept: [Kept; 2],
        /// See [`Demands::wants_detail`].
        wants_detail: bool,
    },
}

/// What one class gets, with and without the budget of detail.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Demands {
    /// What modes and policies ask for.
    pub(crate) wanted: Demand,
    /// What packets get with detail and without, if the budget decides about them.
    pub(crate) budgeted: Option<Box<[Demand; 2]>>,
}

impl Demands {
    /// For a class of which the modes demand `modes`. `all` adds to the demands of modes what
    /// policies ask for.
    pub(crate) fn new(
        class: usize,
        modes: &ModeDemands,
        detail: Option<&DetailPlan>,
        all: impl Fn(&ModeDemands) -> Vec<(Granularity, Decider)>,
        reasons: &mut Reasons,
    ) -> Self {
        let wanted = Demand::new(all(modes), modes, reasons);
        let budgeted = detail.and_then(|detail| {
            let mut demand = |changed: &ModeDemands| Demand::new(all(changed), modes, reasons);
            let given = demand(&detail.given[class]);
            let denied = demand(&detail.denied[class]);
            // Where policies keep as much anyway, there is nothing to decide.
            (given.keeps() > denied.keeps()).then(|| Box::new([denied, given]))
        });
        Self { wanted, budgeted }
    }

    /// What is kept of packets of this class in columns: if the budget decides, that has to be found
    /// out for each.
    pub(crate) fn kept(&self, class: u8) -> Kept {
        match &self.budgeted {
            None => self.wanted.kept(class),
            Some(_) => Kept::varies(class),
        }
    }

    /// What the budget decides about packets of this class in columns.
    pub(crate) fn within_budget(&self, class: u8) -> Budgeted {
        let Some(budgeted) = self.budgeted.as_deref() else {
            return Budgeted::Outside;
        };
        let kept = budgeted.each_ref().map(|demand| demand.kept(class));
        if kept.map(Kept::decider).contains(&VARIES) {
            return Budgeted::Varies;
        }
        Budgeted::Same {
            kept,
            wants_detail: self.wants_detail(),
        }
    }

    /// Whether the modes want more than what packets get without detail.
    pub(crate) fn wants_detail(&self) -> bool {
        let denied = self.budgeted.as_ref().map(|budgeted| budgeted[0].keeps());
        denied.is_some_and(|denied| self.wanted.keeps() > denied)
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
    /// The most that is kept of a packet.
    pub(crate) fn keeps(&self) -> Keep {
        match self {
            Self::Always(Outcome::Log(keep), _) => *keep,
            Self::Always(..) => Keep::Nothing,
            Self::Sampled(demands) => {
                let keeps = demands.iter().map(|(demand, _)| demand.keep);
                keeps.max().unwrap_or(Keep::Nothing)
            }
        }
    }

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
            _ => Kept::varies(class),
        }
    }
}
