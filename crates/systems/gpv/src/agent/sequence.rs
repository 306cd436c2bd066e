//! Datagrams of many caches into vectors in order, with what was lost counted.

use std::collections::{BTreeMap, HashMap};

use crate::format::FormatError;
use crate::format::datagram::Datagram;
use crate::tuple::Full;
use crate::vector::Vector;

/// A number so far ahead of the next is damage, not loss.
const AHEAD_MAX: u64 = 1 << 32;

/// Bounds of a [`Sequencer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequencerOptions {
    /// Maximum number of caches whose vectors are accepted.
    pub caches_max: usize,
    /// Datagrams of a cache that wait for one that is missing; then it is lost.
    pub waiting_max: usize,
    /// Vectors that may be lost in a row. A larger gap is a jump: their number is not known, since the cache has
    /// started again, or a datagram was forged.
    pub gap_max: u64,
}

impl Default for SequencerOptions {
    /// 64 caches; 16 datagrams each, at most 64 MB in all. No gap is a jump.
    fn default() -> Self {
        Self {
            caches_max: 64,
            waiting_max: 16,
            gap_max: u64::MAX,
        }
    }
}

/// What a sequencer counted. Of each cache, vectors that were sent are those given, those lost and
/// those that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SequencerCounters {
    /// Vectors given.
    pub vectors: u64,
    /// Vectors that never came, came too late, or were damaged.
    pub lost: u64,
    /// Gaps larger than [`SequencerOptions::gap_max`], or beyond the number of vectors that the cache says it sent: the
    /// vectors lost in them are not in `lost`.
    pub jumps: u64,
    /// Datagrams that came again, or after they were counted as lost.
    pub stale: u64,
    /// Datagrams that are invalid, or contradict those before.
    pub damaged: u64,
    /// Datagrams of caches beyond [`SequencerOptions::caches_max`].
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Cache {
    next_seq: u64,
    waiting: BTreeMap<u64, Vec<u8>>,
}

/// Puts datagrams into order.
///
/// A cache is heard from its number 0 on; who begins to listen later calls [`Sequencer::join`].
#[derive(Debug)]
pub struct Sequencer {
    options: SequencerOptions,
    caches: HashMap<u32, Cache>,
    tuples: Vec<Full>,
    counters: SequencerCounters,
}

impl Sequencer {
    /// One that has heard nothing.
    #[must_use]
    pub fn new(options: SequencerOptions) -> Self {
        Self {
            options,
            caches: HashMap::new(),
            tuples: Vec::new(),
            counters: SequencerCounters::default(),
        }
    }

    /// What it counted.
    #[must_use]
    pub fn counters(&self) -> &SequencerCounters {
        &self.counters
    }

    /// Begins to listen to `cache` at this number: what came before is not lost. False if there
    /// are too many caches.
    pub fn join(&mut self, cache: u32, next_seq: u64) -> bool {
        let has_room = self.caches.len() < self.options.caches_max;
        if !has_room && !self.caches.contains_key(&cache) {
            return false;
        }
        let waiting = BTreeMap::new();
        self.caches.insert(cache, Cache { next_seq, waiting });
        true
    }

    /// Takes a datagram and gives what is in order now to `out`.
    ///
    /// # Errors
    ///
    /// If it is damaged: counted, and the vectors in it, as far as they did not come, are lost.
    pub fn datagram(
        &mut self,
        bytes: &[u8],
        mut out: impl FnMut(u32, &Vector<'_, Full>),
    ) -> Result<(), FormatError> {
        self.datagram_at_once(bytes, |cache, vectors| {
            vectors.iter().for_each(|vector| out(cache, vector));
        })
    }

    /// The same, with all vectors of a datagram together.
    ///
    /// # Errors
    ///
    /// As [`Sequencer::datagram`].
    pub fn datagram_at_once(
        &mut self,
        bytes: &[u8],
        mut out: impl FnMut(u32, &[Vector<'_, Full>]),
    ) -> Result<(), FormatError> {
        let datagram = match Datagram::new_checked(bytes) {
            Ok(datagram) => datagram,
            Err(error) => {
                self.counters.damaged = self.counters.damaged.wrapping_add(1);
                return Err(error);
            }
        };
        let id = datagram.cache;
        if !self.caches.contains_key(&id) && !self.join(id, 0) {
            self.counters.refused = self.counters.refused.wrapping_add(1);
            return Ok(());
        }
        let Some(cache) = self.caches.get_mut(&id) else {
            return Ok(());
        };
        let (first, end) = (
            datagram.first_seq,
            datagram.first_seq.wrapping_add(u64::from(datagram.vectors)),
        );
        if end <= cache.next_seq || cache.waiting.contains_key(&first) {
            self.counters.stale = self.counters.stale.wrapping_add(1);
            return Ok(());
        }
        if first < cache.next_seq || first.wrapping_sub(cache.next_seq) > AHEAD_MAX {
            self.counters.damaged = self.counters.damaged.wrapping_add(1);
            let what = "a sequence number that contradicts earlier ones";
            return Err(FormatError {
                what,
                offset: 16,
                len: bytes.len(),
            });
        }
        if first > cache.next_seq {
            cache.waiting.insert(first, bytes.to_vec());
            if cache.waiting.len() > self.options.waiting_max {
                self.skip(id, None);
                return self.drain(id, &mut out);
            }
            return Ok(());
        }
        self.give(id, &datagram, &mut out)
            .and(self.drain(id, &mut out))
    }

    /// The cache says that it has sent `end_seq` vectors: what is missing of them is lost, and numbers beyond them are a
    /// jump. Without it, up to the last that came.
    ///
    /// # Errors
    ///
    /// As [`Sequencer::datagram`], of datagrams that waited.
    pub fn finish(
        &mut self,
        cache: u32,
        end_seq: Option<u64>,
        mut out: impl FnMut(u32, &Vector<'_, Full>),
    ) -> Result<(), FormatError> {
        let mut result = Ok(());
        let mut out = |cache, vectors: &[Vector<'_, Full>]| {
            vectors.iter().for_each(|vector| out(cache, vector));
        };
        // A cache that says so while it runs may have sent more since.
        let sent = |of: &Cache| end_seq.filter(|&end_seq| end_seq >= of.next_seq);
        let end_seq = self.caches.get(&cache).and_then(sent);
        while self
            .caches
            .get(&cache)
            .is_some_and(|cache| !cache.waiting.is_empty())
        {
            self.skip(cache, end_seq);
            result = result.and(self.drain(cache, &mut out));
        }
        if let (Some(end_seq), Some(of)) = (end_seq, self.caches.get_mut(&cache)) {
            let missing = end_seq.saturating_sub(of.next_seq);
            of.next_seq = of.next_seq.max(end_seq);
            self.lose(missing);
        }
        result
    }

    /// Gives up what is missing before the first datagram that waits. The cache has sent `end_seq` vectors, if that is
    /// known.
    fn skip(&mut self, id: u32, end_seq: Option<u64>) {
        if let Some(cache) = self.caches.get_mut(&id)
            && let Some((&first, _)) = cache.waiting.first_key_value()
        {
            // Of vectors that were not sent, none is lost.
            let sent = end_seq.map_or(first, |end_seq| end_seq.min(first));
            let missing = sent.saturating_sub(cache.next_seq);
            let is_beyond = first > sent && first > cache.next_seq;
            cache.next_seq = cache.next_seq.max(first);
            self.counters.jumps = self.counters.jumps.wrapping_add(is_beyond.into());
            self.lose(missing);
        }
    }

    /// Counts vectors that never came.
    fn lose(&mut self, missing: u64) {
        let (count, more) = match missing <= self.options.gap_max {
            true => (&mut self.counters.lost, missing),
            false => (&mut self.counters.jumps, 1),
        };
        *count = count.wrapping_add(more);
    }

    /// Gives what waited and is in order now.
    fn drain(
        &mut self,
        id: u32,
        out: &mut impl FnMut(u32, &[Vector<'_, Full>]),
    ) -> Result<(), FormatError> {
        let mut result = Ok(());
        while let Some(cache) = self.caches.get_mut(&id)
            && let Some(entry) = cache.waiting.first_entry()
            && *entry.key() <= cache.next_seq
        {
            let (first, bytes) = entry.remove_entry();
            if first < cache.next_seq {
                // Its numbers are those of another datagram too.
                self.counters.damaged = self.counters.damaged.wrapping_add(1);
                continue;
            }
            let datagram = Datagram::new_checked(&bytes)?;
            result = result.and(self.give(id, &datagram, out));
        }
        result
    }

    fn give(
        &mut self,
        id: u32,
        datagram: &Datagram<'_>,
        out: &mut impl FnMut(u32, &[Vector<'_, Full>]),
    ) -> Result<(), FormatError> {
        let (vectors, read) = datagram.all(&mut self.tuples);
        let given = vectors.len() as u64;
        out(id, &vectors);
        self.counters.vectors = self.counters.vectors.wrapping_add(given);
        self.counters.lost = self
            .counters
            .lost
            .wrapping_add(u64::from(datagram.vectors).wrapping_sub(given));
        self.counters.damaged = self.counters.damaged.wrapping_add(u64::from(read.is_err()));
        if let Some(cache) = self.caches.get_mut(&id) {
            cache.next_seq = datagram.first_seq.wrapping_add(u64::from(datagram.vectors));
        }
        read
    }
}
