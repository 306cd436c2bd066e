//! Policies at work: what each packet of a batch gets.

use std::sync::Arc;

use strata_classify::LANES;
use strata_policy::{ModeDemands, demands};
use strata_rules::{Action, AnswerId, BATCH, PacketFields, Policies, RuleClassifier, UNTAGGED};
use strata_wire::ethernet::{self, ethertype};
use strata_wire::wide::WIDE;
use strata_wire::{AddressFamily, Counters, Headers, LinkType, Outcome, Plain, exact};

use crate::demand::Demand;
use crate::reasons::Reasons;

/// Uniflows cached by a worker: 87 KiB.
const CACHE_ENTRIES: usize = 4096;
/// Distinct sets of policies before everything starts anew: each takes memory.
const ANSWERS_MAX: usize = 1 << 16;

const _: () = assert!(LANES <= BATCH);

/// What an answer of the rules means.
#[derive(Debug)]
struct Decision {
    /// For each class.
    demands: Vec<Demand>,
    /// Whether no packet is wanted, whatever its class.
    discards: bool,
    /// Whether every class gets the same.
    is_settled: bool,
    /// Whether copies are sent on.
    mirrors: bool,
    /// Packets since they were last added to the policies' counters.
    counters: Counters,
}

/// The policies of one worker.
#[derive(Debug)]
pub(crate) struct Policing {
    policies: Arc<Policies>,
    classifier: RuleClassifier,
    seed: u64,
    /// For each class, what the modes demand.
    modes: Vec<ModeDemands>,
    /// By [`AnswerId`].
    decisions: Vec<Option<Decision>>,
    /// For each packet of the current batch, as far as they were found.
    answers: [AnswerId; WIDE],
    answered: usize,
    fields: Vec<PacketFields>,
}

impl Policing {
    pub(crate) fn new(policies: Arc<Policies>, modes: Vec<ModeDemands>, seed: u64) -> Self {
        Self {
            classifier: RuleClassifier::new(Arc::clone(policies.rules()), CACHE_ENTRIES, seed),
            policies,
            seed,
            modes,
            decisions: Vec::new(),
            answers: [AnswerId::NONE; WIDE],
            answered: 0,
            fields: Vec::with_capacity(WIDE),
        }
    }

    /// An interface's number in the rules, by its name.
    pub(crate) fn interface(&self, name: Option<&str>) -> u8 {
        self.policies.interface(name)
    }

    /// Starts a batch.
    pub(crate) fn begin(&mut self) {
        self.fields.clear();
        self.answered = 0;
        if self.classifier.answers().len() > ANSWERS_MAX {
            self.publish();
            self.decisions.clear();
            self.classifier =
                RuleClassifier::new(Arc::clone(self.policies.rules()), CACHE_ENTRIES, self.seed);
        }
    }

    /// Adds a packet with these fields; returns its place in the batch.
    pub(crate) fn push(&mut self, fields: PacketFields) -> u8 {
        self.fields.push(fields);
        // A batch has at most 256.
        exact::<u8>(self.fields.len() - 1)
    }

    /// Finds the policies of the packets of the batch that were added since the last call, at most
    /// [`LANES`].
    pub(crate) fn classify(&mut self) {
        let new = self.answered..self.fields.len();
        let answers = &mut self.answers[new.clone()];
        self.classifier.classify(&self.fields[new], answers);
        self.answered = self.fields.len();
    }

    /// Counts the packet at `place` of the batch for its policies; returns whether it is discarded
    /// whatever its class.
    pub(crate) fn discards(&mut self, place: u8, bytes: u64, reasons: &mut Reasons) -> bool {
        let answer = self.answers[usize::from(place)];
        let number = answer.0 as usize;
        if self.decisions.len() <= number {
            self.decisions.resize_with(number + 1, || None);
        }
        if self.decisions[number].is_none() {
            self.decisions[number] = Some(self.decide(answer, reasons));
        }
        let Some(decision) = &mut self.decisions[number] else {
            return false;
        };
        decision.counters.add(bytes);
        decision.discards
    }

    #[cold]
    fn decide(&self, answer: AnswerId, reasons: &mut Reasons) -> Decision {
        let mut policies = Vec::new();
        self.classifier.answers().policies(answer, &mut policies);
        let mut actions = Vec::new();
        self.policies.actions(&policies, &mut actions);
        let demands: Vec<Demand> = self
            .modes
            .iter()
            .map(|modes| Demand::new(demands(&self.policies, &policies, modes), modes, reasons))
            .collect();
        let always = |demand: &Demand| match demand {
            Demand::Always(outcome, _) => Some(*outcome),
            Demand::Sampled(_) => None,
        };
        let discards = demands
            .iter()
            .all(|demand| always(demand) == Some(Outcome::Discard));
        let first = demands.first().and_then(always);
        let is_settled = first.is_some() && demands.iter().all(|demand| always(demand) == first);
        Decision {
            demands,
            discards,
            is_settled,
            mirrors: actions.contains(&Action::Mirror),
            counters: Counters::default(),
        }
    }

    /// What is demanded of the packet at `place` of the batch if it belongs to this class.
    ///
    /// # Panics
    ///
    /// If [`Policing::discards`] was not called for it.
    #[inline]
    pub(crate) fn demand(&self, place: u8, class: usize) -> &Demand {
        let decision = self.decision(place);
        &decision
            .expect("a packet is asked about when its batch begins")
            .demands[class]
    }

    /// Whether what happens to the packet at `place` is independent of its class. To be called as
    /// [`Policing::demand`] is.
    pub(crate) fn is_settled(&self, place: u8) -> bool {
        self.decision(place).is_some_and(|d| d.is_settled)
    }

    /// Whether a copy of the packet at `place` is sent on. To be called as [`Policing::demand`] is.
    pub(crate) fn mirrors(&self, place: u8) -> bool {
        self.decision(place).is_some_and(|d| d.mirrors)
    }

    fn decision(&self, place: u8) -> Option<&Decision> {
        let answer = self.answers[usize::from(place)];
        self.decisions[answer.0 as usize].as_ref()
    }

    /// Adds the hits since the last call to those of the policies.
    pub(crate) fn publish(&mut self) {
        let mut policies = Vec::new();
        for (number, decision) in (0_u32..).zip(&mut self.decisions) {
            let Some(decision) = decision else { continue };
            if decision.counters.packets > 0 {
                self.classifier
                    .answers()
                    .policies(AnswerId(number), &mut policies);
                self.policies
                    .count(&policies, std::mem::take(&mut decision.counters));
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
fn outer_vlan(link: LinkType, data: &[u8]) -> u16 {
    // Where the link-layer header has its EtherType.
    let at = match link {
        LinkType::ETHERNET => ethernet::HEADER_LEN - 2,
        LinkType::LINUX_SLL => 14,
        _ => return UNTAGGED,
    };
    let Some(&[kind_high, kind_low, tag_high, tag_low]) =
        data.get(at..).and_then(|d| d.first_chunk())
    else {
        return UNTAGGED;
    };
    let kind = u16::from_be_bytes([kind_high, kind_low]);
    let is_tag = kind == ethertype::VLAN
        || kind == ethertype::SERVICE_VLAN
        || ethertype::QINQ_OLD.contains(&kind);
    if is_tag {
        u16::from_be_bytes([tag_high, tag_low]) & 0x0fff
    } else {
        UNTAGGED
    }
}
