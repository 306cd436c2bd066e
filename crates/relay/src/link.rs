//! The switch's end: a worker's blocks become segments in the relay's memory.
//!
//! A worker's small blocks stay in the cache: their records are read once more,
//! cut into segments and sent. Definitions go over the control connection, which
//! loses nothing; packets by RDMA.

mod connection;
mod road;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_rdma::{OnLoss, RequesterCounters};
use strata_roce::Port;
use strata_store::{
    About, BlockBuilder, BlockEnd, BlockSource, BlockTally, Books, Incoming, RawPacket, RawRecord,
    Records, StoreError, Written,
};
use strata_wire::Ledger;
use strata_wire::roce::Service;
use strata_wire::segment::{Layout, PacketInfo};

use crate::control::{End, Message};
use crate::error::RelayError;
use crate::handover::MemoryFrom;
use crate::secret::Secret;
use crate::tls::SwitchTls;
use connection::Connection;

/// How packets travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// RoCEv2 through a UDP socket of the kernel.
    Udp(Service),
    /// RoCEv2 in frames of our own, through this interface.
    Raw(Service, String),
    /// Memory of the same machine.
    SharedMemory,
}

/// Puts something before a port: for tests that lose packets.
pub type WrapPort = Arc<dyn Fn(Box<dyn Port>) -> Box<dyn Port> + Send + Sync>;

/// How a link works.
#[derive(Clone)]
pub struct LinkOptions {
    /// The relay: `HOST:PORT`.
    pub relay: String,
    /// What is recorded.
    pub about: About,
    /// The recording's name, by which the relay knows it again.
    pub session: String,
    /// The worker whose packets these are.
    pub worker: u16,
    /// How packets travel.
    pub transport: Transport,
    /// What is done about loss on a reliable connection.
    pub on_loss: OnLoss,
    /// How packets are cut.
    pub layout: Layout,
    /// A block that was begun so long ago is sent to disk though it is not full.
    pub flush_interval: Duration,
    /// Once there is nothing more to record, a relay that is away is waited for so long.
    pub patience: Duration,
    /// Becomes true when the recording is to end. A relay that is away, or stores nothing, is
    /// then waited for no longer than five seconds.
    pub stop: Option<Arc<AtomicBool>>,
    /// TLS of the control connection.
    pub tls: Option<SwitchTls>,
    /// What both ends prove to know.
    pub secret: Option<Secret>,
    /// Whether packets are sent to another machine of which nothing proves that it is the
    /// relay.
    pub insecure: bool,
    /// Whom shared memory is taken from.
    pub memory: MemoryFrom,
    /// For tests.
    pub wrap: Option<WrapPort>,
}

impl std::fmt::Debug for LinkOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkOptions")
            .field("relay", &self.relay)
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

impl LinkOptions {
    /// The usual values.
    #[must_use]
    pub fn new(relay: String, about: About, session: String) -> Self {
        Self {
            relay,
            about,
            session,
            worker: 0,
            transport: Transport::Udp(Service::Rc),
            on_loss: OnLoss::Resend,
            layout: Layout::Mtu,
            flush_interval: Duration::from_secs(1),
            patience: Duration::from_secs(10),
            stop: None,
            tls: None,
            secret: None,
            insecure: false,
            memory: MemoryFrom::default(),
            wrap: None,
        }
    }
}

/// What a link has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkReport {
    /// Number of the recording in the relay's log.
    pub recording: u32,
    /// Packets that were sent.
    pub packets: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes of RDMA messages.
    pub bytes: u64,
    /// Blocks that the relay has on disk.
    pub blocks: u64,
    /// Times the relay was lost.
    pub disconnections: u64,
    /// Packets of which it is not known that the relay has them on disk.
    pub lost: BlockTally,
    /// Of all connections.
    pub rdma: RequesterCounters,
    /// What went wrong, in words.
    pub problems: Vec<String>,
    /// Why the recording did not end properly at the relay, if so.
    pub failure: Option<String>,
}

/// A link that is running.
#[derive(Debug)]
pub struct Link {
    end: BlockEnd,
    books: Arc<Mutex<End>>,
    thread: JoinHandle<LinkReport>,
}

impl Link {
    /// Connects to the relay, and then sends what comes from `source`, whose sink
    /// `end` is of, until it is finished.
    ///
    /// # Errors
    ///
    /// If the relay cannot be reached, or refuses.
    pub fn start(
        options: LinkOptions,
        source: BlockSource,
        end: BlockEnd,
    ) -> Result<Self, RelayError> {
        let stop = Stop::new(options.stop.clone());
        let connection = Connection::open(&options, 0, 0, || stop.since().is_some())?;
        let books = Arc::new(Mutex::new(End::default()));
        let runner = Runner {
            options,
            source,
            current: None,
            definitions: BTreeMap::new(),
            additions: Vec::new(),
            classes: vec![0; 1 << 16],
            next_block: 0,
            next_seq: 0,
            ending: false,
            flush: false,
            books: Arc::clone(&books),
            report: LinkReport::default(),
            stop,
        };
        let thread = thread::Builder::new()
            .name("strata-link".into())
            .spawn(move || runner.run(connection))
            .map_err(crate::error::io_error("link thread: cannot start"))?;
        Ok(Self { end, books, thread })
    }

    /// Waits until all that was handed over is on the relay's disk, and closes the
    /// recording there if `ledger` has its books.
    ///
    /// # Panics
    ///
    /// If the link's thread has.
    #[must_use]
    pub fn finish(self, ledger: Option<&Ledger>, warnings: Vec<String>) -> LinkReport {
        {
            let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
            books.books = ledger.map(Books::from);
            books.warnings = warnings;
        }
        self.end.end();
        match self.thread.join() {
            Ok(report) => report,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// A worker's block that is being sent.
struct Current {
    block: Box<BlockBuilder>,
    position: (usize, u64),
}

struct Runner {
    options: LinkOptions,
    source: BlockSource,
    current: Option<Current>,
    /// What packets refer to, by kind and reference: sent again after a reconnection.
    definitions: BTreeMap<(u8, u16), Vec<u8>>,
    /// What inputs said of themselves, with the block that was being filled: sent
    /// again if that did not reach the disk.
    additions: Vec<(u64, Vec<u8>)>,
    /// Class by verdict.
    classes: Vec<u8>,
    next_block: u64,
    /// The sequence number of the next packet to be sent.
    next_seq: u64,
    ending: bool,
    flush: bool,
    books: Arc<Mutex<End>>,
    report: LinkReport,
    stop: Stop,
}

/// Whether the recording is to end, and since when.
struct Stop {
    flag: Option<Arc<AtomicBool>>,
    since: Cell<Option<Instant>>,
}

impl Stop {
    fn new(flag: Option<Arc<AtomicBool>>) -> Self {
        let since = Cell::new(None);
        Self { flag, since }
    }

    fn since(&self) -> Option<Instant> {
        let flag = self.flag.as_ref();
        if self.since.get().is_none() && flag.is_some_and(|flag| flag.load(Ordering::Relaxed)) {
            self.since.set(Some(Instant::now()));
        }
        self.since.get()
    }

    /// Whether a relay has been waited for long enough.
    fn is_out_of_patience(&self) -> bool {
        let since = self.since();
        since.is_some_and(|since| since.elapsed() > PATIENCE_STOPPED)
    }
}

/// RDMA packets that are gathered before they are sent.
const BATCH_PACKETS: usize = 244;
/// How often a lost relay is looked for.
const RECONNECT_EVERY: Duration = Duration::from_millis(200);
/// A relay that says nothing for so long is lost; it has to every second.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long a relay that stores nothing is waited for by who was told to end.
const PATIENCE_STOPPED: Duration = Duration::from_secs(5);

impl Runner {
    fn run(mut self, mut connection: Connection) -> LinkReport {
        loop {
            self.report.recording = connection.recording();
            let problem = match self.serve(&mut connection) {
                Ok(()) => {
                    self.take_counters(&connection);
                    return self.report;
                }
                Err(problem) => problem,
            };
            let is_over = match &problem {
                RelayError::Failed(_) => true,
                RelayError::Silent { .. } => self.stop.since().is_some(),
                _ => false,
            };
            if is_over {
                self.report.failure = Some(problem.to_string());
                connection.last_word(self.source.progress());
            }
            self.lose(&connection, &problem);
            drop(connection);
            match self.reconnect(is_over) {
                Some(again) => connection = again,
                None => {
                    let failure = format!("the relay did not come back: {problem}");
                    self.report.failure.get_or_insert(failure);
                    self.give_up();
                    return self.report;
                }
            }
        }
    }

    /// Fails if the relay is there, but nothing comes of it.
    fn check_patience(&self, connection: &Connection) -> Result<(), RelayError> {
        if connection.silent_for() > SILENCE_MAX {
            return Err(connection.silent(SILENCE_MAX));
        }
        if self.stop.is_out_of_patience()
            && connection.stuck_for() > PATIENCE_STOPPED
            && (self.current.is_some() || self.ending || !connection.is_idle())
        {
            return Err(connection.silent(PATIENCE_STOPPED));
        }
        Ok(())
    }

    fn take_counters(&mut self, connection: &Connection) {
        let of = connection.counters();
        let sum = &mut self.report.rdma;
        sum.posted += of.posted;
        sum.acknowledged += of.acknowledged;
        sum.lost += of.lost;
        sum.resent += of.resent;
        sum.sequence_naks += of.sequence_naks;
        sum.timeouts += of.timeouts;
    }

    /// Says how many packets were sent so far, for whoever steers.
    fn note_counters(&self, connection: &Connection) {
        let (of, before) = (connection.counters(), &self.report.rdma);
        let progress = self.source.progress();
        let note = |to: &AtomicU64, packets| to.store(packets, Ordering::Relaxed);
        note(&progress.rdma_sent, before.posted + of.posted);
        note(&progress.rdma_again, before.resent + of.resent);
    }

    /// What the relay did not confirm is lost.
    fn lose(&mut self, connection: &Connection, problem: &RelayError) {
        self.take_counters(connection);
        self.report.disconnections += 1;
        if self.report.problems.len() < 100 {
            self.report.problems.push(problem.to_string());
        }
        self.settle_lost(connection.unconfirmed());
        self.next_block = connection.next_block();
    }

    fn settle_lost(&mut self, tally: BlockTally) {
        add(&mut self.report.lost, &tally);
        let outcome = match &self.report.failure {
            Some(reason) => StoreError::RelayFailed(reason.clone()),
            None => StoreError::RelayLost,
        };
        self.source.settle(Written {
            tally,
            outcome: Err(outcome),
        });
    }

    /// Connects again, unless that `is_over`; `None` if it is given up.
    fn reconnect(&mut self, is_over: bool) -> Option<Connection> {
        let mut give_up = None;
        while !is_over && !self.stop.is_out_of_patience() {
            let interrupted = || self.stop.is_out_of_patience();
            let (block, seq) = (self.next_block, self.next_seq);
            // Refusals pass too: of a relay that ends, or has not yet missed others.
            match Connection::open(&self.options, block, seq, interrupted) {
                Ok(mut connection) => {
                    let known = self.definitions.values();
                    for record in known.chain(self.additions.iter().map(|(_, bytes)| bytes)) {
                        connection.define(record);
                    }
                    return Some(connection);
                }
                Err(error @ RelayError::Failed(_)) => {
                    self.report.failure = Some(error.to_string());
                    return None;
                }
                Err(_) => {}
            }
            // Blocks that come meanwhile stay where they are: the worker finds none
            // free, and waits or counts what it drops.
            if self.current.is_none() {
                match self.source.receive(Duration::ZERO) {
                    Incoming::Block(block) => self.begin(block),
                    Incoming::Flush => self.flush = true,
                    Incoming::End => self.ending = true,
                    Incoming::Nothing => {}
                }
            }
            if self.ending || self.flush {
                let end = give_up.get_or_insert_with(|| Instant::now() + self.options.patience);
                if Instant::now() > *end {
                    return None;
                }
            }
            thread::sleep(RECONNECT_EVERY);
        }
        None
    }

    /// Without a relay, everything that still comes is lost.
    fn give_up(&mut self) {
        loop {
            if let Some(current) = self.current.take() {
                let mut records = Records::resume(current.block.body(), current.position);
                let mut tally = BlockTally::default();
                while let Some(Ok(record)) = records.next_raw() {
                    if let RawRecord::Packet(raw) = record {
                        count(&mut tally, &raw);
                    }
                }
                self.source.give_back(current.block);
                self.settle_lost(tally);
            }
            // Blocks that were handed over before the end come before it.
            let wait = Duration::from_millis(if self.ending { 0 } else { 1000 });
            match self.source.receive(wait) {
                Incoming::Block(block) => self.begin(block),
                Incoming::End => return,
                Incoming::Nothing if self.ending => return,
                Incoming::Flush | Incoming::Nothing => {}
            }
        }
    }

    fn begin(&mut self, block: Box<BlockBuilder>) {
        let (first_seq, _) = block.sequence_range();
        self.current = Some(Current {
            block,
            position: (0, first_seq),
        });
    }

    /// Works until the end, or the connection is lost.
    fn serve(&mut self, connection: &mut Connection) -> Result<(), RelayError> {
        loop {
            self.confirmations(connection)?;
            self.check_patience(connection)?;
            connection.poll_answers()?;
            let worked = self.pump(connection)?;
            self.close_old(connection);
            connection.announce(self.source.progress())?;
            self.note_counters(connection);
            if self.current.is_some() {
                if !worked {
                    connection.wait()?;
                }
                continue;
            }
            if self.ending && connection.is_idle() {
                return self.end(connection);
            }
            let wait = match connection.is_idle() {
                true => Duration::from_millis(5),
                false if worked => Duration::ZERO,
                false => Duration::from_micros(200),
            };
            match self.source.receive(wait) {
                Incoming::Block(block) => {
                    self.flush = false;
                    self.begin(block);
                }
                Incoming::Flush => self.flush = true,
                Incoming::End => self.ending = true,
                // The sender has nothing more: what was gathered goes out.
                Incoming::Nothing => connection.flush_message()?,
            }
            if self.ending {
                // The channel's end is reported at once, time after time.
                connection.flush_message()?;
                connection.wait()?;
            }
        }
    }

    fn confirmations(&mut self, connection: &mut Connection) -> Result<(), RelayError> {
        while let Some((block, tally)) = connection.confirmed()? {
            self.report.blocks += 1;
            self.additions.retain(|(of, _)| *of > block);
            self.source.settle(Written {
                tally,
                outcome: Ok(()),
            });
        }
        Ok(())
    }

    fn close_old(&mut self, connection: &mut Connection) {
        let quiet = self.current.is_none();
        let old = connection.open_for() > self.options.flush_interval;
        if (quiet && (self.flush || self.ending)) || old {
            connection.close_block();
        }
    }

    fn end(&mut self, connection: &mut Connection) -> Result<(), RelayError> {
        let books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let end = books.clone();
        drop(books);
        connection.send_end(end)?;
        while !connection.has_ended()? {
            self.check_patience(connection)?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Sends packets of the current block as far as window and blocks allow;
    /// whether it got anywhere.
    fn pump(&mut self, connection: &mut Connection) -> Result<bool, RelayError> {
        let Some(mut current) = self.current.take() else {
            return Ok(false);
        };
        let mut records = Records::resume(current.block.body(), current.position);
        let mut exhausted = false;
        let start = current.position;
        while connection.gathered() < BATCH_PACKETS {
            match records.next_raw() {
                Some(Ok(RawRecord::Packet(raw))) => {
                    let class = self.classes[usize::from(raw.packet.verdict)];
                    let info = PacketInfo {
                        seq: raw.packet.seq,
                        ts_ns: raw.packet.ts_ns,
                        class,
                        flags: raw.flags,
                    };
                    let pushed = connection.push(&info, raw.bytes);
                    match pushed {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(error) => {
                            self.current = Some(current);
                            return Err(error);
                        }
                    }
                    count(connection.tally(), &raw);
                    self.next_seq = raw.packet.seq + 1;
                    self.report.packets += 1;
                    current.position = records.position();
                }
                Some(Ok(RawRecord::Other {
                    verdict,
                    replaces,
                    bytes,
                })) => {
                    if let Some((id, class)) = verdict {
                        self.classes[usize::from(id)] = class;
                    }
                    match replaces {
                        Some(key) if self.definitions.get(&key).is_some_and(|k| k == bytes) => {}
                        Some(key) => {
                            self.definitions.insert(key, bytes.to_vec());
                            connection.define(bytes);
                        }
                        None => {
                            self.additions
                                .push((connection.next_block_to_close(), bytes.to_vec()));
                            connection.define(bytes);
                        }
                    }
                    current.position = records.position();
                }
                // A worker's records are right.
                Some(Err(_)) | None => {
                    exhausted = true;
                    break;
                }
            }
        }
        let worked = exhausted || current.position != start;
        let (segments, bytes) = connection.take_counts();
        self.report.segments += segments;
        self.report.bytes += bytes;
        let sent = connection.send();
        if exhausted {
            self.source.give_back(current.block);
        } else {
            self.current = Some(current);
        }
        sent?;
        Ok(worked)
    }
}

/// Counts a packet as the worker's ledger does.
fn count(tally: &mut BlockTally, raw: &RawPacket<'_>) {
    use strata_wire::{CutWhere, Keep};
    let packet = &raw.packet;
    let wire = u64::from(packet.wire_len.max(packet.captured_len));
    let (captured, kept) = (u64::from(packet.captured_len), packet.data.len() as u64);
    tally.packets += 1;
    tally.wire_bytes += wire;
    tally.logged_bytes += kept;
    tally.cut_bytes[CutWhere::Snaplen as usize] += wire - captured;
    let place = if packet.keep_code == Keep::Partial(0).code() {
        CutWhere::Partial
    } else {
        CutWhere::Header
    };
    tally.cut_bytes[place as usize] += captured - kept;
}

fn add(sum: &mut BlockTally, other: &BlockTally) {
    sum.packets += other.packets;
    sum.wire_bytes += other.wire_bytes;
    sum.logged_bytes += other.logged_bytes;
    for (sum, bytes) in sum.cut_bytes.iter_mut().zip(other.cut_bytes) {
        *sum += bytes;
    }
}

/// The text of a message that was not expected.
pub(crate) fn unexpected(message: &Message) -> String {
    let name = match message {
        Message::Hello(_) => "hello",
        Message::Welcome(_) => "welcome",
        Message::Refused(_) => "refusal",
        Message::Definitions(_) => "definitions",
        Message::BlockFull(_) => "full block",
        Message::BlockStored(_) => "stored block",
        Message::Progress(_) => "progress",
        Message::End(_) => "end",
        Message::Ended => "end of the relay",
        Message::Failed(_) => "failure",
        Message::Alive => "sign of life",
        Message::Challenge(_) => "challenge",
        Message::Proof(_) => "proof",
        Message::Begin(_) => "beginning",
        Message::Model(_) => "model",
    };
    format!("a {name} message at this point")
}
