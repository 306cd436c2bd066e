//! Negative acknowledgements: UDP port 40044 of the reporter.
//!
//! ```text
//! published  0 sequence u8 | nack 1, reserved 7
//! version 2  0 opcode 0x2f | nack 1, reserved 7 | count u16
//!            4 sequence u32, of the first report that was dropped
//! ```

use super::held32;

const OPCODE: u8 = 0x2f;
const NACK: u8 = 0x80;

/// Reports were dropped; the reporter may send them again, with the same numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nack {
    /// Of the published protocol.
    Published {
        /// The dropped report's.
        sequence: u8,
    },
    /// Of version 2.
    Packed {
        /// Number of the first dropped report.
        sequence: u32,
        /// How many, one after the other.
        count: u16,
    },
}

impl Nack {
    /// Reads the payload of a UDP datagram; `None` if it is not a negative acknowledgement.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        match *bytes {
            [sequence, flags] if flags & NACK != 0 => Some(Self::Published { sequence }),
            [OPCODE, flags, high, low, _, _, _, _] if flags & NACK != 0 => Some(Self::Packed {
                sequence: held32(bytes, 4),
                count: u16::from_be_bytes([high, low]),
            }),
            _ => None,
        }
    }

    /// Appends the payload of a UDP datagram to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Published { sequence } => out.extend_from_slice(&[sequence, NACK]),
            Self::Packed { sequence, count } => {
                out.extend_from_slice(&[OPCODE, NACK]);
                out.extend_from_slice(&count.to_be_bytes());
                out.extend_from_slice(&sequence.to_be_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_nacks() {
        let packed = Nack::Packed {
            sequence: 0x0102_0304,
            count: 5,
        };
        for (nack, golden) in [
            (Nack::Published { sequence: 9 }, &b"\x09\x80"[..]),
            (packed, b"\x2f\x80\0\x05\x01\x02\x03\x04"),
        ] {
            let mut out = Vec::new();
            nack.emit(&mut out);
            assert_eq!(out, golden);
            assert_eq!(Nack::parse(golden), Some(nack));
        }
        assert_eq!(Nack::parse(b"\x09\0"), None);
        assert_eq!(Nack::parse(b""), None);
    }
}
