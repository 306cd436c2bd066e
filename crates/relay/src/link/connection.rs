//! One connection to a relay: control channel, queue pair, the blocks in use.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use strata_rdma::RequesterCounters;
use strata_roce::udp::UdpPort;
use strata_store::{BlockTally, Progress as WorkerProgress};
use strata_wire::roce::{MASK_24, Service, UDP_PORT};
use strata_wire::segment::{BlockWriter, PacketInfo};

use crate::CONTROL_PORT;
use crate::control::{
    BODY_LEN_MAX, Begin, BlockFull, Channel, End, Hello, HelloPath, Message, Progress, Welcome,
    WelcomePath, nonce, random,
};
use crate::error::{RelayError, io_error};
use crate::secret::Prover;

use super::road::Road;
use super::{LinkOptions, Transport, unexpected};

/// How long a relay may take to connect and to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How often the relay is told how far the worker is.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Headers of a packet around an RDMA payload: IPv6, UDP, BTH, RETH, ICRC.
const OVERHEAD: usize = 40 + 8 + 12 + 16 + 4;
/// Definitions are sent before there are more.
const DEFINITIONS_MAX: usize = 1 << 20;

/// A block that is being filled, or is full and not known to be on disk.
struct Block {
    number: u64,
    /// Which of the relay's blocks it is.
    place: usize,
    full: BlockFull,
    tally: BlockTally,
    /// Once so many RDMA packets have settled, all of it has arrived.
    end: u64,
    begun: Instant,
}

pub(super) struct Connection {
    channel: Channel,
    welcome: Welcome,
    road: Road,
    writer: BlockWriter,
    first_block: u64,
    next_block: u64,
    next_seq: u64,
    open: Option<Block>,
    /// Full, and not announced.
    closing: VecDeque<Block>,
    /// Announced, and not confirmed.
    announced: VecDeque<Block>,
    definitions: Vec<u8>,
    started: Instant,
    /// The time of the last look at the answers: what is posted before the next one
    /// counts as posted then, since a clock per packet would cost as much as its copy.
    now_ns: u64,
    last_progress: Instant,
    /// When the relay last said anything, and when it last had stored something, or had
    /// nothing to store.
    heard: Instant,
    moved: Instant,
    counted: (u64, u64),
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]:PORT` as host and port.
fn host_and_port(text: &str) -> (&str, u16) {
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => match port.parse() {
            Ok(port) => (host, port),
            Err(_) => (text, CONTROL_PORT),
        },
        _ => (text, CONTROL_PORT),
    }
}

fn connect(options: &LinkOptions) -> Result<TcpStream, RelayError> {
    let relay = &options.relay;
    let is_protected = options.tls.is_some() || options.secret.is_some() || options.insecure;
    let (host, port) = host_and_port(relay);
    let bare = host.trim_matches(['[', ']']);
    let addresses = (bare, port).to_socket_addrs();
    let addresses = addresses.map_err(io_error(format!("{relay}: cannot find the relay")))?;
    let mut last = None;
    for address in addresses {
        if !is_protected && !address.ip().to_canonical().is_loopback() {
            let peer = address.to_string();
            return Err(RelayError::Unprotected { peer });
        }
        match TcpStream::connect_timeout(&address, ANSWER_LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    let none = || std::io::ErrorKind::NotFound.into();
    Err(io_error(format!(
        "{relay}: cannot connect; is `strata relay` running there?"
    ))(last.unwrap_or_else(none)))
}

/// The largest RDMA MTU whose packets the path to `relay` takes unfragmented.
fn path_mtu(local: IpAddr, relay: SocketAddr) -> usize {
    let probe = || -> std::io::Result<usize> {
        let socket = UdpSocket::bind((local, 0))?;
        socket.connect(relay)?;
        strata_roce::udp::path_mtu(&socket)
    };
    let bytes = probe().unwrap_or(1500);
    let fits = |mtu: &usize| mtu + OVERHEAD <= bytes;
    [4096, 2048, 1024, 512]
        .into_iter()
        .find(fits)
        .unwrap_or(256)
}

/// How a switch comes in.
struct Entry<'a> {
    channel: &'a mut Channel,
    options: &'a LinkOptions,
    /// By then the relay has answered.
    end: Instant,
    interrupted: &'a dyn Fn() -> bool,
}

impl Entry<'_> {
    /// What the relay answers, its refusals as errors.
    fn answer(&mut self) -> Result<Message, RelayError> {
        let left = self.end.saturating_duration_since(Instant::now());
        let is_plain = self.options.tls.is_none();
        match self.channel.wait(left, self.interrupted) {
            Ok(Message::Refused(reason)) => Err(RelayError::Refused(reason)),
            Ok(Message::Failed(reason)) => Err(RelayError::Failed(reason)),
            Err(RelayError::Closed { peer }) if is_plain => Err(RelayError::HungUp { peer }),
            Err(RelayError::Io { source, .. })
                if is_plain && source.kind() == std::io::ErrorKind::ConnectionReset =>
            {
                let peer = self.channel.peer().to_owned();
                Err(RelayError::HungUp { peer })
            }
            answer => answer,
        }
    }

    /// Says something. If it cannot be sent, the relay has perhaps said why.
    fn say(&mut self, message: &Message) {
        let _ = self.channel.send(message);
    }

    /// Hello, proofs, and what is recorded.
    fn enter(&mut self, mut begin: Begin) -> Result<Welcome, RelayError> {
        begin.shorten();
        begin.check().map_err(RelayError::Refused)?;
        let model = &self.options.about.model_json;
        if model.len() > BODY_LEN_MAX {
            return Err(RelayError::Refused(format!(
                "the model has {} bytes: a relay takes {BODY_LEN_MAX}",
                model.len()
            )));
        }
        let hello = Hello {
            session: self.options.session.clone(),
            worker: self.options.worker,
            nonce: nonce()?,
            secret: self.options.secret.is_some(),
        };
        self.say(&Message::Hello(Box::new(hello.clone())));
        let challenge = match self.answer()? {
            Message::Challenge(challenge) => challenge,
            other => return Err(protocol(self.channel, &unexpected(&other))),
        };
        let impostor = |channel: &Channel| RelayError::Impostor {
            peer: channel.peer().to_owned(),
        };
        if let Some(secret) = &self.options.secret {
            if !challenge.secret {
                return Err(impostor(self.channel));
            }
            let proof = secret.proof(Prover::Switch, &hello, &challenge);
            self.say(&Message::Proof(proof));
            match self.answer()? {
                Message::Proof(proof)
                    if secret.is_proof(Prover::Relay, &hello, &challenge, &proof) => {}
                Message::Proof(_) => return Err(impostor(self.channel)),
                other => return Err(protocol(self.channel, &unexpected(&other))),
            }
        }
        self.say(&Message::Model(model.clone()));
        self.say(&Message::Begin(Box::new(begin)));
        match self.answer()? {
            Message::Welcome(welcome) => Ok(*welcome),
            other => Err(protocol(self.channel, &unexpected(&other))),
        }
    }
}

impl Connection {
    pub(super) fn open(
        options: &LinkOptions,
        first_block: u64,
        first_seq: u64,
        interrupted: impl Fn() -> bool,
    ) -> Result<Self, RelayError> {
        let end = Instant::now() + ANSWER_LIMIT;
        let stream = connect(options)?;
        let what = || format!("{}: connection", options.relay);
        let local = stream.local_addr().map_err(io_error(what()))?;
        let relay = stream.peer_addr().map_err(io_error(what()))?;
        let tls = options.tls.as_ref();
        let tls = tls.map(|tls| tls.connection(host_and_port(&options.relay).0));
        let tls = tls.transpose()?.map(rustls::Connection::Client);
        let mut channel = Channel::new(stream, tls).map_err(io_error(what()))?;

        let mut udp = None;
        let path = match &options.transport {
            Transport::SharedMemory => HelloPath::SharedMemory,
            Transport::Udp(service) | Transport::Raw(service, _) => {
                // A NIC sends its answers to 4791; our relay to any port.
                let own = SocketAddr::new(local.ip(), UDP_PORT);
                let port = UdpPort::bind(own)
                    .or_else(|_| UdpPort::bind(SocketAddr::new(local.ip(), 0)))
                    .map_err(io_error(format!("{}: UDP socket", local.ip())))?;
                let bound = port.local_address().map_err(io_error("UDP socket"))?;
                udp = Some((port, bound));
                let numbers = random()?;
                #[allow(clippy::cast_possible_truncation)]
                HelloPath::Rdma {
                    reliable: *service == Service::Rc,
                    qpn: (numbers as u32 & MASK_24).max(2),
                    psn: (numbers >> 32) as u32 & MASK_24,
                    port: bound.port(),
                    mtu: path_mtu(local.ip(), relay),
                }
            }
        };
        let about = &options.about;
        #[allow(clippy::cast_possible_truncation)]
        let key = random()? as u32;
        let begin = Begin {
            program: about.program.clone(),
            inputs: about.inputs.clone(),
            filter: about.filter.clone(),
            mode: about.mode.clone(),
            model: about.model.clone(),
            classes: about.classes.clone(),
            hash_seed: about.hash_seed,
            key,
            first_block,
            first_seq,
            path: path.clone(),
        };
        let mut entry = Entry {
            channel: &mut channel,
            options,
            end,
            interrupted: &interrupted,
        };
        let welcome = entry.enter(begin)?;
        welcome
            .check()
            .map_err(|problem| protocol(&channel, &problem))?;
        let road = Road::new(options, &welcome, &path, udp, relay)?;
        let mtu = match &welcome.path {
            WelcomePath::Rdma { mtu, .. } => *mtu,
            WelcomePath::SharedMemory { .. } => 4096,
        };
        let writer = BlockWriter::new(key, options.layout, mtu, welcome.block_bytes);
        Ok(Self {
            channel,
            welcome,
            road,
            writer,
            first_block,
            next_block: first_block,
            next_seq: first_seq,
            open: None,
            closing: VecDeque::new(),
            announced: VecDeque::new(),
            definitions: Vec::new(),
            started: Instant::now(),
            now_ns: 0,
            last_progress: Instant::now(),
            heard: Instant::now(),
            moved: Instant::now(),
            counted: (0, 0),
        })
    }

    pub(super) fn recording(&self) -> u32 {
        self.welcome.recording
    }

    /// Number of the block that is begun next.
    pub(super) fn next_block(&self) -> u64 {
        self.next_block
    }

    /// Number of the block that is closed next: what is defined now goes before it.
    pub(super) fn next_block_to_close(&self) -> u64 {
        self.open
            .as_ref()
            .map_or(self.next_block, |open| open.number)
    }

    pub(super) fn counters(&self) -> RequesterCounters {
        self.road.counters()
    }

    /// The books of everything that is not known to be on the relay's disk.
    pub(super) fn unconfirmed(&self) -> BlockTally {
        let mut sum = BlockTally::default();
        let blocks = self.announced.iter().chain(&self.closing).chain(&self.open);
        for block in blocks {
            super::add(&mut sum, &block.tally);
        }
        sum
    }

    /// Whether nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_none() && self.closing.is_empty() && self.announced.is_empty()
    }

    /// How long the open block has been.
    pub(super) fn open_for(&self) -> Duration {
        let begun = self.open.as_ref().map(|open| open.begun.elapsed());
        begun.unwrap_or_default()
    }

    /// RDMA packets that wait to be sent.
    pub(super) fn gathered(&self) -> usize {
        self.road.gathered()
    }

    /// Segments and bytes since the last call.
    pub(super) fn take_counts(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.counted)
    }

    /// The books of the open block.
    ///
    /// # Panics
    ///
    /// If none is open: a packet was just pushed into it.
    pub(super) fn tally(&mut self) -> &mut BlockTally {
        &mut self.open.as_mut().expect("a block is open").tally
    }

    /// Sends a definition before the next block that is announced.
    pub(super) fn define(&mut self, record: &[u8]) {
        self.definitions.extend_from_slice(record);
    }

    /// Puts a packet into the open block, or a new one; false if there is no room
    /// for it now, in the window or among the blocks.
    pub(super) fn push(&mut self, info: &PacketInfo, packet: &[u8]) -> Result<bool, RelayError> {
        // One more for the message that a full block leaves unfinished.
        if self.road.room() < self.writer.messages_max(packet.len()) + 1 {
            return Ok(false);
        }
        if self.open.is_some() && !self.writer.fits(packet.len()) {
            self.close_block();
        }
        if self.open.is_none() && !self.begin_block() {
            return Ok(false);
        }
        if !self.writer.fits(packet.len()) {
            let bytes = packet.len();
            return Err(RelayError::PacketTooLarge { bytes });
        }
        let segments = self.writer.segments();
        let (now, place) = (self.now_ns, self.place());
        let mut bytes = 0;
        let road = &mut self.road;
        self.writer.push(info, packet, &mut |at, message| {
            bytes += message.len() as u64;
            road.post(place, at, message, now);
        });
        self.counted.0 += self.writer.segments() - segments;
        self.counted.1 += bytes;
        if let Some(open) = &mut self.open {
            open.full.packets += 1;
            open.full.next_seq = info.seq + 1;
        }
        self.next_seq = info.seq + 1;
        Ok(true)
    }

    /// Which of the relay's blocks the open one is, and how far they are apart.
    fn place(&self) -> (usize, usize) {
        let place = self.open.as_ref().map_or(0, |open| open.place);
        (place, self.welcome.block_stride)
    }

    fn begin_block(&mut self) -> bool {
        if self.closing.len() + self.announced.len() >= self.welcome.blocks {
            return false;
        }
        let number = self.next_block;
        self.next_block += 1;
        self.writer.begin(number);
        let turn = (number - self.first_block) % self.welcome.blocks as u64;
        self.open = Some(Block {
            number,
            place: usize::try_from(turn).unwrap_or(0),
            full: BlockFull {
                block: number,
                first_seq: self.next_seq,
                next_seq: self.next_seq,
                ..BlockFull::default()
            },
            tally: BlockTally::default(),
            end: 0,
            begun: Instant::now(),
        });
        true
    }

    /// The open block is full, or old enough. It stays open while the window has no
    /// room for its last message.
    pub(super) fn close_block(&mut self) {
        if self.road.room() == 0 {
            return;
        }
        self.gather_message();
        let Some(mut open) = self.open.take() else {
            return;
        };
        open.full.used = u32::try_from(self.writer.used()).unwrap_or(0);
        open.full.segments = self.writer.segments();
        (open.end, open.full.end_psn) = self.road.next();
        self.closing.push_back(open);
    }

    /// Posts the message that is being gathered.
    fn gather_message(&mut self) {
        if self.open.is_none() {
            return;
        }
        let (now, place) = (self.now_ns, self.place());
        let (road, bytes) = (&mut self.road, &mut self.counted.1);
        self.writer.flush(&mut |at, message| {
            *bytes += message.len() as u64;
            road.post(place, at, message, now);
        });
    }

    /// Sends everything, the message that is being gathered included.
    pub(super) fn flush_message(&mut self) -> Result<(), RelayError> {
        if self.road.room() > 0 {
            self.gather_message();
        }
        self.send()
    }

    /// Sends what was gathered.
    pub(super) fn send(&mut self) -> Result<(), RelayError> {
        self.road.send()
    }

    /// Takes answers, and lets time pass.
    pub(super) fn poll_answers(&mut self) -> Result<(), RelayError> {
        self.now_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.road.poll(self.now_ns)
    }

    /// Waits a little for something to come back.
    pub(super) fn wait(&mut self) -> Result<(), RelayError> {
        self.road.wait(Duration::from_micros(300))
    }

    /// Tells the relay of blocks that have arrived whole, and how far the worker is.
    pub(super) fn announce(&mut self, worker: &WorkerProgress) -> Result<(), RelayError> {
        if self.definitions.len() > DEFINITIONS_MAX {
            self.send_definitions()?;
        }
        let settled = self.road.settled();
        while let Some(block) = pop_if(&mut self.closing, |block| block.end <= settled) {
            self.send_definitions()?;
            self.channel.send(&Message::BlockFull(block.full))?;
            self.announced.push_back(block);
        }
        if self.last_progress.elapsed() >= PROGRESS_EVERY {
            self.last_progress = Instant::now();
            self.channel.send(&progress_of(worker))?;
        }
        if self.is_idle() {
            self.moved = Instant::now();
        }
        Ok(())
    }

    /// Says how far the worker was when this connection ended.
    pub(super) fn last_word(&mut self, worker: &WorkerProgress) {
        // If that cannot be sent, the relay knows what it was told before.
        let _ = self.channel.send(&progress_of(worker));
    }

    /// How long the relay has said nothing.
    pub(super) fn silent_for(&self) -> Duration {
        self.heard.elapsed()
    }

    /// How long the relay has stored nothing of what it was sent.
    pub(super) fn stuck_for(&self) -> Duration {
        self.moved.elapsed()
    }

    /// The error of a relay that does nothing for so long.
    pub(super) fn silent(&self, limit: Duration) -> RelayError {
        RelayError::Silent {
            peer: self.channel.peer().to_owned(),
            seconds: limit.as_secs(),
        }
    }

    fn send_definitions(&mut self) -> Result<(), RelayError> {
        if self.definitions.is_empty() {
            return Ok(());
        }
        let records = std::mem::take(&mut self.definitions);
        self.channel.send(&Message::Definitions(records))
    }

    /// The next block that the relay has on disk, with its books.
    pub(super) fn confirmed(&mut self) -> Result<Option<(u64, BlockTally)>, RelayError> {
        match self.hear()? {
            None => Ok(None),
            Some(Message::BlockStored(number)) => {
                let block = pop_if(&mut self.announced, |block| block.number == number);
                let block = block.ok_or_else(|| protocol(&self.channel, "a block out of turn"))?;
                self.moved = Instant::now();
                Ok(Some((number, block.tally)))
            }
            Some(other) => Err(protocol(&self.channel, &unexpected(&other))),
        }
    }

    /// What the relay has said, but that it is there.
    fn hear(&mut self) -> Result<Option<Message>, RelayError> {
        while let Some(message) = self.channel.poll()? {
            self.heard = Instant::now();
            match message {
                Message::Alive => {}
                Message::Refused(reason) => return Err(RelayError::Refused(reason)),
                Message::Failed(reason) => return Err(RelayError::Failed(reason)),
                other => return Ok(Some(other)),
            }
        }
        Ok(None)
    }

    /// Asks the relay to close the recording.
    pub(super) fn send_end(&mut self, mut end: End) -> Result<(), RelayError> {
        end.shorten();
        self.send_definitions()?;
        self.moved = Instant::now();
        self.channel.send(&Message::End(Box::new(end)))
    }

    /// Whether the relay has.
    pub(super) fn has_ended(&mut self) -> Result<bool, RelayError> {
        match self.hear()? {
            None => Ok(false),
            Some(Message::Ended) => Ok(true),
            Some(other) => Err(protocol(&self.channel, &unexpected(&other))),
        }
    }
}

fn progress_of(worker: &WorkerProgress) -> Message {
    Message::Progress(Progress {
        next_seq: worker.next_seq.load(Ordering::Relaxed),
        seen_packets: worker.seen_packets.load(Ordering::Relaxed),
        seen_bytes: worker.seen_bytes.load(Ordering::Relaxed),
    })
}

/// The first block, if it is as asked.
fn pop_if(blocks: &mut VecDeque<Block>, is: impl FnOnce(&Block) -> bool) -> Option<Block> {
    if blocks.front().is_some_and(is) {
        return blocks.pop_front();
    }
    None
}

fn protocol(channel: &Channel, problem: &str) -> RelayError {
    RelayError::Protocol {
        peer: channel.peer().to_owned(),
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_are_named_with_and_without_a_port() {
        assert_eq!(host_and_port("relay"), ("relay", 4791));
        assert_eq!(host_and_port("192.0.2.1:5000"), ("192.0.2.1", 5000));
        assert_eq!(host_and_port("[fd00::1]:5000"), ("[fd00::1]", 5000));
        assert_eq!(host_and_port("fd00::1"), ("fd00::1", 4791));
    }
}
