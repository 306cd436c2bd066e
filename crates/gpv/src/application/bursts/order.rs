//! Packets of many flows in the order of their times: intervals of time, each sorted when it is
//! over.

/// A packet that waits. Of those of one time, which ones met a long queue come last: a walk back
/// from these finds the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
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
const CHUNK: usize = 16;
const NONE: u32 = u32::MAX;

/// Where an interval's packets are: a list of chunks, of which the first has room.
#[derive(Clone, Copy, Debug)]
struct Interval {
    chunk: u32,
    /// Packets of the first chunk.
    filled: u32,
}

const EMPTY: Interval = Interval {
    chunk: NONE,
    filled: 0,
};

/// Memory, all of it allocated at the start: 64 KiB, and 16 to 18 bytes a packet.
#[derive(Debug)]
pub(super) struct Order {
    intervals: Vec<Interval>,
    chunks: Vec<[Held; CHUNK]>,
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
}

impl Order {
    pub(super) fn new(hold_ns: u64, packets_max: u32) -> Self {
        // Packets of a vector may each need a chunk of their own.
        let count = (packets_max as usize).div_ceil(CHUNK) + INTERVALS;
        let hold_ns = hold_ns.clamp(INTERVALS as u64, 1 << 50);
        let shift = (hold_ns * 2 / INTERVALS as u64).next_power_of_two().ilog2();
        let next = (1..=count).map(strata_wire::exact::<u32>).collect();
        Self {
            intervals: vec![EMPTY; INTERVALS],
            chunks: vec![[Held::default(); CHUNK]; count],
            next,
            free: 0,
            free_chunks: count,
            shift,
            oldest: None,
            hold_ns,
            len: 0,
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

    /// False if its interval was given before. There must be room.
    #[inline]
    pub(super) fn put(&mut self, packet: Held) -> bool {
        let number = packet.ts_ns >> self.shift;
        let oldest = match self.oldest {
            Some(oldest) if self.len > 0 => oldest,
            // Nothing waits, so those that come may be a little older than this one.
            given => {
                let first = number.saturating_sub(self.hold_ns >> self.shift);
                let first = given.map_or(first, |given| first.max(given));
                self.oldest = Some(first);
                first
            }
        };
        if number < oldest || number - oldest >= INTERVALS as u64 {
            return false;
        }
        let interval = &mut self.intervals[place(number)];
        if interval.chunk == NONE || interval.filled as usize == CHUNK {
            let chunk = self.free;
            self.free = self.next[chunk as usize];
            self.next[chunk as usize] = interval.chunk;
            *interval = Interval { chunk, filled: 0 };
            self.free_chunks -= 1;
        }
        self.chunks[interval.chunk as usize][interval.filled as usize] = packet;
        interval.filled += 1;
        self.len += 1;
        true
    }

    /// The packets of the oldest interval below `end` that has some, in their order.
    pub(super) fn next(&mut self, end: u64, sorted: &mut Vec<Held>) {
        sorted.clear();
        let Some(oldest) = &mut self.oldest else {
            return;
        };
        for _ in 0..INTERVALS {
            let interval = &mut self.intervals[place(*oldest)];
            *oldest += 1;
            let Interval { mut chunk, filled } = std::mem::replace(interval, EMPTY);
            let mut filled = filled as usize;
            while chunk != NONE {
                sorted.extend_from_slice(&self.chunks[chunk as usize][..filled]);
                let after = self.next[chunk as usize];
                self.next[chunk as usize] = self.free;
                self.free = chunk;
                self.free_chunks += 1;
                (chunk, filled) = (after, CHUNK);
            }
            if !sorted.is_empty() || *oldest >= end {
                break;
            }
        }
        self.len -= sorted.len();
        sorted.sort_unstable();
    }
}

/// Where the interval of this number is.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the low bits are meant")]
fn place(number: u64) -> usize {
    number as usize % INTERVALS
}
