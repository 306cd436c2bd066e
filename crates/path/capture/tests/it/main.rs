//! Captures of files and of interfaces, as libpcap, tshark and the kernel see the same packets.
//!
//! `allocation` and `standard_input` have binaries of their own.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod behaviour;
mod common;
mod corpus;
mod exclusive;
mod headers;
mod hostile;
mod kinds;
mod live;
mod one_ring;
mod oracle;
mod pipes;
mod round_trip;
mod viewed;
