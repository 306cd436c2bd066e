//! Immediate reports on their way to a collector: a ring of slots in memory of its own, each written
//! by a WRITE with the slot's number as immediate data, so that the collector's CPU looks at it.
//!
//! ```text
//!  0 time_ns u64      when the translator took it, since 1970
//!  8 address 16       of the reporter, of IPv4 mapped into IPv6; 0.0.0.0 of INT
//! 24 port u16 | len u16
//! 28 lost u32         immediate reports before this one that there was no room for
//! 32 datagram         of version 2, with one report; a list has its number at this collector
//!    zeros            to a whole word
//! ```
//!
//! Big-endian.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use strata_dta::protocol::packed::Repr;
use strata_dta::protocol::{DATA_LEN_MAX, Datagram, Flags, KEY_LEN_MAX, Report};
use strata_wire::exact;

use super::connector::WINDOW;

/// Slots of the ring: as many as packets may be in flight, so that no slot is written again before
/// the collector has looked at it.
pub(super) const SLOTS: u32 = 4096;
const _: () = assert!(SLOTS as usize >= WINDOW);
/// Bytes of a slot.
pub(super) const SLOT_LEN: usize = 192;
const HEADER_LEN: usize = 32;
/// The longest datagram of one report has a header of 20 bytes.
const _: () = assert!(HEADER_LEN + 20 + KEY_LEN_MAX + DATA_LEN_MAX + 8 <= SLOT_LEN);
const _: () = assert!(SLOT_LEN.is_multiple_of(8));

/// An immediate report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Told<'a> {
    pub(super) time_ns: u64,
    pub(super) reporter: SocketAddr,
    /// Reports that were lost before it.
    pub(super) lost: u32,
    pub(super) datagram: &'a [u8],
}

/// Where slot `n` of all that were ever written lies.
pub(super) fn slot_at(n: u32) -> usize {
    exact::<usize>(n % SLOTS) * SLOT_LEN
}

/// The bytes of a report with its list's number at the collector.
pub(super) fn datagram(report: &Report<'_>) -> Vec<u8> {
    let flags = Flags {
        immediate: true,
        retransmittable: false,
    };
    let mut bytes = Vec::with_capacity(SLOT_LEN);
    Repr::of(report, flags).emit(&[*report], &mut bytes);
    bytes
}

impl<'a> Told<'a> {
    /// The bytes of its slot.
    pub(super) fn emit(&self) -> Vec<u8> {
        let address = match self.reporter.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let mut bytes = Vec::with_capacity(SLOT_LEN);
        bytes.extend_from_slice(&self.time_ns.to_be_bytes());
        bytes.extend_from_slice(&address.octets());
        bytes.extend_from_slice(&self.reporter.port().to_be_bytes());
        bytes.extend_from_slice(&exact::<u16>(self.datagram.len()).to_be_bytes());
        bytes.extend_from_slice(&self.lost.to_be_bytes());
        bytes.extend_from_slice(self.datagram);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    /// `None` if a slot does not hold such bytes, or something else than a report.
    pub(super) fn parse(slot: &'a [u8]) -> Option<Self> {
        let (header, rest) = slot.split_first_chunk::<HEADER_LEN>()?;
        let (time, header) = header.split_first_chunk::<8>()?;
        let (address, header) = header.split_first_chunk::<16>()?;
        let &[port_high, port_low, len_high, len_low, a, b, c, d] = header else {
            return None;
        };
        let len = u16::from_be_bytes([len_high, len_low]);
        let address = IpAddr::from(Ipv6Addr::from(*address)).to_canonical();
        let datagram = rest.get(..usize::from(len))?;
        let is_one = match Datagram::new_checked(datagram) {
            Ok(Datagram::Packed(packet)) => packet.count() == 1,
            Ok(Datagram::Published(_)) | Err(_) => false,
        };
        is_one.then(|| Self {
            time_ns: u64::from_be_bytes(*time),
            reporter: SocketAddr::new(address, u16::from_be_bytes([port_high, port_low])),
            lost: u32::from_be_bytes([a, b, c, d]),
            datagram,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_understood_and_nothing_else_is_read() {
        let key = [7; KEY_LEN_MAX];
        for (report, reporter) in [
            (
                Report::KeyWrite {
                    redundancy: 4,
                    key: &key,
                    data: &[9; DATA_LEN_MAX],
                },
                "192.0.2.1:40040",
            ),
            (
                Report::Append {
                    list: 3,
                    data: &[1],
                },
                "[2001:db8::1]:5",
            ),
            (
                Report::Append {
                    list: 0,
                    data: &[1, 2],
                },
                "0.0.0.0:0",
            ),
        ] {
            let datagram = datagram(&report);
            let told = Told {
                time_ns: 1 << 60,
                reporter: reporter.parse().unwrap(),
                lost: 70_000,
                datagram: &datagram,
            };
            let mut slot = told.emit();
            assert!(slot.len() <= SLOT_LEN && slot.len().is_multiple_of(8));
            let needed = HEADER_LEN + datagram.len();
            assert_eq!(Told::parse(&slot[..needed - 1]), None);
            slot.resize(SLOT_LEN, 0xff);
            assert_eq!(Told::parse(&slot), Some(told));
            let Ok(Datagram::Packed(packet)) = Datagram::new_checked(told.datagram) else {
                panic!("{told:?}");
            };
            assert!(packet.flags().immediate);
            assert_eq!(packet.reports().collect::<Vec<_>>(), [report]);
        }
        assert_eq!(Told::parse(&[0xff; SLOT_LEN]), None);
        assert_eq!(slot_at(SLOTS), 0);
        assert_eq!(slot_at(u32::MAX) + SLOT_LEN, SLOT_LEN * SLOTS as usize);
    }
}
