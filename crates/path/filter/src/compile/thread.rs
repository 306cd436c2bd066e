//! Jumps that can be decided when the program is made.
//!
//! `host` and `port` test the `EtherType` again and again. A single pass over the steps, in order,
//! computes for each step the facts established by the steps that lead to it; a jump to a test with
//! a known outcome skips it. A test is skipped only after the same load, which then did not fail,
//! so that no decision changes.

use strata_wire::exact;

use crate::ast::{Relation, Width};
use crate::compile::layers::FIRST_FREE;
use crate::program::{NO_REGISTER, Place, Step, decide};

/// More is forgotten, so that the time is linear in the size of the program.
const FACTS_MAX: usize = 16;
const OTHERS_MAX: usize = 8;
const HOPS_MAX: usize = 64;

type Key = (Place, Width, u32);

/// A fact about a masked load.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fact {
    key: Key,
    known: Known,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    Equal(u32),
    /// None of these.
    Others(Vec<u32>),
}

/// The jump targets of a step.
pub(crate) fn targets(step: &mut Step) -> impl Iterator<Item = &mut u32> {
    let (first, second) = match step {
        Step::Field { yes, no, .. }
        | Step::Networks { yes, no, .. }
        | Step::Compare { yes, no, .. }
        | Step::Chain { yes, no, .. } => (Some(yes), Some(no)),
        Step::Jump { to } => (Some(to), None),
        _ => (None, None),
    };
    first.into_iter().chain(second)
}

/// Shortens jumps, and drops unreachable steps. Returns where to start.
pub(crate) fn thread(steps: &mut Vec<Step>) -> u32 {
    let mut facts: Vec<Option<Vec<Fact>>> = vec![None; steps.len()];
    let start = follow(steps, 0, &[]);
    arrive(&mut facts, start, Vec::new());
    for index in 0..steps.len() {
        let Some(here) = facts[index].clone() else {
            continue;
        };
        let mut step = steps[index];
        match &mut step {
            Step::Field {
                place,
                width,
                relation,
                mask,
                value,
                yes,
                no,
            } => {
                let key = (*place, *width, *mask);
                for (outcome, target) in [(true, yes), (false, no)] {
                    let there = learn(&here, key, *relation, *value, outcome);
                    *target = follow(steps, *target, &there);
                    arrive(&mut facts, *target, there);
                }
            }
            Step::Jump { to: target } => {
                *target = follow(steps, *target, &here);
                arrive(&mut facts, *target, here);
            }
            Step::Networks { yes, no, .. }
            | Step::Compare { yes, no, .. }
            | Step::Chain { yes, no, .. } => {
                for target in [yes, no] {
                    *target = follow(steps, *target, &here);
                    arrive(&mut facts, *target, here.clone());
                }
            }
            // The others may write a register.
            _ => {
                let mut there = here;
                there.retain(|fact| {
                    let register = fact.key.0.register;
                    register == NO_REGISTER || register < FIRST_FREE
                });
                let next = exact::<u32>(index.saturating_add(1));
                arrive(&mut facts, next, there);
            }
        }
        steps[index] = step;
    }
    compact(steps, &facts, start)
}

fn at(steps: &[Step], target: u32) -> Option<&Step> {
    steps.get(usize::try_from(target).ok()?)
}

/// Where a jump really leads, given `facts`.
fn follow(steps: &[Step], mut target: u32, facts: &[Fact]) -> u32 {
    for _ in 0..HOPS_MAX {
        target = match at(steps, target) {
            Some(Step::Jump { to }) => *to,
            Some(Step::Field {
                place,
                width,
                relation,
                mask,
                value,
                yes,
                no,
            }) => match outcome(facts, (*place, *width, *mask), *relation, *value) {
                Some(true) => *yes,
                Some(false) => *no,
                None => break,
            },
            _ => break,
        };
    }
    target
}

fn outcome(facts: &[Fact], key: Key, relation: Relation, value: u32) -> Option<bool> {
    match &facts.iter().find(|fact| fact.key == key)?.known {
        Known::Equal(known) => Some(decide(relation, *known, value)),
        Known::Others(others) if others.contains(&value) => match relation {
            Relation::Equal => Some(false),
            Relation::NotEqual => Some(true),
            _ => None,
        },
        Known::Others(_) => None,
    }
}

fn learn(facts: &[Fact], key: Key, relation: Relation, value: u32, outcome: bool) -> Vec<Fact> {
    let mut facts = facts.to_vec();
    let equal = match relation {
        Relation::Equal => outcome,
        Relation::NotEqual => !outcome,
        _ => return facts,
    };
    let position = facts.iter().position(|fact| fact.key == key);
    match (position, equal) {
        (Some(position), true) => facts[position].known = Known::Equal(value),
        (Some(position), false) => {
            if let Known::Others(others) = &mut facts[position].known
                && others.len() < OTHERS_MAX
            {
                others.push(value);
            }
        }
        (None, _) => {
            if facts.len() >= FACTS_MAX {
                facts.remove(0);
            }
            let known = if equal {
                Known::Equal(value)
            } else {
                Known::Others(vec![value])
            };
            facts.push(Fact { key, known });
        }
    }
    facts
}

/// The facts at a step are those known on every path to it.
fn arrive(facts: &mut [Option<Vec<Fact>>], target: u32, new: Vec<Fact>) {
    let Some(there) = usize::try_from(target)
        .ok()
        .and_then(|index| facts.get_mut(index))
    else {
        return;
    };
    let Some(old) = there else {
        *there = Some(new);
        return;
    };
    old.retain_mut(|fact| {
        let Some(other) = new.iter().find(|other| other.key == fact.key) else {
            return false;
        };
        let both = match (&fact.known, &other.known) {
            (Known::Equal(one), Known::Equal(two)) => {
                return one == two;
            }
            (Known::Equal(value), Known::Others(others))
            | (Known::Others(others), Known::Equal(value)) => others
                .iter()
                .copied()
                .filter(|other| other != value)
                .collect::<Vec<_>>(),
            (Known::Others(one), Known::Others(two)) => one
                .iter()
                .copied()
                .filter(|value| two.contains(value))
                .collect(),
        };
        let keep = !both.is_empty();
        fact.known = Known::Others(both);
        keep
    });
}

fn compact(steps: &mut Vec<Step>, facts: &[Option<Vec<Fact>>], start: u32) -> u32 {
    let mut kept = 0_u32;
    let positions: Vec<u32> = facts
        .iter()
        .map(|fact| {
            let position = kept;
            kept = kept.saturating_add(u32::from(fact.is_some()));
            position
        })
        .collect();
    let moved = |target: u32| {
        usize::try_from(target)
            .ok()
            .and_then(|index| positions.get(index))
            .copied()
            .unwrap_or(target)
    };
    let mut known = facts.iter();
    steps.retain_mut(|step| {
        for target in targets(step) {
            *target = moved(*target);
        }
        known.next().is_some_and(Option::is_some)
    });
    moved(start)
}
