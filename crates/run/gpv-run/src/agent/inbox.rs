//! Datagrams of many senders into records. Anybody may send: what cannot be read costs a counter,
//! and each sender a bounded amount of memory, as long as it is heard.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strata_gpv::agent::{
    IdleSlots, Reassembly, ReassemblyCounters, ReassemblyOptions, Record, Sequencer,
    SequencerCounters, SequencerOptions,
};
use strata_gpv::format::FormatError;
use strata_gpv::format::control::flush_slots;
use strata_gpv::format::datagram::Datagram;
use strata_gpv::format::paper::{self, PaperTuple};
use strata_gpv::{Basic, Column, Columns, Full, Parameters, Sequenced, Tuple as _, Vector};

use super::budget::Budget;
use crate::form::Form;

/// Datagrams of a sender that wait for one that is missing.
const WAITING_MAX: usize = 16;
/// A sender that has been silent for this long makes room for another.
const SILENT: Duration = Duration::from_secs(60);
/// The first number that is heard of a sender tells whether it began before the agent: after this
/// number of vectors, those before cannot be late ones.
const JOIN_AT: u64 = 4096;
/// A number so far ahead of the others is damage, not loss.
const AHEAD_MAX: u64 = 1 << 32;
/// Vectors of a sender of datagrams that may be lost in a row: a larger gap is a jump.
const GAP_MAX: u64 = 1 << 20;
/// Slots of a cache that are known at most, 8 bytes each.
const SLOTS_MAX: u32 = 1 << 20;

/// Bounds and forms.
#[derive(Clone, Copy, Debug)]
pub(super) struct InboxOptions {
    pub(super) form: Form,
    pub(super) senders_max: usize,
    pub(super) reassembly: ReassemblyOptions,
    pub(super) seed: u64,
    /// Slots that gave nothing for this long are requested.
    pub(super) flush_idle: Option<Duration>,
}

/// A cache at an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Sender {
    /// Where datagrams come from; `None` for a file.
    pub address: Option<SocketAddr>,
    /// The number of the cache, which the paper's form does not have.
    pub cache: Option<u32>,
}

/// `10.0.0.1:4000#0`.
impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.address {
            write!(f, "{address}")?;
        }
        match self.cache {
            Some(cache) => write!(f, "#{cache}"),
            None => Ok(()),
        }
    }
}

/// What an agent received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Received {
    /// Datagrams of accepted senders, including refused datagrams.
    pub datagrams: u64,
    /// Vectors that were put together.
    pub vectors: u64,
    /// Packets in them.
    pub packets: u64,
    /// Vectors whose numbers never arrived, or that were in damaged datagrams.
    pub lost: u64,
    /// Jumps of a sender's numbers further than losses explain, or beyond its own count: how many vectors are lost is
    /// unknown.
    pub jumps: u64,
    /// Vectors that were sent before the agent listened.
    pub before: u64,
    /// Datagrams that arrived twice or too late.
    pub stale: u64,
    /// Datagrams that cannot be read, entirely or from some byte on.
    pub damaged: u64,
    /// Datagrams of senders beyond the maximum number.
    pub refused: u64,
    /// Caches from which datagrams arrived.
    pub senders: u64,
    /// Caches in a file or a ring that do not end with their number of vectors, so that later vectors may be missing.
    pub unended: u64,
    /// Records that the vectors were put together into.
    pub records: u64,
    /// Records that were written early, because another flow needed their place.
    pub early: u64,
}

impl Received {
    fn add(&mut self, sequencer: &SequencerCounters, reassembly: &ReassemblyCounters) {
        self.lost += sequencer.lost;
        self.jumps += sequencer.jumps;
        self.stale += sequencer.stale;
        self.damaged += sequencer.damaged;
        self.vectors += reassembly.vectors;
        self.packets += reassembly.tuples_in;
        self.records += reassembly.records;
        self.early += reassembly.evicted;
    }
}

/// Everything that is known of a sender.
struct Heard {
    sender: Sender,
    name: String,
    sequencer: Sequencer,
    reassembly: Reassembly<Full>,
    /// What all of its packets say.
    columns: Columns,
    /// How many vectors it says that it sent.
    end: Option<u64>,
    /// Whether the last datagram did.
    is_ended: bool,
    /// Whether a datagram had vectors.
    has_vectors: bool,
    /// The highest number that came.
    highest: u64,
    /// When its newest vector began, by its own clock, and when its last one came.
    latest: (u64, Instant),
    heard: Instant,
    /// By the time since the inbox began.
    idle: Option<IdleSlots>,
    budget: Budget,
}

impl Heard {
    fn new(sender: Sender, options: &InboxOptions, now_ns: u64) -> Self {
        let one = SequencerOptions {
            caches_max: 1,
            waiting_max: WAITING_MAX,
            // Files and rings are not forged, and say what they lack.
            gap_max: match sender.address {
                Some(_) => GAP_MAX,
                None => AHEAD_MAX,
            },
        };
        Self {
            sender,
            name: sender.to_string(),
            sequencer: Sequencer::new(one),
            reassembly: Reassembly::new(options.reassembly, options.seed),
            columns: Columns::ALL,
            end: None,
            is_ended: false,
            has_vectors: false,
            highest: 0,
            latest: (0, Instant::now()),
            heard: Instant::now(),
            // The default number of slots of a cache.
            idle: options
                .flush_idle
                .map(|_| IdleSlots::new(Parameters::PAPER.slots, now_ns)),
            budget: Budget::default(),
        }
    }

    fn end(&mut self, cache: Option<u32>, out: &mut impl FnMut(&GivenRecord<'_>)) {
        let Self {
            sender,
            name,
            sequencer,
            reassembly,
            columns,
            end,
            ..
        } = self;
        let who = (*sender, name.as_str());
        let mut out = |record: &Record<'_, Full>| out(&GivenRecord::new(who, *columns, record));
        if let Some(cache) = cache {
            // What is damaged is counted.
            let _ = sequencer.finish(cache, *end, |_, vector| reassembly.take(vector, &mut out));
        }
        reassembly.flush(&mut out);
    }
}

/// A record, and whose.
#[derive(Clone, Copy, Debug)]
pub struct GivenRecord<'a> {
    /// Where its vectors came from.
    pub sender: Sender,
    /// The same in words, such as `10.0.0.1:4000#0`.
    pub name: &'a str,
    /// What all packets of the sender so far say; other fields of the tuples are 0.
    pub known: Columns,
    /// The packets.
    pub record: &'a Record<'a, Full>,
}

impl<'a> GivenRecord<'a> {
    fn new(
        (sender, name): (Sender, &'a str),
        known: Columns,
        record: &'a Record<'a, Full>,
    ) -> Self {
        Self {
            sender,
            name,
            known,
            record,
        }
    }
}

/// The senders that are heard.
pub(super) struct Inbox {
    options: InboxOptions,
    senders: HashMap<Sender, Heard>,
    /// Of senders that are heard no longer, and what is of no sender.
    received: Received,
    paper: PaperScratch,
    began: Instant,
    pub(super) requests: Requests,
}

/// Control packets to caches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Requests {
    /// Control packets that were sent.
    pub sent: u64,
    /// Control packets that were not sent: they have more bytes than came from the cache's address, or the cache is
    /// silent.
    pub withheld: u64,
}

/// Where vectors of the paper's form are unpacked.
#[derive(Default)]
struct PaperScratch {
    basic: Vec<Basic>,
    sequenced: Vec<Sequenced>,
    full: Vec<Full>,
}

impl Inbox {
    pub(super) fn new(options: InboxOptions) -> Self {
        Self {
            options,
            senders: HashMap::new(),
            received: Received::default(),
            paper: PaperScratch::default(),
            began: Instant::now(),
            requests: Requests::default(),
        }
    }

    /// Looks at the slots of each cache, and calls `ask` with where it is and a control packet for those
    /// that gave nothing for too long. An address never gets more bytes than came from it.
    pub(super) fn idle(&mut self, mut ask: impl FnMut(SocketAddr, &[u8])) {
        let Some(threshold) = self.options.flush_idle else {
            return;
        };
        let (now_ns, threshold_ns) = (
            since(self.began),
            strata_wire::clamped(threshold.as_nanos()),
        );
        let requests = &mut self.requests;
        for (sender, heard) in &mut self.senders {
            let (Some(idle), Some(address), Some(cache)) =
                (&mut heard.idle, sender.address, sender.cache)
            else {
                continue;
            };
            let mut slots = Vec::new();
            idle.scan(now_ns, threshold_ns, idle.len(), |slot| slots.push(slot));
            if slots.is_empty() {
                continue;
            }
            slots.sort_unstable();
            let budget = &mut heard.budget;
            let begins = budget.begins();
            flush_slots(cache, &slots, |bytes| match begins && budget.spend(bytes) {
                true => {
                    requests.sent += 1;
                    ask(address, bytes);
                }
                // What is not requested now is requested when it has been idle as long again.
                false => requests.withheld += 1,
            });
        }
    }

    /// What was received so far.
    pub(super) fn received(&self) -> Received {
        let mut received = self.received;
        for heard in self.senders.values() {
            received.add(heard.sequencer.counters(), heard.reassembly.counters());
        }
        received
    }

    /// Takes a datagram.
    ///
    /// Fails if it cannot be read, which is counted.
    pub(super) fn datagram(
        &mut self,
        from: Option<SocketAddr>,
        bytes: &[u8],
        out: &mut impl FnMut(&GivenRecord<'_>),
    ) -> Result<(), FormatError> {
        self.received.datagrams += 1;
        match self.options.form {
            Form::Strata => self.of_strata(from, bytes, out),
            Form::Paper | Form::PaperSeq => self.of_paper(from, bytes, out),
        }
    }

    fn of_strata(
        &mut self,
        from: Option<SocketAddr>,
        bytes: &[u8],
        out: &mut impl FnMut(&GivenRecord<'_>),
    ) -> Result<(), FormatError> {
        let datagram = Datagram::new_checked(bytes).inspect_err(|_| self.received.damaged += 1)?;
        let (cache, first) = (datagram.cache, datagram.first_seq);
        let sender = Sender {
            address: from,
            cache: Some(cache),
        };
        // A file or a stream may have one run after the other: each begins at 0.
        let before = self.senders.get(&sender).filter(|_| from.is_none());
        if first == 0 && before.is_some_and(|heard| heard.has_vectors) {
            self.end(sender, out);
        }
        let is_known = self.senders.contains_key(&sender);
        let now_ns = match self.options.flush_idle {
            Some(_) => since(self.began),
            None => 0,
        };
        let Some(heard) = heard(
            &mut self.senders,
            &mut self.received,
            &self.options,
            sender,
            now_ns,
            out,
        ) else {
            return Ok(());
        };
        heard.budget.earn(bytes);
        if !is_known {
            // A file, or a ring, has what it has; whether there was something before is not known.
            let joins = first >= JOIN_AT || from.is_none();
            let joined = if joins { first } else { 0 };
            heard.sequencer.join(cache, joined);
            heard.highest = first;
            self.received.before = self.received.before.saturating_add(joined);
        }
        heard.is_ended = datagram.vectors == 0;
        heard.has_vectors |= datagram.vectors > 0;
        if datagram.vectors == 0 {
            // Numbers far ahead are not believed, so that no count of losses is absurd.
            match first.saturating_sub(heard.highest) <= AHEAD_MAX {
                true => heard.end = Some(first),
                false => self.received.damaged += 1,
            }
            return Ok(());
        }
        if first.saturating_sub(heard.highest) <= AHEAD_MAX {
            heard.highest = heard.highest.max(first);
        }
        heard.columns = Columns(heard.columns.0 & datagram.columns.0);
        let Heard {
            name,
            sequencer,
            reassembly,
            columns,
            latest,
            idle,
            ..
        } = heard;
        let who = (sender, name.as_str());
        let mut out = |record: &Record<'_, Full>| out(&GivenRecord::new(who, *columns, record));
        sequencer.datagram_at_once(bytes, |_, vectors| {
            // Those that are flushed at last may have begun long before others.
            if let Some(newest) = vectors.iter().map(|vector| vector.start_ns).max() {
                *latest = (latest.0.max(newest), Instant::now());
            }
            if let Some(idle) = idle {
                for vector in vectors {
                    if vector.slot < SLOTS_MAX {
                        idle.grow(vector.slot + 1, now_ns);
                        idle.gave(vector.slot, now_ns);
                    }
                }
            }
            reassembly.take_all(vectors, &mut out);
        })
    }

    fn of_paper(
        &mut self,
        from: Option<SocketAddr>,
        bytes: &[u8],
        out: &mut impl FnMut(&GivenRecord<'_>),
    ) -> Result<(), FormatError> {
        let sender = Sender {
            address: from,
            cache: None,
        };
        let form = self.options.form;
        let (senders, received) = (&mut self.senders, &mut self.received);
        // So that rubbish of strangers takes no place.
        if !senders.contains_key(&sender) {
            paper_vector(form, bytes, &mut self.paper, |_| ())
                .inspect_err(|_| received.damaged += 1)?;
        }
        // Vectors of this form have no slots.
        let Some(heard) = heard(senders, received, &self.options, sender, 0, out) else {
            return Ok(());
        };
        let Heard {
            name,
            reassembly,
            columns,
            latest,
            ..
        } = heard;
        *columns = match form {
            Form::PaperSeq => Sequenced::COLUMNS,
            _ => Basic::COLUMNS,
        };
        let who = (sender, name.as_str());
        let mut out = |record: &Record<'_, Full>| out(&GivenRecord::new(who, *columns, record));
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = paper_vector(form, rest, &mut self.paper, |vector| {
                *latest = (latest.0.max(vector.start_ns), Instant::now());
                reassembly.take(vector, &mut out);
            });
            match taken {
                Ok(taken) => rest = &rest[taken..],
                Err(error) => {
                    received.damaged += 1;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Gives records whose interval is over: looks at a part of them in each call.
    pub(super) fn expire(&mut self, part: usize, out: &mut impl FnMut(&GivenRecord<'_>)) {
        for heard in self.senders.values_mut() {
            // A cache that has no vectors to send says so all the time, and its clock goes on.
            let (latest_ns, came) = heard.latest;
            let silent: u64 = strata_wire::clamped(came.elapsed().as_nanos());
            let now_ns = latest_ns.saturating_add(silent);
            let (who, columns) = ((heard.sender, heard.name.as_str()), heard.columns);
            let mut out = |record: &Record<'_, Full>| out(&GivenRecord::new(who, columns, record));
            heard.reassembly.expire(now_ns, part, &mut out);
        }
    }

    /// Gives everything, in the order of senders.
    pub(super) fn finish(&mut self, out: &mut impl FnMut(&GivenRecord<'_>)) {
        let mut senders: Vec<Sender> = self.senders.keys().copied().collect();
        senders.sort_unstable();
        senders.into_iter().for_each(|sender| self.end(sender, out));
    }

    /// Gives everything of a sender, which is not heard any more.
    fn end(&mut self, sender: Sender, out: &mut impl FnMut(&GivenRecord<'_>)) {
        let Some(mut heard) = self.senders.remove(&sender) else {
            return;
        };
        heard.end(sender.cache, out);
        // Others than those of a file or a ring are not expected to.
        let is_cut = sender.address.is_none() && sender.cache.is_some() && !heard.is_ended;
        self.received.unended += u64::from(is_cut);
        self.received
            .add(heard.sequencer.counters(), heard.reassembly.counters());
    }
}

/// Ns since then.
fn since(then: Instant) -> u64 {
    strata_wire::clamped(then.elapsed().as_nanos())
}

/// The state of a sender, made if it is new; `None` if there are too many, which is counted.
fn heard<'a>(
    senders: &'a mut HashMap<Sender, Heard>,
    received: &mut Received,
    options: &InboxOptions,
    sender: Sender,
    now_ns: u64,
    out: &mut impl FnMut(&GivenRecord<'_>),
) -> Option<&'a mut Heard> {
    if !senders.contains_key(&sender) {
        if senders.len() >= options.senders_max {
            let silent = senders
                .iter()
                .max_by_key(|(_, heard)| heard.heard.elapsed());
            let silent = silent.map(|(sender, heard)| (*sender, heard.heard.elapsed()));
            match silent {
                Some((silent, since)) if since >= SILENT => {
                    if let Some(mut heard) = senders.remove(&silent) {
                        heard.end(silent.cache, out);
                        received.add(heard.sequencer.counters(), heard.reassembly.counters());
                    }
                }
                _ => {
                    received.refused += 1;
                    return None;
                }
            }
        }
        received.senders += 1;
    }
    let heard = senders
        .entry(sender)
        .or_insert_with(|| Heard::new(sender, options, now_ns));
    heard.heard = Instant::now();
    Some(heard)
}

/// Reads the vector at the start of `bytes`, with every column; how many bytes it took.
fn paper_vector(
    form: Form,
    bytes: &[u8],
    scratch: &mut PaperScratch,
    take: impl FnOnce(&Vector<'_, Full>),
) -> Result<usize, FormatError> {
    match form {
        Form::PaperSeq => widened(bytes, &mut scratch.sequenced, &mut scratch.full, take),
        _ => widened(bytes, &mut scratch.basic, &mut scratch.full, take),
    }
}

fn widened<T: PaperTuple>(
    bytes: &[u8],
    tuples: &mut Vec<T>,
    full: &mut Vec<Full>,
    take: impl FnOnce(&Vector<'_, Full>),
) -> Result<usize, FormatError> {
    let (vector, taken) = paper::parse(bytes, tuples)?;
    full.clear();
    full.extend(vector.tuples().map(|tuple| Full {
        // 20 bits of us.
        delta_ns: strata_wire::exact(tuple.delta_ns()),
        size: strata_wire::exact(tuple.get(Column::Size)),
        high_queue: strata_wire::exact(tuple.get(Column::HighQueue)),
        tcp_seq: tuple.get(Column::TcpSeq),
        ..Full::default()
    }));
    take(&Vector {
        key: vector.key,
        start_ns: vector.start_ns,
        pieces: [full, &[]],
        reason: vector.reason,
        saturated: vector.saturated,
        slot: vector.slot,
    });
    Ok(taken)
}
