//! Packets that are kept whole because of what their flow is, or turns out to be.

pub(crate) mod alerts;
mod first_bytes;
pub(crate) mod lookback;

use std::num::NonZeroU64;
use std::sync::Arc;

use strata_blocks::SinkError;
use strata_capture::Packets;
use strata_wire::wide::GROUP;
use strata_wire::{Decider, FlowHasher, Keep, KeepKind, Outcome, exact};

use super::batch::Batch;
use super::deciding::{Decided, Deciding, decide};
use super::keep::{skip, split_demands};
use super::lanes::{Lane, Lanes};
use super::record::Recording;
use crate::classifier::bits;
use crate::demand::{VARIES, payload_wanted};
use crate::flows::wire_bytes;
use crate::reasons::{BY_CLASS, DeciderId, FIRST_BYTES};
use crate::stage::triggers::alerts::{Alerted, Alerts};
use crate::stage::triggers::first_bytes::FirstBytes;
use crate::stage::triggers::lookback::{Cut, LookBack, Remembered};

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
    pub(crate) fn forget(&mut self) {
        if let Some(look_back) = &mut self.look_back {
            look_back.forget();
        }
    }

    /// Whether it may promote packets.
    #[must_use]
    pub fn looks_back(&self) -> bool {
        self.look_back.is_some()
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.looks_back() || self.first_bytes.is_some() || self.alerted.is_some()
    }

    /// Fetches what [`Triggers::ask`] will look at.
    #[inline]
    pub(crate) fn prefetch(&self, fingerprints: &[u64]) {
        if let Some(look_back) = &self.look_back {
            fingerprints.iter().for_each(|&of| look_back.prefetch(of));
        }
        if let Some(first_bytes) = &self.first_bytes {
            fingerprints.iter().for_each(|&of| first_bytes.prefetch(of));
        }
    }

    /// What the flow of a packet asks for, given its fingerprint, time and captured bytes.
    #[inline(always)]
    fn ask(&mut self, (fingerprint, ts_ns, bytes): (u64, u64, u64)) -> Asked {
        let first = self.first_bytes.as_mut();
        let alerted = self.alerted.as_mut();
        Asked {
            is_start: first.is_some_and(|first| first.is_start(fingerprint, ts_ns, bytes)),
            alerted: alerted.and_then(|alerted| alerted.by(fingerprint)),
        }
    }

    /// Remembers a packet that is not kept whole.
    #[inline(always)]
    fn remember(&mut self, packet: &Remembered<'_>) {
        let Remembered { packet: cut, .. } = packet;
        if let Some(look_back) = &mut self.look_back
            && (cut.kept_len as usize) < cut.data.len()
        {
            look_back.push(packet);
        }
    }

    /// Whether anything of a flow may be remembered.
    #[inline(always)]
    fn remembers(&self, fingerprint: u64) -> bool {
        let look_back = self.look_back.as_ref();
        look_back.is_some_and(|look_back| look_back.remembers(fingerprint))
    }
}

/// What a packet's flow asks for by itself.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// The packet is one of its first bytes.
    is_start: bool,
    /// An alert was raised on it.
    alerted: Option<DeciderId>,
}

impl Asked {
    /// Whether it asks for anything.
    #[inline(always)]
    fn is_any(self) -> bool {
        self.is_start || self.alerted.is_some()
    }

    /// What to do with the packet, given who has decided that it is kept whole already, if so.
    #[inline(always)]
    fn attention(self, whole: Option<DeciderId>) -> Attention {
        match whole.or(self.alerted) {
            Some(decider) => Attention::Promote(decider),
            None if self.is_start => Attention::Whole(FIRST_BYTES),
            None => Attention::AsDecided,
        }
    }
}

/// What is done with a packet because of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attention {
    /// What modes and policies have decided.
    AsDecided,
    /// It is kept whole, as this one decided.
    Whole(DeciderId),
    /// And so is what is remembered of the flow.
    Promote(DeciderId),
}

/// What a packet's flow asks for, and what is remembered of flows.
impl Triggers {
    /// Takes in new alerts: what is remembered of their flows is promoted.
    pub(crate) fn apply_alerts(
        &mut self,
        hasher: FlowHasher,
        deciding: &mut Deciding<'_>,
    ) -> Result<(), SinkError> {
        let Some(events) = self.alerted.as_mut().and_then(Alerted::events) else {
            return Ok(());
        };
        events.into_iter().try_for_each(|alert| {
            let fingerprint = hasher.flow(&alert.flow);
            // 0 says in a log that there is no number.
            let number = alert.signature_id.map_or(0, NonZeroU64::get);
            let decider = Decider::alert(number, &alert.signature);
            let decider = deciding.keep.reasons_mut().decider(decider);
            if let Some(alerted) = &mut self.alerted {
                alerted.add(fingerprint, decider);
            }
            if self.promote(fingerprint, (decider, 0), deciding)?
                && let Some(alerted) = &mut self.alerted
            {
                // Packets that came before the alert are packets of its flow too.
                alerted.by(fingerprint);
            }
            Ok(())
        })
    }

    /// Writes what is remembered of a flow whole, as `trigger` decided on a packet of this class; returns whether that
    /// is anything.
    fn promote(
        &mut self,
        fingerprint: u64,
        trigger: (DeciderId, u8),
        deciding: &mut Deciding<'_>,
    ) -> Result<bool, SinkError> {
        let Some(look_back) = &mut self.look_back else {
            return Ok(false);
        };
        let mut is_any = false;
        look_back.take(fingerprint, |packet| {
            is_any = true;
            deciding.promote(packet, trigger)
        })?;
        Ok(is_any)
    }
}

/// Packet by packet.
impl Triggers {
    /// Prefetches what [`Triggers::packet`] will look at.
    #[inline]
    pub(crate) fn prefetch_lanes(&self, lanes: &Lanes) {
        for lane in bits(lanes.dissected) {
            self.prefetch(&[lanes.facts[lane].fingerprint]);
        }
    }

    /// What happens to a packet, and who decided it: what modes and policies keep whole already is
    /// their decision. Also whether its flow asks for it by itself.
    #[inline(never)]
    pub(crate) fn packet(
        &mut self,
        lane: Lane<'_>,
        deciding: &mut Deciding<'_>,
    ) -> Result<(Decided, bool), SinkError> {
        const WHOLE: Outcome = Outcome::Log(Keep::Full);
        let known = deciding.known;
        let wanted = deciding.keep.packet(lane, known, None);
        // What is discarded stays so; a packet without a flow has no others to go with it.
        if wanted.0 == Outcome::Discard || !lane.has_flow() {
            return Ok((decide(deciding.budget, deciding.keep, lane, known), false));
        }
        let packet = lane.packet;
        let (fingerprint, captured_len) = (lane.fingerprint(), lane.captured_len());
        let asked = self.ask((fingerprint, packet.ts_ns, u64::from(captured_len)));
        // What its flow asks for is not offered to the budget of detail.
        let (decided, is_outside) = match asked.is_any() {
            true => (wanted, deciding.budget.is_on()),
            false => decide(deciding.budget, deciding.keep, lane, known),
        };
        let (outcome, decider) = decided;
        match asked.attention((outcome == WHOLE).then_some(decider)) {
            Attention::AsDecided => {
                if let Outcome::Log(keep) = outcome {
                    let cut = Cut {
                        seq: deciding.record.next_seq(),
                        verdict: lane.verdict,
                        class: lane.class,
                        // As its record says.
                        keep: keep.kind().as_arrived(
                            deciding.sources[usize::from(packet.interface)].kept,
                            packet.wire_len <= captured_len,
                        ),
                        kept_len: keep.kept_len(lane.header_len(), captured_len),
                        wire_len: exact::<u32>(wire_bytes(packet)),
                        data: packet.data,
                    };
                    self.remember(&Remembered {
                        fingerprint,
                        packet: cut,
                    });
                }
                Ok(((decided, is_outside), false))
            }
            Attention::Whole(decider) => Ok((((WHOLE, decider), is_outside), asked.is_any())),
            Attention::Promote(decider) => {
                self.promote(fingerprint, (decider, lane.class), deciding)?;
                Ok((((WHOLE, decider), is_outside), asked.is_any()))
            }
        }
    }
}

/// Batches in columns, of which it is known what is demanded.
impl Triggers {
    /// Decides about packets one after another, with what their flows ask for, since that depends on
    /// those before; see [`Triggers::packet`]. Records those before one on whose account earlier packets are
    /// written.
    #[inline(never)]
    pub(crate) fn columns<P: Packets + ?Sized>(
        &mut self,
        batch: &mut Batch,
        recording: &mut Recording<'_, P>,
        deciding: &mut Deciding<'_>,
    ) -> Result<(), SinkError> {
        split_demands(batch);
        batch.recorded.fill(0);
        batch.asked.fill(0);
        for group in 0..recording.data.len().div_ceil(GROUP) {
            let dissected = batch.columns.dissected[group];
            for lane in bits(batch.wanted[group].into()) {
                let at = group * GROUP + lane;
                deciding.keep.count(1);
                let has_flow = dissected >> lane & 1 != 0;
                match self.column(batch, recording, deciding, (at, has_flow))? {
                    Err(outcome) => skip(batch, at, outcome, deciding.record),
                    Ok(decider) => {
                        if decider != BY_CLASS {
                            batch.verdicts[at] = deciding.reason(batch.verdicts[at], decider);
                        }
                        batch.recorded[group] |= 1 << lane;
                        recording.pending += 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// Decides about a packet and what its flow asks for: returns who decided, or why it is not
    /// recorded.
    #[inline(always)]
    fn column<P: Packets + ?Sized>(
        &mut self,
        batch: &mut Batch,
        recording: &mut Recording<'_, P>,
        deciding: &mut Deciding<'_>,
        (at, has_flow): (usize, bool),
    ) -> Result<Result<DeciderId, Outcome>, SinkError> {
        const FULL: u8 = KeepKind::Full as u8;
        let known = deciding.known;
        let decider = batch.decider(at);
        let varies = decider == VARIES;
        let mut decided = match varies {
            true => deciding.keep.decide_column(batch, known, at, None),
            false => Ok(decider),
        };
        // What is discarded stays so; a packet without a flow has no others to go with it.
        let takes_part = has_flow && decided != Err(Outcome::Discard);
        let asked = match takes_part {
            true => {
                let columns = &batch.columns;
                let captured_len = u64::from(columns.captured_len[at]);
                self.ask((columns.fingerprint[at], columns.ts_ns[at], captured_len))
            }
            false => Asked::default(),
        };
        batch.asked[at / GROUP] |= u16::from(asked.is_any()) << (at % GROUP);
        let mut given = None;
        // What its flow asks for is outside the budget of detail.
        if varies && !asked.is_any() && deciding.budget.is_on() {
            given = deciding
                .budget
                .offer_column(batch, at, known, deciding.keep);
            if given.is_some() {
                decided = deciding.keep.decide_column(batch, known, at, given);
            }
        }
        if takes_part {
            let [_, code, ..] = batch.kinds[at].to_le_bytes();
            let whole = decided.ok().filter(|_| code == FULL);
            match asked.attention(whole) {
                Attention::AsDecided if decided.is_err() => {}
                Attention::AsDecided => {
                    let seq = deciding.record.next_seq() + recording.pending;
                    self.remember(&remembered(batch, at, seq, recording.data[at]));
                }
                asked => decided = Ok(self.keep_whole(batch, recording, deciding, at, asked)?),
            }
        }
        if deciding.budget.is_on() && given.is_none() && decided.is_ok() {
            deciding.budget.count_outside(batch.payload_kept(at));
        }
        Ok(decided)
    }

    /// Has a packet kept whole, as its flow asks for, and first writes what is remembered of the flow
    /// if it asks for that too; returns who decided.
    #[inline(never)]
    fn keep_whole<P: Packets + ?Sized>(
        &mut self,
        batch: &mut Batch,
        recording: &mut Recording<'_, P>,
        deciding: &mut Deciding<'_>,
        at: usize,
        asked: Attention,
    ) -> Result<DeciderId, SinkError> {
        let [class, ..] = batch.kinds[at].to_le_bytes();
        let decider = match asked {
            Attention::AsDecided => return Ok(batch.decider(at)),
            Attention::Whole(decider) => decider,
            Attention::Promote(decider) => {
                let fingerprint = batch.columns.fingerprint[at];
                if self.remembers(fingerprint) {
                    deciding.record_columns(batch, recording, at)?;
                    self.promote(fingerprint, (decider, class), deciding)?;
                }
                decider
            }
        };
        batch.kept_len[at] = batch.columns.captured_len[at];
        batch.wanted_payload[at] = payload_wanted(Keep::Full);
        batch.kinds[at] = u32::from(class) | u32::from(KeepKind::Full.code()) << 8;
        Ok(decider)
    }
}

/// A packet for look-back, before its verdict is replaced by a number for who decided.
#[inline(always)]
fn remembered<'a>(batch: &Batch, at: usize, seq: u64, data: &'a [u8]) -> Remembered<'a> {
    let [class, code, ..] = batch.kinds[at].to_le_bytes();
    Remembered {
        fingerprint: batch.columns.fingerprint[at],
        packet: Cut {
            seq,
            verdict: batch.verdicts[at],
            class,
            keep: KeepKind::of_flags(code),
            kept_len: batch.kept_len[at],
            wire_len: batch.columns.wire_len[at].max(batch.columns.captured_len[at]),
            data,
        },
    }
}
