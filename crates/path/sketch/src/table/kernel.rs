//! The vector code of [`Sketch::count_group`]: rows of 16 buckets are transposed into columns of
//! 16 flows each, updated, and transposed back. Features come from the same columns.
#![allow(unsafe_code)]

mod features;

use std::hint::select_unpredictable;

use strata_wire::prefetch;
use strata_wire::wide::{GROUP, Kernel, Lanes, PacketColumns, WIDE};

use super::gathered::Gathered;
use super::{LAMBDA, Sketch};
use crate::bucket::Bucket;
use crate::facts::PacketFacts;
use features::{Room, put_of_flows, put_of_packets};

/// Fewer packets than this are counted one by one, which is no more work then.
const FEW: u32 = 5;

/// Words of a bucket.
mod word {
    pub(super) const PACKETS: usize = 2;
    pub(super) const BYTES: usize = 3;
    pub(super) const BACKWARD_BYTES: usize = 4;
    pub(super) const FIRST: usize = 5;
    pub(super) const LAST: usize = 6;
    pub(super) const IPD_MIN: usize = 7;
    pub(super) const IPD_MAX: usize = 8;
    pub(super) const SIZE_SQUARES: usize = 9;
    pub(super) const IPD_SQUARES: usize = 10;
    /// High parts of the sums of squares: of sizes below, of delays above.
    pub(super) const HIGH_PARTS: usize = 11;
    /// Smallest below, largest above.
    pub(super) const SIZES: usize = 12;
    pub(super) const BACKWARD_SIZES: usize = 13;
    /// Backward header words below, forward window above.
    pub(super) const HEADERS_WINDOW: usize = 14;
    /// Backward window below, votes above, the direction on top.
    pub(super) const WINDOW_VOTES: usize = 15;
}

/// The words of 16 buckets, in columns: the same word of each. In memory, since no machine but the
/// largest has the registers; there, they stay in registers.
type Words = [[u32; GROUP]; 16];

/// What the sketch counts for 16 packets.
#[derive(Clone, Copy)]
struct Counted<L: Lanes> {
    /// Ticks.
    now: L::U32,
    size: L::U32,
    header_len: L::U32,
    tcp_window: L::U32,
    low_to_high: u16,
    answers: u16,
}

/// Where their buckets are in both layers, as numbers and in registers.
struct Places<L: Lanes> {
    numbers: [[u32; GROUP]; 2],
    registers: [L::U32; 2],
}

/// The buckets of the packets of one round.
struct Found {
    /// For a packet not in `live`, a spare one.
    buckets: [*mut Bucket; GROUP],
    live: u16,
    /// The first packets of their flows.
    claims: u16,
}

#[inline(always)]
fn of<T>(column: &[T; WIDE], group: usize) -> &[T; GROUP] {
    &column.as_chunks().0[group]
}

#[inline(always)]
fn low_16<L: Lanes>(l: L, values: L::U32) -> L::U32 {
    l.and(values, l.set(0xffff))
}

#[inline(always)]
fn high_16<L: Lanes>(l: L, values: L::U32) -> L::U32 {
    l.shr(values, 16)
}

#[inline(always)]
fn is_zero<L: Lanes>(l: L, values: L::U32) -> L::Mask {
    l.eq(values, l.set(0))
}

/// [`Clock::ticks`](crate::Clock::ticks) of a group.
#[inline(always)]
fn ticks<L: Lanes>(l: L, sketch: &Sketch, packets: &PacketColumns, group: usize) -> L::U32 {
    let start = l.set_64(sketch.window_start);
    let last = l.set_64(sketch.clock.window_ns() - 1);
    let ts_ns = l.load_64(of(&packets.ts_ns, group));
    let since = l.sub_64(l.max_64(ts_ns, start), start);
    l.narrow(l.shr_64(l.min_64(since, last), sketch.clock.shift()))
}

/// [`Sketch::places`] of a group.
#[inline(always)]
fn places<L: Lanes>(l: L, sketch: &Sketch, packets: &PacketColumns, group: usize) -> Places<L> {
    let fingerprints = l.load_64(of(&packets.fingerprint, group));
    let mask = l.set_64((1 << sketch.bits) - 1);
    let registers = [
        l.narrow(l.shr_64(fingerprints, 64 - sketch.bits)),
        l.narrow(l.and_64(fingerprints, mask)),
    ];
    let mut numbers = [[0; GROUP]; 2];
    for (numbers, register) in numbers.iter_mut().zip(registers) {
        l.store(register, numbers);
    }
    Places { numbers, registers }
}

/// Those of `pending` that share no place with an earlier one in it.
#[inline(always)]
fn without_conflict<L: Lanes>(l: L, places: &Places<L>, pending: u16) -> u16 {
    const OWN: [u32; GROUP] = {
        let mut own = [0; GROUP];
        let (mut lane, mut number) = (0, 1 << 31);
        while lane < GROUP {
            own[lane] = number;
            (lane, number) = (lane + 1, number + 1);
        }
        own
    };
    // Lanes that do not count get a place of their own.
    let (own, counts) = (l.load(&OWN), l.mask(pending));
    let [first, second] = places.registers;
    let shared = l.repeats([l.choose(counts, first, own), l.choose(counts, second, own)]);
    pending & !l.bits(shared)
}

/// The buckets of packets that share no places, found as in [`Sketch::insert`]. Claimed ones
/// get their new tags.
#[inline(always)]
fn find<L: Lanes>(
    l: L,
    sketch: &mut Sketch,
    (fingerprints, places): (&[u64; GROUP], &Places<L>),
    ready: u16,
    spare: &mut [Bucket; GROUP],
) -> Found {
    let (epoch, identity_mask) = (u64::from(sketch.epoch), sketch.identity_mask);
    let [layer_0, layer_1] = &mut sketch.layers;
    let (layer_0, layer_1) = (layer_0.as_mut_ptr(), layer_1.as_mut_ptr());
    let spare = spare.as_mut_ptr();
    let [first, second] = &places.numbers;
    let mut buckets = [spare; GROUP];
    let (mut tags, mut wanted) = ([0; GROUP], [0; GROUP]);
    // Whose bucket it is cannot be predicted, so no branch depends on it.
    for lane in 0..GROUP {
        let fingerprint = fingerprints[lane];
        let tag = (fingerprint & identity_mask) << 16 | epoch;
        let other_tag = (fingerprint >> 16 & identity_mask) << 16 | epoch;
        // SAFETY: places have no more bits than the layers' lengths; there are as many spare
        // buckets as lanes. Nothing else refers to them meanwhile.
        unsafe {
            let own = spare.add(lane);
            let bucket = layer_0.add(first[lane] as usize);
            let bucket = select_unpredictable(ready >> lane & 1 != 0, bucket, own);
            let found = (*bucket).tag;
            let is_foreign = (found & 0xffff == epoch) & (found != tag);
            let other = layer_1.add(second[lane] as usize);
            buckets[lane] = select_unpredictable(is_foreign, other, bucket);
            wanted[lane] = select_unpredictable(is_foreign, other_tag, tag);
            tags[lane] = (*buckets[lane]).tag;
        }
    }
    let (found, wants) = (l.load_64(&tags), l.load_64(&wanted));
    let hits = l.eq_64(found, wants) & ready;
    let epochs = l.and_64(found, l.set_64(0xffff));
    let mut claims = !l.eq_64(epochs, l.set_64(epoch)) & ready & !hits;
    for lane in bits(claims) {
        // SAFETY: as above.
        unsafe { (*buckets[lane]).tag = wanted[lane] };
    }
    let mut live = hits | claims;
    // Both places are taken: vote against the flow with fewer packets.
    for lane in bits(ready & !live) {
        // SAFETY: as above; both buckets are this packet's alone.
        unsafe {
            let bucket = layer_0.add(first[lane] as usize);
            let other = buckets[lane];
            let is_first = (*bucket).packets() <= (*other).packets();
            let loser = select_unpredictable(is_first, bucket, other);
            if (*loser).vote(LAMBDA) {
                let tag = (fingerprints[lane] & identity_mask) << 16 | epoch;
                (*loser).tag = if is_first { tag } else { wanted[lane] };
                buckets[lane] = loser;
                live |= 1 << lane;
                claims |= 1 << lane;
                sketch.pressure.replaced += 1;
            } else {
                buckets[lane] = spare.add(lane);
            }
        }
    }
    sketch.pressure.packets += u64::from(ready.count_ones());
    sketch.pressure.claimed += u64::from(claims.count_ones());
    sketch.pressure.without_bucket += u64::from((ready & !live).count_ones());
    Found {
        buckets,
        live,
        claims,
    }
}

/// Sums, at most the largest number.
#[inline(always)]
fn add_saturating<L: Lanes>(l: L, a: L::U32, b: L::U32) -> L::U32 {
    let sum = l.add(a, b);
    l.choose(l.le(a, sum), sum, l.set(u32::MAX))
}

/// Saturating 48-bit sums, in two parts.
#[inline(always)]
fn add_squares<L: Lanes>(
    l: L,
    (low, high): (L::U32, L::U32),
    (square, square_high): (L::U32, L::U32),
) -> (L::U32, L::U32) {
    let sum = l.add(low, square);
    let has_carry = l.not(l.le(low, sum));
    let high = l.add(l.add(high, square_high), l.only(has_carry, l.set(1)));
    let fits = l.le(high, l.set(0xffff));
    (
        l.choose(fits, sum, l.set(u32::MAX)),
        l.min(high, l.set(0xffff)),
    )
}

/// Smallest below, largest above.
#[inline(always)]
fn widen_range<L: Lanes>(l: L, range: L::U32, size: L::U32) -> L::U32 {
    let smaller = l.min_halves(range, l.or(size, l.set(0xffff_0000)));
    l.max_halves(smaller, l.shl(size, 16))
}

/// [`Bucket::claim`] for the packets in `claims`, [`Bucket::update`] for the others.
#[inline(always)]
fn update<L: Lanes>(l: L, old: &[L::U32; 16], claims: u16, counted: &Counted<L>) -> [L::U32; 16] {
    let claims = l.mask(claims);
    let updates = l.not(claims);
    let or_zero = |values| l.only(updates, values);
    let (now, size) = (counted.now, counted.size);
    let mut new = *old;

    new[word::FIRST] = l.choose(claims, now, old[word::FIRST]);
    let last = l.choose(claims, now, old[word::LAST]);
    new[word::LAST] = l.max(last, now);
    // 0 for those that claim.
    let delay = l.sub(new[word::LAST], last);
    let ipd_min = l.min(old[word::IPD_MIN], delay);
    new[word::IPD_MIN] = l.choose(updates, ipd_min, l.set(u32::MAX));
    new[word::IPD_MAX] = or_zero(l.max(old[word::IPD_MAX], delay));
    let high_parts = or_zero(old[word::HIGH_PARTS]);
    let (ipd_squares, ipd_high) = add_squares(
        l,
        (or_zero(old[word::IPD_SQUARES]), high_16(l, high_parts)),
        l.square(delay),
    );
    let (size_squares, size_high) = add_squares(
        l,
        (or_zero(old[word::SIZE_SQUARES]), low_16(l, high_parts)),
        (l.mul(size, size), l.set(0)),
    );
    new[word::IPD_SQUARES] = ipd_squares;
    new[word::SIZE_SQUARES] = size_squares;
    new[word::HIGH_PARTS] = l.or(size_high, l.shl(ipd_high, 16));

    let packets = or_zero(old[word::PACKETS]);
    new[word::PACKETS] = add_saturating(l, packets, l.set(1));
    new[word::BYTES] = add_saturating(l, or_zero(old[word::BYTES]), size);
    let sizes = l.choose(updates, old[word::SIZES], l.set(0xffff));
    new[word::SIZES] = widen_range(l, sizes, size);

    let forward = l.mask(counted.low_to_high ^ counted.answers);
    let direction = l.only(forward, l.set(1 << 31));
    let window_votes = l.choose(claims, direction, old[word::WINDOW_VOTES]);
    let backward = l.one_of(l.mask(counted.low_to_high), l.top(window_votes));
    let bytes = or_zero(old[word::BACKWARD_BYTES]);
    new[word::BACKWARD_BYTES] = l.choose(backward, add_saturating(l, bytes, size), bytes);
    let sizes = l.choose(updates, old[word::BACKWARD_SIZES], l.set(0xffff));
    new[word::BACKWARD_SIZES] = l.choose(backward, widen_range(l, sizes, size), sizes);
    let headers = or_zero(old[word::HEADERS_WINDOW]);
    let header_words = l.shr(counted.header_len, 2);
    let headers = l.choose(backward, l.add_halves(headers, header_words), headers);
    // The window of the first packet that has one, each way.
    let no_forward = is_zero(l, high_16(l, headers));
    let first_forward = l.both(l.not(backward), no_forward);
    let window = l.shl(counted.tcp_window, 16);
    new[word::HEADERS_WINDOW] = l.or(headers, l.only(first_forward, window));
    let first_backward = l.both(backward, is_zero(l, low_16(l, window_votes)));
    new[word::WINDOW_VOTES] = l.or(window_votes, l.only(first_backward, counted.tcp_window));
    new
}

/// The positions of the set bits, from the lowest.
#[inline(always)]
fn bits(mut mask: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (lane < GROUP).then_some(lane)
    })
}

/// One round: counts packets that share no places. Their buckets go into `after`.
#[inline(always)]
fn round<L: Lanes>(
    l: L,
    sketch: &mut Sketch,
    (fingerprints, places): (&[u64; GROUP], &Places<L>),
    (ready, counted): (u16, &Counted<L>),
    after: &mut Words,
) -> u16 {
    let mut spare = [Bucket::default(); GROUP];
    let found = find(l, sketch, (fingerprints, places), ready, &mut spare);
    if found.live == 0 {
        return 0;
    }
    let line = |lane: usize| {
        // SAFETY: a bucket is 16 words; each packet has its own.
        l.load(unsafe { &*found.buckets[lane].cast::<[u32; GROUP]>() })
    };
    let new = update(l, &l.transpose(lines(line)), found.claims, counted);
    let rows = l.transpose(new);
    for (bucket, line) in found.buckets.into_iter().zip(rows) {
        // SAFETY: as above.
        l.store(line, unsafe { &mut *bucket.cast::<[u32; GROUP]>() });
    }
    keep(l, after, found.live, &new);
    found.live
}

/// All 16, without a loop that might stay one.
#[inline(always)]
fn lines<T>(line: impl Fn(usize) -> T) -> [T; GROUP] {
    [
        line(0),
        line(1),
        line(2),
        line(3),
        line(4),
        line(5),
        line(6),
        line(7),
        line(8),
        line(9),
        line(10),
        line(11),
        line(12),
        line(13),
        line(14),
        line(15),
    ]
}

/// Puts the lanes of `mask` from `new` into `after`.
#[inline(always)]
fn keep<L: Lanes>(l: L, after: &mut Words, mask: u16, new: &[L::U32; 16]) {
    let mask = l.mask(mask);
    for (after, new) in after.iter_mut().zip(new) {
        l.store(l.choose(mask, *new, l.load(after)), after);
    }
}

/// Counts packets one by one, in order. Their buckets go into `after`.
#[inline(always)]
fn one_by_one<L: Lanes>(
    l: L,
    sketch: &mut Sketch,
    packets: &PacketColumns,
    (group, pending): (usize, u16),
    after: &mut Words,
) -> u16 {
    let mut found = [Bucket::default(); GROUP];
    let mut live = 0;
    for lane in bits(pending) {
        let facts = PacketFacts::in_columns(packets, group * GROUP + lane);
        if let Some(bucket) = sketch.insert(&facts) {
            found[lane] = *bucket;
            live |= 1 << lane;
        }
    }
    if live != 0 {
        let line = |lane: usize| {
            // SAFETY: a bucket is 16 words.
            l.load(unsafe { &*std::ptr::from_ref(&found[lane]).cast::<[u32; GROUP]>() })
        };
        keep(l, after, live, &l.transpose(lines(line)));
    }
    live
}

/// [`Sketch::prefetch_others`] for any lanes.
pub(super) struct Fetch<'a> {
    pub(super) sketch: &'a Sketch,
    pub(super) packets: &'a PacketColumns,
    pub(super) group: usize,
}

impl Kernel for Fetch<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "numbers of buckets")]
    fn run<L: Lanes>(self, l: L) {
        let Fetch {
            sketch,
            packets,
            group,
        } = self;
        let places = places(l, sketch, packets, group);
        let [layer_0, layer_1] = &sketch.layers;
        let start = layer_0.as_ptr();
        // SAFETY: places have no more bits than the layers' lengths.
        let tags = places.numbers[0].map(|first| unsafe { (*start.add(first as usize)).tag });
        let (tags, epoch) = (l.load_64(&tags), l.set_64(sketch.epoch.into()));
        let fingerprints = l.load_64(of(&packets.fingerprint, group));
        let own = l.and_64(fingerprints, l.set_64(sketch.identity_mask));
        let is_taken = l.eq_64(l.and_64(tags, l.set_64(0xffff)), epoch);
        let is_foreign = is_taken & !l.eq_64(l.shr_64(tags, 16), own);
        // The distance of the second layer's buckets from those of the first.
        let distance = layer_1.as_ptr().addr().wrapping_sub(start.addr());
        let buckets = distance.cast_signed() / size_of::<Bucket>().cast_signed();
        let [first, second] = places.registers;
        let is_foreign = l.mask(is_foreign);
        let wanted = l.widen(l.choose(is_foreign, second, first));
        let further = l.widen(l.only(is_foreign, l.set(u32::MAX)));
        let further = l.or_64(further, l.shl_64(further, 32));
        let further = l.and_64(further, l.set_64(buckets.cast_unsigned() as u64));
        let mut numbers = [0; GROUP];
        l.store_64(l.add_64(wanted, further), &mut numbers);
        for number in numbers {
            prefetch(layer_0, number as usize);
        }
    }
}

/// [`Sketch::count_group`] for any lanes.
pub(super) struct Count<'a> {
    pub(super) sketch: &'a mut Sketch,
    pub(super) packets: &'a PacketColumns,
    pub(super) group: usize,
    pub(super) wanted: u16,
    pub(super) flow: &'a mut Gathered,
    pub(super) packet: &'a mut Gathered,
}

impl Kernel for Count<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Count {
            sketch,
            packets,
            group,
            wanted,
            flow,
            packet,
        } = self;
        let load = |column| l.load(of(column, group));
        let counted = Counted {
            now: ticks(l, sketch, packets, group),
            size: load(&packets.size),
            header_len: load(&packets.header_len),
            tcp_window: load(&packets.tcp_window),
            low_to_high: packets.low_to_high[group],
            answers: packets.answers[group],
        };
        let fingerprints = of(&packets.fingerprint, group);
        let places = places(l, sketch, packets, group);
        let mut after = [[0; GROUP]; 16];
        let (mut pending, mut live) = (wanted, 0);
        // A packet that shares a place with an earlier one waits for the next round.
        while pending.count_ones() >= FEW {
            let ready = without_conflict(l, &places, pending);
            if ready.count_ones() < FEW {
                break;
            }
            pending &= !ready;
            let ready = (ready, &counted);
            live |= round(l, sketch, (fingerprints, &places), ready, &mut after);
        }
        if pending != 0 {
            live |= one_by_one(l, sketch, packets, (group, pending), &mut after);
        }
        if live != 0 {
            let mut room = Room::new(l, flow, group, live);
            put_of_packets(l, &mut room, packets, group);
            let about = (packets.low_to_high[group], sketch.clock.tick_ns());
            put_of_flows(l, &mut room, &after, about);
        }
        if wanted & !live != 0 {
            let mut room = Room::new(l, packet, group, wanted & !live);
            put_of_packets(l, &mut room, packets, group);
        }
    }
}
