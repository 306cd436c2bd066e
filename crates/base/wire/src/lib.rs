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

mod bytes;
pub mod checksum;
mod formats;
mod layout;
mod walk;
pub mod wide;
mod words;

pub use formats::{ethernet, ipv4, ipv6, pcapng, roce, segment, transport, tunnel, wlan};
pub use walk::{dissect, fields, sighting};

pub use formats::link::LinkType;
pub use walk::context::Context;
pub use walk::dissect::{Headers, TunnelKey};
pub use walk::fragments::FragmentTable;
pub use walk::plain::Plain;
pub use walk::prefetch::{prefetch, prefetch_whole};
pub use words::amounts::{count_of, grouped, human_bytes, parse_bytes};
pub use words::decider::{Decider, in_words};
pub use words::flow::{AddressFamily, Endpoint, FlowHasher, FlowKey, ip_addr, mix64};
pub use words::granularity::{
    Granularity, Keep, KeepKind, Outcome, ParseGranularityError, SampleBy, Sampling, join,
};
pub use words::ledger::{
    Counters, CutWhere, DropReason, Imbalance, Kinds, Ledger, Summed, largest,
};
pub use words::meta::{Interface, Meta, unix_ns, unix_seconds};
pub use words::number::{Largest, clamped, exact};
pub use words::printable::{Printable, PrintableJson, start_of};
pub use words::share::FlowShare;
