//! Marple's query language (Narayana et al., SIGCOMM 2017) over grouped packet vectors, as section
//! 6.3 of the *Flow paper has it: `filter`, `map`, `groupby` with folds, `zip`, `emit()`.
//!
//! ```text
//! def oos([count, lastseq], [tcpseq, payload_len]):
//!     if lastseq != tcpseq { count = count + 1; emit(); }
//!     lastseq = tcpseq + payload_len
//!
//! tcps   = filter(T, proto == TCP);
//! result = groupby(tcps, [srcip, dstip, srcport, dstport, proto], oos);
//! ```
//!
//! `T` is the stream of all packets. Every stream is one of packets: `filter` keeps some, `map` adds
//! columns, `groupby` runs a fold and its stream is of those packets at which the fold says
//! `emit()`, `zip` is of those in both. What the last statement makes is the answer: a row for each
//! group of a `groupby`, else for each packet.
//!
//! What the published grammar leaves open:
//!
//! - Numbers are integers of 64 bits that wrap around, and reals. `/` is of reals if one side is
//!   one, or if both are written as numbers of at most 2^53 (`2/10` is 0.2, but `7/(1+1)` is 3); else it
//!   rounds down, as in `tin/128`, and division by 0 is 0. State begins at 0.
//! - Times (`tin`) are in ns; `5ms` is written for 5,000,000, so are `ns`, `us` and `s`.
//! - Also accepted: `<=`, `>=`, decimals, addresses (`10.0.0.1`, `"2001:db8::1"`), comments from
//!   `#`, and `$name` for parameters.
//! - A fold sees the packets of a flow in their order. Packets of several flows in one group come
//!   as their vectors do.
//!
//! Bounds: a query has at most 256 registers and 4,096 instructions, all jumps go forward; groups and
//! rows are limited ([`Limits`]), what is beyond them is counted.
//!
//! Layers, top-down: `engine` runs a program over vectors, `compile` checks a tree and makes the
//! program, `parse` makes the tree, `token` the words; `shipped` has queries by name.

mod compile;
mod engine;
mod error;
mod fields;
mod parse;
mod program;
mod shipped;
mod token;

pub use compile::compile;
pub use engine::{Answer, Flows, Limits, Query, QueryCounters, Value};
pub use error::QueryError;
pub use program::{Program, Unanswerable, ValueKind};
pub use shipped::{SHIPPED, Shipped, shipped};
