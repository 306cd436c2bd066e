//! Policies of a running recording: they come and go, and those added at run time stay when the
//! configuration is reloaded.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use strata_rules::{Policy, PolicyError, PolicySet};
use strata_wire::Counters;

use super::inner::{Inner, Registry, Ways};
use super::{ControlError, Controller, Settings, bounded};
use crate::config::PolicyConfig;
use crate::elastic::ElasticState;
use crate::saved::{Saved, SavedPolicy};
use crate::status::{PolicyOrigin, PolicyStatus};

/// Maximum bytes of a policy's expression in a request.
pub const MATCH_BYTES_MAX: usize = 4 << 10;
/// Maximum bytes of an interface's name: Linux allows 15, captures from elsewhere have longer ones.
const INTERFACE_BYTES_MAX: usize = 255;

/// How long to wait before saving is tried again.
const SAVE_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Whether two policies are equivalent.
fn same(one: &Policy, other: &Policy) -> bool {
    one.filter == other.filter
        && one.action == other.action
        && one.priority == other.priority
        && one.interface == other.interface
        && one.protect == other.protect
}

/// The initial policies of a recording.
pub(super) struct First {
    pub(super) policies: Registry,
    /// Numbers of saved ones that are now in the configuration.
    pub(super) configured: Vec<u32>,
    /// Events to report about saved ones.
    pub(super) events: Vec<String>,
}

/// The policies of a configuration, and the saved ones: these keep their numbers, and errors in
/// them end no recording.
pub(super) fn first(
    configured: Vec<Policy>,
    saved: Option<&Saved>,
    ways: &Ways,
) -> Result<First, PolicyError> {
    let taken = saved.map_or(0..0, Saved::ids);
    let mut first = First {
        policies: Registry {
            next_id: taken.end.max(1),
            ..Registry::default()
        },
        configured: Vec::new(),
        events: Vec::new(),
    };
    let asked = configured.clone();
    let mut numbers = (1..=u32::MAX).filter(|id| !taken.contains(id));
    for policy in configured {
        let id = numbers.next().ok_or(PolicyError::TooMany)?;
        first.policies.next_id = first.policies.next_id.max(id.saturating_add(1));
        let text = policy.filter.to_string();
        first.policies.set.add(id, policy, text)?;
    }
    for SavedPolicy { id, policy, .. } in saved.into_iter().flat_map(Saved::policies) {
        let text = policy.matches.clone();
        let added = policy.policy().and_then(|policy| {
            if let Err(error) = ways.check(policy.action) {
                return Ok(Some(error.to_string()));
            }
            if asked.iter().any(|other| same(other, &policy)) {
                first.configured.push(*id);
                return Ok(None);
            }
            first.policies.set.add(*id, policy, text.clone())?;
            first.policies.at_run_time.insert(*id);
            Ok(None)
        });
        let problem = added.unwrap_or_else(|error| Some(error.to_string()));
        if let Some(problem) = problem {
            let what =
                format!("policy {id}, added at run time, is not in force: {text}: {problem}");
            first.events.push(what);
        }
    }
    if !first.policies.at_run_time.is_empty() {
        let count = first.policies.at_run_time.len();
        let what = format!("{count} policies that were added at run time are in force again");
        first.events.push(what);
    }
    let policies = &mut first.policies;
    policies.set.install(policies.set.merge().run());
    Ok(first)
}

impl Registry {
    /// The policies after a change of configuration, by difference, and a summary of the change.
    fn reconfigured(&self, configured: Vec<Policy>) -> Result<(Self, String), PolicyError> {
        let (mut stay, mut old): (Vec<_>, Vec<_>) = self
            .set
            .all()
            .partition(|(id, ..)| self.at_run_time.contains(id));
        let mut next = Self {
            set: PolicySet::default(),
            at_run_time: self.at_run_time.clone(),
            next_id: self.next_id,
        };
        let (mut kept, mut added) = (0, 0);
        for policy in configured {
            let is_same = |known: &(u32, &Policy, &str)| same(known.1, &policy);
            if let Some(place) = old.iter().position(is_same) {
                kept += 1;
                let (id, policy, text) = old.remove(place);
                next.set.add(id, policy.clone(), text.to_owned())?;
            } else if let Some(place) = stay.iter().position(is_same) {
                // Tried at run time, then configured: from now on it belongs to the file.
                kept += 1;
                let (id, policy, text) = stay.remove(place);
                next.at_run_time.remove(&id);
                next.set.add(id, policy.clone(), text.to_owned())?;
            } else {
                added += 1;
                let text = policy.filter.to_string();
                next.set.add(next.next_id, policy, text)?;
                let next_id = next.next_id.checked_add(1);
                next.next_id = next_id.ok_or(PolicyError::TooMany)?;
            }
        }
        for (id, policy, text) in &stay {
            next.set.add(*id, (*policy).clone(), (*text).to_owned())?;
        }
        next.set.install(next.set.merge().run());
        let what = format!(
            "configuration reloaded: {added} policies added, {kept} kept, {} removed; {} added at run \
             time remain",
            old.len(),
            stay.len()
        );
        Ok((next, what))
    }
}

impl Inner {
    /// Reports what was found in the saved policies, and continues to save there.
    pub(super) fn save_in(
        &mut self,
        saved: Option<Saved>,
        configured: Vec<u32>,
        events: Vec<String>,
    ) {
        for what in events {
            self.events.alert(what, "");
        }
        self.saved = saved;
        self.save(|saved| saved.remove(configured.into_iter()));
    }

    /// Saves what could not be saved before: a recording of files creates its log when packets
    /// arrive, and a full disk may have space again.
    pub(super) fn save_again(&mut self, now: Instant) {
        if self.save_at.is_some_and(|at| now >= at) {
            self.save_at = None;
            self.save(Saved::try_again);
        }
    }

    /// Changes what is saved; a failure is reported once, and has no other effect.
    fn save(&mut self, change: impl FnOnce(&mut Saved) -> io::Result<()>) {
        let Some(saved) = &mut self.saved else {
            return;
        };
        let Err(error) = change(saved) else {
            self.save_told = false;
            return;
        };
        self.save_at = Some(Instant::now() + SAVE_AGAIN_AFTER);
        // Without packets, a recording of files has no log yet.
        let is_early = error.kind() == io::ErrorKind::NotFound
            && self.observed.counts.ledger.seen.packets == 0;
        if !is_early && !std::mem::replace(&mut self.save_told, true) {
            let what = format!(
                "policies added at run time cannot be saved, and would end with the recording: \
                 {error}"
            );
            self.events.alert(what, "");
        }
    }
}

impl Controller {
    /// Adds a policy; returns its number.
    ///
    /// # Errors
    ///
    /// If it is unusable.
    pub fn add_policy(
        &self,
        config: &PolicyConfig,
        who: &str,
        why: &str,
    ) -> Result<u32, ControlError> {
        let requested = Instant::now();
        bounded("why", why, super::WHY_BYTES_MAX)?;
        bounded("match", &config.matches, MATCH_BYTES_MAX)?;
        let interface = config.interface.as_deref().unwrap_or("");
        bounded("interface", interface, INTERFACE_BYTES_MAX)?;
        let policy = config.policy()?;
        let action = policy.action;
        let mut inner = self.lock();
        inner.ways.check(action)?;
        let id = inner.policies.next_id;
        let next_id = id.checked_add(1).ok_or(PolicyError::TooMany)?;
        inner.policies.set.add(id, policy, config.matches.clone())?;
        match inner.plan(&self.model) {
            Ok(plan) => self.steering.publish(plan, requested),
            Err(error) => {
                inner.policies.set.remove(id);
                return Err(error.into());
            }
        }
        inner.policies.next_id = next_id;
        inner.policies.at_run_time.insert(id);
        let what = format!("policy {id} added: {}: {action}", config.matches);
        inner.events.note(who, what, why);
        inner.save(|saved| saved.add(id, config, who, why));
        self.merge_policies(&inner);
        Ok(id)
    }

    /// Removes a policy.
    ///
    /// # Errors
    ///
    /// If there is no policy with that number.
    pub fn remove_policy(&self, id: u32, who: &str, why: &str) -> Result<(), ControlError> {
        let requested = Instant::now();
        let mut inner = self.lock();
        let removed = inner.policies.set.remove(id);
        let text = removed.ok_or(ControlError::NoSuchPolicy(id))?;
        inner.policies.at_run_time.remove(&id);
        self.publish(&mut inner, requested);
        let what = format!("policy {id} removed: {text}");
        inner.events.note(who, what, why);
        inner.save(|saved| saved.remove([id].into_iter()));
        self.merge_policies(&inner);
        Ok(())
    }

    /// Compiles all policies anew, on a separate thread, if many came and went since the last time.
    /// One run at a time.
    fn merge_policies(&self, inner: &Inner) {
        if !inner.policies.set.wants_merge() || self.merging.swap(true, Ordering::AcqRel) {
            return;
        }
        let merge = inner.policies.set.merge();
        let (inner, merging) = (Arc::clone(&self.inner), Arc::clone(&self.merging));
        let (model, steering) = (Arc::clone(&self.model), Arc::clone(&self.steering));
        let work = move || {
            let base = merge.run();
            let mut inner = inner.lock().unwrap_or_else(PoisonError::into_inner);
            let before = inner.policies.set.install(base);
            // It means the same as the previous plan, so no request waits for it.
            if let Ok(plan) = inner.plan(&model) {
                steering.publish_same(plan);
            }
            // Workers may still search the previous structures, so they are kept until the next
            // time, then dropped here, where no worker waits.
            let retired = inner.retired.replace(before);
            drop(inner);
            drop(retired);
            merging.store(false, Ordering::Release);
        };
        let thread = thread::Builder::new()
            .name("strata-policies".into())
            .spawn(work);
        if thread.is_err() {
            // The current policies keep working, only slower; the next change tries again.
            self.merging.store(false, Ordering::Release);
        }
    }

    /// Adopts a configuration by difference: policies that stay keep their numbers and hits, and
    /// those added at run time stay. Modes are unchanged if a user requested them for a limited
    /// time.
    ///
    /// # Errors
    ///
    /// If it is unusable: then nothing changes.
    pub fn reload(&self, settings: Settings, who: &str) -> Result<(), ControlError> {
        let requested = Instant::now();
        let times = settings.export_times();
        let (mut next, configured) = settings.into_asked();
        let mut inner = self.lock();
        // Timed modes requested by a user continue, then give way to the configured ones.
        if inner.asked.timed.until().is_some() {
            let configured = std::mem::replace(&mut next.modes, inner.asked.modes.clone());
            next.timed = inner.asked.timed.clone().then(configured);
        }
        next.is_drifted = inner.asked.is_drifted;
        next.promoted.clone_from(&inner.asked.promoted);
        next.check(&self.model)?;
        next.settle(&self.model);
        let (policies, what) = inner.policies.reconfigured(configured)?;
        let mut all = policies.set.all();
        all.try_for_each(|(_, policy, _)| inner.ways.check(policy.action))?;
        drop(all);
        inner.ways.check(next.default)?;
        let state = match &next.elastic {
            Some(_) => inner.state.clone(),
            None => ElasticState::default(),
        };
        let plan = next.plan(&self.model, &policies.set, state.degradation())?;
        // Nothing can be refused from here on.
        self.export_times.set(&times);
        let replaced = std::mem::replace(&mut inner.policies, policies);
        (inner.asked, inner.state) = (next, state);
        if inner.asked.elastic.is_none() {
            inner.lowered.end(Instant::now());
        }
        self.steering.publish(plan, requested);
        inner.events.note(who, what, "");
        let now = &inner.policies.at_run_time;
        let configured: Vec<u32> = replaced.at_run_time.difference(now).copied().collect();
        inner.save(|saved| saved.remove(configured.into_iter()));
        drop(inner);
        // Its memory is freed where no worker waits for it.
        drop(replaced);
        Ok(())
    }

    /// The policies with their hits, highest priority first.
    #[must_use]
    pub fn policies(&self) -> Vec<PolicyStatus> {
        let inner = self.lock();
        let status = |(id, policy, text): (u32, &Policy, &str)| {
            let Counters { packets, bytes } = policy.hits.counters();
            PolicyStatus {
                id,
                matches: text.to_owned(),
                action: policy.action.to_string(),
                priority: policy.priority,
                interface: policy.interface.clone(),
                protect: policy.protect,
                origin: if inner.policies.at_run_time.contains(&id) {
                    PolicyOrigin::RunTime
                } else {
                    PolicyOrigin::Configuration
                },
                packets,
                bytes,
            }
        };
        let mut all: Vec<PolicyStatus> = inner.policies.set.all().map(status).collect();
        all.sort_by_key(|policy| std::cmp::Reverse(policy.priority));
        all
    }
}
