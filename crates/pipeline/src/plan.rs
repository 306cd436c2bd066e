//! What is done with packets, and how it changes while they come.
//!
//! A [`Plan`] holds the modes and the policies of a moment, worked out for a model. It
//! never changes; another is published in its place, and each worker goes on with that from
//! its next batch. So no packet is treated by half of a change, and none waits for one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strata_capture::live::Waker;
use strata_classify::Model;
use strata_rules::{Action, Policies, Policy};
use strata_store::{Context, Decider};
use strata_wire::Granularity;

use crate::mode::{Mode, ModeError};

/// Bytes that the words for policies take at most: each block of a log has them.
const POLICIES_BYTES_MAX: usize = 4 << 10;

/// Modes and policies at work.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of each class, and last of what is not dissected, the demands of all modes.
    pub(crate) demands: Vec<ModeDemands>,
    pub(crate) context_json: Vec<u8>,
    /// `None` if they would change nothing.
    pub(crate) policies: Option<Arc<Policies>>,
    classes: Vec<String>,
    mode_name: String,
}

/// What the modes demand of a class, and for whom.
pub(crate) type ModeDemands = Vec<(Granularity, Decider)>;

/// Who decides where a mode demands this of one class, and `all` of all.
fn decider_of(mode: &Mode, demand: Granularity, all: &[Granularity]) -> Decider {
    if let Some(sampling) = demand.sampling {
        Decider::Sampling(sampling)
    } else if all.iter().all(|other| *other == demand) {
        Decider::mode(&mode.name)
    } else {
        Decider::Forest(String::new())
    }
}

/// Who demands most of a class; of those who demand the same, the first.
fn most(demands: &ModeDemands) -> &Decider {
    let mut most = &demands[0];
    for demand in demands {
        if demand.0.keep > most.0.keep {
            most = demand;
        }
    }
    &most.1
}

/// Names of modes that are active together.
fn joined(modes: &[Mode]) -> String {
    let names: Vec<&str> = modes.iter().map(|mode| mode.name.as_str()).collect();
    names.join("+")
}

impl Plan {
    /// The plan of some modes, each a demand on every packet.
    ///
    /// # Errors
    ///
    /// If a mode names a class that the model does not have.
    pub fn new(model: &Model, modes: &[Mode]) -> Result<Self, ModeError> {
        let per_mode: Result<Vec<_>, _> =
            modes.iter().map(|mode| mode.granularities(model)).collect();
        let per_mode = per_mode?;
        let of_class = |class: usize| -> ModeDemands {
            let of_mode = |(mode, all): (&Mode, &Vec<Granularity>)| {
                (all[class], decider_of(mode, all[class], all))
            };
            modes.iter().zip(&per_mode).map(of_mode).collect()
        };
        let demands: Vec<ModeDemands> = (0..=model.classes.len()).map(of_class).collect();
        let text = |list: &ModeDemands| {
            let texts: Vec<String> = list.iter().map(|(demand, _)| demand.to_string()).collect();
            texts.join(" + ")
        };
        let context = Context {
            mode: joined(modes),
            model: model.name.clone(),
            classes: model.class_names(),
            granularities: demands.iter().map(text).collect(),
            deciders: demands.iter().map(decided).collect(),
            ..Context::default()
        };
        Ok(Self {
            demands,
            context_json: to_json(&context),
            policies: None,
            classes: context.classes,
            mode_name: context.mode,
        })
    }

    /// This plan with policies.
    #[must_use]
    pub fn with_policies(mut self, policies: Arc<Policies>) -> Self {
        if !policies.do_nothing() {
            let mut context: Context =
                serde_json::from_slice(&self.context_json).unwrap_or_default();
            context.policies = describe_all(&policies);
            context.protected = policies.protected().map(str::to_owned).collect();
            self.context_json = to_json(&context);
            self.policies = Some(policies);
        }
        self
    }

    /// Who decides on packets of each class, where only modes do.
    pub(crate) fn deciders(&self) -> Vec<Decider> {
        let of_class = |(class, list): (usize, &ModeDemands)| match list.first() {
            None => Decider::Class,
            Some(_) => match most(list) {
                Decider::Forest(_) => {
                    let name = self.classes.get(class);
                    Decider::forest(name.map_or("unclassified", String::as_str))
                }
                other => other.clone(),
            },
        };
        self.demands.iter().enumerate().map(of_class).collect()
    }

    /// The names of its modes, joined by `+`.
    #[must_use]
    pub fn mode_name(&self) -> &str {
        &self.mode_name
    }
}

fn to_json(context: &Context) -> Vec<u8> {
    serde_json::to_vec(context).unwrap_or_default()
}

/// The policies in words, as far as each block of a log has room for them.
fn describe_all(policies: &Policies) -> Vec<String> {
    let (mut described, mut bytes) = (Vec::new(), 0);
    for (id, policy, text) in policies.all() {
        let one = describe(id, policy, text);
        bytes += one.len();
        if bytes > POLICIES_BYTES_MAX {
            break;
        }
        described.push(one);
    }
    let more = policies.len() - described.len();
    if more > 0 {
        described.push(format!("and {more} more"));
    }
    described.push(format!("default: {}", policies.default_action()));
    described
}

fn describe(id: u32, policy: &Policy, text: &str) -> String {
    let interface = policy.interface.as_ref();
    let interface = interface.map_or(String::new(), |name| format!(" on {name}"));
    let protect = if policy.protect { ", protected" } else { "" };
    format!(
        "{id}, priority {}{interface}: {text}: {}{protect}",
        policy.priority, policy.action
    )
}

/// Who decides on packets of a class, as the context says it.
fn decided(demands: &ModeDemands) -> String {
    let decider = demands.first().map_or(&Decider::Class, |_| most(demands));
    decider.to_string()
}

/// The demands on a packet with these policies, by place, where the modes demand `modes`. Where
/// both sample, they sample independently, by what the policy draws. First the policies, in
/// their order, then the modes: of those that demand the same, the first has decided.
pub(crate) fn demands(
    policies: &Policies,
    applied: &[u32],
    modes: &ModeDemands,
) -> Vec<(Granularity, Decider)> {
    let mut named: Vec<_> = applied
        .iter()
        .map(|&place| (policies.named(place), policies.action(place)))
        .collect();
    named.sort_by_key(|((id, _), _)| *id);
    let mut actions: Vec<(Action, Decider)> = named
        .into_iter()
        .map(|((id, text), action)| (action, Decider::policy(id, text)))
        .collect();
    if actions.iter().all(|(action, _)| *action == Action::Mirror) {
        let action = match policies.default_action() {
            Action::Mirror => Action::CLASSIFY,
            other => other,
        };
        actions.push((action, Decider::PolicyDefault));
    }
    let mut demands = Vec::new();
    for (action, decider) in &actions {
        match action {
            Action::Keep(granularity) => demands.push((*granularity, decider.clone())),
            Action::Classify(Some(sampling)) => demands.extend(modes.iter().map(|(demand, _)| {
                let mut both = *sampling;
                let others = demand.sampling.map_or(1, |sampling| sampling.one_in);
                both.one_in = both.one_in.saturating_mul(others);
                let demand = Granularity {
                    sampling: Some(both),
                    ..*demand
                };
                (demand, decider.clone())
            })),
            Action::Classify(None) | Action::Mirror => {}
        }
    }
    if actions
        .iter()
        .any(|(action, _)| *action == Action::CLASSIFY)
    {
        demands.extend(modes.iter().cloned());
    }
    demands
}

/// Where plans are published: any thread publishes, workers follow.
#[derive(Debug)]
pub struct Steering {
    /// Counts publications.
    number: AtomicU64,
    published: Mutex<Published>,
    delays: Mutex<Delays>,
    /// Wake workers that wait for packets.
    wakers: Mutex<Vec<Waker>>,
}

#[derive(Debug)]
struct Published {
    plan: Arc<Plan>,
    /// `None` for a plan that asks for nothing new.
    requested: Option<Instant>,
}

/// How long changes took: from the request, or the reading that led to it, to the switch of a
/// worker, which treats the next packet by it.
#[derive(Clone, Debug, Default)]
pub struct Delays {
    /// The latest, at most [`Delays::KEPT`].
    latest: Vec<Duration>,
    count: u64,
    sum: Duration,
}

impl Delays {
    /// How many delays are kept for quantiles.
    pub const KEPT: usize = 1024;

    fn add(&mut self, delay: Duration) {
        if self.latest.len() < Self::KEPT {
            self.latest.push(delay);
        } else {
            self.latest[usize::try_from(self.count).unwrap_or(0) % Self::KEPT] = delay;
        }
        self.count += 1;
        self.sum += delay;
    }

    /// How many changes were picked up, by all workers.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of all.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The quantile `share`, from 0 to 1, of those kept; `None` without any.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let mut sorted = self.latest.clone();
        sorted.sort_unstable();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let place = (share * sorted.len() as f64) as usize;
        sorted
            .get(place.min(sorted.len().saturating_sub(1)))
            .copied()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Steering {
    /// Steering that begins with a plan.
    #[must_use]
    pub fn new(plan: Plan) -> Arc<Self> {
        Arc::new(Self {
            number: AtomicU64::new(1),
            published: Mutex::new(Published {
                plan: Arc::new(plan),
                requested: None,
            }),
            delays: Mutex::default(),
            wakers: Mutex::default(),
        })
    }

    /// Wakes this worker's input with each plan, so that a worker without packets switches too.
    pub fn wakes(&self, waker: Waker) {
        lock(&self.wakers).push(waker);
    }

    /// Publishes a plan that was asked for at `requested`. Workers that have not yet picked up
    /// the one before never will.
    pub fn publish(&self, plan: Plan, requested: Instant) {
        self.put(plan, Some(requested));
    }

    /// Publishes a plan that says the same as the one before, in another form.
    pub fn publish_same(&self, plan: Plan) {
        self.put(plan, None);
    }

    fn put(&self, plan: Plan, requested: Option<Instant>) {
        let mut published = lock(&self.published);
        *published = Published {
            plan: Arc::new(plan),
            requested,
        };
        // Within the lock, so that who sees the number finds its plan.
        self.number.fetch_add(1, Ordering::Release);
        drop(published);
        for waker in lock(&self.wakers).iter() {
            waker.wake();
        }
    }

    /// The plan that was published last.
    #[must_use]
    pub fn plan(&self) -> Arc<Plan> {
        Arc::clone(&lock(&self.published).plan)
    }

    /// How long changes took.
    #[must_use]
    pub fn delays(&self) -> Delays {
        lock(&self.delays).clone()
    }
}

/// A worker's view of [`Steering`].
#[derive(Debug)]
pub(crate) struct Follower {
    steering: Arc<Steering>,
    number: u64,
    /// When the plan at hand was asked for, until the worker has switched to it.
    requested: Option<Instant>,
}

impl Follower {
    pub(crate) fn new(steering: Arc<Steering>) -> Self {
        Self {
            steering,
            number: 0,
            requested: None,
        }
    }

    /// The plan, if it is not the one at hand. A relaxed load where it is.
    #[inline]
    pub(crate) fn news(&mut self) -> Option<Arc<Plan>> {
        if self.steering.number.load(Ordering::Acquire) == self.number {
            return None;
        }
        let published = lock(&self.steering.published);
        let first = self.number == 0;
        self.number = self.steering.number.load(Ordering::Acquire);
        // What was there from the start is no change.
        self.requested = published.requested.filter(|_| !first);
        Some(Arc::clone(&published.plan))
    }

    /// Notes that the worker has switched to the plan at hand.
    pub(crate) fn switched(&mut self) {
        if let Some(requested) = self.requested.take() {
            lock(&self.steering.delays).add(requested.elapsed());
        }
    }
}
