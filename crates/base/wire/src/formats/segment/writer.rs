//! From packets to segments in messages.

use super::{ALIGNMENT, HEADER_LEN, PAYLOAD_LEN_MAX, SegmentHeader};

/// How packets are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// Messages of a whole MTU, each with as many segments as fit: what software sends fastest.
    #[default]
    Mtu,
    /// A message per segment, of 128 bytes of the packet, then of 64, 32, 16, 8, 4 and the rest:
    /// what a switch can do that parses only bounded headers (TitanLog §V-B).
    PowersOfTwo,
}

/// The largest segment of [`Layout::PowersOfTwo`], in bytes of the packet.
const POWER_MAX: usize = 128;
/// No piece of a packet smaller than this is put at the end of a message.
const PIECE_LEN_MIN: usize = 64;

/// What the segments of a packet say about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacketInfo {
    /// Sequence number.
    pub seq: u64,
    /// When it arrived, ns since 1970.
    pub ts_ns: u64,
    /// Its class.
    pub class: u8,
    /// The flags of its record.
    pub flags: u8,
}

/// Cuts packets into segments, and gathers them in messages to be written into a block. A packet
/// never spans blocks. Memory: one message.
#[derive(Debug)]
pub struct BlockWriter {
    key: u32,
    layout: Layout,
    /// Maximum bytes of a message.
    mtu: usize,
    block_bytes: usize,
    block: u32,
    /// Where in the block the message goes.
    message_at: usize,
    /// The message being gathered: `mtu` bytes.
    message: Box<[u8]>,
    /// How many of them are used, a multiple of [`ALIGNMENT`].
    message_len: usize,
    segments: u64,
}

impl BlockWriter {
    /// A writer of blocks of `block_bytes`, whose messages have at most `mtu` bytes.
    ///
    /// # Panics
    ///
    /// If the MTU is not an RDMA one, or a block is not a multiple of it.
    #[must_use]
    pub fn new(key: u32, layout: Layout, mtu: usize, block_bytes: usize) -> Self {
        assert!([256, 512, 1024, 2048, 4096].contains(&mtu), "MTU");
        assert!(
            block_bytes.is_multiple_of(mtu) && u32::try_from(block_bytes).is_ok(),
            "block"
        );
        Self {
            key,
            layout,
            mtu,
            block_bytes,
            block: 0,
            message_at: 0,
            message: vec![0; mtu].into_boxed_slice(),
            message_len: 0,
            segments: 0,
        }
    }

    /// Starts an empty block with this number, of which the low half is used. What was not flushed
    /// of the previous one is gone.
    #[allow(clippy::cast_possible_truncation)]
    pub fn begin(&mut self, block: u64) {
        self.block = block as u32;
        self.message_at = 0;
        self.message_len = 0;
        self.segments = 0;
    }

    /// Bytes of the block that are used.
    #[must_use]
    pub fn used(&self) -> usize {
        self.message_at + self.message_len
    }

    /// Segments in the block so far.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.segments
    }

    /// Whether a packet of this many bytes certainly fits in what is left.
    #[inline]
    #[must_use]
    pub fn fits(&self, packet_len: usize) -> bool {
        self.used() + self.stored_len_max(packet_len) <= self.block_bytes
    }

    /// Maximum bytes that a packet can take in a block.
    #[must_use]
    pub fn stored_len_max(&self, packet_len: usize) -> usize {
        let overhead = HEADER_LEN + ALIGNMENT;
        match self.layout {
            Layout::Mtu => {
                let segments = packet_len.div_ceil(self.mtu - HEADER_LEN) + 1;
                packet_len + segments * overhead + HEADER_LEN + PIECE_LEN_MIN
            }
            Layout::PowersOfTwo => packet_len + (packet_len / POWER_MAX + 8) * overhead,
        }
    }

    /// Messages that [`BlockWriter::push`] may post for a packet of this many bytes.
    #[inline]
    #[must_use]
    pub fn messages_max(&self, packet_len: usize) -> usize {
        match self.layout {
            Layout::Mtu => packet_len.div_ceil(self.mtu - HEADER_LEN) + 1,
            Layout::PowersOfTwo => packet_len / POWER_MAX + 8,
        }
    }

    /// Puts a packet into the block. Full messages go to `post`, with their place in the block.
    ///
    /// # Panics
    ///
    /// If the packet does not fit ([`BlockWriter::fits`]), or has more than 65,535
    /// segments.
    #[inline]
    pub fn push(&mut self, info: &PacketInfo, packet: &[u8], post: &mut impl FnMut(usize, &[u8])) {
        match self.layout {
            Layout::Mtu if self.takes_whole(packet.len()) => {
                if self.push_whole(info, packet) {
                    self.flush(post);
                }
            }
            Layout::Mtu => self.push_filling(info, packet, post),
            Layout::PowersOfTwo => self.push_powers(info, packet, post),
        }
    }

    /// Whether a packet of this many bytes fits in the message being gathered, as one segment: most
    /// packets do.
    #[inline]
    #[must_use]
    pub fn takes_whole(&self, packet_len: usize) -> bool {
        packet_len <= self.room() && self.layout == Layout::Mtu
    }

    /// Puts a packet that [fits](BlockWriter::takes_whole) into the message being gathered, and
    /// returns whether that is full: then it must be [flushed](BlockWriter::flush). In all, the same
    /// as [`BlockWriter::push`].
    ///
    /// # Panics
    ///
    /// If it does not fit.
    #[inline]
    #[must_use]
    pub fn push_whole(&mut self, info: &PacketInfo, packet: &[u8]) -> bool {
        self.segment(info, 0, 1, packet);
        self.room() == 0
    }

    /// Posts what has been gathered.
    pub fn flush(&mut self, post: &mut impl FnMut(usize, &[u8])) {
        if self.message_len > 0 {
            post(self.message_at, &self.message[..self.message_len]);
            self.message_at += self.message_len;
            self.message_len = 0;
        }
    }

    /// Bytes of a packet that fit in the message before it is full.
    #[inline]
    fn room(&self) -> usize {
        let limit = self.mtu.min(self.block_bytes - self.message_at);
        limit.saturating_sub(self.message_len + HEADER_LEN)
    }

    #[inline]
    fn push_filling(
        &mut self,
        info: &PacketInfo,
        packet: &[u8],
        post: &mut impl FnMut(usize, &[u8]),
    ) {
        if self.room() < PIECE_LEN_MIN.min(packet.len()) {
            // Filled with zeros, since runs of messages of equal length are sent faster.
            self.message[self.message_len..].fill(0);
            self.message_len = self.mtu;
            self.flush(post);
        }
        let first = self.room().min(packet.len());
        let others = self.mtu - HEADER_LEN;
        let total = 1 + (packet.len() - first).div_ceil(others);
        let total = u16::try_from(total).expect("segments of a packet");
        let (mut piece, mut rest) = packet.split_at(first);
        for index in 0..total {
            self.segment(info, index, total, piece);
            if self.room() == 0 {
                self.flush(post);
            }
            (piece, rest) = rest.split_at(rest.len().min(others));
        }
    }

    fn push_powers(
        &mut self,
        info: &PacketInfo,
        packet: &[u8],
        post: &mut impl FnMut(usize, &[u8]),
    ) {
        let tail = packet.len() % POWER_MAX;
        // One segment per bit of the length, and one for less than 4 bytes.
        let of_tail = (tail >> 2).count_ones() + u32::from(!tail.is_multiple_of(4));
        let total = packet.len() / POWER_MAX + of_tail as usize;
        // A packet of which nothing is kept still has a segment.
        let total = u16::try_from(total.max(1)).expect("segments of a packet");
        let mut rest = packet;
        for index in 0..total {
            let power = match rest.len() {
                len if len < 4 => len,
                len => POWER_MAX.min(1 << len.ilog2()),
            };
            let (piece, behind) = rest.split_at(power);
            self.segment(info, index, total, piece);
            self.flush(post);
            rest = behind;
        }
    }

    #[inline]
    fn segment(&mut self, info: &PacketInfo, index: u16, total: u16, piece: &[u8]) {
        debug_assert!(piece.len() <= PAYLOAD_LEN_MAX);
        let start = self.message_len;
        let stored = (HEADER_LEN + piece.len()).next_multiple_of(ALIGNMENT);
        let at = self.message_at + start;
        assert!(at + stored <= self.block_bytes, "the packet does not fit");
        let place = &mut self.message[start..start + stored];
        // What is not overwritten of it is padding.
        if let Some(last) = place.last_chunk_mut::<ALIGNMENT>() {
            *last = [0; ALIGNMENT];
        }
        place[HEADER_LEN..HEADER_LEN + piece.len()].copy_from_slice(piece);
        let header = SegmentHeader {
            block: self.block,
            seq: info.seq,
            ts_ns: info.ts_ns,
            len: u16::try_from(piece.len()).expect("at most PAYLOAD_LEN_MAX"),
            index,
            total,
            class: info.class,
            flags: info.flags,
        };
        header.emit(self.key, at, place);
        self.message_len += stored;
        self.segments += 1;
    }
}
