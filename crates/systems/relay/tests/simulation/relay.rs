//! A relay: the protocol's state machines, the software responder, and a log on a virtual disk.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use strata_blocks::{RelayedHeader, SEGMENTS_AT};
use strata_rdma::{Access, Psn, QueuePairOptions, Region, Replies, Responder};
use strata_relay::RelayError;
use strata_relay::memory::Blocks as Memory;
use strata_relay::protocol::relay::{
    Action, Arrivals, Beginning, BlockWrite, Blocks, Define, Entrance, Gate, Place, Session,
    SessionOptions, check_numbers,
};
use strata_relay::protocol::{
    Decoder, FIRST_LEN_MAX, HelloPath, Message, Stored, Welcome, WelcomePath,
};
use strata_store::{About, RelayLog, RelayStream, StoreError, StreamOptions};
use strata_sys::disk::{AnyBlock, DiskBlock};
use strata_testkit::sim::{MS, SECOND};
use strata_testkit_disk::SimDisk;
use strata_wire::Ledger;
use strata_wire::roce::{Packet, Service};
use strata_wire::segment::Segments;

use crate::disk::Disk;
use crate::net::{Conn, End, Net, Writing};

const SWITCH: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const VA: u64 = 1 << 40;
/// How often the responder's thread empties its socket.
const EMPTIED_EVERY: u64 = 20 * MS;

/// A connected switch.
struct Served {
    session: Session,
    stream: RelayStream,
    rkey: u32,
    qpn: u32,
}

#[allow(clippy::large_enum_variant, reason = "there are few")]
enum Stage {
    Entering(Entrance),
    /// Waits for an earlier connection of the same switch to make way.
    Waiting(Beginning, u64),
    Serving(Box<Served>),
    /// It got the reason for its refusal.
    Leaving(u64),
}

struct Connected {
    decoder: Decoder,
    stage: Stage,
    hung_up: bool,
}

pub(crate) struct RelayNode {
    log: Arc<RelayLog>,
    responder: RefCell<Responder<Memory>>,
    peers: BTreeMap<u32, Conn>,
    conns: BTreeMap<Conn, Connected>,
    replies: Replies,
    next_number: u32,
    blocks: Blocks,
    disk: Disk,
    /// Why the log can no longer be written.
    failure: Option<String>,
    stopping: bool,
}

struct Seen<'a> {
    responder: &'a RefCell<Responder<Memory>>,
    rkey: u32,
    qpn: u32,
    now: u64,
}

impl Arrivals for Seen<'_> {
    fn has_arrived(&self, end_psn: u32) -> bool {
        let responder = self.responder.borrow();
        let qp = responder.queue_pair(self.qpn);
        qp.is_none_or(|qp| qp.expected().since(Psn::new(end_psn)) >= 0)
    }

    fn emptied(&self) -> u64 {
        self.now / EMPTIED_EVERY
    }

    fn has_taken_all(&self, emptied: u64) -> bool {
        self.emptied() >= emptied + 2
    }

    fn used(&self, place: Place, key: u32, number: u64) -> Option<usize> {
        let mut responder = self.responder.borrow_mut();
        let region = responder.region_mut(self.rkey)?;
        let memory = region.memory.take(place.index)?;
        let segments = Segments::new(memory.segments(), key, number as u32);
        let used = segments.last().map_or(0, |(range, _)| range.end);
        region.memory.give_back(place.index, memory);
        Some(used)
    }
}

impl RelayNode {
    pub(crate) fn start(disk: &SimDisk, net: &mut Net) -> Result<Self, StoreError> {
        let disk_of_log = Disk::new(net.now());
        net.wake(End::Relay, disk_of_log.next_look_ns());
        Ok(Self {
            disk: disk_of_log,
            log: RelayLog::open(Arc::new(disk.clone()))?,
            responder: RefCell::default(),
            peers: BTreeMap::new(),
            conns: BTreeMap::new(),
            replies: Replies::default(),
            next_number: 2,
            blocks: Blocks {
                bytes: 1 << 20,
                count: 2 + net.rng.below(3) as usize,
            },
            failure: None,
            stopping: false,
        })
    }

    /// Whether its process is ending, and whether it has ended.
    pub(crate) fn is_ending(&self) -> bool {
        self.stopping || self.failure.is_some()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.conns.is_empty()
    }

    pub(crate) fn stop(&mut self, net: &mut Net) {
        self.stopping = true;
        net.wake(End::Relay, 0);
    }

    /// Connections that will find their other end gone.
    pub(crate) fn connections(&self) -> impl Iterator<Item = Conn> {
        self.conns.keys().copied()
    }

    pub(crate) fn connect(&mut self, conn: Conn, net: &mut Net) {
        if self.is_ending() {
            return net.connected(conn, false);
        }
        let mut decoder = Decoder::new("switch".into(), true);
        decoder.set_limit(FIRST_LEN_MAX);
        let stage = Stage::Entering(Entrance::new("switch".into(), net.now()));
        let hung_up = false;
        self.conns.insert(
            conn,
            Connected {
                decoder,
                stage,
                hung_up,
            },
        );
        net.connected(conn, true);
        net.wake(End::Relay, net.now() + 5 * SECOND);
    }

    pub(crate) fn bytes(&mut self, conn: Conn, bytes: &[u8], net: &mut Net) {
        match self.conns.get_mut(&conn) {
            Some(connected) => {
                connected.decoder.push(bytes);
                self.run(conn, net);
            }
            // This connection is unknown.
            None => net.hang_up(conn, End::Switch),
        }
    }

    pub(crate) fn hung_up(&mut self, conn: Conn, net: &mut Net) {
        if let Some(connected) = self.conns.get_mut(&conn) {
            connected.hung_up = true;
            self.run(conn, net);
        }
    }

    pub(crate) fn packet(&mut self, bytes: &[u8], net: &mut Net) {
        let packet = Packet::new_checked(bytes).unwrap();
        let Some(&conn) = self.peers.get(&packet.dest_qp()) else {
            return;
        };
        let responder = self.responder.get_mut();
        // Drops are silent, as in a NIC.
        let _ = responder.receive(SWITCH, &packet, &mut self.replies);
        responder.acknowledge(&mut self.replies);
        for index in 0..self.replies.from.len() {
            let reply = self.replies.packets.get(index);
            net.packet(conn, End::Switch, reply);
        }
        self.replies.clear();
        self.run(conn, net);
    }

    /// A write is complete: only now is anything on the disk.
    pub(crate) fn written(&mut self, writing: Writing, net: &mut Net) {
        let Writing {
            conn,
            job,
            place,
            placed,
            block,
        } = writing;
        let AnyBlock::Own(own) = &block else {
            panic!("the responder's memory is its own");
        };
        if place.is_some() {
            self.disk.waiting -= 1;
        }
        let outcome = placed.write(own.bytes());
        let header = own.bytes().first_chunk().and_then(RelayedHeader::parse);
        let missing = header.map_or(0, |header| header.missing(&own.bytes()[SEGMENTS_AT..]));
        let Some(Connected {
            stage: Stage::Serving(served),
            ..
        }) = self.conns.get_mut(&conn)
        else {
            panic!("a session waits for all of its jobs");
        };
        if let Some(place) = place {
            let mut responder = self.responder.borrow_mut();
            if let Some(region) = responder.region_mut(served.rkey) {
                region.memory.give_back_sealed(place, block);
            }
        }
        let missing = if served.session.counts_missing() {
            missing
        } else {
            0
        };
        let outcome = outcome.map(|()| missing).map_err(RelayError::from);
        served.session.written(job, outcome);
        self.run(conn, net);
    }

    pub(crate) fn run_all(&mut self, net: &mut Net) {
        let blocks = (self.conns.len() * self.blocks.count) as u64;
        self.disk.look(net.disk_used, blocks, net.now());
        net.wake(End::Relay, self.disk.next_look_ns());
        let conns: Vec<Conn> = self.conns.keys().copied().collect();
        for conn in conns {
            self.run(conn, net);
        }
    }

    /// Advances a connection as far as possible.
    fn run(&mut self, conn: Conn, net: &mut Net) {
        for _ in 0..100_000 {
            let Some(mut connected) = self.conns.remove(&conn) else {
                return;
            };
            let goes_on = match &mut connected.stage {
                Stage::Entering(_) => self.enter(conn, &mut connected, net),
                Stage::Waiting(..) => self.begin(conn, &mut connected, net),
                Stage::Serving(_) => self.serve(conn, &mut connected, net),
                Stage::Leaving(until) if net.now() < *until && !connected.hung_up => {
                    net.wake(End::Relay, *until);
                    Some(false)
                }
                Stage::Leaving(_) => None,
            };
            match goes_on {
                None => return net.hang_up(conn, End::Switch),
                Some(goes_on) => {
                    self.conns.insert(conn, connected);
                    if !goes_on {
                        return;
                    }
                }
            }
        }
        panic!("a relay that never rests");
    }

    /// Returns `None` if the connection is closed.
    fn enter(&mut self, conn: Conn, connected: &mut Connected, net: &mut Net) -> Option<bool> {
        let Connected {
            decoder,
            stage,
            hung_up,
        } = connected;
        let Stage::Entering(entrance) = stage else {
            return Some(true);
        };
        if self.is_ending() {
            return None;
        }
        let now = net.now();
        let Some(message) = decoder.next_message().ok()? else {
            entrance.tick(now).ok()?;
            return (!*hung_up).then_some(false);
        };
        let gate = Gate {
            secret: None,
            has_tls: false,
        };
        let begins = entrance
            .receive(message, gate, [net.rng.bits(); 4], now)
            .ok()?;
        let said: Vec<Message> = entrance.messages().collect();
        for message in &said {
            net.say(conn, End::Switch, message);
        }
        decoder.set_limit(entrance.body_len_max());
        if let Some(beginning) = begins {
            *stage = Stage::Waiting(beginning, now + 5 * SECOND);
        }
        Some(true)
    }

    fn begin(&mut self, conn: Conn, connected: &mut Connected, net: &mut Net) -> Option<bool> {
        let Stage::Waiting(beginning, until) = &connected.stage else {
            return Some(true);
        };
        let now = net.now();
        match self.begun(conn, beginning, net) {
            Ok(served) => connected.stage = Stage::Serving(Box::new(served)),
            Err(RelayError::Store(StoreError::StreamTaken))
                if now < *until && !self.is_ending() =>
            {
                net.wake(End::Relay, now + 10 * MS);
                return Some(false);
            }
            Err(error) => {
                let told = self.note_failure(&error, net);
                let told = told.unwrap_or_else(|| Message::Refused(error.to_string()));
                net.say(conn, End::Switch, &told);
                connected.stage = Stage::Leaving(now + SECOND);
            }
        }
        Some(true)
    }

    fn begun(
        &mut self,
        conn: Conn,
        beginning: &Beginning,
        net: &mut Net,
    ) -> Result<Served, RelayError> {
        let begin = &beginning.begin;
        check_numbers(begin)?;
        let about = About {
            program: begin.program.clone(),
            mode: begin.mode.clone(),
            model: begin.model.clone(),
            model_json: beginning.model.clone(),
            hash_seed: begin.hash_seed,
            ..About::default()
        };
        let stream = self.log.stream(&StreamOptions {
            about,
            session: beginning.hello.session.clone(),
            worker: beginning.hello.worker,
            rotate_bytes: 4 << 20,
        })?;
        let HelloPath::Rdma {
            reliable,
            qpn,
            psn,
            mtu,
            ..
        } = begin.path
        else {
            return Err(RelayError::Refused("no queue pair".into()));
        };
        self.next_number += 1;
        let (number, rkey) = (self.next_number, net.rng.bits() as u32);
        let access = Access {
            write: true,
            atomic: true,
        };
        let memory = Memory::new(self.blocks.count, self.blocks.bytes);
        let block_stride = memory.stride();
        let responder = self.responder.get_mut();
        responder.register(Region {
            rkey,
            va: VA,
            len: memory.bytes(),
            domain: number,
            access,
            memory,
        });
        responder.connect(QueuePairOptions {
            number,
            peer_number: qpn,
            peer: SWITCH,
            service: if reliable { Service::Rc } else { Service::Uc },
            first_psn: Psn::new(psn),
            mtu,
            domain: number,
            access,
        });
        self.peers.insert(number, conn);
        let blocks_max = self.blocks.unconfirmed_max();
        let stored = stream.stored_since(begin.unconfirmed_seq, blocks_max, begin.resends)?;
        let welcome = Welcome {
            recording: stream.recording(),
            block_bytes: self.blocks.bytes,
            block_stride,
            blocks: self.blocks.count,
            stored: Stored {
                next_seq: stored.next_seq,
                packets: stored.counters.packets,
                wire_bytes: stored.counters.wire_bytes,
                logged_bytes: stored.counters.logged_bytes,
                cut_bytes: stored.counters.cut_bytes,
            },
            path: WelcomePath::Rdma {
                qpn: number,
                rkey,
                va: VA + SEGMENTS_AT as u64,
                mtu,
                port: 4791,
                psn: 0,
            },
        };
        let options = SessionOptions {
            blocks: self.blocks,
            recording: stream.recording(),
            worker: beginning.hello.worker,
            first_seq: match begin.resends {
                true => stored.next_seq,
                false => begin.first_seq,
            },
        };
        let welcome = Message::Welcome(Box::new(welcome));
        let session = Session::new("switch".into(), options, begin, welcome, net.now());
        Ok(Served {
            session,
            stream,
            rkey,
            qpn: number,
        })
    }

    /// As the relay does: the message to a switch.
    fn note_failure(&mut self, error: &RelayError, net: &mut Net) -> Option<Message> {
        let reason = match error {
            RelayError::Failed(reason) => reason.clone(),
            RelayError::Store(StoreError::StreamTaken) => return None,
            RelayError::Store(error) => format!("the relay's log cannot be written: {error}"),
            _ => return None,
        };
        if self.failure.is_none() {
            net.wake(End::Relay, 0);
        }
        Some(Message::Failed(self.failure.get_or_insert(reason).clone()))
    }

    /// As the session's thread does.
    fn serve(&mut self, conn: Conn, connected: &mut Connected, net: &mut Net) -> Option<bool> {
        let Stage::Serving(served) = &mut connected.stage else {
            return Some(true);
        };
        let (decoder, hung_up) = (&mut connected.decoder, connected.hung_up);
        let turn = self.turn(conn, served, decoder, hung_up, net);
        let goes_on = match turn {
            Ok(goes_on) => goes_on,
            Err(error) => {
                let last = match (self.note_failure(&error, net), &error) {
                    (Some(failed), _) => Some(failed),
                    (
                        None,
                        RelayError::Refused(_) | RelayError::Store(_) | RelayError::Protocol { .. },
                    ) => Some(Message::Refused(error.to_string())),
                    _ => None,
                };
                served.session.lose(last, net.now());
                true
            }
        };
        if served.session.is_over() {
            let responder = self.responder.get_mut();
            self.peers.remove(&served.qpn);
            responder.disconnect(served.qpn);
            responder.deregister(served.rkey);
            return None;
        }
        let now = net.now();
        let rests = match served.session.awaits_arrivals() {
            true => now + EMPTIED_EVERY,
            false => served.session.deadline_ns(),
        };
        // A writer's result arrives as an event of its own.
        net.wake(End::Relay, if rests <= now { now + SECOND } else { rests });
        Some(goes_on)
    }

    fn turn(
        &mut self,
        conn: Conn,
        served: &mut Served,
        decoder: &mut Decoder,
        hung_up: bool,
        net: &mut Net,
    ) -> Result<bool, RelayError> {
        let now = net.now();
        let mut worked = false;
        let seen = Seen {
            responder: &self.responder,
            rkey: served.rkey,
            qpn: served.qpn,
            now,
        };
        while served.session.listens()
            && let Some(message) = decoder.next_message()?
        {
            worked = true;
            served.session.receive(message, &seen, now)?;
        }
        if hung_up && served.session.listens() {
            return Err(RelayError::Closed {
                peer: "switch".into(),
            });
        }
        served.session.ask(&self.disk.shortage);
        served.session.step(&seen, now)?;
        while let Some(action) = served.session.action() {
            worked = true;
            self.act(conn, served, action, net)?;
        }
        if served.session.is_serving() {
            if let Some(reason) = &self.failure {
                return Err(RelayError::Failed(reason.clone()));
            }
            if self.stopping {
                return Err(RelayError::Refused("the relay is stopping".into()));
            }
            if served.stream.is_wanted() {
                let reason = "the same switch has connected again";
                return Err(RelayError::Refused(reason.into()));
            }
        }
        Ok(worked)
    }

    fn act(
        &mut self,
        conn: Conn,
        served: &mut Served,
        action: Action,
        net: &mut Net,
    ) -> Result<(), RelayError> {
        match action {
            Action::Send(message) => net.say(conn, End::Switch, &message),
            Action::Checkpoint {
                next_seq,
                durable_seq,
                seen,
            } => {
                served.stream.checkpoint(next_seq, durable_seq, seen)?;
            }
            Action::Define(define) => Self::define(conn, served, &define, net),
            Action::Write(block) => return self.write(conn, served, block, net),
            Action::End(None) => served.stream.end(None)?,
            Action::End(Some(end)) => {
                let ledger = end.accounting.as_ref().map(Ledger::from);
                let accounting = ledger.as_ref().map(|ledger| (ledger, end.warnings));
                served.stream.end(accounting)?;
            }
        }
        Ok(())
    }

    fn define(conn: Conn, served: &mut Served, define: &Define, net: &mut Net) {
        let made = served
            .stream
            .definitions(&define.definitions, define.block_bytes);
        let given = match made {
            Ok(None) => return served.session.written(define.job, Ok(0)),
            Ok(Some(block)) => {
                let block = AnyBlock::Own(block);
                Self::give(conn, served, define.job, block, (None, None), net)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = given {
            served.session.written(define.job, Err(error.into()));
        }
    }

    fn write(
        &mut self,
        conn: Conn,
        served: &mut Served,
        BlockWrite { job, place, header }: BlockWrite,
        net: &mut Net,
    ) -> Result<(), RelayError> {
        let mut responder = self.responder.borrow_mut();
        let region = responder.region_mut(served.rkey);
        let Some(memory) = region.and_then(|region| region.memory.take(place.index)) else {
            served.session.withdraw(job);
            return Err(RelayError::Refused(
                "a block that does not belong to the switch".into(),
            ));
        };
        drop(responder);
        let block = memory.seal(&header);
        let of = (Some(place.index), Some(header.packets));
        match Self::give(conn, served, job, block, of, net) {
            Ok(()) => self.disk.waiting += 1,
            Err(error) => served.session.written(job, Err(error.into())),
        }
        Ok(())
    }

    fn give(
        conn: Conn,
        served: &mut Served,
        job: u64,
        block: AnyBlock,
        (place, packets): (Option<usize>, Option<u64>),
        net: &mut Net,
    ) -> Result<(), StoreError> {
        let placed = served.stream.place(block.memory().len() as u64, packets)?;
        net.write(Writing {
            conn,
            job,
            place,
            placed,
            block,
        });
        Ok(())
    }
}
