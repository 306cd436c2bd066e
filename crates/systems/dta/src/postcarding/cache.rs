//! The translator's cache: postcards of a flow wait in a row until its path is complete.

use strata_wire::exact;

use super::{HOPS_MAX, Postcarding};
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
    /// Hops of the path, or of the store if that is not known.
    path_len: u8,
}
const _: () = assert!(size_of::<Row>() == 64);

/// What a cache counts.
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
    /// Postcards in the place of which a later one of the same hop came, before the row was
    /// written.
    pub superseded: u64,
    /// Postcards in rows.
    pub held: u64,
}

/// Rows that are fetched together.
const AHEAD: usize = 16;

/// What became of the reports of a datagram: those that took another's place, and those that were
/// refused because of their hop and their path length.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PutAll {
    pub(crate) superseded: u64,
    pub(crate) hop: u64,
    pub(crate) path_len: u64,
}

/// The translator's cache of rows. Memory: 64 bytes a row, and 16 more if origins are kept.
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
        }
    }

    /// What it has counted.
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
            if row.reported == 0 {
                continue;
            }
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

    /// Writes that a row becomes.
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

    /// The key whose row a postcard of `key` would push out.
    #[must_use]
    pub fn victim(&self, key: KeyHash) -> Option<KeyHash> {
        let row = &self.rows[key.row(self.rows.len())];
        (row.reported != 0 && row.key != key).then_some(row.key)
    }

    /// Takes a postcard. Writes follow of the row of [`Cache::victim`], and of its own once the path
    /// is complete, as many as the redundancy says each. `sinks` are those of the collectors, of
    /// which [`KeyHash::collector`] chooses. Returns whose postcard of the same hop this one took
    /// the place of; if origins are not kept, any.
    ///
    /// # Errors
    ///
    /// [`Refusal::Hop`], [`Refusal::PathLen`]; nothing changes then.
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
    #[inline(always)]
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
        let longest = self.store.hops;
        if path_len.is_some_and(|len| len > longest || len == 0) {
            return Err(Refusal::PathLen);
        }
        if hop >= path_len.map_or(longest, |len| len) {
            return Err(Refusal::Hop);
        }
        let index = key.row(self.rows.len());
        let row = &self.rows[index];
        let is_empty = row.reported == 0;
        if is_empty || row.key != key {
            if !is_empty {
                tally::one(&mut self.counters.collided);
                self.write(index, sinks);
            }
            let row = &mut self.rows[index];
            row.key = key;
            row.since_ns = now_ns;
            row.count = 0;
            row.path_len = longest;
        }
        let row = &mut self.rows[index];
        let bit = 1 << hop;
        let is_first = row.reported & bit == 0;
        // A bit of 8 each.
        row.count = row.count.wrapping_add(u8::from(is_first));
        row.reported |= bit;
        row.values[usize::from(hop)] = value;
        if let Some(len) = path_len {
            row.path_len = len;
        }
        let is_complete = row.count >= row.path_len;
        let before = match self.origins.get_mut(index) {
            Some(origins) => std::mem::replace(&mut origins[usize::from(hop)], origin),
            None => origin,
        };
        if is_complete {
            tally::one(&mut self.counters.complete);
            self.write(index, sinks);
        }
        Ok((!is_first).then_some(before))
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
                match self.hold(*key, hop, path_len, value, origin, now_ns, sinks) {
                    Ok(superseded) => {
                        tally::add(&mut done.superseded, superseded.is_some().into());
                    }
                    Err(Refusal::Hop) => tally::one(&mut done.hop),
                    Err(_) => tally::one(&mut done.path_len),
                }
            }
        }
        tally::add(&mut self.counters.superseded, done.superseded);
        let taken = u64::from(packet.count()).wrapping_sub(done.hop);
        tally::add(
            &mut self.counters.postcards,
            taken.wrapping_sub(done.path_len),
        );
        done
    }

    /// Writes rows whose first postcard came before `before_ns`, of the next `rows_max` rows, as
    /// long as there is room. Called often enough, it comes round.
    pub fn expire<S: Sink>(&mut self, before_ns: u64, rows_max: usize, sinks: &mut [S]) {
        for _ in 0..rows_max.min(self.rows.len()) {
            let row = &self.rows[self.hand];
            if row.reported != 0 && row.since_ns < before_ns {
                let sink = &sinks[row.key.collector(sinks.len())];
                if let Room::Operations(room) = sink.room(Operation::Write)
                    && room < usize::from(self.store.redundancy)
                {
                    return;
                }
                tally::one(&mut self.counters.aged);
                self.write(self.hand, sinks);
            }
            // A power of two.
            self.hand = self.hand.wrapping_add(1) & self.rows.len().wrapping_sub(1);
        }
    }

    /// Writes a row and empties it.
    #[inline]
    fn write<S: Sink>(&mut self, index: usize, sinks: &mut [S]) {
        let row = &mut self.rows[index];
        let reported = std::mem::replace(&mut row.reported, 0);
        let mut origins = [Origin::default(); HOPS_MAX];
        let mut count = 0;
        if let Some(of_hops) = self.origins.get(index) {
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
        self.store
            .emit(row.key, &row.values, reported, &origins[..count], sink);
    }
}
