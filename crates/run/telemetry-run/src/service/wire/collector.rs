//! The role of a collector whose translator is elsewhere: its memory is written by RDMA, and asked by
//! other processes. Its CPU sees no report; the work of an RDMA NIC is done in software by a responder
//! behind a UDP socket.
//!
//! One thread does all of it. One translator at a time writes the store, since entries of a list are
//! numbered by it.
//!
//! ```text
//! sessions   connections: who may write, and where
//! preparing  what is done on disk before a translator may write
//! memory     the store, and its memory as a NIC would write it
//! ```

mod memory;
mod preparing;
mod sessions;

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::api::status::{
    CollectorStatus, EventStatus, ProcessStatus, RequestStatus, ShareStatus, TelemetryStatus,
};
use rustix::thread::CapabilitySet;
use strata_auth::secret::Secret;
use strata_dta::generations::{Clearing, Generation};
use strata_rdma::{Replies, Responder, ResponderCounters};
use strata_roce::icrc::IcrcCheck;
use strata_roce::udp::UdpPort;
use strata_role::sandbox::{Reach, give_up, make_private_files, unconfined};
use strata_role::{At as _, Handle, Notice, Result, RoleError, Spec, Tell, warn_if_shared};
use strata_sandbox::{Owner, SocketFile};
use strata_sys::socket;
use strata_wire::roce::{Packet, icrc};
use strata_wire::{exact, unix_ns};

use self::memory::{Kept, Store, Written};
use self::preparing::Preparing;
use self::sessions::Connection;
use super::event::{self, SLOT_LEN, Told};
use super::turns::is_possible;
use crate::service::notices::collecting;
use crate::service::pushing::Pushing;
use crate::service::serving::{Api, TelemetryApiSpec};
use crate::service::status_file::StatusFile;
use crate::store::candidates;
use crate::store::counted::counted;
use crate::store::fading::{FadeOptions, Fading};
use crate::store::generations::{PIECE_BYTES, generations_status, youngest};
use crate::store::plan::Plan;
use crate::store::{Locked, continued};

/// Runs of packets before connections are looked at again.
const ROUNDS: usize = 64;
/// Between looks at connections and counters that fade.
const TICK: Duration = Duration::from_millis(2);
/// The same while there is nothing to do.
const IDLE: Duration = Duration::from_millis(50);
/// Between descriptions of what was counted.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// A telemetry collector whose translator is another process.
#[derive(Debug)]
pub struct TelemetryCollectorSpec {
    /// The store's directory, which is created if missing. The store is created with the parameters of the first
    /// translator.
    pub store: PathBuf,
    /// Maximum bytes of memory that a translator may request.
    pub memory_max: u64,
    /// The address that translators connect to (TCP), and send RoCEv2 packets to (UDP), at the same port.
    pub listen: SocketAddr,
    /// The secret that a translator must prove to know.
    pub secret: Option<Secret>,
    /// The way and period of reducing counters, if they are reduced.
    pub fade: Option<FadeOptions>,
    /// The addresses on which its API is served, if any.
    pub api: TelemetryApiSpec,
    /// Who owns the store.
    pub owner: Owner,
    /// Whether the process gives up the privileges that it no longer needs once everything is open.
    pub sandboxed: bool,
}

/// The counters of a collector at its end.
#[derive(Clone, Copy, Debug)]
pub struct TelemetryCollectorOutcome {
    /// Connections of translators.
    pub connections: u64,
    /// Connections of others, and of translators that were refused.
    pub refused: u64,
    /// The counters of the RDMA responder.
    pub responder: ResponderCounters,
}

impl Spec for TelemetryCollectorSpec {
    type Running = ();
    type Outcome = TelemetryCollectorOutcome;
    type Error = RoleError;
    const THREAD: &'static str = "telem-collector";

    fn start(mut self, stop: Arc<AtomicBool>, tell: Tell) -> Result<Handle<Self>> {
        let named = || format!("--listen {}", self.listen);
        let listener = TcpListener::bind(self.listen).at_with(named)?;
        listener.set_nonblocking(true).at_with(named)?;
        let listen = listener.local_addr().at_with(named)?;
        let rdma = SocketAddr::new(listen.ip(), listen.port());
        let port = UdpPort::bind(rdma).at_with(|| {
            format!(
                "{rdma}: cannot receive RoCEv2 (UDP); does a relay or an RDMA driver use the port?"
            )
        })?;
        make_private_files();
        warn_if_shared(&self.store, &tell);
        let Locked { lock, found } = Locked::open(&self.store, &self.owner)?;
        let store = match found {
            Some((manifest, plan)) => {
                let memory = continued(&self.store, &manifest, &plan, false)?;
                Some(Store::new(manifest, plan, memory))
            }
            None => None,
        };
        let endpoints = self.api.bind(&self.owner)?;
        if self.sandboxed {
            let socket = endpoints.socket.as_ref();
            let reach = Reach {
                home: Some(self.store.clone()),
                delete: socket
                    .and_then(SocketFile::own_dirs)
                    .into_iter()
                    .flatten()
                    .collect(),
                ..Reach::default()
            };
            give_up(&self.owner, &reach, CapabilitySet::empty(), &tell)?;
        } else {
            unconfined();
        }
        let notice = collecting(listen, &self.store, store.is_some());
        let now = Instant::now();
        let mut collector = Collector {
            api: Api::default(),
            fading: self.fade.map(|fade| Fading::new(fade, now)),
            status_file: StatusFile::new(&self.store),
            spec: self,
            listen,
            listener,
            port,
            store,
            responder: Responder::new(),
            pushing: Pushing::new(Arc::default(), Vec::new()),
            clearing: None,
            active: None,
            preparing: None,
            connections: Vec::new(),
            counters: Counters::default(),
            tell: Arc::clone(&tell),
            _lock: lock,
        };
        let first = collector.status(true);
        collector.status_file.start(&first, &tell)?;
        let pushes = collector.pushing.pushes();
        collector.api = Api::serve(&collector.spec.store, pushes, endpoints, &tell)?;
        tell(&notice);
        let stopped = Arc::clone(&stop);
        Handle::run((), stop, move || collector.serve(&stopped))
    }
}

/// What it counts apart from the responder.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    connections: u64,
    refused: u64,
    /// Packets that are not RoCEv2, of somebody else, or damaged.
    bad_packets: u64,
    /// Writes to the ring of immediate reports that are invalid.
    invalid_events: u64,
    /// Of queue pairs that are gone.
    before: ResponderCounters,
}

/// The translator that writes.
struct Active {
    instance: u64,
    peer: SocketAddr,
    qpn: u32,
    rkey: u32,
    /// Key of the ring of immediate reports.
    events: u32,
    /// Where answers go.
    answers: SocketAddr,
    icrcs: icrc::Stream,
    check: IcrcCheck,
}

struct Collector {
    spec: TelemetryCollectorSpec,
    listen: SocketAddr,
    listener: TcpListener,
    port: UdpPort,
    store: Option<Store>,
    responder: Responder<Kept>,
    pushing: Pushing,
    active: Option<Active>,
    preparing: Option<Preparing>,
    connections: Vec<Connection>,
    counters: Counters,
    fading: Option<Fading>,
    /// A generation that is being cleared, and what it is to be.
    clearing: Option<(Clearing, Generation)>,
    tell: Tell,
    status_file: StatusFile,
    /// Served as long as this is there.
    api: Api,
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
            self.clear();
            if now - described >= STATUS_EVERY {
                described = now;
                self.write_status(true);
            }
        }
        (self.tell)(&Notice::ending(false));
        self.leave("it was ended");
        if let Some(preparing) = self.preparing.take() {
            // While it writes to the store, no other translator may. What came of it matters no
            // more.
            let _ = preparing.thread.join();
        }
        self.write_status(false);
        Ok(TelemetryCollectorOutcome {
            connections: self.counters.connections,
            refused: self.counters.refused,
            responder: self.responded(),
        })
    }

    fn wait(&self) -> Result<()> {
        let is_fading = self.fading.as_ref().is_some_and(Fading::is_going);
        let is_busy = is_fading || self.clearing.is_some() || self.preparing.is_some();
        let limit = match is_busy {
            true => TICK,
            false => IDLE,
        };
        let connections = self.connections.iter().map(AsFd::as_fd);
        let own = [self.port.as_fd(), self.listener.as_fd()];
        socket::wait_any(own.into_iter().chain(connections), limit).at("cannot wait for packets")
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
        self.look_at_events();
        received.at("cannot receive RoCEv2 packets")
    }

    /// Immediate reports that were written go to those who want them.
    fn look_at_events(&mut self) {
        let Some(active) = &self.active else {
            return;
        };
        while let Some(written) = self.responder.take_received(active.qpn) {
            self.responder.post_receives(active.qpn, 1, 0);
            let region = self.responder.region_mut(active.events);
            let ring = match region.map(|region| &region.memory) {
                Some(Kept::Events(ring)) => ring,
                _ => continue,
            };
            let at = written.immediate.map(event::slot_at);
            let Some(told) = at.and_then(|at| Told::parse(&ring[at..at + SLOT_LEN])) else {
                self.counters.invalid_events += 1;
                continue;
            };
            if !self.pushing.is_watched() {
                continue;
            }
            self.pushing.lose(u64::from(told.lost));
            // The translator has accepted it.
            self.pushing
                .push(told.reporter, told.time_ns, told.datagram, 1);
        }
    }

    fn fade(&mut self, now: Instant) {
        let Some(mut fading) = self.fading.take() else {
            return;
        };
        if let Some((plan, memory)) = self.memory() {
            // The translator gets the error.
            fading.step(plan, &mut memory.0, now);
        }
        self.fading = Some(fading);
    }

    /// The memory, whether it is the responder's now or not.
    fn memory(&mut self) -> Option<(&Plan, &mut Written)> {
        let store = self.store.as_mut()?;
        let memory = match (&self.active, &mut store.memory) {
            (_, Some(memory)) => memory,
            (Some(active), None) => match &mut self.responder.region_mut(active.rkey)?.memory {
                Kept::Store(memory) => memory,
                Kept::Events(_) => return None,
            },
            (None, None) => return None,
        };
        Some((&store.plan, memory))
    }

    /// The youngest generation that has begun.
    fn youngest(&mut self) -> Option<Generation> {
        let (plan, memory) = self.memory()?;
        youngest(plan, memory.0.words())
    }

    /// The translator wants the generation of this number: begins to clear its place, unless it is there.
    /// Whether that is possible.
    fn turn_to(&mut self, number: u64, begun_ns: u64) -> bool {
        let is_there = self
            .youngest()
            .is_some_and(|youngest| youngest.number == number);
        let is_begun = self
            .clearing
            .as_ref()
            .is_some_and(|(_, wanted)| wanted.number == number);
        if is_there || is_begun {
            return true;
        }
        // Numbers are not used again.
        let is_newer = self
            .youngest()
            .is_none_or(|youngest| youngest.number < number)
            && is_possible(number, unix_ns());
        let Some((plan, memory)) = self.memory() else {
            return false;
        };
        let Some(generations) = plan.generations().filter(|_| is_newer && number > 0) else {
            return false;
        };
        let wanted = Generation {
            index: generations.index(number),
            number,
            begun_ns,
        };
        let clearing = Clearing::new(&generations, &plan.regions(), wanted.index, memory);
        self.clearing = Some((clearing, wanted));
        true
    }

    /// Clears a piece of what is to be cleared, between packets.
    fn clear(&mut self) {
        let Some((mut clearing, wanted)) = self.clearing.take() else {
            return;
        };
        let Some((plan, memory)) = self.memory() else {
            return;
        };
        if !clearing.step(PIECE_BYTES, memory) {
            self.clearing = Some((clearing, wanted));
            return;
        }
        candidates::empty(plan, &mut memory.0, wanted.index);
        if let Some(generations) = plan.generations() {
            generations.put(memory, wanted);
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

    fn write_status(&mut self, running: bool) {
        let text = self.status(running);
        match running {
            true => self.status_file.write(text),
            false => self.status_file.finish(text),
        }
    }

    fn status(&mut self, running: bool) -> String {
        let responder = self.responded();
        let places = self.store.as_ref().map(|store| store.plan.places);
        let (pushed, lost) = self.pushing.counts();
        let share = self.store.as_ref().and_then(|store| store.manifest.share);
        let is_clearing = self.clearing.is_some();
        let generations = self.memory().and_then(|(plan, memory)| {
            let words = memory.0.words();
            let word = |at| u64::from_le_bytes(words.word(exact(at)));
            let present = plan.generations()?.read(word);
            Some(generations_status(plan, &present, is_clearing))
        });
        let status = CollectorStatus {
            role: CollectorStatus::ROLE.to_owned(),
            process: ProcessStatus {
                running: Some(running),
                killed: None,
                updated_ns: Some(unix_ns()),
                pid: Some(std::process::id()),
                listen: Some(self.listen.to_string()),
                events: EventStatus {
                    pushed: Some(pushed),
                    lost: Some(lost),
                    invalid: Some(self.counters.invalid_events),
                },
            },
            translator: self.active.as_ref().map(|active| active.peer.to_string()),
            connections: Some(self.counters.connections),
            connections_refused: Some(self.counters.refused),
            memory_bytes: places.map(|places| places.bytes),
            share: share.map(|share| {
                counted! {
                    share => ShareStatus {
                        collector,
                        of,
                    }
                }
            }),
            requests: counted! {
                responder => RequestStatus {
                    executed,
                    bytes,
                    duplicates,
                    out_of_order,
                    refused,
                    answers,
                }
                bad_packets: Some(self.counters.bad_packets),
            },
            faded: self.fading.as_ref().map(Fading::rounds),
            generations,
        };
        TelemetryStatus::Collector(Box::new(status)).text()
    }
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
