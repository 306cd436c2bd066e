//! Policies: which packets, and what is done with them (Trident §3.2).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strata_filter::{Filter, ParseError};
use strata_wire::{Granularity, Keep, Sampling, Tally};

use crate::classifier::RuleSet;
use crate::packet::Field;
use crate::region::Span;
use crate::rule::Rule;
use crate::translate::{TranslateError, regions};

/// The priority of a policy that does not say one.
pub const PRIORITY_DEFAULT: u16 = 100;
/// Most interfaces that the policies of a set may name.
pub const INTERFACES_MAX: usize = 255;

/// What is done with the packets of a policy.
///
/// In text: a granularity (`full`, `header`, `partial N`, `drop`), or `classify`; each
/// may be followed by `1/N` or `1/N flows`. `sample 1/N` is another name for `classify 1/N`.
/// And `mirror`, which goes beside another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// So much is kept of each, whatever its class.
    Keep(Granularity),
    /// The model decides, of the packets in the sample.
    Classify(Option<Sampling>),
    /// A copy of each is sent on. What is kept is for the other policies to say, or the
    /// default.
    Mirror,
}

impl Action {
    /// The model decides.
    pub const CLASSIFY: Self = Self::Classify(None);
    /// Nothing is kept.
    pub const DROP: Self = Self::Keep(Granularity {
        keep: Keep::Nothing,
        sampling: None,
    });
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep(granularity) => granularity.fmt(f),
            Self::Classify(None) => f.write_str("classify"),
            Self::Mirror => f.write_str("mirror"),
            Self::Classify(sampling) => {
                let keep = Keep::Full;
                let text = Granularity {
                    keep,
                    sampling: *sampling,
                }
                .to_string();
                f.write_str(&text.replacen("full", "classify", 1))
            }
        }
    }
}

/// Why a text is not an action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseActionError {
    /// It is none.
    #[error(
        "'{text}' is not an action: write full, header, partial N, drop or classify, then \
         optionally 1/N or '1/N flows' (for example: header 1/10 flows); or sample 1/N, or mirror"
    )]
    Unknown {
        /// What was written.
        text: String,
    },
    /// Where to is not said here.
    #[error(
        "'mirror {after}': write mirror alone; `strata record --mirror-to INTERFACE` says where \
         packets are sent"
    )]
    Mirror {
        /// What stands behind it.
        after: String,
    },
}

impl FromStr for Action {
    type Err = ParseActionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || ParseActionError::Unknown {
            text: text.to_owned(),
        };
        let (first, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        match first {
            "mirror" if rest.trim().is_empty() => Ok(Self::Mirror),
            "mirror" => Err(ParseActionError::Mirror {
                after: rest.trim().to_owned(),
            }),
            "sample" if rest.trim().is_empty() => Err(refuse()),
            "classify" | "sample" => {
                // What follows is written as behind a granularity.
                let like: Granularity = format!("full {rest}").parse().map_err(|_| refuse())?;
                Ok(Self::Classify(like.sampling))
            }
            _ => text.parse().map(Self::Keep).map_err(|_| refuse()),
        }
    }
}

/// What a policy has been applied to so far, over all workers.
#[derive(Debug, Default)]
pub struct Hits {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Hits {
    /// Counts packets that a worker has seen since it last counted.
    pub fn add(&self, tally: Tally) {
        self.packets.fetch_add(tally.packets, Ordering::Relaxed);
        self.bytes.fetch_add(tally.bytes, Ordering::Relaxed);
    }

    /// How many so far, and their bytes on the wire.
    #[must_use]
    pub fn tally(&self) -> Tally {
        Tally {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// One policy. Its copies count together.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The packets; see [`regions`] for what the expression means here.
    pub filter: Filter,
    /// Only those of the interface of this name.
    pub interface: Option<String>,
    /// Of all policies that match a packet, those of the highest priority count.
    pub priority: u16,
    /// What is done.
    pub action: Action,
    /// Whether what is kept of the packets is not deleted to make room.
    pub protect: bool,
    /// What it was applied to.
    pub hits: Arc<Hits>,
}

impl Policy {
    /// A policy for the packets of any interface, with the default priority.
    #[must_use]
    pub fn new(filter: Filter, action: Action) -> Self {
        Self {
            filter,
            interface: None,
            priority: PRIORITY_DEFAULT,
            action,
            protect: false,
            hits: Arc::default(),
        }
    }
}

/// What is wrong with a policy.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PolicyError {
    /// The expression is not understood.
    #[error(transparent)]
    Filter(#[from] ParseError),
    /// The expression cannot become rules.
    #[error(transparent)]
    Rules(#[from] TranslateError),
    /// The action is not understood.
    #[error(transparent)]
    Action(#[from] ParseActionError),
    /// Too many interfaces are named.
    #[error("the policies name more than {INTERFACES_MAX} interfaces")]
    Interfaces,
}

/// A set of policies, made ready for searching.
#[derive(Clone, Debug)]
pub struct Policies {
    rules: Arc<RuleSet>,
    actions: Vec<Action>,
    hits: Vec<Arc<Hits>>,
    default: Action,
    interfaces: Vec<String>,
}

impl Policies {
    /// Makes policies ready; `default` is for packets that none matches.
    ///
    /// # Errors
    ///
    /// [`PolicyError`], with the place of the policy at fault.
    pub fn new(policies: &[Policy], default: Action) -> Result<Self, (usize, PolicyError)> {
        let mut interfaces: Vec<String> = Vec::new();
        let mut rules = Vec::new();
        for (place, policy) in policies.iter().enumerate() {
            let number = match &policy.interface {
                None => None,
                Some(name) => {
                    let known = interfaces.iter().position(|other| other == name);
                    let index = known.unwrap_or_else(|| {
                        interfaces.push(name.clone());
                        interfaces.len() - 1
                    });
                    if index >= INTERFACES_MAX {
                        return Err((place, PolicyError::Interfaces));
                    }
                    Some(index as u128 + 1)
                }
            };
            let regions = regions(&policy.filter).map_err(|error| (place, error.into()))?;
            rules.extend(regions.into_iter().map(|region| Rule {
                region: match number {
                    None => region,
                    Some(number) => region.with(Field::Interface, Span::one(number)),
                },
                priority: policy.priority,
                policy: u32::try_from(place).unwrap_or(u32::MAX),
            }));
        }
        let count = u32::try_from(policies.len()).unwrap_or(u32::MAX);
        Ok(Self {
            rules: Arc::new(RuleSet::new(&rules, count)),
            actions: policies.iter().map(|policy| policy.action).collect(),
            hits: policies
                .iter()
                .map(|policy| Arc::clone(&policy.hits))
                .collect(),
            default,
            interfaces,
        })
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// The number by which rules know an interface of this name.
    #[must_use]
    pub fn interface(&self, name: Option<&str>) -> u8 {
        let place = self
            .interfaces
            .iter()
            .position(|known| Some(known.as_str()) == name);
        place
            .and_then(|place| u8::try_from(place + 1).ok())
            .unwrap_or(0)
    }

    /// The actions on a packet that gets these policies; with the default if none of them
    /// says what is kept.
    pub fn actions(&self, policies: &[u32], actions: &mut Vec<Action>) {
        actions.clear();
        actions.extend(policies.iter().map(|&number| self.actions[number as usize]));
        if actions.iter().all(|action| *action == Action::Mirror) {
            actions.push(self.default);
            if self.default == Action::Mirror {
                actions.push(Action::CLASSIFY);
            }
        }
    }

    /// What is done with packets that no policy matches.
    #[must_use]
    pub fn default_action(&self) -> Action {
        self.default
    }

    /// Counts packets to each of these policies.
    pub fn count(&self, policies: &[u32], tally: Tally) {
        for &number in policies {
            self.hits[number as usize].add(tally);
        }
    }

    /// How many policies there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.actions.len()
    }

    /// Whether there are none, so that every packet gets the default.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Whether every packet is classified, as without policies.
    #[must_use]
    pub fn do_nothing(&self) -> bool {
        self.is_empty() && self.default == Action::CLASSIFY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_read_as_they_are_written() {
        for text in [
            "full",
            "header 1/10 flows",
            "partial 128",
            "drop",
            "classify",
            "classify 1/7",
            "mirror",
        ] {
            assert_eq!(text.parse::<Action>().unwrap().to_string(), text);
        }
        assert_eq!("sample 1/7".parse::<Action>(), "classify 1/7".parse());
        for text in ["", "sample", "classify 10", "full 1/0", "sample full"] {
            let error = text.parse::<Action>().unwrap_err().to_string();
            assert!(error.contains("is not an action: write full"), "{error}");
        }
        let error = "mirror eth1".parse::<Action>().unwrap_err().to_string();
        assert!(error.contains("--mirror-to INTERFACE"), "{error}");
    }

    #[test]
    fn mirrors_leave_open_what_is_kept() {
        let all = |action| Policy::new(Filter::parse("tcp").unwrap(), action);
        let policies = [all(Action::Mirror), all(Action::DROP)];
        let policies = Policies::new(&policies, Action::CLASSIFY).unwrap();
        let mut actions = Vec::new();
        for (applied, expected) in [
            (&[0_u32][..], &[Action::Mirror, Action::CLASSIFY][..]),
            (&[0, 1], &[Action::Mirror, Action::DROP]),
            (&[], &[Action::CLASSIFY]),
        ] {
            policies.actions(applied, &mut actions);
            assert_eq!(actions, expected);
        }
    }

    #[test]
    fn interfaces_are_known_by_name() {
        let on = |name: &str| Policy {
            interface: Some(name.into()),
            ..Policy::new(Filter::parse("tcp").unwrap(), Action::DROP)
        };
        let policies =
            Policies::new(&[on("eth0"), on("eth1"), on("eth0")], Action::CLASSIFY).unwrap();
        assert_eq!(policies.interface(Some("eth1")), 2);
        assert_eq!(
            (policies.interface(Some("lo")), policies.interface(None)),
            (0, 0)
        );
    }
}
