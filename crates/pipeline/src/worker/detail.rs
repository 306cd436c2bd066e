//! The budget of detail: which packets are offered to it, and what they get.

use strata_blocks::Sink;
use strata_capture::PacketRef;
use strata_classify::{ClassesAndSteps, VerdictId};
use strata_policy::{Detail, DetailOffer};
use strata_wire::wide::{GROUP, Kernel, Lanes, PacketColumns, WIDE};
use strata_wire::{Outcome, exact};

use super::Worker;
use crate::classifier::bits;
use crate::demand::{Demands, Kept, VARIES};
use crate::reasons::{BY_CLASS, DeciderId};

/// A packet that says that it was longer on the wire is taken for one of this length: no packet earns
/// the budget of gigabytes by a damaged length.
const WIRE_LEN_MAX: u32 = 1 << 18;

/// Offers the packets of a batch to the budget, in their order.
pub(super) struct Offers<'a, F> {
    pub(super) detail: &'a mut Detail,
    pub(super) kept: &'a KeptByDetail,
    pub(super) classes_and_steps: &'a ClassesAndSteps,
    /// The number for a verdict where this one decided.
    pub(super) reason: F,
    pub(super) count: usize,
    pub(super) columns: &'a PacketColumns,
    pub(super) header_end: &'a [u32; WIDE],
    /// Their verdicts, then with who decided.
    pub(super) verdicts: &'a mut [VerdictId; WIDE],
    /// Steps of their scores, then what they are offered with.
    pub(super) steps: &'a mut [u32; WIDE],
    pub(super) payload: &'a mut [u32; WIDE],
    /// What comes of it: class and granularity, and bytes kept.
    pub(super) kinds: &'a mut [u32; WIDE],
    pub(super) kept_len: &'a mut [u32; WIDE],
    /// Bytes after the headers that are wanted.
    pub(super) wanted_payload: &'a mut [u32; WIDE],
}

impl<F: FnMut(VerdictId, DeciderId) -> VerdictId> Kernel for Offers<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        // The rest of the batch is never looked at.
        for (kind, &id) in self.kinds.iter_mut().zip(&*self.verdicts).take(self.count) {
            let both = self.classes_and_steps[usize::from(id)];
            *kind = u32::from(u16::from_le_bytes(both));
        }
        self.deny(l);
        let mut from = 0;
        while from < self.count {
            let ts_ns = self.columns.ts_ns[from];
            let chunk = self.detail.chunk(ts_ns, self.count - from);
            let lanes = from..from + chunk;
            let mut sum = 0;
            let offered = self.steps[lanes.clone()].iter_mut();
            let flows = &self.columns.fingerprint[lanes.clone()];
            for ((step, &payload), &flow) in offered.zip(&self.payload[lanes.clone()]).zip(flows) {
                let offer = self.detail.count(step.to_le_bytes()[0], flow, payload);
                *step = offer.0.into();
                sum += u64::from(payload);
            }
            self.detail.offered(chunk as u64, sum);
            let least = l.set(self.detail.candidate().into());
            for group in from / GROUP..lanes.end.div_ceil(GROUP) {
                let steps = &self.steps.as_chunks().0[group];
                let first = from.saturating_sub(group * GROUP);
                let end = (lanes.end - group * GROUP).min(GROUP);
                let here = (u16::MAX << first) & (u16::MAX >> (GROUP - end));
                let candidates = l.bits(l.le(least, l.load(steps))) & here;
                for lane in bits(candidates.into()) {
                    self.decide(group * GROUP + lane);
                }
            }
            from = lanes.end;
        }
    }
}

impl<F: FnMut(VerdictId, DeciderId) -> VerdictId> Offers<'_, F> {
    /// What is offered, and what becomes of it without detail.
    #[inline(always)]
    fn deny<L: Lanes>(&mut self, l: L) {
        let (longest, of_class) = (l.set(WIRE_LEN_MAX), l.set(u8::MAX.into()));
        let denied = l.set(self.kept.denied);
        self.wanted_payload.fill(0);
        for group in 0..self.count.div_ceil(GROUP) {
            let header = l.load(&self.header_end.as_chunks().0[group]);
            let captured = l.load(&self.columns.captured_len.as_chunks().0[group]);
            let wire = l.load(&self.columns.wire_len.as_chunks().0[group]);
            let all = l.max(captured, l.min(wire, longest));
            let header = l.min(header, captured);
            l.store(header, &mut self.kept_len.as_chunks_mut().0[group]);
            l.store(
                l.sub(all, header),
                &mut self.payload.as_chunks_mut().0[group],
            );
            let kinds = &mut self.kinds.as_chunks_mut().0[group];
            let both = l.load(kinds);
            l.store(l.shr(both, 8), &mut self.steps.as_chunks_mut().0[group]);
            l.store(l.or(l.and(both, of_class), denied), kinds);
        }
    }

    /// Asks about a packet that may get detail.
    #[inline(always)]
    fn decide(&mut self, at: usize) {
        let header = self.kept_len[at];
        let captured = (self.columns.captured_len[at] - header).min(self.kept.payload);
        let offer = offer_in(self.steps[at]);
        let (payload, fingerprint) = (self.payload[at], self.columns.fingerprint[at]);
        let gives = self.detail.decide(offer, fingerprint, payload, captured);
        let class = self.kinds[at] & u32::from(u8::MAX);
        if gives {
            self.kinds[at] = class | self.kept.given;
            self.kept_len[at] = header + captured;
            self.wanted_payload[at] = self.kept.payload;
        }
        let decider = self.kept.deciders[class as usize][usize::from(gives)];
        if decider != BY_CLASS {
            self.verdicts[at] = (self.reason)(self.verdicts[at], decider);
        }
    }
}

/// What was counted before, as it is in a column.
#[inline(always)]
pub(super) fn offer_in(column: u32) -> DetailOffer {
    let [low, high, ..] = column.to_le_bytes();
    DetailOffer(u16::from_le_bytes([low, high]))
}

/// The payload on the wire of a packet whose headers end here.
#[inline]
pub(super) fn payload_of(header_end: u32, captured_len: u32, wire_len: u32) -> u32 {
    wire_len.min(WIRE_LEN_MAX).max(captured_len) - header_end.min(captured_len)
}

/// What a packet is offered to the budget with.
#[derive(Clone, Copy)]
pub(super) struct Offered {
    pub(super) ts_ns: u64,
    /// 0 without a flow.
    pub(super) fingerprint: u64,
    pub(super) header_end: u32,
    pub(super) captured_len: u32,
    pub(super) wire_len: u32,
}

/// Asks the budget about a packet of a class that it decides about: whether it gets detail.
#[inline]
pub(super) fn is_given(detail: &mut Detail, demands: &Demands, step: u8, of: &Offered) -> bool {
    let Some([_, given]) = demands.budgeted.as_deref() else {
        return false;
    };
    let header = of.header_end.min(of.captured_len);
    let most = given.keeps().kept_len(of.header_end, of.captured_len);
    let payload = payload_of(of.header_end, of.captured_len, of.wire_len);
    let step = Detail::step(step, demands.wants_detail());
    detail.packet(of.ts_ns, step, of.fingerprint, (payload, most - header))
}

/// What packets get with detail and without, where the modes keep the same of all classes.
#[derive(Clone, Debug)]
pub(super) struct KeptByDetail {
    /// Without: how much is kept, as in a run, without the class.
    denied: u32,
    given: u32,
    /// Who decided, by class.
    deciders: [[DeciderId; 2]; 256],
    /// Bytes after the headers, with detail.
    payload: u32,
}

impl KeptByDetail {
    /// `None` if the budget of detail alone does not say what is kept, or modes do not want the detail
    /// of the classes that are anomalous.
    pub(super) fn new(demands: &[Demands], anomalous: impl Iterator<Item = bool>) -> Option<Self> {
        const OF_KEEP: u32 = 0xff00;
        let mut deciders = [[BY_CLASS; 2]; 256];
        let mut all = None;
        for ((class, demands), is_anomalous) in (0..=u8::MAX).zip(demands).zip(anomalous) {
            let both = demands.budgeted.as_deref()?.each_ref();
            let both = both.map(|demand| demand.kept(class));
            deciders[usize::from(class)] = both.map(Kept::decider);
            let [denied, given] = both;
            let varies = both.map(Kept::decider).contains(&VARIES);
            let here = (denied.kind & OF_KEEP, given.kind & OF_KEEP, given.payload);
            let same = *all.get_or_insert(here) == here;
            if varies || denied.payload > 0 || demands.wants_detail() != is_anomalous || !same {
                return None;
            }
        }
        let (denied, given, payload) = all?;
        Some(Self {
            denied,
            given,
            deciders,
            payload,
        })
    }
}

/// What is decided about a packet and by whom, and whether that is outside the budget of detail.
pub(super) type Decided = ((Outcome, DeciderId), bool);

impl<S: Sink> Worker<S> {
    /// Offers a packet to the budget of detail: whether it gets some. `None` if the budget does not
    /// decide about it.
    pub(super) fn offer(&mut self, place: u8, verdict: VerdictId, of: &Offered) -> Option<bool> {
        let [class, step] = self.classifier.class_and_step(verdict);
        let demands = match &self.policing {
            None => &self.demands[usize::from(class)],
            Some(policing) => policing.demand(place, usize::from(class)),
        };
        demands.budgeted.as_ref()?;
        let detail = self.detail.as_mut()?;
        Some(is_given(detail, demands, step, of))
    }

    /// What modes, policies and the budget of detail decide about a packet.
    #[inline(always)]
    pub(super) fn decided_lane(
        &mut self,
        lane: usize,
        packet: &PacketRef<'_>,
        verdict: VerdictId,
    ) -> Decided {
        let place = self.lanes.policed[lane];
        let given = match self.has_detail {
            true => self.offer_lane(lane, packet, verdict),
            false => None,
        };
        let class = self.classifier.class(verdict);
        let flow = || self.lanes.headers(lane).flow_key();
        let decided = self.decided((place, class), given, flow);
        (decided, self.has_detail && given.is_none())
    }

    #[inline(never)]
    fn offer_lane(
        &mut self,
        lane: usize,
        packet: &PacketRef<'_>,
        verdict: VerdictId,
    ) -> Option<bool> {
        let lanes = &self.lanes;
        let has_flow = lanes.dissected & 1 << lane != 0;
        let offered = Offered {
            ts_ns: packet.ts_ns,
            fingerprint: if has_flow {
                lanes.facts[lane].fingerprint
            } else {
                0
            },
            header_end: lanes.header_len[lane],
            captured_len: exact::<u32>(packet.data.len()),
            wire_len: packet.wire_len,
        };
        self.offer(lanes.policed[lane], verdict, &offered)
    }

    /// Counts what is kept beyond headers of a packet that the budget did not decide about.
    #[inline]
    pub(super) fn count_outside(&mut self, kept: u32) {
        if let Some(detail) = &mut self.detail {
            detail.outside(kept);
        }
    }
}
