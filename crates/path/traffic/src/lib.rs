//! Traffic from a seed, for tests, benchmarks and users: packets as a network carries them, in
//! given proportions, with their labels.
//!
//! ```text
//! generator     which flow sends next, and when: shares, mean lengths, rate
//! profile       the traffic to generate, by name: TitanLog's Table IV, a core link, mixes, floods
//! wheel         turns among the flows of a group
//! flow          what one flow sends next: handshake, messages, acknowledgements
//! frame         its bytes, with checksums;  content: payloads;  dns: queries and answers
//! kind          applications and attacks
//! random        integers only: a seed gives the same bytes everywhere
//!
//! fat_tree      a simulated data center: what its switches see of each packet
//! tcp_flow      a flow that is reported of;  zipf: ranks of which few are frequent
//! ```
//!
//! Pure computation: no I/O, no clock. Uses `wire` for constants and hashes; used by `archive`, `exporter`,
//! `gpv`, `record`, `telemetry-run`, the program `strata`, benchmarks and tests.
#![forbid(unsafe_code)]

mod bytes;
mod content;
mod dns;
mod fat_tree;
mod flow;
mod frame;
mod generator;
mod kind;
mod profile;
mod random;
mod tcp_flow;
mod wheel;
mod zipf;

pub use fat_tree::{FatTree, Hop, Passage};
pub use frame::{FRAME_MAX, SPACE};
pub use generator::{Generator, GeneratorOptions, Packet, Rate};
pub use profile::{Profile, UnknownProfile};
pub use tcp_flow::TcpFlow;
pub use zipf::Zipf;
