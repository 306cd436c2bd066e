//! Features of 16 packets at a time, from their columns and from those of their buckets.

use strata_wire::wide::{GROUP, Lanes, PacketColumns};

use super::super::gathered::{BLOCK, Gathered, NOWHERE};
use super::{Words, high_16, is_zero, low_16, of, word};
use crate::feature::Feature;

/// `values` where they count, 0 where `count` is.
#[inline(always)]
fn unless_zero<L: Lanes>(l: L, count: L::U32, values: L::U32) -> L::U32 {
    l.only(l.not(is_zero(l, count)), values)
}

/// `average` of `feature.rs`: exact, since dividend and divisor are below 2^53.
#[inline(always)]
fn average<L: Lanes>(l: L, sum: L::U32, scale: f64, count: L::U32) -> L::U32 {
    let scaled = l.mul_floats(l.floats(sum), l.set_float(scale));
    let average = l.whole(l.div_floats(scaled, l.floats(count)));
    unless_zero(l, count, average)
}

/// `variance` of `feature.rs`, by the same steps.
#[inline(always)]
fn variance<L: Lanes>(
    l: L,
    (low, high): (L::U32, L::U32),
    sum: L::U32,
    count: L::U32,
    unit: f64,
) -> L::U32 {
    // 48 bits: exact.
    let shifted = l.mul_floats(l.floats(high), l.set_float(4_294_967_296.0));
    let squares = l.add_floats(shifted, l.floats(low));
    let counts = l.floats(count);
    let mean = l.div_floats(l.floats(sum), counts);
    let mean_of_squares = l.div_floats(squares, counts);
    let variance = l.sub_floats(mean_of_squares, l.mul_floats(mean, mean));
    let scaled = l.mul_floats(l.positive(variance), l.set_float(unit));
    unless_zero(l, count, l.short_bits(scaled))
}

/// Where the features of some packets of a group go.
pub(super) struct Room<'a, L: Lanes> {
    columns: &'a [u8; Feature::ALL.len()],
    blocks: [&'a mut [[u32; BLOCK]]; 2],
    place: usize,
    /// The packets that go into the first block, and into the next one.
    parts: [L::Packing; 2],
    /// Whether there are any for the next block.
    goes_on: bool,
}

impl<'a, L: Lanes> Room<'a, L> {
    /// Space for the packets in `mask`; stores their places in the batch.
    #[inline(always)]
    pub(super) fn new(l: L, gathered: &'a mut Gathered, group: usize, mask: u16) -> Self {
        let place = gathered.count;
        let lanes = gathered.lanes[place..].first_chunk_mut::<GROUP>();
        let lanes = lanes.expect("a block that is not full has room for a group");
        #[allow(clippy::cast_possible_truncation, reason = "places in a batch of 256")]
        let numbers = std::array::from_fn(|lane| (group * GROUP + lane) as u32);
        let mut packed = [0; GROUP];
        l.pack(l.packing(mask), l.load(&numbers), &mut packed);
        *lanes = packed.map(|number| number.to_le_bytes()[0]);
        // The last ones go on where the first block ends.
        let mut next = 0;
        let mut here = mask;
        while here.count_ones() as usize > BLOCK - place {
            let last = 1 << (15 - here.leading_zeros());
            next |= last;
            here ^= last;
        }
        gathered.count += mask.count_ones() as usize;
        let blocks = gathered.blocks.each_mut();
        Room {
            columns: &gathered.columns,
            blocks: blocks.map(|block| block.as_chunks_mut().0),
            place,
            parts: [l.packing(here), l.packing(next)],
            goes_on: next != 0,
        }
    }

    fn wants(&self, feature: Feature) -> bool {
        self.columns[feature as usize] != NOWHERE
    }

    #[inline(always)]
    fn put(&mut self, l: L, feature: Feature, values: L::U32) {
        if !self.wants(feature) {
            return;
        }
        let column = usize::from(self.columns[feature as usize]);
        let [block, next] = &mut self.blocks;
        let here = &mut block[column][self.place..];
        match here.first_chunk_mut::<GROUP>() {
            Some(here) => l.pack(self.parts[0], values, here),
            None => l.pack_first(self.parts[0], values, here),
        }
        if self.goes_on
            && let Some(start) = next[column].first_chunk_mut()
        {
            l.pack(self.parts[1], values, start);
        }
    }
}

/// The features of packets.
#[inline(always)]
pub(super) fn put_of_packets<L: Lanes>(
    l: L,
    room: &mut Room<'_, L>,
    packets: &PacketColumns,
    group: usize,
) {
    let load = |column| l.load(of(column, group));
    let (size, header_len) = (load(&packets.size), load(&packets.header_len));
    let ports = [load(&packets.source_port), load(&packets.destination_port)];
    let tos = load(&packets.tos);
    room.put(l, Feature::Size, size);
    room.put(l, Feature::HeaderLen, header_len);
    let end = l.max(size, header_len);
    room.put(l, Feature::PayloadLen, l.sub(end, header_len));
    room.put(l, Feature::Protocol, load(&packets.protocol));
    room.put(l, Feature::SourcePort, ports[0]);
    room.put(l, Feature::DestinationPort, ports[1]);
    room.put(l, Feature::LowerPort, l.min(ports[0], ports[1]));
    room.put(l, Feature::TcpFlags, load(&packets.tcp_flags));
    room.put(l, Feature::TcpWindow, load(&packets.tcp_window));
    room.put(l, Feature::Ttl, load(&packets.ttl));
    room.put(l, Feature::Tos, tos);
    room.put(l, Feature::Ecn, l.and(tos, l.set(3)));
}

/// The features of flows, from their buckets.
#[inline(always)]
pub(super) fn put_of_flows<L: Lanes>(
    l: L,
    room: &mut Room<'_, L>,
    words: &Words,
    (low_to_high, tick_ns): (u16, u64),
) {
    let bucket = |word: usize| l.load(&words[word]);
    let (packets, bytes) = (bucket(word::PACKETS), bucket(word::BYTES));
    let high_parts = bucket(word::HIGH_PARTS);
    room.put(l, Feature::Packets, packets);
    room.put(l, Feature::Bytes, bytes);
    room.put(l, Feature::SizeMin, low_16(l, bucket(word::SIZES)));
    room.put(l, Feature::SizeMax, high_16(l, bucket(word::SIZES)));
    if room.wants(Feature::SizeAvg) {
        room.put(l, Feature::SizeAvg, average(l, bytes, 256.0, packets));
    }
    if room.wants(Feature::SizeVar) {
        let squares = (bucket(word::SIZE_SQUARES), low_16(l, high_parts));
        room.put(
            l,
            Feature::SizeVar,
            variance(l, squares, bytes, packets, 1.0),
        );
    }
    let delays = l.sub(packets, l.set(1));
    let ipd_sum = l.sub(bucket(word::LAST), bucket(word::FIRST));
    room.put(l, Feature::IpdSum, ipd_sum);
    let ipd_min = unless_zero(l, delays, bucket(word::IPD_MIN));
    room.put(l, Feature::IpdMin, ipd_min);
    room.put(l, Feature::IpdMax, bucket(word::IPD_MAX));
    if room.wants(Feature::IpdAvg) {
        room.put(l, Feature::IpdAvg, average(l, ipd_sum, 1.0, delays));
    }
    if room.wants(Feature::IpdVar) {
        #[allow(clippy::cast_precision_loss, reason = "as in feature.rs")]
        let tick_us = tick_ns as f64 / 1e3;
        let squares = (bucket(word::IPD_SQUARES), high_16(l, high_parts));
        let variance = variance(l, squares, ipd_sum, delays, tick_us * tick_us);
        room.put(l, Feature::IpdVar, variance);
    }
    let backward_bytes = bucket(word::BACKWARD_BYTES);
    let backward_part = l.min(backward_bytes, bytes);
    room.put(l, Feature::ForwardBytes, l.sub(bytes, backward_part));
    room.put(l, Feature::BackwardBytes, backward_bytes);
    let smallest = low_16(l, bucket(word::BACKWARD_SIZES));
    let smallest = unless_zero(l, backward_bytes, smallest);
    room.put(l, Feature::BackwardSizeMin, smallest);
    let largest = high_16(l, bucket(word::BACKWARD_SIZES));
    room.put(l, Feature::BackwardSizeMax, largest);
    let headers = bucket(word::HEADERS_WINDOW);
    let header_bytes = l.shl(low_16(l, headers), 2);
    room.put(l, Feature::BackwardHeaderBytes, header_bytes);
    room.put(l, Feature::WindowForward, high_16(l, headers));
    let window_votes = bucket(word::WINDOW_VOTES);
    room.put(l, Feature::WindowBackward, low_16(l, window_votes));
    let backward = l.one_of(l.mask(low_to_high), l.top(window_votes));
    room.put(l, Feature::Backward, l.only(backward, l.set(1)));
}
