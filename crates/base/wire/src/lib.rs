//! Byte formats and the vocabulary shared by all crates of Strata.
//!
//! `wire` depends on no other crate of Strata. Everything here is a pure function of bytes: no I/O,
//! no allocation on the data path.
//!
//! - formats: [`ethernet`], [`ipv4`], [`ipv6`], [`transport`], [`tunnel`],
//!   [`roce`]: a view of the bytes, and a `Repr` that can be emitted; [`wlan`], which is only
//!   read; [`segment`]: the form in which logged packets travel to a relay and lie in its blocks;
//! - [`fields`]: where their fields are, of headers that may be cut or wrong;
//! - [`checksum`]: the sum of the Internet checksum, over pieces;
//! - [`dissect`]: the walk through all headers of a packet, and the one
//!   definition of what "header" means; [`Plain`] is its fast path;
//! - [`sighting`]: what stays the same of a packet that is seen at two points of a network;
//! - [`FragmentTable`]: later fragments find the flow of their first one;
//! - [`pcapng`]: block types and option lists of capture files, in the one form used inside Strata;
//! - shared types: [`LinkType`], [`Interface`], [`Meta`], [`FlowKey`], [`FlowHasher`],
//!   [`Granularity`], [`FlowShare`], [`Ledger`], [`Printable`], [`grouped`], [`human_bytes`].
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod amounts;
mod bytes;
pub mod checksum;
mod context;
mod decider;
pub mod dissect;
pub mod ethernet;
pub mod fields;
mod flow;
mod fragments;
mod granularity;
mod headers;
mod ip_protocol;
pub mod ipv4;
pub mod ipv6;
mod layout;
mod ledger;
mod link;
mod meta;
mod number;
pub mod pcapng;
mod plain;
mod prefetch;
mod printable;
pub mod roce;
pub mod segment;
mod share;
pub mod sighting;
pub mod transport;
pub mod tunnel;
mod walk;
pub mod wide;
pub mod wlan;

pub use amounts::{count_of, grouped, human_bytes, parse_bytes};
pub use context::Context;
pub use decider::{Decider, in_words};
pub use dissect::{Headers, TunnelKey};
pub use flow::{AddressFamily, Endpoint, FlowHasher, FlowKey, ip_addr, mix64};
pub use fragments::FragmentTable;
pub use granularity::{
    Granularity, Keep, KeepKind, Outcome, ParseGranularityError, SampleBy, Sampling, join,
};
pub use ledger::{Counters, CutWhere, DropReason, Imbalance, Kinds, Ledger, Summed, largest};
pub use link::LinkType;
pub use meta::{Interface, Meta, unix_ns, unix_seconds};
pub use number::{Largest, clamped, exact};
pub use plain::Plain;
pub use prefetch::{prefetch, prefetch_whole};
pub use printable::{Printable, PrintableJson, start_of};
pub use share::FlowShare;
