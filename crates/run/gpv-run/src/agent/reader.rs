//! An open source of vectors: by UDP, a ring in shared memory, a file, or datagrams that another part of the program
//! reads, put together into records.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::net::sockopt;
use strata_gpv::agent::ReassemblyOptions;
use strata_gpv::format::FormatError;
use strata_gpv::format::frame::FrameWords;
use strata_role::{Notice, Tell};
use strata_sys::pause::backoff;

use super::datagrams::Datagrams;
use super::directory::{self, VectorDirectory};
use super::frames::Frames;
use super::inbox::{GivenRecord, Inbox, InboxOptions, Received, Requests};
use crate::error::{At as _, Result, VectorError};
use crate::form::Form;
use crate::ring::{Found, RingReader, is_ring};
use crate::seed::seed;

/// What the kernel keeps of datagrams until they are read.
const SOCKET_BYTES: usize = 16 << 20;
/// How long to wait for datagrams before the stop flag and expired records are looked at.
const WAIT: Duration = Duration::from_millis(100);
/// How long to wait before an empty ring is looked at again.
const RING_WAIT: Duration = Duration::from_millis(2);
/// How often slots of caches are looked at.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Records are looked at for their age in this number of parts, one every [`WAIT`].
const PARTS: usize = 10;
/// Any datagram fits.
const DATAGRAM_BYTES: usize = 65_536;

/// Where vectors come from.
#[derive(Clone, Debug)]
pub enum VectorSource {
    /// Datagrams by UDP.
    Listen(ListenSpec),
    /// A ring in this file, from its oldest datagram until its writer ends.
    Ring(PathBuf),
    /// This file, to its end; `-` is standard input.
    File(PathBuf),
    /// The files in this directory: by name, and those of a rotation in the order in which they were written.
    Directory {
        /// The directory.
        path: PathBuf,
        /// Whether files that are written or made later are read too, until the reader is stopped.
        is_live: bool,
    },
    /// The frames of the *Flow paper's switch in this capture file, to its end; `-` is standard input. They are read as
    /// vectors of Strata's form, whatever form is asked for.
    Frames {
        /// The capture file.
        path: PathBuf,
        /// What the switch says of each packet.
        words: FrameWords,
    },
}

/// Datagrams by UDP.
#[derive(Clone, Debug)]
pub struct ListenSpec {
    /// The address as the user wrote it.
    pub name: String,
    /// Where datagrams come in.
    pub address: SocketAddr,
    /// Networks of accepted senders; if empty, every sender that reaches the address is accepted.
    pub allowed: Vec<IpNet>,
    /// The agent asks caches to flush slots that gave no vector for this long. Only for the form strata.
    pub flush_idle: Option<Duration>,
}

/// What was read of a source.
#[derive(Clone, Copy, Debug)]
pub struct VectorsRead {
    /// Received datagrams, vectors and packets.
    pub received: Received,
    /// Datagrams from senders outside the allowed networks.
    pub foreign: u64,
    /// Datagrams of the ring that were overwritten before they were read.
    pub overwritten: u64,
    /// Control packets sent to caches, and withheld.
    pub requests: Requests,
    /// Records of a stream, or frames, that could not be read.
    pub unread: u64,
}

/// Where records go as they are put together.
pub trait RecordOutput {
    /// Takes a record.
    fn put(&mut self, given: &GivenRecord<'_>);

    /// Called after each datagram, and while none come, every 100 ms.
    ///
    /// # Errors
    ///
    /// If a record could not be taken: reading ends.
    fn keep_up(&mut self) -> Result<()>;

    /// Whether no more records are wanted.
    fn is_complete(&self) -> bool;

    /// Called after records whose interval is over were given.
    fn expired(&mut self) {}
}

impl VectorSource {
    /// The ring that is in this file, or the file, or the directory, as it is now.
    #[must_use]
    pub fn of_file(path: &Path) -> Self {
        if path.is_dir() {
            return Self::Directory {
                path: path.to_owned(),
                is_live: false,
            };
        }
        match is_ring(path) {
            true => Self::Ring(path.to_owned()),
            false => Self::File(path.to_owned()),
        }
    }

    /// The files that are read: none of them may be overwritten. A directory that cannot be read has none; its reader
    /// reports the error.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::Listen(_) => Vec::new(),
            Self::Ring(path) | Self::File(path) | Self::Frames { path, .. } => vec![path.clone()],
            Self::Directory { path, .. } => directory::files(path).into_iter().flatten().collect(),
        }
    }

    fn flush_idle(&self) -> Option<Duration> {
        match self {
            Self::Listen(listen) => listen.flush_idle,
            Self::Ring(_) | Self::File(_) | Self::Directory { .. } | Self::Frames { .. } => None,
        }
    }
}

/// A source that is open.
enum Input {
    Socket {
        name: String,
        socket: UdpSocket,
        allowed: Vec<IpNet>,
    },
    Ring {
        name: String,
        ring: RingReader,
    },
    File {
        name: String,
        file: Box<dyn Read + Send>,
    },
    Given(Box<dyn Datagrams>),
}

impl Input {
    fn open(source: &VectorSource, form: Form) -> Result<Self> {
        Ok(match source {
            VectorSource::Listen(listen) => Self::Socket {
                name: listen.name.clone(),
                socket: bind(listen)?,
                allowed: listen.allowed.clone(),
            },
            VectorSource::Ring(path) => Self::Ring {
                name: path.display().to_string(),
                ring: RingReader::open(path)?,
            },
            VectorSource::File(path) => Self::File {
                name: path.display().to_string(),
                file: file(path)?,
            },
            VectorSource::Directory { path, is_live } => {
                Self::Given(Box::new(VectorDirectory::open(path, form, *is_live)?))
            }
            VectorSource::Frames { path, words } => {
                Self::Given(Box::new(Frames::open(path, *words)?))
            }
        })
    }

    /// The message to the user about it.
    fn notice(&self) -> Result<Option<Notice>> {
        Ok(match self {
            Self::Socket { socket, .. } => {
                let address = socket.local_addr()?;
                let said = Notice::info("listening", format!("listening on {address}"));
                Some(said.with("address", address))
            }
            Self::Ring { name, .. } => {
                Some(Notice::info("ring", format!("reading the ring {name}")))
            }
            Self::Given(source) if source.is_live() => Some(Notice::info(
                "following",
                format!("reading {}, until Ctrl-C", source.name()),
            )),
            Self::File { .. } | Self::Given(_) => None,
        })
    }
}

fn bind(listen: &ListenSpec) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(listen.address);
    let socket = socket.at_with(|| format!("{}: cannot listen", listen.name))?;
    // Without the right to, as large as allowed.
    if sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BYTES).map_err(io::Error::from)?;
    }
    socket.set_read_timeout(Some(WAIT))?;
    Ok(socket)
}

fn file(path: &Path) -> Result<Box<dyn Read + Send>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(io::stdin()));
    }
    let file = File::open(path).at_with(|| format!("{}: cannot read", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}

/// An open source whose vectors are put together into records. Memory: that of
/// [`VectorAgentSpec`](crate::VectorAgentSpec).
pub struct VectorReader {
    input: Input,
    inbox: Inbox,
    form: Form,
    datagrams_max: Option<u64>,
    /// Flows of a sender that are looked at for their age at once.
    expired_at_once: usize,
}

impl VectorReader {
    /// Opens the source, for at most `senders_max` senders at the same time.
    ///
    /// # Errors
    ///
    /// If the source cannot be opened.
    pub fn open(
        source: &VectorSource,
        form: Form,
        reassembly: ReassemblyOptions,
        senders_max: usize,
    ) -> Result<Self> {
        let form = match source {
            VectorSource::Frames { .. } => Form::Strata,
            _ => form,
        };
        let options = InboxOptions {
            form,
            senders_max,
            reassembly,
            seed: seed()?,
            flush_idle: source.flush_idle(),
        };
        Ok(Self::new(Input::open(source, form)?, options))
    }

    /// A reader of datagrams in Strata's form that another part of the program reads.
    ///
    /// # Errors
    ///
    /// If the operating system has no random numbers.
    pub fn of(
        datagrams: Box<dyn Datagrams>,
        reassembly: ReassemblyOptions,
        senders_max: usize,
    ) -> Result<Self> {
        let options = InboxOptions {
            form: Form::Strata,
            senders_max,
            reassembly,
            seed: seed()?,
            flush_idle: None,
        };
        Ok(Self::new(Input::Given(datagrams), options))
    }

    fn new(input: Input, options: InboxOptions) -> Self {
        Self {
            input,
            inbox: Inbox::new(options),
            form: options.form,
            datagrams_max: None,
            expired_at_once: (options.reassembly.flows as usize).div_ceil(PARTS),
        }
    }

    /// The same, to end after this number of datagrams.
    pub(super) fn at_most(self, datagrams_max: Option<u64>) -> Self {
        Self {
            datagrams_max,
            ..self
        }
    }

    /// What the user should know of the source: where it listens.
    ///
    /// # Errors
    ///
    /// If the socket has no address.
    pub fn notice(&self) -> Result<Option<Notice>> {
        self.input.notice()
    }

    /// Reads until the source ends, `stop` is set or the output is complete, and gives all records to `output`.
    /// What was read, and why it ended before the source did, if so.
    pub fn read(
        self,
        output: &mut impl RecordOutput,
        stop: &AtomicBool,
        tell: &Tell,
    ) -> (VectorsRead, Result<()>) {
        let mut reading = Reading {
            inbox: self.inbox,
            output,
            form: self.form,
            datagrams_max: self.datagrams_max,
            expired_at_once: self.expired_at_once,
            tell,
            foreign: 0,
            overwritten: 0,
            unread: 0,
            has_warned: false,
        };
        let ended = reading.take_all(self.input, stop);
        let is_whole = !stop.load(Ordering::Relaxed) && !reading.is_done() && ended.is_ok();
        let Reading { inbox, output, .. } = &mut reading;
        inbox.finish(&mut |given| output.put(given));
        let mut received = inbox.received();
        if !is_whole {
            // Not read to its end.
            received.unended = 0;
        }
        let read = VectorsRead {
            received,
            foreign: reading.foreign,
            overwritten: reading.overwritten,
            requests: reading.inbox.requests,
            unread: reading.unread,
        };
        (read, ended)
    }
}

/// What becomes of datagrams.
struct Reading<'a, O> {
    inbox: Inbox,
    output: &'a mut O,
    form: Form,
    datagrams_max: Option<u64>,
    expired_at_once: usize,
    tell: &'a Tell,
    foreign: u64,
    overwritten: u64,
    unread: u64,
    /// The first datagram that could not be read was reported.
    has_warned: bool,
}

impl<O: RecordOutput> Reading<'_, O> {
    /// Takes what comes until the source ends, it is to stop, or enough came.
    fn take_all(&mut self, input: Input, stop: &AtomicBool) -> Result<()> {
        match input {
            Input::Socket {
                name,
                socket,
                allowed,
            } => self.listen(&name, &socket, &allowed, stop),
            Input::Ring { name, ring } => self.follow(&name, ring, stop),
            Input::File { name, file } => self.read(&name, file, stop),
            Input::Given(source) => self.take_given(source, stop),
        }
    }

    fn listen(
        &mut self,
        name: &str,
        socket: &UdpSocket,
        allowed: &[IpNet],
        stop: &AtomicBool,
    ) -> Result<()> {
        let mut bytes = vec![0; DATAGRAM_BYTES];
        let (mut expired, mut asked) = (Instant::now(), Instant::now());
        while !stop.load(Ordering::Relaxed) && !self.is_done() {
            match socket.recv_from(&mut bytes) {
                Ok((len, from)) => self.received(from, &bytes[..len], allowed)?,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    _ => return Err(error).at_with(|| format!("{name}: cannot receive")),
                },
            }
            if expired.elapsed() >= WAIT {
                expired = Instant::now();
                self.expire()?;
            }
            if asked.elapsed() >= ASK_EVERY {
                asked = Instant::now();
                // What is not sent is requested again.
                self.inbox.idle(|address, bytes| {
                    let _ = socket.send_to(bytes, address);
                });
            }
        }
        Ok(())
    }

    /// Reads a ring until its writer ends.
    fn follow(&mut self, name: &str, mut ring: RingReader, stop: &AtomicBool) -> Result<()> {
        let mut expired = Instant::now();
        while !stop.load(Ordering::Relaxed) && !self.is_done() {
            let found = ring.read()?;
            self.overwritten = ring.overwritten;
            match found {
                Found::Datagram => {
                    let read = self.datagram(None, ring.datagram());
                    self.warn_once(&name, read);
                    self.output.keep_up()?;
                }
                Found::Nothing => backoff(RING_WAIT),
                Found::End => break,
                Found::Abandoned => {
                    let what =
                        "the program that wrote the ring ended without marking the end of the ring";
                    (self.tell)(&Notice::warning(format!("{name}: {what}")));
                    break;
                }
            }
            if expired.elapsed() >= WAIT {
                expired = Instant::now();
                self.expire()?;
            }
        }
        Ok(())
    }

    /// Takes datagrams that another part of the program reads.
    fn take_given(&mut self, mut source: Box<dyn Datagrams>, stop: &AtomicBool) -> Result<()> {
        let (name, is_live) = (source.name(), source.is_live());
        let mut expired = Instant::now();
        let mut ended = Ok(());
        while !stop.load(Ordering::Relaxed) && !self.is_done() && ended.is_ok() {
            let mut kept_up = Ok(());
            let more = source.read(WAIT, &mut |bytes| {
                let read = self.datagram(None, bytes);
                self.warn_once(&name, read);
                kept_up = self.output.keep_up();
                kept_up.is_ok() && !self.is_done() && !stop.load(Ordering::Relaxed)
            });
            self.unread = source.unread();
            if let Some(warning) = source.warning() {
                (self.tell)(&Notice::warning(warning));
            }
            ended = kept_up;
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => ended = ended.and(Err(error)),
            }
            // Of what was written before, the time of reading says nothing.
            if is_live && ended.is_ok() && expired.elapsed() >= WAIT {
                expired = Instant::now();
                ended = self.expire();
            }
        }
        ended
    }

    /// Says which the first datagram is that cannot be read.
    fn warn_once(&mut self, from: &dyn Display, read: Result<(), FormatError>) {
        if let Err(error) = read
            && !self.has_warned
        {
            self.has_warned = true;
            (self.tell)(&Notice::warning(format!(
                "{from}: {error}; further unreadable datagrams are only counted"
            )));
        }
    }

    fn is_done(&self) -> bool {
        let most = self.datagrams_max;
        self.output.is_complete()
            || most.is_some_and(|most| self.inbox.received().datagrams >= most)
    }

    fn received(&mut self, from: SocketAddr, bytes: &[u8], allowed: &[IpNet]) -> Result<()> {
        let address = from.ip().to_canonical();
        if !allowed.is_empty() && !allowed.iter().any(|network| network.contains(&address)) {
            self.foreign += 1;
            return Ok(());
        }
        let read = self.datagram(Some(from), bytes);
        self.warn_once(&from, read);
        self.output.keep_up()
    }

    fn datagram(&mut self, from: Option<SocketAddr>, bytes: &[u8]) -> Result<(), FormatError> {
        let Self { inbox, output, .. } = self;
        inbox.datagram(from, bytes, &mut |given| output.put(given))
    }

    fn expire(&mut self) -> Result<()> {
        let part = self.expired_at_once;
        let Self { inbox, output, .. } = self;
        inbox.expire(part, &mut |given| output.put(given));
        output.expired();
        output.keep_up()
    }

    /// Reads a file of datagrams, or of vectors one after the other.
    fn read(&mut self, name: &str, mut file: impl Read, stop: &AtomicBool) -> Result<()> {
        let (mut bytes, mut at) = (Vec::new(), 0_u64);
        let mut more = |bytes: &mut Vec<u8>, len| {
            let read = file.by_ref().take(len).read_to_end(bytes);
            read.at_with(|| format!("{name}: cannot read"))
        };
        while !stop.load(Ordering::Relaxed) && !self.is_done() {
            bytes.clear();
            more(&mut bytes, self.form.header_len() as u64)?;
            if bytes.is_empty() && at == 0 && self.form == Form::Strata {
                return Err(VectorError::Empty(name.to_owned()));
            }
            if bytes.is_empty() {
                break;
            }
            let rest = self.form.rest_len(&bytes);
            more(&mut bytes, rest)?;
            self.datagram(None, &bytes)
                .map_err(|source| VectorError::NoVectors {
                    file: name.to_owned(),
                    at,
                    form: self.form,
                    source,
                })?;
            at += bytes.len() as u64;
            self.output.keep_up()?;
        }
        Ok(())
    }
}
