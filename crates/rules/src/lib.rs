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
//! - [`Policy`], [`Policies`]: expression, priority, action; [`PolicySet`]: as they come and go.
//! - [`regions`]: an expression as [`Region`]s, each a range in every [`Field`].
//! - [`linear_scan`]: the naive search.
//! - [`TupleSpace`]: the slow path.
//! - [`Uniflows`], [`UniflowCache`]: the fast path.
//! - [`RuleClassifier`]: both together, for a worker.
//! - [`peers`], [`classbench`]: what benchmarks and tests compare with, and on what.
//!
//! # Meaning
//!
//! Of the policies that match a packet, those of the highest priority count (a larger
//! number is a higher priority), and if these are several, all of them: their demands join to
//! the least granularity that serves each. Rules look at the packet's flow key, so
//! through tunnels and tags where a capture filter does not: see [`regions`].
//!
//! It uses `filter` for expressions and `wire` for words; `pipeline` and above use it.
#![forbid(unsafe_code)]

pub mod classbench;
mod classes;
mod classifier;
mod packet;
pub mod peers;
mod policy;
mod region;
mod rule;
mod set;
mod translate;
mod tss;
mod uniflow;

pub use classifier::{BATCH, CacheStats, RuleClassifier, RuleSet};
pub use packet::{Field, PacketFields, UNTAGGED};
pub use policy::{
    Action, Hits, INTERFACES_MAX, PRIORITY_DEFAULT, ParseActionError, Policies, Policy, PolicyError,
};
pub use region::{Region, Span};
pub use rule::{AnswerId, Answers, Rule, linear_scan};
pub use set::{Base, Merge, POLICIES_MAX, PROTECTED_BYTES_MAX, PolicySet, SET_RULES_MAX};
pub use translate::{PREFIX_RULES_MAX, REGIONS_MAX, TranslateError, regions};
pub use tss::TupleSpace;
pub use uniflow::{UniflowCache, UniflowKey, Uniflows};
