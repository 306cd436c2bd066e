//! Headers into datagrams.

use strata_wire::LinkType;

use super::fields::{Fields, PREFIX_MAX, network_at};
use super::index::Index;
use super::kind::Head;
use super::model::Model;
use super::{Header, TooLong, fast_write, other, write};
use crate::bits::{Position, Writer};
use crate::datagram::{Datagram, HEADER_LEN, Kind, LEN_MAX, LEN_MIN, Source};

/// Compresses the headers of one interface into datagrams of a given size. Takes some 50 KiB, and
/// nothing more whatever the packets.
#[derive(Debug)]
pub struct HeaderWriter {
    room: usize,
    /// Of the datagram that is being filled, or the next one.
    datagram: Datagram,
    next_packet: u64,
    model: Model,
    index: Index,
    bytes: Box<[u8]>,
    position: Position,
    /// Whether a time was not a whole number of microseconds.
    is_fine: bool,
    /// Whether [`fast_write`] writes what it can. Tests compare what [`super::write`] makes of it.
    pub(super) is_fast: bool,
}

impl HeaderWriter {
    /// A writer of datagrams of at most `room` bytes, whose numbers start at 0.
    ///
    /// # Panics
    ///
    /// If `room` is not between [`LEN_MIN`] and [`LEN_MAX`], or the identity is 0 or has more than 24 bits.
    #[must_use]
    pub fn new(source: Source, link: LinkType, room: usize) -> Self {
        assert!(
            (LEN_MIN..=LEN_MAX).contains(&room),
            "{room}: not a datagram's length"
        );
        Self {
            room,
            datagram: Datagram::first(Kind::Headers, source, link),
            next_packet: 0,
            model: Model::new(),
            index: Index::new(),
            bytes: vec![0; room + Writer::SLACK].into_boxed_slice(),
            position: Position::new(HEADER_LEN, room + Writer::SLACK),
            is_fine: false,
            is_fast: true,
        }
    }

    /// Datagrams have at most so many bytes from now on: the path's MTU has changed. Sends what waits.
    ///
    /// # Panics
    ///
    /// As [`HeaderWriter::new`].
    pub fn set_room(&mut self, room: usize, send: impl FnMut(&[u8])) {
        assert!(
            (LEN_MIN..=LEN_MAX).contains(&room),
            "{room}: not a datagram's length"
        );
        if room == self.room {
            return;
        }
        self.finish(send);
        self.bytes = vec![0; room + Writer::SLACK].into_boxed_slice();
        self.room = room;
    }

    /// The number of the next packet: so many were given.
    #[must_use]
    pub fn next_packet(&self) -> u64 {
        self.next_packet
    }

    /// The number of the next datagram: so many were sent.
    #[must_use]
    pub fn next_datagram(&self) -> u64 {
        self.datagram.number
    }

    /// How many packets wait in a datagram that is not full yet.
    #[must_use]
    pub fn waiting(&self) -> u16 {
        self.datagram.packets
    }

    /// Takes a header; a datagram that is full goes to `send` first.
    ///
    /// # Errors
    ///
    /// If no datagram of this size holds it. It has a number all the same, so that whoever reads
    /// counts it as lost.
    #[inline]
    pub fn put(&mut self, header: &Header<'_>, mut send: impl FnMut(&[u8])) -> Result<(), TooLong> {
        if self.datagram.packets > 0 {
            if self.fits(header) {
                return Ok(());
            }
            self.finish(&mut send);
        }
        self.begin(header.ts_ns);
        if self.fits(header) {
            return Ok(());
        }
        self.next_packet += 1;
        Err(TooLong {
            len: header.bytes.len(),
            room: self.room,
        })
    }

    /// Counts packets that were to be exported and are lost already, so that whoever reads knows.
    pub fn skip(&mut self, packets: u64, send: impl FnMut(&[u8])) {
        // Numbers within a datagram have no gaps.
        self.finish(send);
        self.next_packet += packets;
    }

    /// Sends what waits.
    pub fn finish(&mut self, send: impl FnMut(&[u8])) {
        if self.datagram.packets > 0 {
            self.send(send);
        }
    }

    /// Sends what waits, and a datagram without packets, whose numbers say how many there were: so
    /// the last ones are counted too if they are lost.
    pub fn end(&mut self, mut send: impl FnMut(&[u8])) {
        self.finish(&mut send);
        self.datagram.first_packet = self.next_packet;
        self.position = self.at_start();
        self.send(send);
    }

    fn send(&mut self, mut send: impl FnMut(&[u8])) {
        let bytes = Writer::new(&mut self.bytes, self.position).finish();
        self.datagram.write(bytes);
        send(bytes);
        let packets = u64::from(self.datagram.packets);
        if packets > 1 {
            let span = self.model.time_ns.saturating_sub(self.datagram.time_ns);
            let unit = if self.is_fine { 1 } else { 1000 };
            // Rice codes of exponential gaps are shortest near the mean times ln 2.
            let mean = span / unit / packets;
            let typical = mean - mean / 10 * 3;
            self.datagram.time_bits = typical.max(1).ilog2().min(Datagram::TIME_BITS_MAX);
        }
        self.datagram.number += 1;
        self.datagram.packets = 0;
    }

    fn begin(&mut self, ts_ns: u64) {
        self.datagram.first_packet = self.next_packet;
        self.datagram.time_ns = ts_ns;
        self.datagram.in_microseconds = !self.is_fine;
        self.index.restart(&self.model);
        self.model.restart(ts_ns);
        self.position = self.at_start();
    }

    /// Before the first record.
    fn at_start(&self) -> Position {
        Position::new(HEADER_LEN, self.bytes.len())
    }

    /// Whether the header fits into the datagram; it is there then.
    #[inline]
    fn fits(&mut self, header: &Header<'_>) -> bool {
        if self.datagram.packets == u16::MAX {
            return false;
        }
        let difference = header.ts_ns.wrapping_sub(self.model.time_ns);
        let mut units = difference;
        if self.datagram.in_microseconds {
            units = difference / 1000;
            if !difference.is_multiple_of(1000) {
                // Once a clock was finer, it will be again.
                self.is_fine = true;
                return false;
            }
        }
        let end = self.bytes.len();
        let mut context = write::Context {
            m: &mut self.model,
            index: &mut self.index,
            datagram: &self.datagram,
            difference,
            units,
        };
        let fast = if self.is_fast {
            fast_write::write(&mut self.bytes, self.position, &mut context, header)
        } else {
            None
        };
        let position = if let Some(position) = fast {
            position
        } else {
            let room = self.room - self.position.len(end);
            let mut w = Writer::new(&mut self.bytes, self.position);
            if !put(&mut w, &mut context, header, room) {
                return false;
            }
            w.position()
        };
        if position.len(end) > self.room {
            // What the model learned goes with the datagram, which ends here.
            return false;
        }
        self.position = position;
        self.datagram.packets += 1;
        self.next_packet += 1;
        true
    }
}

/// Writes a header; not if it is known that there is no room.
#[inline(never)]
fn put(
    w: &mut Writer<'_>,
    context: &mut write::Context<'_>,
    header: &Header<'_>,
    room: usize,
) -> bool {
    if let Some(at) = network_at(context.datagram.link, header.bytes)
        && at <= PREFIX_MAX
        && let Some((prefix, ip)) = header.bytes.split_at_checked(at)
    {
        if let Some((fields, sums)) = Fields::<false>::parse(ip) {
            write::plain(w, context, header, prefix, &fields, sums);
            return true;
        }
        if let Some((fields, sums)) = Fields::<true>::parse(ip) {
            write::plain(w, context, header, prefix, &fields, sums);
            return true;
        }
    }
    if other::len_max(header.bytes) > room || header.bytes.len() > usize::from(u16::MAX) {
        return false;
    }
    write::start(w, context, header, Head::OTHER);
    other::write(
        w,
        &mut context.m.others,
        header.bytes,
        header.wire_len,
        room,
    );
    true
}
