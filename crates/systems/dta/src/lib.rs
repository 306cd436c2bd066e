//! Direct Telemetry Access (DTA): from a switch's report to memory that answers queries.
//!
//! A reporter sends small reports in UDP, a translator turns them into writes and additions at
//! computed addresses, and a collector answers queries from the memory where these land, without
//! ever having parsed a report (Langlet et al., "Direct Telemetry Access", SIGCOMM 2023, "the
//! paper" below).
//!
//! ```text
//! Reporter --UDP--> Translator --WRITE, FETCH_ADD--> memory <-- queries
//!                   protocol     Sink                 key_write, postcarding, append, key_increment
//! ```
//!
//! - [`protocol`]: the published report formats and ours, as views and `Repr`s;
//! - [`key_write`], [`postcarding`], [`append`], [`key_increment`]: a primitive each, the
//!   translator's half and the collector's;
//! - [`generations`]: the same stores for several periods of time;
//! - [`Sink`]: where operations go: memory of this process ([`Local`]) or an RDMA requester
//!   ([`Remote`]);
//! - [`reporter`]: packs reports, and sends again what a translator had to drop;
//! - [`translator`]: reporters, rate limit, negative acknowledgements, several collectors;
//! - [`int`]: INT of the P4.org applications group, and which of it becomes which report;
//! - [`event`]: what entries of lists say;
//! - [`key`]: keys as bytes, and as people write them;
//! - [`theory`]: the paper's error bounds.
//!
//! Nothing here does I/O, reads a clock or waits: bytes and `now` go in, operations come out.
//! What the paper's pseudo-code gets wrong, and what the published programs do differently, is
//! in `docs/formats/dta.md`.
//!
//! Uses `wire` and `rdma`; who uses it joins it to sockets, clocks and memory.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub mod append;
pub mod event;
mod gaps;
pub mod generations;
mod hash;
pub mod int;
pub mod key;
pub mod key_increment;
pub mod key_write;
pub mod postcarding;
pub mod protocol;
mod remote;
pub mod reporter;
mod sink;
mod tally;
pub mod theory;
pub mod translator;

pub use hash::{KeyHash, KeyHasher, REDUNDANCY_MAX};
pub use remote::{Remote, RemoteCounters};
pub use reporter::Reporter;
pub use sink::{Addition, Local, Memory, Operation, Operations, Origin, Room, Sink};
pub use translator::Translator;
