//! Telemetry cut at the RDMA wire: a translator in one process, collectors in others.
//!
//! ```text
//! reporters --UDP--> translator == WRITE, FETCH_ADD by RoCEv2 ==> collector's responder --> memory
//!                        +-------- TCP: who, what, where --------+
//!
//! message     what both say over TCP
//! connector   a thread of the translator for each collector: connects, again and again
//! remote      the translator's operations, as RDMA packets to the collectors
//! link        one of these collectors, and what is exchanged with it
//! turns       generations, which all collectors begin together
//! event       immediate reports, by WRITE with immediate data
//! collector   the role of a collector
//! ```

pub(crate) mod collector;
pub(crate) mod connector;
mod event;
mod link;
pub(crate) mod message;
pub(crate) mod remote;
pub(crate) mod turns;

/// The default TCP port of a collector: the number that RoCEv2 has on UDP.
pub const COLLECTOR_PORT: u16 = strata_wire::roce::UDP_PORT;
