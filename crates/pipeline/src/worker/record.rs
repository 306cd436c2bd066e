//! The last stage of a worker: how much of a packet is kept, and its record.

use strata_blocks::{
    BlockBuilder, PACKET_HEADER_LEN, PREFIX_LEN, PacketRecord, Sink, SinkError, Trees,
};
use strata_capture::PacketRef;
use strata_classify::VerdictId;
use strata_sketch::Level;
use strata_wire::{FlowKey, Keep, KeepKind, Outcome, clamped, exact};

use super::{DEFINITIONS_LEN, Worker};
use crate::classifier::Classifier;
use crate::demand::{Demand, Demands};
use crate::flows::wire_bytes;
use crate::reasons::{BY_CLASS, DeciderId, Reasons, class_and_level, join_decided};

impl<S: Sink> Worker<S> {
    /// Granularity and record of one packet.
    #[inline(always)]
    pub(super) fn record(
        &mut self,
        lane: usize,
        packet: &PacketRef<'_>,
        verdict: VerdictId,
    ) -> Result<(), SinkError> {
        let class = self.classifier.class(verdict);
        self.packet_number += 1;
        let (((outcome, decider), is_outside), is_asked) = match &self.triggers {
            None => (self.decided_lane(lane, packet, verdict), false),
            Some(_) => self.attend_to(lane, packet, (verdict, class))?,
        };
        let Some(keep) = self.kept_of(outcome, class, wire_bytes(packet)) else {
            if self.shadowed.is_some() {
                self.compare_lane(lane, packet, (class, 0, is_asked));
            }
            return Ok(());
        };
        let captured_len = exact::<u32>(packet.data.len());
        let header_len = self.lanes.header_len[lane];
        if self.enough.is_some() {
            self.mind_the_cut(lane, packet, keep, verdict);
        }
        let kept = keep.kept_len(header_len, captured_len);
        if is_outside {
            self.count_outside(kept.saturating_sub(header_len));
        }
        if self.shadowed.is_some() {
            self.compare_lane(lane, packet, (class, kept, is_asked));
        }
        let reason = self.reason(verdict, decider);
        self.push(lane, packet, class, (keep.kind(), kept), reason)
    }

    /// What of a packet with this outcome is kept; counts it if it is not recorded.
    #[inline(always)]
    pub(super) fn kept_of(&mut self, outcome: Outcome, class: u8, bytes: u64) -> Option<Keep> {
        match outcome {
            Outcome::Log(keep) => return Some(keep),
            Outcome::SampledOut => {
                self.ledger.sampled_out.add(bytes);
                self.by_class.sampled_out(class, bytes);
            }
            Outcome::Discard => {
                self.ledger.discarded.add(bytes);
                self.by_class.dropped(class, bytes);
            }
        }
        None
    }

    /// The number for a verdict and who decided.
    #[inline(always)]
    pub(super) fn reason(&mut self, verdict: VerdictId, decider: DeciderId) -> u16 {
        if decider == BY_CLASS {
            return verdict;
        }
        let classifier = &self.classifier;
        let known = |id| class_and_level(classifier.verdict(id));
        self.reasons.number(verdict, decider, known)
    }

    /// The record of one packet.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        lane: usize,
        packet: &PacketRef<'_>,
        class: u8,
        (keep, kept): (KeepKind, u32),
        reason: u16,
    ) -> Result<(), SinkError> {
        let data = &packet.data[..kept as usize];
        let needed = PACKET_HEADER_LEN + data.len() + PREFIX_LEN + packet.options.len();
        if self.block.room() < needed + DEFINITIONS_LEN {
            self.room_for(needed + DEFINITIONS_LEN)?;
        }
        if !self.block.defines(packet.interface, reason) {
            self.define(packet.interface, reason);
            if self.block.room() < needed {
                // A large definition has taken the space.
                self.block.grow(needed);
            }
        }
        let record = PacketRecord {
            ts_ns: packet.ts_ns,
            seq: self.next_seq,
            wire_len: packet.wire_len,
            captured_len: exact::<u32>(packet.data.len()),
            // As far as a record has bits for it.
            header_len: clamped::<u16>(self.lanes.header_len[lane]),
            interface: packet.interface,
            verdict: reason,
            keep,
            has_timestamp: packet.has_timestamp,
            data,
            options: packet.options,
        };
        self.block.push_packet(&record, class);
        self.next_seq += 1;
        self.note(lane, keep, kept);
        Ok(())
    }

    /// What modes and policies ask for, for packets of this class. `place` is that among the packets
    /// that policies have seen.
    #[inline(always)]
    pub(super) fn demands(&self, place: u8, class: u8) -> &Demands {
        match &self.policing {
            None => &self.demands[usize::from(class)],
            Some(policing) => policing.demand(place, usize::from(class)),
        }
    }

    /// What modes, policies and the budget of detail decide about a packet of this class, and which of
    /// them; `given` is what [`Worker::offer`] said.
    #[inline(always)]
    pub(super) fn decided(
        &self,
        (place, class): (u8, u8),
        given: Option<bool>,
        flow: impl FnOnce() -> FlowKey,
    ) -> (Outcome, DeciderId) {
        let demands = self.demands(place, class);
        let demand = match (given, demands.budgeted.as_deref()) {
            (Some(given), Some(budgeted)) => &budgeted[usize::from(given)],
            _ => &demands.wanted,
        };
        match demand {
            Demand::Always(outcome, decider) => (*outcome, *decider),
            Demand::Sampled(demands) => {
                // Packets without a flow are sampled as if they were one.
                let number = self.packet_number ^ self.sampling_key;
                join_decided(demands, number, self.sampling_hasher.flow(&flow()))
            }
        }
    }

    /// Stores the flow of a packet just recorded for the block's summary.
    #[inline(always)]
    fn note(&mut self, lane: usize, keep: KeepKind, kept: u32) {
        if self.lanes.is_plain & 1 << lane == 0 {
            let fingerprint = self.lanes.facts[lane].fingerprint;
            let headers = &self.lanes.headers[lane];
            if headers.has_no_network() && keep != KeepKind::Full {
                self.ledger.header_fallback.add(u64::from(kept));
            }
            self.block
                .note_headers(headers, fingerprint, &self.flows.hasher());
        } else {
            let plain = &self.lanes.plain[lane];
            let ends = [plain.source, plain.destination];
            self.block
                .note_plain(self.lanes.facts[lane].fingerprint, ends);
        }
    }

    /// Defines in the block what a packet record refers to.
    #[inline(never)]
    fn define(&mut self, interface: u16, reason: u16) {
        if self.block.needs_context() {
            self.block.define_context(&self.context_json);
        }
        if let Some(share) = self.flow_share {
            self.block.define_flow_share(share);
        }
        if self.block.needs_interface(interface) {
            let source = &self.sources[usize::from(interface)];
            self.block.define_interface(interface, &source.interface);
        }
        self.define_reason(reason);
        self.block.refer_to(interface);
    }

    /// Defines in the block who decided about a packet, and its verdict.
    pub(super) fn define_reason(&mut self, reason: u16) {
        define_reason(&mut self.block, &self.classifier, &self.reasons, reason);
    }
}

/// Defines in a block who decided about a packet, and its verdict.
pub(super) fn define_reason(
    block: &mut BlockBuilder,
    classifier: &Classifier,
    reasons: &Reasons,
    reason: u16,
) {
    if !block.needs_verdict(reason) {
        return;
    }
    let (verdict, decider, has_leaves) = reasons.resolve(reason);
    let known = classifier.verdict(verdict);
    let trees = match known.level {
        None => Trees::None,
        Some(Level::Packet) => Trees::Packet,
        Some(Level::Flow) => Trees::Flow,
    };
    let leaves: &[u16] = if has_leaves { &known.leaves } else { &[] };
    let fixed = (known.class, trees, known.score);
    block.define_decided(reason, fixed, leaves, decider);
}
