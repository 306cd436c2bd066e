//! Policies (Trident §3.2, §3.3): from tcpdump's language to rules, and the search for
//! the rules that match a packet.
//!
//! ```
//! use strata_rules::{Action, Policies, Policy};
//!
//! let policy = Policy::new("src net 10.1.0.0/16 and port 443".parse()?, "header".parse()?);
//! let policies = Policies::new(&[policy], Action::CLASSIFY).map_err(|(_, error)| error)?;
//! assert_eq!(policies.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layers
//!
//! - [`Policy`], [`Policies`]: expression, priority, action; [`PolicySet`]: policies that are added
//!   and removed one at a time.
//! - [`regions`]: an expression as [`Region`]s, each a range in every [`Field`].
//! - [`linear_scan`]: the naive search.
//! - `tss`: the slow path.
//! - [`Uniflows`], [`UniflowCache`]: the fast path.
//! - [`RuleClassifier`]: both combined, for a worker.
//!
//! # Meaning
//!
//! Of the policies that match a packet, those of the highest priority count (larger numbers are
//! higher), and if these are several, all of them: the packet is kept at the least granularity that
//! satisfies each. Rules test the packet's flow key, and so look through tunnels and tags where a
//! capture filter does not: see [`regions`].
//!
//! Uses `filter` for expressions and `wire` for types; used by `pipeline` and above.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod classes;
mod classifier;
mod export;
mod packet;
mod policies;
mod policy;
mod region;
mod rule;
mod set;
mod translate;
mod tss;
mod uniflow;

pub use classifier::{BATCH, CacheStats, RuleClassifier, RuleSet};
pub use export::{DestinationName, Export, ParseExportError};
pub use packet::{Field, PacketFields, UNTAGGED};
pub use policies::Policies;
pub use policy::{
    Action, Hits, INTERFACES_MAX, POLICIES_MAX, PRIORITY_DEFAULT, PROTECTED_BYTES_MAX,
    ParseActionError, Policy, PolicyError, SET_RULES_MAX,
};
pub use region::{Region, Span};
pub use rule::{AnswerId, Answers, Rule, linear_scan};
pub use set::{Base, Merge, PolicySet};
pub use translate::{PREFIX_RULES_MAX, REGIONS_MAX, TranslateError, regions};
pub use uniflow::{UniflowCache, UniflowKey, Uniflows};
