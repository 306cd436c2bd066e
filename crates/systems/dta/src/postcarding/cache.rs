//! The translator's cache: postcards of a flow wait in a row until its path is complete.

use std::collections::HashSet;

use strata_wire::exact;

use super::{Dictionary, Extent, HOPS_MAX, Postcarding};
use crate::hash::KeyHash;
use crate::protocol::{Refusal, packed};
use crate::sink::{Operation, Origin, Room, Sink};
use crate::tally;

/// One flow's postcards, as long as its path is not complete: a cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Row {
    key: KeyHash,
    since_ns: u64,
    values: [u32; HOPS_MAX],
    /// A bit for each hop that has reported; 0 if the row is empty.
    reported: u8,
    /// How many have.
    count: u8,
    /// Hops of the path; 0: not known.
    path_len: u8,
    /// One more than the last hop that has reported and is not kept; 0: none has.
    beyond: u8,
    /// Whether a hop has reported with two values.
    is_contradicted: bool,
    /// Whether its postcards may be of several packets.
    is_mixed: bool,
}
const _: () = assert!(size_of::<Row>() == 64);

impl Row {
    /// Another flow has it now. Values stay as they are: none of them counts.
    #[inline(always)]
    fn begin(&mut self, key: KeyHash, now_ns: u64) {
        self.key = key;
        self.since_ns = now_ns;
        (self.reported, self.count, self.beyond) = (0, 0, 0);
        self.path_len = 0;
        (self.is_contradicted, self.is_mixed) = (false, false);
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.reported | self.beyond == 0
    }

    #[inline(always)]
    fn path_len(&self) -> Option<u8> {
        Some(self.path_len).filter(|&len| len != 0)
    }

    /// Takes a postcard that nothing has to be decided for, as most are: the first one of its hop in a
    /// row that is empty, or of the same flow with the same length, or none. `needed` are the hops of
    /// that length that are kept. Whether the row has them all; `None` if it was not taken.
    #[inline(always)]
    fn take(
        &mut self,
        key: KeyHash,
        hop: u8,
        path_len: u8,
        needed: u8,
        value: u32,
        now_ns: u64,
    ) -> Option<bool> {
        if self.is_empty() {
            self.begin(key, now_ns);
            self.path_len = path_len;
        }
        let before = self.reported;
        // With a first hop, another packet may begin.
        let is_of_packet = before.unbounded_shr(hop.into()) & 1 == 0 && (hop != 0 || before == 0);
        let is_same = self.key == key && self.path_len == path_len;
        if !is_same || !is_of_packet || hop >= needed {
            return None;
        }
        // One of 8 at most.
        self.reported = before | 1_u8.wrapping_shl(hop.into());
        self.count = self.count.wrapping_add(1);
        self.values[usize::from(hop)] = value;
        Some(self.count >= needed)
    }

    /// How long the path is, as far as its reports say.
    #[inline(always)]
    fn extent(&self) -> Extent {
        let extent = match self.path_len() {
            None => {
                let hops = u8::BITS.wrapping_sub(self.reported.leading_zeros());
                Extent::at_least(self.beyond.max(exact::<u8>(hops)))
            }
            Some(len) => Extent::known(len),
        };
        // A hop beyond the end is of another packet.
        let is_longer = self.path_len().is_some_and(|len| self.beyond > len);
        Extent {
            is_contradicted: self.is_contradicted,
            is_mixed: self.is_mixed || is_longer,
            ..extent
        }
    }
}

/// Whether the first hops have reported, without a gap.
fn is_from_the_first(reported: u8) -> bool {
    reported & reported.wrapping_add(1) == 0
}

/// Why a row is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    /// The path is complete, or has the maximum length.
    Complete,
    /// Another flow needs its place.
    Collided,
    /// Nothing more has come.
    Aged,
}

/// The counters of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheCounters {
    /// Postcards taken.
    pub postcards: u64,
    /// Rows written because the path was complete.
    pub complete: u64,
    /// Rows written early because another flow needed the place.
    pub collided: u64,
    /// Rows written early because nothing more came.
    pub aged: u64,
    /// Postcards that were replaced by a later one of the same hop before the row was written.
    pub superseded: u64,
    /// Postcards in rows.
    pub held: u64,
    /// Values written to dictionaries.
    pub values: u64,
}

/// Rows that are fetched together.
const AHEAD: usize = 16;

/// What became of the reports of a datagram: those that took another's place, and those that were
/// refused because of their hop and their value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PutAll {
    pub(crate) superseded: u64,
    pub(crate) hop: u64,
    pub(crate) value: u64,
}

/// The translator's cache of rows. Memory per row: 64 bytes, and 16 more if origins are kept.
#[derive(Debug)]
pub struct Cache {
    store: Postcarding,
    rows: Vec<Row>,
    origins: Vec<[Origin; HOPS_MAX]>,
    /// Where the search for old rows goes on.
    hand: usize,
    /// Without `held`.
    counters: CacheCounters,
    /// Postcards in rows that were written.
    written: u64,
    /// What the dictionary of each collector holds.
    known: Vec<Written>,
}

/// A dictionary of large values.
#[derive(Debug, Default)]
struct Written {
    values: HashSet<u32>,
    /// Words of it: after damage, a value may be there twice.
    words: u32,
}

impl Cache {
    /// An empty cache of `rows` rows, a power of two.
    ///
    /// # Panics
    ///
    /// If it is not.
    #[must_use]
    pub fn new(store: Postcarding, rows: usize, keeps_origins: bool) -> Self {
        assert!(rows.is_power_of_two() && rows <= 1 << 24, "rows");
        let origins = if keeps_origins { rows } else { 0 };
        Self {
            store,
            rows: vec![Row::default(); rows],
            origins: vec![[Origin::default(); HOPS_MAX]; origins],
            hand: 0,
            counters: CacheCounters::default(),
            written: 0,
            known: Vec::new(),
        }
    }

    /// Continues the dictionary of this collector, which holds these values and no others.
    pub fn continue_values(&mut self, collector: usize, values: impl IntoIterator<Item = u32>) {
        if self.known.len() <= collector {
            self.known
                .resize_with(collector.wrapping_add(1), Written::default);
        }
        let known = &mut self.known[collector];
        *known = Written::default();
        for value in values {
            known.values.insert(value);
            known.words = known.words.saturating_add(1);
        }
    }

    /// Writes a value that readers cannot guess into the dictionary of the collector of a key.
    #[cold]
    fn write_down<S: Sink>(
        &mut self,
        key: KeyHash,
        value: u32,
        dictionary: Dictionary,
        sinks: &mut [S],
    ) -> Result<(), Refusal> {
        let collector = key.collector(sinks.len());
        if self.known.len() <= collector {
            self.continue_values(collector, []);
        }
        let Written { values, words } = &mut self.known[collector];
        if values.contains(&value) {
            return Ok(());
        }
        if *words >= dictionary.len {
            return Err(Refusal::Value);
        }
        values.insert(value);
        let sink = &mut sinks[collector];
        sink.write_word(dictionary.place(*words), Dictionary::word(value), &[]);
        // Before a chunk that has it.
        sink.settle();
        *words = words.wrapping_add(1);
        tally::one(&mut self.counters.values);
        Ok(())
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        let counters = self.counters;
        CacheCounters {
            held: counters
                .postcards
                .wrapping_sub(counters.superseded)
                .wrapping_sub(self.written),
            ..counters
        }
    }

    /// Counts what its rows hold, after a fault between two changes: the rest was written.
    pub(crate) fn after_fault(&mut self) {
        let mut held = 0;
        for row in &mut self.rows {
            row.count = exact::<u8>(row.reported.count_ones());
            tally::add(&mut held, u64::from(row.count));
        }
        let counters = self.counters;
        let taken = counters.postcards.saturating_sub(counters.superseded);
        self.written = taken.saturating_sub(held);
    }

    /// Rows are written to this store from now on, of the same shape as the one before.
    ///
    /// # Panics
    ///
    /// If its shape differs.
    pub(crate) fn turn_to(&mut self, store: Postcarding) {
        let before = Postcarding {
            base: store.base,
            ..self.store
        };
        assert_eq!(store, before, "stores of the same shape");
        self.store = store;
    }

    /// The number of writes for a row.
    #[inline]
    #[must_use]
    pub fn copies(&self) -> usize {
        usize::from(self.store.redundancy)
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Asks for the row that a postcard of this key will go to.
    #[inline]
    pub fn prefetch(&self, key: KeyHash) {
        strata_wire::prefetch(&self.rows, key.row(self.rows.len()));
    }

    /// The key whose row a postcard of `key` would evict.
    #[must_use]
    pub fn victim(&self, key: KeyHash) -> Option<KeyHash> {
        let row = &self.rows[key.row(self.rows.len())];
        (!row.is_empty() && row.key != key).then_some(row.key)
    }

    /// Takes a postcard. Writes follow of the row of [`Cache::victim`], and of its own once the path
    /// is complete, as many as the redundancy says each. `sinks` are those of the collectors, of
    /// which [`KeyHash::collector`] chooses. Returns whose postcard of the same hop this one took
    /// the place of; if origins are not kept, any.
    ///
    /// # Errors
    ///
    /// [`Refusal::Hop`], of which the path's length is remembered; [`Refusal::Value`].
    #[inline]
    #[allow(
        clippy::too_many_arguments,
        reason = "a postcard, its reporter, the time"
    )]
    pub fn put<S: Sink>(
        &mut self,
        key: KeyHash,
        hop: u8,
        path_len: Option<u8>,
        value: u32,
        origin: Origin,
        now_ns: u64,
        sinks: &mut [S],
    ) -> Result<Option<Origin>, Refusal> {
        let put = self.hold(key, hop, path_len, value, origin, now_ns, sinks)?;
        tally::one(&mut self.counters.postcards);
        tally::add(&mut self.counters.superseded, u64::from(put.is_some()));
        Ok(put)
    }

    /// [`Cache::put`]; the caller counts it.
    #[inline]
    #[allow(
        clippy::too_many_arguments,
        reason = "a postcard, its reporter, the time"
    )]
    fn hold<S: Sink>(
        &mut self,
        key: KeyHash,
        hop: u8,
        path_len: Option<u8>,
        value: u32,
        origin: Origin,
        now_ns: u64,
        sinks: &mut [S],
    ) -> Result<Option<Origin>, Refusal> {
        let path_len = path_len.filter(|&len| len != 0);
        let kept = self.store.hops;
        if path_len.is_some_and(|len| hop >= len) {
            return Err(Refusal::Hop);
        }
        let index = key.row(self.rows.len());
        if hop >= kept {
            self.remember(index, key, hop, path_len, now_ns);
            return Err(Refusal::Hop);
        }
        if let Some(dictionary) = self.store.dictionary
            && value > dictionary.above
        {
            self.write_down(key, value, dictionary, sinks)?;
        }
        let row = &self.rows[index];
        let is_empty = row.is_empty();
        if is_empty || row.key != key {
            if !is_empty {
                self.write(index, Why::Collided, sinks);
            }
            self.rows[index].begin(key, now_ns);
        }
        let row = &self.rows[index];
        let bit = 1 << hop;
        let is_first = row.reported & bit == 0;
        // Another packet, unless postcards have overtaken each other.
        let begins = hop == 0 && is_first && row.reported != 0;
        let is_last = |len: u8| row.count.saturating_add(1) >= len.min(kept);
        if begins && row.path_len().is_some_and(is_last) {
            // The first postcard of the packet before was lost: the row would go on so for ever.
            self.write(index, Why::Collided, sinks);
            self.rows[index].begin(key, now_ns);
        }
        let row = &mut self.rows[index];
        let has_other_len =
            path_len.is_some() && row.path_len().is_some_and(|len| Some(len) != path_len);
        // Without a known length, a row has all packets of a while: nodes that differ contradict.
        let is_again = !is_first && row.path_len != 0;
        row.is_mixed |= is_again || has_other_len || (begins && row.reported != 0);
        // A bit of 8 each.
        row.count = row.count.wrapping_add(u8::from(is_first));
        row.reported |= bit;
        let before = std::mem::replace(&mut row.values[usize::from(hop)], value);
        row.is_contradicted |= !is_first && before != value;
        row.path_len = path_len.unwrap_or(row.path_len);
        let needed = row.path_len().map_or(kept, |len| len.min(kept));
        let is_complete = row.count >= needed;
        let before = match self.origins.get_mut(index) {
            Some(origins) => std::mem::replace(&mut origins[usize::from(hop)], origin),
            None => origin,
        };
        if is_complete {
            self.write(index, Why::Complete, sinks);
        }
        Ok((!is_first).then_some(before))
    }

    /// Remembers that a path has more hops than are kept, unless another flow has the row.
    #[cold]
    fn remember(&mut self, index: usize, key: KeyHash, hop: u8, path_len: Option<u8>, now_ns: u64) {
        let row = &mut self.rows[index];
        if row.is_empty() {
            row.begin(key, now_ns);
        }
        if row.key == key {
            row.beyond = row.beyond.max(hop.saturating_add(1));
            row.path_len = path_len.unwrap_or(row.path_len);
        }
    }

    /// [`Cache::put`] of each report of a datagram, to a sink that has room for whatever they cause.
    #[inline(never)]
    pub(crate) fn put_all<S: Sink>(
        &mut self,
        packet: &packed::Packet<'_>,
        origin: Origin,
        now_ns: u64,
        sinks: &mut [S],
    ) -> PutAll {
        let hasher = self.store.hasher;
        let (report_len, key_len) = (packet.report_len(), packet.key_len());
        let mut done = PutAll::default();
        let kept = self.store.hops;
        let dictionary = self.store.dictionary;
        let value_max = dictionary.map_or(u32::MAX, |dictionary| dictionary.above);
        for reports in packet.body().chunks(AHEAD.wrapping_mul(report_len)) {
            let mut keys = [KeyHash::default(); AHEAD];
            for (key, report) in keys.iter_mut().zip(reports.chunks_exact(report_len)) {
                *key = match report.first_chunk() {
                    Some(word) if key_len == 4 => hasher.hash4(*word),
                    _ => hasher.hash(&report[..key_len]),
                };
                self.prefetch(*key);
            }
            for (key, report) in keys.iter().zip(reports.chunks_exact(report_len)) {
                let (hop, path_len, value) = packed::postcard(&report[key_len..]);
                if value <= value_max {
                    let index = key.row(self.rows.len());
                    let (len, needed) = path_len.map_or((0, kept), |len| (len, len.min(kept)));
                    let row = &mut self.rows[index];
                    if let Some(is_complete) = row.take(*key, hop, len, needed, value, now_ns) {
                        if let Some(origins) = self.origins.get_mut(index) {
                            origins[usize::from(hop)] = origin;
                        }
                        if is_complete {
                            self.write(index, Why::Complete, sinks);
                        }
                        continue;
                    }
                }
                match self.hold(*key, hop, path_len, value, origin, now_ns, sinks) {
                    Ok(superseded) => {
                        tally::add(&mut done.superseded, superseded.is_some().into());
                    }
                    Err(Refusal::Hop) => tally::one(&mut done.hop),
                    Err(_) => tally::one(&mut done.value),
                }
            }
        }
        tally::add(&mut self.counters.superseded, done.superseded);
        let taken = u64::from(packet.count()).wrapping_sub(done.hop);
        tally::add(&mut self.counters.postcards, taken.wrapping_sub(done.value));
        done
    }

    /// Writes the rows whose first postcard arrived before `before_ns`, of the next `rows_max` rows, as long as there
    /// is room. Repeated calls go through all rows in turn.
    pub fn expire<S: Sink>(&mut self, before_ns: u64, rows_max: usize, sinks: &mut [S]) {
        for _ in 0..rows_max.min(self.rows.len()) {
            let row = &self.rows[self.hand];
            if !row.is_empty() && row.since_ns < before_ns {
                let sink = &sinks[row.key.collector(sinks.len())];
                if let Room::Operations(room) = sink.room(Operation::Write)
                    && room < usize::from(self.store.redundancy)
                {
                    return;
                }
                self.write(self.hand, Why::Aged, sinks);
            }
            // A power of two.
            self.hand = self.hand.wrapping_add(1) & self.rows.len().wrapping_sub(1);
        }
    }

    /// Writes a row and empties it.
    #[inline]
    fn write<S: Sink>(&mut self, index: usize, why: Why, sinks: &mut [S]) {
        let row = &mut self.rows[index];
        let (extent, is_len_known) = (row.extent(), row.path_len != 0);
        let reported = std::mem::replace(&mut row.reported, 0);
        row.beyond = 0;
        // What other hops have said before stays, unless this is as much as could be expected.
        let merges = match why {
            Why::Complete => false,
            Why::Collided => true,
            // With a known length, it is not complete.
            Why::Aged => reported == 0 || is_len_known || !is_from_the_first(reported),
        };
        if reported == 0 && !S::MERGES {
            return;
        }
        let counters = &mut self.counters;
        tally::one(match why {
            Why::Complete => &mut counters.complete,
            Why::Collided => &mut counters.collided,
            Why::Aged => &mut counters.aged,
        });
        let mut origins = [Origin::default(); HOPS_MAX];
        let mut count = 0;
        if S::KEEPS_ORIGINS
            && let Some(of_hops) = self.origins.get(index)
        {
            for (hop, origin) in of_hops.iter().enumerate() {
                if reported >> hop & 1 == 1 {
                    origins[count] = *origin;
                    count = count.wrapping_add(1);
                }
            }
        }
        tally::add(&mut self.written, u64::from(row.count));
        let sink = &mut sinks[row.key.collector(sinks.len())];
        let row = &self.rows[index];
        self.store.emit(
            row.key,
            &row.values,
            reported,
            extent,
            merges,
            &origins[..count],
            sink,
        );
    }
}
