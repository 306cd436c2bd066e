//! Where datagrams of vectors go: peers, a file, a ring in shared memory, and a stream.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use strata_gpv::export::{FlowRule, FlowRules};
use strata_gpv::format::control::FlushSlots;
use strata_gpv::format::datagram::Datagram;
use strata_role::sandbox::Reach;
use strata_role::{Feed, FeedSpec, Notice, RoleError, Tell};
use strata_store::Sources;

use super::grouping::To;
use super::listed::{Target, TargetList};
use crate::error::{At as _, Result, VectorError};
use crate::ring::RingWriter;
use crate::rotation::{Rotation, RotationSpec};

/// Where vectors go.
#[derive(Debug, Default)]
pub struct OutletsSpec {
    /// By UDP.
    pub to: Vec<Target>,
    /// By UDP too, as a file says at any time. Only for the form strata.
    pub listed: Option<TargetList>,
    /// To a file.
    pub file: Option<VectorFile>,
    /// To a ring in shared memory.
    pub ring: Option<RingSpec>,
    /// To a stream, whose name the outcome has.
    pub stream: Option<(String, Box<dyn FeedSpec>)>,
    /// The inputs, which must not be overwritten.
    pub sources: Sources,
}

/// A file of vectors. If the program is interrupted, the vectors in the file are whole.
#[derive(Debug)]
pub enum VectorFile {
    /// A file of this name, and the files that follow it by rotation.
    Named(PathBuf, Option<RotationSpec>),
    /// An open file, with its name for messages.
    Open(String, File),
}

/// A ring to be created.
#[derive(Clone, Debug)]
pub struct RingSpec {
    /// Its file, preferably in memory (/dev/shm).
    pub path: PathBuf,
    /// Approximate size in bytes.
    pub bytes: u64,
}

/// A file or a peer, and what went there.
pub(super) struct Outlet {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
    pub(super) unsent: u64,
    /// Why the first datagram that could not be sent was not.
    pub(super) error: Option<io::Error>,
}

impl Outlet {
    fn new(id: usize, name: String) -> Self {
        Self {
            id: strata_wire::exact(id),
            name,
            datagrams: 0,
            bytes: 0,
            unsent: 0,
            error: None,
        }
    }
}

/// A file of vectors.
struct Written {
    outlet: Outlet,
    to: Place,
    sources: Sources,
    writer: Option<BufWriter<File>>,
    /// Bytes in the file.
    bytes: u64,
    /// The datagram that ends the file if another one follows.
    end: Vec<u8>,
    /// As many files as wanted are complete: what is left goes to the last one.
    is_complete: bool,
}

enum Place {
    Named(PathBuf, Option<Rotation>),
    /// `None` once the writer has it.
    Open(Option<File>),
}

/// A ring, once it is made.
struct Ring {
    outlet: Outlet,
    spec: RingSpec,
    /// Maximum bytes of a datagram.
    datagram_max: usize,
    writer: Option<RingWriter>,
}

/// A stream.
struct Streamed {
    outlet: Outlet,
    state: Streaming,
}

enum Streaming {
    Planned(Box<dyn FeedSpec>),
    Open(Box<dyn Feed>),
    Ended,
}

/// Maximum number of peers.
pub(super) const TARGETS_MAX: usize = 32;
/// Maximum number of peers that the file of targets had before.
const FORMER_MAX: usize = 1024;
/// Control packets that are read of a peer at once: others wait.
const CONTROL_MAX: usize = 64;
/// Bytes of a control packet at most; what is longer is cut, and then none.
const CONTROL_BYTES: usize = 2048;

/// A peer.
struct Peer {
    socket: UdpSocket,
    outlet: Outlet,
    rule: FlowRule,
    /// Whether it is in the file of targets, which may remove it.
    is_listed: bool,
}

impl Peer {
    fn open(target: &Target, outlet: Outlet, is_listed: bool) -> io::Result<Self> {
        let local = match target.address {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let socket = UdpSocket::bind(local)?;
        socket.connect(target.address)?;
        Ok(Self {
            socket,
            outlet,
            rule: target.rule.clone(),
            is_listed,
        })
    }
}

/// Everything that vectors are written to.
pub(super) struct Outlets {
    peers: Vec<Peer>,
    listed: Option<TargetList>,
    /// Peers that the file of targets has no longer: if it has one again, its vectors are numbered on.
    former: Vec<Outlet>,
    /// The number of the next peer.
    next_id: usize,
    file: Option<Written>,
    ring: Option<Ring>,
    stream: Option<Streamed>,
    /// A write to the file that failed ends the run.
    failure: Option<io::Error>,
    /// As does one to a stream that is waited for.
    stream_failure: Option<RoleError>,
}

impl Outlets {
    /// Where datagrams of at most this number of bytes go. Files are not yet made.
    pub(super) fn open(spec: OutletsSpec, datagram_max: usize) -> Result<Self> {
        let file = spec.file.map(Place::of).transpose()?;
        let mut peers = Vec::new();
        let mut listed = spec.listed;
        let of_file = listed.as_mut().map(TargetList::read).transpose()?;
        let of_file = of_file.into_iter().flatten().map(|target| (target, true));
        let given = spec.to.into_iter().map(|target| (target, false));
        for (id, (target, is_listed)) in given.chain(of_file).enumerate() {
            let name = &target.name;
            let peer = Peer::open(&target, Outlet::new(id, name.clone()), is_listed);
            peers.push(peer.at_with(|| format!("--send-to {name}: cannot send to this address"))?);
        }
        let mut id = peers.len();
        let mut outlet = |name| {
            id += 1;
            Outlet::new(id - 1, name)
        };
        let sources = spec.sources;
        let file = file.map(|(name, to)| Written::new(outlet(name), to, sources));
        let ring = spec.ring.map(|spec| Ring {
            outlet: outlet(spec.path.display().to_string()),
            spec,
            datagram_max,
            writer: None,
        });
        let stream = spec.stream.map(|(name, feed)| Streamed {
            outlet: outlet(name),
            state: Streaming::Planned(feed),
        });
        Ok(Self {
            file: file.transpose()?,
            ring,
            stream,
            peers,
            listed,
            former: Vec::new(),
            next_id: id,
            failure: None,
            stream_failure: None,
        })
    }

    /// What is needed in the sandbox.
    pub(super) fn reach(&self) -> Reach {
        let mut reach = Reach::default();
        reach
            .again
            .extend(self.listed.iter().map(|list| list.path().to_owned()));
        if let Some(Streaming::Planned(feed)) = self.stream.as_ref().map(|stream| &stream.state) {
            reach.write.extend(feed.writes());
        }
        if let Some(ring) = &self.ring {
            reach.makes(&ring.spec.path);
        }
        if let Some(Place::Named(path, _)) = self.file.as_ref().map(|file| &file.to) {
            reach.makes(path);
        }
        reach
    }

    /// Creates the file and the ring, and opens the stream.
    pub(super) fn create(&mut self, tell: &Tell) -> Result<()> {
        if let Some(stream) = &mut self.stream {
            stream.open(tell)?;
        }
        if let Some(ring) = &mut self.ring {
            let RingSpec { path, bytes } = &ring.spec;
            let writer = RingWriter::create(path, *bytes, ring.datagram_max)?;
            ring.writer = Some(writer);
        }
        self.file.as_mut().map_or(Ok(()), Written::create)
    }

    /// The slots that agents asked to be flushed since the last call, of a cache with `slots_max`
    /// slots. They answer from where vectors go, and name the cache by its number.
    pub(super) fn asked(&mut self, slots_max: u32) -> Vec<u32> {
        let mut slots = Vec::new();
        let mut bytes = [0; CONTROL_BYTES];
        for Peer { socket, outlet, .. } in &mut self.peers {
            for _ in 0..CONTROL_MAX {
                // More than all of them need not be flushed at once: the rest waits.
                if slots.len() >= strata_wire::exact::<usize>(slots_max) {
                    break;
                }
                let (len, _) = match rustix::net::recv(&*socket, &mut bytes, RecvFlags::DONTWAIT) {
                    Ok(received) => received,
                    Err(Errno::WOULDBLOCK | Errno::INTR) => break,
                    // There is no listener: vectors that were sent did not arrive.
                    Err(error) => {
                        outlet.unsent += 1;
                        outlet.error.get_or_insert(error.into());
                        continue;
                    }
                };
                match FlushSlots::new_checked(&bytes[..len]) {
                    Ok(flush) if flush.cache == outlet.id => {
                        slots.extend(flush.slots(slots_max));
                    }
                    _ => {}
                }
            }
        }
        slots
    }

    /// The number of peers.
    pub(super) fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Which flows go where.
    pub(super) fn to(&self) -> Vec<To> {
        let peers = self.peers.iter().map(|peer| To {
            id: peer.outlet.id,
            // One rule is not too many.
            flows: FlowRules::new(vec![(peer.rule.clone(), true)], false)
                .unwrap_or_else(|_| FlowRules::all()),
        });
        let file = self.file.iter().map(|file| &file.outlet);
        let whole = file.chain(self.ring.iter().map(|ring| &ring.outlet));
        let whole = whole.chain(self.stream.iter().map(|stream| &stream.outlet));
        let whole = whole.map(|outlet| To {
            id: outlet.id,
            flows: FlowRules::all(),
        });
        peers.chain(whole).collect()
    }

    /// Where vectors went.
    pub(super) fn into_targets(self) -> impl Iterator<Item = Outlet> {
        let peers = self.peers.into_iter().map(|peer| peer.outlet);
        let peers = peers.chain(self.former);
        let file = self.file.map(|file| file.outlet);
        let ring = self.ring.map(|ring| ring.outlet);
        let stream = self.stream.map(|stream| stream.outlet);
        peers.chain(file).chain(ring).chain(stream)
    }

    /// Whether as many files as wanted are complete.
    pub(super) fn is_complete(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.is_complete)
    }

    /// Sends a datagram that has no vectors to a peer: agents hear of the cache before it lets go of
    /// something, and can ask for that.
    pub(super) fn announce(&mut self, id: u32, bytes: &[u8]) {
        if self.peers.iter().any(|peer| peer.outlet.id == id) {
            self.send(id, bytes);
        }
    }

    /// The targets of the file of targets, if it has changed. A file that cannot be read, or has an invalid line, changes
    /// nothing.
    pub(super) fn changed_targets(&mut self, tell: &Tell) -> Option<Vec<Target>> {
        self.listed.as_mut().and_then(|list| list.changed(tell))
    }

    /// Takes these targets in place of those that the file had before.
    pub(super) fn replace_targets(&mut self, targets: &[Target], tell: &Tell) {
        let is_kept = |peer: &Peer| {
            let mut names = targets.iter().map(|target| &target.name);
            !peer.is_listed || names.any(|name| *name == peer.outlet.name)
        };
        let (kept, gone): (Vec<Peer>, Vec<Peer>) = self.peers.drain(..).partition(is_kept);
        self.peers = kept;
        for Peer { outlet, .. } in gone {
            let text = format!("no longer sending vectors to {}", outlet.name);
            tell(&Notice::info("target_removed", text));
            self.former.push(outlet);
        }
        for target in targets {
            let name = &target.name;
            let has_it = |peer: &Peer| peer.is_listed && peer.outlet.name == *name;
            if self.peers.iter().any(has_it) {
                continue;
            }
            tell(&match self.add(target) {
                Ok(()) => Notice::info("target_added", format!("sending vectors to {name}, too")),
                Err(problem) => {
                    let what = format!("{name}: cannot send vectors to this address: {problem}");
                    Notice::warning(what)
                }
            });
        }
    }

    /// Adds a peer of the file, with the number that it had before, if any.
    fn add(&mut self, target: &Target) -> Result<(), String> {
        if self.peers.len() >= TARGETS_MAX {
            return Err(format!("at most {TARGETS_MAX} are allowed"));
        }
        let before = self
            .former
            .iter()
            .position(|outlet| outlet.name == target.name);
        if before.is_none() && self.former.len() >= FORMER_MAX {
            return Err(format!(
                "more than {FORMER_MAX} were removed so far: restart this command"
            ));
        }
        let id = before.map_or(self.next_id, |at| strata_wire::exact(self.former[at].id));
        let mut peer = Peer::open(target, Outlet::new(id, target.name.clone()), true)
            .map_err(|error| error.to_string())?;
        match before {
            Some(at) => peer.outlet = self.former.swap_remove(at),
            None => self.next_id = self.next_id.saturating_add(1),
        }
        self.peers.push(peer);
        Ok(())
    }

    /// Sends a datagram, or writes it.
    pub(super) fn send(&mut self, id: u32, bytes: &[u8]) {
        if let Some(stream) = self.stream.as_mut().filter(|stream| stream.outlet.id == id) {
            if let Err(error) = stream.put(bytes) {
                self.stream_failure.get_or_insert(error);
            }
            return;
        }
        let peer = self.peers.iter_mut().find(|peer| peer.outlet.id == id);
        let is_peer = peer.is_some();
        let file = self.file.as_mut().filter(|file| file.outlet.id == id);
        let (outlet, done) = match (peer, file, &mut self.ring) {
            (Some(peer), _, _) => (&mut peer.outlet, peer.socket.send(bytes).map(drop)),
            (None, Some(file), _) => {
                let done = file.write(bytes);
                (&mut file.outlet, done)
            }
            (None, None, Some(ring)) if ring.outlet.id == id => {
                if let Some(writer) = &mut ring.writer {
                    writer.put(bytes);
                }
                (&mut ring.outlet, Ok(()))
            }
            // Datagrams that were begun for a peer that is gone.
            (None, None, _) => return,
        };
        match done {
            Ok(()) => {
                outlet.datagrams += 1;
                outlet.bytes += bytes.len() as u64;
            }
            // There is no listener (yet): others, and later vectors, are sent all the same.
            Err(error) if is_peer => {
                outlet.unsent += 1;
                outlet.error.get_or_insert(error);
            }
            Err(error) => self.failure = Some(error),
        }
    }

    /// Fails if the file, or a stream that is waited for, could not be written.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(failure) = self.stream_failure.take() {
            return Err(failure.into());
        }
        match (self.failure.take(), &self.file) {
            (Some(error), Some(file)) => Err(file.cannot_write(error)),
            _ => Ok(()),
        }
    }

    /// Writes what is buffered, and says in the ring that this was all.
    pub(super) fn finish(&mut self) -> Result<()> {
        if let Some(stream) = &mut self.stream {
            stream.finish()?;
        }
        if let Some(writer) = self.ring.as_mut().and_then(|ring| ring.writer.as_mut()) {
            writer.end();
        }
        if let Some(file) = &mut self.file
            && let Some(writer) = &mut file.writer
            && let Err(error) = writer.flush()
        {
            return Err(file.cannot_write(error));
        }
        Ok(())
    }
}

impl Streamed {
    fn open(&mut self, tell: &Tell) -> Result<()> {
        match std::mem::replace(&mut self.state, Streaming::Ended) {
            Streaming::Planned(feed) => self.state = Streaming::Open(feed.open(tell)?),
            other => self.state = other,
        }
        Ok(())
    }

    /// Appends a datagram. Those that the stream cannot take are counted by it.
    fn put(&mut self, bytes: &[u8]) -> Result<(), RoleError> {
        let Streaming::Open(feed) = &mut self.state else {
            return Ok(());
        };
        feed.put(bytes)?;
        self.outlet.datagrams += 1;
        self.outlet.bytes += bytes.len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), RoleError> {
        if let Streaming::Open(feed) = std::mem::replace(&mut self.state, Streaming::Ended) {
            self.outlet.unsent = feed.finish()?.lost;
            self.outlet.datagrams -= self.outlet.unsent.min(self.outlet.datagrams);
        }
        Ok(())
    }
}

impl Place {
    /// The name of a file, and where it is to be.
    fn of(file: VectorFile) -> Result<(String, Self)> {
        Ok(match file {
            VectorFile::Named(path, rotation) => {
                let name = path.display().to_string();
                let rotation = rotation.map(|spec| Rotation::new(&path, spec));
                (name, Self::Named(path, rotation.transpose()?))
            }
            VectorFile::Open(name, file) => (name, Self::Open(Some(file))),
        })
    }
}

impl Written {
    fn new(outlet: Outlet, to: Place, sources: Sources) -> Result<Self> {
        if let Place::Named(path, None) = &to {
            sources.check(path)?;
        }
        Ok(Self {
            outlet,
            to,
            sources,
            writer: None,
            bytes: 0,
            end: Vec::new(),
            is_complete: false,
        })
    }

    fn create(&mut self) -> Result<()> {
        let file = match &mut self.to {
            Place::Named(path, None) => Some(self.sources.create(path)?),
            Place::Named(_, Some(rotation)) => {
                let path = rotation.first()?;
                self.sources.check(&path)?;
                Some(self.sources.create(&path)?)
            }
            Place::Open(file) => file.take(),
        };
        self.writer = file.map(BufWriter::new);
        Ok(())
    }

    fn cannot_write(&self, error: io::Error) -> VectorError {
        VectorError::At {
            what: format!("{}: cannot write", self.outlet.name),
            source: error.into(),
        }
    }

    /// Writes a datagram, into another file if this one is complete.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.rotate()?;
        match &mut self.writer {
            Some(writer) => writer.write_all(bytes)?,
            None => return Ok(()),
        }
        self.bytes += bytes.len() as u64;
        if self.is_rotated() {
            // Of the paper's forms, there is none.
            self.end = Datagram::new_checked(bytes)
                .map_or_else(|_| Vec::new(), |datagram| datagram.end_after());
        }
        Ok(())
    }

    fn is_rotated(&self) -> bool {
        matches!(self.to, Place::Named(_, Some(_)))
    }

    fn rotate(&mut self) -> io::Result<()> {
        let Place::Named(_, Some(rotation)) = &mut self.to else {
            return Ok(());
        };
        if self.is_complete || !rotation.is_due(self.bytes) {
            return Ok(());
        }
        if rotation.is_last() {
            self.is_complete = true;
            return Ok(());
        }
        if let Some(writer) = &mut self.writer {
            writer.write_all(&self.end)?;
            writer.flush()?;
        }
        let path = rotation.next().map_err(io::Error::other)?;
        let file = self.sources.create(&path).map_err(io::Error::other)?;
        self.writer = Some(BufWriter::new(file));
        self.bytes = 0;
        Ok(())
    }
}
