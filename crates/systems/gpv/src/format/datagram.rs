//! Our own format (version 2): many vectors in a datagram, IPv4, IPv6 and Ethernet, times in ns,
//! the columns that were chosen, and numbers, so that readers count what was lost.

use strata_wire::{AddressFamily, Endpoint, exact};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::{DatagramHeader, VectorHeader};
use super::paper::count;
use super::{FormatError, NotCarried, PAST, start_ns_max};
use crate::key::Key;
use crate::tuple::{Column, Columns, Full, Tuple};
use crate::vector::{Grouped, Reason, Vector};

/// "Strata, grouped packet vectors".
const MAGIC: [u8; 4] = *b"SGPV";
/// Version 1 is the paper's.
const VERSION: u8 = 2;
const HEADER_LEN: usize = size_of::<DatagramHeader>();
const VECTOR_HEADER_LEN: usize = size_of::<VectorHeader>();
/// Bit of a vector's flags.
const SATURATED: u8 = 1;

/// Bytes of a datagram with a vector of one tuple of every column, over IPv6.
pub const LEN_MIN: usize = HEADER_LEN + VECTOR_HEADER_LEN + 2 * 16 + size_of::<Full>();
/// Bytes of a datagram: what fits into Ethernet's 1,500 with IPv6 and UDP.
pub const LEN_USUAL: usize = 1452;
/// The largest payload of UDP over IPv4.
pub const LEN_MAX: usize = 65_507;

/// Fills datagrams with vectors of one cache for one destination.
#[derive(Debug)]
pub struct DatagramWriter {
    cache: u32,
    columns: Columns,
    room: usize,
    next_seq: u64,
    in_datagram: u16,
    bytes: Vec<u8>,
}

impl DatagramWriter {
    /// A writer of datagrams of at most `room` bytes with these columns, whose vectors are
    /// numbered from 0.
    ///
    /// # Panics
    ///
    /// If `room` is not within a datagram header and [`LEN_MAX`], or [`Column::Time`] is not chosen.
    #[must_use]
    pub fn new(cache: u32, columns: Columns, room: usize) -> Self {
        Self::resume(cache, columns, room, 0)
    }

    /// As [`DatagramWriter::new`], with vectors that are numbered from `next_seq`: for a
    /// destination that was there before.
    ///
    /// # Panics
    ///
    /// As [`DatagramWriter::new`].
    #[must_use]
    pub fn resume(cache: u32, columns: Columns, room: usize, next_seq: u64) -> Self {
        let mut writer = Self {
            cache,
            columns,
            room,
            next_seq,
            in_datagram: 0,
            bytes: Vec::new(),
        };
        writer.reshape(columns, room, |_| ());
        writer.bytes.reserve(room);
        writer
    }

    /// Sends the datagram that is begun; those that follow have these columns and at most `room`
    /// bytes. Numbers go on.
    ///
    /// # Panics
    ///
    /// As [`DatagramWriter::new`].
    pub fn reshape(&mut self, columns: Columns, room: usize, send: impl FnMut(&[u8])) {
        assert!(
            (HEADER_LEN..=LEN_MAX).contains(&room),
            "{room} bytes are no datagram"
        );
        assert!(
            columns.has(Column::Time),
            "tuples without times have no order"
        );
        self.finish(send);
        self.columns = Columns(columns.0 & Columns::ALL.0);
        self.room = room;
    }

    /// The number of the next vector: the count of those written.
    #[must_use]
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Puts a vector into the datagram; one that is full goes to `send` first.
    ///
    /// # Errors
    ///
    /// If no datagram of this size holds the vector. It gets a number all the same, so that
    /// who reads counts it as lost.
    pub fn put(
        &mut self,
        vector: &Vector<'_, Full>,
        mut send: impl FnMut(&[u8]),
    ) -> Result<(), NotCarried> {
        let count = count(vector.count());
        let body = vector.count().wrapping_mul(self.columns.tuple_len());
        let len = VECTOR_HEADER_LEN
            .wrapping_add(address_len(vector.key.family()).wrapping_mul(2))
            .wrapping_add(body);
        if count.is_err() || HEADER_LEN.wrapping_add(len) > self.room {
            // The numbers of a datagram are consecutive: the next one begins after the gap.
            self.finish(&mut send);
            self.next_seq = self.next_seq.wrapping_add(1);
            let (needed, room) = (HEADER_LEN.wrapping_add(len), self.room);
            return Err(match count {
                Err(error) => error,
                Ok(_) => NotCarried::Datagram { needed, room },
            });
        }
        let count = count?;
        if self.bytes.len().wrapping_add(len) > self.room || self.in_datagram == u16::MAX {
            self.finish(&mut send);
        }
        if self.bytes.is_empty() {
            self.bytes.resize(HEADER_LEN, 0);
        }
        self.append(vector, count);
        self.in_datagram = self.in_datagram.wrapping_add(1);
        self.next_seq = self.next_seq.wrapping_add(1);
        Ok(())
    }

    /// Sends the datagram that is begun, if there is one.
    pub fn finish(&mut self, mut send: impl FnMut(&[u8])) {
        if self.in_datagram == 0 {
            return;
        }
        let header = self.header(self.bytes.len());
        self.bytes[..HEADER_LEN].copy_from_slice(header.as_bytes());
        send(&self.bytes);
        self.bytes.clear();
        self.in_datagram = 0;
    }

    /// Sends the datagram that is begun, and one without vectors, whose number says how many were
    /// sent: so its reader counts the last ones too if they are lost.
    pub fn end(&mut self, mut send: impl FnMut(&[u8])) {
        self.finish(&mut send);
        send(self.header(HEADER_LEN).as_bytes());
    }

    fn header(&self, len: usize) -> DatagramHeader {
        DatagramHeader {
            magic: MAGIC,
            version: VERSION,
            flags: 0,
            columns: self.columns.0.into(),
            cache: self.cache.into(),
            len: exact::<u16>(len).into(),
            vectors: self.in_datagram.into(),
            first_seq: self
                .next_seq
                .wrapping_sub(u64::from(self.in_datagram))
                .into(),
        }
    }

    fn append(&mut self, vector: &Vector<'_, Full>, count: u16) {
        let key = &vector.key;
        let (source, destination) = (key.source(), key.destination());
        let header = VectorHeader {
            start_ns: vector.start_ns.into(),
            slot: vector.slot.into(),
            count: count.into(),
            ingress: key.ingress().into(),
            source_port: source.port.into(),
            destination_port: destination.port.into(),
            protocol: key.protocol(),
            family: key.family() as u8,
            reason: vector.reason as u8,
            flags: if vector.saturated { SATURATED } else { 0 },
        };
        let out = &mut self.bytes;
        out.extend_from_slice(header.as_bytes());
        let skipped = 16_usize.wrapping_sub(address_len(key.family()));
        out.extend_from_slice(&source.address.to_be_bytes()[skipped..]);
        out.extend_from_slice(&destination.address.to_be_bytes()[skipped..]);
        for column in self.columns.iter() {
            let tuples = vector.tuples();
            match column.width() {
                4 => tuples.for_each(|t| out.extend_from_slice(&value(t, column).to_le_bytes())),
                width => tuples.for_each(|t| {
                    out.extend_from_slice(&value(t, column).to_le_bytes()[..width]);
                }),
            }
        }
    }
}

fn value(tuple: &Full, column: Column) -> u32 {
    tuple.get(column)
}

/// Bytes of an address.
fn address_len(family: AddressFamily) -> usize {
    match family {
        AddressFamily::Ipv4 => 4,
        AddressFamily::Ipv6 => 16,
        AddressFamily::Mac => 6,
    }
}

/// A datagram whose header was checked.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Which cache its vectors are from.
    pub cache: u32,
    /// What each tuple says.
    pub columns: Columns,
    /// Number of the first vector among those of its cache.
    pub first_seq: u64,
    /// How many vectors it says to hold.
    pub vectors: u16,
    bytes: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Checks the header.
    ///
    /// # Errors
    ///
    /// If it is cut, of another version, or lies about its length.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let wrong = |what, offset| FormatError::new(what, offset, bytes.len());
        let (header, _) = DatagramHeader::read_from_prefix(bytes)
            .map_err(|_| wrong("a truncated datagram header", bytes.len()))?;
        if header.magic != MAGIC {
            return Err(wrong("not grouped packet vectors: wrong magic number", 0));
        }
        if header.version != VERSION {
            return Err(wrong("a version of the format other than 2", 4));
        }
        if header.flags != 0 {
            return Err(wrong("unknown flags", 5));
        }
        let columns = Columns(header.columns.get());
        if columns.0 & !Columns::ALL.0 != 0 || !columns.has(Column::Time) {
            return Err(wrong("unknown columns, or no column of times", 6));
        }
        if usize::from(header.len.get()) != bytes.len() {
            return Err(wrong("a length other than the datagram's", 12));
        }
        if header
            .first_seq
            .get()
            .checked_add(u64::from(header.vectors.get()))
            .is_none()
        {
            return Err(wrong("a sequence number past the maximum", 16));
        }
        Ok(Self {
            cache: header.cache.get(),
            columns,
            first_seq: header.first_seq.get(),
            vectors: header.vectors.get(),
            bytes,
        })
    }

    /// The datagram without vectors that ends a file whose last datagram is this one: its number says how many
    /// vectors there were.
    #[must_use]
    pub fn end_after(&self) -> Vec<u8> {
        // The header was checked: this does not pass the last number.
        let next_seq = self.first_seq.wrapping_add(self.vectors.into());
        let mut bytes = Vec::new();
        DatagramWriter::resume(self.cache, self.columns, LEN_USUAL, next_seq)
            .end(|end| bytes.extend_from_slice(end));
        bytes
    }

    /// Calls `take` for each vector; `tuples` is where they are unpacked. Columns that were not
    /// sent are 0.
    ///
    /// # Errors
    ///
    /// At the first vector that is cut or says what cannot be; those before it were taken.
    pub fn for_each(
        &self,
        tuples: &mut Vec<Full>,
        mut take: impl FnMut(&Vector<'_, Full>),
    ) -> Result<(), FormatError> {
        let mut at = HEADER_LEN;
        for _ in 0..self.vectors {
            let (vector, next) = self.vector(at, tuples)?;
            take(&vector);
            at = next;
        }
        if at != self.bytes.len() {
            return Err(FormatError::new(
                "bytes after the last vector",
                at,
                self.bytes.len(),
            ));
        }
        Ok(())
    }

    /// All vectors, with their tuples one after the other in `tuples`, and where reading ended.
    pub(crate) fn all<'t>(
        &self,
        tuples: &'t mut Vec<Full>,
    ) -> (Vec<Vector<'t, Full>>, Result<(), FormatError>) {
        tuples.clear();
        let mut heads = Vec::with_capacity(usize::from(self.vectors).min(self.bytes.len() / 32));
        let mut at = HEADER_LEN;
        let mut result = Ok(());
        for _ in 0..self.vectors {
            match self.read(at, tuples) {
                Ok((head, count, next)) => {
                    heads.push((head, count));
                    at = next;
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if result.is_ok() && at != self.bytes.len() {
            let what = "bytes after the last vector";
            result = Err(FormatError::new(what, at, self.bytes.len()));
        }
        let mut rest: &'t [Full] = tuples;
        let vectors = heads.into_iter().map(|(head, count)| {
            let (these, others) = rest.split_at(count);
            rest = others;
            Vector {
                pieces: [these, &[]],
                ..head
            }
        });
        (vectors.collect(), result)
    }

    fn vector<'t>(
        &self,
        at: usize,
        tuples: &'t mut Vec<Full>,
    ) -> Result<(Vector<'t, Full>, usize), FormatError> {
        tuples.clear();
        let (head, _, next) = self.read(at, tuples)?;
        let pieces: [&'t [Full]; 2] = [tuples, &[]];
        Ok((Vector { pieces, ..head }, next))
    }

    /// The vector that begins at `at`, without its tuples, which are appended; how many there are;
    /// where the next one begins.
    fn read<'t>(
        &self,
        at: usize,
        tuples: &mut Vec<Full>,
    ) -> Result<(Vector<'t, Full>, usize, usize), FormatError> {
        let wrong = |what, offset| FormatError::new(what, offset, self.bytes.len());
        let (header, rest) = VectorHeader::read_from_prefix(&self.bytes[at..])
            .map_err(|_| wrong("a truncated vector header", at))?;
        let count = usize::from(header.count.get());
        if count == 0 {
            return Err(wrong("an empty vector", at.wrapping_add(12)));
        }
        if header.start_ns.get() > start_ns_max(Full::DELTA_MAX_NS) {
            return Err(wrong(PAST, at));
        }
        let family = match header.family {
            0 => AddressFamily::Mac,
            4 => AddressFamily::Ipv4,
            6 => AddressFamily::Ipv6,
            _ => return Err(wrong("an unknown address family", at.wrapping_add(21))),
        };
        let reason = Reason::from_number(header.reason)
            .ok_or_else(|| wrong("an unknown reason", at.wrapping_add(22)))?;
        if header.flags & !SATURATED != 0 {
            return Err(wrong("unknown flags of a vector", at.wrapping_add(23)));
        }
        let address_len = address_len(family);
        let len = address_len
            .wrapping_mul(2)
            .wrapping_add(count.wrapping_mul(self.columns.tuple_len()));
        let body = rest
            .get(..len)
            .ok_or_else(|| wrong("a truncated vector", self.bytes.len()))?;
        let (addresses, mut columns) = body.split_at(address_len.wrapping_mul(2));
        let first = tuples.len();
        tuples.resize(first.wrapping_add(count), Full::default());
        for column in self.columns.iter() {
            let width = column.width();
            let (values, others) = columns.split_at(count.wrapping_mul(width));
            for (tuple, value) in tuples[first..].iter_mut().zip(values.chunks_exact(width)) {
                let mut word = [0; 4];
                word[..width].copy_from_slice(value);
                tuple.set(column, u32::from_le_bytes(word));
            }
            columns = others;
        }
        let end = |address: &[u8], port| {
            let mut word = [0; 16];
            word[16_usize.wrapping_sub(address_len)..].copy_from_slice(address);
            Endpoint {
                address: u128::from_be_bytes(word),
                port,
            }
        };
        let (source, destination) = addresses.split_at(address_len);
        let key = Key::new(
            family,
            header.protocol,
            end(source, header.source_port.get()),
            end(destination, header.destination_port.get()),
            header.ingress.get(),
        );
        let head = Vector {
            key,
            start_ns: header.start_ns.get(),
            pieces: [&[], &[]],
            reason,
            saturated: header.flags & SATURATED != 0,
            slot: header.slot.get(),
        };
        Ok((
            head,
            count,
            at.wrapping_add(VECTOR_HEADER_LEN).wrapping_add(len),
        ))
    }
}
