//! A thread of the translator for each collector: connects, and again whenever the connection is lost,
//! so that the translator never waits for one.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_auth::secret::Secret;
use strata_dta::append::End;
use strata_dta::key::Key;
use strata_rdma::{Psn, Requester, RequesterOptions};
use strata_roce::udp::{UdpPort, UdpToPeer};
use strata_role::{Result, RoleError};
use strata_wire::roce::{MASK_24, Service, UDP_PORT};
use strata_wire::unix_ns;

use super::message::{
    ALIVE_EVERY, Begin, CollectorError, FIRST_LEN_MAX, Hello, LEN_MAX, Lines, MESSAGES_AT_ONCE,
    Message, Prover, SILENT_MAX, VERSION, is_proof, nonce, proof,
};
use super::turns::is_possible;
use crate::store::fading::Fade;

/// Payload of a packet: fits where a packet of 1,280 bytes does, and every operation but those of the
/// largest batches is one packet.
pub(crate) const MTU: usize = 1024;
/// Packets in flight.
pub(crate) const WINDOW: usize = 4096;
/// Without an answer for this long, what is in flight is sent again,
const TIMEOUT: Duration = Duration::from_millis(50);
/// this many times, and then the collector is gone: after 2 s.
const RETRIES: u32 = 40;
/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// How long an answer may take;
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// that to `begin`, before which a collector reserves memory, or looks where lists end.
const WELCOME_LIMIT: Duration = Duration::from_secs(60);
/// Between attempts.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Between looks at orders while connected.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Atomic operations that a collector may say it can have in flight.
const ATOMICS: std::ops::RangeInclusive<usize> = 1..=WINDOW;

/// How the translator presents itself.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Random: the same as long as this process runs.
    pub(crate) instance: u64,
    pub(crate) secret: Option<Secret>,
}

/// A collector that knows us, and has said what its store is.
#[derive(Debug)]
pub(crate) struct Opened {
    lines: Lines,
    /// The description of its store; `None` before it has one.
    pub(crate) manifest: Option<String>,
}

/// What a collector has granted.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(super) requester: Requester,
    pub(super) port: UdpToPeer,
    /// Our queue pair.
    pub(super) qpn: u32,
    pub(super) va: u64,
    pub(super) rkey: u32,
    pub(super) ends: Vec<(u32, End)>,
    /// Remote key of the ring of immediate reports.
    pub(super) events: u32,
    /// Keys with large counts: entry, how often it was written, key, count.
    pub(super) largest: Vec<(usize, u64, Key, u64)>,
    /// The largest count that any other key may have, if that is known.
    pub(super) others: Option<u64>,
    /// The dictionary of large values that hops report.
    pub(super) values: Vec<u32>,
    /// The youngest generation, if the store has generations: its number and when it began.
    pub(super) generation: Option<(u64, u64)>,
}

/// What a connector says.
pub(super) enum Event {
    Connected(Box<Granted>),
    /// It could not connect, or has lost the connection, for this reason.
    Away(CollectorError),
    /// Counters there were made smaller.
    Faded(Fade),
    /// The generation of this number has begun there.
    Turned(u64),
}

enum Order {
    /// The connection is of no use any more.
    Again,
    /// A generation is to begin.
    Turn {
        number: u64,
        begun_ns: u64,
    },
    End,
}

/// Connects to a collector and shows that both know the secret.
pub(crate) fn open(
    address: SocketAddr,
    identity: &Identity,
) -> std::result::Result<Opened, CollectorError> {
    let peer = address.to_string();
    let unreachable = |source| CollectorError::Unreachable {
        peer: peer.clone(),
        source,
    };
    let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT).map_err(unreachable)?;
    let lines = Lines::new(stream, format!("collector {peer}"), FIRST_LEN_MAX);
    let mut lines = lines.map_err(unreachable)?;
    let secret = identity.secret.as_ref();
    let hello = Hello {
        version: VERSION,
        instance: identity.instance,
        nonce: nonce().map_err(unreachable)?,
        secret: secret.is_some(),
    };
    lines.send(&Message::Hello(hello.clone()))?;
    let challenge = match answer(&mut lines, ANSWER_LIMIT)? {
        Message::Challenge(challenge) if challenge.version == VERSION => challenge,
        _ => return Err(lines.not_understood("no challenge")),
    };
    let refused = |reason: &str| CollectorError::Refused {
        peer: lines.peer().to_owned(),
        reason: reason.to_owned(),
    };
    if challenge.secret && secret.is_none() {
        return Err(refused(
            "the collector requires a secret: give --secret-file",
        ));
    }
    let ours = proof(secret, Prover::Translator, &hello, &challenge);
    lines.send(&Message::Proof(ours))?;
    lines.set_len_max(LEN_MAX);
    let (theirs, manifest) = match answer(&mut lines, ANSWER_LIMIT)? {
        Message::Store { proof, manifest } => (proof, manifest),
        _ => return Err(lines.not_understood("no description of its store")),
    };
    let knows = |secret| is_proof(secret, Prover::Collector, &hello, &challenge, &theirs);
    if secret.is_some_and(|secret| !knows(secret)) {
        let peer = lines.peer().to_owned();
        return Err(CollectorError::Impostor { peer });
    }
    Ok(Opened { lines, manifest })
}

/// The next message, unless it is a refusal.
fn answer(lines: &mut Lines, limit: Duration) -> std::result::Result<Message, CollectorError> {
    let peer = lines.peer().to_owned();
    match lines.wait(limit)? {
        Message::Refused(reason) => Err(CollectorError::Refused { peer, reason }),
        Message::Busy(reason) => Err(CollectorError::Busy { peer, reason }),
        message => Ok(message),
    }
}

impl Opened {
    /// Agrees with the collector on a queue pair and on the store.
    fn begin(
        &mut self,
        address: SocketAddr,
        manifest: &str,
    ) -> std::result::Result<Granted, CollectorError> {
        let peer = self.lines.peer().to_owned();
        let broken = |source| CollectorError::Broken {
            peer: peer.clone(),
            source,
        };
        let local = self.lines.stream().local_addr().map_err(broken)?.ip();
        // NICs send answers to 4791; our collector to any port.
        let port = UdpPort::bind(SocketAddr::new(local, UDP_PORT))
            .or_else(|_| UdpPort::bind(SocketAddr::new(local, 0)))
            .map_err(broken)?;
        let bound = port.local_address().map_err(broken)?;
        let [numbers, more] = nonce().map_err(broken)?;
        let low = |word: u64| u32::try_from(word & u64::from(MASK_24)).expect("24 bits");
        let (qpn, psn) = (low(numbers).max(2), low(more));
        self.lines.send(&Message::Begin(Begin {
            manifest: manifest.to_owned(),
            qpn,
            psn,
            port: bound.port(),
            mtu: MTU,
        }))?;
        let welcome = match answer(&mut self.lines, WELCOME_LIMIT)? {
            Message::Welcome(welcome) => welcome,
            _ => return Err(self.lines.not_understood("no welcome")),
        };
        if !ATOMICS.contains(&welcome.atomics) {
            return Err(self
                .lines
                .not_understood("an impossible number of atomic operations"));
        }
        let largest = welcome
            .largest
            .into_iter()
            .map(|(entry, written, key, count)| {
                let key = format!("0x{key}").parse::<Key>().ok()?;
                Some((entry, written, key, count))
            });
        let Some(largest) = largest.collect() else {
            return Err(self.lines.not_understood("an invalid key"));
        };
        let is_odd = |(number, _): (u64, u64)| !is_possible(number, unix_ns());
        if welcome.generation.is_some_and(is_odd) {
            return Err(self.lines.not_understood("an impossible generation"));
        }
        let mut options = RequesterOptions::new(Service::Rc, welcome.qpn, Psn::new(psn), MTU);
        options.window = WINDOW;
        options.atomics_max = welcome.atomics;
        options.timeout_ns = u64::try_from(TIMEOUT.as_nanos()).expect("a short time");
        options.retries = RETRIES;
        let rdma = SocketAddr::new(address.ip(), welcome.port);
        let ends = welcome.ends.into_iter();
        Ok(Granted {
            requester: Requester::new(options),
            port: UdpToPeer::new(port, bound, rdma).map_err(broken)?,
            qpn,
            va: welcome.va,
            rkey: welcome.rkey,
            ends: ends
                .map(|(list, batches, entries)| (list, End { batches, entries }))
                .collect(),
            events: welcome.events,
            largest,
            others: welcome.others,
            values: welcome.values,
            generation: welcome.generation,
        })
    }
}

/// The thread. It ends when this is dropped, after it has told the collector.
#[derive(Debug)]
pub(super) struct Connector {
    orders: Sender<Order>,
    watched: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Connector {
    /// Connects to `address`, or goes on with `opened`; what happens goes to `events` with `index`.
    pub(super) fn start(
        address: SocketAddr,
        identity: Identity,
        manifest: String,
        opened: Option<Opened>,
        (index, events): (usize, Sender<(usize, Event)>),
    ) -> Result<Self> {
        let (orders, ordered) = mpsc::channel();
        let watched = Arc::new(AtomicBool::new(false));
        let work = Work {
            watched: Arc::clone(&watched),
            address,
            identity,
            manifest,
            index,
            events,
            ordered,
        };
        let thread = thread::Builder::new()
            .name("strata-connect".into())
            .spawn(move || work.run(opened))
            .map_err(RoleError::thread("connects to a collector"))?;
        Ok(Self {
            orders,
            watched,
            thread: Some(thread),
        })
    }

    /// Whether somebody there wants immediate reports, as the collector says.
    pub(super) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// Has the collector begin a generation.
    pub(super) fn turn(&self, number: u64, begun_ns: u64) {
        // A thread that has ended has said why.
        let _ = self.orders.send(Order::Turn { number, begun_ns });
    }

    /// The connection is of no use any more: makes another one.
    pub(super) fn again(&self) {
        // A thread that has ended has said why.
        let _ = self.orders.send(Order::Again);
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::End);
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}

struct Work {
    address: SocketAddr,
    identity: Identity,
    manifest: String,
    index: usize,
    events: Sender<(usize, Event)>,
    watched: Arc<AtomicBool>,
    ordered: Receiver<Order>,
}

/// Why a connection ended.
enum Over {
    Lost(CollectorError),
    /// It is of no use.
    Again,
    End,
}

impl Work {
    fn run(self, mut opened: Option<Opened>) {
        loop {
            let opening = match opened.take() {
                Some(opened) => Ok(opened),
                None => open(self.address, &self.identity),
            };
            let over = match opening {
                Ok(opened) => self.serve(opened),
                Err(error) => Over::Lost(error),
            };
            self.watched.store(false, Ordering::Relaxed);
            match over {
                Over::End => return,
                Over::Lost(error) => {
                    if self.events.send((self.index, Event::Away(error))).is_err() {
                        return;
                    }
                }
                Over::Again => {}
            }
            // Orders to connect again from before that are done with.
            let until = Instant::now() + AGAIN_AFTER;
            loop {
                let left = until.saturating_duration_since(Instant::now());
                match self.ordered.recv_timeout(left) {
                    Ok(Order::Again | Order::Turn { .. }) => {}
                    Err(RecvTimeoutError::Timeout) => break,
                    Ok(Order::End) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        }
    }

    /// As long as the connection lasts.
    fn serve(&self, mut opened: Opened) -> Over {
        let granted = match opened.begin(self.address, &self.manifest) {
            Ok(granted) => granted,
            Err(error) => return Over::Lost(error),
        };
        let connected = Event::Connected(Box::new(granted));
        if self.events.send((self.index, connected)).is_err() {
            return Over::End;
        }
        let lines = &mut opened.lines;
        let mut said = Instant::now();
        loop {
            match self.ordered.try_recv() {
                Ok(Order::Again) => return Over::Again,
                Ok(Order::Turn { number, begun_ns }) => {
                    if let Err(error) = lines.send(&Message::Turn { number, begun_ns }) {
                        return Over::Lost(error);
                    }
                }
                Ok(Order::End) | Err(TryRecvError::Disconnected) => {
                    // If it cannot be sent, the collector sees the connection close.
                    let _ = lines.send(&Message::End);
                    return Over::End;
                }
                Err(TryRecvError::Empty) => {}
            }
            match self.look(lines, &mut said) {
                Ok(()) => {}
                Err(error) => return Over::Lost(error),
            }
        }
    }

    /// Says that we are there, and hears whether the collector is, wants immediate reports, and has made
    /// its counters smaller.
    fn look(
        &self,
        lines: &mut Lines,
        said: &mut Instant,
    ) -> std::result::Result<(), CollectorError> {
        if said.elapsed() >= ALIVE_EVERY {
            *said = Instant::now();
            lines.send(&Message::Alive)?;
        }
        for _ in 0..MESSAGES_AT_ONCE {
            match lines.poll()? {
                None => break,
                Some(Message::Alive) => {}
                Some(Message::Watched(is_watched)) => {
                    self.watched.store(is_watched, Ordering::Relaxed);
                }
                Some(Message::Faded { halved }) => {
                    let fade = if halved { Fade::Halve } else { Fade::Reset };
                    // When no one listens, the next order is to end.
                    drop(self.events.send((self.index, Event::Faded(fade))));
                }
                Some(Message::Turned { number }) => {
                    drop(self.events.send((self.index, Event::Turned(number))));
                }
                Some(Message::Refused(reason)) => {
                    let peer = lines.peer().to_owned();
                    return Err(CollectorError::Refused { peer, reason });
                }
                Some(_) => return Err(lines.not_understood("a message out of turn")),
            }
        }
        if lines.heard().elapsed() > SILENT_MAX {
            return Err(CollectorError::Silent {
                peer: lines.peer().to_owned(),
                limit: SILENT_MAX,
            });
        }
        lines.wait_ready(LOOK_EVERY)
    }
}
