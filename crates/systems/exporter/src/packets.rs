//! Packets as datagrams and back: whole or their first bytes, uncompressed, in pieces where they do
//! not fit into what is left of a datagram.
//!
//! A packet is counted in the datagram that has its end, so [`Sequence`](crate::Sequence) counts
//! packets as it does headers. One of which only the end arrives is not handed out: see
//! [`PacketReader::read`].
#![allow(
    unsafe_code,
    reason = "derives of zerocopy, which check that every byte pattern is a value"
)]

use std::collections::{HashMap, VecDeque};

use strata_wire::{LinkType, exact, layout};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::datagram::{
    Datagram, FormatError, HEADER_LEN, Kind, LEN_MAX, LEN_MIN, Numbered, Source,
};
use crate::headers::{Header, Label};

/// Maximum exported bytes of a packet: the largest snapshot length of captures.
pub const PACKET_MAX: usize = 1 << 18;
/// A packet is not begun in a datagram that has room for less of it, unless that is all.
const PIECE_MIN: usize = 32;
/// Packets of a source of which pieces wait for others at most; of more, the oldest is given up.
const WAITING_MAX: usize = 64;
/// And their bytes.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// Bytes of all sources; for more, the one that has been silent longest gives up its own.
const ALL_BYTES_MAX: usize = 64 << 20;
/// And how many sources have packets that wait.
const SOURCES_MAX: usize = 4096;

/// Before each piece, little-endian.
///
/// ```text
///  0 time u64           ns since 1970
///  8 wire_len u32       bytes of the packet on the wire
/// 12 total u32          bytes of it that are exported
/// 16 offset u32         of the piece's first byte
/// 20 len u16            bytes of the piece
/// 22 policy u16
/// 24 one_in u32         packets that it stands for
/// 28 class u8
/// 29 reserved u8 = 0
/// 30 reserved u16 = 0
/// 32 the bytes
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Piece {
    time: U64,
    wire_len: U32,
    total: U32,
    offset: U32,
    len: U16,
    policy: U16,
    one_in: U32,
    class: u8,
    reserved: u8,
    reserved_2: U16,
}
layout!(
    Piece, 32,
    time at 0, wire_len at 8, total at 12, offset at 16, len at 20, policy at 22, one_in at 24,
    class at 28, reserved at 29, reserved_2 at 30,
);
const PIECE_LEN: usize = size_of::<Piece>();
const _: () = assert!(LEN_MIN >= HEADER_LEN + PIECE_LEN + PIECE_MIN);

/// Puts the packets of one interface into datagrams of a given size.
#[derive(Debug)]
pub struct PacketWriter {
    room: usize,
    /// Of the datagram that is being filled, or the next one.
    datagram: Datagram,
    next_packet: u64,
    bytes: Vec<u8>,
}

impl PacketWriter {
    /// A writer of datagrams of at most `room` bytes, whose numbers start at 0.
    ///
    /// # Panics
    ///
    /// If `room` is not between [`LEN_MIN`] and [`LEN_MAX`], or the identity is 0 or has more than
    /// 24 bits.
    #[must_use]
    pub fn new(source: Source, link: LinkType, room: usize) -> Self {
        let mut writer = Self {
            room: LEN_MIN,
            datagram: Datagram::first(Kind::Packets, source, link),
            next_packet: 0,
            bytes: vec![0; HEADER_LEN],
        };
        writer.set_room(room, |_| ());
        writer
    }

    /// Limits the bytes of datagrams from now on. Sends the waiting packets.
    ///
    /// # Panics
    ///
    /// As [`PacketWriter::new`].
    pub fn set_room(&mut self, room: usize, send: impl FnMut(&[u8])) {
        assert!(
            (LEN_MIN..=LEN_MAX).contains(&room),
            "{room}: not a datagram's length"
        );
        if room != self.room {
            self.finish(send);
            self.room = room;
        }
    }

    /// The number of the next packet: the count of those given.
    #[must_use]
    pub fn next_packet(&self) -> u64 {
        self.next_packet
    }

    /// The numbers of what was sent so far, without the packets that wait in a partly filled datagram.
    #[must_use]
    pub fn numbered(&self) -> Numbered {
        Numbered {
            datagrams: self.datagram.number,
            packets: self
                .next_packet
                .wrapping_sub(u64::from(self.datagram.packets)),
        }
    }

    /// Takes a packet, whose bytes beyond [`PACKET_MAX`] are cut. Full datagrams go to `send`.
    pub fn put(&mut self, packet: &Header<'_>, mut send: impl FnMut(&[u8])) {
        let bytes = &packet.bytes[..packet.bytes.len().min(PACKET_MAX)];
        let mut offset = 0;
        loop {
            let rest = &bytes[offset..];
            let free = self.room.wrapping_sub(self.bytes.len());
            if free < PIECE_LEN.wrapping_add(rest.len().min(PIECE_MIN))
                || self.datagram.packets == u16::MAX
            {
                self.send(&mut send);
                continue;
            }
            // A datagram is shorter than 65,536 bytes.
            let piece = &rest[..rest.len().min(free.wrapping_sub(PIECE_LEN))];
            let fields = Piece {
                time: packet.ts_ns.into(),
                wire_len: packet.wire_len.into(),
                total: exact::<u32>(bytes.len()).into(),
                offset: exact::<u32>(offset).into(),
                len: exact::<u16>(piece.len()).into(),
                policy: packet.label.policy.into(),
                one_in: packet.label.one_in.into(),
                class: packet.label.class,
                reserved: 0,
                reserved_2: 0.into(),
            };
            self.bytes.extend_from_slice(fields.as_bytes());
            self.bytes.extend_from_slice(piece);
            offset = offset.wrapping_add(piece.len());
            if offset == bytes.len() {
                break;
            }
        }
        self.datagram.packets = self.datagram.packets.wrapping_add(1);
        self.next_packet = self.next_packet.wrapping_add(1);
    }

    /// Counts packets that were to be exported and are lost already, so that the reader knows.
    pub fn skip(&mut self, packets: u64, send: impl FnMut(&[u8])) {
        // Numbers within a datagram have no gaps.
        self.finish(send);
        self.next_packet = self.next_packet.wrapping_add(packets);
        self.datagram.first_packet = self.next_packet;
    }

    /// Sends the waiting packets.
    pub fn finish(&mut self, send: impl FnMut(&[u8])) {
        if self.bytes.len() > HEADER_LEN {
            self.send(send);
        }
    }

    /// Sends the waiting packets, and a datagram without packets, whose numbers give the totals.
    pub fn end(&mut self, mut send: impl FnMut(&[u8])) {
        self.finish(&mut send);
        self.send(send);
    }

    fn send(&mut self, mut send: impl FnMut(&[u8])) {
        self.datagram.write(&mut self.bytes);
        send(&self.bytes);
        self.bytes.truncate(HEADER_LEN);
        self.datagram.number = self.datagram.number.wrapping_add(1);
        self.datagram.packets = 0;
        self.datagram.first_packet = self.next_packet;
    }
}

/// A packet of which some pieces have arrived.
#[derive(Debug)]
struct Waiting {
    number: u64,
    /// The first bytes are a piece's; the same in all of them but for offset and length.
    first: Piece,
    bytes: Vec<u8>,
    /// Where pieces begin and end, in order.
    pieces: Vec<(usize, usize)>,
}

/// Packets of one source of which pieces are missing, oldest first.
#[derive(Debug, Default)]
struct Incomplete {
    packets: VecDeque<Waiting>,
    bytes: usize,
    /// When a piece came last, in pieces of all sources.
    last: u64,
}

impl Incomplete {
    /// Gives up the oldest; how many bytes it took.
    fn give_up_oldest(&mut self) -> usize {
        let oldest = self.packets.pop_front();
        let bytes = oldest.map_or(0, |oldest| oldest.bytes.len());
        self.bytes = self.bytes.wrapping_sub(bytes);
        bytes
    }
}

/// Reads datagrams of any source. Incomplete packets take at most 4 MiB per source, and 64 MiB in total.
#[derive(Debug, Default)]
pub struct PacketReader {
    /// Sources that have such packets.
    sources: HashMap<Source, Incomplete>,
    bytes: usize,
    /// Pieces that came.
    pieces: u64,
}

impl PacketReader {
    /// A reader.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `take` with the number and the bytes of each packet that is complete; returns the datagram's header. To be
    /// called once for each datagram, in any order.
    ///
    /// A packet is counted in the datagram with its end: `packets` minus the number of packets given to `take` is the
    /// number of packets with pieces that are lost or not there yet.
    ///
    /// # Errors
    ///
    /// If the bytes are not a valid datagram, or at the first invalid piece; the packets before it were taken.
    pub fn read(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(u64, &Header<'_>),
    ) -> Result<Datagram, FormatError> {
        let wrong = |what, offset| FormatError {
            what,
            offset,
            len: bytes.len(),
        };
        let datagram = Datagram::read(bytes)?;
        datagram.expect(Kind::Packets, bytes.len())?;
        let (mut number, mut at) = (datagram.first_packet, HEADER_LEN);
        let end = datagram
            .first_packet
            .wrapping_add(u64::from(datagram.packets));
        while at < bytes.len() {
            let (piece, rest) = Piece::read_from_prefix(&bytes[at..])
                .map_err(|_| wrong("a truncated record", at))?;
            let data = rest
                .get(..usize::from(piece.len.get()))
                .ok_or_else(|| wrong("a truncated packet", at))?;
            let (offset, total) = (piece.offset.get() as usize, piece.total.get() as usize);
            if total > PACKET_MAX
                || offset.wrapping_add(data.len()) > total
                || data.is_empty() && total > 0
            {
                return Err(wrong("an invalid length or offset of a piece", at));
            }
            let is_end = offset.wrapping_add(data.len()) == total;
            if is_end && number == end {
                return Err(wrong("more packets than its header announces", at));
            }
            if data.len() == total {
                take(number, &piece.header(data));
            } else {
                let source = datagram.source;
                if let Some(whole) = self.join((source, number), &piece, data) {
                    take(number, &whole.first.header(&whole.bytes));
                }
            }
            // Within the bytes: both were.
            at = at.wrapping_add(PIECE_LEN).wrapping_add(data.len());
            number = number.wrapping_add(u64::from(is_end));
        }
        if number != end {
            return Err(wrong("fewer packets than its header announces", at));
        }
        Ok(datagram)
    }

    /// Adds a piece to its packet; returns that if it is complete now. One that contradicts the others
    /// is as good as lost.
    fn join(
        &mut self,
        (source, number): (Source, u64),
        piece: &Piece,
        data: &[u8],
    ) -> Option<Waiting> {
        let total = piece.total.get() as usize;
        let known = self.sources.get(&source).is_some_and(|own| {
            let mut numbers = own.packets.iter().map(|waiting| waiting.number);
            numbers.any(|waiting| waiting == number)
        });
        if !known {
            self.begin(source, number, piece, total);
        }
        self.pieces = self.pieces.wrapping_add(1);
        let own = self.sources.get_mut(&source)?;
        own.last = self.pieces;
        let place = own.packets.iter().position(|at| at.number == number)?;
        if !own.packets[place].add(piece, data)? {
            return None;
        }
        own.bytes = own.bytes.wrapping_sub(total);
        self.bytes = self.bytes.wrapping_sub(total);
        let whole = own.packets.remove(place);
        if own.packets.is_empty() {
            self.sources.remove(&source);
        }
        whole
    }

    /// Makes room for a packet of `total` bytes.
    fn begin(&mut self, source: Source, number: u64, piece: &Piece, total: usize) {
        let own = self.sources.entry(source).or_default();
        while own.packets.len() >= WAITING_MAX || own.bytes.wrapping_add(total) > WAITING_BYTES_MAX
        {
            self.bytes = self.bytes.wrapping_sub(own.give_up_oldest());
        }
        own.bytes = own.bytes.wrapping_add(total);
        self.bytes = self.bytes.wrapping_add(total);
        own.packets.push_back(Waiting {
            number,
            first: *piece,
            bytes: vec![0; total],
            pieces: Vec::new(),
        });
        while self.bytes > ALL_BYTES_MAX || self.sources.len() > SOURCES_MAX {
            let others = self.sources.iter().filter(|(of, _)| **of != source);
            let silent = others.min_by_key(|(_, own)| own.last);
            let Some((&silent, _)) = silent else { break };
            let given_up = self.sources.remove(&silent);
            self.bytes = self
                .bytes
                .wrapping_sub(given_up.map_or(0, |given_up| given_up.bytes));
        }
    }
}

impl Waiting {
    /// Adds a piece; whether the packet is complete now, or `None` if the piece contradicts others.
    fn add(&mut self, piece: &Piece, data: &[u8]) -> Option<bool> {
        let (offset, total) = (piece.offset.get() as usize, piece.total.get() as usize);
        if self.bytes.len() != total {
            return None;
        }
        let (start, end) = (offset, offset.wrapping_add(data.len()));
        let after = self.pieces.partition_point(|&(begins, _)| begins < start);
        let before = after.checked_sub(1).map_or(0, |at| self.pieces[at].1);
        let next = self.pieces.get(after).map_or(total, |&(begins, _)| begins);
        if before > start || next < end {
            return None;
        }
        self.pieces.insert(after, (start, end));
        self.bytes[start..end].copy_from_slice(data);
        let have = self
            .pieces
            .iter()
            .map(|&(begins, ends)| ends.wrapping_sub(begins));
        Some(have.sum::<usize>() == total)
    }
}

impl Piece {
    fn header<'a>(&self, bytes: &'a [u8]) -> Header<'a> {
        Header {
            ts_ns: self.time.get(),
            wire_len: self.wire_len.get(),
            bytes,
            label: Label {
                policy: self.policy.get(),
                class: self.class,
                one_in: self.one_in.get(),
            },
        }
    }
}
