//! Policies added and removed one at a time, while packets are searched by the previous ones.
//!
//! Preparing ten thousand policies takes tens of milliseconds; preparing one takes microseconds. So
//! a set keeps the last complete preparation ([`Base`]), and the changes since: a second, small
//! layer of rules, and numbers that no longer count. Once there are many changes, everything is
//! prepared anew ([`Merge`]), by the owner of the set in the background.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;

use crate::classifier::{Layer, RuleSet};
use crate::policies::{Known, Policies};
use crate::policy::{
    Action, INTERFACES_MAX, POLICIES_MAX, PROTECTED_BYTES_MAX, Policy, PolicyError, SET_RULES_MAX,
};
use crate::region::Region;
use crate::rule::Rule;
use crate::translate::regions;
use crate::tss::Numbers;

/// How many changes there may be before everything is prepared anew.
const ADDED_MAX: usize = 64;
const REMOVED_MAX: usize = 1024;

/// A number below [`POLICIES_MAX`] or slightly above.
fn number(place: usize) -> u32 {
    u32::try_from(place).expect("policies of a set are bounded")
}

/// Policies that were prepared together.
#[derive(Debug)]
pub struct Base {
    of: Moment,
    layer: Arc<Layer>,
    entries: Arc<[Arc<Known>]>,
    /// The indices of policies by their identifiers.
    places: HashMap<u32, u32, FixedState>,
    interfaces: Arc<Vec<String>>,
}

/// A point in a set's history: which set, and after how many changes, of these removals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    set: u64,
    changes: u64,
    removals: u64,
}

impl Base {
    fn new(of: Moment, entries: Arc<[Arc<Known>]>) -> Self {
        let mut interfaces = Vec::new();
        for known in &*entries {
            name_interface(&mut interfaces, known.policy.interface.as_ref());
        }
        let mut rules = Vec::new();
        let mut places = HashMap::default();
        for (place, known) in entries.iter().enumerate() {
            rules.extend(known.rules(number(place), &interfaces));
            places.insert(known.id, number(place));
        }
        Self {
            of,
            layer: Arc::new(Layer::new(&rules, 0)),
            entries,
            places,
            interfaces: Arc::new(interfaces),
        }
    }
}

fn name_interface(interfaces: &mut Vec<String>, name: Option<&String>) {
    if let Some(name) = name
        && !interfaces.contains(name)
    {
        interfaces.push(name.clone());
    }
}

/// A complete set, to be prepared while the set keeps changing.
#[derive(Debug)]
pub struct Merge(Moment, Arc<[Arc<Known>]>);

impl Merge {
    /// Prepares it. Takes time proportional to the number of all rules.
    #[must_use]
    pub fn run(self) -> Base {
        Base::new(self.0, self.1)
    }
}

/// Policies by identifiers, which they keep.
#[derive(Debug)]
pub struct PolicySet {
    known: BTreeMap<u32, Arc<Known>>,
    base: Base,
    /// Numbers of the policies removed from `base`.
    removed: Numbers,
    /// Policies not in `base`, oldest first.
    added: Vec<Arc<Known>>,
    /// The names of interfaces in `base`, then those in `added`, also of policies removed since.
    interfaces: Vec<String>,
    /// Removals since the preparation of `base` started, and how many there were before.
    removals: VecDeque<u32>,
    removals_before: u64,
    changes: u64,
    prefix_rules: usize,
    protecting: usize,
    protected_bytes: usize,
}

/// Numbers the sets, to tell them apart.
static SETS: AtomicU64 = AtomicU64::new(0);

impl Default for PolicySet {
    fn default() -> Self {
        let first = Moment {
            set: SETS.fetch_add(1, Ordering::Relaxed),
            changes: 0,
            removals: 0,
        };
        Self {
            known: BTreeMap::new(),
            base: Base::new(first, Arc::new([])),
            removals: VecDeque::new(),
            removals_before: 0,
            changes: 0,
            protecting: 0,
            removed: Numbers::default(),
            added: Vec::new(),
            interfaces: Vec::new(),
            prefix_rules: 0,
            protected_bytes: 0,
        }
    }
}

impl PolicySet {
    /// Adds a policy; `text` is its expression as displayed. [`PolicySet::wants_merge`] says
    /// whether too much has been added since everything was prepared.
    ///
    /// # Errors
    ///
    /// If it is invalid, or one too many: then nothing changes.
    ///
    /// # Panics
    ///
    /// If there is a policy with this identifier.
    pub fn add(&mut self, id: u32, policy: Policy, text: String) -> Result<(), PolicyError> {
        assert!(!self.known.contains_key(&id), "identifiers are used once");
        if self.known.len() >= POLICIES_MAX {
            return Err(PolicyError::TooMany);
        }
        let regions = regions(&policy.filter)?;
        let prefix_rules: usize = regions.iter().map(Region::prefix_rules).sum();
        let all_rules = self.prefix_rules.saturating_add(prefix_rules);
        if all_rules > SET_RULES_MAX {
            return Err(PolicyError::TooManyRules);
        }
        let protected_bytes = if policy.protect { text.len() } else { 0 };
        let all_protected_bytes = self.protected_bytes.saturating_add(protected_bytes);
        if all_protected_bytes > PROTECTED_BYTES_MAX {
            return Err(PolicyError::TooMuchProtected);
        }
        let name = policy.interface.as_ref();
        if !self.has_number_for(name) {
            // Perhaps most of them belong to removed policies.
            self.install(self.merge().run());
            if !self.has_number_for(name) {
                return Err(PolicyError::Interfaces);
            }
        }
        name_interface(&mut self.interfaces, name);
        let known = Arc::new(Known {
            id,
            policy,
            text,
            regions,
            prefix_rules,
        });
        self.prefix_rules = all_rules;
        self.changes = self.changes.wrapping_add(1);
        self.protecting = self.protecting.saturating_add(known.policy.protect.into());
        self.protected_bytes = all_protected_bytes;
        self.added.push(Arc::clone(&known));
        self.known.insert(id, known);
        Ok(())
    }

    /// Removes a policy; returns its expression, if it existed.
    pub fn remove(&mut self, id: u32) -> Option<String> {
        let known = self.known.remove(&id)?;
        match self.base.places.get(&id) {
            Some(&place) => self.removed.insert(place),
            None => self.added.retain(|added| added.id != id),
        }
        // What it added when it was added.
        self.prefix_rules = self.prefix_rules.saturating_sub(known.prefix_rules);
        if known.policy.protect {
            self.protecting = self.protecting.saturating_sub(1);
            self.protected_bytes = self.protected_bytes.saturating_sub(known.text.len());
        }
        self.removals.push_back(id);
        self.changes = self.changes.wrapping_add(1);
        Some(known.text.clone())
    }

    /// The policies with their identifiers and texts, by identifier.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Policy, &str)> {
        self.known
            .iter()
            .map(|(&id, known)| (id, &known.policy, known.text.as_str()))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Whether enough has changed that everything should be prepared anew.
    #[must_use]
    pub fn wants_merge(&self) -> bool {
        self.added.len() > ADDED_MAX || self.removed.len() > REMOVED_MAX
    }

    /// What is to be prepared anew.
    #[must_use]
    pub fn merge(&self) -> Merge {
        let now = Moment {
            changes: self.changes,
            removals: self
                .removals_before
                .wrapping_add(self.removals.len() as u64),
            ..self.base.of
        };
        Merge(now, self.known.values().cloned().collect())
    }

    /// Continues from a complete preparation, with the changes made meanwhile. Takes time
    /// proportional to those. A preparation of another set, or one older than the current base, is
    /// ignored.
    ///
    /// Returns what is no longer needed. Freeing it takes a while and happens where the last owner
    /// drops it, which should not be a packet thread.
    pub fn install(&mut self, base: Base) -> Base {
        let (one, other) = (base.of, self.base.of);
        if one.set != other.set || one.changes < other.changes {
            return base;
        }
        while self.removals_before < base.of.removals && self.removals.pop_front().is_some() {
            self.removals_before = self.removals_before.wrapping_add(1);
        }
        self.removed = Numbers::default();
        for id in &self.removals {
            if let Some(&place) = base.places.get(id) {
                self.removed.insert(place);
            }
        }
        self.added
            .retain(|known| !base.places.contains_key(&known.id));
        self.interfaces = base.interfaces.to_vec();
        for known in &self.added {
            name_interface(&mut self.interfaces, known.policy.interface.as_ref());
        }
        std::mem::replace(&mut self.base, base)
    }

    /// Whether rules can number an interface: it has a number, needs none, or there is one left.
    fn has_number_for(&self, name: Option<&String>) -> bool {
        name.is_none_or(|name| self.interfaces.contains(name))
            || self.interfaces.len() < INTERFACES_MAX
    }

    /// The set as it is now, prepared for searching. Takes time proportional to what was added
    /// since everything was prepared; `default` is for packets that none matches.
    #[must_use]
    pub fn ready(&self, default: Action) -> Policies {
        let first = self.base.entries.len();
        let interfaces = Arc::new(self.interfaces.clone());
        let added = self.added.iter().enumerate();
        let rules: Vec<Rule> = added
            .flat_map(|(place, known)| {
                known.rules(number(first.saturating_add(place)), &interfaces)
            })
            .collect();
        let count = number(first.saturating_add(self.added.len()));
        let rules = RuleSet::changed(
            Arc::clone(&self.base.layer),
            self.removed.clone(),
            number(first),
            &rules,
            count,
        );
        let base = Arc::clone(&self.base.entries);
        Policies::of(
            Arc::new(rules),
            base,
            self.added.clone(),
            (self.len(), self.protecting),
            default,
            interfaces,
        )
    }
}

impl Policies {
    /// Prepares policies, with identifiers from 1 on; `default` is for packets that none matches.
    ///
    /// # Errors
    ///
    /// [`PolicyError`], with the index of the policy at fault.
    pub fn new(policies: &[Policy], default: Action) -> Result<Self, (usize, PolicyError)> {
        let mut set = PolicySet::default();
        for (place, policy) in policies.iter().enumerate() {
            let id = u32::try_from(place.saturating_add(1));
            let id = id.map_err(|_| (place, PolicyError::TooMany))?;
            let text = policy.filter.to_string();
            set.add(id, policy.clone(), text)
                .map_err(|error| (place, error))?;
        }
        set.install(set.merge().run());
        Ok(set.ready(default))
    }
}
