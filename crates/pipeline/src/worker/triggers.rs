//! Packets that are kept whole because of what their flow is, or turns out to be.

use std::num::NonZeroU64;
use std::sync::Arc;

use strata_blocks::{PROMOTION_HEADER_LEN, Promotion, Sink, SinkError};
use strata_capture::PacketRef;
use strata_classify::VerdictId;
use strata_wire::{Decider, Keep, Outcome, exact};

use super::detail::Decided;
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

    /// Forgets the packets that it remembers.
    pub(super) fn forget(&mut self) {
        if let Some(look_back) = &mut self.look_back {
            look_back.forget();
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

    /// Fetches what [`Triggers::ask`] will look at.
    #[inline]
    pub(super) fn prefetch(&self, fingerprints: &[u64]) {
        if let Some(look_back) = &self.look_back {
            fingerprints.iter().for_each(|&of| look_back.prefetch(of));
        }
        if let Some(first_bytes) = &self.first_bytes {
            fingerprints.iter().for_each(|&of| first_bytes.prefetch(of));
        }
    }

    /// What the flow of a packet asks for, given its fingerprint, time and captured bytes.
    #[inline(always)]
    pub(super) fn ask(&mut self, (fingerprint, ts_ns, bytes): (u64, u64, u64)) -> Asked {
        let first = self.first_bytes.as_mut();
        let alerted = self.alerted.as_ref();
        Asked {
            is_start: first.is_some_and(|first| first.is_start(fingerprint, ts_ns, bytes)),
            alerted: alerted.and_then(|alerted| alerted.by(fingerprint)),
        }
    }

    /// Remembers a packet that is not kept whole.
    #[inline(always)]
    pub(super) fn remember(&mut self, packet: &Remembered<'_>) {
        let Remembered { packet: cut, .. } = packet;
        if let Some(look_back) = &mut self.look_back
            && (cut.kept_len as usize) < cut.data.len()
        {
            look_back.push(packet);
        }
    }

    /// Whether anything of a flow may be remembered.
    #[inline(always)]
    pub(super) fn remembers(&self, fingerprint: u64) -> bool {
        let look_back = self.look_back.as_ref();
        look_back.is_some_and(|look_back| look_back.remembers(fingerprint))
    }
}

/// What a packet's flow asks for by itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    /// The packet is one of its first bytes.
    is_start: bool,
    /// An alert was raised on it.
    alerted: Option<DeciderId>,
}

impl Asked {
    /// Whether it asks for anything.
    #[inline(always)]
    pub(super) fn is_any(self) -> bool {
        self.is_start || self.alerted.is_some()
    }

    /// What to do with the packet, given who has decided that it is kept whole already, if so.
    #[inline(always)]
    pub(super) fn attention(self, whole: Option<DeciderId>) -> Attention {
        match whole.or(self.alerted) {
            Some(decider) => Attention::Promote(decider),
            None if self.is_start => Attention::Whole(FIRST_BYTES),
            None => Attention::AsDecided,
        }
    }
}

/// What is done with a packet because of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attention {
    /// What modes and policies have decided.
    AsDecided,
    /// It is kept whole, as this one decided.
    Whole(DeciderId),
    /// And so is what is remembered of the flow.
    Promote(DeciderId),
}

impl<S: Sink> Worker<S> {
    /// Takes in new alerts: what is remembered of their flows is promoted.
    ///
    /// # Errors
    ///
    /// If the log cannot be written.
    pub fn apply_alerts(&mut self) -> Result<(), SinkError> {
        let triggers = self.triggers.as_mut();
        let Some(events) = triggers.and_then(|triggers| triggers.alerted.as_mut()?.events()) else {
            return Ok(());
        };
        let Some(mut triggers) = self.triggers.take() else {
            return Ok(());
        };
        let applied = events.into_iter().try_for_each(|alert| {
            let fingerprint = self.flows.hasher().flow(&alert.flow);
            // 0 says in a log that there is no number.
            let number = alert.signature_id.map_or(0, NonZeroU64::get);
            let decider = Decider::alert(number, &alert.signature);
            let decider = self.reasons.decider(decider);
            if let Some(alerted) = &mut triggers.alerted {
                alerted.add(fingerprint, decider);
            }
            self.promote(&mut triggers, fingerprint, decider, 0)
        });
        self.triggers = Some(triggers);
        applied
    }

    /// Prefetches what [`Worker::attend_to`] will look at.
    #[inline]
    pub(super) fn prefetch_triggers(&self) {
        let Some(triggers) = &self.triggers else {
            return;
        };
        for lane in bits(self.lanes.dissected) {
            triggers.prefetch(&[self.lanes.facts[lane].fingerprint]);
        }
    }

    /// What happens to a packet, and who decided it: what modes and policies keep whole already is
    /// their decision. Also whether its flow asks for it by itself.
    #[inline(never)]
    pub(super) fn attend_to(
        &mut self,
        lane: usize,
        packet: &PacketRef<'_>,
        (verdict, class): (VerdictId, u8),
    ) -> Result<(Decided, bool), SinkError> {
        const WHOLE: Outcome = Outcome::Log(Keep::Full);
        let place = (self.lanes.policed[lane], class);
        let wanted = self.decided(place, None, || self.lanes.headers(lane).flow_key());
        // What is discarded stays so; a packet without a flow has no others to go with it.
        if wanted.0 == Outcome::Discard || self.lanes.dissected & 1 << lane == 0 {
            return Ok((self.decided_lane(lane, packet, verdict), false));
        }
        let Some(triggers) = &mut self.triggers else {
            return Ok((self.decided_lane(lane, packet, verdict), false));
        };
        let fingerprint = self.lanes.facts[lane].fingerprint;
        let captured_len = exact::<u32>(packet.data.len());
        let of = (fingerprint, packet.ts_ns, u64::from(captured_len));
        let asked = triggers.ask(of);
        // What its flow asks for is not offered to the budget of detail.
        let (decided, is_outside) = match asked.is_any() {
            true => (wanted, self.has_detail),
            false => self.decided_lane(lane, packet, verdict),
        };
        let (outcome, decider) = decided;
        match asked.attention((outcome == WHOLE).then_some(decider)) {
            Attention::AsDecided => {
                if let Outcome::Log(keep) = outcome {
                    let cut = Cut {
                        seq: self.next_seq,
                        verdict,
                        class,
                        keep: keep.kind(),
                        kept_len: keep.kept_len(self.lanes.header_len[lane], captured_len),
                        wire_len: exact::<u32>(wire_bytes(packet)),
                        data: packet.data,
                    };
                    let remembered = Remembered {
                        fingerprint,
                        packet: cut,
                    };
                    if let Some(triggers) = &mut self.triggers {
                        triggers.remember(&remembered);
                    }
                }
                Ok(((decided, is_outside), false))
            }
            Attention::Whole(decider) => Ok((((WHOLE, decider), is_outside), asked.is_any())),
            Attention::Promote(decider) => {
                let Some(mut triggers) = self.triggers.take() else {
                    unreachable!("they were asked");
                };
                let promoted = self.promote(&mut triggers, fingerprint, decider, class);
                self.triggers = Some(triggers);
                promoted.map(|()| (((WHOLE, decider), is_outside), asked.is_any()))
            }
        }
    }

    /// Writes what is remembered of a flow whole, as `trigger` decided on a packet of this class.
    /// `triggers` are this worker's, taken out since its packets go into the block meanwhile.
    pub(super) fn promote(
        &mut self,
        triggers: &mut Triggers,
        fingerprint: u64,
        trigger: DeciderId,
        class: u8,
    ) -> Result<(), SinkError> {
        let Some(look_back) = &mut triggers.look_back else {
            return Ok(());
        };
        look_back.take(fingerprint, |packet| {
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
        })
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
