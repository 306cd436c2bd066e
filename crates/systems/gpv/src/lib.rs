//! Grouped packet vectors (GPVs) after *Flow (Sonchack et al., USENIX ATC 2018): a flow key and
//! the features of its next packets, small as flow records, from which any statistic can still be
//! computed, by many applications at once.
//!
//! No I/O, no clock, no thread: packets and bytes in, vectors, records and answers out.
//!
//! Layers, top-down; each uses only those below it:
//!
//! ```text
//! application   what is computed from vectors, beside queries: a trait, and the host profiler
//! marple    a query language over vectors
//! agent     vectors of datagrams in order, put together into records
//! export    which packets go into the cache, and which vectors to whom: rules at run time
//! cache     packets in, vectors out: for software, and as a switch runs it
//! format    vectors as bytes: the paper's form, and ours in datagrams (docs/formats/gpv.md)
//! vector    a vector; why it left the cache
//! tuple     packet feature tuples: of the paper, and ours
//! packet    what is taken of a packet's headers
//! key       the flow key, and its hash
//! ```
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub mod agent;
pub mod application;
mod cache;
pub mod export;
pub mod format;
mod key;
pub mod marple;
mod packet;
mod tuple;
mod vector;

pub use cache::{Cache, CacheCounters, Parameters, ParametersError, SwitchCache};
pub use key::{Key, KeyHasher};
pub use packet::{Packet, Seen};
pub use tuple::{Basic, Column, Columns, Full, Sequenced, Tuple};
pub use vector::{Grouped, Reason, Vector, VectorSink};
