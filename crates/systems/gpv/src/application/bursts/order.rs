//! Packets of many flows in the order of their times: intervals of time, each sorted when it is
//! over.

use strata_wire::prefetch_whole;

/// A packet that waits. Of those of one time, which ones met a long queue come last: a walk back
/// from these finds the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Held {
    pub(super) ts_ns: u64,
    /// Bytes, and in the highest bit whether it met a long queue.
    word: u32,
    /// Number of its source.
    pub(super) host: u32,
}

const _: () = assert!(size_of::<Held>() == 16);
const SIZE_MAX: u32 = u32::MAX >> 1;

impl Held {
    #[inline(always)]
    pub(super) fn new(ts_ns: u64, host: u32, size: u32, is_congested: bool) -> Self {
        Self {
            ts_ns,
            host,
            word: (size & SIZE_MAX) | u32::from(is_congested) << 31,
        }
    }

    /// Time, then the flag and bytes, then the source: what comes first is less.
    #[inline(always)]
    fn rank(&self) -> u128 {
        u128::from(self.ts_ns) << 64 | u128::from(self.word) << 32 | u128::from(self.host)
    }

    #[inline(always)]
    pub(super) fn size(&self) -> u32 {
        self.word & SIZE_MAX
    }

    #[inline(always)]
    pub(super) fn is_congested(&self) -> bool {
        self.word > SIZE_MAX
    }
}

/// Intervals that packets wait in: twice the time that they may.
const INTERVALS: usize = 8192;
/// Packets of a chunk: 4 cache lines.
const CHUNK: u32 = 16;
/// No chunk: the first one is never used, so that an interval's next place tells all about it.
const NONE: u32 = 0;
/// Chunks of the next interval that are fetched while one is diagnosed.
const FETCHED: usize = 64;
/// Packets at most, since places are numbers of 32 bits.
const PACKETS_MAX: u32 = 1 << 31;

/// Memory: 32 KiB, and 16 to 18 bytes a packet, allocated at the start and touched as packets come; 16
/// bytes for each packet of the fullest interval, and up to 1 MiB to sort them.
#[derive(Debug)]
pub(super) struct Order {
    /// Where the next packet of each interval goes. Its packets are in a list of chunks, of which
    /// the first is filled up to there: a multiple of [`CHUNK`] if it is full, or without a chunk
    /// ([`NONE`]).
    intervals: Vec<u32>,
    places: Vec<Held>,
    /// The chunk after each in its list, of intervals or of those that are free.
    next: Vec<u32>,
    free: u32,
    free_chunks: usize,
    /// Log2 of an interval's ns.
    shift: u32,
    /// Number of the oldest interval that was not given.
    oldest: Option<u64>,
    hold_ns: u64,
    len: usize,
    sorter: Sorter,
}

impl Order {
    pub(super) fn new(hold_ns: u64, packets_max: u32) -> Self {
        // Packets of a vector may each need a chunk of their own.
        let packets_max = packets_max.min(PACKETS_MAX);
        let count = (packets_max.div_ceil(CHUNK) as usize).wrapping_add(INTERVALS);
        let hold_ns = hold_ns.clamp(INTERVALS as u64, 1 << 50);
        // At most 2^51.
        let twice_ns = hold_ns.wrapping_mul(2);
        const PARTS: u64 = INTERVALS as u64;
        let shift = (twice_ns / PARTS).next_power_of_two().ilog2();
        let mut places = Vec::with_capacity(count.wrapping_add(1).wrapping_mul(CHUNK as usize));
        places.resize(CHUNK as usize, Held::default());
        let mut next = Vec::with_capacity(count.wrapping_add(1));
        next.push(NONE);
        Self {
            intervals: vec![NONE; INTERVALS],
            places,
            next,
            free: NONE,
            free_chunks: count,
            shift,
            oldest: None,
            hold_ns,
            len: 0,
            sorter: Sorter::default(),
        }
    }

    /// Packets that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Packets that can be put, whatever their times.
    pub(super) fn room(&self) -> usize {
        self.free_chunks
    }

    /// Numbers of intervals that are over at this time are below it.
    #[inline]
    pub(super) fn due(&self, newest_ns: u64) -> u64 {
        newest_ns.saturating_sub(self.hold_ns) >> self.shift
    }

    /// Whether there may be packets in intervals below `end`.
    #[inline]
    pub(super) fn is_below(&self, end: u64) -> bool {
        self.len > 0 && self.oldest.is_some_and(|oldest| oldest < end)
    }

    /// Puts packets, for which there must be room; how many were late: their intervals were given
    /// before.
    #[inline(always)]
    pub(super) fn put(&mut self, packets: impl Iterator<Item = Held>) -> u32 {
        let (mut late, mut put) = (0_u32, 0_usize);
        let (shift, mut oldest) = (self.shift, self.oldest.filter(|_| self.len > 0));
        for packet in packets {
            let number = packet.ts_ns >> shift;
            let first = oldest.unwrap_or_else(|| self.restart(number));
            // Also of those before the first.
            if number.wrapping_sub(first) >= INTERVALS as u64 {
                late = late.wrapping_add(1);
                continue;
            }
            oldest = Some(first);
            let next = &mut self.intervals[place(number)];
            if next.is_multiple_of(CHUNK) {
                if self.free == NONE {
                    // One that was never used: so memory is touched when it is needed.
                    self.free = strata_wire::exact(self.next.len());
                    self.next.push(NONE);
                    let len = self.places.len().wrapping_add(CHUNK as usize);
                    self.places.resize(len, Held::default());
                }
                let chunk = self.free;
                self.free = self.next[chunk as usize];
                self.next[chunk as usize] = list(*next);
                self.free_chunks = self.free_chunks.wrapping_sub(1);
                *next = chunk.wrapping_mul(CHUNK);
            }
            self.places[*next as usize] = packet;
            *next = next.wrapping_add(1);
            put = put.wrapping_add(1);
        }
        self.len = self.len.wrapping_add(put);
        late
    }

    /// Nothing waits, so packets that come may be a little older than this one.
    #[cold]
    fn restart(&mut self, number: u64) -> u64 {
        let first = number.saturating_sub(self.hold_ns >> self.shift);
        let first = self.oldest.map_or(first, |given| first.max(given));
        self.oldest = Some(first);
        first
    }

    /// The packets of the oldest interval below `end` that has some, in their order.
    pub(super) fn next(&mut self, end: u64, sorted: &mut Vec<Held>) {
        sorted.clear();
        let Some(oldest) = &mut self.oldest else {
            return;
        };
        for _ in 0..INTERVALS {
            let next = std::mem::replace(&mut self.intervals[place(*oldest)], NONE);
            *oldest = oldest.wrapping_add(1);
            let (mut chunk, mut end_of_chunk) = (list(next), next);
            while chunk != NONE {
                let (first, last) = (chunk.wrapping_mul(CHUNK), end_of_chunk);
                sorted.extend_from_slice(&self.places[first as usize..last as usize]);
                let after = self.next[chunk as usize];
                self.next[chunk as usize] = self.free;
                self.free = chunk;
                self.free_chunks = self.free_chunks.wrapping_add(1);
                (chunk, end_of_chunk) = (after, after.wrapping_add(1).wrapping_mul(CHUNK));
            }
            if !sorted.is_empty() || *oldest >= end {
                break;
            }
        }
        self.len = self.len.wrapping_sub(sorted.len());
        let following = *oldest;
        self.fetch(following);
        self.sorter.sort(sorted, self.shift);
    }

    /// Fetches packets of the interval of this number.
    fn fetch(&self, number: u64) {
        let mut chunk = list(self.intervals[place(number)]);
        let (chunks, _) = self.places.as_chunks::<{ CHUNK as usize }>();
        for _ in 0..FETCHED {
            if chunk == NONE {
                break;
            }
            prefetch_whole(chunks, chunk as usize);
            chunk = self.next[chunk as usize];
        }
    }
}

/// The first chunk of an interval whose next packet goes there: the one that has the place before.
#[inline(always)]
fn list(next: u32) -> u32 {
    next.div_ceil(CHUNK).saturating_sub(1)
}

/// Sorts packets of an interval.
#[derive(Debug)]
struct Sorter {
    /// Of each part of the interval, how many packets are in it, then where the next one goes.
    places: Box<[u32; PARTS_MAX]>,
    parted: Vec<Held>,
}

impl Default for Sorter {
    fn default() -> Self {
        Self {
            places: Box::new([0; PARTS_MAX]),
            parted: Vec::new(),
        }
    }
}

/// Fewer, or more, are sorted by comparisons alone: the latter, so that memory is bounded.
const PARTED_MIN: usize = 32;
const PARTED_MAX: usize = 1 << 16;
/// More do not stay in the cache.
const PARTS_MAX: usize = 4096;
/// Moves per packet after which the times are not spread over the interval.
const MOVES_MAX: usize = 8;

impl Sorter {
    /// Sorts packets whose times differ in the lowest `shift` bits. By as many parts of the interval
    /// as there are packets, then each to where it belongs within its part; where that takes long,
    /// since times are alike, by comparisons.
    fn sort(&mut self, packets: &mut Vec<Held>, shift: u32) {
        if !(PARTED_MIN..=PARTED_MAX).contains(&packets.len()) {
            packets.sort_unstable_by_key(Held::rank);
            return;
        }
        let parts_log2 = packets.len().min(PARTS_MAX).ilog2().min(shift);
        let part_of = |packet: &Held| part(packet.ts_ns, shift, parts_log2) % PARTS_MAX;
        let places = &mut *self.places;
        places[..1 << parts_log2].fill(0);
        for packet in &*packets {
            let count = &mut places[part_of(packet)];
            *count = count.wrapping_add(1);
        }
        let mut place = 0_u32;
        for count in &mut places[..1 << parts_log2] {
            place = place.wrapping_add(std::mem::replace(count, place));
        }
        self.parted.resize(packets.len(), Held::default());
        for packet in &*packets {
            let place = &mut places[part_of(packet)];
            self.parted[*place as usize] = *packet;
            *place = place.wrapping_add(1);
        }
        std::mem::swap(packets, &mut self.parted);
        let moves_max = MOVES_MAX.wrapping_mul(packets.len());
        if !sort_nearly_sorted(packets, moves_max) {
            packets.sort_unstable_by_key(Held::rank);
        }
    }
}

/// False if that takes more moves than allowed; then they are in any order.
fn sort_nearly_sorted(packets: &mut [Held], moves_max: usize) -> bool {
    let (mut left, mut greatest) = (moves_max, 0);
    for end in 0..packets.len() {
        let packet = packets[end];
        let rank = packet.rank();
        if rank >= greatest {
            greatest = rank;
            continue;
        }
        let mut at = end;
        while at > 0 && rank < packets[at.wrapping_sub(1)].rank() {
            packets[at] = packets[at.wrapping_sub(1)];
            at = at.wrapping_sub(1);
        }
        packets[at] = packet;
        match left.checked_sub(end.wrapping_sub(at)) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
    true
}

/// Which of `2^parts_log2` parts of its interval a time is in.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the low bits are meant")]
fn part(ts_ns: u64, shift: u32, parts_log2: u32) -> usize {
    (ts_ns >> shift.wrapping_sub(parts_log2)) as usize & (1_usize << parts_log2).wrapping_sub(1)
}

/// Where the interval of this number is.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the low bits are meant")]
fn place(number: u64) -> usize {
    number as usize % INTERVALS
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_testkit::sim::{self, Rng};

    #[test]
    fn an_interval_is_sorted_however_its_times_are_spread() {
        sim::seeds(200, |seed| {
            let mut rng = Rng::new(seed);
            let shift: u32 = strata_wire::exact(1 + rng.below(30));
            let interval = rng.below(1000) << shift;
            // Over all of it, over a small part, at one time.
            let within_log2 = rng.below(u64::from(shift) + 1);
            let within = 1 + rng.below(1 << within_log2);
            let mut packet = || {
                let size: u32 = strata_wire::exact(rng.below(4));
                let host = strata_wire::exact(rng.below(3));
                Held::new(interval + rng.below(within), host, size, size == 3)
            };
            let count = [5, 31, 32, 33, 700, 9000][usize::try_from(seed % 6).expect("few")];
            let packets: Vec<Held> = (0..count).map(|_| packet()).collect();
            let (mut wanted, mut found) = (packets.clone(), packets);
            wanted.sort_by_key(|held| (held.ts_ns, held.is_congested(), held.size(), held.host));
            let mut sorter = Sorter::default();
            sorter.sort(&mut found, shift);
            assert_eq!(found, wanted, "seed {seed}");
        });
    }
}
