//! Tuple space search with megaflows as its cache, in two forms.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

use strata_rules::{AnswerId, Answers, Field, PacketFields, Rule};
use strata_wire::exact;

use super::trie::{Found, Trie};
use super::tuples::{Best, Tuples, Words, masked, place, words};
use super::{Bounded, PeerStats};

/// How the mask of a megaflow is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MegaflowForm {
    /// As Trident §2 describes: every tuple is searched, and every mask taken over.
    Paper,
    /// As Open vSwitch does (Pfaff et al., NSDI 2015 §5): tuples by priority until none can
    /// win, in three stages (metadata, addresses, ports) of which the first that fails
    /// ends the tuple, and tries that tell how many bits of an address rule a tuple out.
    OpenVSwitch,
}

/// How often masks are put in order of their hits, in packets.
const SORT_INTERVAL: u64 = 1 << 16;

/// A cache of megaflows before tuple space search.
#[derive(Debug)]
pub struct Megaflows {
    form: MegaflowForm,
    space: Tuples,
    /// Of each tuple, what its rules demand up to each stage but the last.
    stages: Vec<[HashSet<Words, FixedState>; 2]>,
    /// By family (4, 6) and field (source, destination).
    tries: [[Trie; 2]; 2],
    answers: Answers,
    cache: Bounded<(u32, Words)>,
    masks: Vec<MaskEntry>,
    mask_numbers: HashMap<Words, u32>,
    stats: PeerStats,
    found: Vec<u32>,
}

/// A mask that cached megaflows have.
#[derive(Debug)]
struct MaskEntry {
    number: u32,
    mask: Words,
    megaflows: u32,
    hits: u64,
}

const META: [Field; 3] = [Field::Family, Field::Vlan, Field::Interface];
const NETWORK: [Field; 3] = [Field::Source, Field::Destination, Field::Protocol];

/// The bits of some fields.
fn field_mask(fields: &[Field]) -> Words {
    let mut mask = [0; 3];
    for &field in fields {
        let (word, shift) = place(field);
        mask[word] |= (u128::MAX >> (u128::BITS - field.bits())) << shift;
    }
    mask
}

fn add(mask: &mut Words, more: &Words) {
    for (word, more) in mask.iter_mut().zip(more) {
        *word |= more;
    }
}

impl Megaflows {
    /// A cache of a number of megaflows before these rules, of a number of policies.
    #[must_use]
    pub fn new(rules: &[Rule], policies: u32, form: MegaflowForm, entries: usize) -> Self {
        let space = Tuples::new(rules);
        let mut tries = [32, 128].map(|bits| [Trie::new(bits), Trie::new(bits)]);
        let (meta, network) = (field_mask(&META), field_mask(&NETWORK));
        let mut upto_network = meta;
        add(&mut upto_network, &network);
        let mut stages = Vec::new();
        for tuple in &space.0 {
            let upto = |stage: &Words| {
                let keys = tuple.entries.keys();
                keys.map(|key| masked(key, stage))
                    .collect::<HashSet<_, _>>()
            };
            stages.push([upto(&meta), upto(&upto_network)]);
            for key in tuple.entries.keys() {
                let (word, shift) = place(Field::Family);
                for field in [0, 1] {
                    let length = tuple.mask[field].count_ones();
                    match key[word] >> shift & 7 {
                        _ if length == 0 => {}
                        4 => tries[0][field].insert(key[field], length - 96),
                        _ => tries[1][field].insert(key[field], length),
                    }
                }
            }
        }
        Self {
            form,
            space,
            stages,
            tries,
            answers: Answers::new(policies),
            cache: Bounded::new(entries),
            masks: Vec::new(),
            mask_numbers: HashMap::new(),
            stats: PeerStats::default(),
            found: Vec::new(),
        }
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> PeerStats {
        self.stats
    }

    /// The answers given so far.
    #[must_use]
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// The answer for a packet.
    #[inline]
    pub fn classify(&mut self, packet: &PacketFields) -> AnswerId {
        let words = words(packet);
        self.stats.packets += 1;
        for entry in &mut self.masks {
            self.stats.fast_lookups += 1;
            let key = (entry.number, masked(&words, &entry.mask));
            if let Some(answer) = self.cache.get(&key) {
                entry.hits += 1;
                if self.stats.packets.is_multiple_of(SORT_INTERVAL) {
                    self.sort();
                }
                return answer;
            }
        }
        self.miss(packet, &words)
    }

    /// Puts masks in the order of their hits, as Open vSwitch does in the kernel.
    #[cold]
    fn sort(&mut self) {
        self.masks
            .sort_by_key(|entry| std::cmp::Reverse(entry.hits));
        for entry in &mut self.masks {
            entry.hits /= 2;
        }
    }

    #[cold]
    fn miss(&mut self, packet: &PacketFields, words: &Words) -> AnswerId {
        self.stats.misses += 1;
        let mut found = std::mem::take(&mut self.found);
        let mask = match self.form {
            MegaflowForm::Paper => self.search_all(words, &mut found),
            MegaflowForm::OpenVSwitch => self.search_staged(packet, words, &mut found),
        };
        let answer = self.answers.id(&found);
        self.found = found;
        self.stats.entry_size_sum += 2_f64.powi(free_bits(packet, &mask));
        let numbers = exact::<u32>(self.mask_numbers.len());
        let number = *self.mask_numbers.entry(mask).or_insert(numbers);
        match self.masks.iter_mut().find(|entry| entry.number == number) {
            Some(entry) => entry.megaflows += 1,
            None => self.masks.push(MaskEntry {
                number,
                mask,
                megaflows: 1,
                hits: 0,
            }),
        }
        if let Some((old, _)) = self.cache.insert((number, masked(words, &mask)), answer) {
            for entry in &mut self.masks {
                entry.megaflows -= u32::from(entry.number == old);
            }
            self.masks.retain(|entry| entry.megaflows > 0);
        }
        answer
    }

    fn search_all(&self, words: &Words, policies: &mut Vec<u32>) -> Words {
        let mut mask = [0; 3];
        let mut found = Best::new(policies);
        for tuple in &self.space.0 {
            add(&mut mask, &tuple.mask);
            if let Some(list) = tuple.entries.get(&masked(words, &tuple.mask)) {
                found.offer_all(list);
            }
        }
        found.finish();
        mask
    }

    fn search_staged(
        &self,
        packet: &PacketFields,
        words: &Words,
        policies: &mut Vec<u32>,
    ) -> Words {
        // The family is always matched exactly, as Open vSwitch does with the EtherType.
        let mut mask = field_mask(&[Field::Family]);
        let (meta, network) = (field_mask(&META), field_mask(&NETWORK));
        let tries: Option<[Found; 2]> = match packet.value(Field::Family) {
            4 => Some([0, 1].map(|field| self.tries[0][field].find(words[field]))),
            6 => Some([0, 1].map(|field| self.tries[1][field].find(words[field]))),
            _ => None,
        };
        let bits = if packet.value(Field::Family) == 4 {
            32
        } else {
            128
        };
        let mut found = Best::new(policies);
        'tuples: for (tuple, stages) in self.space.0.iter().zip(&self.stages) {
            if !found.wants(tuple.priority_max) {
                break;
            }
            let mut upto = masked(&tuple.mask, &meta);
            if !stages[0].contains(&masked(words, &upto)) {
                add(&mut mask, &upto);
                continue;
            }
            for (field, trie) in tries.iter().flatten().enumerate() {
                let length = tuple.mask[field].count_ones().saturating_sub(128 - bits);
                if !trie.has(length) {
                    let looked_at = trie.looked_at;
                    let all = u128::MAX >> (128 - bits);
                    mask[field] |= all & !all.unbounded_shr(looked_at);
                    add(&mut mask, &upto);
                    continue 'tuples;
                }
            }
            add(&mut upto, &masked(&tuple.mask, &network));
            if !stages[1].contains(&masked(words, &upto)) {
                add(&mut mask, &upto);
                continue;
            }
            add(&mut mask, &tuple.mask);
            if let Some(list) = tuple.entries.get(&masked(words, &tuple.mask)) {
                found.offer_all(list);
            }
        }
        found.finish();
        mask
    }
}

/// Bits of source, destination, ports and protocol that a mask leaves free, for packets of
/// the family of this one.
fn free_bits(packet: &PacketFields, mask: &Words) -> i32 {
    let address_bits = match packet.value(Field::Family) {
        4 => u128::from(u32::MAX),
        6 => u128::MAX,
        _ => 0,
    };
    let ports = field_mask(&[Field::SourcePort, Field::DestinationPort, Field::Protocol]);
    let free = (address_bits & !mask[0]).count_ones()
        + (address_bits & !mask[1]).count_ones()
        + (ports[2] & !mask[2]).count_ones();
    free.cast_signed()
}
