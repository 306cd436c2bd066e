//! Where the records of an agent go: files of rows, and as vectors to another agent.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use strata_gpv::format::datagram::{DatagramWriter, LEN_USUAL};
use strata_gpv::{Columns, Full, Grouped as _, Key, Reason, Tuple as _, Vector};
use strata_store::Sources;

use super::inbox::Given;
use super::parts::Parts;
use super::rotate::{RotateArgs, Rotation};
use super::rows::{About, Rows};
use super::target::address;
use crate::output::check;

/// What was sent on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) vectors: u64,
    pub(super) datagrams: u64,
    pub(super) unsent: u64,
}

/// A file of records.
enum Records {
    File(Parts),
    /// A pipe or a device, which cannot be replaced.
    Other(String, Rows<File>),
}

impl Records {
    fn create(path: &Path, sources: &Sources, save_every: Duration) -> Result<Self> {
        let other = path.metadata().ok().filter(|found| !found.is_file());
        if other.is_none() {
            return Ok(Self::File(Parts::create(path, sources, save_every)?));
        }
        check(path, sources)?;
        let rows = Rows::new(sources.create(path)?, Columns::ALL)?;
        Ok(Self::Other(path.display().to_string(), rows))
    }

    fn put(&mut self, given: &Given<'_>) -> Result<()> {
        let about = About {
            exporter: Some(given.sender),
            reason: None,
            saturated: None,
            known: given.known,
        };
        match self {
            Self::File(parts) => parts.push(given.record, about),
            Self::Other(name, rows) => {
                rows.push(given.record, about);
                rows.write()
                    .with_context(|| format!("{name}: cannot write"))
            }
        }
    }

    fn keep_up(&mut self) -> Result<()> {
        match self {
            Self::File(parts) => parts.keep_up(),
            Self::Other(..) => Ok(()),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::File(parts) => parts.bytes(),
            Self::Other(_, rows) => rows.bytes(),
        }
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::File(parts) => parts.finish(),
            Self::Other(name, rows) => {
                let written = rows.finish().map(drop);
                written.with_context(|| format!("{name}: cannot write"))
            }
        }
    }
}

/// Where records go.
pub(super) struct Outputs {
    records: Option<Records>,
    save_every: Duration,
    rotation: Option<Rotation>,
    sources: Sources,
    /// As many files as wanted are complete.
    pub(super) is_complete: bool,
    forward: Option<Forward>,
    failure: Option<anyhow::Error>,
}

impl Outputs {
    /// Opens the first file, whose parts are complete after `save_every`, and a socket to the next agent.
    pub(super) fn open(
        (write, rotate, save_every): (Option<&Path>, &RotateArgs, Duration),
        to: Option<&str>,
        sources: &Sources,
    ) -> Result<Self> {
        let mut rotation = rotate.of(write)?;
        let first = rotation.as_mut().map(Rotation::first).transpose()?;
        let records = first.as_deref().or(write);
        let records = records.map(|path| Records::create(path, sources, save_every));
        Ok(Self {
            records: records.transpose()?,
            save_every,
            rotation,
            sources: sources.clone(),
            is_complete: false,
            forward: to.map(Forward::open).transpose()?,
            failure: None,
        })
    }

    pub(super) fn put(&mut self, given: &Given<'_>) {
        if let Some(records) = &mut self.records
            && let Err(error) = records.put(given)
        {
            self.failure.get_or_insert(error);
        }
        if let Some(forward) = &mut self.forward {
            forward.put(given);
        }
    }

    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        if let Some(records) = &mut self.records {
            records.keep_up()?;
        }
        self.rotate()
    }

    /// Begins another file if this one is complete.
    fn rotate(&mut self) -> Result<()> {
        let (Some(rotation), Some(records)) = (&mut self.rotation, &self.records) else {
            return Ok(());
        };
        if self.is_complete || !rotation.is_due(records.bytes()) {
            return Ok(());
        }
        if rotation.is_last() {
            self.is_complete = true;
            return Ok(());
        }
        let next = rotation.next()?;
        self.end_records()?;
        self.records = Some(Records::create(&next, &self.sources, self.save_every)?);
        Ok(())
    }

    /// Writes the end of the file.
    fn end_records(&mut self) -> Result<()> {
        self.records.take().map_or(Ok(()), Records::finish)
    }

    pub(super) fn send_begun(&mut self) {
        if let Some(forward) = &mut self.forward {
            forward.send_begun();
        }
    }

    pub(super) fn finish(mut self) -> Result<Option<Sent>> {
        self.check()?;
        self.end_records()?;
        Ok(self.forward.map(Forward::finish))
    }
}

/// Records as vectors to another agent.
struct Forward {
    socket: UdpSocket,
    writer: DatagramWriter,
    columns: Columns,
    tuples: Vec<Full>,
    sent: Sent,
}

impl Forward {
    fn open(to: &str) -> Result<Self> {
        let peer = address(to)?;
        let local = match peer {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let socket = UdpSocket::bind(local).context("cannot open a UDP socket")?;
        socket
            .connect(peer)
            .with_context(|| format!("{to}: cannot send there"))?;
        Ok(Self {
            socket,
            writer: DatagramWriter::new(0, Columns::ALL, LEN_USUAL),
            columns: Columns::ALL,
            tuples: Vec::new(),
            sent: Sent::default(),
        })
    }

    /// A record is as many vectors as its times, and datagrams, need.
    fn put(&mut self, given: &Given<'_>) {
        if self.columns != given.known {
            self.columns = given.known;
            let (socket, sent) = (&self.socket, &mut self.sent);
            let send = |bytes: &[u8]| send(socket, sent, bytes);
            self.writer.reshape(given.known, LEN_USUAL, send);
        }
        let most = (LEN_USUAL - 24 - 24 - 32) / self.columns.tuple_len();
        let (mut start_ns, mut tuples) = (None, std::mem::take(&mut self.tuples));
        given.record.for_each_run(|of_run, run| {
            for tuple in run {
                let at_ns = of_run + tuple.delta_ns();
                let from = start_ns.filter(|from| at_ns >= *from);
                let fits = from.and_then(|from| u32::try_from(at_ns - from).ok());
                let delta_ns = match fits.filter(|_| tuples.len() < most) {
                    Some(delta_ns) => delta_ns,
                    None => {
                        self.vector(given.record.key(), start_ns, &tuples);
                        tuples.clear();
                        start_ns = Some(at_ns);
                        0
                    }
                };
                tuples.push(Full { delta_ns, ..*tuple });
            }
        });
        self.vector(given.record.key(), start_ns, &tuples);
        tuples.clear();
        self.tuples = tuples;
    }

    fn vector(&mut self, key: &Key, start_ns: Option<u64>, tuples: &[Full]) {
        let Some(start_ns) = start_ns.filter(|_| !tuples.is_empty()) else {
            return;
        };
        let vector = Vector {
            key: *key,
            start_ns,
            pieces: [tuples, &[]],
            reason: Reason::Unknown,
            saturated: false,
            slot: 0,
        };
        let (socket, sent) = (&self.socket, &mut self.sent);
        let put = self.writer.put(&vector, |bytes| send(socket, sent, bytes));
        // `most` fit; if not, its number is missing and the peer counts it.
        self.sent.vectors += u64::from(put.is_ok());
    }

    fn send_begun(&mut self) {
        let (socket, sent) = (&self.socket, &mut self.sent);
        self.writer.finish(|bytes| send(socket, sent, bytes));
    }

    fn finish(mut self) -> Sent {
        let (socket, sent) = (&self.socket, &mut self.sent);
        self.writer.end(|bytes| send(socket, sent, bytes));
        self.sent
    }
}

fn send(socket: &UdpSocket, sent: &mut Sent, bytes: &[u8]) {
    match socket.send(bytes) {
        Ok(_) => sent.datagrams += 1,
        // Nobody listens there (yet).
        Err(_) => sent.unsent += 1,
    }
}
