//! One switch at the relay: connects [`Session`], the relay's side of the protocol, to its control
//! connection, the memory that it writes into, and the log.

mod memory;

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, PoisonError, atomic::Ordering};
use std::time::{Duration, Instant};

use strata_blocks::{RelayedHeader, SEGMENTS_AT, SinkError};
use strata_store::{About, RelayStream, StoreError, StreamOptions};
use strata_sys::disk::{self, AnyBlock, DiskBlock};
use strata_wire::Ledger;

use crate::channel::Channel;
use crate::error::{RelayError, io_error};
use crate::protocol::relay::{
    Action, Arrivals, Beginning, BlockWrite, Blocks, Define, Place, Session, SessionOptions,
    check_numbers,
};
use crate::protocol::{End, Message, Stored, Welcome};

use super::admission::Admitted;
use super::{Inner, WAIT};
use memory::Memory;

/// How long a connection waits for an earlier one of the same switch to end.
const MAKE_WAY_LIMIT: Duration = Duration::from_secs(5);
/// How long the loop waits for writers when nothing else happens.
const REST: Duration = Duration::from_micros(500);
/// How long a switch refused at its welcome may take to read why.
const READ_LIMIT: Duration = Duration::from_secs(1);

/// A writer thread's report.
struct Done {
    job: u64,
    /// The relay's index of the block; definitions have none.
    place: Option<usize>,
    /// Its memory; none if the thread was lost with it.
    block: Option<AnyBlock>,
    /// Segments that are not in it.
    missing: u64,
    outcome: Result<(), StoreError>,
}

/// Reports a job exactly once, even if its thread panics: the session waits for each.
struct Reporter {
    job: u64,
    place: Option<usize>,
    to: Option<Sender<Done>>,
}

impl Reporter {
    fn report(mut self, block: AnyBlock, missing: u64, outcome: Result<(), StoreError>) {
        self.send(Some(block), missing, outcome);
    }

    fn send(&mut self, block: Option<AnyBlock>, missing: u64, outcome: Result<(), StoreError>) {
        if let Some(to) = self.to.take() {
            // The session waits for all of its jobs.
            let _ = to.send(Done {
                job: self.job,
                place: self.place,
                block,
                missing,
                outcome,
            });
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.send(None, 0, Err(SinkError::WriterGone.into()));
    }
}

/// What is in a block of segments.
struct Segments {
    /// The relay's index of the block.
    place: usize,
    header: RelayedHeader,
}

/// Segments that a block's header has and its memory has not.
fn missing(header: &RelayedHeader, block: &AnyBlock) -> u64 {
    let of = |bytes: &[u8]| bytes.get(SEGMENTS_AT..).map_or(0, |it| header.missing(it));
    match block.memory() {
        disk::Memory::Own(bytes) => of(bytes),
        shared @ disk::Memory::Shared(_) => of(&shared.to_vec()),
    }
}

/// A connected switch.
struct Server<'a> {
    inner: &'a Arc<Inner>,
    channel: Channel,
    session: Session,
    memory: Memory,
    stream: RelayStream,
    done: Receiver<Done>,
    to_done: Sender<Done>,
    started: Instant,
}

/// The memory of a switch, and how far its packets have arrived.
struct Seen<'a>(&'a Inner, &'a Memory);

impl Arrivals for Seen<'_> {
    fn has_arrived(&self, end_psn: u32) -> bool {
        self.1.has_arrived(self.0, end_psn)
    }

    fn emptied(&self) -> u64 {
        self.0.emptied()
    }

    fn has_taken_all(&self, emptied: u64) -> bool {
        self.0.has_taken_all(emptied)
    }

    fn used(&self, place: Place, key: u32, number: u64) -> Option<usize> {
        self.1.used(self.0, place, key, number)
    }
}

pub(super) fn serve(inner: &Arc<Inner>, admitted: Admitted) -> Result<(), RelayError> {
    let mut channel = admitted.channel;
    let ends = |stream: &TcpStream| Ok((stream.local_addr()?, stream.peer_addr()?));
    let (local, peer) = ends(channel.stream()).map_err(io_error(
        "cannot get the addresses of the control connection",
    ))?;
    let begun = begin(inner, admitted.beginning, channel.peer(), local, peer);
    let (session, memory, stream) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            let told = inner.note_failure(&error);
            let told = told.unwrap_or_else(|| Message::Refused(reason(&error)));
            hear_out(&mut channel, &told);
            return Err(error);
        }
    };
    let (to_done, done) = mpsc::channel();
    let mut server = Server {
        inner,
        channel,
        session,
        memory,
        stream,
        done,
        to_done,
        started: Instant::now(),
    };
    let blocks = inner.options.blocks as u64;
    inner.memory_blocks.fetch_add(blocks, Ordering::Relaxed);
    let served = server.run();
    inner.memory_blocks.fetch_sub(blocks, Ordering::Relaxed);
    server.memory.release(inner);
    served
}

/// Why a switch is refused, as sent to it.
fn reason(error: &RelayError) -> String {
    match error {
        RelayError::Refused(reason) => reason.clone(),
        other => other.to_string(),
    }
}

/// Sends the last message, and waits until the switch has closed the connection.
fn hear_out(channel: &mut Channel, last: &Message) {
    let mut listens = channel.send(last).is_ok();
    let end = Instant::now() + READ_LIMIT;
    while listens && Instant::now() < end {
        match channel.poll() {
            Ok(Some(_)) => {}
            Ok(None) => {
                let left = end.saturating_duration_since(Instant::now());
                listens = channel.wait_ready(left).is_ok();
            }
            Err(_) => listens = false,
        }
    }
}

/// Prepares memory and log for what a switch will write.
fn begin(
    inner: &Inner,
    beginning: Beginning,
    name: &str,
    local: SocketAddr,
    peer: SocketAddr,
) -> Result<(Session, Memory, RelayStream), RelayError> {
    let Beginning {
        hello,
        begin,
        model,
    } = beginning;
    check_numbers(&begin)?;
    let options = StreamOptions {
        about: About {
            program: begin.program.clone(),
            inputs: begin.inputs.clone(),
            filter: begin.filter.clone(),
            mode: begin.mode.clone(),
            model: begin.model.clone(),
            model_json: model,
            shadow: None,
            classes: begin.classes.clone(),
            hash_seed: begin.hash_seed,
            look_back: false,
            live: false,
        },
        session: hello.session,
        worker: hello.worker,
        rotate_bytes: inner.options.rotate_bytes,
    };
    let stream = stream_of(inner, &options)?;
    let blocks = Blocks {
        bytes: inner.options.block_bytes,
        count: inner.options.blocks.max(2),
    };
    let stored = stream.stored_since(
        begin.unconfirmed_seq,
        blocks.unconfirmed_max(),
        begin.resends,
    )?;
    let (memory, path, block_stride) = Memory::new(inner, &begin, local, peer)?;
    let welcome = Welcome {
        recording: stream.recording(),
        block_bytes: blocks.bytes,
        block_stride,
        blocks: blocks.count,
        stored: Stored {
            next_seq: stored.next_seq,
            packets: stored.counters.packets,
            wire_bytes: stored.counters.wire_bytes,
            logged_bytes: stored.counters.logged_bytes,
            cut_bytes: stored.counters.cut_bytes,
        },
        path,
    };
    let options = SessionOptions {
        blocks,
        recording: stream.recording(),
        worker: hello.worker,
        first_seq: match begin.resends {
            true => stored.next_seq,
            false => begin.first_seq,
        },
    };
    let welcome = Message::Welcome(Box::new(welcome));
    let session = Session::new(name.to_owned(), options, &begin, welcome, 0);
    Ok((session, memory, stream))
}

/// The stream of a worker. An earlier connection of it, whose end the relay has not seen, makes
/// way.
fn stream_of(inner: &Inner, options: &StreamOptions) -> Result<RelayStream, StoreError> {
    let end = Instant::now() + MAKE_WAY_LIMIT;
    loop {
        let ended = *inner.ended.sessions();
        match inner.log.stream(options) {
            Err(StoreError::StreamTaken) if Instant::now() < end && !inner.stopped() => {
                // Not for long: the relay may be stopped.
                inner.ended.wait(ended, WAIT);
            }
            stream => return stream,
        }
    }
}

impl Server<'_> {
    /// The time for the protocol.
    fn now(&self) -> u64 {
        let since = self.started.elapsed().as_nanos();
        u64::try_from(since).expect("no relay runs for 584 years")
    }

    /// Works until the switch has ended its recording, or is lost and its remaining data is on
    /// disk; returns why it was lost.
    fn run(&mut self) -> Result<(), RelayError> {
        let mut served = Ok(());
        while !self.session.is_over() {
            if let Err(error) = self.turn() {
                let last = self.last_word(&error);
                let now = self.now();
                self.session.lose(last, now);
                served = served.and(Err(error));
            }
        }
        served
    }

    /// The message to the switch about the end, if that is useful.
    fn last_word(&self, error: &RelayError) -> Option<Message> {
        match (self.inner.note_failure(error), error) {
            (Some(failed), _) => Some(failed),
            (None, RelayError::Refused(_) | RelayError::Store(_) | RelayError::Protocol { .. }) => {
                Some(Message::Refused(reason(error)))
            }
            _ => None,
        }
    }

    fn turn(&mut self) -> Result<(), RelayError> {
        let now = self.now();
        let mut worked = self.hear(now)?;
        while let Ok(done) = self.done.try_recv() {
            worked = true;
            self.settle(done);
        }
        {
            let shortage = self.inner.shortage.lock();
            let shortage = shortage.unwrap_or_else(PoisonError::into_inner);
            self.session.ask(&shortage);
        }
        self.session.step(&Seen(self.inner, &self.memory), now)?;
        self.count();
        while let Some(action) = self.session.action() {
            worked = true;
            self.act(action)?;
        }
        if self.session.is_serving() {
            self.look_around()?;
        }
        if !worked && let Ok(done) = self.done.recv_timeout(REST) {
            self.settle(done);
        }
        Ok(())
    }

    fn hear(&mut self, now: u64) -> Result<bool, RelayError> {
        let mut worked = false;
        while self.session.listens()
            && let Some(message) = self.channel.poll()?
        {
            worked = true;
            let seen = Seen(self.inner, &self.memory);
            self.session.receive(message, &seen, now)?;
        }
        Ok(worked)
    }

    /// Fails if something outside this session requires it to end.
    fn look_around(&self) -> Result<(), RelayError> {
        if let Some(reason) = self.inner.failure() {
            return Err(RelayError::Failed(reason));
        }
        if self.inner.stopped() {
            return Err(RelayError::Refused("the relay is stopping".into()));
        }
        if self.stream.is_wanted() {
            let reason = "the same switch has connected again";
            return Err(RelayError::Refused(reason.into()));
        }
        Ok(())
    }

    fn count(&mut self) {
        let (counts, all) = (self.session.take_counts(), &self.inner.counters);
        all.blocks.fetch_add(counts.blocks, Ordering::Relaxed);
        all.bytes.fetch_add(counts.bytes, Ordering::Relaxed);
        all.salvaged.fetch_add(counts.salvaged, Ordering::Relaxed);
    }

    /// Takes a block back from a writer.
    fn settle(&mut self, done: Done) {
        if done.place.is_some() {
            self.inner.waiting_blocks.fetch_sub(1, Ordering::Relaxed);
        }
        if let (Some(place), Some(block)) = (done.place, done.block) {
            self.memory.give_back(self.inner, place, block);
        }
        let outcome = done.outcome.map(|()| done.missing);
        let outcome = outcome.map_err(RelayError::from);
        self.session.written(done.job, outcome);
    }

    fn act(&mut self, action: Action) -> Result<(), RelayError> {
        match action {
            Action::Send(message) => self.channel.send(&message),
            Action::Checkpoint {
                next_seq,
                durable_seq,
                seen,
            } => Ok(self.stream.checkpoint(next_seq, durable_seq, seen)?),
            Action::Define(define) => {
                self.define(&define);
                Ok(())
            }
            Action::Write(block) => self.write_block(block),
            Action::End(end) => self.end(end),
        }
    }

    fn end(&mut self, end: Option<Box<End>>) -> Result<(), RelayError> {
        let Some(end) = end else {
            return Ok(self.stream.end(None)?);
        };
        let ledger = end.accounting.as_ref().map(Ledger::from);
        let accounting = ledger.as_ref().map(|ledger| (ledger, end.warnings));
        Ok(self.stream.end(accounting)?)
    }

    /// Hands definitions to the writers.
    fn define(&mut self, define: &Define) {
        let made = self
            .stream
            .definitions(&define.definitions, define.block_bytes);
        let given = match made {
            Ok(None) => return self.session.written(define.job, Ok(0)),
            Ok(Some(block)) => self.give(define.job, AnyBlock::Own(block), None),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = given {
            self.session.written(define.job, Err(error));
        }
    }

    /// Hands a block to the writers.
    fn write_block(&mut self, block: BlockWrite) -> Result<(), RelayError> {
        let BlockWrite { job, place, header } = block;
        // The switch may have announced a block that is still being written.
        let Some(memory) = self.memory.take(self.inner, place, &header) else {
            self.session.withdraw(job);
            return Err(RelayError::Refused(
                "a block that does not belong to the switch".into(),
            ));
        };
        let segments = Segments {
            place: place.index,
            header,
        };
        if let Err(error) = self.give(job, memory, Some(segments)) {
            self.session.written(job, Err(error));
        }
        Ok(())
    }

    /// Gives a writer a job, which it reports on.
    fn give(
        &mut self,
        job: u64,
        block: AnyBlock,
        segments: Option<Segments>,
    ) -> Result<(), RelayError> {
        let len = block.memory().len() as u64;
        let place = segments.as_ref().map(|segments| segments.place);
        let packets = segments.as_ref().map(|segments| segments.header.packets);
        let placed = self.stream.place(len, packets)?;
        let counted = segments.as_ref().filter(|_| self.session.counts_missing());
        let counted = counted.map(|segments| segments.header);
        let tap = segments.and_then(|_| self.inner.tap.clone());
        let tap = tap.map(|tap| (tap, self.stream.known().clone()));
        let reporter = Reporter {
            job,
            place,
            to: Some(self.to_done.clone()),
        };
        if place.is_some() {
            self.inner.waiting_blocks.fetch_add(1, Ordering::Relaxed);
        }
        let done = move |block: AnyBlock, outcome: Result<(), StoreError>| {
            if let (Some((tap, known)), Ok(())) = (tap, &outcome) {
                tap(block.memory(), known);
            }
            let missing = counted.map_or(0, |header| missing(&header, &block));
            reporter.report(block, missing, outcome);
        };
        self.inner.writers.write(placed, block, Box::new(done));
        Ok(())
    }
}
