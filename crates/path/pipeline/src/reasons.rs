//! Who decided: one number for a packet's verdict and for who decided how much of it is kept.
//!
//! A record has two bytes for it. Where the class decided, they are the verdict's number, so such
//! packets cost nothing; every other combination gets a number of its own once.
//!
//! ```text
//! 0 ..     verdicts (`classify`)
//! 41000 .. 10,000 combinations of verdict and decider
//!          8,000 of class, level and decider, without leaves, once these are used up
//!          then class and kind of decider
//! ```

use std::collections::HashMap;

use strata_classify::{Verdict, VerdictId};
use strata_sketch::Level;
use strata_wire::{Decider, Granularity, Keep, Outcome};

/// Who decided, numbered within this worker; 0 is the class.
pub(crate) type DeciderId = u16;

/// The class decided, as the context says.
pub(crate) const BY_CLASS: DeciderId = 0;
/// The start of a flow is kept whole.
pub(crate) const FIRST_BYTES: DeciderId = 1;

/// The first number that is not a verdict's.
const FIRST: u16 = 41_000;
const COMBINATIONS_MAX: usize = 10_000;
const COARSE_MAX: usize = 8_000;
/// Deciders that are told apart; of those beyond, only the kind is known.
const DECIDERS_MAX: usize = 16_000;
/// Direct-mapped cache in front of the table: 8 KiB.
const CACHE_SLOTS: usize = 1_024;

const _: () = assert!(FIRST as usize > strata_classify::VERDICTS_MAX);
// What comes last: a decider of each kind, and look-back of each, for each class.
const _: () = assert!(FIRST as usize + COMBINATIONS_MAX + COARSE_MAX + 20 * 252 <= 1 << 16);

/// What a number stands for that is not a verdict's.
#[derive(Clone, Copy, Debug)]
struct Entry {
    verdict: VerdictId,
    decider: DeciderId,
    /// Whether it also stands for verdicts with other leaves.
    is_shared: bool,
}

/// The deciders of a worker, and their combinations with verdicts.
#[derive(Debug)]
pub(crate) struct Reasons {
    deciders: HashMap<Decider, DeciderId>,
    /// By number.
    all: Vec<Decider>,
    /// As encoded in a log.
    encoded: Vec<Vec<u8>>,
    /// By decider, and the class that triggered it.
    look_backs: HashMap<(DeciderId, u8), DeciderId>,
    /// Verdict and decider, with their number.
    cache: Box<[(u32, u16)]>,
    combinations: HashMap<(VerdictId, DeciderId), u16>,
    coarse: HashMap<(u8, Option<Level>, DeciderId), u16>,
    general: HashMap<(u8, DeciderId), u16>,
    /// By number from [`FIRST`] on.
    entries: Vec<Entry>,
}

impl Reasons {
    pub(crate) fn new() -> Self {
        let mut reasons = Self {
            deciders: HashMap::new(),
            all: Vec::new(),
            encoded: Vec::new(),
            look_backs: HashMap::new(),
            // The class is never among the cached deciders.
            cache: vec![(0, 0); CACHE_SLOTS].into_boxed_slice(),
            combinations: HashMap::new(),
            coarse: HashMap::new(),
            general: HashMap::new(),
            entries: Vec::new(),
        };
        let by_class = reasons.decider(Decider::Class);
        let first_bytes = reasons.decider(Decider::FirstBytes);
        assert_eq!((by_class, first_bytes), (BY_CLASS, FIRST_BYTES));
        reasons
    }

    /// The number of a decider.
    pub(crate) fn decider(&mut self, decider: Decider) -> DeciderId {
        if let Some(&id) = self.deciders.get(&decider) {
            return id;
        }
        let decider = if self.all.len() < DECIDERS_MAX {
            decider
        } else {
            decider.general()
        };
        if let Some(&id) = self.deciders.get(&decider) {
            return id;
        }
        let id = DeciderId::try_from(self.all.len()).expect("deciders are bounded");
        let mut encoded = Vec::new();
        if id != BY_CLASS {
            decider.emit(&mut encoded);
        }
        self.encoded.push(encoded);
        self.all.push(decider.clone());
        self.deciders.insert(decider, id);
        id
    }

    /// Look-back triggered by a packet of this class on which `trigger` decided; `explicit` says
    /// who that is if it is the class.
    pub(crate) fn look_back(
        &mut self,
        trigger: DeciderId,
        class: u8,
        explicit: &Decider,
    ) -> DeciderId {
        let key = (trigger, if trigger == BY_CLASS { class } else { 0 });
        if let Some(&id) = self.look_backs.get(&key) {
            return id;
        }
        let of = match trigger {
            BY_CLASS => explicit.clone(),
            other => self.all[usize::from(other)].clone(),
        };
        let id = self.decider(Decider::look_back(of));
        self.look_backs.insert(key, id);
        id
    }

    /// Forgets the verdicts, not the deciders: another model's have the same numbers.
    pub(crate) fn forget_verdicts(&mut self) {
        self.cache.fill((0, 0));
        self.combinations.clear();
        self.coarse.clear();
        self.general.clear();
        self.entries.clear();
    }

    /// Forgets what depends on the current plan.
    pub(crate) fn forget_plan(&mut self) {
        self.look_backs.clear();
    }

    /// The number for a verdict on whose packet `decider`, not the class, decided.
    #[inline(always)]
    pub(crate) fn number(
        &mut self,
        id: VerdictId,
        decider: DeciderId,
        verdict: impl FnOnce(VerdictId) -> (u8, Option<Level>),
    ) -> u16 {
        let key = u32::from(decider) << 16 | u32::from(id);
        let place = (key.wrapping_mul(0x9e37_79b9) >> 22) as usize % CACHE_SLOTS;
        let (cached, number) = self.cache[place];
        if cached == key {
            return number;
        }
        let (class, level) = verdict(id);
        let number = self.look_up(id, decider, class, level);
        self.cache[place] = (key, number);
        number
    }

    #[cold]
    fn look_up(
        &mut self,
        verdict: VerdictId,
        decider: DeciderId,
        class: u8,
        level: Option<Level>,
    ) -> u16 {
        let known = self.combinations.get(&(verdict, decider));
        let known = known.or_else(|| self.coarse.get(&(class, level, decider)));
        if let Some(&number) = known {
            return number;
        }
        let number = u16::try_from(usize::from(FIRST) + self.entries.len());
        let number = number.expect("the numbers are bounded");
        let mut entry = Entry {
            verdict,
            decider,
            is_shared: true,
        };
        if self.combinations.len() < COMBINATIONS_MAX {
            entry.is_shared = false;
            self.combinations.insert((verdict, decider), number);
        } else if self.coarse.len() < COARSE_MAX {
            self.coarse.insert((class, level, decider), number);
        } else {
            let general = self.all[usize::from(decider)].general();
            entry.decider = self.decider(general);
            if let Some(&known) = self.general.get(&(class, entry.decider)) {
                return known;
            }
            self.general.insert((class, entry.decider), number);
        }
        self.entries.push(entry);
        number
    }

    /// The verdict behind a number, the bytes of who decided, and whether all its packets have the
    /// verdict's leaves.
    pub(crate) fn resolve(&self, number: u16) -> (VerdictId, &[u8], bool) {
        let place = usize::from(number).checked_sub(usize::from(FIRST));
        match place.and_then(|place| self.entries.get(place)) {
            None => (number, &[], true),
            Some(entry) => {
                let bytes = &self.encoded[usize::from(entry.decider)];
                (entry.verdict, bytes, !entry.is_shared)
            }
        }
    }
}

/// The least outcome that meets all demands on one packet, as [`join`](strata_wire::join) computes
/// it, and who demanded it: of those who ask for the same, the first.
pub(crate) fn join_decided(
    demands: &[(Granularity, DeciderId)],
    packet_number: u64,
    flow_hash: u64,
) -> (Outcome, DeciderId) {
    let (mut keep, mut decider) = (Keep::Nothing, BY_CLASS);
    let mut sampled_out = false;
    for (demand, by) in demands {
        match demand.resolve(packet_number, flow_hash) {
            Some(wanted) if wanted > keep => (keep, decider) = (wanted, *by),
            Some(_) => {}
            None => sampled_out = true,
        }
    }
    let outcome = match (keep, sampled_out) {
        (Keep::Nothing, true) => Outcome::SampledOut,
        (Keep::Nothing, false) => Outcome::Discard,
        (keep, _) => Outcome::Log(keep),
    };
    (outcome, decider)
}

/// Class and level of a verdict.
pub(crate) fn class_and_level(verdict: &Verdict) -> (u8, Option<Level>) {
    (verdict.class, verdict.level)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strata_wire::join;

    const CLASS: fn(VerdictId) -> (u8, Option<Level>) = |id| ((id % 5) as u8, Some(Level::Flow));

    #[test]
    fn each_combination_has_a_number_of_its_own_and_says_what_it_stands_for() {
        let mut reasons = Reasons::new();
        let policy = reasons.decider(Decider::policy(7, "tcp"));
        let alert = reasons.decider(Decider::alert(1, "x"));
        let first = reasons.number(3, policy, CLASS);
        let second = reasons.number(3, alert, CLASS);
        let third = reasons.number(4, policy, CLASS);
        assert_eq!([first, second, third], [FIRST, FIRST + 1, FIRST + 2]);
        assert_eq!(reasons.number(3, policy, CLASS), first);
        let (verdict, bytes, has_leaves) = reasons.resolve(second);
        assert_eq!((verdict, has_leaves), (3, true));
        assert_eq!(Decider::parse(bytes), Ok(Decider::alert(1, "x")));
        assert_eq!(reasons.resolve(3), (3, &[][..], true));
    }

    #[test]
    fn numbers_never_run_out_and_what_is_shared_keeps_class_and_kind() {
        let mut reasons = Reasons::new();
        for number in 0..30_000_u32 {
            let decider = reasons.decider(Decider::policy(number, "tcp"));
            let verdict = (number % 251) as VerdictId;
            for class in [0, 1] {
                let of = move |_| (class, Some(Level::Flow));
                let id = reasons.number(verdict, decider, of);
                let (_, bytes, _) = reasons.resolve(id);
                let decider = Decider::parse(bytes).unwrap();
                assert!(
                    matches!(decider, Decider::Policy { .. }),
                    "{number}: {decider}"
                );
            }
        }
        for kind in [Decider::alert(9, "late"), Decider::mode("late")] {
            let decider = reasons.decider(kind.clone());
            let looked = reasons.look_back(decider, 3, &Decider::Class);
            for (decider, expected) in [
                (decider, kind.general()),
                (looked, Decider::look_back(kind.general())),
            ] {
                let id = reasons.number(9, decider, CLASS);
                let (_, bytes, has_leaves) = reasons.resolve(id);
                assert_eq!((Decider::parse(bytes), has_leaves), (Ok(expected), false));
            }
        }
    }

    proptest! {
        #[test]
        fn joining_is_what_wire_joins_and_the_first_of_equals_decided(
            demands in prop::collection::vec(
                prop::sample::select(vec!["full", "header", "drop", "partial 9", "full 1/3", "header 1/2 flows"]),
                1..5,
            ),
            number in any::<u64>(), flow in any::<u64>(),
        ) {
            let demands: Vec<Granularity> = demands.iter().map(|text| text.parse().unwrap()).collect();
            let decided: Vec<_> = demands.iter().copied().zip(1..).collect();
            let (outcome, by) = join_decided(&decided, number, flow);
            prop_assert_eq!(outcome, join(&demands, number, flow));
            if let Outcome::Log(keep) = outcome {
                let first = demands.iter().position(|d| d.resolve(number, flow) == Some(keep));
                prop_assert_eq!(usize::from(by), first.unwrap() + 1);
            }
        }
    }
}
