//! RoCEv2: RDMA over UDP (InfiniBand Architecture Specification, "IBTA", volume 1
//! chapter 9 for the transport headers, annex A17 for RoCEv2).
//!
//! ```text
//! Ethernet | IP | UDP, port 4791 | BTH | extension headers | payload | pad | ICRC
//!                                  ^ a Packet begins here            ... ^ and ends here
//! ```
//!
//! The invariant CRC covers the IP and UDP headers too; see [`icrc`].

use crate::bytes::{be32, held16, held32, held64, u8_at};

pub mod icrc;
mod repr;

pub use repr::{Extensions, Repr};

/// The UDP port of RoCEv2 (IANA; IBTA annex A17).
pub const UDP_PORT: u16 = 4791;
/// Bytes of a base transport header (BTH, IBTA §9.2).
pub const BTH_LEN: usize = 12;
/// Bytes of an RDMA extended transport header (RETH, IBTA §9.3.3).
pub const RETH_LEN: usize = 16;
/// Bytes of an atomic extended transport header (AtomicETH, IBTA §9.3.4).
pub const ATOMIC_ETH_LEN: usize = 28;
/// Bytes of an ACK extended transport header (AETH, IBTA §9.3.5).
pub const AETH_LEN: usize = 4;
/// Bytes of an atomic ACK extended transport header (IBTA §9.5.3).
pub const ATOMIC_ACK_ETH_LEN: usize = 8;
/// Bytes of immediate data (ImmDt, IBTA §9.3.6).
pub const IMM_LEN: usize = 4;
/// Bytes of the invariant CRC.
pub const ICRC_LEN: usize = 4;
/// The longest headers there are: BTH and AtomicETH.
pub const HEADERS_LEN_MAX: usize = BTH_LEN + ATOMIC_ETH_LEN;
/// No packet is longer: what a UDP datagram in IPv4 holds. The largest MTU is 4,096 (IBTA §9.4.1).
pub const PACKET_LEN_MAX: usize = 65_535 - 20 - 8;
/// The partition key that every port has (IBTA §10.9.1.2).
pub const DEFAULT_PARTITION_KEY: u16 = 0xffff;
/// PSNs and QPNs have 24 bits.
pub const MASK_24: u32 = 0xff_ffff;

/// Service of a queue pair: the upper three bits of an opcode (IBTA table 38).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Service {
    /// Reliable connection: acknowledged, in order.
    #[default]
    Rc,
    /// Unreliable connection: never acknowledged.
    Uc,
}

/// The lower five bits of an opcode (IBTA table 38).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Operation {
    /// First packet of a SEND.
    SendFirst = 0x00,
    /// One in the middle of a SEND.
    SendMiddle = 0x01,
    /// Last packet of a SEND.
    SendLast = 0x02,
    /// Last packet of a SEND, with immediate data.
    SendLastImm = 0x03,
    /// A SEND of one packet.
    SendOnly = 0x04,
    /// A SEND of one packet, with immediate data.
    SendOnlyImm = 0x05,
    /// First packet of an RDMA WRITE.
    WriteFirst = 0x06,
    /// One in the middle of an RDMA WRITE.
    WriteMiddle = 0x07,
    /// Last packet of an RDMA WRITE.
    WriteLast = 0x08,
    /// Last packet of an RDMA WRITE, with immediate data.
    WriteLastImm = 0x09,
    /// An RDMA WRITE of one packet.
    WriteOnly = 0x0a,
    /// An RDMA WRITE of one packet, with immediate data.
    WriteOnlyImm = 0x0b,
    /// RDMA READ request.
    ReadRequest = 0x0c,
    /// First packet of an RDMA READ response.
    ReadResponseFirst = 0x0d,
    /// One in the middle of an RDMA READ response.
    ReadResponseMiddle = 0x0e,
    /// Last packet of an RDMA READ response.
    ReadResponseLast = 0x0f,
    /// An RDMA READ response of one packet.
    ReadResponseOnly = 0x10,
    /// Acknowledgement, positive or negative.
    Acknowledge = 0x11,
    /// Acknowledgement of an atomic operation, with the value before it.
    AtomicAcknowledge = 0x12,
    /// Compare and swap of 8 bytes.
    CompareSwap = 0x13,
    /// Addition to 8 bytes.
    FetchAdd = 0x14,
}

impl Operation {
    /// All, in the order of their codes.
    pub const ALL: [Self; 21] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastImm,
        Self::SendOnly,
        Self::SendOnlyImm,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImm,
        Self::WriteOnly,
        Self::WriteOnlyImm,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Acknowledge,
        Self::AtomicAcknowledge,
        Self::CompareSwap,
        Self::FetchAdd,
    ];

    fn has_reth(self) -> bool {
        matches!(
            self,
            Self::WriteFirst | Self::WriteOnly | Self::WriteOnlyImm | Self::ReadRequest
        )
    }

    fn has_atomic_eth(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    fn has_aeth(self) -> bool {
        matches!(
            self,
            Self::Acknowledge
                | Self::AtomicAcknowledge
                | Self::ReadResponseFirst
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
        )
    }

    fn has_immediate(self) -> bool {
        matches!(
            self,
            Self::SendLastImm | Self::SendOnlyImm | Self::WriteLastImm | Self::WriteOnlyImm
        )
    }

    /// Bytes of the extension headers between BTH and payload (IBTA table 38).
    #[inline]
    #[must_use]
    pub fn extension_len(self) -> usize {
        match self {
            Self::WriteFirst | Self::WriteOnly | Self::ReadRequest => RETH_LEN,
            Self::WriteOnlyImm => RETH_LEN + IMM_LEN,
            Self::SendLastImm | Self::SendOnlyImm | Self::WriteLastImm => IMM_LEN,
            Self::CompareSwap | Self::FetchAdd => ATOMIC_ETH_LEN,
            Self::AtomicAcknowledge => AETH_LEN + ATOMIC_ACK_ETH_LEN,
            op if op.has_aeth() => AETH_LEN,
            _ => 0,
        }
    }
}

/// What a packet is: service and operation, one byte on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Opcode {
    /// Service.
    pub service: Service,
    /// Operation.
    pub operation: Operation,
}

impl Opcode {
    /// The opcode of a code; `None` if this service has no such operation, or
    /// the service is not RC or UC.
    #[inline]
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        let service = match code >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            _ => return None,
        };
        let operation = *Operation::ALL.get(usize::from(code & 0x1f))?;
        // UC has only SEND and WRITE.
        let known = service == Service::Rc || operation as u8 <= Operation::WriteOnlyImm as u8;
        known.then_some(Self { service, operation })
    }

    /// Its code.
    #[inline]
    #[must_use]
    pub fn code(self) -> u8 {
        let service = match self.service {
            Service::Rc => 0,
            Service::Uc => 0x20,
        };
        service | self.operation as u8
    }
}

/// RDMA extended transport header: what memory a WRITE or READ is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub dma_len: u32,
}

/// Atomic extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicEth {
    /// Virtual address at the responder, a multiple of 8.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// What is added, or what is stored.
    pub swap_or_add: u64,
    /// What must be there for a swap.
    pub compare: u64,
}

/// Why a responder refuses a packet (IBTA table 45).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum NakCode {
    /// A packet before this one is missing.
    PsnSequence = 0,
    /// The packet is invalid at this point.
    InvalidRequest = 1,
    /// No such memory region, out of its bounds, or not permitted.
    RemoteAccess = 2,
    /// The responder failed.
    RemoteOperational = 3,
    /// An invalid RDMA READ request.
    InvalidReadRequest = 4,
}

/// The syndrome of an AETH (IBTA §9.7.5.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Acknowledged, with the encoded credit count; 31 means no limit.
    Ack(u8),
    /// Nothing was posted to receive it: try again after this encoded time.
    RnrNak(u8),
    /// Refused.
    Nak(NakCode),
}

/// The credit field of an ACK that sets no limit (IBTA §9.7.7.2.5).
pub const CREDIT_UNLIMITED: u8 = 31;

impl Syndrome {
    /// The syndrome of a code; `None` if it is reserved.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        let value = code & 0x1f;
        match code >> 5 {
            0 => Some(Self::Ack(value)),
            1 => Some(Self::RnrNak(value)),
            3 => Some(Self::Nak(match value {
                0 => NakCode::PsnSequence,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccess,
                3 => NakCode::RemoteOperational,
                4 => NakCode::InvalidReadRequest,
                _ => return None,
            })),
            _ => None,
        }
    }

    /// Its code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Ack(credit) => credit & 0x1f,
            Self::RnrNak(timer) => 0x20 | timer & 0x1f,
            Self::Nak(nak) => 0x60 | nak as u8,
        }
    }
}

/// ACK extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// What happened to the request.
    pub syndrome: Syndrome,
    /// Messages completed by the responder, 24 bits.
    pub msn: u32,
}

/// A view of a packet from its BTH on, ICRC included. Only lengths are checked: whether the ICRC is
/// right, [`icrc`] tells.
///
/// ```text
///  0 opcode u8 | solicited 1, migrated 1, pad 2, version 4 | partition key u16
///  4 congestion 2, reserved 6 | destination QPN u24
///  8 ack request 1, reserved 7 | PSN u24
/// 12 extension headers, by opcode | payload | pad | ICRC u32
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    opcode: Opcode,
}

impl<'a> Packet<'a> {
    /// A view of `bytes` if their opcode is known, they hold its headers, the
    /// pad that the BTH names and the ICRC, and are no longer than [`PACKET_LEN_MAX`].
    #[inline]
    #[must_use]
    pub fn new_checked(bytes: &'a [u8]) -> Option<Self> {
        let opcode = Opcode::from_code(u8_at(bytes, 0)?)?;
        let pad = usize::from(u8_at(bytes, 1)? >> 4 & 3);
        // At most 12 + 28 + 3 + 4.
        let len_min = (BTH_LEN + ICRC_LEN)
            .wrapping_add(opcode.operation.extension_len())
            .wrapping_add(pad);
        (len_min..=PACKET_LEN_MAX)
            .contains(&bytes.len())
            .then_some(Self { bytes, opcode })
    }

    /// What it is.
    #[inline]
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Transport header version: 0.
    #[inline]
    #[must_use]
    pub fn version(&self) -> u8 {
        self.bytes[1] & 0x0f
    }

    /// Bytes of the pad after the payload.
    #[inline]
    #[must_use]
    pub fn pad(&self) -> usize {
        usize::from(self.bytes[1] >> 4 & 3)
    }

    /// Partition key.
    #[inline]
    #[must_use]
    pub fn partition_key(&self) -> u16 {
        held16(self.bytes, 2)
    }

    /// Destination queue pair.
    #[inline]
    #[must_use]
    pub fn dest_qp(&self) -> u32 {
        held32(self.bytes, 4) & MASK_24
    }

    /// Whether an acknowledgement is requested.
    #[inline]
    #[must_use]
    pub fn ack_request(&self) -> bool {
        self.bytes[8] & 0x80 != 0
    }

    /// Packet sequence number.
    #[inline]
    #[must_use]
    pub fn psn(&self) -> u32 {
        held32(self.bytes, 8) & MASK_24
    }

    /// What memory it is about, if its opcode has a RETH.
    #[inline]
    #[must_use]
    pub fn reth(&self) -> Option<Reth> {
        self.opcode.operation.has_reth().then(|| Reth {
            va: held64(self.bytes, BTH_LEN),
            rkey: held32(self.bytes, BTH_LEN + 8),
            dma_len: held32(self.bytes, BTH_LEN + 12),
        })
    }

    /// The atomic operation, if it is one.
    #[must_use]
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        self.opcode.operation.has_atomic_eth().then(|| AtomicEth {
            va: held64(self.bytes, BTH_LEN),
            rkey: held32(self.bytes, BTH_LEN + 8),
            swap_or_add: held64(self.bytes, BTH_LEN + 12),
            compare: held64(self.bytes, BTH_LEN + 20),
        })
    }

    /// The responder's answer, if its opcode has an AETH and the syndrome is not a reserved one.
    #[must_use]
    pub fn aeth(&self) -> Option<Aeth> {
        if !self.opcode.operation.has_aeth() {
            return None;
        }
        Some(Aeth {
            syndrome: Syndrome::from_code(u8_at(self.bytes, BTH_LEN)?)?,
            msn: be32(self.bytes, BTH_LEN)? & MASK_24,
        })
    }

    /// The value before an atomic operation, if this is its acknowledgement.
    #[must_use]
    pub fn atomic_original(&self) -> Option<u64> {
        let is_ack = self.opcode.operation == Operation::AtomicAcknowledge;
        is_ack.then(|| held64(self.bytes, BTH_LEN + AETH_LEN))
    }

    /// Immediate data, if its opcode has it.
    #[must_use]
    pub fn immediate(&self) -> Option<u32> {
        let operation = self.opcode.operation;
        // It is the last extension.
        let at = (BTH_LEN - IMM_LEN).wrapping_add(operation.extension_len());
        operation.has_immediate().then(|| held32(self.bytes, at))
    }

    /// The payload, without pad.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        // `new_checked` holds the length against all of these.
        let start = BTH_LEN.wrapping_add(self.opcode.operation.extension_len());
        let behind = ICRC_LEN.wrapping_add(self.pad());
        &self.bytes[start..self.bytes.len().wrapping_sub(behind)]
    }

    /// Everything before the ICRC.
    #[inline]
    #[must_use]
    pub fn covered(&self) -> &'a [u8] {
        &self.bytes[..self.bytes.len().wrapping_sub(ICRC_LEN)]
    }

    /// The ICRC that it carries.
    #[inline]
    #[must_use]
    pub fn icrc(&self) -> u32 {
        held32(self.bytes, self.bytes.len().wrapping_sub(ICRC_LEN)).swap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_code_round_trips() {
        let known = (0..=u8::MAX).filter_map(Opcode::from_code).count();
        assert_eq!(known, 21 + 12, "RC has 21 operations, UC the first 12");
        for opcode in (0..=u8::MAX).filter_map(Opcode::from_code) {
            assert_eq!(Opcode::from_code(opcode.code()), Some(opcode));
        }
    }

    #[test]
    fn no_packet_is_longer_than_a_datagram() {
        use std::net::Ipv4Addr;
        let ip = icrc::Ip::V4 {
            source: Ipv4Addr::LOCALHOST,
            destination: Ipv4Addr::LOCALHOST,
            identification: 0,
            dont_fragment: true,
        };
        let outer = icrc::Outer {
            ip,
            source_port: UDP_PORT,
            destination_port: UDP_PORT,
        };
        let mut bytes = vec![0; PACKET_LEN_MAX];
        icrc::put(&outer, &mut bytes);
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!(packet.icrc(), outer.icrc(packet.covered()));
        bytes.push(0);
        assert!(Packet::new_checked(&bytes).is_none());
    }

    #[test]
    fn every_syndrome_round_trips() {
        let known = (0..=u8::MAX).filter_map(Syndrome::from_code).count();
        assert_eq!(known, 32 + 32 + 5);
        for code in 0..=u8::MAX {
            if let Some(syndrome) = Syndrome::from_code(code) {
                assert_eq!(syndrome.code(), code);
            }
        }
    }
}
