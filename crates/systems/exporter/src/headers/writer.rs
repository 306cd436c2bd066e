//! Headers into datagrams.

use strata_wire::LinkType;

use super::fast::write::{self as fast_write, Outcome};
use super::fields::{Fields, PREFIX_MAX, network_at};
use super::index::Index;
use super::kind::Head;
use super::model::Model;
use super::{Header, TooLong, other, write};
use crate::bits::{Position, Writer};
use crate::datagram::{Datagram, HEADER_LEN, Kind, LEN_MAX, LEN_MIN, Numbered, Source};

/// Maximum number of zeros that fill up a datagram: more than nearly all headers take.
const FILL_MAX: usize = 64;

/// Compresses the headers of one interface into datagrams of a given size. Takes about 50 KiB, with any packets.
#[derive(Debug)]
pub struct HeaderWriter {
    room: usize,
    /// Of the datagram that is being filled, or the next one.
    datagram: Datagram,
    /// Packets before that datagram.
    packets_before: u64,
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
            packets_before: 0,
            model: Model::new(),
            index: Index::new(),
            bytes: vec![0; room.wrapping_add(Writer::SLACK)].into_boxed_slice(),
            position: Position::new(HEADER_LEN, room.wrapping_add(Writer::SLACK)),
            is_fine: false,
            is_fast: true,
        }
    }

    /// Limits the bytes of datagrams from now on: the path's MTU has changed. Sends the waiting headers.
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
        self.bytes = vec![0; room.wrapping_add(Writer::SLACK)].into_boxed_slice();
        self.room = room;
    }

    /// The number of the next packet: the count of those given.
    #[must_use]
    pub fn next_packet(&self) -> u64 {
        self.packets_before
            .wrapping_add(u64::from(self.datagram.packets))
    }

    /// The number of the next datagram: the count of those sent.
    #[must_use]
    pub fn next_datagram(&self) -> u64 {
        self.datagram.number
    }

    /// The numbers of what was sent so far, without the headers that wait in a partly filled datagram.
    #[must_use]
    pub fn numbered(&self) -> Numbered {
        Numbered {
            datagrams: self.datagram.number,
            packets: self.packets_before,
        }
    }

    /// The number of packets that wait in a partly filled datagram.
    #[must_use]
    pub fn waiting(&self) -> u16 {
        self.datagram.packets
    }

    /// Takes a header; a datagram that is full goes to `send` first.
    ///
    /// # Errors
    ///
    /// If it does not fit into a datagram of this size. It still gets a number, so that the reader counts it as lost.
    #[inline]
    pub fn put(&mut self, header: &Header<'_>, mut send: impl FnMut(&[u8])) -> Result<(), TooLong> {
        if self.datagram.packets > 0 {
            if self.fits(header) {
                return Ok(());
            }
            self.send(self.full_len(), &mut send);
        }
        self.begin(header.ts_ns);
        if self.fits(header) {
            return Ok(());
        }
        self.packets_before = self.packets_before.wrapping_add(1);
        Err(TooLong {
            len: header.bytes.len(),
            room: self.room,
        })
    }

    /// Counts packets that were to be exported and are lost already, so that the reader knows.
    pub fn skip(&mut self, packets: u64, send: impl FnMut(&[u8])) {
        // Numbers within a datagram have no gaps.
        self.finish(send);
        self.packets_before = self.packets_before.wrapping_add(packets);
    }

    /// Sends the waiting headers.
    pub fn finish(&mut self, send: impl FnMut(&[u8])) {
        if self.datagram.packets > 0 {
            self.send(0, send);
        }
    }

    /// Sends the waiting headers, and a datagram without packets, whose numbers give the totals, so that the last
    /// packets are counted, too, if they are lost.
    pub fn end(&mut self, mut send: impl FnMut(&[u8])) {
        self.finish(&mut send);
        self.datagram.first_packet = self.packets_before;
        self.position = self.at_start();
        self.send(0, send);
    }

    /// How long a datagram becomes into which the next header does not fit: as long as there is room, unless
    /// much is left. Those of one length leave together, at the cost of one (`UDP_SEGMENT`).
    fn full_len(&self) -> usize {
        let left = self.room.wrapping_sub(self.position.len(self.bytes.len()));
        if left <= FILL_MAX { self.room } else { 0 }
    }

    /// Sends what waits, in at least `len` bytes.
    fn send(&mut self, len: usize, mut send: impl FnMut(&[u8])) {
        let bytes = Writer::new(&mut self.bytes, self.position).finish(len);
        self.datagram.write(bytes);
        send(bytes);
        let packets = u64::from(self.datagram.packets);
        if packets > 1 {
            let span = self.model.time_ns.saturating_sub(self.datagram.time_ns);
            let unit = if self.is_fine { 1 } else { 1000 };
            // Rice codes of exponential gaps are shortest near the mean times ln 2.
            let mean = span.div_euclid(unit).div_euclid(packets);
            let typical = mean.wrapping_sub((mean / 10).wrapping_mul(3));
            self.datagram.time_bits = typical.max(1).ilog2().min(Datagram::TIME_BITS_MAX);
        }
        self.datagram.number = self.datagram.number.wrapping_add(1);
        self.packets_before = self.packets_before.wrapping_add(packets);
        self.datagram.packets = 0;
    }

    fn begin(&mut self, ts_ns: u64) {
        self.datagram.first_packet = self.packets_before;
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
        let (bytes, position) = (&mut self.bytes, &mut self.position);
        let (m, index, datagram) = (&mut self.model, &mut self.index, &self.datagram);
        let outcome = if cfg!(test) && !self.is_fast {
            Outcome::Other
        } else {
            let context = write::Context {
                m,
                index,
                datagram,
                difference,
                units,
            };
            fast_write::write(bytes, position, self.room, context, header)
        };
        let is_there = match outcome {
            Outcome::Written => true,
            // What the model learned goes with the datagram, which ends here.
            Outcome::Full => false,
            Outcome::Other => {
                // Its own, so that the other one need not be in memory.
                let context = write::Context {
                    m,
                    index,
                    datagram,
                    difference,
                    units,
                };
                put(bytes, position, self.room, context, header)
            }
        };
        if !is_there {
            return false;
        }
        // Not the most that there can be, as was checked above.
        self.datagram.packets = self.datagram.packets.wrapping_add(1);
        true
    }
}

/// Writes a header that [`fast_write`] does not; whether there is room for it.
#[inline(never)]
fn put(
    bytes: &mut [u8],
    position: &mut Position,
    room: usize,
    mut context: write::Context<'_>,
    header: &Header<'_>,
) -> bool {
    let end = bytes.len();
    let left = room.wrapping_sub(position.len(end));
    let mut w = Writer::new(bytes, *position);
    if !put_any(&mut w, &mut context, header, left) || w.position().len(end) > room {
        return false;
    }
    *position = w.position();
    true
}

/// Writes a header; not if it is known that there is no room.
#[inline(always)]
fn put_any(
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
