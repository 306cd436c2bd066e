//! Policies at work: what each packet of a batch gets.

mod flows;
mod protocols;

use std::ops::Range;
use std::sync::Arc;

use strata_classify::LANES;
use strata_policy::{DetailPlan, ModeDemands, demands, is_left_to_class};
use strata_rules::{Action, AnswerId, BATCH, PacketFields, Policies, RuleClassifier, UNTAGGED};
use strata_wire::ethernet::{self, ethertype};
use strata_wire::fields::{self, sll, sll2};
use strata_wire::wide::{GROUP, PacketColumns, Simd, WIDE};
use strata_wire::{AddressFamily, Counters, Headers, Keep, LinkType, Outcome, Plain, exact};

use crate::demand::{Budgeted, Demand, Demands, Kept};
use crate::exports::PolicyExport;
use crate::reasons::Reasons;
use flows::{FlowDecisions, Salt};
use protocols::ProtocolDecisions;

/// Uniflows cached by a worker: 87 KiB.
const CACHE_ENTRIES: usize = 4096;
/// Distinct sets of policies before everything starts anew: each takes memory.
const ANSWERS_MAX: usize = 1 << 16;
/// Distinct decisions before everything starts anew: a batch can add 256, and numbers have 16 bits.
const DECISIONS_MAX: usize = u16::MAX as usize - WIDE;
/// There is no decision for an answer yet.
const UNDECIDED: u16 = u16::MAX;

const _: () = assert!(LANES <= BATCH);

/// What an answer of the rules means.
#[derive(Debug)]
struct Decision {
    answer: AnswerId,
    /// For each class.
    demands: Vec<Demands>,
    /// Whether every class gets the same.
    is_settled: bool,
    /// What is exported; usually nothing.
    exports: Vec<PolicyExport>,
}

/// What is needed of a decision for every packet.
#[derive(Clone, Copy, Debug)]
struct Applied {
    /// Packets since they were last added to the policies' counters.
    counters: Counters,
    /// Whether no packet is wanted, and policies say so: its class is of no interest.
    discards: bool,
    /// Whether copies are sent on.
    mirrors: bool,
    /// Whether something is exported.
    exports: bool,
}

/// The policies of one worker.
#[derive(Debug)]
pub(crate) struct Policing {
    policies: Arc<Policies>,
    classifier: RuleClassifier,
    /// Answers of a classifier that has found none yet.
    answers_at_first: usize,
    seed: u64,
    /// For each class, what the modes demand.
    modes: Vec<ModeDemands>,
    /// What the budget of detail makes of it.
    detail: Option<DetailPlan>,
    /// By [`AnswerId`]: the number of its decision, or [`UNDECIDED`].
    numbers: Vec<u16>,
    /// By number.
    decisions: Vec<Decision>,
    applied: Vec<Applied>,
    /// What is kept of packets in columns, by number of the decision and then by class.
    kept: Vec<Kept>,
    /// Likewise: what the budget of detail decides.
    budgeted: Vec<Budgeted>,
    /// Whether any decision so far exports something.
    has_exports: bool,
    /// For each packet of the current batch, as far as they were found: the number of its decision.
    found: [u16; WIDE],
    fields: Vec<PacketFields>,
    /// Of batches in columns: the packets of `fields`.
    unknown: Vec<Unknown>,
    /// For batches in columns, `None` without any.
    flows: Option<FlowDecisions>,
    /// Where rules test no more than the protocol of plain packets, instead of their flows.
    protocols: Option<ProtocolDecisions>,
}

/// A packet of a batch in columns whose flow has no decision yet.
#[derive(Clone, Copy, Debug)]
struct Unknown {
    at: usize,
    /// What its decision is found by from now on.
    by: By,
}

/// What the decision on a packet of a batch in columns is found by.
#[derive(Clone, Copy, Debug)]
enum By {
    /// Fingerprint and direction of its flow, and what else tells packets apart.
    Flow((u64, bool), Salt),
    /// The interface's number in the rules, and the protocol.
    Protocol(u8, u8),
    /// Nothing: it has no flow.
    Nothing,
}

/// What policies want done with packets, one bit for each of 64.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    /// Discarded by policies, whatever their class.
    pub(crate) discarded: u64,
    /// Copies are sent on.
    pub(crate) mirrored: u64,
}

impl Policing {
    /// `takes_columns` says whether batches in columns come.
    pub(crate) fn new(
        policies: Arc<Policies>,
        (modes, detail): (Vec<ModeDemands>, Option<DetailPlan>),
        seed: u64,
        takes_columns: bool,
    ) -> Self {
        let rules = policies.rules();
        let by_protocol = takes_columns && rules.is_v4_by_protocol();
        let classifier = RuleClassifier::new(Arc::clone(rules), CACHE_ENTRIES, seed);
        Self {
            answers_at_first: classifier.answers().len(),
            classifier,
            policies,
            seed,
            modes,
            detail,
            numbers: Vec::new(),
            decisions: Vec::new(),
            applied: Vec::new(),
            kept: Vec::new(),
            budgeted: Vec::new(),
            has_exports: false,
            found: [0; WIDE],
            fields: Vec::with_capacity(LANES),
            unknown: Vec::with_capacity(LANES),
            flows: takes_columns.then(FlowDecisions::new),
            protocols: by_protocol.then(ProtocolDecisions::default),
        }
    }

    /// An interface's number in the rules, by its name.
    pub(crate) fn interface(&self, name: Option<&str>) -> u8 {
        self.policies.interface(name)
    }

    /// Starts a batch.
    pub(crate) fn begin(&mut self) {
        self.fields.clear();
        let answers = self.classifier.answers().len() - self.answers_at_first;
        if answers > ANSWERS_MAX || self.decisions.len() > DECISIONS_MAX {
            self.start_anew();
        }
    }

    #[cold]
    fn start_anew(&mut self) {
        self.publish();
        self.numbers.clear();
        self.decisions.clear();
        self.applied.clear();
        self.kept.clear();
        self.budgeted.clear();
        if let Some(flows) = &mut self.flows {
            flows.clear();
        }
        if let Some(protocols) = &mut self.protocols {
            protocols.clear();
        }
        self.classifier =
            RuleClassifier::new(Arc::clone(self.policies.rules()), CACHE_ENTRIES, self.seed);
    }

    /// Adds a packet with these fields; returns its place in the batch of at most [`LANES`].
    pub(crate) fn push(&mut self, fields: PacketFields) -> u8 {
        self.fields.push(fields);
        exact::<u8>(self.fields.len() - 1)
    }

    /// Finds the policies of the packets of the batch.
    pub(crate) fn classify(&mut self, reasons: &mut Reasons) {
        let mut answers = [AnswerId::NONE; LANES];
        let answers = &mut answers[..self.fields.len()];
        self.classifier.classify(&self.fields, answers);
        for (place, answer) in answers.iter().enumerate() {
            self.found[place] = self.number(*answer, reasons);
        }
    }

    /// The number of the decision that an answer means.
    #[inline]
    fn number(&mut self, answer: AnswerId, reasons: &mut Reasons) -> u16 {
        match self.numbers.get(answer.0 as usize) {
            Some(&number) if number != UNDECIDED => number,
            _ => self.decide(answer, reasons),
        }
    }

    /// Fetches what is known of the flows of a group of a batch in columns.
    #[inline]
    pub(crate) fn prefetch_flows(&self, fingerprints: &[u64; GROUP], interface: u8) {
        if let (Some(flows), None) = (&self.flows, &self.protocols) {
            flows.prefetch(fingerprints, Salt::new(interface, UNTAGGED));
        }
    }

    /// Whether it is known already that all plain packets of a group of a batch in columns are discarded, by
    /// their protocols.
    #[inline]
    pub(crate) fn discards_group(&self, protocols: &[u32; GROUP], interface: u8) -> bool {
        let numbers = self.protocols.as_ref();
        numbers.is_some_and(|numbers| {
            let mut of_group = numbers.of_group(protocols, interface);
            of_group.all(|number| {
                let applied = self.applied.get(usize::from(number));
                applied.is_some_and(|applied| applied.discards)
            })
        })
    }

    /// Finds the policies of the packets of a batch in columns that are in `lanes`, at most
    /// [`LANES`] from a multiple of [`GROUP`] on. `fields_of` gives the fields of one of them:
    /// those with a flow or protocol whose decision is known are not fetched, if they are plain;
    /// `vlan_of` gives the VLAN of one that is not.
    pub(crate) fn classify_columns(
        &mut self,
        (simd, columns): (Simd, &PacketColumns),
        (lanes, interface): (Range<usize>, u8),
        fields_of: impl Fn(usize) -> PacketFields,
        vlan_of: impl Fn(usize) -> u16,
        reasons: &mut Reasons,
    ) {
        let Some(flows) = &self.flows else {
            unreachable!("made for batches in columns");
        };
        self.fields.clear();
        let untagged = Salt::new(interface, UNTAGGED);
        self.unknown.clear();
        for group in lanes.start / GROUP..lanes.end.div_ceil(GROUP) {
            let fingerprints = &columns.fingerprint.as_chunks::<GROUP>().0[group];
            let found = &mut self.found.as_chunks_mut::<GROUP>().0[group];
            let directions = columns.low_to_high[group];
            let of_group = &columns.protocol.as_chunks::<GROUP>().0[group];
            let known = match &self.protocols {
                Some(protocols) => protocols.find_group(of_group, interface, found),
                None => flows.find_group(simd, (fingerprints, directions), untagged, found),
            };
            let here = (lanes.end - group * GROUP).min(GROUP);
            let mut others = (u16::MAX >> (GROUP - here)) & !(known & columns.plain[group]);
            while others != 0 {
                let lane = others.trailing_zeros() as usize;
                others &= others - 1;
                let is_in = |mask: u16| mask >> lane & 1 != 0;
                let (at, flow) = (
                    group * GROUP + lane,
                    (fingerprints[lane], is_in(directions)),
                );
                let by = if is_in(columns.plain[group]) {
                    let [protocol, ..] = of_group[lane].to_le_bytes();
                    match &self.protocols {
                        Some(_) => By::Protocol(interface, protocol),
                        None => By::Flow(flow, untagged),
                    }
                } else if is_in(columns.dissected[group]) {
                    let salt = Salt::new(interface, vlan_of(at));
                    if let Some(number) = flows.find(flow.0, flow.1, salt) {
                        found[lane] = number;
                        continue;
                    }
                    By::Flow(flow, salt)
                } else {
                    // One without a flow has other fields that the rules test.
                    By::Nothing
                };
                self.unknown.push(Unknown { at, by });
                self.fields.push(fields_of(at));
            }
        }
        if !self.fields.is_empty() {
            self.classify_unknown(reasons);
        }
    }

    /// Finds the policies of the packets in `fields`.
    #[inline(never)]
    fn classify_unknown(&mut self, reasons: &mut Reasons) {
        let mut answers = [AnswerId::NONE; LANES];
        let answers = &mut answers[..self.fields.len()];
        self.classifier.classify(&self.fields, answers);
        for (place, answer) in answers.iter().enumerate() {
            let number = self.number(*answer, reasons);
            let Unknown { at, by } = self.unknown[place];
            self.found[at] = number;
            match (by, &mut self.flows, &mut self.protocols) {
                (By::Flow(flow, salt), Some(flows), _) => flows.insert(flow, salt, number),
                (By::Protocol(interface, protocol), _, Some(protocols)) => {
                    protocols.insert(interface, protocol, number);
                }
                _ => {}
            }
        }
    }

    /// Counts the packet at `place` of the batch for its policies; returns whether it is discarded
    /// whatever its class.
    pub(crate) fn discards(&mut self, place: u8, bytes: u64) -> bool {
        let applied = &mut self.applied[usize::from(self.found[usize::from(place)])];
        applied.counters.add(bytes);
        applied.discards
    }

    /// Counts packets of a batch in columns, at most 64 from `start` on, of which these are the
    /// bytes.
    #[inline]
    pub(crate) fn apply(
        &mut self,
        start: usize,
        bytes: impl ExactSizeIterator<Item = u64>,
    ) -> Wanted {
        let mut wanted = Wanted::default();
        let mut mirrors = false;
        let found = &self.found[start..start + bytes.len()];
        for (lane, (bytes, &number)) in bytes.zip(found).enumerate() {
            let applied = &mut self.applied[usize::from(number)];
            applied.counters.add(bytes);
            wanted.discarded |= u64::from(applied.discards) << lane;
            mirrors |= applied.mirrors;
        }
        if mirrors {
            for (lane, &number) in found.iter().enumerate() {
                let applied = &self.applied[usize::from(number)];
                wanted.mirrored |= u64::from(applied.mirrors) << lane;
            }
        }
        wanted
    }

    #[cold]
    fn decide(&mut self, answer: AnswerId, reasons: &mut Reasons) -> u16 {
        let mut policies = Vec::new();
        self.classifier.answers().policies(answer, &mut policies);
        let mut actions = Vec::new();
        self.policies.actions(&policies, &mut actions);
        let all = |modes: &ModeDemands| demands(&self.policies, &policies, modes);
        let detail = self.detail.as_ref();
        let demands: Vec<Demands> = self
            .modes
            .iter()
            .enumerate()
            .map(|(class, modes)| Demands::new(class, modes, detail, all, reasons))
            .collect();
        let always = |demands: &Demands| match &demands.wanted {
            Demand::Always(outcome, _) if demands.budgeted.is_none() => Some(*outcome),
            _ => None,
        };
        // Where modes drop every class, an export still wants to know it.
        let is_discarded = |demand| always(demand) == Some(Outcome::Discard);
        let discards =
            !is_left_to_class(&self.policies, &policies) && demands.iter().all(is_discarded);
        let first = demands.first().and_then(always);
        let is_settled = first.is_some() && demands.iter().all(|demand| always(demand) == first);
        let exports = self.exports_of(&policies, &actions);
        self.has_exports |= !exports.is_empty();
        let number = u16::try_from(self.decisions.len()).expect("decisions are bounded");
        let classes = (0..=u8::MAX).zip(&demands);
        for (class, demand) in classes {
            self.kept.push(demand.kept(class));
            self.budgeted.push(demand.within_budget(class));
        }
        self.applied.push(Applied {
            counters: Counters::default(),
            discards,
            mirrors: actions.contains(&Action::Mirror),
            exports: !exports.is_empty(),
        });
        self.decisions.push(Decision {
            answer,
            demands,
            is_settled,
            exports,
        });
        let place = answer.0 as usize;
        if self.numbers.len() <= place {
            self.numbers.resize(place + 1, UNDECIDED);
        }
        self.numbers[place] = number;
        number
    }

    /// What these policies export, or the default if it applies.
    fn exports_of(&self, policies: &[u32], actions: &[Action]) -> Vec<PolicyExport> {
        let exported = |(at, action): (usize, &Action)| match *action {
            Action::Export(export) => Some(PolicyExport {
                // After the policies' actions comes that of the default.
                policy: policies
                    .get(at)
                    .map_or(0, |&number| self.policies.named(number).0),
                export,
            }),
            _ => None,
        };
        actions.iter().enumerate().filter_map(exported).collect()
    }

    /// Whether packets may have to be exported.
    #[inline(always)]
    pub(crate) fn has_exports(&self) -> bool {
        self.has_exports
    }

    /// What is exported of the packet at `place` of the batch.
    pub(crate) fn exports(&self, place: u8) -> &[PolicyExport] {
        let number = usize::from(self.found[usize::from(place)]);
        match self.applied[number].exports {
            true => &self.decisions[number].exports,
            false => &[],
        }
    }

    /// What is demanded of the packet at `place` of the batch if it belongs to this class.
    #[inline]
    pub(crate) fn demand(&self, place: u8, class: usize) -> &Demands {
        &self.decision(place).demands[class]
    }

    /// For each packet of a batch in columns: what is kept of it, by class.
    #[inline(always)]
    pub(crate) fn demanded(&self) -> impl Iterator<Item = &[Kept]> {
        let classes = self.modes.len();
        let of = move |&number: &u16| &self.kept[usize::from(number) * classes..][..classes];
        self.found.iter().map(of)
    }

    /// What the budget of detail decides about the packet at a place of a batch in columns, if it
    /// belongs to this class.
    #[inline(always)]
    pub(crate) fn budgeted(&self, at: usize, class: u8) -> Budgeted {
        let number = usize::from(self.found[at]);
        self.budgeted[number * self.modes.len() + usize::from(class)]
    }

    /// Whether what happens to the packet at `place` is independent of its class.
    pub(crate) fn is_settled(&self, place: u8) -> bool {
        self.decision(place).is_settled
    }

    /// Whether more of the packet at `place` is sent on than its headers, whatever is kept of it.
    pub(crate) fn sends_whole(&self, place: u8) -> bool {
        let beyond = |one: &PolicyExport| one.export.keep != Keep::Header;
        self.mirrors(place) || self.exports(place).iter().any(beyond)
    }

    /// Whether a copy of the packet at `place` is sent on.
    pub(crate) fn mirrors(&self, place: u8) -> bool {
        self.applied[usize::from(self.found[usize::from(place)])].mirrors
    }

    fn decision(&self, place: u8) -> &Decision {
        &self.decisions[usize::from(self.found[usize::from(place)])]
    }

    /// Adds the hits since the last call to those of the policies.
    pub(crate) fn publish(&mut self) {
        let mut policies = Vec::new();
        for (decision, applied) in self.decisions.iter().zip(&mut self.applied) {
            if applied.counters.packets > 0 {
                self.classifier
                    .answers()
                    .policies(decision.answer, &mut policies);
                self.policies
                    .count(&policies, std::mem::take(&mut applied.counters));
            }
        }
    }
}

/// The fields of a plain packet, which has no VLAN tag.
pub(crate) fn plain_fields(plain: &Plain, interface: u8) -> PacketFields {
    PacketFields {
        source: plain.source.into(),
        destination: plain.destination.into(),
        source_port: plain.source_port,
        destination_port: plain.destination_port,
        vlan: UNTAGGED,
        interface,
        protocol: plain.protocol,
        family: AddressFamily::Ipv4,
    }
}

/// The fields of any packet.
pub(crate) fn fields(
    headers: &Headers,
    link: LinkType,
    data: &[u8],
    interface: u8,
) -> PacketFields {
    PacketFields::new(headers, interface, outer_vlan(link, data))
}

/// The VLAN identifier of the outermost IEEE 802.1Q tag.
pub(crate) fn outer_vlan(link: LinkType, data: &[u8]) -> u16 {
    // Where the link-layer header has its EtherType, and where it ends.
    let (kind, end) = match link {
        LinkType::ETHERNET => (fields::ethernet::TYPE, ethernet::HEADER_LEN),
        LinkType::LINUX_SLL => (sll::TYPE, sll::LEN),
        LinkType::LINUX_SLL2 => (sll2::TYPE, sll2::LEN),
        _ => return UNTAGGED,
    };
    let word = |at: usize| data.get(at..).and_then(|d| d.first_chunk());
    let (Some(&kind), Some(&tag)) = (word(kind.start), word(end)) else {
        return UNTAGGED;
    };
    let kind = u16::from_be_bytes(kind);
    let is_tag = kind == ethertype::VLAN
        || kind == ethertype::SERVICE_VLAN
        || ethertype::QINQ_OLD.contains(&kind);
    if is_tag {
        u16::from_be_bytes(tag) & 0x0fff
    } else {
        UNTAGGED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tag is found behind each link-layer header that tcpdump writes, and no other bytes are taken for one.
    #[test]
    fn the_outermost_tag_is_behind_the_link_layer_header() {
        let tagged = |len: usize, kind: usize| {
            let mut data = vec![0_u8; len];
            data[kind..kind + 2].copy_from_slice(&[0x81, 0x00]);
            data.extend([0x20, 7, 0x08, 0x00]);
            data
        };
        for (link, len, kind) in [
            (LinkType::ETHERNET, 14, 12),
            (LinkType::LINUX_SLL, 16, 14),
            (LinkType::LINUX_SLL2, 20, 0),
        ] {
            let data = tagged(len, kind);
            assert_eq!(outer_vlan(link, &data), 7, "{link:?}");
            assert_eq!(outer_vlan(link, &data[..len + 1]), UNTAGGED, "{link:?}");
            assert_eq!(outer_vlan(link, &vec![0; len + 4]), UNTAGGED, "{link:?}");
        }
        assert_eq!(outer_vlan(LinkType::RAW, &tagged(14, 12)), UNTAGGED);
    }
}
