//! Writers for export.

mod either;
mod pcap;
mod pcapng;

pub use either::CaptureWriter;
pub use pcap::PcapWriter;
pub use pcapng::PcapNgWriter;

use std::io;

use strata_wire::LinkType;

/// Why a packet or block could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The output failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A pcap file has one link type for all its packets.
    #[error(
        "a pcap file holds one link type, here {first}, so it cannot hold an interface with {second}: write pcapng"
    )]
    SecondLinkType {
        /// The link type that the file has.
        first: LinkType,
        /// The one that cannot join it.
        second: LinkType,
    },
    /// pcap has 32 bits of seconds.
    #[error(
        "a pcap file cannot hold the time of a packet {seconds} s after 1970, only up to the year 2106: write pcapng"
    )]
    TooLate {
        /// The packet's time.
        seconds: u64,
    },
    /// pcap has no offset of times.
    #[error(
        "a pcap file cannot hold times before 1970 or after the year 2106, which packets of interface {0} have: write pcapng"
    )]
    ShiftedTimes(u16),
    /// A packet or block names an interface that was not written before.
    #[error("interface {0} was not described before its first packet")]
    UnknownInterface(u16),
    /// A length does not fit the format's 32 bits.
    #[error("a packet or block of {0} bytes does not fit the file format")]
    TooLong(usize),
}
