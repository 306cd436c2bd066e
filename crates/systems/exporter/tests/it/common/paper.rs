//! The header compression of the Trident paper (section 3.4), as far as it says: the first packet of
//! an interface is sent as it is; of others, those fields whose value differs from the one that the
//! field had last, whatever the packet's protocol. A bitmap says which.
//!
//! What it leaves open is decided in its favour: times are differences of variable length, the
//! length on the wire costs nothing, and a datagram begins with 48 bytes (section 5). A reader has
//! to get every datagram: state goes on from one to the next.

use super::Kept;

/// Bytes of metadata before the records of a datagram (section 5).
const START_LEN: usize = 48;
/// Fields, by number; each has a value of its own that lasts.
const FIELDS: usize = 46;
/// First word of TCP's options; ten may follow.
const OPTIONS: usize = 34;
/// What is no field: the rest of a header.
const REST: usize = FIELDS - 1;

const ETHERNET: [(usize, usize); 3] = [(0, 6), (1, 6), (2, 2)];
/// Version and length, service, length, identification, flags, time to live, protocol, checksum,
/// addresses.
const IPV4: [(usize, usize); 10] = [
    (3, 1),
    (4, 1),
    (5, 2),
    (6, 2),
    (7, 2),
    (8, 1),
    (9, 1),
    (10, 2),
    (11, 4),
    (12, 4),
];
const IPV6: [(usize, usize); 6] = [(13, 4), (14, 2), (15, 1), (16, 1), (17, 16), (18, 16)];
const TCP: [(usize, usize); 9] = [
    (19, 2),
    (20, 2),
    (21, 4),
    (22, 4),
    (23, 1),
    (24, 1),
    (25, 2),
    (26, 2),
    (27, 2),
];
/// Ports are the same fields as TCP's, as in the paper's example.
const UDP: [(usize, usize); 4] = [(19, 2), (20, 2), (28, 2), (29, 2)];
const ICMP: [(usize, usize); 4] = [(30, 2), (31, 2), (32, 2), (33, 2)];

/// What both ends hold.
pub(crate) struct State {
    values: Vec<Vec<u8>>,
    ts_ns: u64,
}

impl State {
    pub(crate) fn new() -> Self {
        Self {
            values: vec![Vec::new(); FIELDS],
            ts_ns: 0,
        }
    }

    /// Appends a record: the time, and after each byte of the bitmap the values of its 8 fields.
    pub(crate) fn compress(&mut self, header: &Kept, out: &mut Vec<u8>) {
        let mut difference = zigzag(header.ts_ns.wrapping_sub(self.ts_ns));
        self.ts_ns = header.ts_ns;
        while difference >= 0x80 {
            out.push(low(difference) | 0x80);
            difference >>= 7;
        }
        out.push(low(difference));
        let (mut at, mut index, mut bitmap) = (0, 0, 0);
        while let Some((field, len)) = next_field(&header.bytes[..at], index) {
            let len = if field == REST {
                header.bytes.len() - at
            } else {
                len
            };
            let value = &header.bytes[at..at + len];
            if index % 8 == 0 {
                bitmap = out.len();
                out.push(0);
            }
            if self.values[field] != value {
                out[bitmap] |= 1 << (index % 8);
                if field == REST {
                    out.extend_from_slice(&u16::try_from(len).unwrap().to_le_bytes());
                }
                out.extend_from_slice(value);
                self.values[field] = value.to_vec();
            }
            at += len;
            index += 1;
            if field == REST {
                break;
            }
        }
        assert_eq!(at, header.bytes.len(), "only whole headers");
    }

    /// Reads a record: the header's bytes, its time; and what follows.
    pub(crate) fn decompress<'a>(&mut self, mut bytes: &'a [u8]) -> (Vec<u8>, u64, &'a [u8]) {
        let mut take = |len: usize| {
            let (taken, rest) = bytes.split_at(len);
            bytes = rest;
            taken
        };
        let (mut difference, mut shift) = (0, 0);
        loop {
            let byte = take(1)[0];
            difference |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        self.ts_ns = self.ts_ns.wrapping_add(unzigzag(difference));
        let (mut header, mut index, mut bitmap) = (Vec::new(), 0, 0);
        while let Some((field, len)) = next_field(&header, index) {
            if index % 8 == 0 {
                bitmap = take(1)[0];
            }
            if bitmap >> (index % 8) & 1 != 0 {
                let said = |bytes: &[u8]| usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
                let len = if field == REST { said(take(2)) } else { len };
                self.values[field] = take(len).to_vec();
            }
            header.extend_from_slice(&self.values[field]);
            index += 1;
            if field == REST {
                break;
            }
        }
        (header, self.ts_ns, bytes)
    }
}

/// The field of this index in a header on Ethernet, and its length, by the bytes before it.
fn next_field(before: &[u8], index: usize) -> Option<(usize, usize)> {
    if let Some(field) = ETHERNET.get(index) {
        return Some(*field);
    }
    let index = index - ETHERNET.len();
    let (network, protocol_at): (&[_], usize) = match before[12..14] {
        [8, 0] => (&IPV4, 23),
        [0x86, 0xdd] => (&IPV6, 20),
        _ => return Some((REST, 0)),
    };
    if let Some(field) = network.get(index) {
        return Some(*field);
    }
    let index = index - network.len();
    let transport: &[_] = match before[protocol_at] {
        6 => &TCP,
        17 => &UDP,
        1 | 58 => &ICMP,
        _ => return Some((REST, 0)),
    };
    if let Some(field) = transport.get(index) {
        return Some(*field);
    }
    let word = index - transport.len();
    let at = if before[12] == 8 { 34 } else { 54 };
    let is_option = before[protocol_at] == 6 && word + 5 < usize::from(before[at + 12] >> 4);
    is_option.then_some((OPTIONS + word, 4))
}

fn low(difference: u64) -> u8 {
    difference.to_le_bytes()[0] & 0x7f
}

fn zigzag(difference: u64) -> u64 {
    let signed = difference.cast_signed();
    (signed << 1 ^ signed >> 63).cast_unsigned()
}

fn unzigzag(word: u64) -> u64 {
    word >> 1 ^ (word & 1).wrapping_neg()
}

/// The records of these headers, and how many datagrams of `room` bytes they fill.
pub(crate) fn compressed(headers: &[Kept], room: usize) -> (Vec<u8>, usize) {
    let (mut state, mut out) = (State::new(), Vec::new());
    let (mut datagrams, mut left) = (0, 0);
    for header in headers {
        let before = out.len();
        state.compress(header, &mut out);
        let len = out.len() - before;
        if len > left {
            datagrams += 1;
            left = room - START_LEN;
        }
        left -= len;
    }
    (out, datagrams)
}
