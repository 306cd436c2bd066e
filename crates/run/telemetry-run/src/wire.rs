//! Telemetry cut at the RDMA wire: a translator in one process, collectors in others.
//!
//! ```text
//! reporters --UDP--> translator == WRITE, FETCH_ADD by RoCEv2 ==> collector's responder --> memory
//!                        +-------- TCP: who, what, where --------+
//!
//! message     what both say over TCP
//! connector   a thread of the translator for each collector: connects, again and again
//! remote      the translator's operations, as RDMA packets to the collectors
//! event       immediate reports, by WRITE with immediate data
//! collector   the role of a collector
//! ```

pub(super) mod collector;
pub(super) mod connector;
mod event;
pub(super) mod message;
pub(super) mod remote;

/// The default TCP port of a collector: the number that RoCEv2 has on UDP.
pub const COLLECTOR_PORT: u16 = strata_wire::roce::UDP_PORT;
