//! What is done with packets: the modes and the policies of a moment, worked out for a model.

use std::sync::Arc;

use strata_classify::Model;
use strata_rules::{Action, Policies, Policy};
use strata_wire::{Context, Decider, Granularity, Keep};

use crate::detail::DetailBudget;
use crate::mode::{Mode, ModeError};

/// Maximum bytes that the description of policies may take: each block of a log has it.
const POLICIES_BYTES_MAX: usize = 4 << 10;

/// Modes and policies at work.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For each class, and last for what is not dissected, the demands of all modes.
    demands: Vec<ModeDemands>,
    /// What the log says about the packets kept by this plan.
    context: Context,
    /// `None` if they would change nothing.
    policies: Option<Arc<Policies>>,
    /// `None` if there is no budget, or the modes keep the same of every class.
    detail: Option<DetailPlan>,
}

/// What a budget of detail makes of the modes' demands.
#[derive(Clone, Debug)]
pub struct DetailPlan {
    /// The budget.
    pub budget: DetailBudget,
    /// By class as [`Plan::demands`], for packets that get detail: the most that any class gets.
    pub given: Vec<ModeDemands>,
    /// For those that do not: headers at most, or what a mode keeps of every class.
    pub denied: Vec<ModeDemands>,
}

impl DetailPlan {
    /// `None` if the budget would change nothing: what every class gets is no matter of scores.
    fn new(budget: DetailBudget, demands: &[ModeDemands]) -> Option<Self> {
        let all = demands.iter().flatten();
        let top = all.clone().map(|(demand, _)| demand.keep).max()?;
        let first = demands.first()?;
        let alike = |other: &ModeDemands| {
            let granularities = |list: &ModeDemands| -> Vec<Granularity> {
                list.iter().map(|(demand, _)| *demand).collect()
            };
            granularities(other) == granularities(first)
        };
        if top <= Keep::Header || demands.iter().all(alike) {
            return None;
        }
        let is_dropped =
            |list: &ModeDemands| list.iter().all(|(demand, _)| demand.keep == Keep::Nothing);
        let given = |list: &ModeDemands| -> ModeDemands {
            let has_it = |(demand, _): &(Granularity, Decider)| {
                demand.keep == top && demand.sampling.is_none()
            };
            if is_dropped(list) || list.iter().any(has_it) {
                return list.clone();
            }
            let all = Granularity {
                keep: top,
                sampling: None,
            };
            vec![(all, Decider::Detail)]
        };
        let denied = |list: &ModeDemands| -> ModeDemands {
            let cut = |(demand, decider): &(Granularity, Decider)| match (demand.keep, decider) {
                // What a mode keeps of every class is no matter of scores, whatever another one keeps.
                (Keep::Nothing | Keep::Header, _) | (_, Decider::Mode(_)) => {
                    (*demand, decider.clone())
                }
                _ => {
                    let keep = Keep::Header;
                    (Granularity { keep, ..*demand }, Decider::OverBudget)
                }
            };
            list.iter().map(cut).collect()
        };
        let given: Vec<ModeDemands> = demands.iter().map(given).collect();
        let denied: Vec<ModeDemands> = demands.iter().map(denied).collect();
        let keep = |list: &ModeDemands| list.iter().map(|(demand, _)| demand.keep).max();
        let mut classes = given.iter().zip(&denied);
        let decides = classes.any(|(given, denied)| keep(given) > keep(denied));
        decides.then_some(Self {
            budget,
            given,
            denied,
        })
    }
}

/// What the modes demand of a class, and for whom.
pub type ModeDemands = Vec<(Granularity, Decider)>;

/// Who decides where a mode demands this of one class, and `all` of all classes.
fn decider_of(mode: &Mode, demand: Granularity, all: &[Granularity]) -> Decider {
    if let Some(sampling) = demand.sampling {
        Decider::Sampling(sampling)
    } else if all.iter().all(|other| *other == demand) {
        Decider::mode(&mode.name)
    } else {
        Decider::Forest(String::new())
    }
}

/// Who demands the most of a class; of those with the same demand, the first.
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
            context,
            policies: None,
            detail: None,
        })
    }

    /// This plan with a budget of detail.
    #[must_use]
    pub fn with_detail(mut self, budget: Option<DetailBudget>) -> Self {
        self.detail = budget.and_then(|budget| DetailPlan::new(budget, &self.demands));
        self
    }

    /// What a budget of detail makes of the demands; `None` without a budget or anything to decide.
    #[must_use]
    pub fn detail(&self) -> Option<&DetailPlan> {
        self.detail.as_ref()
    }

    /// This plan, for the shadow model of this name, which was promoted.
    #[must_use]
    pub fn of_shadow(mut self, model: &str) -> Self {
        self.context.of_shadow = true;
        model.clone_into(&mut self.context.model);
        self
    }

    /// Whether the shadow model decides.
    #[must_use]
    pub fn is_of_shadow(&self) -> bool {
        self.context.of_shadow
    }

    /// This plan with policies.
    #[must_use]
    pub fn with_policies(mut self, policies: Arc<Policies>) -> Self {
        if !policies.do_nothing() {
            self.context.policies = describe_all(&policies);
            self.context.protected = policies.protected().map(str::to_owned).collect();
            self.policies = Some(policies);
        }
        self
    }

    /// For each class, and last for what is not dissected, the demands of all modes.
    #[must_use]
    pub fn demands(&self) -> &[ModeDemands] {
        &self.demands
    }

    /// The policies; `None` if they would change nothing.
    #[must_use]
    pub fn policies(&self) -> Option<&Arc<Policies>> {
        self.policies.as_ref()
    }

    /// What the log says about the packets kept by this plan, as a context record holds it.
    ///
    /// # Panics
    ///
    /// Never: texts and lists of texts can always be written.
    #[must_use]
    pub fn context_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.context).expect("texts are JSON")
    }

    /// Who decides on packets of each class, where only modes do.
    #[must_use]
    pub fn deciders(&self) -> Vec<Decider> {
        let of_class = |(class, list): (usize, &ModeDemands)| match list.first() {
            None => Decider::Class,
            Some(_) => match most(list) {
                Decider::Forest(_) => {
                    let name = self.context.classes.get(class);
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
        &self.context.mode
    }
}

/// The policies in plain English, as far as each block of a log has space for them.
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

/// Who decides on packets of a class, as the context names them.
fn decided(demands: &ModeDemands) -> String {
    let decider = demands.first().map_or(&Decider::Class, |_| most(demands));
    decider.to_string()
}

/// The actions on a packet with these policies, by place, and who asks for them: those of the
/// policies in their order, then that of the default if they leave open what is kept.
fn actions(policies: &Policies, applied: &[u32]) -> Vec<(Action, Decider)> {
    let mut named: Vec<_> = applied
        .iter()
        .map(|&place| (policies.named(place), policies.action(place)))
        .collect();
    named.sort_by_key(|((id, _), _)| *id);
    let mut actions: Vec<(Action, Decider)> = named
        .into_iter()
        .map(|((id, text), action)| (action, Decider::policy(id, text)))
        .collect();
    if actions.iter().all(|(action, _)| action.leaves_open()) {
        let action = match policies.default_action() {
            open if open.leaves_open() => Action::CLASSIFY,
            other => other,
        };
        actions.push((action, Decider::PolicyDefault));
    }
    actions
}

/// Whether a packet with these policies, by place, is to be classified: a policy or the default
/// leaves it to the modes, even if these keep the same of every class.
#[must_use]
pub fn is_left_to_class(policies: &Policies, applied: &[u32]) -> bool {
    let actions = actions(policies, applied);
    let mut actions = actions.iter().map(|(action, _)| action);
    actions.any(|action| matches!(action, Action::Classify(_)))
}

/// The demands on a packet with these policies, by place, where the modes demand `modes`. Where
/// both sample, they do so independently, in the policy's unit. First the policies, in their order,
/// then the modes: of those with the same demand, the first has decided.
#[must_use]
pub fn demands(
    policies: &Policies,
    applied: &[u32],
    modes: &ModeDemands,
) -> Vec<(Granularity, Decider)> {
    let actions = actions(policies, applied);
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
            Action::Classify(None) | Action::Mirror | Action::Export(_) => {}
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
