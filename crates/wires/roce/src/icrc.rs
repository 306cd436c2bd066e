//! ICRCs of packets that pass through the kernel's sockets.

use std::net::{IpAddr, SocketAddr};

use strata_wire::exact;
use strata_wire::roce::Packet;
use strata_wire::roce::icrc::{Ip, Outer, Stream};

/// What precedes the BTH of a packet between two sockets; `None` if they are of different families.
#[must_use]
pub fn outer(source: SocketAddr, destination: SocketAddr) -> Option<Outer> {
    let ip = match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Ip::V4 {
            source,
            destination,
            identification: 0,
            dont_fragment: true,
        },
        (IpAddr::V6(source), IpAddr::V6(destination)) => Ip::V6 {
            source,
            destination,
        },
        _ => return None,
    };
    Some(Outer {
        ip,
        source_port: source.port(),
        destination_port: destination.port(),
    })
}

/// Checks ICRCs of packets from a UDP socket, which does not show the IPv4 identification: it is
/// reconstructed.
#[derive(Debug)]
pub struct IcrcCheck {
    icrcs: Stream,
    /// The identification of the previous packet.
    last: u16,
}

impl IcrcCheck {
    /// For packets from `source` to `destination`; `None` for different families.
    #[must_use]
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        let icrcs = Stream::new(outer(source, destination)?);
        Some(Self { icrcs, last: 0 })
    }

    #[cfg(test)]
    pub(crate) fn last(&self) -> u16 {
        self.last
    }

    /// Whether the ICRC of a packet from this port is right. `place` is its place in one of the
    /// kernel's runs, which have fewer than 2^16 bytes.
    pub fn is_right(&mut self, source_port: u16, packet: &Packet<'_>, place: usize) -> bool {
        self.icrcs.set_source_port(source_port);
        // A sender's segments count from 0; a run may have been cut or joined in flight; other
        // stacks number as they like.
        let likely = [exact::<u16>(place), self.last.wrapping_add(1), 0];
        if let Some(number) = self.icrcs.find(packet, &likely) {
            self.last = number;
            return true;
        }
        let outer = self.icrcs.outer();
        if matches!(outer.ip, Ip::V6 { .. }) {
            return false;
        }
        let (covered, carried) = (packet.covered(), packet.icrc());
        let with = |number: u16| outer.with_identification(number).icrc(covered);
        let none = with(0);
        let Some(number) = combination(carried ^ none, |bit| with(1 << bit) ^ none) else {
            return false;
        };
        self.last = number;
        true
    }
}

/// The bits whose words XOR to `wanted`: a CRC is linear, so each bit of the identification changes
/// it by a word of its own. 16 of the ICRC's 32 bits still check the packet, in addition to the UDP
/// checksum.
fn combination(mut wanted: u32, word_of: impl Fn(u32) -> u32) -> Option<u16> {
    // Gaussian elimination: words with their bits, each with a leading one of its own.
    let mut basis: Vec<(u32, u16)> = Vec::with_capacity(16);
    for bit in 0..16 {
        let (mut word, mut bits) = (word_of(bit), 1_u16 << bit);
        for &(other, others) in &basis {
            if word ^ other < word {
                (word, bits) = (word ^ other, bits ^ others);
            }
        }
        if word != 0 {
            basis.push((word, bits));
            basis.sort_unstable_by_key(|&(word, _)| std::cmp::Reverse(word));
        }
    }
    let mut bits = 0;
    for (word, its_bits) in basis {
        if wanted ^ word < wanted {
            (wanted, bits) = (wanted ^ word, bits ^ its_bits);
        }
    }
    (wanted == 0).then_some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_rdma::PacketBatch;
    use strata_wire::roce::icrc::put;
    use strata_wire::roce::{Extensions, Opcode, Operation, Repr, Service, UDP_PORT};

    fn packet(psn: u32, outer: &Outer) -> Vec<u8> {
        let repr = Repr {
            opcode: Opcode {
                service: Service::Rc,
                operation: Operation::WriteOnly,
            },
            dest_qp: 7,
            psn,
            ack_request: false,
            payload_len: 100,
            extensions: Extensions::default(),
        };
        let mut batch = PacketBatch::new();
        batch.push(&repr, &[&[3; 100]]);
        put(outer, batch.get_mut(0));
        batch.get(0).to_vec()
    }

    #[test]
    fn any_identification_is_worked_out_and_damage_is_noticed() {
        let source: SocketAddr = "192.0.2.1:4000".parse().unwrap();
        let destination = SocketAddr::new("192.0.2.2".parse().unwrap(), UDP_PORT);
        let outer = outer(source, destination).unwrap();
        let mut check = IcrcCheck::new(source, destination).unwrap();
        let mut wrongly = 0;
        for number in [0, 1, 2, 63, 0x03c1, 0x8000, 0xffff] {
            let bytes = packet(9, &outer.with_identification(number));
            let view = Packet::new_checked(&bytes).unwrap();
            assert!(check.is_right(4000, &view, 0), "{number}");
            assert_eq!(check.last, number);
            for bit in 0..bytes.len() * 8 {
                // Byte 4 may change in flight; the first bytes say where it ends.
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let Some(view) = Packet::new_checked(&changed) else {
                    continue;
                };
                wrongly += usize::from(bit / 8 != 4 && check.is_right(4000, &view, 0));
            }
        }
        assert!(wrongly < 3, "{wrongly} of about 7,000");
    }
}
