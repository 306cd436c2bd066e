//! Connections of translators to a collector: who may write, what, and where.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

use strata_dta::append::End;
use strata_rdma::{Access, Psn, QueuePairOptions, Region};
use strata_roce::icrc::{IcrcCheck, outer};
use strata_role::sandbox::thread as restricted;
use strata_role::{At as _, Result, RoleError};
use strata_sandbox::Role;
use strata_wire::exact;
use strata_wire::roce::{MASK_24, Service, icrc};

use super::super::connector::WINDOW;
use super::super::event::{SLOT_LEN, SLOTS};
use super::super::message::{
    ALIVE_EVERY, BEGIN_LEN_MAX, Begin, Challenge, CollectorError, FIRST_LEN_MAX, Hello, Lines,
    MESSAGES_AT_ONCE, Message, Prover, SILENT_MAX, VERSION, Welcome, is_proof, nonce, proof,
};
use super::memory::Kept;
use super::preparing::{New, Order, Preparing, What};
use super::{Active, Collector, add};
use crate::service::notices::translator;
use crate::store::candidates;
use crate::store::fading::{Fade, Fading};
use crate::store::generations::youngest;
use crate::store::plan::Manifest;

/// Connections at a time, of which one is a translator's.
const CONNECTIONS_MAX: usize = 16;
/// How long it may take to become one.
const ENTRY_LIMIT: Duration = Duration::from_secs(30);
/// How long one that was refused may take to read why.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
/// The protection domain, of which there is one.
const DOMAIN: u32 = 1;
const ACCESS: Access = Access {
    write: true,
    atomic: true,
};

/// How far a connection has come.
enum Stage {
    /// Nothing has come.
    Hello,
    /// It must prove that it knows the secret, or say that it has none.
    Proof(Hello, Challenge),
    /// It must say what it writes.
    Begin(Hello),
    /// Its store is being prepared.
    Preparing(Hello, Begin),
    /// It writes.
    Active,
    /// It was refused.
    Leaving(Instant),
}

/// A connection, of whomever.
pub(super) struct Connection {
    lines: Lines,
    peer: SocketAddr,
    stage: Stage,
    began: Instant,
    said: Instant,
    /// What it knows of that.
    is_watched: bool,
    /// How often all counters had been made smaller when it was last notified.
    rounds: u64,
    /// The generation that it has asked for and not been told about.
    wants: Option<u64>,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lines.as_fd()
    }
}

impl Collector {
    pub(super) fn accept(&mut self) {
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
                // There is no connection; or the process has too many files open, and tries again.
                Err(_) => return,
            }
        }
    }

    /// Ends the oldest connection that has not shown who it is, if there are too many.
    fn make_room(&mut self) {
        if self.connections.len() < CONNECTIONS_MAX {
            return;
        }
        let has_proof = self.spec.secret.is_some();
        let is_stranger = |one: &Connection| match one.stage {
            Stage::Active | Stage::Preparing(..) => false,
            Stage::Begin(_) => !has_proof,
            _ => true,
        };
        if let Some(oldest) = self.connections.iter().position(is_stranger) {
            self.connections.remove(oldest);
            self.counters.refused += 1;
        }
    }

    pub(super) fn look_at_connections(&mut self) {
        let mut prepared = self.take_prepared();
        for mut connection in std::mem::take(&mut self.connections) {
            let advanced = match prepared.take_if(|(peer, _)| *peer == connection.peer) {
                Some((_, prepared)) => self.welcome(&mut connection, prepared).map(|()| true),
                None => self.advance(&mut connection),
            };
            match advanced {
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

    /// The translator is gone: there is no writer from now on.
    pub(super) fn leave(&mut self, why: &str) {
        let Some(active) = self.active.take() else {
            return;
        };
        // The next translator may want another one.
        self.clearing = None;
        if let Some(pair) = self.responder.disconnect(active.qpn) {
            add(&mut self.counters.before, &pair.counters());
        }
        self.responder.deregister(active.events);
        let region = self.responder.deregister(active.rkey);
        let memory = region.map(|region| region.memory);
        if let (Some(store), Some(Kept::Store(memory))) = (&mut self.store, memory) {
            store.memory = Some(memory);
        }
        (self.tell)(&translator(active.peer, Some(why)));
    }

    /// Processes what has come; whether the connection goes on.
    fn advance(
        &mut self,
        connection: &mut Connection,
    ) -> std::result::Result<bool, CollectorError> {
        for _ in 0..MESSAGES_AT_ONCE {
            let Some(message) = connection.lines.poll()? else {
                break;
            };
            let stage = std::mem::replace(&mut connection.stage, Stage::Hello);
            connection.stage = match (stage, message) {
                (stage @ Stage::Leaving(_), _) => stage,
                (Stage::Hello, Message::Hello(hello)) => self.challenge(connection, hello)?,
                (Stage::Proof(hello, challenge), Message::Proof(digits)) => {
                    self.prove(connection, hello, &challenge, &digits)?
                }
                (Stage::Begin(hello), Message::Begin(begin)) => {
                    self.begin(connection, hello, begin)?
                }
                (Stage::Active, Message::Alive) => Stage::Active,
                (Stage::Active, Message::Turn { number, begun_ns }) => {
                    connection.stage = Stage::Active;
                    if !self.turn_to(number, begun_ns) {
                        return Err(connection.lines.not_understood("an impossible generation"));
                    }
                    connection.wants = Some(number);
                    Stage::Active
                }
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
        if let Stage::Preparing(..) = connection.stage {
            // It has nothing to say until it is answered, which on a slow disk may take long.
            return Ok(true);
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
        let is_watched = self.pushing.is_watched();
        if matches!(connection.stage, Stage::Active) && connection.is_watched != is_watched {
            connection.is_watched = is_watched;
            connection.lines.send(&Message::Watched(is_watched))?;
        }
        let youngest = self.youngest().map(|youngest| youngest.number);
        if let (Stage::Active, Some(number)) = (&connection.stage, connection.wants)
            && youngest == Some(number)
        {
            connection.wants = None;
            connection.lines.send(&Message::Turned { number })?;
        }
        if let (Stage::Active, Some(fading)) = (&connection.stage, &self.fading)
            && connection.rounds < fading.rounds()
        {
            connection.rounds = fading.rounds();
            let halved = fading.fade() == Fade::Halve;
            connection.lines.send(&Message::Faded { halved })?;
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
                "the collector speaks version {VERSION} of the protocol, and this translator version {}: \
                 use the same version of Strata at both ends",
                hello.version
            );
            return self.refuse(connection, reason);
        }
        if hello.secret && self.spec.secret.is_none() {
            let reason = "the collector has no secret: start it with --secret-file too".to_owned();
            return self.refuse(connection, reason);
        }
        let Ok(nonce) = nonce() else {
            return self.refuse(connection, "the collector has no random numbers".to_owned());
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
        connection.lines.set_len_max(BEGIN_LEN_MAX);
        connection.lines.send(&Message::Store {
            proof: ours,
            manifest: self.store.as_ref().map(|store| store.manifest.text()),
        })?;
        Ok(Stage::Begin(hello))
    }

    /// Why this translator cannot write now, if another one does.
    fn taken(&self, hello: &Hello) -> Option<String> {
        if let Some(preparing) = &self.preparing {
            return Some(format!(
                "its store is being prepared for {}",
                preparing.peer
            ));
        }
        let other = self.active.as_ref();
        let other = other.filter(|active| active.instance != hello.instance)?;
        Some(format!(
            "the translator {} writes its store: end that translator first, or name another \
             collector",
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

    /// A translator wants to write: its store is prepared, if it is this one.
    fn begin(
        &mut self,
        connection: &mut Connection,
        hello: Hello,
        begin: Begin,
    ) -> std::result::Result<Stage, CollectorError> {
        if let Some(reason) = self.taken(&hello) {
            return self.busy(connection, reason);
        }
        self.leave("it has connected again");
        let prepared = self.order(&begin).and_then(|order| {
            let thread = thread::Builder::new().name("prepare".into());
            let spawned = thread.spawn(move || {
                restricted(Role::Writer);
                order.prepare()
            });
            spawned.at("cannot start the thread that creates the store")
        });
        match prepared {
            Ok(thread) => {
                let peer = connection.peer;
                self.preparing = Some(Preparing { peer, thread });
                Ok(Stage::Preparing(hello, begin))
            }
            Err(error) => self.refuse(connection, error.chain()),
        }
    }

    /// What was prepared, and for whom.
    fn take_prepared(&mut self) -> Option<(SocketAddr, Result<Vec<End>>)> {
        let preparing = &mut self.preparing;
        let done = preparing.take_if(|preparing| preparing.thread.is_finished())?;
        let prepared = match done.thread.join() {
            Ok(prepared) => prepared,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let ends = prepared.map(|prepared| {
            match prepared.new {
                Some(New::Store(store)) => self.store = Some(*store),
                Some(New::Manifest(manifest)) => {
                    let store = self.store.as_mut().expect("it is described anew");
                    store.manifest = *manifest;
                    self.api.renew();
                }
                None => {}
            }
            prepared.ends
        });
        Some((done.peer, ends))
    }

    /// A translator begins to write, if its store could be prepared.
    fn welcome(
        &mut self,
        connection: &mut Connection,
        prepared: Result<Vec<End>>,
    ) -> std::result::Result<(), CollectorError> {
        let Stage::Preparing(hello, begin) = std::mem::replace(&mut connection.stage, Stage::Hello)
        else {
            return Ok(());
        };
        let welcome = prepared.and_then(|ends| self.connect(connection, &hello, &begin, ends));
        connection.stage = match welcome {
            Ok(welcome) => {
                connection.rounds = self.fading.as_ref().map_or(0, Fading::rounds);
                connection.lines.send(&Message::Welcome(welcome))?;
                // To make a large store on a slow disk takes longer than anybody may be silent.
                connection.lines.listen_again();
                self.counters.connections += 1;
                (self.tell)(&translator(connection.peer, None));
                Stage::Active
            }
            Err(error) => self.refuse(connection, error.chain())?,
        };
        Ok(())
    }

    /// What is to be done before a translator may write, if the store that it describes is this one.
    fn order(&self, begin: &Begin) -> Result<Order> {
        let (manifest, plan) = Manifest::parse(&begin.manifest)?;
        let dir = self.spec.store.clone();
        let Some(share) = manifest.share else {
            return Err(RoleError::Refused(
                "the translator does not say which of its collectors this is".to_owned(),
            ));
        };
        if self.fading.is_some() && plan.generations().is_some() {
            return Err(RoleError::Refused(
                "in a store with generations, each generation has its own counters, which cannot be reset or halved: \
                 start `strata telemetry collect` without --reset-counters and --halve-counters"
                    .to_owned(),
            ));
        }
        let Some(store) = &self.store else {
            let (wanted, max) = (plan.parameters.memory_bytes, self.spec.memory_max);
            if wanted > max {
                return Err(RoleError::Refused(format!(
                    "the translator needs {wanted} bytes of memory, but `strata telemetry collect` \
                     allows {max}: start one of them with another --store-memory"
                )));
            }
            let what = What::Make;
            return Ok(Order {
                dir,
                manifest,
                plan,
                what,
            });
        };
        if !store.manifest.is_of(&manifest) {
            return Err(RoleError::Refused(
                "its store was made with other options, or by another translator: name a new store \
                 at `strata telemetry collect -o`, or start the translator with the collector of that \
                 store first"
                    .to_owned(),
            ));
        }
        if let Some(before) = store.manifest.share.filter(|&before| before != share) {
            return Err(RoleError::Refused(before.refusal(share)));
        }
        // The lists have other names, or it is of a version that did not write down its place.
        let is_new = store.manifest != manifest;
        let what = if is_new { What::Describe } else { What::Read };
        let plan = store.plan.clone();
        Ok(Order {
            dir,
            manifest,
            plan,
            what,
        })
    }

    fn connect(
        &mut self,
        connection: &Connection,
        hello: &Hello,
        begin: &Begin,
        all: Vec<End>,
    ) -> Result<Welcome> {
        let refused = |why: &str| RoleError::Refused(why.to_owned());
        if ![256, 512, 1024, 2048, 4096].contains(&begin.mtu) || begin.qpn > MASK_24 {
            return Err(refused("the RDMA MTU or queue pair number is invalid"));
        }
        let answers = SocketAddr::new(connection.peer.ip(), begin.port);
        let local = connection.lines.stream().local_addr();
        let local = local.at("cannot get this end's address")?;
        let local = SocketAddr::new(local.ip().to_canonical(), self.listen.port());
        let (Some(outer), Some(check)) = (outer(local, answers), IcrcCheck::new(answers, local))
        else {
            return Err(refused("one end has an IPv4 address, the other IPv6"));
        };
        let store = self.store.as_mut().expect("prepared before");
        let memory = store.memory.as_ref().expect("the only writer");
        let ends = (0_u32..).zip(all).filter(|(_, end)| end.batches > 0);
        let ends = ends.map(|(list, end)| (list, end.batches, end.entries));
        let (plan, words) = (&store.plan, memory.0.words());
        let youngest = youngest(plan, words);
        let index = youngest.map_or(0, |youngest| youngest.index);
        let offset = plan.generations().map_or(0, |all| all.offset(index));
        let largest = candidates::rows(plan, words, index, offset).map(|(kept, written)| {
            let digits = kept.key.bytes().iter();
            let digits = digits.map(|byte| format!("{byte:02x}")).collect();
            (kept.row, written, digits, kept.count)
        });
        let largest = largest.collect();
        let others = candidates::others_max(plan, words, index);
        let number = youngest.map_or((0, 0), |youngest| (youngest.number, youngest.begun_ns));
        let values = plan.written_values(words, 0).collect();
        let [numbers, rkeys] = nonce().map_err(RoleError::from)?;
        let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).expect("32 bits");
        let (qpn, rkey) = ((low(numbers) & MASK_24).max(2), low(rkeys));
        let events = match low(rkeys >> 32) {
            same if same == rkey => !same,
            other => other,
        };
        let welcome = Welcome {
            qpn,
            rkey,
            va: 0,
            mtu: begin.mtu,
            port: self.listen.port(),
            atomics: WINDOW,
            ends: ends.collect(),
            events,
            largest,
            others,
            values,
            generation: plan.generations().map(|_| number),
        };
        self.responder.register(Region {
            rkey,
            va: 0,
            len: exact::<u64>(memory.0.words().len()),
            domain: DOMAIN,
            access: ACCESS,
            memory: Kept::Store(store.memory.take().expect("as before")),
        });
        let ring = vec![0; SLOT_LEN * exact::<usize>(SLOTS)];
        self.responder.register(Region {
            rkey: events,
            va: 0,
            len: exact::<u64>(ring.len()),
            domain: DOMAIN,
            access: ACCESS,
            memory: Kept::Events(ring),
        });
        self.pushing.rename(&store.manifest.lists);
        self.responder.connect(QueuePairOptions {
            number: qpn,
            peer_number: begin.qpn,
            peer: answers.ip().to_canonical(),
            service: Service::Rc,
            first_psn: Psn::new(begin.psn),
            mtu: begin.mtu,
            domain: DOMAIN,
            access: ACCESS,
        });
        self.responder.keep_atomics(qpn, WINDOW);
        // As many as can be in flight: a translator that writes more has been answered, and so
        // looked at.
        self.responder.post_receives(qpn, WINDOW, 0);
        self.active = Some(Active {
            instance: hello.instance,
            peer: connection.peer,
            qpn,
            rkey,
            events,
            answers,
            icrcs: icrc::Stream::new(outer),
            check,
        });
        Ok(welcome)
    }
}

fn connection(stream: TcpStream, peer: SocketAddr) -> io::Result<Connection> {
    let now = Instant::now();
    Ok(Connection {
        lines: Lines::new(stream, format!("translator {peer}"), FIRST_LEN_MAX)?,
        peer,
        stage: Stage::Hello,
        began: now,
        said: now,
        is_watched: false,
        rounds: 0,
        wants: None,
    })
}
