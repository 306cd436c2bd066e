//! Where datagrams of vectors go: peers, a file, a ring in shared memory, and a stream.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write, stdout};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use strata_gpv::export::{FlowRule, FlowRules};
use strata_gpv::format::control::FlushSlots;
use strata_role::sandbox::Reach;
use strata_store::Sources;
use strata_stream::StreamName;
use strata_stream_run::{StreamDir, StreamError, StreamFeed, WhenFull, paths_of};

use super::form::To;
use super::ring::RingWriter;
use super::rotate::Rotation;
use super::target::Target;
use crate::output::{check, refuse};

/// A file or a peer, and what went there.
pub(super) struct Outlet {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
    pub(super) unsent: u64,
    /// Why the first datagram that could not be sent was not.
    pub(super) error: Option<std::io::Error>,
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

/// A file of vectors. If the program is interrupted, those in it are whole.
struct Written {
    outlet: Outlet,
    path: PathBuf,
    sources: Sources,
    writer: Option<BufWriter<File>>,
    is_stdout: bool,
    rotation: Option<Rotation>,
    /// Bytes in the file.
    bytes: u64,
    /// As many files as wanted are complete: what is left goes to the last one.
    is_complete: bool,
}

/// A ring that is to be made.
#[derive(Clone, Debug)]
pub(super) struct RingSpec {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) datagram_max: usize,
}

/// A ring, once it is made.
struct Ring {
    outlet: Outlet,
    spec: RingSpec,
    writer: Option<RingWriter>,
}

/// A stream, once it is open.
struct Streamed {
    outlet: Outlet,
    place: (PathBuf, StreamName),
    when_full: WhenFull,
    dir: Option<StreamDir>,
    feed: Option<StreamFeed>,
}

/// Control packets that are read of a peer at once: others wait.
const CONTROL_MAX: usize = 64;
/// Bytes of a control packet at most; what is longer is cut, and then none.
const CONTROL_BYTES: usize = 2048;

/// Everything that vectors are written to.
pub(super) struct Outlets {
    peers: Vec<(UdpSocket, Outlet, FlowRule)>,
    file: Option<Written>,
    ring: Option<Ring>,
    stream: Option<Streamed>,
    /// A write to the file that failed ends the run.
    failure: Option<std::io::Error>,
    /// As does one to a stream, unless packets are live.
    stream_failure: Option<StreamError>,
}

impl Outlets {
    pub(super) fn open(
        read: &[PathBuf],
        to: &[Target],
        write: Option<(&Path, Option<Rotation>)>,
        ring: Option<RingSpec>,
        to_stream: Option<((PathBuf, StreamName), WhenFull)>,
    ) -> Result<Self> {
        let mut peers = Vec::new();
        for (id, target) in to.iter().enumerate() {
            let local = match target.address {
                SocketAddr::V4(_) => "0.0.0.0:0",
                SocketAddr::V6(_) => "[::]:0",
            };
            let name = &target.name;
            let socket = UdpSocket::bind(local).context("cannot open a UDP socket")?;
            socket
                .connect(target.address)
                .with_context(|| format!("{name}: cannot send there"))?;
            peers.push((socket, Outlet::new(id, name.clone()), target.rule.clone()));
        }
        let sources = Sources::default().files(read);
        let has_file = write.is_some();
        let before = peers.len() + usize::from(has_file) + usize::from(ring.is_some());
        let stream = to_stream.map(|(place, when_full)| Streamed {
            outlet: Outlet::new(before, format!("{}/{}", place.0.display(), place.1)),
            place,
            when_full,
            dir: None,
            feed: None,
        });
        let file = write.map(|(path, rotation)| Written::new(path, rotation, sources, peers.len()));
        let ring = ring.map(|spec| Ring {
            outlet: Outlet::new(
                peers.len() + usize::from(has_file),
                spec.path.display().to_string(),
            ),
            spec,
            writer: None,
        });
        Ok(Self {
            file: file.transpose()?,
            ring,
            stream,
            peers,
            failure: None,
            stream_failure: None,
        })
    }

    /// Opens what can be opened before the sandbox; returns what is needed in it.
    pub(super) fn prepare(&mut self) -> Result<Reach> {
        let mut reach = Reach::default();
        if let Some(stream) = &mut self.stream {
            stream.dir = Some(crate::stream::prepare(&stream.place.0)?);
            reach.write.extend(paths_of(&stream.place.0));
        }
        if let Some(ring) = &self.ring {
            reach.makes(&ring.spec.path);
        }
        if let Some(file) = self.file.as_ref().filter(|file| !file.is_stdout) {
            reach.makes(&file.path);
        }
        Ok(reach)
    }

    /// Creates the file and the ring, and opens the stream.
    pub(super) fn create(&mut self) -> Result<()> {
        if let Some(stream) = &mut self.stream {
            let dir = stream.dir.take();
            let dir = dir.map_or_else(|| crate::stream::prepare(&stream.place.0), Ok)?;
            let feed = crate::stream::feed_in(dir, &stream.place, stream.when_full)?;
            stream.feed = Some(feed);
        }
        if let Some(ring) = &mut self.ring {
            let RingSpec {
                path,
                bytes,
                datagram_max,
            } = &ring.spec;
            ring.writer = Some(RingWriter::create(path, *bytes, *datagram_max)?);
        }
        self.file.as_mut().map_or(Ok(()), Written::create)
    }

    /// The slots that agents asked to be flushed since the last call, of a cache with so many. They
    /// answer from where vectors go, and name the cache by its number.
    pub(super) fn asked(&mut self, slots_max: u32) -> Vec<u32> {
        let mut slots = Vec::new();
        let mut bytes = [0; CONTROL_BYTES];
        for (socket, outlet, _) in &mut self.peers {
            for _ in 0..CONTROL_MAX {
                // More than all of them need not be flushed at once: the rest waits.
                if slots.len() >= strata_wire::exact::<usize>(slots_max) {
                    break;
                }
                let (len, _) = match rustix::net::recv(&*socket, &mut bytes, RecvFlags::DONTWAIT) {
                    Ok(received) => received,
                    Err(Errno::WOULDBLOCK | Errno::INTR) => break,
                    // Nobody listens there: vectors that were sent did not arrive.
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

    /// Which flows go where.
    pub(super) fn to(&self) -> Vec<To> {
        let peers = self.peers.iter().map(|(_, outlet, rule)| To {
            id: outlet.id,
            // One rule is not too many.
            flows: FlowRules::new(vec![(rule.clone(), true)], false)
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
    pub(super) fn targets(&self) -> impl Iterator<Item = &Outlet> {
        let peers = self.peers.iter().map(|(_, outlet, _)| outlet);
        let file = self.file.iter().map(|file| &file.outlet);
        peers
            .chain(file)
            .chain(self.ring.iter().map(|ring| &ring.outlet))
            .chain(self.stream.iter().map(|stream| &stream.outlet))
    }

    /// Whether as many files as wanted are complete.
    pub(super) fn is_complete(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.is_complete)
    }

    /// Sends a datagram that has no vectors to a peer: agents hear of the cache before it lets go of
    /// something, and can ask for that.
    pub(super) fn announce(&mut self, id: u32, bytes: &[u8]) {
        if (id as usize) < self.peers.len() {
            self.send(id, bytes);
        }
    }

    /// Sends a datagram, or writes it.
    pub(super) fn send(&mut self, id: u32, bytes: &[u8]) {
        if let Some(stream) = self.stream.as_mut().filter(|stream| stream.outlet.id == id) {
            if let Err(error) = stream.put(bytes) {
                self.stream_failure.get_or_insert(error);
            }
            return;
        }
        let index = id as usize;
        let is_peer = index < self.peers.len();
        let file = self.file.as_mut().filter(|file| file.outlet.id == id);
        let (outlet, done) = match (self.peers.get_mut(index), file, &mut self.ring) {
            (Some((socket, outlet, _)), _, _) => (outlet, socket.send(bytes).map(drop)),
            (None, Some(file), _) => {
                let done = file.write(bytes);
                (&mut file.outlet, done)
            }
            (None, None, Some(ring)) => {
                if let Some(writer) = &mut ring.writer {
                    writer.put(bytes);
                }
                (&mut ring.outlet, Ok(()))
            }
            (None, None, None) => return,
        };
        match done {
            Ok(()) => {
                outlet.datagrams += 1;
                outlet.bytes += bytes.len() as u64;
            }
            // Nobody listens there (yet): others, and later vectors, are sent all the same.
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
            (Some(error), Some(file)) => {
                Err(error).with_context(|| format!("{}: cannot write", file.outlet.name))
            }
            _ => Ok(()),
        }
    }

    /// Whether vectors go to standard output.
    pub(super) fn is_stdout(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.is_stdout)
    }

    /// Writes what is buffered, and says in the ring that this was all.
    pub(super) fn finish(&mut self) -> Result<()> {
        if let Some(stream) = &mut self.stream
            && let Some(feed) = stream.feed.take()
        {
            stream.outlet.unsent = feed.finish()?.lost;
            stream.outlet.datagrams -= stream.outlet.unsent.min(stream.outlet.datagrams);
        }
        if let Some(writer) = self.ring.as_mut().and_then(|ring| ring.writer.as_mut()) {
            writer.end();
        }
        if let Some(file) = &mut self.file
            && let Some(writer) = &mut file.writer
        {
            let flushed = writer.flush();
            flushed.with_context(|| format!("{}: cannot write", file.outlet.name))?;
        }
        Ok(())
    }
}

impl Streamed {
    /// Appends a datagram. Those that the stream cannot take are counted by it.
    fn put(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        let Some(feed) = &mut self.feed else {
            return Ok(());
        };
        feed.put(bytes)?;
        self.outlet.datagrams += 1;
        self.outlet.bytes += bytes.len() as u64;
        Ok(())
    }
}

impl Written {
    fn new(path: &Path, rotation: Option<Rotation>, sources: Sources, id: usize) -> Result<Self> {
        let is_stdout = path.as_os_str() == "-";
        if is_stdout && stdout().is_terminal() {
            return Err(refuse(
                "standard output is a terminal, and vectors are not text: write to a file, or into \
                 another program",
            ));
        }
        if !is_stdout && rotation.is_none() {
            check(path, &sources)?;
        }
        let name = match is_stdout {
            true => String::from("standard output"),
            false => path.display().to_string(),
        };
        Ok(Self {
            outlet: Outlet::new(id, name),
            path: path.to_owned(),
            sources,
            writer: None,
            is_stdout,
            rotation,
            bytes: 0,
            is_complete: false,
        })
    }

    fn create(&mut self) -> Result<()> {
        let file = match self.is_stdout {
            true => {
                let file = stdout().as_fd().try_clone_to_owned();
                File::from(file.context("standard output: cannot write")?)
            }
            false => {
                if let Some(rotation) = &mut self.rotation {
                    self.path = rotation.first()?;
                    check(&self.path, &self.sources)?;
                }
                self.sources.create(&self.path)?
            }
        };
        self.writer = Some(BufWriter::new(file));
        Ok(())
    }

    /// Writes a datagram, into another file if this one is complete.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.rotate()?;
        match &mut self.writer {
            Some(writer) => writer.write_all(bytes)?,
            None => return Ok(()),
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> std::io::Result<()> {
        let Some(rotation) = &mut self.rotation else {
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
            writer.flush()?;
        }
        let path = rotation.next().map_err(std::io::Error::other)?;
        let file = self.sources.create(&path).map_err(std::io::Error::other)?;
        self.writer = Some(BufWriter::new(file));
        (self.path, self.bytes) = (path, 0);
        Ok(())
    }
}
