//! Packets in columns: their records, 16 at a time.
//!
//! What is written is what [`BlockBuilder::push_packet`] writes for one packet after the other.

use std::ops::Range;

use strata_wire::wide::{GROUP, GROUPS, Kernel, Lanes, Simd, WIDE};
use strata_wire::{KeepKind, exact};

use super::{BlockBuilder, copy};
use crate::compact::{COMPACT_LEN, COMPACT_LEN_MAX};
use crate::format::{PACKET_HEADER_LEN, PREFIX_LEN, kind, packet_flag};

/// Combinations of class and granularity that are counted by masks: more in one batch are rare.
const KINDS_BY_MASK: usize = 6;

/// Packets to record, one column per field. Those in `recorded` are of one interface, have a time and
/// no options, and are shorter than 16 MiB.
#[derive(Clone, Copy, Debug)]
pub struct PacketRun<'a> {
    /// The interface.
    pub interface: u16,
    /// How many packets there are, 256 at most.
    pub count: usize,
    /// Captured bytes.
    pub data: &'a [&'a [u8]; WIDE],
    /// Arrival, ns since 1970.
    pub ts_ns: &'a [u64; WIDE],
    /// Whether none of them is earlier than the one before.
    pub ascends: bool,
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
    /// Those that are recorded, a bit for each; the others are skipped.
    pub recorded: &'a [u16; GROUPS],
}

impl PacketRun<'_> {
    /// Those of a group that are recorded and within these numbers.
    #[inline(always)]
    fn lanes(&self, group: usize, within: &Range<usize>) -> u16 {
        let before = |lane: usize| lane.saturating_sub(group * GROUP).min(GROUP);
        let below = |lane: usize| (1_u32 << before(lane)) - 1;
        let lanes = below(within.end) & !below(within.start);
        #[allow(clippy::cast_possible_truncation, reason = "a group has 16 bits")]
        let lanes = lanes as u16;
        self.recorded[group] & lanes
    }

    /// The earliest and the latest arrival of some lanes.
    #[inline]
    fn times(&self, lanes: &[u32; GROUPS]) -> [u64; 2] {
        let ends = [
            lanes.iter().position(|&lanes| lanes != 0),
            lanes.iter().rposition(|&lanes| lanes != 0),
        ];
        if self.ascends
            && let [Some(first), Some(last)] = ends
        {
            let (low, high) = (lanes[first].trailing_zeros(), lanes[last].ilog2());
            let lane = |group: usize, lane: u32| self.ts_ns[group * GROUP + lane as usize];
            return [lane(first, low), lane(last, high)];
        }
        let mut range = [u64::MAX, 0];
        for (at, &ts_ns) in self.ts_ns.iter().enumerate() {
            if lanes[at / GROUP] >> (at % GROUP) & 1 != 0 {
                let [earliest, latest] = range;
                range = [earliest.min(ts_ns), latest.max(ts_ns)];
            }
        }
        range
    }
}

impl BlockBuilder {
    /// Appends the recorded packets, from number `from` on, whose sequence numbers begin with `seq`,
    /// up to the first that needs more than a compact record or leaves less than `reserve` bytes of
    /// the block. Returns its number, or that of packets, and how many were appended. `define`
    /// defines a verdict, in at most `reserve` bytes.
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
    ) -> (usize, u64) {
        let is_next = self.header.packets == 0 || seq == self.header.next_seq;
        let is_ready = self.refers_to(run.interface) && is_next && run.interface < 256;
        let Some(time) = self.time_ns.filter(|_| is_ready) else {
            let lanes = (from / GROUP..GROUPS).find_map(|group| {
                let lanes = run.lanes(group, &(from..run.count));
                (lanes != 0).then(|| group * GROUP + lanes.trailing_zeros() as usize)
            });
            return (lanes.unwrap_or(run.count), 0);
        };
        let end = simd.run(Append {
            block: self,
            run,
            from,
            time,
            reserve,
            define: &mut define,
        });
        (end, self.count_run(simd, run, from..end, seq))
    }

    /// Adds to the header and the counters what was appended; returns how many packets that is.
    fn count_run(
        &mut self,
        simd: Simd,
        run: &PacketRun<'_>,
        within: Range<usize>,
        seq: u64,
    ) -> u64 {
        let mut left = [0; GROUPS];
        let mut count = 0;
        for (group, left) in left.iter_mut().enumerate() {
            *left = u32::from(run.lanes(group, &within));
            count += left.count_ones();
        }
        if count == 0 {
            return 0;
        }
        let [earliest, latest] = run.times(&left);
        let mut known = 0;
        let end = within.end.div_ceil(GROUP);
        for group in within.start / GROUP..end {
            while left[group] != 0 {
                let lane = group * GROUP + left[group].trailing_zeros() as usize;
                let kind = run.kinds[lane];
                known += 1;
                let sums = if known <= KINDS_BY_MASK {
                    let left = &mut left[group..end];
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
        let header = &mut self.header;
        if header.packets == 0 {
            header.first_seq = seq;
        }
        header.next_seq = seq + u64::from(count);
        header.ts_min_ns = header.ts_min_ns.min(earliest);
        header.ts_max_ns = header.ts_max_ns.max(latest);
        header.packets += count;
        count.into()
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

/// Appends packets from one on; results in the number of the first one that has no compact record,
/// or no space, or that of packets.
struct Append<'a, 'b, F> {
    block: &'a mut BlockBuilder,
    run: &'a PacketRun<'b>,
    from: usize,
    /// What times count from.
    time: u64,
    /// Bytes of the block that are left for definitions.
    reserve: usize,
    define: &'a mut F,
}

impl<F: FnMut(&mut BlockBuilder, u16)> Kernel for Append<'_, '_, F> {
    type Output = usize;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> usize {
        let Self { block, run, .. } = self;
        let (mut heads, mut head_lens) = ([[0; GROUP]; 2], [0; GROUP]);
        let count = run.count;
        // What any packet leaves free behind its data.
        let beyond = PACKET_HEADER_LEN + PREFIX_LEN + self.reserve;
        for group in self.from / GROUP..count.div_ceil(GROUP) {
            let mut left = run.lanes(group, &(self.from..count));
            if left == 0 {
                continue;
            }
            let usual = heads_of(l, run, group, self.time, (&mut heads, &mut head_lens));
            let verdicts = chunk(run.verdicts, group);
            let mut undefined = block.undefined(verdicts);
            let packets = (group, &heads, &head_lens);
            loop {
                let odd = left & (!usual | undefined);
                // Those before the first odd one.
                let ready = left & (odd & odd.wrapping_neg()).wrapping_sub(1);
                let stopped = block.append(run, packets, ready, beyond);
                if stopped != 0 {
                    return group * GROUP + stopped.trailing_zeros() as usize;
                }
                left &= !ready;
                if left == 0 {
                    break;
                }
                let next = left & left.wrapping_neg();
                let lane = left.trailing_zeros() as usize;
                let needed =
                    PACKET_HEADER_LEN + PREFIX_LEN + run.kept_len[group * GROUP + lane] as usize;
                if usual & next == 0 || block.room() < needed + self.reserve {
                    return group * GROUP + lane;
                }
                (self.define)(block, verdicts[lane]);
                if block.room() < needed {
                    block.grow(needed);
                }
                let same = l.eq(
                    l.load(&verdicts.map(u32::from)),
                    l.set(verdicts[lane].into()),
                );
                undefined &= !l.bits(same);
                // There is room for it, whatever the definition took.
                block.append(run, packets, next, 0);
                left ^= next;
            }
        }
        count
    }
}

impl BlockBuilder {
    /// Appends those packets of a group that are in `lanes` as compact records, given the group's number,
    /// their heads and how long these are; stops at the first that leaves less than
    /// `beyond` bytes of the block, and returns which are left.
    #[inline(always)]
    fn append(
        &mut self,
        run: &PacketRun<'_>,
        (group, heads, head_lens): (usize, &[[u64; GROUP]; 2], &[u32; GROUP]),
        mut lanes: u16,
        beyond: usize,
    ) -> u16 {
        // Where data may end.
        let limit = self.limit.saturating_sub(beyond);
        let (data, kept_len) = (chunk(run.data, group), chunk(run.kept_len, group));
        let bytes = &mut self.bytes[..];
        let mut at = self.len;
        while lanes != 0 {
            let lane = lanes.trailing_zeros() as usize % GROUP;
            let kept = kept_len[lane] as usize;
            if at + kept > limit {
                break;
            }
            let place = &mut bytes[at..];
            let Some((head, _)) = place.split_first_chunk_mut::<COMPACT_LEN_MAX>() else {
                unreachable!("there is room for it");
            };
            head[..8].copy_from_slice(&heads[0][lane].to_le_bytes());
            head[8..].copy_from_slice(&heads[1][lane].to_le_bytes());
            at += head_lens[lane] as usize;
            copy(&data[lane][..kept], &mut bytes[at..at + kept]);
            at += kept;
            lanes &= lanes - 1;
        }
        self.len = at;
        lanes
    }
}

/// The first 16 bytes of the records of a group, and how many of them come before the data; returns
/// which lanes have a compact record.
#[inline(always)]
fn heads_of<L: Lanes>(
    l: L,
    run: &PacketRun<'_>,
    group: usize,
    time: u64,
    (heads, head_lens): (&mut [[u64; GROUP]; 2], &mut [u32; GROUP]),
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
    l.store(l.choose(is_usual, l.set(short), l.set(long)), head_lens);

    let is_short = l.le(l.or(captured, wire), l.set(u16::MAX.into()));
    let is_small = l.le(header, l.set(u8::MAX.into()));
    l.bits(l.both(is_short, is_small)) & l.le_64(since, l.set_64(u32::MAX.into()))
}

/// Counts the packets of one class and granularity, and sums their bytes on the wire, captured and kept. Clears their
/// lanes in `left`, whose first mask is that of `group`.
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
