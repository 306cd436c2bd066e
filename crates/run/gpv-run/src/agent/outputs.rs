//! Where the records of an agent go: files of rows, and as vectors to another agent.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use strata_gpv::format::datagram::{DatagramWriter, LEN_USUAL};
use strata_gpv::{Columns, Full, Grouped as _, Key, Reason, Tuple as _, Vector};
use strata_role::Tell;
use strata_store::Sources;

use super::RecordOutput;
use super::inbox::GivenRecord;
use super::parts::Parts;
use crate::error::{At as _, Result, VectorError};
use crate::rotation::{Rotation, RotationSpec};
use crate::rows::{About, Rows};

/// Where records go.
#[derive(Clone, Debug, Default)]
pub struct RecordsSpec {
    /// A Parquet file, and the files that follow it by rotation.
    pub file: Option<RecordFileSpec>,
    /// Another agent, by UDP: its name as the user wrote it, and its address.
    pub to: Option<(String, SocketAddr)>,
}

/// A Parquet file of records.
#[derive(Clone, Debug)]
pub struct RecordFileSpec {
    /// The file's name. An existing file is replaced once the new one is complete.
    pub path: PathBuf,
    /// The condition for beginning the next file.
    pub rotation: Option<RotationSpec>,
    /// The interval at which a complete part is saved beside the file: a kill loses at most the records of this time.
    pub save_every: Duration,
}

/// Vectors and datagrams that were forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sent {
    /// Vectors made of records.
    pub vectors: u64,
    /// Datagrams with these vectors.
    pub datagrams: u64,
    /// Datagrams that could not be sent.
    pub unsent: u64,
}

/// A file of records.
enum Records {
    File(Parts),
    /// A pipe or a device, which cannot be replaced.
    Other(String, Rows<File>),
}

impl Records {
    fn create(path: &Path, sources: &Sources, save_every: Duration, tell: &Tell) -> Result<Self> {
        let other = path.metadata().ok().filter(|found| !found.is_file());
        if other.is_none() {
            let parts = Parts::create(path, sources, save_every, tell)?;
            return Ok(Self::File(parts));
        }
        sources.check(path)?;
        let rows = Rows::new(sources.create(path)?, Columns::ALL)?;
        Ok(Self::Other(path.display().to_string(), rows))
    }

    fn put(&mut self, given: &GivenRecord<'_>) -> Result<()> {
        let about = About {
            exporter: Some(given.name),
            reason: None,
            saturated: None,
            known: given.known,
        };
        match self {
            Self::File(parts) => parts.push(given.record, about),
            Self::Other(name, rows) => {
                rows.push(given.record, about);
                rows.write().at_with(|| format!("{name}: cannot write"))
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
                written.at_with(|| format!("{name}: cannot write"))
            }
        }
    }
}

/// Files of records, one after the other.
struct Files {
    current: Option<Records>,
    save_every: Duration,
    rotation: Option<Rotation>,
    sources: Sources,
    tell: Tell,
    /// As many as wanted are complete.
    are_complete: bool,
}

impl Files {
    /// Opens the first one.
    fn open(
        spec: &RecordFileSpec,
        mut rotation: Option<Rotation>,
        sources: &Sources,
        tell: &Tell,
    ) -> Result<Self> {
        let first = rotation.as_mut().map(Rotation::first).transpose()?;
        let mut files = Self {
            current: None,
            save_every: spec.save_every,
            rotation,
            sources: sources.clone(),
            tell: Arc::clone(tell),
            are_complete: false,
        };
        files.begin(first.as_ref().unwrap_or(&spec.path))?;
        Ok(files)
    }

    fn begin(&mut self, path: &Path) -> Result<()> {
        let records = Records::create(path, &self.sources, self.save_every, &self.tell)?;
        self.current = Some(records);
        Ok(())
    }

    fn put(&mut self, given: &GivenRecord<'_>) -> Result<()> {
        let current = self.current.as_mut();
        current.map_or(Ok(()), |records| records.put(given))
    }

    /// Completes what is due: a part of the file, or the file, after which another one begins.
    fn keep_up(&mut self) -> Result<()> {
        let Some(records) = &mut self.current else {
            return Ok(());
        };
        records.keep_up()?;
        let bytes = records.bytes();
        let Some(rotation) = &mut self.rotation else {
            return Ok(());
        };
        if self.are_complete || !rotation.is_due(bytes) {
            return Ok(());
        }
        if rotation.is_last() {
            self.are_complete = true;
            return Ok(());
        }
        let next = rotation.next()?;
        self.end()?;
        self.begin(&next)
    }

    /// Writes the end of the file.
    fn end(&mut self) -> Result<()> {
        self.current.take().map_or(Ok(()), Records::finish)
    }
}

/// Where records go, once that is open.
pub(super) struct Outputs {
    files: Option<Files>,
    forward: Option<Forward>,
    failure: Option<VectorError>,
}

impl Outputs {
    /// Opens the first file, of which `rotation` says which others follow, and a socket to the next agent.
    pub(super) fn open(
        spec: &RecordsSpec,
        rotation: Option<Rotation>,
        sources: &Sources,
        tell: &Tell,
    ) -> Result<Self> {
        let files = spec.file.as_ref();
        let files = files.map(|file| Files::open(file, rotation, sources, tell));
        Ok(Self {
            files: files.transpose()?,
            forward: spec
                .to
                .as_ref()
                .map(|(name, peer)| Forward::open(name, *peer))
                .transpose()?,
            failure: None,
        })
    }

    pub(super) fn finish(mut self) -> Result<Option<Sent>> {
        self.keep_up()?;
        if let Some(files) = &mut self.files {
            files.end()?;
        }
        Ok(self.forward.map(Forward::finish))
    }
}

impl RecordOutput for Outputs {
    fn put(&mut self, given: &GivenRecord<'_>) {
        if let Some(files) = &mut self.files
            && let Err(error) = files.put(given)
        {
            self.failure.get_or_insert(error);
        }
        if let Some(forward) = &mut self.forward {
            forward.put(given);
        }
    }

    /// Fails if a record could not be written; completes what is due.
    fn keep_up(&mut self) -> Result<()> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        self.files.as_mut().map_or(Ok(()), Files::keep_up)
    }

    /// Whether as many files as wanted are complete.
    fn is_complete(&self) -> bool {
        self.files.as_ref().is_some_and(|files| files.are_complete)
    }

    fn expired(&mut self) {
        if let Some(forward) = &mut self.forward {
            forward.send_begun();
        }
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
    fn open(name: &str, peer: SocketAddr) -> Result<Self> {
        let local = match peer {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let socket = UdpSocket::bind(local);
        let socket = socket.at_with(|| "cannot open a UDP socket".to_owned())?;
        socket
            .connect(peer)
            .at_with(|| format!("--send-to {name}: cannot send to this address"))?;
        Ok(Self {
            socket,
            writer: DatagramWriter::new(0, Columns::ALL, LEN_USUAL),
            columns: Columns::ALL,
            tuples: Vec::new(),
            sent: Sent::default(),
        })
    }

    /// A record is as many vectors as its times, and datagrams, need.
    fn put(&mut self, given: &GivenRecord<'_>) {
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
        // There is no listener (yet).
        Err(_) => sent.unsent += 1,
    }
}
