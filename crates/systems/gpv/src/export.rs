//! The run-time table (section 5.4 of the paper): which packets the cache takes, which of their
//! features each destination gets, and which vectors. Rules are replaced while packets flow,
//! between two batches and all at once.
//!
//! [`RulesHandle::set`] hands over new rules from any thread; the [`Exporter`] takes them before
//! its next batch. Vectors that the cache holds at that time leave by the new rules.

mod rules;

pub use rules::{
    Admit, Destination, FlowRule, FlowRules, Prefix, Rules, RulesError, RulesHandle, Select,
};

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cache::{Cache, CacheCounters, Parameters, ParametersError};
use crate::format::datagram::DatagramWriter;
use crate::packet::Packet;
use crate::tuple::Full;
use crate::vector::Vector;

/// Packets that go into the cache at once.
const BATCH: usize = 256;
/// Destinations without rules whose numbers are remembered, in case they come back.
const RETIRED_MAX: usize = 4096;

/// What an exporter did with packets. Those offered are those selected and those skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExportCounters {
    /// Packets that went into the cache.
    pub selected: u64,
    /// Packets that the rules do not select.
    pub skipped: u64,
    /// Times that new rules were taken.
    pub replaced: u64,
}

/// What was sent to a destination since it was first there. Vectors that left the cache while it
/// was there are those sent, those filtered and those too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DestinationCounters {
    /// Vectors written into datagrams.
    pub sent: u64,
    /// Vectors that its filter does not admit.
    pub filtered: u64,
    /// Vectors that fit into no datagram; its reader counts them as lost.
    pub too_long: u64,
}

struct Output {
    writer: DatagramWriter,
    admit: Arc<dyn Admit>,
    counters: DestinationCounters,
}

/// A cache between the rules of its packets and those of its destinations.
///
/// Memory: the cache's, and for each destination a datagram.
pub struct Exporter {
    cache: Cache<Full>,
    handle: RulesHandle,
    version: u64,
    rules: Arc<Rules>,
    outputs: BTreeMap<u32, Output>,
    /// Next numbers, and counters, of destinations that no rule names now.
    retired: BTreeMap<u32, (u64, DestinationCounters)>,
    batch: Vec<Packet>,
    counters: ExportCounters,
}

impl Exporter {
    /// An exporter that follows the rules of `handle`.
    ///
    /// # Errors
    ///
    /// If the parameters make no cache.
    pub fn new(
        parameters: Parameters,
        seed: u64,
        handle: RulesHandle,
    ) -> Result<Self, ParametersError> {
        let (version, rules) = handle.get();
        let mut exporter = Self {
            cache: Cache::new(parameters, seed)?,
            handle,
            version,
            rules: Arc::clone(&rules),
            outputs: BTreeMap::new(),
            retired: BTreeMap::new(),
            batch: Vec::with_capacity(BATCH),
            counters: ExportCounters::default(),
        };
        exporter.replace(rules, &mut |_, _| ());
        exporter.counters.replaced = 0;
        Ok(exporter)
    }

    /// What it did with packets.
    #[must_use]
    pub fn counters(&self) -> &ExportCounters {
        &self.counters
    }

    /// What its cache did.
    #[must_use]
    pub fn cache_counters(&self) -> &CacheCounters {
        self.cache.counters()
    }

    /// What was sent to a destination; `None` if it was never there.
    #[must_use]
    pub fn destination(&self, id: u32) -> Option<DestinationCounters> {
        let present = self.outputs.get(&id).map(|output| output.counters);
        present.or_else(|| self.retired.get(&id).map(|&(_, counters)| counters))
    }

    /// The number of the next vector for a destination, which tells its reader how many there were.
    #[must_use]
    pub fn next_seq(&self, id: u32) -> Option<u64> {
        let present = self.outputs.get(&id).map(|output| output.writer.next_seq());
        present.or_else(|| self.retired.get(&id).map(|&(next_seq, _)| next_seq))
    }

    /// Takes a batch of packets, each with the bytes that were captured of it. Datagrams that are
    /// full go to `send` with their destination.
    pub fn push<'a>(
        &mut self,
        packets: impl IntoIterator<Item = (Packet, &'a [u8])>,
        mut send: impl FnMut(u32, &[u8]),
    ) {
        self.follow(&mut send);
        for (packet, bytes) in packets {
            if !self.rules.select.selects(&packet, bytes) {
                self.counters.skipped = self.counters.skipped.wrapping_add(1);
                continue;
            }
            self.counters.selected = self.counters.selected.wrapping_add(1);
            self.batch.push(packet);
            if self.batch.len() == BATCH {
                self.fill(&mut send);
            }
        }
        self.fill(&mut send);
    }

    /// Lets go of what a slot of the cache holds: the agent's control packet.
    pub fn flush_slot(&mut self, slot: u32, mut send: impl FnMut(u32, &[u8])) {
        self.follow(&mut send);
        let outputs = &mut self.outputs;
        let mut out = |vector: &Vector<'_, Full>| give(outputs, vector, &mut send);
        self.cache.flush_slot(slot, &mut out);
    }

    /// Lets go of everything, and sends the datagrams that are begun.
    pub fn flush(&mut self, mut send: impl FnMut(u32, &[u8])) {
        self.follow(&mut send);
        let outputs = &mut self.outputs;
        let mut out = |vector: &Vector<'_, Full>| give(outputs, vector, &mut send);
        self.cache.flush(&mut out);
        self.finish(send);
    }

    /// Sends the datagrams that are begun.
    pub fn finish(&mut self, mut send: impl FnMut(u32, &[u8])) {
        for (&id, output) in &mut self.outputs {
            output.writer.finish(|bytes| send(id, bytes));
        }
    }

    /// Sends the datagrams that are begun, and to each destination how many vectors were sent
    /// ([`DatagramWriter::end`]).
    pub fn end(&mut self, mut send: impl FnMut(u32, &[u8])) {
        for (&id, output) in &mut self.outputs {
            output.writer.end(|bytes| send(id, bytes));
        }
    }

    fn fill(&mut self, send: &mut impl FnMut(u32, &[u8])) {
        let outputs = &mut self.outputs;
        let mut out = |vector: &Vector<'_, Full>| give(outputs, vector, send);
        self.cache.push(&self.batch, &mut out);
        self.batch.clear();
    }

    /// Takes the rules that were set since the last batch.
    fn follow(&mut self, send: &mut impl FnMut(u32, &[u8])) {
        if self.handle.version() != self.version {
            let (version, rules) = self.handle.get();
            self.version = version;
            self.replace(rules, send);
        }
    }

    fn replace(&mut self, rules: Arc<Rules>, send: &mut impl FnMut(u32, &[u8])) {
        self.counters.replaced = self.counters.replaced.wrapping_add(1);
        let mut before = std::mem::take(&mut self.outputs);
        for destination in &rules.destinations {
            let id = destination.id;
            let admit = Arc::clone(&destination.admit);
            let (columns, room) = (destination.columns, destination.datagram_len);
            let output = match before.remove(&id) {
                Some(mut output) => {
                    let send = |bytes: &[u8]| send(id, bytes);
                    output.writer.reshape(columns, room, send);
                    Output { admit, ..output }
                }
                None => {
                    let before = self.retired.remove(&id);
                    let (next_seq, counters) =
                        before.unwrap_or_else(|| (0, DestinationCounters::default()));
                    let writer = DatagramWriter::resume(id, columns, room, next_seq);
                    Output {
                        writer,
                        admit,
                        counters,
                    }
                }
            };
            self.outputs.insert(id, output);
        }
        for (id, mut output) in before {
            output.writer.finish(|bytes| send(id, bytes));
            let numbers = (output.writer.next_seq(), output.counters);
            self.retired.insert(id, numbers);
            if self.retired.len() > RETIRED_MAX {
                self.retired.pop_first();
            }
        }
        self.rules = rules;
    }
}

/// Gives a vector to each destination that admits it.
#[inline]
fn give(
    outputs: &mut BTreeMap<u32, Output>,
    vector: &Vector<'_, Full>,
    send: &mut impl FnMut(u32, &[u8]),
) {
    for (&id, output) in outputs {
        if !output.admit.admits(vector) {
            output.counters.filtered = output.counters.filtered.wrapping_add(1);
            continue;
        }
        match output.writer.put(vector, |bytes| send(id, bytes)) {
            Ok(()) => output.counters.sent = output.counters.sent.wrapping_add(1),
            Err(_) => output.counters.too_long = output.counters.too_long.wrapping_add(1),
        }
    }
}
