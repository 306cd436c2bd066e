//! Policies: which packets, and what to do with them (Trident §3.2).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strata_filter::{Filter, ParseError};
use strata_wire::{Counters, Granularity, Keep, Sampling};

use crate::export::{Export, ParseExportError};
use crate::translate::TranslateError;

/// The default priority.
pub const PRIORITY_DEFAULT: u16 = 100;
/// Maximum number of interfaces named by the policies of a set.
pub const INTERFACES_MAX: usize = 255;

/// Maximum policies of a set.
pub const POLICIES_MAX: usize = 10_000;
/// Maximum rules of prefixes of a set's policies.
pub const SET_RULES_MAX: usize = 1 << 19;
/// Maximum bytes of the expressions of policies that protect packets: each block of a log repeats
/// them.
pub const PROTECTED_BYTES_MAX: usize = 64 << 10;

/// What to do with the packets of a policy.
///
/// In text: a granularity (`full`, `header`, `partial N`, `drop`), or `classify`; each may be
/// followed by `1/N` or `1/N flows`. `sample 1/N` is another name for `classify 1/N`. And `mirror`
/// and exports (`header -> NAME`), which are combined with others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Each packet is kept this far, whatever its class.
    Keep(Granularity),
    /// The model decides, for the packets in the sample.
    Classify(Option<Sampling>),
    /// A copy of each packet is sent on. The other policies, or the default, decide what is kept.
    Mirror,
    /// Headers or packets are exported. The other policies, or the default, decide what is kept.
    Export(Export),
}

impl Action {
    /// The model decides.
    pub const CLASSIFY: Self = Self::Classify(None);
    /// Nothing is kept.
    pub const DROP: Self = Self::Keep(Granularity {
        keep: Keep::Nothing,
        sampling: None,
    });

    /// Whether it leaves open what is kept.
    #[must_use]
    pub fn leaves_open(&self) -> bool {
        matches!(self, Self::Mirror | Self::Export(_))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep(granularity) => granularity.fmt(f),
            Self::Classify(None) => f.write_str("classify"),
            Self::Mirror => f.write_str("mirror"),
            Self::Export(export) => export.fmt(f),
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
    /// It is not an action.
    #[error(
        "'{text}' is not an action: write full, header, partial N, drop or classify, then \
         optionally 1/N or '1/N flows' (for example: header 1/10 flows); or sample 1/N, mirror, or \
         'header -> NAME' or 'payload -> NAME' to export"
    )]
    Unknown {
        /// What was written.
        text: String,
    },
    /// It is not an export.
    #[error(transparent)]
    Export(#[from] ParseExportError),
    /// The destination does not belong here.
    #[error(
        "'mirror {after}': write mirror alone; `strata record --mirror-to INTERFACE` names the \
         interface for copies"
    )]
    Mirror {
        /// What follows `mirror`.
        after: String,
    },
}

impl FromStr for Action {
    type Err = ParseActionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || ParseActionError::Unknown {
            text: text.to_owned(),
        };
        if text.contains("->") {
            return Ok(Self::Export(text.parse()?));
        }
        let (first, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        match first {
            "mirror" if rest.trim().is_empty() => Ok(Self::Mirror),
            "mirror" => Err(ParseActionError::Mirror {
                after: rest.trim().to_owned(),
            }),
            "sample" if rest.trim().is_empty() => Err(refuse()),
            "classify" | "sample" => {
                // The rest is written as after a granularity.
                let like: Granularity = format!("full {rest}").parse().map_err(|_| refuse())?;
                Ok(Self::Classify(like.sampling))
            }
            _ => text.parse().map(Self::Keep).map_err(|_| refuse()),
        }
    }
}

/// How often a policy has been applied so far, over all workers.
#[derive(Debug, Default)]
pub struct Hits {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Hits {
    /// Adds packets that a worker has counted since its last call.
    pub fn add(&self, counters: Counters) {
        self.packets.fetch_add(counters.packets, Ordering::Relaxed);
        self.bytes.fetch_add(counters.bytes, Ordering::Relaxed);
    }

    /// Packets so far, and their bytes on the wire.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// A policy. Its copies share their counters.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Which packets; see [`regions`](crate::regions) for the meaning of the expression here.
    pub filter: Filter,
    /// Only packets of the interface with this name.
    pub interface: Option<String>,
    /// Of all policies that match a packet, those of the highest priority count.
    pub priority: u16,
    /// What to do with them.
    pub action: Action,
    /// Whether the packets it keeps are exempt from deletion when space runs short.
    pub protect: bool,
    /// How often it was applied.
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
    /// The expression is invalid.
    #[error(transparent)]
    Filter(#[from] ParseError),
    /// The expression is empty.
    #[error(
        "the filter of the policy is empty, and would match every packet: write a filter; to change the amount that is \
         kept of all packets, set a mode"
    )]
    Empty,
    /// An interface with an empty name.
    #[error(
        "the interface of the policy has an empty name: name one, or leave it out for all interfaces"
    )]
    NoInterface,
    /// The expression cannot be turned into rules.
    #[error(transparent)]
    Rules(#[from] TranslateError),
    /// The action is invalid.
    #[error(transparent)]
    Action(#[from] ParseActionError),
    /// There are too many policies.
    #[error("there are {POLICIES_MAX} policies already, the maximum")]
    TooMany,
    /// Together they take too many rules.
    #[error("the policies would take more than {SET_RULES_MAX} rules: write simpler ones")]
    TooManyRules,
    /// The protecting policies take too much space in each block of the log.
    #[error(
        "the protecting policies would take more than {} KiB of text: write fewer or shorter \
         ones", PROTECTED_BYTES_MAX >> 10
    )]
    TooMuchProtected,
    /// Too many interfaces are named.
    #[error("the policies name more than {INTERFACES_MAX} interfaces, the maximum")]
    Interfaces,
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
            "header -> analyser",
            "header 1/10 -> analyser",
            "payload 64 1/1000 -> analyser",
            "payload -> dpi-1.example",
            "payload 128 -> x",
        ] {
            assert_eq!(text.parse::<Action>().unwrap().to_string(), text);
        }
        assert_eq!("sample 1/7".parse::<Action>(), "classify 1/7".parse());
        for text in ["", "sample", "classify 10", "full 1/0", "sample full"] {
            let error = text.parse::<Action>().unwrap_err().to_string();
            assert!(error.contains("is not an action: write full"), "{error}");
        }
        for (text, what) in [
            (
                "header -> udp://192.0.2.1:4740",
                "under [export.destinations]",
            ),
            ("partial 5 -> x", "payload N"),
            ("payload 0 -> x", "payload N"),
            ("header 1/0 -> x", "1/N"),
            ("header 1/10 flows -> x", "payload N"),
            ("1/10 -> x", "payload N"),
            ("-> x", "payload N"),
            ("header ->", "not a valid destination name"),
            ("header -> a b", "not a valid destination name"),
            ("header -> a -> b", "not a valid destination name"),
            (
                "header -> aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                "not a valid destination name",
            ),
        ] {
            let error = text.parse::<Action>().unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        let error = "mirror eth1".parse::<Action>().unwrap_err().to_string();
        assert!(error.contains("--mirror-to INTERFACE"), "{error}");
    }
}
