//! Packets in columns: their records, 16 at a time.
//!
//! What is written is what [`BlockBuilder::push_packet`] writes for one packet after the other.

use strata_wire::wide::{GROUP, Kernel, Lanes, Simd, WIDE};
use strata_wire::{KeepKind, exact};

use super::{BlockBuilder, copy};
use crate::compact::{COMPACT_LEN, COMPACT_LEN_MAX};
use crate::format::{PACKET_HEADER_LEN, PREFIX_LEN, kind, packet_flag};

/// Combinations of class and granularity that are counted by masks: more in one batch are rare.
const KINDS_BY_MASK: usize = 6;

/// Packets to record, one column per field; `data` has as many as there are. All are of one
/// interface, have a time and no options, and are shorter than 16 MiB.
#[derive(Clone, Copy, Debug)]
pub struct PacketRun<'a> {
    /// The interface.
    pub interface: u16,
    /// Captured bytes.
    pub data: &'a [&'a [u8]],
    /// Arrival, ns since 1970.
    pub ts_ns: &'a [u64; WIDE],
    /// The earliest and the latest of all arrivals.
    pub ts_range_ns: [u64; 2],
    /// Bytes on the wire, according to the capture.
    pub wire_len: &'a [u32; WIDE],
    /// How many bytes `data` has.
    pub captured_len: &'a [u32; WIDE],
    /// Bytes of the headers.
    pub header_len: &'a [u32; WIDE],
    /// How many of the captured bytes are kept.
    pub kept_len: &'a [u32; WIDE],
    /// Who decided, and how: numbers of verdicts.
    pub verdicts: &'a [u16; WIDE],
    /// The verdict's class, and [`KeepKind::code`] from bit 8 on.
    pub kinds: &'a [u32; WIDE],
}

impl BlockBuilder {
    /// Appends packets, from number `from` on, whose sequence numbers begin with `seq`, up to the
    /// first that needs more than a compact record or leaves less than `reserve` bytes of the block.
    /// Returns its number, or that of packets. `define` defines a verdict, in at most `reserve`
    /// bytes.
    ///
    /// # Panics
    ///
    /// If a packet has fewer bytes than the columns say, or there are more than 256.
    #[inline]
    pub fn push_run(
        &mut self,
        simd: Simd,
        run: &PacketRun<'_>,
        (from, seq): (usize, u64),
        reserve: usize,
        mut define: impl FnMut(&mut Self, u16),
    ) -> usize {
        let is_next = self.header.packets == 0 || seq == self.header.next_seq;
        let is_ready = self.refers_to(run.interface) && is_next && run.interface < 256;
        let Some(time) = self.time_ns.filter(|_| is_ready) else {
            return from;
        };
        let (mut at, mut granted) = (from, None);
        while at < run.data.len() {
            let beyond = PACKET_HEADER_LEN + PREFIX_LEN + reserve;
            let append = Append {
                block: self,
                run,
                at,
                time,
                granted,
                beyond,
            };
            let Stop { lane, is_usual } = simd.run(append);
            at = lane;
            if !is_usual || at == run.data.len() {
                break;
            }
            let needed = PACKET_HEADER_LEN + PREFIX_LEN + run.kept_len[at] as usize;
            let verdict = run.verdicts[at];
            if !self.needs_verdict(verdict) || self.room() < needed + reserve {
                break;
            }
            define(self, verdict);
            if self.room() < needed {
                self.grow(needed);
            }
            granted = Some(at);
        }
        if from < at {
            self.count_run(simd, run, [from, at], seq);
        }
        at
    }

    /// Adds to the header and the counters what was appended.
    fn count_run(&mut self, simd: Simd, run: &PacketRun<'_>, [from, end]: [usize; 2], seq: u64) {
        let mut left = [0; WIDE / GROUP];
        for (group, left) in left.iter_mut().enumerate() {
            let before = |lane: usize| lane.saturating_sub(group * GROUP).min(GROUP);
            let below = |lane: usize| u32::from(u16::MAX) >> (GROUP - before(lane));
            *left = below(end) & !below(from);
        }
        let mut known = 0;
        for group in from / GROUP..end.div_ceil(GROUP) {
            while left[group] != 0 {
                let lane = group * GROUP + left[group].trailing_zeros() as usize;
                let kind = run.kinds[lane];
                known += 1;
                let sums = if known <= KINDS_BY_MASK {
                    let left = &mut left[group..end.div_ceil(GROUP)];
                    simd.run(OfKind {
                        run,
                        group,
                        left,
                        kind,
                    })
                } else {
                    left[group] &= left[group] - 1;
                    let wire_len = run.wire_len[lane].max(run.captured_len[lane]);
                    [1, wire_len, run.captured_len[lane], run.kept_len[lane]]
                };
                self.add(kind, sums.map(u64::from));
            }
        }
        let count = (end - from) as u64;
        let [earliest, latest] = if end - from == run.data.len() {
            run.ts_range_ns
        } else {
            let times = run.ts_ns[from..end].iter();
            times.fold([u64::MAX, 0], |[min, max], &ts| [min.min(ts), max.max(ts)])
        };
        let header = &mut self.header;
        if header.packets == 0 {
            header.first_seq = seq;
        }
        header.next_seq = seq + count;
        header.ts_min_ns = header.ts_min_ns.min(earliest);
        header.ts_max_ns = header.ts_max_ns.max(latest);
        #[allow(clippy::cast_possible_truncation, reason = "at most 256")]
        let count = count as u32;
        header.packets += count;
    }

    fn add(&mut self, kind: u32, [packets, wire_bytes, captured_bytes, logged_bytes]: [u64; 4]) {
        let [class, code, ..] = kind.to_le_bytes();
        let keep = KeepKind::of_flags(code);
        self.classes = self.classes.max(usize::from(class) + 1);
        let count = &mut self.counts[usize::from(class)][usize::from(keep.code())];
        count.packets += packets;
        count.wire_bytes += wire_bytes;
        count.captured_bytes += captured_bytes;
        count.logged_bytes += logged_bytes;
    }

    /// Which of these verdicts are not defined in this block, one bit for each.
    #[inline(always)]
    fn undefined(&self, verdicts: &[u16; GROUP]) -> u16 {
        let defined = |id: u16| self.verdicts_defined[usize::from(id)];
        // They nearly always all are.
        if verdicts.iter().fold(1, |all, &id| all & defined(id)) != 0 {
            return 0;
        }
        let ids = verdicts.iter().enumerate();
        ids.fold(0, |bits, (lane, &id)| {
            bits | u16::from(defined(id) == 0) << lane
        })
    }
}

#[inline(always)]
fn chunk<T>(column: &[T; WIDE], group: usize) -> &[T; GROUP] {
    &column.as_chunks().0[group]
}

#[inline(always)]
fn load<L: Lanes>(l: L, column: &[u32; WIDE], group: usize) -> L::U32 {
    l.load(chunk(column, group))
}

/// Appends packets from one on.
struct Append<'a, 'b> {
    block: &'a mut BlockBuilder,
    run: &'a PacketRun<'b>,
    at: usize,
    /// What times count from.
    time: u64,
    /// A packet for which there is space.
    granted: Option<usize>,
    /// Bytes of the block that any other leaves after its data.
    beyond: usize,
}

/// Where appending stopped.
struct Stop {
    lane: usize,
    /// Whether the packet has a compact record: it lacks a verdict, or space.
    is_usual: bool,
}

impl Kernel for Append<'_, '_> {
    type Output = Stop;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Stop {
        let Self {
            block, run, time, ..
        } = self;
        let (mut heads, mut lens) = ([[0; GROUP]; 2], [0; GROUP]);
        // Where data may end.
        let limit = block.limit.saturating_sub(self.beyond);
        let granted = self.granted.map_or(usize::MAX, |lane| lane);
        let mut lane = self.at;
        while lane < run.data.len() {
            let group = lane / GROUP;
            let usual = heads_of(l, run, group, time, (&mut heads, &mut lens));
            let odd = u32::from(!usual | block.undefined(chunk(run.verdicts, group))) | 1 << GROUP;
            let usual_lanes = (odd >> (lane % GROUP)).trailing_zeros() as usize;
            let end = (lane + usual_lanes).min(run.data.len());
            let mut at = block.len;
            while lane < end {
                let kept = run.kept_len[lane] as usize;
                if at + kept > limit && lane != granted {
                    break;
                }
                let len = lens[lane % GROUP] as usize;
                let place = &mut block.bytes[at..];
                let Some((head, _)) = place.split_first_chunk_mut::<COMPACT_LEN_MAX>() else {
                    unreachable!("there is room for it");
                };
                head[..8].copy_from_slice(&heads[0][lane % GROUP].to_le_bytes());
                head[8..].copy_from_slice(&heads[1][lane % GROUP].to_le_bytes());
                copy(&run.data[lane][..kept], &mut place[len - kept..len]);
                at += len;
                lane += 1;
            }
            block.len = at;
            if lane < run.data.len() && lane < (group + 1) * GROUP {
                let is_usual = usual >> (lane % GROUP) & 1 != 0;
                return Stop { lane, is_usual };
            }
        }
        let is_usual = true;
        Stop { lane, is_usual }
    }
}

/// The first 16 bytes of the records of a group and the lengths of these; returns which lanes have a
/// compact record.
#[inline(always)]
fn heads_of<L: Lanes>(
    l: L,
    run: &PacketRun<'_>,
    group: usize,
    time: u64,
    (heads, lens): (&mut [[u64; GROUP]; 2], &mut [u32; GROUP]),
) -> u16 {
    let captured = load(l, run.captured_len, group);
    let wire = load(l, run.wire_len, group);
    let kept = load(l, run.kept_len, group);
    let header = load(l, run.header_len, group);
    let verdicts = chunk(run.verdicts, group).map(u32::from);
    let code = l.shr(load(l, run.kinds, group), 8);
    let as_header = l.eq(code, l.set(KeepKind::Header.code().into()));
    let whole = l.eq(code, l.set(KeepKind::Full.code().into()));
    let of_header = l.only(as_header, l.min(header, captured));
    let usual_kept = l.choose(whole, captured, of_header);
    let is_usual = l.both(l.eq(wire, captured), l.eq(kept, usual_kept));
    let lengths = l.only(l.not(is_usual), l.set(packet_flag::LENGTHS.into()));

    let same = u32::from(kind::COMPACT) | u32::from(run.interface) << 16;
    let flags = l.shl(l.or(code, lengths), 8);
    let first = l.or(l.or(l.set(same), flags), l.shl(header, 24));
    let third = l.or(l.load(&verdicts), l.shl(captured, 16));
    let fourth = l.or(wire, l.shl(kept, 16));
    // An earlier time wraps around, to one that is too late.
    let since = l.sub_64(l.load_64(chunk(run.ts_ns, group)), l.set_64(time));
    let low = l.or_64(l.widen(first), l.shl_64(since, 32));
    let high = l.or_64(l.widen(third), l.shl_64(l.widen(fourth), 32));
    l.store_64(low, &mut heads[0]);
    l.store_64(high, &mut heads[1]);
    let (short, long) = (exact(COMPACT_LEN), exact(COMPACT_LEN_MAX));
    let head_len = l.choose(is_usual, l.set(short), l.set(long));
    l.store(l.add(kept, head_len), lens);

    let is_short = l.le(l.or(captured, wire), l.set(u16::MAX.into()));
    let is_small = l.le(header, l.set(u8::MAX.into()));
    l.bits(l.both(is_short, is_small)) & l.le_64(since, l.set_64(u32::MAX.into()))
}

/// Packets, bytes on the wire, captured and kept, of the lanes of one class and granularity, which
/// are taken out of `left`; its first mask is that of `group`.
struct OfKind<'a, 'b> {
    run: &'a PacketRun<'b>,
    group: usize,
    left: &'a mut [u32],
    kind: u32,
}

impl Kernel for OfKind<'_, '_> {
    type Output = [u32; 4];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> [u32; 4] {
        let run = self.run;
        let mut packets = 0;
        let mut sums = [l.set(0); 3];
        for (group, left) in (self.group..).zip(self.left) {
            let of_kind = l.eq(load(l, run.kinds, group), l.set(self.kind));
            let found = u32::from(l.bits(of_kind)) & *left;
            *left &= !found;
            packets += found.count_ones();
            #[allow(clippy::cast_possible_truncation, reason = "16 bits")]
            let lanes = l.mask(found as u16);
            let captured = load(l, run.captured_len, group);
            let wire = l.max(load(l, run.wire_len, group), captured);
            let kept = load(l, run.kept_len, group);
            let [wires, captures, keeps] = sums;
            sums = [
                l.add(wires, l.only(lanes, wire)),
                l.add(captures, l.only(lanes, captured)),
                l.add(keeps, l.only(lanes, kept)),
            ];
        }
        let mut all = [[0; GROUP]; 3];
        for (sum, all) in sums.into_iter().zip(&mut all) {
            l.store(sum, all);
        }
        let [wire, captured, kept] = all.map(|lanes| lanes.into_iter().sum());
        [packets, wire, captured, kept]
    }
}
