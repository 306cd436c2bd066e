//! Slow and fast path combined: the policies of each packet, a batch at a time.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::packet::PacketFields;
use crate::rule::{AnswerId, Answers, Rule};
use crate::tss::{Numbers, TupleSpace};
use crate::uniflow::{UniflowCache, UniflowKey, Uniflows};

/// Maximum number of packets classified together.
pub const BATCH: usize = 64;
/// Cached uniflows of the second, small layer.
const ADDED_ENTRIES: usize = 512;
/// Combined answers cached before all are dropped.
const JOINED_MAX: usize = 1 << 16;

/// Rules prepared for searching.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    tuples: TupleSpace,
    uniflows: Uniflows,
    /// Number of the first policy, and the priorities from there on.
    first: u32,
    priorities: Vec<u16>,
}

impl Layer {
    /// Rules of the policies numbered from `first` on.
    pub(crate) fn new(rules: &[Rule], first: u32) -> Self {
        let mut priorities = Vec::new();
        for rule in rules {
            let place = place_from(first, rule.policy);
            if priorities.len() <= place {
                priorities.resize(place.saturating_add(1), 0);
            }
            priorities[place] = rule.priority;
        }
        Self {
            tuples: TupleSpace::new(rules),
            uniflows: Uniflows::new(rules),
            first,
            priorities,
        }
    }

    fn priority(&self, policy: u32) -> u16 {
        self.priorities[place_from(self.first, policy)]
    }
}

/// Where a policy of a layer is in it.
fn place_from(first: u32, policy: u32) -> usize {
    let place = policy.checked_sub(first);
    place.expect("policies of a layer are numbered from its first on") as usize
}

/// A set of rules, prepared for searching. It never changes: another set replaces it as a whole, so
/// no packet ever meets half of an update.
///
/// A set can share most of another one: then it lists the policies that no longer count, and keeps
/// the rules of those added since in a second, small layer.
#[derive(Clone, Debug)]
pub struct RuleSet {
    policies: u32,
    base: Arc<Layer>,
    /// Policies of `base` that no longer count.
    removed: Numbers,
    added: Option<Arc<Layer>>,
}

impl RuleSet {
    /// Prepares the rules of this many policies. Takes time and memory proportional to the sum of
    /// their [`prefix_rules`](crate::Region::prefix_rules).
    #[must_use]
    pub fn new(rules: &[Rule], policies: u32) -> Self {
        Self::of(Arc::new(Layer::new(rules, 0)), policies)
    }

    /// The rules of a layer of this many policies.
    pub(crate) fn of(base: Arc<Layer>, policies: u32) -> Self {
        Self {
            policies,
            base,
            removed: Numbers::default(),
            added: None,
        }
    }

    /// Rules most of which were prepared before: those of `base` without the `removed` policies,
    /// and those `added`, whose policies are numbered from `first` on. All rules of a policy have
    /// the same priority.
    pub(crate) fn changed(
        base: Arc<Layer>,
        removed: Numbers,
        first: u32,
        added: &[Rule],
        policies: u32,
    ) -> Self {
        Self {
            policies,
            base,
            removed,
            added: (!added.is_empty()).then(|| Arc::new(Layer::new(added, first))),
        }
    }

    /// Whether IPv4 packets with the same protocol, VLAN and interface have the same answer: no rule
    /// tests their addresses or ports.
    #[must_use]
    pub fn is_v4_by_protocol(&self) -> bool {
        let mut layers = [Some(&self.base), self.added.as_ref()]
            .into_iter()
            .flatten();
        layers.all(|layer| layer.uniflows.is_v4_by_protocol())
    }

    /// Whether a policy no longer counts.
    pub(crate) fn is_removed(&self, place: usize) -> bool {
        u32::try_from(place).is_ok_and(|number| self.removed.contains(number))
    }

    /// The uniflows of the fast path.
    #[must_use]
    pub fn uniflows(&self) -> &Uniflows {
        &self.base.uniflows
    }
}

/// How often the fast path had the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Packets classified; each is one cache lookup.
    pub packets: u64,
    /// Packets whose uniflow was not cached.
    pub misses: u64,
}

/// One worker's search.
#[derive(Debug)]
pub struct RuleClassifier {
    rules: Arc<RuleSet>,
    cache: UniflowCache,
    /// `None` if all rules are in one layer.
    added: Option<Box<AddedSearch>>,
    seed: u64,
    answers: Answers,
    stats: CacheStats,
    found: Vec<u32>,
}

/// Searches the rules that were added after the others were prepared.
#[derive(Debug)]
struct AddedSearch {
    layer: Arc<Layer>,
    cache: UniflowCache,
    /// Combinations of the answers of both layers.
    joined: HashMap<(u32, u32), AnswerId, FixedState>,
}

impl AddedSearch {
    fn new(rules: &RuleSet, seed: u64) -> Option<Box<Self>> {
        let layer = Arc::clone(rules.added.as_ref()?);
        Some(Box::new(Self {
            layer,
            cache: UniflowCache::new(ADDED_ENTRIES, !seed),
            joined: HashMap::default(),
        }))
    }
}

impl RuleClassifier {
    /// A classifier with an empty cache of this many uniflows; `seed` determines which of them
    /// compete for a place.
    #[must_use]
    pub fn new(rules: Arc<RuleSet>, cache_entries: usize, seed: u64) -> Self {
        Self {
            answers: Answers::new(rules.policies),
            added: AddedSearch::new(&rules, seed),
            rules,
            cache: UniflowCache::new(cache_entries, seed),
            seed,
            stats: CacheStats::default(),
            found: Vec::new(),
        }
    }

    /// Switches to other rules. Answers given before become meaningless.
    pub fn replace(&mut self, rules: Arc<RuleSet>) {
        self.answers = Answers::new(rules.policies);
        self.added = AddedSearch::new(&rules, self.seed);
        self.rules = rules;
        self.cache.clear();
    }

    /// The answers given so far.
    #[must_use]
    pub fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Hits and misses so far.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.stats
    }

    /// The answer for each packet.
    ///
    /// # Panics
    ///
    /// If there are more than [`BATCH`] packets, or not as many answers as packets.
    #[inline]
    pub fn classify(&mut self, packets: &[PacketFields], answers: &mut [AnswerId]) {
        assert!(packets.len() <= BATCH && packets.len() == answers.len());
        // Keys first, lookups after: the loads of many packets are in flight at once.
        let mut keys = [UniflowKey::default(); BATCH];
        for (key, packet) in keys.iter_mut().zip(packets) {
            *key = self.rules.base.uniflows.key(packet);
        }
        let mut missed = 0_u64;
        for (lane, (answer, &key)) in answers.iter_mut().zip(&keys).enumerate() {
            match self.cache.get(key) {
                Some(known) => *answer = known,
                None => missed |= 1 << lane,
            }
        }
        self.stats.packets = self.stats.packets.wrapping_add(packets.len() as u64);
        while missed != 0 {
            let lane = missed.trailing_zeros() as usize;
            missed &= missed.wrapping_sub(1);
            answers[lane] = self.miss(keys[lane], &packets[lane]);
        }
        if let Some(mut added) = self.added.take() {
            self.join(&mut added, packets, answers);
            self.added = Some(added);
        }
    }

    #[cold]
    fn miss(&mut self, key: UniflowKey, packet: &PacketFields) -> AnswerId {
        // Perhaps an earlier packet of the batch has cached it.
        if let Some(known) = self.cache.get(key) {
            return known;
        }
        self.stats.misses = self.stats.misses.wrapping_add(1);
        let base = &self.rules.base;
        let lengths = base.uniflows.lengths(packet);
        let removed = &self.rules.removed;
        base.tuples
            .search(packet, &lengths, removed, &mut self.found);
        let answer = self.answers.id(&self.found);
        self.cache.insert(key, answer);
        answer
    }

    /// Combines the answers with those of the rules added later.
    fn join(
        &mut self,
        added: &mut AddedSearch,
        packets: &[PacketFields],
        answers: &mut [AnswerId],
    ) {
        for (packet, answer) in packets.iter().zip(answers) {
            let key = added.layer.uniflows.key(packet);
            let later = added.cache.get(key).unwrap_or_else(|| {
                let lengths = added.layer.uniflows.lengths(packet);
                let tuples = &added.layer.tuples;
                tuples.search(packet, &lengths, &Numbers::default(), &mut self.found);
                let later = self.answers.id(&self.found);
                added.cache.insert(key, later);
                later
            });
            if later == AnswerId::NONE {
                continue;
            }
            if *answer == AnswerId::NONE {
                *answer = later;
                continue;
            }
            let pair = (answer.0, later.0);
            *answer = match added.joined.get(&pair) {
                Some(&known) => known,
                None => {
                    let both = self.both(&added.layer, *answer, later);
                    if added.joined.len() >= JOINED_MAX {
                        added.joined.clear();
                    }
                    added.joined.insert(pair, both);
                    both
                }
            };
        }
    }

    /// Combines two non-empty answers: the one of higher priority, or for equal priorities the
    /// policies of both.
    #[cold]
    fn both(&mut self, added: &Layer, earlier: AnswerId, later: AnswerId) -> AnswerId {
        let mut all = Vec::new();
        self.answers.policies(later, &mut all);
        self.answers.policies(earlier, &mut self.found);
        let later_priority = added.priority(all[0]);
        let earlier_priority = self.rules.base.priority(self.found[0]);
        match earlier_priority.cmp(&later_priority) {
            std::cmp::Ordering::Greater => earlier,
            std::cmp::Ordering::Less => later,
            std::cmp::Ordering::Equal => {
                all.extend_from_slice(&self.found);
                all.sort_unstable();
                self.answers.id(&all)
            }
        }
    }
}
