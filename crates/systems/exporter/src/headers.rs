//! Headers as datagrams and back. Each datagram can be read alone: what a record is a difference to
//! was in the same datagram. So a datagram that is lost takes its own packets with it, no others.

mod code;
mod fast;
mod fields;
mod head;
mod index;
mod key;
mod kind;
mod model;
mod other;
mod ports;
mod read;
mod reader;
mod sums;
mod write;
mod writer;

pub use reader::HeaderReader;
pub use writer::HeaderWriter;

/// The reason why a packet was exported, and the number of packets that it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// The policy that demanded it; 0 if none did.
    pub policy: u16,
    /// Its class.
    pub class: u8,
    /// The number of packets that it stands for: 1 if all were exported, 10 if one in ten was.
    pub one_in: u32,
}

impl Default for Label {
    fn default() -> Self {
        Self {
            policy: 0,
            class: 0,
            one_in: 1,
        }
    }
}

/// One packet's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    /// When it was captured, ns since 1970.
    pub ts_ns: u64,
    /// Bytes of the whole packet on the wire.
    pub wire_len: u32,
    /// The packet's first bytes that are to be exported, with any contents.
    pub bytes: &'a [u8],
    /// The reason for the export.
    pub label: Label,
}

/// A header that no datagram of this size holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a header of {len} bytes does not fit into a datagram of {room}: export fewer bytes of it, or raise the MTU"
)]
pub struct TooLong {
    /// Bytes of the header.
    pub len: usize,
    /// Bytes that a datagram may have.
    pub room: usize,
}

/// Why a record cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Invalid(&'static str);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;
    use strata_testkit::sim::Rng;
    use strata_traffic::{Generator, GeneratorOptions, SPACE};
    use strata_wire::LinkType;
    use strata_wire::dissect::dissect;
    use strata_wire::{TunnelKey, exact};

    const SOURCE: Source = Source {
        identity: 1,
        session: 1,
    };

    type Kept = (u64, u32, Vec<u8>);

    /// Headers of this profile, half of them again as the next ones of their flows; one in eight is changed in
    /// up to three bytes.
    fn headers(profile: &str, rng: &mut Rng) -> Vec<Kept> {
        let profile = profile.parse().unwrap();
        let mut generator = Generator::new(&profile, &GeneratorOptions::default());
        let mut frame = [0; SPACE];
        let mut all: Vec<Kept> = Vec::new();
        for _ in 0..20_000 {
            let packet = generator.packet_into(&mut frame);
            let bytes = &frame[..usize::from(packet.len)];
            let found = dissect(LinkType::ETHERNET, bytes, TunnelKey::Inner);
            let mut header = bytes[..found.header_len as usize].to_vec();
            let mut wire_len = u32::from(packet.len);
            if rng.below(2) == 0 && !all.is_empty() {
                let earlier = all.len().saturating_sub(1 + exact::<usize>(rng.below(40)));
                let (_, _, earlier) = &all[earlier];
                (wire_len, header) = next_of_flow(earlier, rng);
            }
            for _ in 0..rng.below(4) * u64::from(rng.below(8) == 0) {
                let at = exact::<usize>(rng.below(header.len() as u64));
                header[at] = rng.bits().to_le_bytes()[0];
            }
            let wire_len = if rng.below(20) == 0 { 60 } else { wire_len };
            all.push((packet.ts_ns, wire_len, header));
        }
        all
    }

    /// A packet after this one, perhaps of the other direction, with some fields as one would expect, and others not;
    /// its length and header.
    fn next_of_flow(earlier: &[u8], rng: &mut Rng) -> (u32, Vec<u8>) {
        let mut header = earlier.to_vec();
        let is_v6 = is_v6(earlier);
        let at = if is_v6 { 54 } else { 34 };
        let mut swap = |one: usize, other: usize, len: usize| {
            let (first, second) = header.split_at_mut(other);
            first[one..one + len].swap_with_slice(&mut second[..len]);
        };
        if rng.below(3) == 0 {
            swap(0, 6, 6);
            match is_v6 {
                true => swap(22, 38, 16),
                false => swap(26, 30, 4),
            }
            swap(at, at + 2, 2);
        }
        // Numbers of 16 bits, and of 32: how they are written depends on how far they go.
        let shorts = [18, at + 14].map(|at| (at, 2));
        let longs = [14, at + 4, at + 8, at + 24, at + 28].map(|at| (at, 4));
        for (at, len) in shorts.into_iter().chain(longs) {
            let is_said = match at {
                14 => is_v6,
                18 => !is_v6,
                _ => at + len <= header.len(),
            };
            if is_said && rng.below(2) == 0 {
                let field = &mut header[at..at + len];
                let step = rng.bits() & [1, 0xff, 0xffff, 0xfffff][exact::<usize>(rng.below(4))];
                let step = exact::<u32>(step);
                if len == 2 {
                    let value = u16::from_be_bytes([field[0], field[1]]);
                    let step = exact::<u16>(step & 0xffff);
                    field.copy_from_slice(&value.wrapping_add(step).to_be_bytes());
                } else {
                    let value = u32::from_be_bytes([field[0], field[1], field[2], field[3]]);
                    // Of IPv6 the flow label only.
                    let value = match at {
                        14 => value & !0xf_ffff | step & 0xf_ffff,
                        _ => value.wrapping_add(step),
                    };
                    field.copy_from_slice(&value.to_be_bytes());
                }
            }
        }
        if rng.below(8) == 0 {
            header[if is_v6 { 21 } else { 22 }] ^= 3;
        }
        let payload_len = [0, 0, 1, 1448, 1460, 300][exact::<usize>(rng.below(6))];
        (14 + with_right_sums(&mut header, payload_len), header)
    }

    fn is_v6(header: &[u8]) -> bool {
        header[12..14] == [0x86, 0xdd] && header.len() >= 62
    }

    /// Sets lengths, and the checksums that depend on headers only; bytes from IP on.
    fn with_right_sums(header: &mut [u8], payload_len: usize) -> u32 {
        let is_v6 = is_v6(header);
        let at = if is_v6 { 54 } else { 34 };
        let segment_len = header.len() - at + payload_len;
        let of_ip = if is_v6 { segment_len } else { segment_len + 20 };
        let field = if is_v6 { 18 } else { 16 };
        header[field..field + 2].copy_from_slice(&exact::<u16>(of_ip).to_be_bytes());
        let number = header[if is_v6 { 20 } else { 23 }];
        if !is_v6 {
            header[24..26].fill(0);
            let sum = checksum(&header[14..34]);
            header[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        let addresses = if is_v6 { 22..54 } else { 26..34 };
        let pseudo = [
            &header[addresses],
            &[0, number],
            &exact::<u16>(segment_len).to_be_bytes()[..],
        ]
        .concat();
        if number == 17 {
            let len = exact::<u16>(segment_len).to_be_bytes();
            header[at + 4..at + 6].copy_from_slice(&len);
        } else if number == 6 && payload_len == 0 {
            header[at + 16..at + 18].fill(0);
            let sum = checksum(&[&pseudo, &header[at..]].concat());
            header[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
        }
        exact::<u32>(at - 14 + segment_len)
    }

    /// RFC 1071, of an even number of bytes.
    fn checksum(bytes: &[u8]) -> u16 {
        let words = bytes.chunks(2);
        let mut sum: u32 = words
            .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
            .sum();
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !exact::<u16>(sum)
    }

    /// What the fast ways write and read is what the others do.
    #[test]
    fn fast_records_are_those_of_the_other_writer_and_reader() {
        let mut rng = Rng::new(3);
        for profile in ["cic-w3", "core-2015"] {
            let headers = headers(profile, &mut rng);
            for room in [LEN, 8952] {
                let [fast, slow] = [true, false].map(|is_fast| {
                    let mut writer = HeaderWriter::new(SOURCE, LinkType::ETHERNET, room);
                    writer.is_fast = is_fast;
                    let mut datagrams = Vec::new();
                    for (ts_ns, wire_len, bytes) in &headers {
                        let header = Header {
                            ts_ns: *ts_ns,
                            wire_len: *wire_len,
                            bytes,
                            label: Label::default(),
                        };
                        let put = writer.put(&header, |bytes| datagrams.push(bytes.to_vec()));
                        put.unwrap();
                    }
                    writer.end(|bytes| datagrams.push(bytes.to_vec()));
                    datagrams
                });
                assert!(fast == slow, "{profile} in {room}");
                let [fast, slow] = [true, false].map(|is_fast| {
                    let mut reader = HeaderReader::new();
                    reader.is_fast = is_fast;
                    let mut found = Vec::new();
                    for datagram in &slow {
                        let take = |_, header: &Header<'_>| {
                            found.push((header.ts_ns, header.wire_len, header.bytes.to_vec()));
                        };
                        reader.read(datagram, take).unwrap();
                    }
                    found
                });
                assert!(fast == slow && fast == headers, "{profile} in {room}");
            }
        }
    }

    /// Of arbitrary datagrams too, both readers make the same.
    #[test]
    fn forged_records_are_the_same_to_both_readers() {
        let mut rng = Rng::new(4);
        let mut writer = HeaderWriter::new(SOURCE, LinkType::ETHERNET, LEN);
        let mut datagrams = Vec::new();
        for (ts_ns, wire_len, bytes) in &headers("cic-w3", &mut rng) {
            let header = Header {
                ts_ns: *ts_ns,
                wire_len: *wire_len,
                bytes,
                label: Label::default(),
            };
            let put = writer.put(&header, |bytes| datagrams.push(bytes.to_vec()));
            put.unwrap();
        }
        let (mut readers, mut refused) = ([HeaderReader::new(), HeaderReader::new()], 0);
        readers[1].is_fast = false;
        for round in 0..10_000 {
            let mut datagram = datagrams[round % datagrams.len()].clone();
            for _ in 0..=rng.below(3) {
                let len = datagram.len() as u64;
                // Most codes are at the end.
                let at =
                    exact::<usize>(len - 1 - rng.below(len - 40) * rng.below(2) - rng.below(40));
                datagram[at] = rng.bits().to_le_bytes()[0];
            }
            let [fast, slow] = readers.each_mut().map(|reader| {
                let mut found = Vec::new();
                let take = |number, header: &Header<'_>| {
                    found.push((number, header.ts_ns, header.wire_len, header.bytes.to_vec()));
                };
                (reader.read(&datagram, take).is_ok(), found)
            });
            assert!(fast == slow, "round {round}");
            refused += usize::from(!fast.0);
        }
        assert!((1_000..10_000).contains(&refused), "{refused} refused");
    }

    const LEN: usize = 1472;
}
