//! Version 2 of the protocol, ours: many reports of one kind in a datagram, numbered per
//! reporter so that loss is counted in reports, and with the time of the first.
//!
//! ```text
//!  0 opcode u8       0x21 Key-Write, 0x22 Append, 0x23 Key-Increment, 0x24 Postcard
//!  1 flags u8        bit 7 immediate, bit 6 retransmittable, others 0
//!  2 count u16       reports, not 0
//!  4 sequence u32    number of the first report; counts the reporter's reports, modulo 2^32
//!  8 time_ns u64     when the first report was made, since 1970
//! 16 key_len u8      1 to 40; 0 for Append
//! 17 data_len u8     Key-Write, Append 1 to 64; Key-Increment 8; Postcard 4
//! 18 redundancy u8   Key-Write, Key-Increment; 0 for others
//! 19 session u8      another number whenever the reporter has started again from sequence 0
//! 20 count reports   Key-Write: key | data          Append: list u32 | data
//!                    Key-Increment: key | add u64   Postcard: key | hop u8 | path_len u8 | value u32
//! ```
//!
//! Hops count from 0; a path length of 0 is not known.

use strata_wire::exact;

use super::{DATA_LEN_MAX, Flags, KEY_LEN_MAX, Primitive, Refusal, Report, held32, held64};

/// Bytes before the reports.
pub const HEADER_LEN: usize = 20;

const FLAGS: usize = 1;
const COUNT: usize = 2;
const SEQUENCE: usize = 4;
const TIME: usize = 8;
const KEY_LEN: usize = 16;
const DATA_LEN: usize = 17;
const REDUNDANCY: usize = 18;
const SESSION: usize = 19;
const _: () = assert!(SESSION + 1 == HEADER_LEN && TIME + 8 == KEY_LEN && SEQUENCE + 4 == TIME);

/// The primitive of an opcode.
#[inline]
#[must_use]
pub fn primitive(opcode: u8) -> Option<Primitive> {
    let index = usize::from(opcode.checked_sub(0x21)?);
    Primitive::ALL.get(index).copied()
}

/// Whether a datagram is of this version, as far as its opcode says.
#[inline]
#[must_use]
pub fn is_packed(datagram: &[u8]) -> bool {
    datagram
        .first()
        .is_some_and(|&opcode| primitive(opcode).is_some())
}

/// The number of reports in the header of a datagram of this version, of which nothing else was checked; `None` if the
/// datagram is of another version, or too short.
#[inline]
#[must_use]
pub fn stated_count(datagram: &[u8]) -> Option<u16> {
    let count = datagram.get(COUNT..)?.first_chunk()?;
    is_packed(datagram).then(|| u16::from_be_bytes(*count))
}

/// The opcode of a primitive.
#[must_use]
pub fn opcode(primitive: Primitive) -> u8 {
    match primitive {
        Primitive::KeyWrite => 0x21,
        Primitive::Append => 0x22,
        Primitive::KeyIncrement => 0x23,
        Primitive::Postcard => 0x24,
    }
}

/// Bytes of one report.
#[inline]
fn report_len(primitive: Primitive, key_len: usize, data_len: usize) -> usize {
    match primitive {
        // Each of these has 8 bits.
        Primitive::KeyWrite | Primitive::KeyIncrement => key_len.wrapping_add(data_len),
        Primitive::Append => data_len.wrapping_add(4),
        Primitive::Postcard => key_len.wrapping_add(data_len).wrapping_add(2),
    }
}

/// Whether reports may have these lengths.
fn check_lens(primitive: Primitive, key_len: usize, data_len: usize) -> Result<(), Refusal> {
    let key_fits = match primitive {
        Primitive::Append => key_len == 0,
        _ => (1..=KEY_LEN_MAX).contains(&key_len),
    };
    let data_fits = match primitive {
        Primitive::KeyWrite | Primitive::Append => (1..=DATA_LEN_MAX).contains(&data_len),
        Primitive::KeyIncrement => data_len == 8,
        Primitive::Postcard => data_len == 4,
    };
    match (key_fits, data_fits) {
        (false, _) => Err(Refusal::KeyLen),
        (true, false) => Err(Refusal::DataLen),
        (true, true) => Ok(()),
    }
}

/// A view of a datagram whose length fits its header.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    primitive: Primitive,
}

impl<'a> Packet<'a> {
    /// A view of the payload of a UDP datagram.
    ///
    /// # Errors
    ///
    /// [`Refusal::Empty`], [`Refusal::Opcode`], [`Refusal::Length`], [`Refusal::Count`],
    /// [`Refusal::KeyLen`], [`Refusal::DataLen`], [`Refusal::Redundancy`].
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Refusal> {
        let opcode = *bytes.first().ok_or(Refusal::Empty)?;
        let primitive = primitive(opcode).ok_or(Refusal::Opcode)?;
        if bytes.len() < HEADER_LEN {
            return Err(Refusal::Length);
        }
        let packet = Self { bytes, primitive };
        if packet.count() == 0 {
            return Err(Refusal::Count);
        }
        let (key_len, data_len) = (packet.key_len(), packet.data_len());
        check_lens(primitive, key_len, data_len)?;
        let is_keyed = matches!(primitive, Primitive::KeyWrite | Primitive::KeyIncrement);
        if is_keyed && packet.redundancy() == 0 {
            return Err(Refusal::Redundancy);
        }
        let len = usize::from(packet.count())
            .checked_mul(report_len(primitive, key_len, data_len))
            .and_then(|len| len.checked_add(HEADER_LEN));
        if Some(bytes.len()) != len {
            return Err(Refusal::Length);
        }
        Ok(packet)
    }

    /// The primitive of its reports.
    #[inline]
    #[must_use]
    pub fn primitive(&self) -> Primitive {
        self.primitive
    }

    /// Its flags.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> Flags {
        Flags::from_byte(self.bytes[FLAGS])
    }

    /// Number of its reports.
    #[inline]
    #[must_use]
    pub fn count(&self) -> u16 {
        u16::from_be_bytes([self.bytes[COUNT], self.bytes[COUNT + 1]])
    }

    /// Number of its first report.
    #[inline]
    #[must_use]
    pub fn sequence(&self) -> u32 {
        held32(self.bytes, SEQUENCE)
    }

    /// Time of its first report, ns since 1970.
    #[inline]
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        held64(self.bytes, TIME)
    }

    /// The reporter's session, in which the sequence number counts.
    #[inline]
    #[must_use]
    pub fn session(&self) -> u8 {
        self.bytes[SESSION]
    }

    /// Copies that are to be stored.
    #[inline]
    #[must_use]
    pub fn redundancy(&self) -> u8 {
        self.bytes[REDUNDANCY]
    }

    /// Bytes of a key.
    #[inline]
    pub(crate) fn key_len(&self) -> usize {
        usize::from(self.bytes[KEY_LEN])
    }

    /// Bytes of data.
    #[inline]
    pub(crate) fn data_len(&self) -> usize {
        usize::from(self.bytes[DATA_LEN])
    }

    /// Bytes of a report; not 0.
    #[inline]
    pub(crate) fn report_len(&self) -> usize {
        report_len(self.primitive, self.key_len(), self.data_len())
    }

    /// The bytes of its reports, one after the other.
    #[inline]
    pub(crate) fn body(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..]
    }

    /// Its reports in order.
    #[inline]
    pub fn reports(&self) -> impl ExactSizeIterator<Item = Report<'a>> + use<'a> {
        let (primitive, redundancy, key_len) = (self.primitive, self.redundancy(), self.key_len());
        self.body()
            .chunks_exact(self.report_len())
            .map(move |bytes| {
                let (key, rest) = bytes.split_at(key_len);
                match primitive {
                    Primitive::KeyWrite => Report::KeyWrite {
                        redundancy,
                        key,
                        data: rest,
                    },
                    Primitive::Append => Report::Append {
                        list: held32(rest, 0),
                        data: &rest[4..],
                    },
                    Primitive::KeyIncrement => Report::KeyIncrement {
                        redundancy,
                        key,
                        counter: held64(rest, 0),
                    },
                    Primitive::Postcard => {
                        let (hop, path_len, value) = postcard(rest);
                        Report::Postcard {
                            key,
                            hop,
                            path_len,
                            value,
                        }
                    }
                }
            })
    }
}

/// A postcard's path length, where its hop does not know it.
const PATH_LEN_UNKNOWN: u8 = 0;

/// Hop, path length if it is known, and value of a postcard, after its key.
#[inline(always)]
pub(crate) fn postcard(rest: &[u8]) -> (u8, Option<u8>, u32) {
    let path_len = Some(rest[1]).filter(|&len| len != PATH_LEN_UNKNOWN);
    (rest[0], path_len, held32(rest, 2))
}

/// The header of a datagram to be written; its reports follow one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// The primitive of the reports.
    pub primitive: Primitive,
    /// Flags.
    pub flags: Flags,
    /// Number of the first report.
    pub sequence: u32,
    /// Time of the first report, ns since 1970.
    pub time_ns: u64,
    /// Bytes of a key; 0 for Append.
    pub key_len: u8,
    /// Bytes of data: 8 for Key-Increment, 4 for Postcard.
    pub data_len: u8,
    /// Copies to be stored; 0 for Append and Postcard.
    pub redundancy: u8,
    /// The reporter's session: another number after each restart.
    pub session: u8,
}

/// Sets the number of the first report, and how many there are, in a datagram.
pub(crate) fn number(datagram: &mut [u8], sequence: u32, count: u16) {
    datagram[COUNT..SEQUENCE].copy_from_slice(&count.to_be_bytes());
    datagram[SEQUENCE..TIME].copy_from_slice(&sequence.to_be_bytes());
}

impl Repr {
    /// The header for a report, with number, time and session 0.
    ///
    /// # Panics
    ///
    /// If a key is longer than 40 bytes, or data longer than 64.
    #[must_use]
    pub fn of(report: &Report<'_>, flags: Flags) -> Self {
        let (key, data_len, redundancy) = match *report {
            Report::KeyWrite {
                redundancy,
                key,
                data,
            } => (key, data.len(), redundancy),
            Report::Append { data, .. } => (&[][..], data.len(), 0),
            Report::KeyIncrement {
                redundancy, key, ..
            } => (key, 8, redundancy),
            Report::Postcard { key, .. } => (key, 4, 0),
        };
        let primitive = report.primitive();
        check_lens(primitive, key.len(), data_len).expect("lengths that are not refused");
        Self {
            primitive,
            flags,
            sequence: 0,
            time_ns: 0,
            key_len: exact::<u8>(key.len()),
            data_len: exact::<u8>(data_len),
            redundancy,
            session: 0,
        }
    }

    /// Whether reports of both can share a datagram.
    #[must_use]
    pub fn has_shape_of(&self, other: &Self) -> bool {
        let shape = |repr: &Self| {
            let lens = (repr.key_len, repr.data_len);
            (repr.primitive, repr.flags, lens, repr.redundancy)
        };
        shape(self) == shape(other)
    }

    /// Reads the header of a datagram.
    #[must_use]
    pub fn parse(packet: &Packet<'_>) -> Self {
        Self {
            primitive: packet.primitive(),
            flags: packet.flags(),
            sequence: packet.sequence(),
            time_ns: packet.time_ns(),
            key_len: packet.bytes[KEY_LEN],
            data_len: packet.bytes[DATA_LEN],
            redundancy: packet.redundancy(),
            session: packet.session(),
        }
    }

    /// Bytes of a datagram with this number of reports.
    #[must_use]
    pub fn buffer_len(&self, count: u16) -> usize {
        // 16 and 10 bits.
        let reports = usize::from(count).wrapping_mul(self.report_len());
        HEADER_LEN.wrapping_add(reports)
    }

    fn report_len(&self) -> usize {
        let (key_len, data_len) = (usize::from(self.key_len), usize::from(self.data_len));
        report_len(self.primitive, key_len, data_len)
    }

    /// Appends a datagram to `out`.
    ///
    /// # Panics
    ///
    /// If the header would be refused, or a report is not as it says; if there are no reports,
    /// or more than 65,535.
    pub fn emit(&self, reports: &[Report<'_>], out: &mut Vec<u8>) {
        let count = u16::try_from(reports.len()).expect("a count has 16 bits");
        let start = out.len();
        self.emit_header(count, out);
        for report in reports {
            self.emit_report(report, out);
        }
        debug_assert_eq!(out[start..].len(), self.buffer_len(count));
    }

    /// Appends the header of a datagram with `count` reports.
    pub(crate) fn emit_header(&self, count: u16, out: &mut Vec<u8>) {
        let (key_len, data_len) = (usize::from(self.key_len), usize::from(self.data_len));
        check_lens(self.primitive, key_len, data_len).expect("lengths that are not refused");
        assert!(count > 0, "a datagram holds a report");
        out.extend_from_slice(&[opcode(self.primitive), self.flags.byte()]);
        out.extend_from_slice(&count.to_be_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&self.time_ns.to_be_bytes());
        out.extend_from_slice(&[self.key_len, self.data_len, self.redundancy, self.session]);
    }

    /// Appends a report.
    pub(crate) fn emit_report(&self, report: &Report<'_>, out: &mut Vec<u8>) {
        let of = Self::of(report, self.flags);
        assert!(self.has_shape_of(&of), "reports of one shape a datagram");
        match *report {
            Report::KeyWrite { key, data, .. } => {
                out.extend_from_slice(key);
                out.extend_from_slice(data);
            }
            Report::Append { list, data } => {
                out.extend_from_slice(&list.to_be_bytes());
                out.extend_from_slice(data);
            }
            Report::KeyIncrement { key, counter, .. } => {
                out.extend_from_slice(key);
                out.extend_from_slice(&counter.to_be_bytes());
            }
            Report::Postcard {
                key,
                hop,
                path_len,
                value,
            } => {
                out.extend_from_slice(key);
                out.extend_from_slice(&[hop, path_len.unwrap_or(PATH_LEN_UNKNOWN)]);
                out.extend_from_slice(&value.to_be_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Datagram;
    use super::*;
    use proptest::prelude::*;

    /// Put together by hand from the byte map.
    const KEY_WRITE: &[u8] = b"\x21\x40\0\x02\x01\x02\x03\x04\x17\x9a\xbc\xde\xf0\x12\x34\x56\
        \x03\x05\x02\x07abchelloxyzworld";
    const POSTCARD: &[u8] = b"\x24\0\0\x01\0\0\0\x09\0\0\0\0\0\0\0\x01\
        \x02\x04\0\0ab\x04\x05\0\0\x12\x34";

    #[test]
    fn the_opcode_and_the_count_are_read_of_what_is_there() {
        for opcode in 0..=u8::MAX {
            let is_ours = (0x21..=0x24).contains(&opcode);
            let datagram = [opcode, 0, 1, 2];
            assert_eq!(is_packed(&datagram), is_ours);
            assert_eq!(is_packed(&datagram[..1]), is_ours);
            assert_eq!(stated_count(&datagram), is_ours.then_some(0x0102));
            assert_eq!(stated_count(&datagram[..3]), None);
            let primitive = match opcode {
                0x01 | 0x21 => Some(Primitive::KeyWrite),
                0x02 | 0x22 => Some(Primitive::Append),
                0x03 | 0x23 => Some(Primitive::KeyIncrement),
                0x04 | 0x24 => Some(Primitive::Postcard),
                _ => None,
            };
            assert_eq!(Primitive::of(&datagram), primitive);
        }
        assert_eq!((is_packed(&[]), stated_count(&[])), (false, None));
        assert_eq!(Primitive::of(&[]), None);
    }

    #[test]
    fn golden_datagrams_read_and_write_the_same_bytes() {
        let packet = Packet::new_checked(KEY_WRITE).unwrap();
        let repr = Repr {
            primitive: Primitive::KeyWrite,
            flags: Flags {
                immediate: false,
                retransmittable: true,
            },
            sequence: 0x0102_0304,
            time_ns: 0x179a_bcde_f012_3456,
            key_len: 3,
            data_len: 5,
            redundancy: 2,
            session: 7,
        };
        assert_eq!(Repr::parse(&packet), repr);
        let reports: Vec<_> = packet.reports().collect();
        let report = |key, data| Report::KeyWrite {
            redundancy: 2,
            key,
            data,
        };
        assert_eq!(
            reports,
            [report(b"abc", b"hello"), report(b"xyz", b"world")]
        );
        let mut out = Vec::new();
        repr.emit(&reports, &mut out);
        assert_eq!(out, KEY_WRITE);

        let packet = Packet::new_checked(POSTCARD).unwrap();
        let reports: Vec<_> = packet.reports().collect();
        let expected = Report::Postcard {
            key: b"ab",
            hop: 4,
            path_len: Some(5),
            value: 0x1234,
        };
        assert_eq!(reports, [expected]);
        let mut out = Vec::new();
        Repr::parse(&packet).emit(&reports, &mut out);
        assert_eq!(out, POSTCARD);
    }

    #[test]
    fn what_is_wrong_with_a_header_is_said() {
        let change = |at: usize, value: u8| {
            let mut bytes = KEY_WRITE.to_vec();
            bytes[at] = value;
            Packet::new_checked(&bytes).err()
        };
        assert_eq!(change(0, 0x25), Some(Refusal::Opcode));
        assert_eq!(change(3, 0), Some(Refusal::Count));
        assert_eq!(change(3, 3), Some(Refusal::Length));
        assert_eq!(change(16, 0), Some(Refusal::KeyLen));
        assert_eq!(change(16, 41), Some(Refusal::KeyLen));
        assert_eq!(change(17, 0), Some(Refusal::DataLen));
        assert_eq!(change(17, 65), Some(Refusal::DataLen));
        assert_eq!(change(18, 0), Some(Refusal::Redundancy));
        assert_eq!(change(0, 0x22), Some(Refusal::KeyLen));
        assert_eq!(change(0, 0x23), Some(Refusal::DataLen));
        for len in 1..KEY_WRITE.len() {
            let refusal = Packet::new_checked(&KEY_WRITE[..len]).err();
            assert_eq!(refusal, Some(Refusal::Length), "{len} bytes");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Whatever comes is refused, or every report of it is read; nothing panics.
        #[test]
        fn any_bytes_are_refused_or_read(
            mut bytes in prop::collection::vec(any::<u8>(), 0..120),
            opcode in prop::sample::select(vec![1_u8, 2, 3, 4, 0x21, 0x22, 0x23, 0x24, 9]),
            lens in prop::option::of((0_u8..4, 0_u8..9)),
        ) {
            if let Some(first) = bytes.first_mut() {
                *first = opcode;
            }
            if let (Some((key_len, data_len)), true) = (lens, bytes.len() > HEADER_LEN) {
                bytes[2] = 0;
                bytes[3] %= 8;
                bytes[KEY_LEN] = key_len;
                bytes[DATA_LEN] = data_len;
            }
            match Datagram::new_checked(&bytes) {
                Ok(Datagram::Published(packet)) => { let _ = packet.report(); }
                Ok(Datagram::Packed(packet)) => {
                    prop_assert_eq!(packet.reports().count(), usize::from(packet.count()));
                }
                Err(_) => {}
            }
        }
    }
}
