//! Formats of headers and files: a view of the bytes, and what can be emitted.

pub mod ethernet;
pub(crate) mod ip_protocol;
pub mod ipv4;
pub mod ipv6;
pub(crate) mod link;
pub mod pcapng;
pub mod roce;
pub mod segment;
pub mod transport;
pub mod tunnel;
pub mod wlan;
