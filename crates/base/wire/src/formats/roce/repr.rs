//! The contents of a packet's headers, to be read and written.

use super::{
    Aeth, AtomicEth, BTH_LEN, DEFAULT_PARTITION_KEY, ICRC_LEN, MASK_24, Opcode, Operation, Packet,
    Reth,
};

/// The extension headers that an opcode requires. Those it does not have are ignored when emitted,
/// and `None` when parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extensions {
    /// RETH.
    pub reth: Option<Reth>,
    /// AtomicETH.
    pub atomic_eth: Option<AtomicEth>,
    /// AETH.
    pub aeth: Option<Aeth>,
    /// The value before an atomic operation.
    pub atomic_original: Option<u64>,
    /// Immediate data.
    pub immediate: Option<u32>,
}

/// The contents of a packet's headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// What it is.
    pub opcode: Opcode,
    /// Destination queue pair, 24 bits.
    pub dest_qp: u32,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
    /// Whether an acknowledgement is requested.
    pub ack_request: bool,
    /// Bytes of the payload.
    pub payload_len: usize,
    /// Extension headers.
    pub extensions: Extensions,
}

impl Repr {
    /// Reads the headers; `None` for an AETH with a reserved syndrome.
    #[must_use]
    pub fn parse(packet: &Packet<'_>) -> Option<Self> {
        let opcode = packet.opcode();
        let aeth = packet.aeth();
        if aeth.is_none() && opcode.operation.has_aeth() {
            return None;
        }
        Some(Self {
            opcode,
            dest_qp: packet.dest_qp(),
            psn: packet.psn(),
            ack_request: packet.ack_request(),
            payload_len: packet.payload().len(),
            extensions: Extensions {
                reth: packet.reth(),
                atomic_eth: packet.atomic_eth(),
                aeth,
                atomic_original: packet.atomic_original(),
                immediate: packet.immediate(),
            },
        })
    }

    /// Bytes from the BTH to the ICRC, both included.
    #[inline]
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        let payload = self.payload_len.next_multiple_of(4);
        (BTH_LEN + ICRC_LEN)
            .saturating_add(self.opcode.operation.extension_len())
            .saturating_add(payload)
    }

    /// Appends headers, `payload` and pad to `out`, and four zeros where the ICRC goes
    /// ([`icrc::put`](super::icrc::put)). The payload may be given in parts. A header that the
    /// opcode requires and [`Extensions`] lacks is written as zeros.
    ///
    /// # Panics
    ///
    /// If the parts do not add up to `payload_len` bytes.
    #[inline]
    pub fn emit(&self, payload: &[&[u8]], out: &mut Vec<u8>) {
        let start = out.len();
        out.reserve(self.buffer_len());
        let pad = self.payload_len.wrapping_neg() & 3;
        let [high, low] = DEFAULT_PARTITION_KEY.to_be_bytes();
        let flags = MIGRATED | u8::try_from(pad << 4).expect("3 at most, shifted");
        out.extend_from_slice(&[self.opcode.code(), flags, high, low]);
        out.extend_from_slice(&(self.dest_qp & MASK_24).to_be_bytes());
        let ack = u32::from(self.ack_request) << 31;
        out.extend_from_slice(&(ack | self.psn & MASK_24).to_be_bytes());
        self.emit_extensions(out);
        let headers_end = out.len();
        for part in payload {
            out.extend_from_slice(part);
        }
        let put = out.len().wrapping_sub(headers_end);
        assert_eq!(put, self.payload_len, "payload length");
        out.resize(start.saturating_add(self.buffer_len()), 0);
    }

    #[inline]
    fn emit_extensions(&self, out: &mut Vec<u8>) {
        let operation = self.opcode.operation;
        let extensions = &self.extensions;
        if operation.has_reth() {
            let reth = extensions.reth.unwrap_or(NO_RETH);
            out.extend_from_slice(&reth.va.to_be_bytes());
            out.extend_from_slice(&reth.rkey.to_be_bytes());
            out.extend_from_slice(&reth.dma_len.to_be_bytes());
        }
        if operation.has_atomic_eth() {
            let atomic = extensions.atomic_eth.unwrap_or(NO_ATOMIC_ETH);
            out.extend_from_slice(&atomic.va.to_be_bytes());
            out.extend_from_slice(&atomic.rkey.to_be_bytes());
            out.extend_from_slice(&atomic.swap_or_add.to_be_bytes());
            out.extend_from_slice(&atomic.compare.to_be_bytes());
        }
        if operation.has_aeth() {
            let word = extensions.aeth.map_or(0, |aeth| {
                u32::from(aeth.syndrome.code()) << 24 | aeth.msn & MASK_24
            });
            out.extend_from_slice(&word.to_be_bytes());
        }
        if operation == Operation::AtomicAcknowledge {
            let original = extensions.atomic_original;
            out.extend_from_slice(&original.map_or([0; 8], u64::to_be_bytes));
        }
        if operation.has_immediate() {
            let immediate = extensions.immediate;
            out.extend_from_slice(&immediate.map_or([0; 4], u32::to_be_bytes));
        }
    }
}

/// Written if the opcode requires a header that is not given: an empty write reads none of it.
const NO_RETH: Reth = Reth {
    va: 0,
    rkey: 0,
    dma_len: 0,
};
const NO_ATOMIC_ETH: AtomicEth = AtomicEth {
    va: 0,
    rkey: 0,
    swap_or_add: 0,
    compare: 0,
};

/// The migrated bit of a BTH: the path is the primary one (IBTA §17.2.8).
const MIGRATED: u8 = 0x40;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::roce::{CREDIT_UNLIMITED, Syndrome};
    use proptest::prelude::*;

    fn any_repr() -> impl Strategy<Value = (Repr, Vec<u8>)> {
        let opcodes: Vec<Opcode> = (0..=u8::MAX).filter_map(Opcode::from_code).collect();
        let words = (any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>());
        let payload = proptest::collection::vec(any::<u8>(), 0..300);
        (
            proptest::sample::select(opcodes),
            words,
            any::<bool>(),
            payload,
        )
            .prop_map(|(opcode, (a, b, c, d), ack_request, payload)| {
                let operation = opcode.operation;
                let syndrome = Syndrome::from_code(b.to_be_bytes()[3]);
                let is_ack = operation == Operation::AtomicAcknowledge;
                let reth = Reth {
                    va: a,
                    rkey: b,
                    dma_len: c,
                };
                let atomic = AtomicEth {
                    va: a,
                    rkey: b,
                    swap_or_add: d,
                    compare: a ^ d,
                };
                let aeth = Aeth {
                    syndrome: syndrome.unwrap_or(Syndrome::Ack(CREDIT_UNLIMITED)),
                    msn: c & MASK_24,
                };
                let repr = Repr {
                    opcode,
                    dest_qp: b & MASK_24,
                    psn: c & MASK_24,
                    ack_request,
                    payload_len: payload.len(),
                    extensions: Extensions {
                        reth: operation.has_reth().then_some(reth),
                        atomic_eth: operation.has_atomic_eth().then_some(atomic),
                        aeth: operation.has_aeth().then_some(aeth),
                        atomic_original: is_ack.then_some(d),
                        immediate: operation.has_immediate().then_some(b),
                    },
                };
                (repr, payload)
            })
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed((repr, payload) in any_repr()) {
            let mut bytes = Vec::new();
            let (head, tail) = payload.split_at(payload.len() / 2);
            repr.emit(&[head, tail], &mut bytes);
            prop_assert_eq!(bytes.len(), repr.buffer_len());
            prop_assert!(bytes.len().is_multiple_of(4));
            let packet = Packet::new_checked(&bytes).unwrap();
            prop_assert_eq!(packet.payload(), &payload[..]);
            prop_assert_eq!(packet.version(), 0);
            prop_assert_eq!(packet.partition_key(), DEFAULT_PARTITION_KEY);
            prop_assert_eq!(Repr::parse(&packet), Some(repr));
            // Cut anywhere before the payload, it is rejected.
            let headers_len = bytes.len() - payload.len().next_multiple_of(4);
            for len in 0..headers_len {
                prop_assert!(Packet::new_checked(&bytes[..len]).is_none());
            }
        }

        #[test]
        fn any_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(packet) = Packet::new_checked(&bytes) {
                prop_assert!(packet.payload().len() < bytes.len());
                let _ = Repr::parse(&packet);
            }
        }
    }
}
