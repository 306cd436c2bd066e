//! Slow and fast path together: the policies of each packet, a batch at a time.

use std::sync::Arc;

use crate::packet::PacketFields;
use crate::rule::{AnswerId, Answers, Rule};
use crate::tss::TupleSpace;
use crate::uniflow::{UniflowCache, UniflowKey, Uniflows};

/// Packets that are classified together.
pub const BATCH: usize = 64;

/// A set of rules, made ready for searching. It never changes: another set replaces it
/// whole, so there is no instant at which a packet meets half of an update.
#[derive(Clone, Debug)]
pub struct RuleSet {
    policies: u32,
    tuples: TupleSpace,
    uniflows: Uniflows,
}

impl RuleSet {
    /// Makes rules about so many policies ready. Takes time and memory proportional to
    /// the sum of their [`prefix_rules`](crate::Region::prefix_rules).
    #[must_use]
    pub fn new(rules: &[Rule], policies: u32) -> Self {
        Self {
            policies,
            tuples: TupleSpace::new(rules),
            uniflows: Uniflows::new(rules),
        }
    }

    /// The tuples of the slow path.
    #[must_use]
    pub fn tuples(&self) -> &TupleSpace {
        &self.tuples
    }

    /// The uniflows of the fast path.
    #[must_use]
    pub fn uniflows(&self) -> &Uniflows {
        &self.uniflows
    }
}

/// How often the fast path knew the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Packets classified; each is one look-up in the cache.
    pub packets: u64,
    /// Packets whose uniflow was not cached.
    pub misses: u64,
}

/// One worker's search.
#[derive(Debug)]
pub struct RuleClassifier {
    rules: Arc<RuleSet>,
    cache: UniflowCache,
    answers: Answers,
    stats: CacheStats,
    found: Vec<u32>,
}

impl RuleClassifier {
    /// A classifier with an empty cache of so many uniflows; `seed` chooses which of them
    /// compete for a place.
    #[must_use]
    pub fn new(rules: Arc<RuleSet>, cache_entries: usize, seed: u64) -> Self {
        Self {
            answers: Answers::new(rules.policies),
            rules,
            cache: UniflowCache::new(cache_entries, seed),
            stats: CacheStats::default(),
            found: Vec::new(),
        }
    }

    /// Goes on with other rules. Answers given before have no meaning afterwards.
    pub fn replace(&mut self, rules: Arc<RuleSet>) {
        self.answers = Answers::new(rules.policies);
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
        // Keys first, look-ups after: the loads of many packets are under way at once.
        let mut keys = [UniflowKey::default(); BATCH];
        for (key, packet) in keys.iter_mut().zip(packets) {
            *key = self.rules.uniflows.key(packet);
        }
        let mut missed = 0_u64;
        for (lane, (answer, &key)) in answers.iter_mut().zip(&keys).enumerate() {
            match self.cache.get(key) {
                Some(known) => *answer = known,
                None => missed |= 1 << lane,
            }
        }
        self.stats.packets += packets.len() as u64;
        while missed != 0 {
            let lane = missed.trailing_zeros() as usize;
            missed &= missed - 1;
            answers[lane] = self.miss(keys[lane], &packets[lane]);
        }
    }

    #[cold]
    fn miss(&mut self, key: UniflowKey, packet: &PacketFields) -> AnswerId {
        // Perhaps an earlier packet of the batch has brought it in.
        if let Some(known) = self.cache.get(key) {
            return known;
        }
        self.stats.misses += 1;
        let lengths = self.rules.uniflows.lengths(packet);
        let tuples = &self.rules.tuples;
        tuples.search_pruned(packet, &lengths, &mut self.found);
        let answer = self.answers.id(&self.found);
        self.cache.insert(key, answer);
        answer
    }
}
