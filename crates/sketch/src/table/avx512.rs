//! The vector code of [`Sketch::count_group`]: rows of 16 buckets are transposed into registers of
//! 16 flows each, updated, and transposed back. Features come from the same registers.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::hint::select_unpredictable;

use strata_wire::wide::{Avx512, GROUP, GROUPS, PacketColumns, WIDE};

use super::gathered::{BLOCK, Gathered, NOWHERE};
use super::{LAMBDA, Sketch};
use crate::bucket::Bucket;
use crate::facts::PacketFacts;
use crate::feature::Feature;

/// Fewer packets than this are counted one by one, which is no more work then.
const FEW: u32 = 5;

/// A register for each 32-bit word of a bucket (see [`Bucket`]), a lane for each packet.
type Registers = [__m512i; 16];

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

/// Functions that are inlined into one that has the instructions.
macro_rules! vector {
    ($($(#[$meta:meta])* fn $name:ident($($arguments:tt)*) $(-> $result:ty)? $body:block)*) => {
        $($(#[$meta])*
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,bmi1,bmi2,lzcnt,popcnt")]
        fn $name($($arguments)*) $(-> $result)? $body)*
    };
}

/// What the sketch counts for 16 packets.
#[derive(Clone, Copy)]
struct Counted {
    /// Ticks.
    now: __m512i,
    size: __m512i,
    header_len: __m512i,
    tcp_window: __m512i,
    low_to_high: u16,
    answers: u16,
}

/// Where their buckets are in both layers, as numbers and in registers.
struct Places {
    numbers: [[u32; GROUP]; 2],
    registers: [__m512i; 2],
}

/// The buckets of the packets of one round.
struct Found {
    /// For a packet not in `live`, a spare one.
    buckets: [*mut Bucket; GROUP],
    live: u16,
    /// The first packets of their flows.
    claims: u16,
}

vector! {
    fn set(value: u32) -> __m512i {
        _mm512_set1_epi32(value.cast_signed())
    }

    fn set_64(value: u64) -> __m512i {
        _mm512_set1_epi64(value.cast_signed())
    }

    fn load(column: &[u32; WIDE], group: usize) -> __m512i {
        let values: &[u32; GROUP] = &column.as_chunks().0[group];
        // SAFETY: a load of the 64 bytes of the array.
        unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
    }

    /// The two halves of a group's 64-bit values.
    fn load_64(column: &[u64; WIDE], group: usize) -> [__m512i; 2] {
        let values: &[u64; GROUP] = &column.as_chunks().0[group];
        load_all_64(values)
    }

    fn load_all_64(values: &[u64; GROUP]) -> [__m512i; 2] {
        let [low, high] = [0, 1].map(|half| values.as_chunks::<8>().0[half]);
        // SAFETY: loads of the 64 bytes of each array.
        unsafe {
            [
                _mm512_loadu_si512(low.as_ptr().cast()),
                _mm512_loadu_si512(high.as_ptr().cast()),
            ]
        }
    }

    fn join(low: __m256i, high: __m256i) -> __m512i {
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    }

    fn low_16(values: __m512i) -> __m512i {
        _mm512_and_si512(values, set(0xffff))
    }

    fn high_16(values: __m512i) -> __m512i {
        _mm512_srli_epi32::<16>(values)
    }

    fn is_set(values: __m512i) -> u16 {
        _mm512_test_epi32_mask(values, values)
    }

    /// Rows become columns.
    fn transpose(rows: Registers) -> Registers {
        let mut pairs = rows;
        for at in 0..8 {
            let (a, b) = (rows[2 * at], rows[2 * at + 1]);
            pairs[2 * at] = _mm512_unpacklo_epi32(a, b);
            pairs[2 * at + 1] = _mm512_unpackhi_epi32(a, b);
        }
        let mut fours = pairs;
        for at in 0..4 {
            let [a, b, c, d] = [0, 1, 2, 3].map(|n| pairs[4 * at + n]);
            fours[4 * at] = _mm512_unpacklo_epi64(a, c);
            fours[4 * at + 1] = _mm512_unpackhi_epi64(a, c);
            fours[4 * at + 2] = _mm512_unpacklo_epi64(b, d);
            fours[4 * at + 3] = _mm512_unpackhi_epi64(b, d);
        }
        let mut columns = fours;
        for at in 0..4 {
            let [a, b, c, d] = [0, 4, 8, 12].map(|n| fours[n + at]);
            let (even, odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
            let (even_2, odd_2) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
            columns[at] = _mm512_shuffle_i32x4::<0x88>(even, even_2);
            columns[8 + at] = _mm512_shuffle_i32x4::<0xdd>(even, even_2);
            columns[4 + at] = _mm512_shuffle_i32x4::<0x88>(odd, odd_2);
            columns[12 + at] = _mm512_shuffle_i32x4::<0xdd>(odd, odd_2);
        }
        columns
    }

    /// [`Clock::ticks`](super::Clock::ticks) of a group.
    fn ticks(sketch: &Sketch, packets: &PacketColumns, group: usize) -> __m512i {
        let shift = _mm_set_epi64x(0, i64::from(sketch.clock.shift));
        let start = set_64(sketch.window_start);
        let last = set_64(sketch.clock.window_ns - 1);
        let [low, high] = load_64(&packets.ts_ns, group).map(|ts_ns| {
            let since = _mm512_sub_epi64(_mm512_max_epu64(ts_ns, start), start);
            _mm512_cvtepi64_epi32(_mm512_srl_epi64(_mm512_min_epu64(since, last), shift))
        });
        join(low, high)
    }

    /// [`Sketch::places`] of a group.
    fn places(sketch: &Sketch, packets: &PacketColumns, group: usize) -> Places {
        let [low, high] = load_64(&packets.fingerprint, group);
        let shift = _mm_set_epi64x(0, i64::from(64 - sketch.bits));
        let mask = set_64((1 << sketch.bits) - 1);
        let first = |half| _mm512_cvtepi64_epi32(_mm512_srl_epi64(half, shift));
        let second = |half| _mm512_cvtepi64_epi32(_mm512_and_si512(half, mask));
        let registers = [join(first(low), first(high)), join(second(low), second(high))];
        let mut numbers = [[0; GROUP]; 2];
        for (numbers, register) in numbers.iter_mut().zip(registers) {
            // SAFETY: a store of the 64 bytes of the array.
            unsafe { _mm512_storeu_si512(numbers.as_mut_ptr().cast(), register) };
        }
        Places { numbers, registers }
    }

    /// Those of `pending` that share no place with an earlier one in it.
    fn without_conflict(places: &Places, pending: u16) -> u16 {
        // Lanes that do not count get a place of their own.
        let own = _mm512_or_si512(
            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
            set(1 << 31),
        );
        let earlier = |places| _mm512_conflict_epi32(_mm512_mask_mov_epi32(own, pending, places));
        let [first, second] = places.registers;
        let shared = _mm512_or_si512(earlier(first), earlier(second));
        pending & !is_set(shared)
    }

    /// The buckets of packets that share no places, found as in [`Sketch::insert`]. Claimed ones
    /// get their new tags.
    fn find(
        sketch: &mut Sketch,
        (fingerprints, places): (&[u64; GROUP], &Places),
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
            // SAFETY: places have as many bits as the layers' lengths; there are as many spare
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
        let (mut hits, mut stale) = ([0; 2], [0; 2]);
        let (found, wants) = (load_all_64(&tags), load_all_64(&wanted));
        for half in 0..2 {
            hits[half] = _mm512_cmpeq_epi64_mask(found[half], wants[half]);
            let epochs = _mm512_and_si512(found[half], set_64(0xffff));
            stale[half] = _mm512_cmpneq_epi64_mask(epochs, set_64(epoch));
        }
        let hits = u16::from_le_bytes(hits) & ready;
        let mut claims = u16::from_le_bytes(stale) & ready & !hits;
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
        Found { buckets, live, claims }
    }

    /// Saturating 32-bit sums.
    fn add_saturating(a: __m512i, b: __m512i) -> __m512i {
        let sum = _mm512_add_epi32(a, b);
        _mm512_mask_mov_epi32(sum, _mm512_cmplt_epu32_mask(sum, a), set(u32::MAX))
    }

    /// Saturating 48-bit sums, in two parts.
    fn add_squares((low, high): (__m512i, __m512i), (square, square_high): (__m512i, __m512i)) -> (__m512i, __m512i) {
        let sum = _mm512_add_epi32(low, square);
        let carry = _mm512_cmplt_epu32_mask(sum, low);
        let high = _mm512_add_epi32(high, square_high);
        let high = _mm512_mask_add_epi32(high, carry, high, set(1));
        let over = _mm512_cmpgt_epu32_mask(high, set(0xffff));
        (
            _mm512_mask_mov_epi32(sum, over, set(u32::MAX)),
            _mm512_min_epu32(high, set(0xffff)),
        )
    }

    /// Squares in two parts of 32 bits.
    fn square(values: __m512i) -> (__m512i, __m512i) {
        let odd = _mm512_srli_epi64::<32>(values);
        let (even, odd) = (_mm512_mul_epu32(values, values), _mm512_mul_epu32(odd, odd));
        (
            _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64::<32>(odd)),
            _mm512_mask_mov_epi32(_mm512_srli_epi64::<32>(even), 0xaaaa, odd),
        )
    }

    /// Smallest below, largest above.
    fn widen_range(range: __m512i, size: __m512i) -> __m512i {
        let smaller = _mm512_min_epu16(range, _mm512_or_si512(size, set(0xffff_0000)));
        _mm512_max_epu16(smaller, _mm512_slli_epi32::<16>(size))
    }

    /// [`Bucket::claim`] for the packets in `claims`, [`Bucket::update`] for the others.
    fn update(old: &Registers, claims: u16, counted: &Counted) -> Registers {
        let updates = !claims;
        let or_zero = |values| _mm512_maskz_mov_epi32(updates, values);
        let or = |values, else_value| _mm512_mask_mov_epi32(set(else_value), updates, values);
        let (now, size) = (counted.now, counted.size);
        let mut new = *old;

        new[word::FIRST] = _mm512_mask_mov_epi32(old[word::FIRST], claims, now);
        let last = _mm512_mask_mov_epi32(old[word::LAST], claims, now);
        new[word::LAST] = _mm512_max_epu32(last, now);
        // 0 for those that claim.
        let delay = _mm512_sub_epi32(new[word::LAST], last);
        let ipd_min = _mm512_min_epu32(old[word::IPD_MIN], delay);
        new[word::IPD_MIN] = or(ipd_min, u32::MAX);
        new[word::IPD_MAX] = _mm512_maskz_max_epu32(updates, old[word::IPD_MAX], delay);
        let high_parts = or_zero(old[word::HIGH_PARTS]);
        let (ipd_squares, ipd_high) = add_squares(
            (or_zero(old[word::IPD_SQUARES]), high_16(high_parts)),
            square(delay),
        );
        let (size_squares, size_high) = add_squares(
            (or_zero(old[word::SIZE_SQUARES]), low_16(high_parts)),
            (_mm512_mullo_epi32(size, size), _mm512_setzero_si512()),
        );
        new[word::IPD_SQUARES] = ipd_squares;
        new[word::SIZE_SQUARES] = size_squares;
        new[word::HIGH_PARTS] = _mm512_or_si512(size_high, _mm512_slli_epi32::<16>(ipd_high));

        let packets = or_zero(old[word::PACKETS]);
        let has_room = _mm512_cmpneq_epu32_mask(packets, set(u32::MAX));
        new[word::PACKETS] = _mm512_mask_add_epi32(packets, has_room, packets, set(1));
        new[word::BYTES] = add_saturating(or_zero(old[word::BYTES]), size);
        new[word::SIZES] = widen_range(or(old[word::SIZES], 0xffff), size);

        let forward = counted.low_to_high ^ counted.answers;
        let direction = _mm512_maskz_mov_epi32(forward, set(1 << 31));
        let window_votes = _mm512_mask_mov_epi32(old[word::WINDOW_VOTES], claims, direction);
        let backward = counted.low_to_high ^ _mm512_movepi32_mask(window_votes);
        let bytes = or_zero(old[word::BACKWARD_BYTES]);
        new[word::BACKWARD_BYTES] =
            _mm512_mask_mov_epi32(bytes, backward, add_saturating(bytes, size));
        let sizes = or(old[word::BACKWARD_SIZES], 0xffff);
        new[word::BACKWARD_SIZES] =
            _mm512_mask_mov_epi32(sizes, backward, widen_range(sizes, size));
        let headers = or_zero(old[word::HEADERS_WINDOW]);
        let header_words = _mm512_srli_epi32::<2>(counted.header_len);
        let headers = _mm512_mask_mov_epi32(headers, backward, _mm512_adds_epu16(headers, header_words));
        // The window of the first packet that has one, each way.
        let first_forward = !backward & _mm512_testn_epi32_mask(headers, set(0xffff_0000));
        let window = _mm512_slli_epi32::<16>(counted.tcp_window);
        new[word::HEADERS_WINDOW] = _mm512_mask_or_epi32(headers, first_forward, headers, window);
        let first_backward = backward & _mm512_testn_epi32_mask(window_votes, set(0xffff));
        new[word::WINDOW_VOTES] =
            _mm512_mask_or_epi32(window_votes, first_backward, window_votes, counted.tcp_window);
        new
    }

    fn as_floats(values: __m512i) -> [__m512d; 2] {
        [
            _mm512_cvtepu32_pd(_mm512_castsi512_si256(values)),
            _mm512_cvtepu32_pd(_mm512_extracti64x4_epi64::<1>(values)),
        ]
    }

    /// `average` of `feature.rs`: exact, since dividend and divisor are below 2^53.
    fn average(sum: __m512i, scale: f64, count: __m512i) -> __m512i {
        let (sums, counts) = (as_floats(sum), as_floats(count));
        let [low, high] = [0, 1].map(|half| {
            let scaled = _mm512_mul_pd(sums[half], _mm512_set1_pd(scale));
            _mm512_cvttpd_epu32(_mm512_div_pd(scaled, counts[half]))
        });
        _mm512_maskz_mov_epi32(is_set(count), join(low, high))
    }

    /// `variance` of `feature.rs`, by the same steps.
    fn variance((low, high): (__m512i, __m512i), sum: __m512i, count: __m512i, unit: f64) -> __m512i {
        let (sums, counts) = (as_floats(sum), as_floats(count));
        let (lows, highs) = (as_floats(low), as_floats(high));
        let [low, high] = [0, 1].map(|half| {
            // 48 bits: exact.
            let shifted = _mm512_mul_pd(highs[half], _mm512_set1_pd(4_294_967_296.0));
            let squares = _mm512_add_pd(shifted, lows[half]);
            let mean = _mm512_div_pd(sums[half], counts[half]);
            let mean_of_squares = _mm512_div_pd(squares, counts[half]);
            let variance = _mm512_sub_pd(mean_of_squares, _mm512_mul_pd(mean, mean));
            let variance = _mm512_max_pd(variance, _mm512_setzero_pd());
            _mm256_castps_si256(_mm512_cvtpd_ps(_mm512_mul_pd(variance, _mm512_set1_pd(unit))))
        });
        _mm512_maskz_mov_epi32(is_set(count), join(low, high))
    }
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

/// What the sketch counts for one packet; the rest is 0.
#[allow(clippy::cast_possible_truncation, reason = "columns of small numbers")]
fn counted(packets: &PacketColumns, lane: usize) -> PacketFacts {
    let is_in = |mask: &[u16; GROUPS]| mask[lane / GROUP] >> (lane % GROUP) & 1 != 0;
    PacketFacts {
        fingerprint: packets.fingerprint[lane],
        ts_ns: packets.ts_ns[lane],
        size: packets.size[lane] as u16,
        header_len: packets.header_len[lane] as u16,
        low_to_high: is_in(&packets.low_to_high),
        answers: is_in(&packets.answers),
        tcp_window: packets.tcp_window[lane] as u16,
        ..PacketFacts::default()
    }
}

/// Where the features of some packets of a group go.
struct Room<'a> {
    columns: &'a [u8; Feature::ALL.len()],
    blocks: [*mut u32; 2],
    place: usize,
    /// The packets.
    mask: u16,
    /// Which of them, once packed together, go into each block.
    parts: [u16; 2],
}

impl<'a> Room<'a> {
    vector! {
        /// Space for the packets in `mask`; stores their places in the batch.
        fn new(gathered: &'a mut Gathered, group: usize, mask: u16) -> Room<'a> {
            let place = gathered.count;
            let all = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            #[allow(clippy::cast_possible_truncation, reason = "a group of at most 16")]
            let lanes = _mm512_add_epi32(all, set((group * GROUP) as u32));
            let lanes = _mm512_cvtepi32_epi8(_mm512_maskz_compress_epi32(mask, lanes));
            let noted = gathered.lanes[place..].first_chunk_mut::<GROUP>();
            let noted = noted.expect("a block that is not full has room for a group");
            // SAFETY: a store of the 16 bytes of the array.
            unsafe { _mm_storeu_si128(noted.as_mut_ptr().cast(), lanes) };
            let some = (1_u32 << mask.count_ones()) - 1;
            let first = (1_u32 << (BLOCK - place).min(GROUP)) - 1;
            gathered.count += mask.count_ones() as usize;
            let [block, next] = &mut gathered.blocks;
            #[allow(clippy::cast_possible_truncation, reason = "16 bits each")]
            let parts = [(some & first) as u16, (some & !first) as u16];
            Room {
                columns: &gathered.columns,
                blocks: [block.as_mut_ptr(), next.as_mut_ptr()],
                place,
                mask,
                parts,
            }
        }
    }

    fn wants(&self, feature: Feature) -> bool {
        self.columns[feature as usize] != NOWHERE
    }

    vector! {
        fn put(&self, feature: Feature, values: __m512i) {
            if !self.wants(feature) {
                return;
            }
            let values = _mm512_maskz_compress_epi32(self.mask, values);
            let at = usize::from(self.columns[feature as usize]) * BLOCK + self.place;
            let [block, next] = self.blocks;
            // SAFETY: a column is below the number of columns, and what is written lies within it:
            // before its end in the first block, and after its start in the next one.
            unsafe {
                _mm512_mask_storeu_epi32(block.wrapping_add(at).cast(), self.parts[0], values);
                if self.parts[1] != 0 {
                    let at = next.wrapping_add(at).wrapping_sub(BLOCK);
                    _mm512_mask_storeu_epi32(at.cast(), self.parts[1], values);
                }
            }
        }
    }
}

vector! {
    /// The features of packets.
    fn put_of_packets(room: &Room<'_>, packets: &PacketColumns, group: usize) {
        let (size, header_len) = (load(&packets.size, group), load(&packets.header_len, group));
        let ports = [load(&packets.source_port, group), load(&packets.destination_port, group)];
        let tos = load(&packets.tos, group);
        room.put(Feature::Size, size);
        room.put(Feature::HeaderLen, header_len);
        let end = _mm512_max_epu32(size, header_len);
        room.put(Feature::PayloadLen, _mm512_sub_epi32(end, header_len));
        room.put(Feature::Protocol, load(&packets.protocol, group));
        room.put(Feature::SourcePort, ports[0]);
        room.put(Feature::DestinationPort, ports[1]);
        room.put(Feature::LowerPort, _mm512_min_epu32(ports[0], ports[1]));
        room.put(Feature::TcpFlags, load(&packets.tcp_flags, group));
        room.put(Feature::TcpWindow, load(&packets.tcp_window, group));
        room.put(Feature::Ttl, load(&packets.ttl, group));
        room.put(Feature::Tos, tos);
        room.put(Feature::Ecn, _mm512_and_si512(tos, set(3)));
    }

    /// The features of flows, from their buckets.
    fn put_of_flows(room: &Room<'_>, bucket: &Registers, low_to_high: u16, tick_ns: u64) {
        let (packets, bytes) = (bucket[word::PACKETS], bucket[word::BYTES]);
        let high_parts = bucket[word::HIGH_PARTS];
        room.put(Feature::Packets, packets);
        room.put(Feature::Bytes, bytes);
        room.put(Feature::SizeMin, low_16(bucket[word::SIZES]));
        room.put(Feature::SizeMax, high_16(bucket[word::SIZES]));
        if room.wants(Feature::SizeAvg) {
            room.put(Feature::SizeAvg, average(bytes, 256.0, packets));
        }
        if room.wants(Feature::SizeVar) {
            let squares = (bucket[word::SIZE_SQUARES], low_16(high_parts));
            room.put(Feature::SizeVar, variance(squares, bytes, packets, 1.0));
        }
        let delays = _mm512_sub_epi32(packets, set(1));
        let ipd_sum = _mm512_sub_epi32(bucket[word::LAST], bucket[word::FIRST]);
        room.put(Feature::IpdSum, ipd_sum);
        let ipd_min = _mm512_maskz_mov_epi32(is_set(delays), bucket[word::IPD_MIN]);
        room.put(Feature::IpdMin, ipd_min);
        room.put(Feature::IpdMax, bucket[word::IPD_MAX]);
        if room.wants(Feature::IpdAvg) {
            room.put(Feature::IpdAvg, average(ipd_sum, 1.0, delays));
        }
        if room.wants(Feature::IpdVar) {
            #[allow(clippy::cast_precision_loss, reason = "as in feature.rs")]
            let tick_us = tick_ns as f64 / 1e3;
            let squares = (bucket[word::IPD_SQUARES], high_16(high_parts));
            room.put(Feature::IpdVar, variance(squares, ipd_sum, delays, tick_us * tick_us));
        }
        let backward_bytes = bucket[word::BACKWARD_BYTES];
        let backward_part = _mm512_min_epu32(backward_bytes, bytes);
        room.put(Feature::ForwardBytes, _mm512_sub_epi32(bytes, backward_part));
        room.put(Feature::BackwardBytes, backward_bytes);
        let smallest = low_16(bucket[word::BACKWARD_SIZES]);
        let smallest = _mm512_maskz_mov_epi32(is_set(backward_bytes), smallest);
        room.put(Feature::BackwardSizeMin, smallest);
        room.put(Feature::BackwardSizeMax, high_16(bucket[word::BACKWARD_SIZES]));
        let headers = bucket[word::HEADERS_WINDOW];
        room.put(Feature::BackwardHeaderBytes, _mm512_slli_epi32::<2>(low_16(headers)));
        room.put(Feature::WindowForward, high_16(headers));
        let window_votes = bucket[word::WINDOW_VOTES];
        room.put(Feature::WindowBackward, low_16(window_votes));
        let backward = low_to_high ^ _mm512_movepi32_mask(window_votes);
        room.put(Feature::Backward, _mm512_maskz_mov_epi32(backward, set(1)));
    }

    /// One round: counts packets that share no places. Their buckets go into `after`.
    fn round(
        sketch: &mut Sketch,
        (fingerprints, places): (&[u64; GROUP], &Places),
        (ready, counted): (u16, &Counted),
        after: &mut Registers,
    ) -> u16 {
        let mut spare = [Bucket::default(); GROUP];
        let found = find(sketch, (fingerprints, places), ready, &mut spare);
        if found.live == 0 {
            return 0;
        }
        // SAFETY: a bucket is 64 bytes, aligned to as many; each packet has its own.
        let lines = found.buckets.map(|bucket| unsafe { _mm512_load_si512(bucket.cast()) });
        let new = update(&transpose(lines), found.claims, counted);
        for (bucket, line) in found.buckets.into_iter().zip(transpose(new)) {
            // SAFETY: as above.
            unsafe { _mm512_store_si512(bucket.cast(), line) };
        }
        keep(after, found.live, &new);
        found.live
    }

    /// Puts the lanes of `mask` from `new` into `after`.
    fn keep(after: &mut Registers, mask: u16, new: &Registers) {
        for (after, new) in after.iter_mut().zip(new) {
            *after = _mm512_mask_mov_epi32(*after, mask, *new);
        }
    }

    /// Counts packets one by one, in order. Their buckets go into `after`.
    fn one_by_one(
        sketch: &mut Sketch,
        packets: &PacketColumns,
        (group, pending): (usize, u16),
        after: &mut Registers,
    ) -> u16 {
        let mut lines = [_mm512_setzero_si512(); GROUP];
        let mut live = 0;
        for lane in bits(pending) {
            let facts = counted(packets, group * GROUP + lane);
            if let Some(bucket) = sketch.insert(&facts) {
                // SAFETY: a bucket is 64 bytes, aligned to as many.
                lines[lane] = unsafe { _mm512_load_si512(std::ptr::from_ref(bucket).cast()) };
                live |= 1 << lane;
            }
        }
        if live != 0 {
            keep(after, live, &transpose(lines));
        }
        live
    }
}

/// See [`Sketch::count_group`].
pub(super) fn count(
    sketch: &mut Sketch,
    _: Avx512,
    packets: &PacketColumns,
    (group, wanted): (usize, u16),
    [flow, packet]: [&mut Gathered; 2],
) {
    // SAFETY: holding the value proves that the machine has the instructions.
    unsafe { enabled(sketch, packets, (group, wanted), flow, packet) }
}

#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,bmi1,bmi2,lzcnt,popcnt"
)]
fn enabled(
    sketch: &mut Sketch,
    packets: &PacketColumns,
    (group, wanted): (usize, u16),
    flow: &mut Gathered,
    packet: &mut Gathered,
) {
    let counted = Counted {
        now: ticks(sketch, packets, group),
        size: load(&packets.size, group),
        header_len: load(&packets.header_len, group),
        tcp_window: load(&packets.tcp_window, group),
        low_to_high: packets.low_to_high[group],
        answers: packets.answers[group],
    };
    let fingerprints: &[u64; GROUP] = &packets.fingerprint.as_chunks().0[group];
    let places = places(sketch, packets, group);
    let mut after = [_mm512_setzero_si512(); 16];
    let (mut pending, mut live) = (wanted, 0);
    // A packet that shares a place with an earlier one waits for the next round.
    while pending.count_ones() >= FEW {
        let ready = without_conflict(&places, pending);
        if ready.count_ones() < FEW {
            break;
        }
        pending &= !ready;
        live |= round(
            sketch,
            (fingerprints, &places),
            (ready, &counted),
            &mut after,
        );
    }
    if pending != 0 {
        live |= one_by_one(sketch, packets, (group, pending), &mut after);
    }
    if live != 0 {
        let room = Room::new(flow, group, live);
        put_of_packets(&room, packets, group);
        let tick_ns = sketch.clock.tick_ns();
        put_of_flows(&room, &after, packets.low_to_high[group], tick_ns);
    }
    if wanted & !live != 0 {
        let room = Room::new(packet, group, wanted & !live);
        put_of_packets(&room, packets, group);
    }
}
