//! Packets without the identities in them, for logs that leave the network that they are of.
//!
//! - [`Anonymizer`]: the beginning of a packet, in which all addresses are replaced and which ends with the headers that
//!   are understood. No payload is left.
//! - [`Addresses`]: the addresses alone: IP addresses by Crypto-PAn, which keeps common prefixes.
//! - [`Key`]: the key that all replacements depend on.
//!
//! ```text
//! packet         where each link type begins
//!   links        Ethernet, VLAN tags, MPLS labels, ARP, cooked captures, PPP
//!   network      IPv4, IPv6 and its extension headers
//!   transport    TCP, UDP, ICMP, SCTP and their checksums
//!   tunnel       GRE, VXLAN, GENEVE
//!   walk         bytes that are kept, filled or replaced, one after the other
//! addresses      Crypto-PAn, Ethernet addresses, what was replaced before
//! key            the key as bytes or as text
//! ```
//!
//! The rule: every byte of the output either belongs to a field that is known not to identify a host or a user, or was
//! replaced. At the first byte for which that is not known, the packet is cut. Ports, sequence numbers, TCP timestamps,
//! identifiers of IP and ICMP, VLANs, labels and keys of tunnels are left, and so is the traffic's timing. They may tell
//! a host from others: what is left are pseudonyms, not statistics.
//!
//! No I/O. Uses `wire` alone.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod addresses;
mod key;
mod packet;

pub use addresses::{Addresses, CACHE_MAX};
pub use key::{Key, KeyError};
pub use packet::{Anonymizer, Left};
