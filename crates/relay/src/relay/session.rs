//! One switch at the relay, from its first word until all it sent is on disk.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, atomic::Ordering};
use std::time::{Duration, Instant};

use strata_rdma::segment::Segments;
use strata_rdma::{Access, Psn, QueuePairOptions, Region};
use strata_store::{
    About, DiskBlock, RelayStream, RelayedHeader, StoreError, StreamOptions, are_definitions,
};
use strata_wire::Ledger;
use strata_wire::roce::{Service, icrc};

use crate::control::{
    BlockFull, Channel, Hello, HelloPath, Message, Progress, Welcome, WelcomePath,
};
use crate::error::{RelayError, io_error};
use crate::icrc::{IcrcCheck, outer};
use crate::memory::{Blocks, Writable};
use crate::shared::{Mapping, SharedBlock, copy_segments};

use super::{Inner, Peer};

/// How long a switch may take for its first message.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// How long packets of a full block may be under way after its message, where the
/// relay cannot see that they were lost.
const STRAGGLERS: Duration = Duration::from_millis(100);
/// A switch that says nothing for so long is lost; it has to every 100 ms.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Definitions before one block, in bytes: a switch has some kilobytes, and what its
/// inputs say of themselves.
const DEFINITIONS_MAX: usize = 64 << 20;
/// Numbers of packets and blocks below this never wrap.
const NUMBER_MAX: u64 = 1 << 56;
/// Virtual address of a software region's first byte.
const VA: u64 = 1 << 40;
/// How long the loop rests when nothing happens.
const REST: Duration = Duration::from_micros(500);

/// Where a switch writes.
enum Memory {
    /// Blocks of a responder, by key and queue pair.
    Software { rkey: u32, qpn: u32 },
    /// Memory that the switch has mapped.
    Shared {
        mapping: Arc<Mapping>,
        stride: usize,
    },
    /// Memory that a NIC writes.
    #[cfg(feature = "verbs")]
    Nic(crate::verbs::Connected),
}

/// A block's memory while its owner is a writer.
enum Taken {
    Software(crate::memory::BlockMemory),
    Shared,
    #[cfg(feature = "verbs")]
    Nic,
}

/// What a writer thread reports.
struct Done {
    job: u64,
    block: Writable,
    outcome: Result<(), StoreError>,
}

/// What a job was for.
struct Job {
    number: u64,
    /// The relay's place of the block, and what it held; definitions have none.
    block: Option<(usize, BlockFull, u64)>,
}

struct Session<'a> {
    inner: &'a Arc<Inner>,
    hello: Hello,
    memory: Memory,
    stream: RelayStream,
    /// Full blocks that wait for stragglers.
    full: VecDeque<(BlockFull, Instant)>,
    next_block: u64,
    next_seq: u64,
    definitions: Vec<u8>,
    /// In the order in which they were given to writers.
    jobs: VecDeque<Job>,
    next_job: u64,
    finished: BTreeSet<u64>,
    done: Receiver<Done>,
    to_done: Sender<Done>,
    progress: Progress,
    durable_seq: u64,
    failure: Option<StoreError>,
}

pub(super) fn serve(inner: &Arc<Inner>, stream: TcpStream, full: bool) -> Result<(), RelayError> {
    let local = stream
        .local_addr()
        .map_err(io_error("control connection"))?;
    let peer = stream.peer_addr().map_err(io_error("control connection"))?;
    let tls = inner.options.tls.as_ref().map(|tls| tls.connection());
    let tls = tls.transpose().map_err(|error| RelayError::Tls {
        file: peer.to_string(),
        problem: error.to_string(),
    })?;
    let tls = tls.map(rustls::Connection::Server);
    let mut channel = Channel::new(stream, tls).map_err(io_error("control connection"))?;
    let hello = match channel.wait(HELLO_LIMIT)? {
        Message::Hello(hello) => *hello,
        other => return Err(protocol(&channel, format!("{other:?} for a hello"))),
    };
    let refuse = |channel: &mut Channel, reason: String| -> RelayError {
        // If that cannot be sent either, the switch finds out by itself.
        let _ = channel.send(&Message::Refused(reason.clone()));
        std::thread::sleep(Duration::from_millis(50));
        let _ = channel.poll();
        RelayError::Refused(reason)
    };
    if full {
        let most = inner.options.switches_max;
        let reason = format!("it serves {most} switches, and no more (--switches)");
        return Err(refuse(&mut channel, reason));
    }
    let (mut session, welcome) = match Session::begin(inner, hello, local, peer) {
        Ok(begun) => begun,
        Err(error) => return Err(refuse(&mut channel, error.to_string())),
    };
    let welcomed = channel.send(&Message::Welcome(Box::new(welcome)));
    let served = welcomed.and_then(|()| session.run(&mut channel));
    let failure = served.as_ref().err().map(ToString::to_string);
    session.leave(served.is_err())?;
    if let Err(RelayError::Store(_)) = &served {
        let _ = refuse(&mut channel, failure.unwrap_or_default());
    }
    served
}

fn protocol(channel: &Channel, problem: String) -> RelayError {
    RelayError::Protocol {
        peer: channel.peer().to_owned(),
        problem,
    }
}

impl<'a> Session<'a> {
    fn begin(
        inner: &'a Arc<Inner>,
        hello: Hello,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<(Self, Welcome), RelayError> {
        if hello.first_block >= NUMBER_MAX || hello.first_seq >= NUMBER_MAX {
            let reason = "numbers of blocks and packets begin at small ones";
            return Err(RelayError::Refused(reason.into()));
        }
        let stream = inner.log.stream(StreamOptions {
            about: About {
                program: hello.program.clone(),
                inputs: hello.inputs.clone(),
                filter: hello.filter.clone(),
                mode: hello.mode.clone(),
                model: hello.model.clone(),
                model_json: hello.model_json.clone().into_bytes(),
                classes: hello.classes.clone(),
                hash_seed: hello.hash_seed,
            },
            session: hello.session.clone(),
            worker: hello.worker,
            rotate_bytes: inner.options.rotate_bytes,
        })?;
        let (block_bytes, blocks) = (inner.options.block_bytes, inner.options.blocks.max(2));
        let (memory, path, block_stride) = memory(inner, &hello, local, peer)?;
        let welcome = Welcome {
            recording: stream.recording(),
            block_bytes,
            block_stride,
            blocks,
            path,
        };
        let (to_done, done) = mpsc::channel();
        let session = Self {
            inner,
            memory,
            stream,
            full: VecDeque::new(),
            next_block: hello.first_block,
            next_seq: hello.first_seq,
            definitions: Vec::new(),
            jobs: VecDeque::new(),
            next_job: 0,
            finished: BTreeSet::new(),
            done,
            to_done,
            progress: Progress::default(),
            durable_seq: hello.first_seq,
            failure: None,
            hello,
        };
        Ok((session, welcome))
    }

    /// Works until the switch has ended its recording, or is lost.
    fn run(&mut self, channel: &mut Channel) -> Result<(), RelayError> {
        let mut heard = Instant::now();
        loop {
            let mut worked = false;
            while let Some(message) = channel.poll()? {
                worked = true;
                heard = Instant::now();
                if let Message::End(end) = message {
                    self.drain(channel)?;
                    let ledger = end.books.as_ref().map(Ledger::from);
                    let books = ledger.as_ref().map(|ledger| (ledger, end.warnings));
                    self.checkpoint()?;
                    self.stream.end(books)?;
                    return channel.send(&Message::Ended);
                }
                self.take(channel, message)?;
            }
            worked |= self.write_arrived()?;
            worked |= self.collect(Duration::ZERO, Some(&mut *channel))?;
            if self.inner.stopped() {
                return Err(RelayError::Refused("the relay is stopping".into()));
            }
            if heard.elapsed() > SILENCE_MAX {
                let peer = channel.peer().to_owned();
                return Err(RelayError::Closed { peer });
            }
            if !worked {
                self.collect(REST, Some(&mut *channel))?;
            }
        }
    }

    fn take(&mut self, channel: &Channel, message: Message) -> Result<(), RelayError> {
        match message {
            Message::Definitions(records) => {
                if !are_definitions(&records) {
                    return Err(protocol(channel, "definitions that are none".into()));
                }
                self.definitions.extend(records);
                if self.definitions.len() > DEFINITIONS_MAX {
                    let problem = format!("more than {DEFINITIONS_MAX} bytes of definitions");
                    return Err(protocol(channel, problem));
                }
            }
            Message::BlockFull(full) => {
                let expected = self.next_block + self.full.len() as u64;
                let fits = full.used as usize <= self.inner.options.block_bytes;
                let waiting = self.full.back().map(|(full, _)| full.next_seq);
                let in_order = full.first_seq >= waiting.unwrap_or(self.next_seq);
                if full.block != expected
                    || !fits
                    || !in_order
                    || full.next_seq < full.first_seq
                    || full.next_seq >= NUMBER_MAX
                {
                    return Err(protocol(channel, format!("{full:?} at this point")));
                }
                if self.full.len() >= self.inner.options.blocks.max(2) {
                    return Err(protocol(channel, "more full blocks than there are".into()));
                }
                self.full.push_back((full, Instant::now()));
            }
            Message::Progress(progress) => {
                self.progress = progress;
                self.checkpoint()?;
            }
            other => return Err(protocol(channel, format!("{other:?} of a switch"))),
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), RelayError> {
        let progress = &self.progress;
        let seen = (progress.seen_packets, progress.seen_bytes);
        let next = progress.next_seq.max(self.durable_seq);
        Ok(self.stream.checkpoint(next, self.durable_seq, seen)?)
    }

    /// Hands full blocks whose packets have arrived to the writers.
    fn write_arrived(&mut self) -> Result<bool, RelayError> {
        let mut worked = false;
        while let Some(&(full, since)) = self.full.front() {
            if !self.arrived(full.end_psn) && since.elapsed() < STRAGGLERS {
                break;
            }
            self.full.pop_front();
            self.write_block(full, false)?;
            worked = true;
        }
        Ok(worked)
    }

    /// Whether every packet before this sequence number has been seen.
    fn arrived(&self, end_psn: u32) -> bool {
        match &self.memory {
            Memory::Software { qpn, .. } => {
                let wire = self.inner.wire();
                let qp = wire.responder.queue_pair(*qpn);
                qp.is_none_or(|qp| qp.expected().since(Psn::new(end_psn)) >= 0)
            }
            // A copy is done before it is announced.
            Memory::Shared { .. } => true,
            // So is an acknowledged write; unreliable ones get their time.
            #[cfg(feature = "verbs")]
            Memory::Nic(connected) => connected.is_reliable(),
        }
    }

    fn place(&self, number: u64) -> usize {
        let turn = (number - self.hello.first_block) % self.inner.options.blocks.max(2) as u64;
        usize::try_from(turn).unwrap_or(0)
    }

    /// Takes a block from the switch and hands it to the writers.
    fn write_block(&mut self, full: BlockFull, salvaged: bool) -> Result<(), RelayError> {
        let place = self.place(full.block);
        let header = RelayedHeader {
            salvaged,
            block_number: full.block,
            recording: self.stream.recording(),
            worker: self.hello.worker,
            used: full.used,
            key: self.hello.key,
            first_seq: full.first_seq,
            next_seq: full.next_seq,
            packets: full.packets,
            segments: full.segments,
            hash_seed: self.hello.hash_seed,
        };
        self.write_definitions(header.stored_len() as u64)?;
        let block = match self.take_memory(place) {
            Some(Taken::Software(mut memory)) => {
                memory.seal(&header);
                Writable::Block(memory)
            }
            Some(Taken::Shared) => match &self.memory {
                Memory::Shared { mapping, stride } => {
                    Writable::Shared(SharedBlock::seal(mapping, place * stride, &header))
                }
                _ => return Ok(()),
            },
            #[cfg(feature = "verbs")]
            Some(Taken::Nic) => match &self.memory {
                Memory::Nic(connected) => Writable::Shared(connected.seal(place, &header)),
                _ => return Ok(()),
            },
            // The switch has announced a block that is on its way to disk.
            None => return Err(RelayError::Refused("a block that was not its".into())),
        };
        self.next_block = full.block + 1;
        self.next_seq = full.next_seq;
        let bytes = header.stored_len() as u64;
        self.give(block, Some((place, full, bytes)))
    }

    fn take_memory(&self, place: usize) -> Option<Taken> {
        match &self.memory {
            Memory::Software { rkey, .. } => {
                let mut wire = self.inner.wire();
                let region = wire.responder.region_mut(*rkey)?;
                region.memory.take(place).map(Taken::Software)
            }
            Memory::Shared { .. } => self.is_free(place).then_some(Taken::Shared),
            #[cfg(feature = "verbs")]
            Memory::Nic(_) => self.is_free(place).then_some(Taken::Nic),
        }
    }

    /// Whether no writer has this block.
    fn is_free(&self, place: usize) -> bool {
        let mut jobs = self.jobs.iter().filter_map(|job| job.block);
        !jobs.any(|(at, _, _)| at == place)
    }

    /// Writes what is to be defined before a block of so many bytes.
    fn write_definitions(&mut self, before: u64) -> Result<(), RelayError> {
        let records = std::mem::take(&mut self.definitions);
        match self.stream.definitions(&records, before)? {
            Some(block) => self.give(Writable::Definitions(Box::new(block)), None),
            None => Ok(()),
        }
    }

    fn give(
        &mut self,
        block: Writable,
        of: Option<(usize, BlockFull, u64)>,
    ) -> Result<(), RelayError> {
        let len = block.bytes().len() as u64;
        let packets = of.map(|(_, full, _)| full.packets);
        let placed = self.stream.place(len, packets)?;
        let number = self.next_job;
        self.next_job += 1;
        self.jobs.push_back(Job { number, block: of });
        let to_done = self.to_done.clone();
        let done = move |block: Writable, outcome| {
            // The session waits for all of its jobs.
            let _ = to_done.send(Done {
                job: number,
                block,
                outcome,
            });
        };
        self.inner.writers.write(placed, block, Box::new(done));
        Ok(())
    }

    /// Takes blocks back from the writers, and tells the switch of those before which
    /// nothing is missing on disk.
    fn collect(
        &mut self,
        wait: Duration,
        mut channel: Option<&mut Channel>,
    ) -> Result<bool, RelayError> {
        let mut worked = false;
        while let Ok(done) = self
            .done
            .recv_timeout(if worked { Duration::ZERO } else { wait })
        {
            worked = true;
            self.give_back(&done.job, done.block);
            match done.outcome {
                Ok(()) => {
                    self.finished.insert(done.job);
                }
                Err(error) => {
                    self.failure.get_or_insert(error);
                }
            }
        }
        while let Some(job) = self.jobs.front()
            && self.finished.remove(&job.number)
        {
            if let Some((_, full, bytes)) = job.block {
                self.durable_seq = full.next_seq;
                let counters = &self.inner.counters;
                counters.blocks.fetch_add(1, Ordering::Relaxed);
                counters.bytes.fetch_add(bytes, Ordering::Relaxed);
                if let Some(channel) = channel.as_deref_mut() {
                    channel.send(&Message::BlockStored(full.block))?;
                }
            }
            self.jobs.pop_front();
        }
        match self.failure.take() {
            Some(error) => Err(error.into()),
            None => Ok(worked),
        }
    }

    fn give_back(&self, job: &u64, block: Writable) {
        let job = self.jobs.iter().find(|known| known.number == *job);
        let place = job.and_then(|job| job.block).map(|(place, _, _)| place);
        if let (Memory::Software { rkey, .. }, Some(place), Writable::Block(memory)) =
            (&self.memory, place, block)
        {
            let mut wire = self.inner.wire();
            if let Some(region) = wire.responder.region_mut(*rkey) {
                region.memory.give_back(place, memory);
            }
        }
    }

    /// Writes all that was announced, and waits for it.
    fn drain(&mut self, channel: &mut Channel) -> Result<(), RelayError> {
        while !self.full.is_empty() {
            if !self.write_arrived()? {
                std::thread::sleep(REST);
            }
            self.collect(Duration::ZERO, Some(&mut *channel))?;
        }
        self.write_definitions(0)?;
        while !self.jobs.is_empty() {
            self.collect(Duration::from_millis(10), Some(&mut *channel))?;
        }
        Ok(())
    }

    /// The connection is over: what a lost switch has left in memory goes to disk.
    fn leave(mut self, lost: bool) -> Result<(), RelayError> {
        let mut result = Ok(());
        if lost {
            result = self.salvage();
        }
        while !self.jobs.is_empty() {
            // Each job is reported, whatever became of it.
            match self.done.recv() {
                Ok(done) => {
                    self.give_back(&done.job, done.block);
                    self.jobs.retain(|job| job.number != done.job);
                    if let Err(error) = done.outcome {
                        result = result.and(Err(error.into()));
                    }
                }
                Err(_) => break,
            }
        }
        match &self.memory {
            Memory::Software { rkey, qpn } => {
                let mut wire = self.inner.wire();
                wire.peers.remove(qpn);
                wire.responder.disconnect(*qpn);
                wire.responder.deregister(*rkey);
            }
            Memory::Shared { .. } => {}
            #[cfg(feature = "verbs")]
            Memory::Nic(_) => {}
        }
        if lost {
            let checked = self.checkpoint();
            let ended = self.stream.end(None).map_err(RelayError::from);
            result = result.and(checked).and(ended);
        }
        result
    }

    fn salvage(&mut self) -> Result<(), RelayError> {
        let deadline = Instant::now() + STRAGGLERS;
        while let Some((full, _)) = self.full.pop_front() {
            while !self.arrived(full.end_psn) && Instant::now() < deadline {
                std::thread::sleep(REST);
            }
            self.write_block(full, false)?;
        }
        // Packets of blocks that were not announced may still be under way.
        std::thread::sleep(STRAGGLERS);
        let definitions = std::mem::take(&mut self.definitions);
        for _ in 0..self.inner.options.blocks.max(2) {
            let number = self.next_block;
            let Some(used) = self.used(number) else {
                break;
            };
            if used == 0 {
                break;
            }
            // Definitions alone are of no use.
            self.definitions.extend_from_slice(&definitions);
            self.inner.counters.salvaged.fetch_add(1, Ordering::Relaxed);
            let full = BlockFull {
                block: number,
                used: u32::try_from(used).unwrap_or(0),
                first_seq: self.next_seq,
                next_seq: self.next_seq,
                ..BlockFull::default()
            };
            self.write_block(full, true)?;
        }
        Ok(())
    }

    /// Bytes of the block of this number up to its last segment; `None` if a writer
    /// has it.
    fn used(&self, number: u64) -> Option<usize> {
        let place = self.place(number);
        #[allow(clippy::cast_possible_truncation)]
        let end = |bytes: &[u8]| {
            let segments = Segments::new(bytes, self.hello.key, number as u32);
            segments.last().map_or(0, |(range, _)| range.end)
        };
        match &self.memory {
            Memory::Software { rkey, .. } => {
                let mut wire = self.inner.wire();
                let region = wire.responder.region_mut(*rkey)?;
                let memory = region.memory.take(place)?;
                let used = end(memory.segments());
                region.memory.give_back(place, memory);
                Some(used)
            }
            Memory::Shared { mapping, stride } => {
                let bytes = self.inner.options.block_bytes;
                let copy = copy_segments(mapping, place * stride, bytes);
                self.is_free(place).then(|| end(&copy))
            }
            #[cfg(feature = "verbs")]
            Memory::Nic(connected) => {
                let free = self.is_free(place);
                free.then(|| end(&connected.copy_segments(place)))
            }
        }
    }
}

/// Makes the memory of a switch, and says where it is.
fn memory(
    inner: &Arc<Inner>,
    hello: &Hello,
    local: SocketAddr,
    peer: SocketAddr,
) -> Result<(Memory, WelcomePath, usize), RelayError> {
    let (block_bytes, blocks) = (inner.options.block_bytes, inner.options.blocks.max(2));
    let memory = Blocks::new(blocks, block_bytes);
    let stride = memory.stride();
    let (reliable, peer_number, psn, port, mtu) = match hello.path {
        HelloPath::SharedMemory => {
            let mapping = Mapping::create(stride * blocks).map_err(io_error("shared memory"))?;
            let mapping = Arc::new(mapping);
            let path = WelcomePath::SharedMemory {
                path: mapping.path(),
            };
            return Ok((Memory::Shared { mapping, stride }, path, stride));
        }
        HelloPath::Rdma {
            reliable,
            qpn,
            psn,
            port,
            mtu,
        } => (reliable, qpn, psn, port, mtu),
    };
    if ![256, 512, 1024, 2048, 4096].contains(&mtu) {
        return Err(RelayError::Refused(format!("{mtu} is no RDMA MTU")));
    }
    #[cfg(feature = "verbs")]
    if let Some(device) = &inner.device {
        let connected = device.connect(&crate::verbs::Switch {
            reliable,
            qpn: peer_number,
            psn,
            mtu,
            address: peer.ip(),
            blocks,
            stride,
        })?;
        let path = connected.welcome();
        return Ok((Memory::Nic(connected), path, stride));
    }
    let number = inner.next_qpn.fetch_add(1, Ordering::Relaxed);
    let rkey = rkey()?;
    let access = Access {
        write: true,
        atomic: true,
    };
    let qp = QueuePairOptions {
        number,
        peer_number,
        peer: unmapped(peer.ip()),
        service: if reliable { Service::Rc } else { Service::Uc },
        first_psn: Psn::new(psn),
        mtu,
        domain: number,
        access,
    };
    let from = SocketAddr::new(unmapped(peer.ip()), port);
    let to = SocketAddr::new(unmapped(local.ip()), inner.rdma_port);
    let both = IcrcCheck::new(from, to).zip(outer(to, from));
    let (check, back) =
        both.ok_or_else(|| RelayError::Refused("addresses of two families".into()))?;
    let mut wire = inner.wire();
    wire.responder.register(Region {
        rkey,
        va: VA,
        len: (stride * blocks) as u64,
        domain: number,
        access,
        memory,
    });
    wire.responder.connect(qp);
    wire.peers.insert(
        number,
        Peer {
            address: from,
            icrcs: icrc::Stream::new(back),
            check,
        },
    );
    let path = WelcomePath::Rdma {
        qpn: number,
        rkey,
        va: VA + strata_store::SEGMENTS_AT as u64,
        mtu,
        port: inner.rdma_port,
        psn: 0,
    };
    Ok((Memory::Software { rkey, qpn: number }, path, stride))
}

/// An IPv4 address as such, also where a socket for both families has it.
fn unmapped(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn rkey() -> Result<u32, RelayError> {
    getrandom::u32().map_err(|error| RelayError::Io {
        what: "random numbers".into(),
        source: std::io::Error::other(error),
    })
}
