//! Packets that are kept whole because of what their flow is, or turns out to be.

use std::num::NonZeroU64;
use std::sync::Arc;

use strata_blocks::{PROMOTION_HEADER_LEN, Promotion, Sink, SinkError};
use strata_capture::PacketRef;
use strata_classify::VerdictId;
use strata_wire::{Decider, Keep, Outcome, exact};

use super::{DEFINITIONS_LEN, Worker};
use crate::alerts::{Alerted, Alerts};
use crate::classifier::bits;
use crate::first_bytes::FirstBytes;
use crate::flows::wire_bytes;
use crate::lookback::{Cut, LookBack, Remembered};
use crate::reasons::{BY_CLASS, DeciderId, FIRST_BYTES, class_and_level};

/// What is kept whole in addition to what modes and policies ask for; by default nothing.
#[derive(Clone, Debug, Default)]
pub struct TriggerOptions {
    /// Memory for the packets seen last, in bytes; 0 for none. Once a packet of a flow is
    /// kept whole, what is remembered of the flow is written whole too.
    pub look_back_bytes: usize,
    /// Packets that begin within this many bytes of their flow are kept whole; 0 for none.
    pub first_bytes: u64,
    /// Flows found by others; from then on all of their packets are kept whole, and so is what is
    /// remembered of them.
    pub alerts: Option<Arc<Alerts>>,
}

/// What one worker needs for this.
#[derive(Debug)]
pub struct Triggers {
    look_back: Option<LookBack>,
    first_bytes: Option<FirstBytes>,
    alerted: Option<Alerted>,
}

impl Triggers {
    /// Allocates and touches all of its memory, which takes a while: create it before packets come.
    #[must_use]
    pub fn new(options: &TriggerOptions) -> Self {
        let (memory, first) = (options.look_back_bytes, options.first_bytes);
        Self {
            look_back: (memory > 0).then(|| LookBack::new(memory)),
            first_bytes: (first > 0).then(|| FirstBytes::new(first)),
            alerted: options.alerts.clone().map(Alerted::new),
        }
    }

    /// Whether it may promote packets.
    #[must_use]
    pub fn looks_back(&self) -> bool {
        self.look_back.is_some()
    }

    pub(super) fn is_asked(&self) -> bool {
        self.looks_back() || self.first_bytes.is_some() || self.alerted.is_some()
    }
}

impl<S: Sink> Worker<S> {
    /// Takes in new alerts: what is remembered of their flows is promoted.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn apply_alerts(&mut self) -> Result<(), SinkError> {
        let triggers = self.triggers.as_mut();
        let events = triggers.and_then(|triggers| triggers.alerted.as_mut()?.events());
        for alert in events.into_iter().flatten() {
            let fingerprint = self.flows.hasher().flow(&alert.flow);
            // 0 says in a log that there is no number.
            let number = alert.signature_id.map_or(0, NonZeroU64::get);
            let decider = Decider::alert(number, &alert.signature);
            let decider = self.reasons.decider(decider);
            let triggers = self.triggers.as_mut();
            if let Some(alerted) = triggers.and_then(|triggers| triggers.alerted.as_mut()) {
                alerted.add(fingerprint, decider);
            }
            self.promote(fingerprint, decider, 0)?;
        }
        Ok(())
    }

    /// Prefetches what [`Worker::attend_to`] will look at.
    #[inline]
    pub(super) fn prefetch_triggers(&self) {
        let Some(triggers) = &self.triggers else {
            return;
        };
        for lane in bits(self.lanes.dissected) {
            let fingerprint = self.lanes.facts[lane].fingerprint;
            if let Some(look_back) = &triggers.look_back {
                look_back.prefetch(fingerprint);
            }
            if let Some(first_bytes) = &triggers.first_bytes {
                first_bytes.prefetch(fingerprint);
            }
        }
    }

    /// What happens to a packet for which modes and policies have this outcome, and who decided it:
    /// what they keep whole already is their decision.
    #[inline(never)]
    pub(super) fn attend_to(
        &mut self,
        lane: usize,
        packet: &PacketRef<'_>,
        decided: (Outcome, DeciderId),
        (verdict, class): (VerdictId, u8),
    ) -> Result<(Outcome, DeciderId), SinkError> {
        const WHOLE: Outcome = Outcome::Log(Keep::Full);
        let (outcome, decider) = decided;
        let Some(triggers) = &mut self.triggers else {
            return Ok(decided);
        };
        // What is discarded stays so; a packet without a flow has no others to go with it.
        if outcome == Outcome::Discard || self.lanes.dissected & 1 << lane == 0 {
            return Ok(decided);
        }
        let fingerprint = self.lanes.facts[lane].fingerprint;
        let bytes = packet.data.len() as u64;
        let first = triggers.first_bytes.as_mut();
        let is_start = first.is_some_and(|first| first.is_start(fingerprint, packet.ts_ns, bytes));
        let alerted = triggers.alerted.as_ref();
        let alerted = alerted.and_then(|alerted| alerted.by(fingerprint));
        if alerted.is_some() || outcome == WHOLE {
            let decider = alerted.filter(|_| outcome != WHOLE).unwrap_or(decider);
            self.promote(fingerprint, decider, class)?;
            return Ok((WHOLE, decider));
        }
        if is_start {
            return Ok((WHOLE, FIRST_BYTES));
        }
        let (Outcome::Log(keep), Some(look_back)) = (outcome, &mut triggers.look_back) else {
            return Ok(decided);
        };
        let captured_len = exact::<u32>(bytes);
        let kept_len = keep.kept_len(self.lanes.header_len[lane], captured_len);
        if kept_len < captured_len {
            look_back.push(&Remembered {
                fingerprint,
                packet: Cut {
                    seq: self.next_seq,
                    verdict,
                    class,
                    keep: keep.kind(),
                    kept_len,
                    wire_len: exact::<u32>(wire_bytes(packet)),
                    data: packet.data,
                },
            });
        }
        Ok(decided)
    }

    /// Writes what is remembered of a flow whole, as `trigger` decided on a packet of this class.
    fn promote(
        &mut self,
        fingerprint: u64,
        trigger: DeciderId,
        class: u8,
    ) -> Result<(), SinkError> {
        // Taken out, since its packets go into the block meanwhile.
        let Some(mut triggers) = self.triggers.take() else {
            return Ok(());
        };
        let mut promoted = Ok(());
        if let Some(look_back) = &mut triggers.look_back {
            promoted = look_back.take(fingerprint, |packet| {
                let needed = PROMOTION_HEADER_LEN + packet.data.len() + DEFINITIONS_LEN;
                if self.block.room() < needed {
                    self.room_for(needed)?;
                }
                let reason = self.reason_to_promote(packet.verdict, trigger, class);
                self.define_reason(reason);
                self.block.push_promotion(&Promotion {
                    seq: packet.seq,
                    class: packet.class,
                    keep: packet.keep,
                    kept_len: packet.kept_len,
                    wire_len: packet.wire_len,
                    verdict: Some(reason),
                    data: packet.data,
                });
                Ok(())
            });
        }
        self.triggers = Some(triggers);
        promoted
    }

    /// The number for a verdict whose packet is now written whole because of a trigger.
    fn reason_to_promote(&mut self, verdict: VerdictId, trigger: DeciderId, class: u8) -> u16 {
        let explicit = self.class_deciders.get(usize::from(class));
        let by_class = explicit.unwrap_or(&Decider::Class);
        let decider = self.reasons.look_back(trigger, class, by_class);
        debug_assert_ne!(decider, BY_CLASS);
        let classifier = &self.classifier;
        let known = |id| class_and_level(classifier.verdict(id));
        self.reasons.number(verdict, decider, known)
    }
}
