//! The stages from the budget of detail to records, for one packet at a time: what the flow of one asks for may
//! have others written before it.

use strata_blocks::{Sink, SinkError};
use strata_capture::Packets;
use strata_classify::VerdictId;

use super::batch::{Batch, Known};
use super::budget::BudgetStage;
use super::keep::{Decision, KeepStage};
use super::lanes::Lane;
use super::parse::Source;
use super::record::{Definitions, RecordStage, Recording};
use crate::lookback::Cut;
use crate::reasons::DeciderId;

/// What is decided about a packet, and whether that is outside the budget of detail.
pub(crate) type Decided = (Decision, bool);

/// What modes, policies and the budget decide about a packet.
#[inline(always)]
pub(crate) fn decide(
    budget: &mut BudgetStage,
    keep: &KeepStage,
    lane: Lane<'_>,
    known: Known<'_>,
) -> Decided {
    let given = budget.packet(lane, known, keep);
    let decision = keep.packet(lane, known, given);
    (decision, budget.is_on() && given.is_none())
}

/// These stages, and what those before have found out.
pub(crate) struct Deciding<'a, S> {
    pub(crate) known: Known<'a>,
    pub(crate) sources: &'a [Source],
    pub(crate) budget: &'a mut BudgetStage,
    pub(crate) keep: &'a mut KeepStage,
    pub(crate) record: &'a mut RecordStage<S>,
}

impl<S: Sink> Deciding<'_, S> {
    /// How much is kept of each packet of a batch, as modes, policies and the budget decide.
    pub(crate) fn keep_columns(&mut self, batch: &mut Batch, count: usize) {
        self.keep.demand_columns(batch, self.known, count);
        self.budget.columns(batch, self.known, self.keep);
        self.keep.columns(batch, self.known, self.record);
        self.budget.count_columns_outside(batch);
    }

    /// The same where there are no policies: mostly it is the same for all packets of a class.
    pub(crate) fn keep_columns_by_class(&mut self, batch: &mut Batch, count: usize) {
        let classifier = self.known.classifier;
        if self.budget.is_alone() {
            self.budget
                .columns_alone(batch, classifier, self.keep, count);
        } else if self.keep.is_by_class() {
            self.keep.columns_by_class(batch, classifier, count);
        } else {
            self.keep_columns(batch, count);
        }
    }

    /// The number for a verdict and who decided.
    #[inline(always)]
    pub(crate) fn reason(&mut self, verdict: VerdictId, decider: DeciderId) -> u16 {
        self.keep.reason(self.known.classifier, verdict, decider)
    }

    /// Records of a batch's packets before `end` that have none yet.
    pub(crate) fn record_columns<P: Packets + ?Sized>(
        &mut self,
        batch: &Batch,
        recording: &mut Recording<'_, P>,
        end: usize,
    ) -> Result<(), SinkError> {
        let definitions = Definitions {
            sources: self.sources,
            classifier: self.known.classifier,
            reasons: self.keep.reasons(),
        };
        self.record.columns(batch, recording, end, definitions)
    }

    /// Writes the rest of a packet that is in the log already, since this one decided so on a packet of
    /// this class.
    pub(crate) fn promote(
        &mut self,
        packet: &Cut<'_>,
        trigger: (DeciderId, u8),
    ) -> Result<(), SinkError> {
        self.record.room_to_promote(packet)?;
        let classifier = self.known.classifier;
        let reason = self
            .keep
            .reason_to_promote(classifier, packet.verdict, trigger);
        let definitions = Definitions {
            sources: self.sources,
            classifier,
            reasons: self.keep.reasons(),
        };
        self.record.promote(packet, reason, definitions);
        Ok(())
    }
}
