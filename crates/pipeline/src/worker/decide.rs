//! What policies, modes and the budget of detail decide about a batch in columns, where classes alone
//! do not say it.

use std::ops::Range;

use strata_blocks::{Sink, SinkError};
use strata_capture::Packets;
use strata_classify::LANES;
use strata_policy::Detail;
use strata_wire::wide::{GROUP, GROUPS, Kernel, Lanes, PacketColumns, WIDE};
use strata_wire::{FlowKey, Headers, Keep, KeepKind, LinkType, Outcome, Plain};

use super::Worker;
use super::detail::{KeptByDetail, Offered, Offers, offer_in, payload_of};
use super::triggers::{Asked, Attention, Triggers};
use super::wide::{KeptLen, Recording, Wide, is_in};
use crate::classifier::bits;
use crate::demand::{Budgeted, DECIDER_BITS, Kept, VARIES, payload_wanted};
use crate::lookback::{Cut, Remembered};
use crate::policing::{Wanted, fields, outer_vlan, plain_fields};
use crate::reasons::{BY_CLASS, DeciderId, class_and_level};

/// The headers of a plain packet.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "columns of small numbers")]
pub(super) fn plain(columns: &PacketColumns, at: usize) -> Plain {
    let network_len = 34;
    Plain {
        source: columns.source[at],
        destination: columns.destination[at],
        source_port: columns.source_port[at] as u16,
        destination_port: columns.destination_port[at] as u16,
        tcp_window: columns.tcp_window[at] as u16,
        transport_len: (columns.header_len[at] - network_len) as u8,
        protocol: columns.protocol[at] as u8,
        tcp_flags: columns.tcp_flags[at] as u8,
        tos: columns.tos[at] as u8,
        ttl: columns.ttl[at] as u8,
    }
}

/// The headers of a packet that is not plain.
fn other(others: &[(usize, Headers)], at: usize) -> &Headers {
    let place = others.binary_search_by_key(&at, |(other, _)| *other);
    &others[place.expect("a packet is plain or among the others")].1
}

/// Splits what is demanded into class and granularity, and who decided; returns those for which
/// somebody else than the class did.
struct Split<'a> {
    demands: &'a [u32; WIDE],
    kinds: &'a mut [u32; WIDE],
}

impl Kernel for Split<'_> {
    type Output = [u16; GROUPS];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> [u16; GROUPS] {
        let mut odd = [0; GROUPS];
        let kinds = self.kinds.as_chunks_mut().0.iter_mut();
        let demands = self.demands.as_chunks().0;
        for (odd, (kinds, demands)) in odd.iter_mut().zip(kinds.zip(demands)) {
            let (demands, of_kind) = (l.load(demands), l.set((1 << DECIDER_BITS) - 1));
            l.store(l.and(demands, of_kind), kinds);
            *odd = !l.bits(l.le(demands, of_kind));
        }
        odd
    }
}

impl Wide {
    /// Who decided about a packet, as far as classes and policies say.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "16 bits are left")]
    fn decider(&self, at: usize) -> DeciderId {
        (self.demands[at] >> DECIDER_BITS) as DeciderId
    }

    pub(super) fn flow_key(&self, at: usize) -> FlowKey {
        self.key(at).unwrap_or(FlowKey::NONE)
    }

    /// `None` for a packet without a flow.
    pub(super) fn key(&self, at: usize) -> Option<FlowKey> {
        if is_in(&self.columns.plain, at) {
            plain(&self.columns, at).headers().key
        } else {
            other(&self.others, at).key
        }
    }

    /// A packet for look-back, before its verdict is replaced by a number for who decided.
    #[inline(always)]
    fn remembered<'a>(&self, at: usize, seq: u64, data: &'a [u8]) -> Remembered<'a> {
        let [class, code, ..] = self.kinds[at].to_le_bytes();
        Remembered {
            fingerprint: self.columns.fingerprint[at],
            packet: Cut {
                seq,
                verdict: self.verdicts[at],
                class,
                keep: KeepKind::of_flags(code),
                kept_len: self.kept_len[at],
                wire_len: self.columns.wire_len[at].max(self.columns.captured_len[at]),
                data,
            },
        }
    }

    pub(super) fn offered(&self, at: usize) -> Offered {
        Offered {
            ts_ns: self.columns.ts_ns[at],
            fingerprint: self.columns.fingerprint[at],
            header_end: self.header_end[at],
            captured_len: self.columns.captured_len[at],
            wire_len: self.columns.wire_len[at],
        }
    }

    /// How much is kept of a packet beyond its headers.
    #[inline(always)]
    fn payload_kept(&self, at: usize) -> u32 {
        self.kept_len[at].saturating_sub(self.header_end[at])
    }

    /// Splits what is demanded into how much is kept and of which class; returns those for which
    /// somebody else than the class decided.
    fn split(&mut self) -> [u16; GROUPS] {
        self.simd.run(KeptLen {
            kept_len: &mut self.kept_len,
            wanted_payload: &mut self.wanted_payload,
            header_end: &self.header_end,
            captured_len: &self.columns.captured_len,
        });
        self.simd.run(Split {
            demands: &self.demands,
            kinds: &mut self.kinds,
        })
    }

    pub(super) fn wire_bytes(&self, at: usize) -> u64 {
        let wire_len = self.columns.wire_len[at];
        u64::from(wire_len.max(self.columns.captured_len[at]))
    }
}

impl<S: Sink> Worker<S> {
    /// Finds the policies of up to 64 packets, and takes those that nobody wants out of the batch
    /// before they cost more.
    #[inline(never)]
    pub(super) fn police_columns(
        &mut self,
        wide: &mut Wide,
        lanes: Range<usize>,
        (interface, data): (u16, &[&[u8]]),
    ) {
        let Some(policing) = &mut self.policing else {
            return;
        };
        if lanes.start == 0 {
            policing.begin();
        }
        let number = self.sources[usize::from(interface)].rules_number;
        let (columns, others) = (&wide.columns, &wide.others);
        let fields_of = |at: usize| {
            if is_in(&columns.plain, at) {
                plain_fields(&plain(columns, at), number)
            } else {
                fields(other(others, at), LinkType::ETHERNET, data[at], number)
            }
        };
        let vlan_of = |at: usize| outer_vlan(LinkType::ETHERNET, data[at]);
        policing.classify_columns(
            (wide.simd, columns),
            (lanes.clone(), number),
            fields_of,
            vlan_of,
            &mut self.reasons,
        );
        let lens = columns.wire_len[lanes.clone()].iter();
        let lens = lens.zip(&columns.captured_len[lanes.clone()]);
        let bytes = lens.map(|(&wire, &captured)| u64::from(wire.max(captured)));
        let Wanted {
            discarded,
            mirrored,
        } = policing.apply(lanes.start, bytes);
        if mirrored != 0
            && let Some(taker) = &mut self.copies
        {
            let mut copies: [&[u8]; LANES] = [&[]; LANES];
            let mut copied = 0;
            for lane in bits(mirrored) {
                copies[copied] = data[lanes.start + lane];
                copied += 1;
            }
            taker.send(&copies[..copied]);
        }
        for lane in bits(discarded) {
            let at = lanes.start + lane;
            let bit = 1 << (at % GROUP);
            wide.wanted[at / GROUP] &= !bit;
            wide.columns.dissected[at / GROUP] &= !bit;
            self.ledger.discarded.add(wide.wire_bytes(at));
        }
    }

    /// How much is kept of each packet, and who decided. Records those before one on whose account
    /// earlier packets are written.
    #[inline(never)]
    pub(super) fn decide_columns<P: Packets + ?Sized>(
        &mut self,
        wide: &mut Wide,
        recording: &mut Recording<'_, P>,
    ) -> Result<(), SinkError> {
        self.find_demanded(wide, recording.data.len());
        wide.offered.fill(0);
        // With triggers, what is asked of a packet depends on those before it.
        if self.has_detail && self.triggers.is_none() {
            self.offer_columns(wide);
        }
        let odd = wide.split();
        let Some(mut triggers) = self.triggers.take() else {
            self.decide_odd(wide, &odd);
            return Ok(());
        };
        let done = self.attend_columns(wide, recording, &mut triggers);
        self.triggers = Some(triggers);
        done
    }

    /// What modes and policies demand for each packet, by its class.
    fn find_demanded(&self, wide: &mut Wide, count: usize) {
        let Wide {
            by_class,
            verdicts,
            demands,
            kept_len,
            ..
        } = wide;
        let mut put = |at: usize, kept: Kept| {
            (kept_len[at], demands[at]) = (kept.payload, kept.kind);
        };
        let classes = verdicts[..count].iter();
        let classes = classes.map(|&verdict| usize::from(self.classifier.class(verdict)));
        match &self.policing {
            None => classes
                .enumerate()
                .for_each(|(at, class)| put(at, by_class[class])),
            Some(policing) => {
                let kept = classes.zip(policing.demanded());
                kept.enumerate()
                    .for_each(|(at, (class, kept))| put(at, kept[class]));
            }
        }
    }

    /// Offers packets to the budget of detail, in their order. If for one of them that is not enough to
    /// know what is kept, it leaves all of them as they are: they are decided one by one.
    #[inline(never)]
    fn offer_columns(&mut self, wide: &mut Wide) {
        let Some(detail) = &mut self.detail else {
            return;
        };
        let (policing, by_class) = (&self.policing, &wide.budgeted);
        let classes_and_steps = self.classifier.classes_and_steps();
        let what = |at: usize, class: u8| match policing {
            None => by_class[usize::from(class)],
            Some(policing) => policing.budgeted(at, class),
        };
        let mut places = [0; WIDE];
        let mut many = 0;
        for (group, &wanted) in wide.wanted.iter().enumerate() {
            for lane in bits(wanted.into()) {
                let at = group * GROUP + lane;
                if wide.demands[at] >> DECIDER_BITS != u32::from(VARIES) {
                    continue;
                }
                let [class, step] = classes_and_steps[usize::from(wide.verdicts[at])];
                match what(at, class) {
                    Budgeted::Outside => continue,
                    Budgeted::Varies => return,
                    Budgeted::Same { wants_detail, .. } => {
                        wide.steps[at] = Detail::step(step, wants_detail).into();
                    }
                }
                places[many] = at.to_le_bytes()[0];
                many += 1;
                wide.payload[at] = payload_of(
                    wide.header_end[at],
                    wide.columns.captured_len[at],
                    wide.columns.wire_len[at],
                );
            }
        }
        let mut from = 0;
        while from < many {
            let first = usize::from(places[from]);
            let chunk = detail.chunk(wide.columns.ts_ns[first], many - from);
            let these = &places[from..from + chunk];
            let mut sum = 0;
            for at in these.iter().map(|&at| usize::from(at)) {
                let (flow, payload) = (wide.columns.fingerprint[at], wide.payload[at]);
                let [step, ..] = wide.steps[at].to_le_bytes();
                wide.steps[at] = detail.count(step, flow, payload).0.into();
                sum += u64::from(payload);
            }
            detail.offered(chunk as u64, sum);
            let least = detail.candidate();
            for at in these.iter().map(|&at| usize::from(at)) {
                let [class, _] = classes_and_steps[usize::from(wide.verdicts[at])];
                let Budgeted::Same { kept, .. } = what(at, class) else {
                    unreachable!("it was offered");
                };
                let offer = offer_in(wide.steps[at]);
                let captured_len = wide.columns.captured_len[at];
                let captured = captured_len - wide.header_end[at].min(captured_len);
                let captured = captured.min(kept[1].payload);
                let (payload, fingerprint) = (wide.payload[at], wide.columns.fingerprint[at]);
                let gives =
                    offer.0 >= least && detail.decide(offer, fingerprint, payload, captured);
                let kept = kept[usize::from(gives)];
                (wide.kept_len[at], wide.demands[at]) = (kept.payload, kept.kind);
                wide.offered[at / GROUP] |= 1 << (at % GROUP);
            }
            from += chunk;
        }
    }

    /// Decides about those packets for which somebody else than the class does.
    fn decide_odd(&mut self, wide: &mut Wide, odd: &[u16; GROUPS]) {
        let mut before = self.packet_number;
        wide.recorded = wide.wanted;
        for (group, odd) in odd.iter().enumerate() {
            let wanted = wide.wanted[group];
            // What is kept of them is outside the budget of detail.
            let others = if self.has_detail {
                !wide.offered[group]
            } else {
                0
            };
            for lane in bits(((odd | others) & wanted).into()) {
                let at = group * GROUP + lane;
                let mut decider = wide.decider(at);
                let mut given = None;
                if decider == VARIES {
                    let so_far = wanted & (u16::MAX >> (GROUP - 1 - lane));
                    self.packet_number = before + u64::from(so_far.count_ones());
                    given = self.offer_column(wide, at);
                    match self.decide_one(wide, at, given) {
                        Ok(by) => decider = by,
                        Err(outcome) => {
                            self.skip(wide, at, outcome);
                            wide.recorded[group] &= !(1 << lane);
                            continue;
                        }
                    }
                }
                wide.verdicts[at] = self.reason(wide.verdicts[at], decider);
                if self.has_detail && given.is_none() && !is_in(&wide.offered, at) {
                    self.count_outside(wide.payload_kept(at));
                }
            }
            before += u64::from(wanted.count_ones());
        }
        self.packet_number = before;
    }

    /// Offers a packet to the budget of detail, if there is one; see [`Worker::offer`].
    #[inline(always)]
    fn offer_column(&mut self, wide: &Wide, at: usize) -> Option<bool> {
        if !self.has_detail {
            return None;
        }
        self.offer(at.to_le_bytes()[0], wide.verdicts[at], &wide.offered(at))
    }

    /// Decides about a packet by itself, how much is kept of it and who decided; fails if it is not
    /// recorded. `given` is what [`Worker::offer`] said.
    #[inline(never)]
    fn decide_one(
        &self,
        wide: &mut Wide,
        at: usize,
        given: Option<bool>,
    ) -> Result<DeciderId, Outcome> {
        let [class, place] = [wide.kinds[at].to_le_bytes()[0], at.to_le_bytes()[0]];
        let (outcome, decider) = self.decided((place, class), given, || wide.flow_key(at));
        let Outcome::Log(keep) = outcome else {
            return Err(outcome);
        };
        wide.kinds[at] = u32::from(class) | u32::from(keep.kind().code()) << 8;
        wide.kept_len[at] = keep.kept_len(wide.header_end[at], wide.columns.captured_len[at]);
        wide.wanted_payload[at] = payload_wanted(keep);
        Ok(decider)
    }

    /// Counts a packet that is not recorded.
    fn skip(&mut self, wide: &Wide, at: usize, outcome: Outcome) {
        let [class, ..] = wide.kinds[at].to_le_bytes();
        self.kept_of(outcome, class, wide.wire_bytes(at));
    }

    /// Decides about packets one after another, with what their flows ask for; see
    /// [`Worker::attend_to`].
    fn attend_columns<P: Packets + ?Sized>(
        &mut self,
        wide: &mut Wide,
        recording: &mut Recording<'_, P>,
        triggers: &mut Triggers,
    ) -> Result<(), SinkError> {
        wide.recorded.fill(0);
        wide.asked.fill(0);
        for group in 0..recording.data.len().div_ceil(GROUP) {
            let dissected = wide.columns.dissected[group];
            for lane in bits(wide.wanted[group].into()) {
                let at = group * GROUP + lane;
                self.packet_number += 1;
                let has_flow = dissected >> lane & 1 != 0;
                match self.attend_one(wide, recording, triggers, (at, has_flow))? {
                    Err(outcome) => self.skip(wide, at, outcome),
                    Ok(decider) => {
                        if decider != BY_CLASS {
                            wide.verdicts[at] = self.reason(wide.verdicts[at], decider);
                        }
                        wide.recorded[group] |= 1 << lane;
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
    fn attend_one<P: Packets + ?Sized>(
        &mut self,
        wide: &mut Wide,
        recording: &mut Recording<'_, P>,
        triggers: &mut Triggers,
        (at, has_flow): (usize, bool),
    ) -> Result<Result<DeciderId, Outcome>, SinkError> {
        const FULL: u8 = KeepKind::Full as u8;
        let decider = wide.decider(at);
        let varies = decider == VARIES;
        let mut decided = match varies {
            true => self.decide_one(wide, at, None),
            false => Ok(decider),
        };
        // What is discarded stays so; a packet without a flow has no others to go with it.
        let takes_part = has_flow && decided != Err(Outcome::Discard);
        let asked = match takes_part {
            true => {
                let columns = &wide.columns;
                let captured_len = u64::from(columns.captured_len[at]);
                triggers.ask((columns.fingerprint[at], columns.ts_ns[at], captured_len))
            }
            false => Asked::default(),
        };
        wide.asked[at / GROUP] |= u16::from(asked.is_any()) << (at % GROUP);
        let mut given = None;
        // What its flow asks for is outside the budget of detail.
        if varies && !asked.is_any() {
            given = self.offer_column(wide, at);
            if given.is_some() {
                decided = self.decide_one(wide, at, given);
            }
        }
        if takes_part {
            let [_, code, ..] = wide.kinds[at].to_le_bytes();
            let whole = decided.ok().filter(|_| code == FULL);
            match asked.attention(whole) {
                Attention::AsDecided if decided.is_err() => {}
                Attention::AsDecided => {
                    let seq = self.next_seq + recording.pending;
                    triggers.remember(&wide.remembered(at, seq, recording.data[at]));
                }
                asked => decided = Ok(self.keep_whole(wide, recording, triggers, at, asked)?),
            }
        }
        if self.has_detail && given.is_none() && decided.is_ok() {
            self.count_outside(wide.payload_kept(at));
        }
        Ok(decided)
    }

    /// Has a packet kept whole, as its flow asks for, and first writes what is remembered of the flow
    /// if it asks for that too; returns who decided.
    #[inline(never)]
    fn keep_whole<P: Packets + ?Sized>(
        &mut self,
        wide: &mut Wide,
        recording: &mut Recording<'_, P>,
        triggers: &mut Triggers,
        at: usize,
        asked: Attention,
    ) -> Result<DeciderId, SinkError> {
        let [class, ..] = wide.kinds[at].to_le_bytes();
        let decider = match asked {
            Attention::AsDecided => return Ok(wide.decider(at)),
            Attention::Whole(decider) => decider,
            Attention::Promote(decider) => {
                let fingerprint = wide.columns.fingerprint[at];
                if triggers.remembers(fingerprint) {
                    self.record_until(wide, recording, at)?;
                    self.promote(triggers, fingerprint, decider, class)?;
                }
                decider
            }
        };
        wide.kept_len[at] = wide.columns.captured_len[at];
        wide.wanted_payload[at] = payload_wanted(Keep::Full);
        wide.kinds[at] = u32::from(class) | u32::from(KeepKind::Full.code()) << 8;
        Ok(decider)
    }

    /// How much is kept of each packet of a batch, within the budget.
    pub(super) fn find_detail(&mut self, wide: &mut Wide, kept: &KeptByDetail, count: usize) {
        self.packet_number += count as u64;
        let Some(detail) = &mut self.detail else {
            return;
        };
        let (classifier, reasons) = (&self.classifier, &mut self.reasons);
        wide.simd.run(Offers {
            detail,
            kept,
            classes_and_steps: classifier.classes_and_steps(),
            reason: |verdict, decider| {
                let known = |id| class_and_level(classifier.verdict(id));
                reasons.number(verdict, decider, known)
            },
            count,
            columns: &wide.columns,
            header_end: &wide.header_end,
            verdicts: &mut wide.verdicts,
            steps: &mut wide.steps,
            payload: &mut wide.payload,
            kinds: &mut wide.kinds,
            kept_len: &mut wide.kept_len,
            wanted_payload: &mut wide.wanted_payload,
        });
        wide.recorded = wide.wanted;
    }
}
