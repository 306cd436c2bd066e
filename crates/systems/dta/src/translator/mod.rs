//! The translator: datagrams of reporters in, operations on the collectors' memories out.
//!
//! Every report of an allowed reporter is counted once (see [`ReporterCounters`]):
//!
//! ```text
//! reports = accepted + refused + dropped_by_rate + dropped_without_room + dropped_without_collector
//! ```
//!
//! and each numbered report that did not come at all is in `missing`. So a reporter that numbers
//! its reports and has sent S, without repetitions, finds
//!
//! ```text
//! S = reports - refused as duplicates - again + missing + those after the last that came
//! ```
//!
//! unless its numbers have jumped, which is counted too.
//!
//! What is accepted is an
//! operation, or waits in the cache of postcards or a batch of a list to become one; a [`Remote`]
//! counts by reporter what became of it.
//!
//! [`Remote`]: crate::Remote

mod all;
mod limit;
mod numbered;
mod options;
mod reporter;
mod sequence;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::append::{End, Lists};
use crate::hash::{KeyHash, REDUNDANCY_MAX};
use crate::key_increment::KeyIncrement;
use crate::key_write::KeyWrite;
use crate::postcarding::{Cache, Postcarding};
use crate::protocol::{Datagram, Nack, Refusal, Report};
use crate::sink::{Operation, Origin, Room, Sink};
use crate::tally;
use limit::Limit;
pub use options::{Options, Rate};
use reporter::Reporter;
pub use reporter::{OTHERS, ReporterCounters};

/// Rows and lists that are looked at for their age in one tick.
const LOOKED_AT: usize = 4096;
/// Ports of an address that are reporters of their own.
const PORTS_MAX: u8 = 16;

/// Why a report was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NotTaken {
    Refused(Refusal),
    Rate,
    NoRoom,
    Gone,
}

impl From<Refusal> for NotTaken {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The translator. Its memory is fixed at the start: the cache, a batch per list, and at most 1.5 KiB per reporter.
#[derive(Debug)]
pub struct Translator {
    options: Options,
    cache: Option<Cache>,
    lists: Option<Lists>,
    limit: Option<Limit>,
    /// With port 0, all of an address.
    by_address: HashMap<SocketAddr, Origin>,
    by_port: HashMap<IpAddr, u8>,
    reporters: Vec<Reporter>,
    /// Datagrams of senders that are not allowed reporters.
    strangers: u64,
}

impl Translator {
    /// A translator whose operations go to sinks of type `S`. Lists go on where `end` says.
    ///
    /// # Panics
    ///
    /// If there are no collectors, or the cache's rows are no power of two.
    #[must_use]
    pub fn new<S: Sink>(options: Options, end: impl Fn(u32) -> End) -> Self {
        assert!(options.collectors > 0, "collectors");
        let cache = options
            .postcarding
            .map(|store| Cache::new(store, options.cache_rows, S::KEEPS_ORIGINS));
        let lists = options
            .append
            .map(|store| Lists::new(store, options.collectors, S::KEEPS_ORIGINS, end));
        let limit = options
            .rate
            .map(|rate| Limit::new(rate.operations_per_second, rate.burst));
        Self {
            cache,
            lists,
            limit,
            by_address: HashMap::new(),
            by_port: HashMap::new(),
            reporters: Vec::new(),
            strangers: 0,
            options,
        }
    }

    /// The number of a reporter; `None` if the reporter is not allowed.
    pub fn reporter(&mut self, address: IpAddr) -> Option<Origin> {
        self.reporter_at(SocketAddr::new(address, 0))
    }

    /// The number of a reporter with a port of its own, as in version 2, where several reporters at one address number
    /// their reports separately. After 16 ports of an address, further ports count as one reporter whose numbers are
    /// not followed, so that forged ports cannot fill the table. `None` if the reporter is not allowed.
    pub fn reporter_at(&mut self, source: SocketAddr) -> Option<Origin> {
        if let Some(&origin) = self.by_address.get(&source) {
            return Some(origin);
        }
        let address = source.ip();
        if source.port() != 0 {
            if self.by_port.get(&address).is_some_and(|&n| n >= PORTS_MAX) {
                let origin = self.reporter(address)?;
                self.reporters[usize::from(origin.0)].is_several = true;
                return Some(origin);
            }
            let origin = self.add(source)?;
            if self.by_address.contains_key(&source) {
                let ports = self.by_port.entry(address).or_insert(0);
                // Below PORTS_MAX.
                *ports = ports.saturating_add(1);
            }
            return Some(origin);
        }
        self.add(source)
    }

    fn add(&mut self, source: SocketAddr) -> Option<Origin> {
        let allowed = self.options.allowed.as_ref();
        let is_allowed = allowed.is_none_or(|allowed| allowed.contains(&source.ip()));
        if !is_allowed {
            return None;
        }
        // A sender that forges addresses can fill the table, and must not keep others out by that.
        let with_others = self.reporters.len().saturating_add(1);
        let is_full = with_others >= usize::from(self.options.reporters_max);
        let source = if is_full { OTHERS } else { source };
        if let Some(&others) = self.by_address.get(&source) {
            return Some(others);
        }
        let number = u16::try_from(self.reporters.len()).ok()?;
        self.reporters.push(Reporter {
            is_several: is_full,
            ..Reporter::default()
        });
        self.by_address.insert(source, Origin(number));
        Some(Origin(number))
    }

    /// The counters of a reporter.
    ///
    /// # Panics
    ///
    /// If there is no such reporter.
    #[must_use]
    pub fn counters(&self, origin: Origin) -> ReporterCounters {
        self.reporters[usize::from(origin.0)].counters
    }

    /// All reporters with their counters, by address; a reporter with several ports is listed several times.
    pub fn reporters(&self) -> impl Iterator<Item = (IpAddr, ReporterCounters)> + '_ {
        self.sources()
            .map(|(source, counters)| (source.ip(), counters))
    }

    /// All reporters with their counters. Port 0 stands for reporters without a port of their own.
    pub fn sources(&self) -> impl Iterator<Item = (SocketAddr, ReporterCounters)> + '_ {
        let counters = |origin: &Origin| self.reporters[usize::from(origin.0)].counters;
        self.by_address
            .iter()
            .map(move |(&source, origin)| (source, counters(origin)))
    }

    /// All reporters with their numbers; ports as in [`Translator::sources`].
    pub fn origins(&self) -> impl Iterator<Item = (SocketAddr, Origin)> + '_ {
        let each = self.by_address.iter();
        each.map(|(&source, &origin)| (source, origin))
    }

    /// Counts a datagram of a sender that is not an allowed reporter.
    pub fn refuse_stranger(&mut self) {
        tally::one(&mut self.strangers);
    }

    /// Datagrams of senders that are not allowed reporters.
    #[must_use]
    pub fn strangers(&self) -> u64 {
        self.strangers
    }

    /// Continues the dictionary of this collector, which holds these values of hops and no others.
    pub fn continue_values(&mut self, collector: usize, values: impl IntoIterator<Item = u32>) {
        if let Some(cache) = &mut self.cache {
            cache.continue_values(collector, values);
        }
    }

    /// The cache of postcards.
    #[must_use]
    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// The lists.
    #[must_use]
    pub fn lists(&self) -> Option<&Lists> {
        self.lists.as_ref()
    }

    /// [`Lists::continue_at`], if there are lists.
    pub fn continue_list(&mut self, list: u32, end: End) {
        if let Some(lists) = &mut self.lists {
            lists.continue_at(list, end);
        }
    }

    /// Takes the payload of a UDP datagram from `source`. Operations go to `sinks`, one for each
    /// collector; what is to be sent back to the reporter, to its port
    /// [`NACK_PORT`](crate::protocol::NACK_PORT), is added to `nacks`.
    ///
    /// # Panics
    ///
    /// If there are not as many sinks as collectors.
    pub fn receive<S: Sink>(
        &mut self,
        source: IpAddr,
        datagram: &[u8],
        now_ns: u64,
        sinks: &mut [S],
        nacks: &mut Vec<Nack>,
    ) {
        match self.reporter(source) {
            Some(origin) => self.receive_from(origin, datagram, now_ns, sinks, nacks),
            None => self.refuse_stranger(),
        }
    }

    /// [`Translator::receive`] from a reporter whose number is known.
    ///
    /// # Panics
    ///
    /// If there are not as many sinks as collectors, or no such reporter.
    #[inline]
    pub fn receive_from<S: Sink>(
        &mut self,
        origin: Origin,
        datagram: &[u8],
        now_ns: u64,
        sinks: &mut [S],
        nacks: &mut Vec<Nack>,
    ) {
        assert_eq!(sinks.len(), self.options.collectors, "a sink per collector");
        let counters = &mut self.reporters[usize::from(origin.0)].counters;
        tally::one(&mut counters.datagrams);
        match Datagram::new_checked(datagram) {
            Ok(Datagram::Published(packet)) => {
                tally::one(&mut counters.reports);
                let taken = match packet.report() {
                    Ok(report) => self.put(report, origin, now_ns, sinks),
                    Err(refusal) => Err(refusal.into()),
                };
                let dropped = self.count(origin, taken);
                if dropped
                    && packet.flags().retransmittable
                    && let Some(sequence) = packet.sequence()
                {
                    tally::one(&mut self.reporters[usize::from(origin.0)].counters.nacked);
                    nacks.push(Nack::Published { sequence });
                }
            }
            Ok(Datagram::Packed(packet)) => self.packed(&packet, origin, now_ns, sinks, nacks),
            Err(refusal) => counters.refused_datagrams.add(refusal, 1),
        }
    }

    /// Counts what became of a report; whether it was dropped.
    #[inline]
    fn count(&mut self, origin: Origin, taken: Result<Option<Origin>, NotTaken>) -> bool {
        let counters = &mut self.reporters[usize::from(origin.0)].counters;
        match taken {
            Ok(superseded) => {
                tally::one(&mut counters.accepted);
                if let Some(other) = superseded {
                    tally::one(&mut self.reporters[usize::from(other.0)].counters.superseded);
                }
                return false;
            }
            Err(NotTaken::Refused(refusal)) => {
                counters.refused.add(refusal, 1);
                return false;
            }
            Err(NotTaken::Rate) => tally::one(&mut counters.dropped_by_rate),
            Err(NotTaken::NoRoom) => tally::one(&mut counters.dropped_without_room),
            Err(NotTaken::Gone) => tally::one(&mut counters.dropped_without_collector),
        }
        true
    }

    /// Takes a report, or says why not.
    #[inline]
    fn put<S: Sink>(
        &mut self,
        report: Report<'_>,
        origin: Origin,
        now_ns: u64,
        sinks: &mut [S],
    ) -> Result<Option<Origin>, NotTaken> {
        if let Some(limit) = &mut self.limit
            && !limit.has_room(now_ns)
        {
            return Err(NotTaken::Rate);
        }
        let operations = match report {
            Report::KeyWrite {
                redundancy,
                key,
                data,
            } => {
                let store = self.options.key_write.as_ref();
                let store = store.ok_or(Refusal::NotServed)?;
                let key = self.options.hasher.hash(key);
                let copies = redundancy.min(REDUNDANCY_MAX);
                let sink = of_key(sinks, key, Operation::Write, usize::from(copies))?;
                store.put(key, redundancy, data, origin, sink)?;
                u64::from(copies)
            }
            Report::KeyIncrement {
                redundancy,
                key,
                counter,
            } => {
                let store = self.options.key_increment.as_ref();
                let store = store.ok_or(Refusal::NotServed)?;
                let hash = self.options.hasher.hash(key);
                let additions = store.operations(redundancy);
                let sink = of_key(sinks, hash, Operation::FetchAdd, usize::from(additions))?;
                store.add((key, hash), redundancy, counter, origin, sink)?;
                u64::from(additions)
            }
            Report::Append { list, data } => {
                let lists = self.lists.as_mut().ok_or(Refusal::NotServed)?;
                let collector = (list as usize).checked_rem(sinks.len());
                let sink = collector.and_then(|collector| sinks.get(collector));
                check(sink.ok_or(NotTaken::Gone)?, Operation::Write, 1)?;
                let before = lists.counters().full;
                lists.put(list, data, origin, now_ns, sinks)?;
                lists.counters().full.wrapping_sub(before)
            }
            Report::Postcard {
                key,
                hop,
                path_len,
                value,
            } => {
                let cache = self.cache.as_mut().ok_or(Refusal::NotServed)?;
                let key = self.options.hasher.hash(key);
                let copies = cache.copies();
                // Of both rows, if they belong to the same collector.
                if S::KEEPS_ORIGINS {
                    // And a value for the dictionary.
                    let operations = copies.saturating_mul(2).saturating_add(1);
                    of_key(sinks, key, Operation::Write, operations)?;
                    if let Some(victim) = cache.victim(key) {
                        let sink = &sinks[victim.collector(sinks.len())];
                        let full = check(sink, Operation::Write, copies) == Err(NotTaken::NoRoom);
                        if full {
                            return Err(NotTaken::NoRoom);
                        }
                    }
                }
                let before = cache.counters();
                let superseded = cache.put(key, hop, path_len, value, origin, now_ns, sinks)?;
                let after = cache.counters();
                let complete = after.complete.wrapping_sub(before.complete);
                let collided = after.collided.wrapping_sub(before.collided);
                if let Some(limit) = &mut self.limit {
                    limit.take(
                        complete
                            .wrapping_add(collided)
                            .saturating_mul(copies as u64),
                    );
                }
                return Ok(superseded);
            }
        };
        if let Some(limit) = &mut self.limit {
            limit.take(operations);
        }
        Ok(None)
    }

    /// A datagram of this reporter ended in a fault (a panic within [`Translator::receive_from`]), which
    /// may have left its reports uncounted, and a row or a batch half changed. Counts those, forgets
    /// the reporter's numbers, and derives again what follows from rows and batches.
    ///
    /// # Panics
    ///
    /// If there is no such reporter.
    pub fn after_fault(&mut self, origin: Origin) {
        let reporter = &mut self.reporters[usize::from(origin.0)];
        reporter.sequence = None;
        let counters = &mut reporter.counters;
        match counters.reports.checked_sub(counters.ended()) {
            Some(0) | None => counters.refused_datagrams.add(Refusal::Fault, 1),
            Some(uncounted) => counters.refused.add(Refusal::Fault, uncounted),
        }
        if let Some(cache) = &mut self.cache {
            cache.after_fault();
        }
        if let Some(lists) = &mut self.lists {
            lists.after_fault();
        }
    }

    /// Sends values, counters and paths to these stores from now on: those of another [generation](crate::generations).
    /// Paths that are incomplete now go there, too, once they are complete.
    ///
    /// # Panics
    ///
    /// If the store of paths has another shape.
    pub fn turn_to(
        &mut self,
        key_write: KeyWrite,
        postcarding: Postcarding,
        key_increment: KeyIncrement,
    ) {
        let options = &mut self.options;
        options.key_write = options.key_write.map(|_| key_write);
        options.key_increment = options.key_increment.map(|_| key_increment);
        options.postcarding = options.postcarding.map(|_| postcarding);
        if let Some(cache) = &mut self.cache {
            cache.turn_to(postcarding);
        }
    }

    /// Advances the time: rows and batches that have waited for too long are written, as far as there is room and the
    /// rate allows. To be called some hundred times within `age_ns_max`.
    pub fn tick<S: Sink>(&mut self, now_ns: u64, sinks: &mut [S]) {
        if let Some(limit) = &mut self.limit
            && !limit.has_room(now_ns)
        {
            return;
        }
        let Some(before_ns) = now_ns.checked_sub(self.options.age_ns_max) else {
            return;
        };
        // All of them within the age.
        let rows = self.cache.as_ref().map_or(0, Cache::rows);
        self.write_older(before_ns, LOOKED_AT.max(rows >> 5), sinks);
    }

    /// Writes all waiting rows and batches, as far as there is room. To be called at the end.
    pub fn finish<S: Sink>(&mut self, sinks: &mut [S]) {
        self.write_older(u64::MAX, usize::MAX, sinks);
    }

    fn write_older<S: Sink>(&mut self, before_ns: u64, looked_at: usize, sinks: &mut [S]) {
        let mut operations: u64 = 0;
        if let Some(cache) = &mut self.cache {
            let before = cache.counters().aged;
            cache.expire(before_ns, looked_at, sinks);
            let rows = cache.counters().aged.wrapping_sub(before);
            operations = rows.saturating_mul(cache.copies() as u64);
        }
        if let Some(lists) = &mut self.lists {
            let before = lists.counters().aged;
            lists.expire(before_ns, looked_at, sinks);
            operations = operations.saturating_add(lists.counters().aged.wrapping_sub(before));
        }
        if let Some(limit) = &mut self.limit {
            limit.take(operations);
        }
    }
}

/// The sink of a key, if it has room.
#[inline(always)]
fn of_key<S: Sink>(
    sinks: &mut [S],
    key: KeyHash,
    operation: Operation,
    operations: usize,
) -> Result<&mut S, NotTaken> {
    let collector = key.collector(sinks.len());
    check(&sinks[collector], operation, operations)?;
    Ok(&mut sinks[collector])
}

#[inline(always)]
fn check<S: Sink>(sink: &S, operation: Operation, operations: usize) -> Result<(), NotTaken> {
    match sink.room(operation) {
        Room::Gone => Err(NotTaken::Gone),
        Room::Operations(room) if room < operations => Err(NotTaken::NoRoom),
        Room::Operations(_) => Ok(()),
    }
}
