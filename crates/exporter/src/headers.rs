//! Headers as datagrams and back. Each datagram can be read alone: what a record is a difference to
//! was in the same datagram. So a datagram that is lost takes its own packets with it, no others.

mod code;
mod fast_read;
mod fast_write;
mod fields;
mod head;
mod index;
mod kind;
mod model;
mod other;
mod ports;
mod read;
mod reader;
mod shape;
mod sums;
mod write;
mod writer;

pub use reader::HeaderReader;
pub use writer::HeaderWriter;

/// Why a packet was exported, and what it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// The policy that demanded it; 0 if none did.
    pub policy: u16,
    /// Its class.
    pub class: u8,
    /// How many packets it stands for: 1 if all were taken, 10 if one in ten was.
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
    /// The packet's first bytes: as many as are to be exported, whatever they are.
    pub bytes: &'a [u8],
    /// Why, and what for.
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
    use strata_wire::TunnelKey;
    use strata_wire::dissect::dissect;

    const SOURCE: Source = Source {
        identity: 1,
        session: 1,
    };

    /// Headers of this profile; one in eight is changed in up to three bytes.
    fn headers(profile: &str, rng: &mut Rng) -> Vec<(u64, u32, Vec<u8>)> {
        let profile = profile.parse().unwrap();
        let mut generator = Generator::new(&profile, &GeneratorOptions::default());
        let mut frame = [0; SPACE];
        let mut next = || {
            let packet = generator.packet_into(&mut frame);
            let bytes = &frame[..usize::from(packet.len)];
            let found = dissect(LinkType::ETHERNET, bytes, TunnelKey::Inner);
            let mut header = bytes[..found.header_len as usize].to_vec();
            let wire_len = u32::from(packet.len);
            for _ in 0..rng.below(4) * u64::from(rng.below(8) == 0) {
                let at = strata_wire::exact::<usize>(rng.below(header.len() as u64));
                header[at] = rng.bits().to_le_bytes()[0];
            }
            let wire_len = if rng.below(20) == 0 { 60 } else { wire_len };
            (packet.ts_ns, wire_len, header)
        };
        (0..20_000).map(|_| next()).collect()
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

    const LEN: usize = 1472;
}
