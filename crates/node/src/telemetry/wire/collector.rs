//! The role of a collector whose translator is elsewhere: its memory is written by RDMA, and asked by
//! other processes. Its CPU sees no report; the work of an RDMA NIC is done in software by a responder
//! behind a UDP socket.
//!
//! One thread does all of it. One translator at a time writes the store, since entries of a list are
//! numbered by it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use serde_json::json;
use strata_rdma::{
    Access, Memory, Psn, QueuePairOptions, Refused, Region, Replies, Responder, ResponderCounters,
};
use strata_relay::secret::Secret;
use strata_roce::icrc::{IcrcCheck, outer};
use strata_roce::udp::UdpPort;
use strata_sandbox::Owner;
use strata_sys::socket;
use strata_sys::words::WordsMut;
use strata_wire::exact;
use strata_wire::roce::{MASK_24, Packet, Service, icrc};

use super::super::fading::{FadeOptions, Fading};
use super::super::plan::{Manifest, Plan};
use super::super::store::{
    Locked, MANIFEST, STATUS, continued, ends, made, pretty, replace, unix_ns,
};
use super::connector::WINDOW;
use super::message::{
    ALIVE_EVERY, Begin, Challenge, CollectorError, FIRST_LEN_MAX, Hello, LEN_MAX, Lines, Message,
    Prover, SILENT_MAX, VERSION, Welcome, is_proof, nonce, proof,
};
use crate::error::{At as _, NodeError, Result};
use crate::handle::{Handle, Spec};
use crate::notice::{Notice, Tell};
use crate::sandbox::{Reach, give_up};

/// Connections at a time, of which one is a translator's.
const CONNECTIONS_MAX: usize = 16;
/// How long it may take to become one.
const ENTRY_LIMIT: Duration = Duration::from_secs(30);
/// How long one that was refused may take to read why.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
/// Runs of packets before connections are looked at again.
const ROUNDS: usize = 64;
/// Between looks at connections and counters that fade.
const TICK: Duration = Duration::from_millis(2);
/// The same while there is nothing to do.
const IDLE: Duration = Duration::from_millis(50);
/// Between descriptions of what was counted.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// The protection domain, of which there is one.
const DOMAIN: u32 = 1;
const ACCESS: Access = Access {
    write: true,
    atomic: true,
};

/// A telemetry collector whose translator is another process.
#[derive(Debug)]
pub struct TelemetryCollectorSpec {
    /// The store's directory; made if need be. The store itself is made as the first translator wants
    /// it.
    pub store: PathBuf,
    /// Bytes of memory that a translator may ask for.
    pub memory_max: u64,
    /// Where translators connect (TCP), and RoCEv2 packets arrive (UDP) at the same port.
    pub listen: SocketAddr,
    /// The secret that a translator must prove to know.
    pub secret: Option<Secret>,
    /// How counters become smaller, if they do.
    pub fade: Option<FadeOptions>,
    /// Who owns the store.
    pub owner: Owner,
    /// Whether to drop what is not needed once all is open.
    pub sandboxed: bool,
}

/// What a collector did.
#[derive(Clone, Copy, Debug)]
pub struct TelemetryCollectorOutcome {
    /// Connections of translators.
    pub connections: u64,
    /// Connections of others, and of translators that were refused.
    pub refused: u64,
    /// What the responder has counted.
    pub responder: ResponderCounters,
}

impl Spec for TelemetryCollectorSpec {
    type Running = ();
    type Outcome = TelemetryCollectorOutcome;

    fn start(self, stop: Arc<AtomicBool>, tell: Tell) -> Result<Handle<Self>> {
        let named = || format!("--listen {}", self.listen);
        let listener = TcpListener::bind(self.listen).at_with(named)?;
        listener.set_nonblocking(true).at_with(named)?;
        let listen = listener.local_addr().at_with(named)?;
        let rdma = SocketAddr::new(listen.ip(), listen.port());
        let port = UdpPort::bind(rdma).at_with(|| {
            format!("{rdma}: cannot receive RoCEv2 (UDP); is a relay or an RDMA driver there?")
        })?;
        let Locked { lock, found } = Locked::open(&self.store, &self.owner)?;
        let store = match found {
            Some((manifest, plan)) => {
                let memory = continued(&self.store, &manifest, &plan, false)?;
                Some(Store::new(manifest, plan, memory))
            }
            None => None,
        };
        if self.sandboxed {
            let reach = Reach {
                store: Some(&self.store),
                ..Reach::default()
            };
            give_up(&self.owner, &reach, CapabilitySet::empty(), &tell)?;
        }
        let notice = Notice::TelemetryCollecting {
            address: listen,
            store: self.store.clone(),
            continued: store.is_some(),
        };
        let now = Instant::now();
        let collector = Collector {
            fading: self.fade.map(|fade| Fading::new(fade, now)),
            spec: self,
            listen,
            listener,
            port,
            store,
            responder: Responder::new(),
            active: None,
            connections: Vec::new(),
            counters: Counters::default(),
            tell: Arc::clone(&tell),
            _lock: lock,
        };
        collector.write_status(true)?;
        tell(&notice);
        let stopped = Arc::clone(&stop);
        Handle::run((), stop, move || collector.serve(&stopped))
    }
}

/// Memory that is written by RDMA: whole words of 8 bytes, each of which readers find whole.
struct Written(WordsMut);

impl Memory for Written {
    fn write(&mut self, at: u64, bytes: &[u8]) -> std::result::Result<(), Refused> {
        let at = self.inside(at, bytes.len())?;
        self.0.write(at, bytes);
        Ok(())
    }

    fn update(
        &mut self,
        at: u64,
        change: &dyn Fn(u64) -> u64,
    ) -> std::result::Result<u64, Refused> {
        let at = self.inside(at, 8)?;
        let before = u64::from_ne_bytes(self.0.words().word(at));
        self.0.store(at, change(before));
        Ok(before)
    }
}

impl Written {
    /// A translator writes nothing else than whole words.
    fn inside(&self, at: u64, len: usize) -> std::result::Result<usize, Refused> {
        let at = usize::try_from(at).map_err(|_| Refused)?;
        let end = at.checked_add(len).ok_or(Refused)?;
        let is_whole = at.is_multiple_of(8) && len.is_multiple_of(8);
        match is_whole && end <= self.0.words().len() {
            true => Ok(at),
            false => Err(Refused),
        }
    }
}

/// The store, once there is one.
struct Store {
    manifest: Manifest,
    plan: Plan,
    /// While no translator is connected; else it is the responder's.
    memory: Option<Written>,
}

impl Store {
    fn new(manifest: Manifest, plan: Plan, memory: WordsMut) -> Self {
        Self {
            manifest,
            plan,
            memory: Some(Written(memory)),
        }
    }
}

/// What it counts apart from the responder.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    connections: u64,
    refused: u64,
    /// Packets that are not RoCEv2, of somebody else, or damaged.
    bad_packets: u64,
    /// Of queue pairs that are gone.
    before: ResponderCounters,
}

/// The translator that writes.
struct Active {
    instance: u64,
    peer: SocketAddr,
    qpn: u32,
    rkey: u32,
    /// Where answers go.
    answers: SocketAddr,
    icrcs: icrc::Stream,
    check: IcrcCheck,
}

/// How far a connection has come.
enum Stage {
    /// Nothing has come.
    Hello,
    /// It must prove that it knows the secret, or say that it has none.
    Proof(Hello, Challenge),
    /// It must say what it writes.
    Begin(Hello),
    /// It writes.
    Active,
    /// It was refused.
    Leaving(Instant),
}

struct Connection {
    lines: Lines,
    peer: SocketAddr,
    stage: Stage,
    began: Instant,
    said: Instant,
}

struct Collector {
    spec: TelemetryCollectorSpec,
    listen: SocketAddr,
    listener: TcpListener,
    port: UdpPort,
    store: Option<Store>,
    responder: Responder<Written>,
    active: Option<Active>,
    connections: Vec<Connection>,
    counters: Counters,
    fading: Option<Fading>,
    tell: Tell,
    /// Held as long as the store is written.
    _lock: File,
}

impl Collector {
    fn serve(mut self, stop: &AtomicBool) -> Result<TelemetryCollectorOutcome> {
        let mut replies = Replies::default();
        let (mut looked, mut described) = (Instant::now(), Instant::now());
        while !stop.load(Ordering::Relaxed) {
            self.wait()?;
            for _ in 0..ROUNDS {
                if self.respond(&mut replies)? == 0 {
                    break;
                }
            }
            let now = Instant::now();
            if now - looked >= TICK {
                looked = now;
                self.accept();
                self.look_at_connections();
                self.fade(now);
            }
            if now - described >= STATUS_EVERY {
                described = now;
                if let Err(error) = self.write_status(true) {
                    (self.tell)(&Notice::Warning(error.chain()));
                }
            }
        }
        (self.tell)(&Notice::Ending { failed: false });
        self.leave("it was ended");
        self.write_status(false)?;
        Ok(TelemetryCollectorOutcome {
            connections: self.counters.connections,
            refused: self.counters.refused,
            responder: self.responded(),
        })
    }

    fn wait(&self) -> Result<()> {
        let is_fading = self.fading.as_ref().is_some_and(Fading::is_going);
        let limit = if is_fading { TICK } else { IDLE };
        let connections = self.connections.iter().map(|one| one.lines.as_fd());
        let own = [self.port.as_fd(), self.listener.as_fd()];
        socket::wait_any(own.into_iter().chain(connections), limit).at("waiting for packets")
    }

    /// The work of an RDMA NIC: packets into memory, answers back. Returns how many runs there were.
    fn respond(&mut self, replies: &mut Replies) -> Result<usize> {
        let Self {
            port,
            responder,
            active,
            counters,
            ..
        } = self;
        let received = port.receive_with(&mut |source, place, bytes| {
            let known = active.as_mut().and_then(|active| {
                let packet = Packet::new_checked(bytes)?;
                let is_its = packet.dest_qp() == active.qpn && source.ip() == active.answers.ip();
                (is_its && active.check.is_right(source.port(), &packet, place)).then_some(packet)
            });
            match known {
                // Drops are silent, as in a NIC.
                Some(packet) => drop(responder.receive(source.ip(), &packet, replies)),
                None => counters.bad_packets += 1,
            }
        });
        responder.acknowledge(replies);
        if let Some(active) = active
            && !replies.packets.is_empty()
        {
            // Answers that cannot be sent count as lost.
            let _ = port.send_to(active.answers, &mut active.icrcs, &mut replies.packets);
        }
        replies.clear();
        received.at("receiving RoCEv2 packets")
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                    self.make_room();
                    match connection(stream, peer) {
                        Ok(connection) if self.connections.len() < CONNECTIONS_MAX => {
                            self.connections.push(connection);
                        }
                        Ok(_) | Err(_) => self.counters.refused += 1,
                    }
                }
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                // None is there; or the process has too many files open, and tries again.
                Err(_) => return,
            }
        }
    }

    /// Ends the oldest connection that has not shown who it is, if there are too many.
    fn make_room(&mut self) {
        if self.connections.len() < CONNECTIONS_MAX {
            return;
        }
        let is_stranger = |one: &Connection| !matches!(one.stage, Stage::Active | Stage::Begin(_));
        if let Some(oldest) = self.connections.iter().position(is_stranger) {
            self.connections.remove(oldest);
            self.counters.refused += 1;
        }
    }

    fn look_at_connections(&mut self) {
        for mut connection in std::mem::take(&mut self.connections) {
            match self.advance(&mut connection) {
                Ok(true) => self.connections.push(connection),
                Ok(false) => self.ended(&connection, None),
                Err(error) => self.ended(&connection, Some(&error)),
            }
        }
    }

    /// A connection is over.
    fn ended(&mut self, connection: &Connection, error: Option<&CollectorError>) {
        if !matches!(connection.stage, Stage::Active) {
            self.counters.refused += u64::from(!matches!(connection.stage, Stage::Leaving(_)));
            return;
        }
        // Unless it was replaced by another connection of the same translator.
        if self
            .active
            .as_ref()
            .is_some_and(|active| active.peer == connection.peer)
        {
            let why = match error {
                Some(error) => error.to_string(),
                None => format!("translator {}: has ended", connection.peer),
            };
            self.leave(&why);
        }
    }

    /// The translator is gone: nobody writes from now on.
    fn leave(&mut self, why: &str) {
        let Some(active) = self.active.take() else {
            return;
        };
        if let Some(pair) = self.responder.disconnect(active.qpn) {
            add(&mut self.counters.before, &pair.counters());
        }
        let region = self.responder.deregister(active.rkey);
        if let (Some(store), Some(region)) = (&mut self.store, region) {
            store.memory = Some(region.memory);
        }
        (self.tell)(&Notice::Translator {
            address: active.peer,
            gone: Some(why.to_owned()),
        });
    }

    /// Processes what has come; whether the connection goes on.
    fn advance(
        &mut self,
        connection: &mut Connection,
    ) -> std::result::Result<bool, CollectorError> {
        while let Some(message) = connection.lines.poll()? {
            let stage = std::mem::replace(&mut connection.stage, Stage::Hello);
            connection.stage = match (stage, message) {
                (stage @ Stage::Leaving(_), _) => stage,
                (Stage::Hello, Message::Hello(hello)) => self.challenge(connection, hello)?,
                (Stage::Proof(hello, challenge), Message::Proof(digits)) => {
                    self.prove(connection, hello, &challenge, &digits)?
                }
                (Stage::Begin(hello), Message::Begin(begin)) => {
                    self.begin(connection, &hello, &begin)?
                }
                (stage, Message::Alive) => stage,
                (Stage::Active, Message::End) => {
                    connection.stage = Stage::Active;
                    return Ok(false);
                }
                (stage, _) => {
                    connection.stage = stage;
                    return Err(connection.lines.not_understood("a message out of turn"));
                }
            };
        }
        if let Stage::Leaving(since) = connection.stage {
            return Ok(since.elapsed() < LEAVE_LIMIT);
        }
        let limit = match connection.stage {
            Stage::Active => SILENT_MAX,
            _ => ENTRY_LIMIT,
        };
        let since = match connection.stage {
            Stage::Active => connection.lines.heard(),
            _ => connection.began,
        };
        if since.elapsed() > limit {
            let peer = connection.lines.peer().to_owned();
            return Err(CollectorError::Silent { peer, limit });
        }
        if matches!(connection.stage, Stage::Active) && connection.said.elapsed() >= ALIVE_EVERY {
            connection.said = Instant::now();
            connection.lines.send(&Message::Alive)?;
        }
        Ok(true)
    }

    fn refuse(
        &mut self,
        connection: &mut Connection,
        reason: String,
    ) -> std::result::Result<Stage, CollectorError> {
        self.counters.refused += 1;
        connection.lines.send(&Message::Refused(reason))?;
        Ok(Stage::Leaving(Instant::now()))
    }

    fn challenge(
        &mut self,
        connection: &mut Connection,
        hello: Hello,
    ) -> std::result::Result<Stage, CollectorError> {
        if hello.version != VERSION {
            let reason = format!(
                "it speaks version {VERSION} of the protocol, and this translator version {}: use the \
                 same version of Strata at both ends",
                hello.version
            );
            return self.refuse(connection, reason);
        }
        if hello.secret && self.spec.secret.is_none() {
            let reason = "it has no secret to prove: start it with --secret-file too".to_owned();
            return self.refuse(connection, reason);
        }
        let Ok(nonce) = nonce() else {
            return self.refuse(connection, "it has no random numbers".to_owned());
        };
        let challenge = Challenge {
            version: VERSION,
            nonce,
            secret: self.spec.secret.is_some(),
        };
        connection
            .lines
            .send(&Message::Challenge(challenge.clone()))?;
        Ok(Stage::Proof(hello, challenge))
    }

    fn prove(
        &mut self,
        connection: &mut Connection,
        hello: Hello,
        challenge: &Challenge,
        digits: &str,
    ) -> std::result::Result<Stage, CollectorError> {
        let secret = self.spec.secret.as_ref();
        let knows = |secret| is_proof(secret, Prover::Translator, &hello, challenge, digits);
        if secret.is_some_and(|secret| !knows(secret)) {
            let reason = "the translator does not know the secret of --secret-file".to_owned();
            return self.refuse(connection, reason);
        }
        if let Some(reason) = self.taken(&hello) {
            return self.busy(connection, reason);
        }
        let ours = proof(secret, Prover::Collector, &hello, challenge);
        connection.lines.set_len_max(LEN_MAX);
        connection.lines.send(&Message::Store {
            proof: ours,
            manifest: self.store.as_ref().map(|store| store.manifest.text()),
        })?;
        Ok(Stage::Begin(hello))
    }

    /// Why this translator cannot write now, if another one does.
    fn taken(&self, hello: &Hello) -> Option<String> {
        let other = self.active.as_ref();
        let other = other.filter(|active| active.instance != hello.instance)?;
        Some(format!(
            "the translator {} writes its store: end it first, or name another collector",
            other.peer
        ))
    }

    fn busy(
        &mut self,
        connection: &mut Connection,
        reason: String,
    ) -> std::result::Result<Stage, CollectorError> {
        self.counters.refused += 1;
        connection.lines.send(&Message::Busy(reason))?;
        Ok(Stage::Leaving(Instant::now()))
    }

    /// A translator begins to write, if its store is this one.
    fn begin(
        &mut self,
        connection: &mut Connection,
        hello: &Hello,
        begin: &Begin,
    ) -> std::result::Result<Stage, CollectorError> {
        if let Some(reason) = self.taken(hello) {
            return self.busy(connection, reason);
        }
        self.leave("it has connected again");
        if let Err(error) = self.prepare(begin) {
            return self.refuse(connection, error.chain());
        }
        match self.connect(connection, hello, begin) {
            Ok(welcome) => {
                connection.lines.send(&Message::Welcome(welcome))?;
                self.counters.connections += 1;
                (self.tell)(&Notice::Translator {
                    address: connection.peer,
                    gone: None,
                });
                Ok(Stage::Active)
            }
            Err(error) => self.refuse(connection, error.chain()),
        }
    }

    /// Makes the store that a translator describes, or checks that it is this one.
    fn prepare(&mut self, begin: &Begin) -> Result<()> {
        let (manifest, plan) = Manifest::parse(&begin.manifest)?;
        let dir = &self.spec.store;
        let Some(store) = &mut self.store else {
            let (wanted, max) = (plan.parameters.memory_bytes, self.spec.memory_max);
            if wanted > max {
                return Err(NodeError::Refused(format!(
                    "the translator wants {wanted} bytes of memory, and `strata telemetry collect` \
                     gives {max}: start one of them with another --memory"
                )));
            }
            let memory = made(dir, &manifest, &plan)?;
            self.store = Some(Store::new(manifest, plan, memory));
            return Ok(());
        };
        if !store.manifest.is_of(&manifest) {
            return Err(NodeError::Refused(
                "its store was made with other options, or by another translator: name a new store \
                 at `strata telemetry collect -o`, or start the translator with the collector of that \
                 store first"
                    .to_owned(),
            ));
        }
        if store.manifest != manifest {
            // The lists have other names.
            replace(dir, MANIFEST, &pretty(&manifest), true)?;
            store.manifest = manifest;
        }
        Ok(())
    }

    fn connect(
        &mut self,
        connection: &Connection,
        hello: &Hello,
        begin: &Begin,
    ) -> Result<Welcome> {
        let refused = |why: &str| NodeError::Refused(why.to_owned());
        if ![256, 512, 1024, 2048, 4096].contains(&begin.mtu) || begin.qpn > MASK_24 {
            return Err(refused("an MTU or a queue pair that RDMA does not have"));
        }
        let answers = SocketAddr::new(connection.peer.ip(), begin.port);
        let local = connection.lines.stream().local_addr();
        let local = local.at("address of the connection")?.ip().to_canonical();
        let local = SocketAddr::new(local, self.listen.port());
        let (Some(outer), Some(check)) = (outer(local, answers), IcrcCheck::new(answers, local))
        else {
            return Err(refused("addresses of different families"));
        };
        let store = self.store.as_mut().expect("prepared before");
        let memory = store.memory.as_ref().expect("nobody else writes");
        let all = ends(&store.plan, memory.0.words())?;
        let ends = (0_u32..).zip(all).filter(|(_, end)| end.batches > 0);
        let ends = ends.map(|(list, end)| (list, end.batches, end.entries));
        let [numbers, rkey] = nonce().map_err(NodeError::from)?;
        let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).expect("32 bits");
        let (qpn, rkey) = ((low(numbers) & MASK_24).max(2), low(rkey));
        let welcome = Welcome {
            qpn,
            rkey,
            va: 0,
            mtu: begin.mtu,
            port: self.listen.port(),
            atomics: WINDOW,
            ends: ends.collect(),
        };
        self.responder.register(Region {
            rkey,
            va: 0,
            len: exact::<u64>(memory.0.words().len()),
            domain: DOMAIN,
            access: ACCESS,
            memory: store.memory.take().expect("as before"),
        });
        self.responder.connect(QueuePairOptions {
            number: qpn,
            peer_number: begin.qpn,
            peer: canonical(answers.ip()),
            service: Service::Rc,
            first_psn: Psn::new(begin.psn),
            mtu: begin.mtu,
            domain: DOMAIN,
            access: ACCESS,
        });
        self.responder.keep_atomics(qpn, WINDOW);
        self.active = Some(Active {
            instance: hello.instance,
            peer: connection.peer,
            qpn,
            rkey,
            answers,
            icrcs: icrc::Stream::new(outer),
            check,
        });
        Ok(welcome)
    }

    fn fade(&mut self, now: Instant) {
        let (Some(fading), Some(store)) = (&mut self.fading, &mut self.store) else {
            return;
        };
        let written = match (&self.active, &mut store.memory) {
            (_, Some(memory)) => Some(&mut memory.0),
            (Some(active), None) => {
                let region = self.responder.region_mut(active.rkey);
                region.map(|region| &mut region.memory.0)
            }
            (None, None) => None,
        };
        if let Some(memory) = written {
            fading.step(&store.plan, memory, now);
        }
    }

    /// What the responder has counted, with the queue pairs that are gone.
    fn responded(&self) -> ResponderCounters {
        let mut all = self.counters.before;
        let pair = self.active.as_ref();
        if let Some(pair) = pair.and_then(|active| self.responder.queue_pair(active.qpn)) {
            add(&mut all, &pair.counters());
        }
        all
    }

    fn write_status(&self, running: bool) -> Result<()> {
        let responder = self.responded();
        let places = self.store.as_ref().map(|store| store.plan.places);
        let all = json!({
            "role": "collector",
            "running": running,
            "updated_ns": unix_ns(),
            "pid": std::process::id(),
            "listen": self.listen.to_string(),
            "translator": self.active.as_ref().map(|active| active.peer.to_string()),
            "connections": self.counters.connections,
            "connections_refused": self.counters.refused,
            "memory_bytes": places.map(|places| places.bytes),
            "requests": {
                "executed": responder.executed,
                "bytes": responder.bytes,
                "duplicates": responder.duplicates,
                "out_of_order": responder.out_of_order,
                "refused": responder.refused,
                "answers": responder.answers,
                "bad_packets": self.counters.bad_packets,
            },
            "faded": self.fading.as_ref().map(Fading::rounds),
        });
        replace(&self.spec.store, STATUS, &format!("{all:#}\n"), false)
    }
}

fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn connection(stream: TcpStream, peer: SocketAddr) -> io::Result<Connection> {
    let now = Instant::now();
    Ok(Connection {
        lines: Lines::new(stream, format!("translator {peer}"), FIRST_LEN_MAX)?,
        peer,
        stage: Stage::Hello,
        began: now,
        said: now,
    })
}

fn add(all: &mut ResponderCounters, one: &ResponderCounters) {
    all.executed += one.executed;
    all.bytes += one.bytes;
    all.duplicates += one.duplicates;
    all.out_of_order += one.out_of_order;
    all.missing += one.missing;
    all.refused += one.refused;
    all.answers += one.answers;
}
