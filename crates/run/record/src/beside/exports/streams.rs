//! The thread that exports: packets of an interface to a destination are a stream, numbered by itself.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use strata_control::config::ExportPlan;
use strata_control::{Controller, ExportedSession};
use strata_exporter::{
    Announcement, Channel, Header, HeaderWriter, Label, Numbered, PacketWriter, Source, vxlan,
};
use strata_role::{Notice, Tell};
use strata_sys::interface;
use strata_wire::{LinkType, exact, unix_ns};

use super::NewPlan;
use super::dropped::Dropped;
use super::outbox::{News, Outbox};
use super::own::OwnTraffic;
use super::queue::{Chunk, Described, Entry, Spare, StreamKey};
use super::target::Target;
use super::ways::way;
use crate::error::Result;

/// Packets wait at most about this long for a datagram to become full.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// How often the sender is announced, and the path is measured.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);
/// How often at first, so that packets do not come before a name.
const FIRST_TIMES: usize = 3;
/// Streams at most, each of which takes some 60 KiB.
const STREAMS_MAX: usize = 1024;
/// Sessions that have ended and are still listed, of each destination.
const ENDED_MAX: usize = 1024;
/// The end of a stream is announced several times: one of them will arrive.
const ENDS: usize = 8;

/// How packets of a stream are written.
enum Writer {
    Headers(Box<HeaderWriter>),
    Packets(PacketWriter),
    /// Ethernet frames one by one, with this identity.
    Vxlan(u32),
}

impl Writer {
    /// What was sent so far; VXLAN has no numbers.
    fn numbered(&self) -> Numbered {
        match self {
            Self::Headers(writer) => writer.numbered(),
            Self::Packets(writer) => writer.numbered(),
            Self::Vxlan(_) => Numbered::default(),
        }
    }

    /// Sends what waits.
    fn finish(&mut self, outbox: &mut Outbox) {
        match self {
            Self::Headers(writer) => writer.finish(|bytes| outbox.put(bytes)),
            Self::Packets(writer) => writer.finish(|bytes| outbox.put(bytes)),
            Self::Vxlan(_) => {}
        }
    }
}

/// An interface of the recording.
#[derive(Debug)]
struct Known {
    described: Described,
    /// `None` if no identity is left for it.
    identity: Option<u32>,
    /// Of this description: numbers begin at 0 in each.
    session: u32,
}

/// What the thread works on.
pub(super) struct Streams {
    outboxes: Vec<Outbox>,
    /// By the recording's numbers.
    interfaces: BTreeMap<u16, Known>,
    writers: BTreeMap<StreamKey, Writer>,
    /// Sessions that have ended, by destination.
    ended: Vec<VecDeque<ExportedSession>>,
    plan: ExportPlan,
    /// Put there when the configuration is read again.
    new_plan: NewPlan,
    /// The addresses and ports from which the outboxes send, kept up to date here, so that workers do not export these
    /// datagrams again.
    own: Arc<OwnTraffic>,
    host: String,
    next_session: u32,
    dropped: Dropped,
    controller: Arc<Controller>,
    tell: Tell,
}

impl Streams {
    pub(super) fn new(
        targets: Vec<Target>,
        (plan, host): (ExportPlan, String),
        new_plan: NewPlan,
        own: Arc<OwnTraffic>,
        controller: Arc<Controller>,
        waits: bool,
        tell: Tell,
    ) -> Result<Self> {
        let keys = plan.keys.as_ref();
        let outboxes: std::io::Result<Vec<Outbox>> = targets
            .into_iter()
            .map(|target| Outbox::new(target, waits, keys))
            .collect();
        let outboxes = outboxes?;
        let mut streams = Self {
            ended: vec![VecDeque::new(); outboxes.len()],
            outboxes,
            new_plan,
            own,
            interfaces: BTreeMap::new(),
            writers: BTreeMap::new(),
            plan,
            host,
            next_session: getrandom::u32().map_err(std::io::Error::other)?,
            dropped: Dropped::default(),
            controller,
            tell,
        };
        streams.reach();
        streams.publish();
        Ok(streams)
    }

    /// Exports what comes until no worker is left, and `ended` has no other end: then all is counted.
    pub(super) fn run(mut self, queue: &Receiver<Chunk>, ended: &Receiver<()>, spare: &Spare) {
        let mut flushed = Instant::now();
        let mut announced = flushed;
        loop {
            let left = FLUSH_EVERY.saturating_sub(flushed.elapsed());
            match queue.recv_timeout(left) {
                Ok(chunk) => {
                    self.take(&chunk);
                    spare.put(chunk);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout)
                    if ended.try_recv() == Err(TryRecvError::Disconnected) =>
                {
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if announced.elapsed() >= ANNOUNCE_EVERY {
                announced = Instant::now();
                self.adopt();
                self.reach();
                self.measure();
                self.announce(1, false);
            }
            if flushed.elapsed() >= FLUSH_EVERY {
                flushed = Instant::now();
                self.flush();
            }
        }
        self.flush();
        // The last look of the recording at what the kernel has dropped comes before that.
        let _ = ended.recv();
        self.end();
    }

    /// Says how much there was.
    fn end(&mut self) {
        self.look_at_drops();
        for (key, writer) in &mut self.writers {
            let outbox = &mut self.outboxes[usize::from(key.target)];
            for _ in 0..ENDS {
                match writer {
                    Writer::Headers(writer) => writer.end(|bytes| outbox.put(bytes)),
                    Writer::Packets(writer) => writer.end(|bytes| outbox.put(bytes)),
                    Writer::Vxlan(_) => {}
                }
            }
        }
        self.announce(ENDS, true);
        self.flush();
    }

    fn take(&mut self, chunk: &Chunk) {
        for described in &chunk.interfaces {
            self.describe(described);
        }
        for (&key, &packets) in &chunk.lost {
            self.lose(key, packets);
        }
        let is_same = |one: &Entry, next: &Entry| one.stream == next.stream;
        for run in chunk.entries.chunk_by(is_same) {
            self.put(chunk, run);
        }
    }

    /// Each worker describes each interface: only the first, and what differs, is new.
    fn describe(&mut self, described: &Described) {
        let same = |known: &Known| {
            let (one, other) = (&known.described, described);
            one.link == other.link && one.name == other.name
        };
        if self.interfaces.get(&described.id).is_some_and(same) {
            return;
        }
        let identity = self
            .plan
            .identity_of(described.id, described.name.as_deref());
        let others = self
            .interfaces
            .iter()
            .filter(|(id, _)| **id != described.id);
        let is_taken =
            identity.is_some() && others.clone().any(|(_, known)| known.identity == identity);
        let identity = identity.filter(|_| !is_taken);
        if identity.is_none() {
            let name = described.name.as_deref().unwrap_or("without a name");
            (self.tell)(&Notice::warning(format!(
                "export: no identity is left for interface {name}: give it one in \
                 [export.identities]; its packets are not exported, and counted (unfit)"
            )));
        }
        self.warn_without_key(identity);
        self.conclude(described.id);
        if let Some(name) = &described.name {
            self.dropped.begin(name);
        }
        let session = self.next_session;
        self.next_session = session.wrapping_add(1);
        let known = Known {
            described: described.clone(),
            identity,
            session,
        };
        let first = self.announcement(&known, false);
        self.interfaces.insert(described.id, known);
        if let Some(first) = first {
            self.tell_collectors(described.id, first, FIRST_TIMES);
        }
    }

    /// The interface with this number is another one from now on: its session ends.
    fn conclude(&mut self, id: u16) {
        let of = |key: &StreamKey| key.interface == id;
        for (key, writer) in self.writers.iter_mut().filter(|(key, _)| of(key)) {
            writer.finish(&mut self.outboxes[usize::from(key.target)]);
        }
        let last = self.interfaces.get(&id);
        if let Some(last) = last.and_then(|known| self.announcement(known, true)) {
            self.tell_collectors(id, last, ENDS);
        }
        for target in 0..self.outboxes.len() {
            let session = self.session(target, id);
            let ended = &mut self.ended[target];
            ended.extend(session);
            while ended.len() > ENDED_MAX {
                ended.pop_front();
            }
        }
        self.writers.retain(|key, _| !of(key));
    }

    /// The session of an interface, as far as it was exported to this destination.
    fn session(&self, target: usize, interface: u16) -> Option<ExportedSession> {
        let known = self.interfaces.get(&interface)?;
        let (header, packet) = self.numbered(target, interface);
        let packets = header.packets + packet.packets;
        let identity = known.identity.filter(|_| packets > 0)?;
        Some(ExportedSession {
            identity,
            session: known.session,
            packets,
        })
    }

    /// What was sent of an interface to a destination: headers, and packets.
    fn numbered(&self, target: usize, interface: u16) -> (Numbered, Numbered) {
        let sent = |is_header| {
            let writer = self.writers.get(&StreamKey {
                target: exact::<u16>(target),
                interface,
                is_header,
            });
            writer.map_or(Numbered::default(), Writer::numbered)
        };
        (sent(true), sent(false))
    }

    fn lose(&mut self, key: StreamKey, packets: u64) {
        let outbox = &mut self.outboxes[usize::from(key.target)];
        let Some(writer) = writer(&mut self.writers, &self.interfaces, outbox, key) else {
            outbox.status.unfit += packets;
            return;
        };
        outbox.status.lost += packets;
        match writer {
            Writer::Headers(writer) => writer.skip(packets, |bytes| outbox.put(bytes)),
            Writer::Packets(writer) => writer.skip(packets, |bytes| outbox.put(bytes)),
            Writer::Vxlan(_) => {}
        }
    }

    /// Packets of one stream, or of them what is exported.
    fn put(&mut self, chunk: &Chunk, run: &[Entry]) {
        let key = run[0].stream;
        let outbox = &mut self.outboxes[usize::from(key.target)];
        let Some(writer) = writer(&mut self.writers, &self.interfaces, outbox, key) else {
            outbox.status.unfit += run.len() as u64;
            return;
        };
        outbox.status.packets += run.len() as u64;
        let headers = run.iter().map(|entry| header(chunk, entry));
        match writer {
            Writer::Headers(writer) => {
                for header in headers {
                    let done = writer.put(&header, |bytes| outbox.put(bytes));
                    outbox.status.unfit += u64::from(done.is_err());
                }
            }
            Writer::Packets(writer) => {
                headers.for_each(|packet| writer.put(&packet, |bytes| outbox.put(bytes)));
            }
            Writer::Vxlan(identity) => {
                let (start, room) = (vxlan::header(*identity), outbox.room - vxlan::HEADER_LEN);
                for Header { bytes, .. } in headers {
                    let frame = &bytes[..bytes.len().min(room)];
                    outbox.status.cut += u64::from(frame.len() < bytes.len());
                    let way = way(LinkType::ETHERNET, frame, outbox.ways());
                    outbox.put_frame(way, &start, frame);
                }
            }
        }
    }

    /// Looks for ways to destinations that had none.
    fn reach(&mut self) {
        for (target, outbox) in self.outboxes.iter_mut().enumerate() {
            if let Some(own) = outbox.reach() {
                self.own.set(target, own);
            }
        }
    }

    /// Encrypts with the keys, sends to the addresses, and announces what the configuration says now.
    fn adopt(&mut self) {
        let new = self.new_plan.lock();
        let Some(plan) = new.unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        self.plan.behind = plan.behind;
        for (outbox, named) in self.outboxes.iter_mut().zip(&self.plan.destinations) {
            let mut now = plan.destinations.iter();
            let now =
                now.find(|now| now.name == named.name && now.destination == named.destination);
            outbox.use_address(now.and_then(|now| now.address));
        }
        let Some(keys) = plan
            .keys
            .filter(|keys| self.plan.keys.as_ref() != Some(keys))
        else {
            return;
        };
        for outbox in &mut self.outboxes {
            outbox.use_keys(&keys);
        }
        self.plan.keys = Some(keys);
        for known in self.interfaces.values() {
            self.warn_without_key(known.identity);
        }
    }

    fn warn_without_key(&self, identity: Option<u32>) {
        let keys = self.plan.keys.as_ref();
        if let (Some(identity), Some(keys)) = (identity, keys)
            && keys.to_seal(identity).is_none()
        {
            (self.tell)(&Notice::warning(format!(
                "export: export.key_file has no key for identity {identity}: its packets are not sent \
                 to collectors, and counted (unfit)"
            )));
        }
    }

    /// Adopts what the paths carry now.
    fn measure(&mut self) {
        for at in 0..self.outboxes.len() {
            if !self.outboxes[at].measure() {
                continue;
            }
            let outbox = &mut self.outboxes[at];
            let room = outbox.room;
            let of = |key: &StreamKey| usize::from(key.target) == at;
            for (_, writer) in self.writers.iter_mut().filter(|(key, _)| of(key)) {
                match writer {
                    Writer::Headers(writer) => {
                        writer.set_room(room, |bytes| outbox.put(bytes));
                    }
                    Writer::Packets(writer) => {
                        writer.set_room(room, |bytes| outbox.put(bytes));
                    }
                    Writer::Vxlan(_) => {}
                }
            }
        }
    }

    /// Looks at how many packets the kernel has dropped.
    fn look_at_drops(&mut self) {
        let times = self.controller.export_times().now();
        let is_exporting = unix_ns() >= times.start;
        self.dropped.look(self.controller.dropped(), is_exporting);
    }

    /// Says to each collector who has which identity and what was sent, `times` times.
    fn announce(&mut self, times: usize, has_ended: bool) {
        let known = self.interfaces.iter().take(STREAMS_MAX);
        let all = known.filter_map(|(&id, known)| Some((id, self.announcement(known, has_ended)?)));
        for (id, announcement) in all.collect::<Vec<_>>() {
            self.tell_collectors(id, announcement, times);
        }
    }

    /// Each hears how much was sent to itself.
    fn tell_collectors(&mut self, interface: u16, mut announcement: Announcement, times: usize) {
        let identity = announcement.source.identity;
        let targets = 0..self.outboxes.len();
        let sent: Vec<_> = targets
            .map(|target| self.numbered(target, interface))
            .collect();
        for (target, outbox) in self.outboxes.iter_mut().enumerate() {
            if outbox.destination().channel != Channel::Udp || !outbox.has_key(identity) {
                continue;
            }
            (announcement.headers, announcement.packets) = sent[target];
            let datagram = announcement.datagram();
            for _ in 0..times {
                outbox.announce(&datagram);
            }
        }
    }

    /// Who an interface is; `None` if it has no identity.
    fn announcement(&self, known: &Known, has_ended: bool) -> Option<Announcement> {
        let name = known.described.name.as_deref().unwrap_or("");
        let (is_there, index) = match interface::index(name) {
            Ok(index) => (true, index),
            Err(_) => (false, 0),
        };
        let read = |file: &str| {
            let path = Path::new("/sys/class/net").join(name).join(file);
            let text = is_there.then(|| fs::read_to_string(path).ok()).flatten();
            text.map_or(String::new(), |text| text.trim().to_owned())
        };
        Some(Announcement {
            source: Source {
                identity: known.identity?,
                session: known.session,
            },
            link: known.described.link,
            dropped: self.dropped.of(name),
            headers: Numbered::default(),
            packets: Numbered::default(),
            has_ended,
            index,
            mac: mac(&read("address")),
            host: self.host.clone(),
            interface: name.to_owned(),
            alias: read("ifalias"),
            behind: self
                .plan
                .behind
                .get(name)
                .map_or("", String::as_str)
                .to_owned(),
        })
    }

    /// Sends all that waits, and says what was sent so far.
    fn flush(&mut self) {
        self.look_at_drops();
        for (key, writer) in &mut self.writers {
            writer.finish(&mut self.outboxes[usize::from(key.target)]);
        }
        for outbox in &mut self.outboxes {
            outbox.flush();
            let news = outbox.take_news();
            let to = &outbox.status.to;
            match news {
                None => {}
                Some(News::Problem(error)) => (self.tell)(&Notice::warning(format!(
                    "export to {to}: {error}; the recording continues, and datagrams that are not \
                     sent are counted"
                ))),
                Some(News::Over) => (self.tell)(&Notice::info(
                    "interfaces",
                    format!("export to {to}: sending works again"),
                )),
            }
        }
        self.publish();
    }

    fn publish(&self) {
        let status = self.outboxes.iter().enumerate().map(|(target, outbox)| {
            let mut status = outbox.status.clone();
            let now = self.interfaces.keys();
            let now = now.filter_map(|interface| self.session(target, *interface));
            status.sessions = self.ended[target].iter().copied().chain(now).collect();
            status
        });
        self.controller.set_exports(status.collect());
    }
}

fn header<'a>(chunk: &'a Chunk, entry: &Entry) -> Header<'a> {
    Header {
        ts_ns: entry.ts_ns,
        wire_len: entry.wire_len,
        bytes: chunk.bytes(entry),
        label: Label {
            policy: entry.policy,
            class: entry.class,
            one_in: entry.one_in,
        },
    }
}

/// The writer of a stream; `None` if it cannot be exported.
fn writer<'a>(
    writers: &'a mut BTreeMap<StreamKey, Writer>,
    interfaces: &BTreeMap<u16, Known>,
    outbox: &Outbox,
    key: StreamKey,
) -> Option<&'a mut Writer> {
    if !writers.contains_key(&key) {
        let known = interfaces.get(&key.interface)?;
        if !outbox.has_key(known.identity?) {
            return None;
        }
        let source = Source {
            identity: known.identity?,
            session: known.session,
        };
        if writers.len() >= STREAMS_MAX {
            return None;
        }
        let link = known.described.link;
        let writer = match (outbox.destination().channel, key.is_header) {
            (Channel::Udp, true) => {
                Writer::Headers(Box::new(HeaderWriter::new(source, link, outbox.room)))
            }
            (Channel::Udp, false) => Writer::Packets(PacketWriter::new(source, link, outbox.room)),
            (Channel::Vxlan, false) if link == LinkType::ETHERNET => Writer::Vxlan(source.identity),
            (Channel::Vxlan, _) => return None,
        };
        writers.insert(key, writer);
    }
    writers.get_mut(&key)
}

/// An address as the kernel writes it; 0 if it is invalid.
fn mac(text: &str) -> [u8; 6] {
    let mut bytes = [0; 6];
    let parts: Option<Vec<u8>> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok())
        .collect();
    if let Some(parts) = parts
        && parts.len() == bytes.len()
    {
        bytes.copy_from_slice(&parts);
    }
    bytes
}
