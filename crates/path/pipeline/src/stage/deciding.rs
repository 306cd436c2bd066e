//! The stages from the budget of detail to records as triggers use them, for one packet after another: what the
//! flow of one asks for may have others written before it.

use strata_blocks::SinkError;
use strata_capture::Packets;
use strata_classify::VerdictId;

use super::batch::{Batch, Known};
use super::budget::BudgetStage;
use super::keep::{Decision, KeepStage};
use super::lanes::Lane;
use super::parse::Source;
use super::record::{Definitions, RecordStage, Recording};
use crate::reasons::DeciderId;
use crate::stage::triggers::lookback::Cut;

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

/// What a block's definitions are made of.
#[inline(always)]
pub(crate) fn definitions<'a>(
    known: Known<'a>,
    sources: &'a [Source],
    keep: &'a KeepStage,
) -> Definitions<'a> {
    Definitions {
        sources,
        classifier: known.classifier,
        reasons: keep.reasons(),
    }
}

/// These stages, and what those before have found out.
pub(crate) struct Deciding<'a> {
    pub(crate) known: Known<'a>,
    pub(crate) sources: &'a [Source],
    pub(crate) budget: &'a mut BudgetStage,
    pub(crate) keep: &'a mut KeepStage,
    pub(crate) record: &'a mut RecordStage,
}

impl Deciding<'_> {
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
        let definitions = definitions(self.known, self.sources, self.keep);
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
        let definitions = definitions(self.known, self.sources, self.keep);
        self.record.promote(packet, reason, definitions);
        Ok(())
    }
}
