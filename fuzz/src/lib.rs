//! What the fuzz targets share.
//!
//! - [`Chooser`]: decisions of a target, taken from the fuzzer's bytes;
//! - [`Bounded`]: an allocator that fails beyond a bound, so that a length field
//!   that is believed is a finding;
//! - [`log_of`]: bytes as the block file of a log;
//! - [`capture`]: reading and writing capture files, and what must hold of it.
//!
//! Used by the targets and by the maker of seeds; never part of the program.
#![deny(unsafe_code)]

mod bounded;
pub mod capture;
mod chooser;
mod log;

pub use bounded::Bounded;
pub use chooser::Chooser;
pub use log::log_of;

use strata_wire::LinkType;

/// Every link type that is dissected, and some that are not.
pub const LINKS: [LinkType; 23] = [
    LinkType::ETHERNET,
    LinkType::NULL,
    LinkType::RAW,
    LinkType::RAW_12,
    LinkType::RAW_14,
    LinkType::LOOP,
    LinkType::LINUX_SLL,
    LinkType::LINUX_SLL2,
    LinkType::IPV4,
    LinkType::IPV6,
    LinkType::IEEE802_11,
    LinkType::IEEE802_11_PRISM,
    LinkType::IEEE802_11_RADIOTAP,
    LinkType::IEEE802_11_AVS,
    // PPP, first known as a type that was not dissected; corpora hold its place.
    LinkType::PPP,
    LinkType::PPP_HDLC,
    LinkType::PPP_ETHER,
    LinkType::C_HDLC,
    LinkType::FRELAY,
    LinkType::PPI,
    LinkType::NFLOG,
    LinkType::FDDI,
    // A number without an owner.
    LinkType(65_535),
];

/// Where a link type stands in [`LINKS`]; a type that is not there is as unknown
/// as the last one.
#[must_use]
pub fn link_index(link: LinkType) -> u8 {
    let found = LINKS.iter().position(|&known| known == link);
    u8::try_from(found.unwrap_or(LINKS.len() - 1)).expect("there are few")
}
