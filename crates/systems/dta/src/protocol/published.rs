//! Reports as the programs send them that were published with the paper.
//!
//! They disagree: the P4 reporter, and the P4 translator unless it tracks NACKs, have a base
//! header of 2 bytes, the packet generators one of 3. The length of the UDP payload tells.
//!
//! ```text
//! Switch     0 opcode u8 | flags u8
//! Generator  0 opcode u8 | sequence u8 | flags u8
//! then       Key-Write      redundancy u8 | key 4 | data 4 * n    7 or 8 bytes in all, and the data
//!            Append         list u32 | data 4                     10 or 11
//!            Key-Increment  redundancy u8 | key 4 | counter u64   15 or 16
//!            Postcard       key 4 | hop u8, from 1 | data u32     11 or 12
//! ```

use super::{DATA_LEN_MAX, Flags, Primitive, Refusal, Report, held32, held64};

/// The form of a datagram's base header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// 2 bytes: opcode, flags.
    Switch,
    /// 3 bytes: opcode, sequence number, flags.
    Generator,
}

impl Form {
    /// Bytes of the base header.
    #[inline]
    #[must_use]
    pub fn header_len(self) -> usize {
        match self {
            Self::Switch => 2,
            Self::Generator => 3,
        }
    }
}

/// The opcode of a primitive.
#[must_use]
pub fn opcode(primitive: Primitive) -> u8 {
    match primitive {
        Primitive::KeyWrite => 0x01,
        Primitive::Append => 0x02,
        Primitive::KeyIncrement => 0x03,
        Primitive::Postcard => 0x04,
    }
}

/// The primitive of an opcode.
#[inline]
#[must_use]
pub fn primitive(opcode: u8) -> Option<Primitive> {
    Some(match opcode {
        0x01 => Primitive::KeyWrite,
        0x02 => Primitive::Append,
        0x03 => Primitive::KeyIncrement,
        0x04 => Primitive::Postcard,
        _ => return None,
    })
}

/// Bytes after the base header, of Key-Write with data of 4 bytes.
#[inline]
fn body_len(primitive: Primitive) -> usize {
    match primitive {
        Primitive::KeyWrite | Primitive::Postcard => 9,
        Primitive::Append => 8,
        Primitive::KeyIncrement => 13,
    }
}

/// Bytes beyond those of [`body_len`] that a Key-Write may have: a header of 3, and data of 64.
const DATA_MORE_MAX: usize = 3 + DATA_LEN_MAX - 4;

/// A view of a datagram whose length fits its opcode.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    form: Form,
    primitive: Primitive,
}

impl<'a> Packet<'a> {
    /// A view of the payload of a UDP datagram.
    ///
    /// # Errors
    ///
    /// [`Refusal::Empty`], [`Refusal::Opcode`], [`Refusal::Length`].
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Refusal> {
        let opcode = *bytes.first().ok_or(Refusal::Empty)?;
        let primitive = primitive(opcode).ok_or(Refusal::Opcode)?;
        let form = match (bytes.len().checked_sub(body_len(primitive)), primitive) {
            (Some(2), _) => Form::Switch,
            (Some(3), _) => Form::Generator,
            // The programs write 4 bytes, the paper 20 (§6.1, table 2): words, so the length tells.
            (Some(more @ 2..=DATA_MORE_MAX), Primitive::KeyWrite) => match more % 4 {
                2 => Form::Switch,
                3 => Form::Generator,
                _ => return Err(Refusal::Length),
            },
            _ => return Err(Refusal::Length),
        };
        Ok(Self {
            bytes,
            form,
            primitive,
        })
    }

    /// The form of its base header.
    #[must_use]
    pub fn form(&self) -> Form {
        self.form
    }

    /// Its primitive.
    #[inline]
    #[must_use]
    pub fn primitive(&self) -> Primitive {
        self.primitive
    }

    /// Its sequence number, if its form has one.
    #[inline]
    #[must_use]
    pub fn sequence(&self) -> Option<u8> {
        match self.form {
            Form::Switch => None,
            Form::Generator => Some(self.bytes[1]),
        }
    }

    /// Its flags.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> Flags {
        // Its last byte.
        Flags::from_byte(self.bytes[self.form.header_len().wrapping_sub(1)])
    }

    /// Its report.
    ///
    /// # Errors
    ///
    /// [`Refusal::Hop`] for a postcard of hop 0: these programs count hops from 1.
    #[inline]
    pub fn report(&self) -> Result<Report<'a>, Refusal> {
        let body = &self.bytes[self.form.header_len()..];
        Ok(match self.primitive {
            Primitive::KeyWrite => Report::KeyWrite {
                redundancy: body[0],
                key: &body[1..5],
                data: &body[5..],
            },
            Primitive::Append => Report::Append {
                list: held32(body, 0),
                data: &body[4..8],
            },
            Primitive::KeyIncrement => Report::KeyIncrement {
                redundancy: body[0],
                key: &body[1..5],
                counter: held64(body, 5),
            },
            Primitive::Postcard => Report::Postcard {
                key: &body[..4],
                hop: body[4].checked_sub(1).ok_or(Refusal::Hop)?,
                path_len: None,
                value: held32(body, 5),
            },
        })
    }
}

/// The contents of a datagram, to be read and written. With a sequence number it has the generators' form, without one
/// the switches'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr<'a> {
    /// Sequence number.
    pub sequence: Option<u8>,
    /// Flags.
    pub flags: Flags,
    /// The report: its key and data have 4 bytes (data of Key-Write several words), its path length is
    /// not known.
    pub report: Report<'a>,
}

impl<'a> Repr<'a> {
    /// Reads a datagram.
    ///
    /// # Errors
    ///
    /// As [`Packet::report`].
    pub fn parse(packet: &Packet<'a>) -> Result<Self, Refusal> {
        Ok(Self {
            sequence: packet.sequence(),
            flags: packet.flags(),
            report: packet.report()?,
        })
    }

    /// Bytes of the datagram.
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        let header_len: usize = if self.sequence.is_some() { 3 } else { 2 };
        let more = match self.report {
            Report::KeyWrite { data, .. } => data.len().saturating_sub(4),
            _ => 0,
        };
        let body_len = body_len(self.report.primitive()).wrapping_add(more);
        body_len.wrapping_add(header_len)
    }

    /// Appends the datagram to `out`.
    ///
    /// # Panics
    ///
    /// If the key does not have 4 bytes, or the data (of Key-Write, a multiple of 4), a path length is
    /// given, or the hop is 255.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(opcode(self.report.primitive()));
        out.extend(self.sequence);
        out.push(self.flags.byte());
        match self.report {
            Report::KeyWrite {
                redundancy,
                key,
                data,
            } => {
                out.push(redundancy);
                out.extend_from_slice(key);
                out.extend_from_slice(data);
            }
            Report::Append { list, data } => {
                out.extend_from_slice(&list.to_be_bytes());
                out.extend_from_slice(data);
            }
            Report::KeyIncrement {
                redundancy,
                key,
                counter,
            } => {
                out.push(redundancy);
                out.extend_from_slice(key);
                out.extend_from_slice(&counter.to_be_bytes());
            }
            Report::Postcard {
                key,
                hop,
                path_len,
                value,
            } => {
                assert_eq!(path_len, None, "there is no place for a path length");
                out.extend_from_slice(key);
                out.push(hop.checked_add(1).expect("hops are 0 to 254"));
                out.extend_from_slice(&value.to_be_bytes());
            }
        }
        assert_eq!(
            out[start..].len(),
            self.buffer_len(),
            "keys and data: 4 bytes"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Datagrams put together by hand from the headers of the published programs: the P4
    /// reporter's `dta_base_h` and the generators' `dta_base`, with the sub-headers that follow.
    const GOLDEN: [(&[u8], Option<u8>, Flags, Report<'static>); 10] = {
        const NONE: Flags = Flags {
            immediate: false,
            retransmittable: false,
        };
        const BOTH: Flags = Flags {
            immediate: true,
            retransmittable: true,
        };
        const KEY: &[u8] = &[0x0a, 0, 0, 0x33];
        const DATA: &[u8] = &[0xde, 0xad, 0xbe, 0xef];
        const KEY_WRITE: Report<'_> = Report::KeyWrite {
            redundancy: 2,
            key: KEY,
            data: DATA,
        };
        const PATH: Report<'_> = Report::KeyWrite {
            redundancy: 2,
            key: KEY,
            data: b"five hops of 4 bytes",
        };
        const APPEND: Report<'_> = Report::Append {
            list: 513,
            data: DATA,
        };
        const INCREMENT: Report<'_> = Report::KeyIncrement {
            redundancy: 4,
            key: KEY,
            counter: 0x0102_0304_0506_0708,
        };
        const POSTCARD: Report<'_> = Report::Postcard {
            key: KEY,
            hop: 4,
            path_len: None,
            value: 0xdead_beef,
        };
        [
            (
                b"\x01\0\x02\x0a\0\0\x33\xde\xad\xbe\xef",
                None,
                NONE,
                KEY_WRITE,
            ),
            (
                b"\x01\x07\xc0\x02\x0a\0\0\x33\xde\xad\xbe\xef",
                Some(7),
                BOTH,
                KEY_WRITE,
            ),
            (
                b"\x01\0\x02\x0a\0\0\x33five hops of 4 bytes",
                None,
                NONE,
                PATH,
            ),
            (
                b"\x01\x07\xc0\x02\x0a\0\0\x33five hops of 4 bytes",
                Some(7),
                BOTH,
                PATH,
            ),
            (b"\x02\xc0\0\0\x02\x01\xde\xad\xbe\xef", None, BOTH, APPEND),
            (
                b"\x02\xff\0\0\0\x02\x01\xde\xad\xbe\xef",
                Some(255),
                NONE,
                APPEND,
            ),
            (
                b"\x03\0\x04\x0a\0\0\x33\x01\x02\x03\x04\x05\x06\x07\x08",
                None,
                NONE,
                INCREMENT,
            ),
            (
                b"\x03\x01\0\x04\x0a\0\0\x33\x01\x02\x03\x04\x05\x06\x07\x08",
                Some(1),
                NONE,
                INCREMENT,
            ),
            (
                b"\x04\0\x0a\0\0\x33\x05\xde\xad\xbe\xef",
                None,
                NONE,
                POSTCARD,
            ),
            (
                b"\x04\x09\0\x0a\0\0\x33\x05\xde\xad\xbe\xef",
                Some(9),
                NONE,
                POSTCARD,
            ),
        ]
    };

    #[test]
    fn both_forms_of_every_primitive_read_and_write_the_same_bytes() {
        for (bytes, sequence, flags, report) in GOLDEN {
            let packet = Packet::new_checked(bytes).unwrap();
            let repr = Repr {
                sequence,
                flags,
                report,
            };
            assert_eq!(Repr::parse(&packet), Ok(repr));
            let mut out = Vec::new();
            repr.emit(&mut out);
            assert_eq!(out, bytes);
            assert_eq!(repr.buffer_len(), bytes.len());
        }
    }

    #[test]
    fn any_other_length_is_refused() {
        let longest = [1; 3 + 5 + DATA_LEN_MAX];
        assert!(Packet::new_checked(&longest).is_ok());
        assert!(Packet::new_checked(&[&longest[..], &[0; 4]].concat()).is_err());
        for (bytes, ..) in GOLDEN {
            for len in 0..40 {
                let mut other = bytes.to_vec();
                other.resize(len, 0);
                let primitive = Packet::new_checked(bytes).unwrap().primitive();
                let more = len.checked_sub(body_len(primitive));
                let fits = more.is_some_and(|more| match primitive {
                    Primitive::KeyWrite => matches!(more % 4, 2 | 3) && more >= 2,
                    _ => matches!(more, 2 | 3),
                });
                let refusal = Packet::new_checked(&other).err();
                let expected = match len {
                    0 => Some(Refusal::Empty),
                    _ if fits => None,
                    _ => Some(Refusal::Length),
                };
                assert_eq!(refusal, expected, "{len} bytes of opcode {}", bytes[0]);
            }
        }
        for opcode in [0x00, 0x05, 0x20, 0xff] {
            assert_eq!(
                Packet::new_checked(&[opcode; 11]).err(),
                Some(Refusal::Opcode)
            );
        }
    }

    #[test]
    fn reserved_bits_do_not_matter_and_hop_0_is_refused() {
        let packet = Packet::new_checked(b"\x01\x3f\x02\x0a\0\0\x33\xde\xad\xbe\xef").unwrap();
        assert_eq!(packet.flags(), Flags::default());
        let postcard = Packet::new_checked(b"\x04\0\x0a\0\0\x33\0\xde\xad\xbe\xef").unwrap();
        assert_eq!(postcard.report(), Err(Refusal::Hop));
    }
}
