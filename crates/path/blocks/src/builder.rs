//! Filling a block: the hot side of the log.

mod definitions;
mod notes;
mod run;
mod seal;

pub use run::PacketRun;

use strata_sys::AlignedBytes;
use strata_wire::{CutWhere, FlowShare, KeepKind, exact};
use zerocopy::IntoBytes;

use crate::compact::{Compact, TIME_SLACK_NS};
use crate::format::{
    BlockHeader, FLAG_META, FLAG_PROMOTES, HEADER_LEN, PACKET_HEADER_LEN, PREFIX_LEN, PacketRecord,
    align_up, emit_packet_header, kind, record_len,
};
use crate::layout::Prefix;
use crate::promotion::Promotion;
use crate::summary::{ClassCount, SUMMARY_BYTES_MAX};

/// Counters per class.
const KEEPS: usize = KeepKind::ALL.len();
/// A block notes one plain flow per this many of its bytes before it gives up on its filter: as
/// many as it can hold packets.
const BYTES_PER_PLAIN: usize = 44;
/// The same for other packets, whose headers are longer.
const BYTES_PER_OTHER: usize = 64;
/// Fingerprints noted for each of them: two flows, with their addresses.
const NOTES_PER_OTHER: usize = 6;
/// Recently noted flows, which need not be noted again: 32 KiB.
const RECENT: usize = 1 << 12;

/// Counters of the packets in a block, which the worker then moves from `in_flight` to `logged` or
/// `dropped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounters {
    /// Packets.
    pub packets: u64,
    /// Their wire bytes, as the ledger counts them.
    pub wire_bytes: u64,
    /// Bytes kept.
    pub logged_bytes: u64,
    /// Bytes cut, by `CutWhere`.
    pub cut_bytes: [u64; 3],
    /// Earlier packets written again in full in this block.
    pub promoted_packets: u64,
    /// How many of their bytes had been cut, by `CutWhere`.
    pub promoted_bytes: [u64; 3],
}

impl BlockCounters {
    /// Counts a packet as the worker's ledger does.
    pub fn count(&mut self, packet: &PacketRecord<'_>) {
        let lengths = [packet.wire_len, packet.captured_len];
        self.count_lengths(lengths, packet.data.len() as u64, packet.keep);
    }

    /// Counts a packet of which `kept` bytes were kept, by its lengths on the wire and in the capture.
    #[inline]
    pub fn count_lengths(&mut self, [wire, captured]: [u32; 2], kept: u64, keep: KeepKind) {
        let (captured, wire) = (u64::from(captured), u64::from(wire.max(captured)));
        self.packets += 1;
        self.wire_bytes += wire;
        self.logged_bytes += kept;
        self.cut_bytes[CutWhere::Snaplen as usize] += wire - captured;
        // A record never holds more than was captured.
        self.cut_bytes[keep.cut_where() as usize] += captured - kept;
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.wire_bytes += other.wire_bytes;
        self.logged_bytes += other.logged_bytes;
        for (sum, bytes) in self.cut_bytes.iter_mut().zip(other.cut_bytes) {
            *sum += bytes;
        }
        self.promoted_packets += other.promoted_packets;
        for (sum, bytes) in self.promoted_bytes.iter_mut().zip(other.promoted_bytes) {
            *sum += bytes;
        }
    }

    /// What is left without `part`; `None` if that has more of anything.
    #[must_use]
    pub fn without(&self, part: &Self) -> Option<Self> {
        let each = |all: [u64; 3], part: [u64; 3]| -> Option<[u64; 3]> {
            Some([
                all[0].checked_sub(part[0])?,
                all[1].checked_sub(part[1])?,
                all[2].checked_sub(part[2])?,
            ])
        };
        Some(Self {
            packets: self.packets.checked_sub(part.packets)?,
            wire_bytes: self.wire_bytes.checked_sub(part.wire_bytes)?,
            logged_bytes: self.logged_bytes.checked_sub(part.logged_bytes)?,
            cut_bytes: each(self.cut_bytes, part.cut_bytes)?,
            promoted_packets: self.promoted_packets.checked_sub(part.promoted_packets)?,
            promoted_bytes: each(self.promoted_bytes, part.promoted_bytes)?,
        })
    }
}

/// A block's counters for one class and granularity.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    packets: u64,
    wire_bytes: u64,
    captured_bytes: u64,
    logged_bytes: u64,
}

/// A block being filled. Allocates only when created, and for a record larger than the whole block.
#[derive(Debug)]
pub struct BlockBuilder {
    /// Header space, records, and later the summary, aligned for direct writes. Touched in advance:
    /// the first touch of a page may take microseconds, too long for a packet to wait.
    bytes: AlignedBytes,
    /// Where the records end in `bytes`.
    len: usize,
    /// Where records must end to leave space for the summary.
    limit: usize,
    /// Bytes for header and records, unless a record is larger.
    block_bytes: usize,
    header: BlockHeader,
    /// By class and keep code.
    counts: Box<[[Count; KEEPS]; 256]>,
    /// One more than the largest class in `counts`.
    classes: usize,
    promoted_packets: u64,
    promoted_bytes: [u64; 3],
    fingerprints: Vec<u64>,
    /// Flows between IPv4 addresses; `seal` computes their fingerprints.
    plain: Box<[(u64, [u32; 2])]>,
    plain_len: usize,
    notes_full: bool,
    /// Of plain flows, while `seal` makes the filter.
    addresses: Box<[u32]>,
    recent: Box<[u64; RECENT]>,
    /// Added to what is in `recent`; another one for each filling.
    salt: u64,
    generation: u32,
    /// What times of compact records count from; `None` before the first.
    time_ns: Option<u64>,
    /// The interface of the last packet; it and the context are defined.
    last_interface: Option<u16>,
    /// 1 for each verdict defined in this block, by number.
    verdicts_defined: Box<[u8; 1 << 16]>,
    /// Their numbers.
    verdicts: Vec<u16>,
    /// Whether a verdict that was defined once is not defined again in later fillings.
    keeps_verdicts: bool,
    interfaces_defined: Vec<u64>,
    context_defined: bool,
    /// The number under which `bytes` is registered with the kernel.
    registered: Option<u16>,
    flow_share: Option<FlowShare>,
    /// The context defined last, and whether a policy may protect packets recorded with it.
    context: (Vec<u8>, bool),
}

impl BlockBuilder {
    /// An empty block of `block_bytes`.
    #[must_use]
    pub fn new(block_bytes: usize) -> Self {
        let block_bytes = align_up(block_bytes.max(64 << 10));
        let notes = block_bytes / BYTES_PER_PLAIN;
        let mut builder = Self {
            bytes: AlignedBytes::touched(block_bytes + SUMMARY_BYTES_MAX),
            len: HEADER_LEN,
            limit: block_bytes,
            block_bytes,
            header: BlockHeader::default(),
            counts: Box::new([[Count::default(); KEEPS]; 256]),
            classes: 0,
            promoted_packets: 0,
            promoted_bytes: [0; 3],
            fingerprints: touched(NOTES_PER_OTHER * block_bytes / BYTES_PER_OTHER),
            plain: vec![(1, [1; 2]); notes].into_boxed_slice(),
            plain_len: 0,
            notes_full: false,
            addresses: vec![1; 2 * notes].into_boxed_slice(),
            recent: Box::new([0; RECENT]),
            salt: 0,
            generation: 0,
            time_ns: None,
            last_interface: None,
            verdicts_defined: Box::new([0; 1 << 16]),
            verdicts: touched(1 << 16),
            keeps_verdicts: false,
            interfaces_defined: vec![0; 1 << 10],
            context_defined: false,
            registered: None,
            flow_share: None,
            context: (Vec::new(), true),
        };
        builder.reset(0);
        builder
    }

    /// A block for a reader that remembers all verdicts it has read: their numbers always stand for
    /// the same.
    #[must_use]
    pub(crate) fn keeping_verdicts(mut self) -> Self {
        self.keeps_verdicts = true;
        self
    }

    /// Empties the block; its first packet will have sequence number `first_seq` or a later one.
    pub fn reset(&mut self, first_seq: u64) {
        if self.limit > self.block_bytes {
            // A record larger than the block made it grow.
            self.bytes = AlignedBytes::touched(self.block_bytes + SUMMARY_BYTES_MAX);
            self.registered = None;
            self.limit = self.block_bytes;
        }
        self.len = HEADER_LEN;
        self.header = BlockHeader {
            first_seq,
            next_seq: first_seq,
            ts_min_ns: u64::MAX,
            ..BlockHeader::default()
        };
        self.counts[..self.classes].fill([Count::default(); KEEPS]);
        self.classes = 0;
        self.promoted_packets = 0;
        self.promoted_bytes = [0; 3];
        self.fingerprints.clear();
        self.plain_len = 0;
        self.notes_full = false;
        self.next_salt();
        self.time_ns = None;
        self.last_interface = None;
        if !self.keeps_verdicts {
            for id in self.verdicts.drain(..) {
                self.verdicts_defined[usize::from(id)] = 0;
            }
        }
        self.interfaces_defined.fill(0);
        self.context_defined = false;
        self.flow_share = None;
    }

    /// Whether it holds nothing but definitions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.header.packets == 0 && self.header.flags & (FLAG_META | FLAG_PROMOTES) == 0
    }

    /// The counters of all its packets, added up.
    #[must_use]
    pub fn counters(&self) -> BlockCounters {
        let mut counters = BlockCounters {
            promoted_packets: self.promoted_packets,
            promoted_bytes: self.promoted_bytes,
            ..BlockCounters::default()
        };
        for row in &self.counts[..self.classes] {
            for (keep, count) in KeepKind::ALL.into_iter().zip(row) {
                counters.packets += count.packets;
                counters.wire_bytes += count.wire_bytes;
                counters.logged_bytes += count.logged_bytes;
                let cut = &mut counters.cut_bytes;
                cut[CutWhere::Snaplen as usize] += count.wire_bytes - count.captured_bytes;
                let place = keep.cut_where();
                cut[place as usize] += count.captured_bytes - count.logged_bytes;
            }
        }
        counters
    }

    /// Sequence numbers: of the first packet, and one more than that of the last.
    #[must_use]
    pub fn sequence_range(&self) -> (u64, u64) {
        (self.header.first_seq, self.header.next_seq)
    }

    /// Its records so far.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.bytes[HEADER_LEN..self.len]
    }

    /// Appends records copied from another block, none of them packets.
    pub fn push_definitions(&mut self, records: &[u8]) {
        self.grow(records.len());
        self.bytes[self.len..self.len + records.len()].copy_from_slice(records);
        self.len += records.len();
        self.header.flags |= FLAG_META;
    }

    /// Bytes left for further records.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        self.limit - self.len
    }

    /// Makes space for a record larger than the block, which returns to its usual size once it is
    /// empty again.
    #[inline]
    pub fn grow(&mut self, room: usize) {
        if self.room() < room {
            self.grow_to(room);
        }
    }

    #[cold]
    fn grow_to(&mut self, room: usize) {
        let grown = align_up(self.len + room);
        let mut bytes = AlignedBytes::touched(grown + SUMMARY_BYTES_MAX);
        bytes[..self.len].copy_from_slice(&self.bytes[..self.len]);
        self.bytes = bytes;
        self.registered = None;
        self.limit = grown;
    }

    /// Appends a packet. `class` is its verdict's. There must be space for 32 bytes and its data,
    /// and for 8 more and its options if it has any.
    ///
    /// # Panics
    ///
    /// If there is not enough space.
    #[inline(always)]
    pub fn push_packet(&mut self, packet: &PacketRecord<'_>, class: u8) {
        let kept = packet.data.len();
        // Else it does not follow from the packet before.
        let is_next = self.header.packets == 0 || packet.seq == self.header.next_seq;
        let mut compact = Compact::of(packet).filter(|_| is_next);
        if let Some(compact) = &mut compact {
            compact.set_time(self.since_time(packet.ts_ns));
        }
        if !packet.options.is_empty() {
            self.push_record(kind::PACKET_OPTIONS, 0, 0, &[packet.options]);
        }
        let place = &mut self.bytes[self.len..];
        let header_len = match compact {
            Some(compact) => {
                place[..compact.bytes.len()].copy_from_slice(&compact.bytes);
                compact.len
            }
            None => {
                if let Some(header) = place.first_chunk_mut() {
                    emit_packet_header(packet, header);
                }
                PACKET_HEADER_LEN
            }
        };
        copy(packet.data, &mut place[header_len..][..kept]);
        self.len += header_len + kept;
        if self.header.packets == 0 {
            self.header.first_seq = packet.seq;
        }
        self.header.next_seq = packet.seq + 1;
        self.header.ts_min_ns = self.header.ts_min_ns.min(packet.ts_ns);
        self.header.ts_max_ns = self.header.ts_max_ns.max(packet.ts_ns);
        self.header.packets += 1;
        self.classes = self.classes.max(usize::from(class) + 1);
        let count = &mut self.counts[usize::from(class)][usize::from(packet.keep.code())];
        count.packets += 1;
        count.wire_bytes += u64::from(packet.wire_len.max(packet.captured_len));
        count.captured_bytes += u64::from(packet.captured_len);
        count.logged_bytes += kept as u64;
    }

    /// Appends all bytes of an earlier packet; the block grows if need be.
    pub fn push_promotion(&mut self, promotion: &Promotion<'_>) {
        let ((header, len), data) = (promotion.emit_header(), promotion.data);
        let header = &header[..len];
        self.grow(header.len() + data.len());
        let end = self.len + header.len();
        self.bytes[self.len..end].copy_from_slice(header);
        self.bytes[end..end + data.len()].copy_from_slice(data);
        self.len = end + data.len();
        self.header.records += 1;
        self.header.flags |= FLAG_PROMOTES;
        self.promoted_packets += 1;
        let place = promotion.keep.cut_where();
        self.promoted_bytes[place as usize] += data.len() as u64 - u64::from(promotion.kept_len);
    }

    /// An arrival in ns after the time that compact records count from, which is recorded anew if
    /// need be.
    #[inline(always)]
    fn since_time(&mut self, ts_ns: u64) -> u32 {
        let since = self.time_ns.and_then(|time| ts_ns.checked_sub(time));
        match since.map(u32::try_from) {
            Some(Ok(since)) => since,
            _ => self.begin_time(ts_ns),
        }
    }

    /// Records the time that the following compact records count from: somewhat earlier than this.
    #[inline(never)]
    fn begin_time(&mut self, ts_ns: u64) -> u32 {
        let slack = ts_ns.min(u64::from(TIME_SLACK_NS));
        let time = ts_ns - slack;
        self.push_record(kind::TIME, 0, 0, &[&time.to_le_bytes()]);
        self.time_ns = Some(time);
        exact(slack)
    }

    fn push_record(&mut self, kind: u8, flags: u8, reference: u16, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len()).sum();
        put(parts, self.new_record(kind, flags, reference, len));
    }

    /// Appends a record; its body is to be written by the caller.
    #[inline]
    fn new_record(&mut self, kind: u8, flags: u8, reference: u16, body_len: usize) -> &mut [u8] {
        self.grow(PREFIX_LEN + body_len);
        let prefix = Prefix {
            kind,
            flags,
            reference: reference.into(),
            len: record_len(body_len).into(),
        };
        let start = self.len;
        self.len += PREFIX_LEN + body_len;
        self.header.records += 1;
        let (place, body) = self.bytes[start..self.len].split_at_mut(PREFIX_LEN);
        place.copy_from_slice(prefix.as_bytes());
        body
    }

    /// What the block holds so far, by class and granularity.
    pub fn class_counts(&self) -> impl Iterator<Item = ClassCount> {
        let rows = (0..=u8::MAX).zip(&self.counts[..self.classes]);
        rows.flat_map(|(class, row)| {
            let counts = KeepKind::ALL.into_iter().zip(row);
            let counts = counts.filter(|(_, count)| count.packets > 0);
            counts.map(move |(keep, count)| ClassCount {
                class,
                keep,
                packets: count.packets,
                wire_bytes: count.wire_bytes,
                logged_bytes: count.logged_bytes,
            })
        })
    }
}

/// `to.copy_from_slice(from)`. Most packets keep 42 to 78 bytes of headers: three overlapping moves
/// of fixed length are a few instructions, without a call and without a branch that depends on the
/// length.
#[inline(always)]
fn copy(from: &[u8], to: &mut [u8]) {
    const PART: usize = 32;
    let len = from.len();
    if (PART..=3 * PART).contains(&len) && to.len() == len {
        let last = len - PART;
        for at in [0, last.min(PART), last] {
            to[at..at + PART].copy_from_slice(&from[at..at + PART]);
        }
    } else {
        to.copy_from_slice(from);
    }
}

/// Writes parts one after another, and returns the rest.
fn put<'a>(parts: &[&[u8]], mut to: &'a mut [u8]) -> &'a mut [u8] {
    for part in parts {
        let (place, rest) = to.split_at_mut(part.len());
        place.copy_from_slice(part);
        to = rest;
    }
    to
}

/// An empty vector whose whole capacity has been written once.
fn touched<T: Clone + Default>(capacity: usize) -> Vec<T> {
    let mut room = Vec::with_capacity(capacity);
    room.resize(capacity, T::default());
    room.clear();
    room
}
