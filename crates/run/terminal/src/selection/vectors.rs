//! Grouped packet vectors as a command names their source, and what an answer from them lacks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use strata_gpv::agent::ReassemblyOptions;
use strata_gpv::format::frame::FrameWords;
use strata_gpv_run::{
    Datagrams, Form, ListenSpec, VectorError, VectorReader, VectorSource, VectorsRead,
};
use strata_role::sandbox::Reach;
use strata_store::Sources;
use strata_stream::StreamName;
use strata_stream_run::{StreamDir, StreamError, StreamReader, paths_of};

use crate::arguments::address::{address, networks};
use crate::arguments::feed;
use crate::output::refuse;
use crate::text::count_of;

/// Senders whose vectors are accepted at the same time.
pub const SENDERS_MAX: usize = 16;
/// Records of a stream that are read before the command looks whether to stop.
const RECORDS_AT_ONCE: u64 = 1_024;
/// The port of an address without one: that of IPFIX.
const PORT: u16 = 4739;

/// What a switch says of packets in the frames in which it exports vectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum FrameForm {
    /// The tuples of section 6.2 of the paper: times, sizes, the flag of a long queue.
    Paper,
    /// Only sizes, and at most 2 packets in a narrow vector, like the program in the paper's
    /// repository: the time of a packet is the time at which the frame was captured.
    Published,
}

impl FrameForm {
    fn words(self) -> FrameWords {
        match self {
            Self::Paper => FrameWords::Paper,
            Self::Published => FrameWords::Lengths,
        }
    }
}

/// A source of vectors that a command names.
#[derive(Clone, Debug)]
pub struct VectorsFrom(Place);

#[derive(Clone, Debug)]
enum Place {
    Vectors(VectorSource),
    Stream {
        dir: PathBuf,
        name: StreamName,
        is_live: bool,
    },
}

/// The source that `from` names: `udp://ADDRESS[:PORT]`, `stream://DIR/NAME`, a ring, a file, a directory, or `-`.
/// `option` is how errors name it. If `follows`, what comes later is read too. With `frames`, it is a capture file of
/// frames of this form.
///
/// # Errors
///
/// If other machines can reach the address and no sender is named, or senders are named for a file, or a source that
/// has an end is to be followed, or one that is no file has frames.
pub fn source(
    option: &str,
    from: &str,
    allow: &[String],
    follows: bool,
    frames: Option<FrameForm>,
) -> Result<VectorsFrom> {
    let at = from.strip_prefix("udp://");
    if at.is_none() && !allow.is_empty() {
        return Err(refuse(format!(
            "--allow applies only to {option} udp://ADDRESS"
        )));
    }
    let stream = from.strip_prefix("stream://");
    if let Some(form) = frames {
        if at.is_some() || stream.is_some() || follows || Path::new(from).is_dir() {
            return Err(refuse(format!(
                "--frames applies only to a capture file, to its end: write frames to a file or a pipe, as with \
                 tcpdump -w, and name this file as {option}"
            )));
        }
        return Ok(VectorsFrom(Place::Vectors(VectorSource::Frames {
            path: PathBuf::from(from),
            words: form.words(),
        })));
    }
    let source = match (at, stream) {
        (Some(at), _) => VectorSource::Listen(listen(option, from, at, allow)?),
        (None, Some(place)) => {
            let (dir, name) = feed::named_place(option, place)?;
            let is_live = follows;
            return Ok(VectorsFrom(Place::Stream { dir, name, is_live }));
        }
        (None, None) => VectorSource::of_file(Path::new(from)),
    };
    Ok(VectorsFrom(Place::Vectors(match (follows, source) {
        (false, source) => source,
        (true, VectorSource::Directory { path, .. }) => VectorSource::Directory {
            path,
            is_live: true,
        },
        (true, _) => {
            return Err(refuse(format!(
                "--follow applies only to a directory or a stream, and {option} {from} is neither"
            )));
        }
    })))
}

fn listen(option: &str, from: &str, at: &str, allow: &[String]) -> Result<ListenSpec> {
    let listen = address(option, at, PORT)?;
    if !listen.ip().is_loopback() && allow.is_empty() {
        return Err(refuse(format!(
            "{option} {from}: other machines can reach this address, and anyone can forge vectors: name the accepted \
             senders, such as --allow 192.0.2.0/24 (0.0.0.0/0 is everyone)"
        )));
    }
    Ok(ListenSpec {
        name: at.to_owned(),
        address: listen,
        allowed: networks("--allow", allow)?,
        flush_idle: None,
    })
}

impl VectorsFrom {
    /// Whether strangers may send the vectors.
    #[must_use]
    pub fn is_udp(&self) -> bool {
        matches!(self.0, Place::Vectors(VectorSource::Listen(_)))
    }

    /// Whether vectors come as they are made, rather than from files that are complete.
    #[must_use]
    pub fn is_live(&self) -> bool {
        match &self.0 {
            Place::Vectors(VectorSource::Listen(_) | VectorSource::Ring(_)) => true,
            Place::Vectors(VectorSource::File(_) | VectorSource::Frames { .. }) => false,
            Place::Vectors(VectorSource::Directory { is_live, .. })
            | Place::Stream { is_live, .. } => *is_live,
        }
    }

    /// The files that are read, which must not be overwritten: those of the source, and others.
    #[must_use]
    pub fn files(&self, others: &[PathBuf]) -> Sources {
        let sources = Sources::default().files(others);
        match &self.0 {
            Place::Vectors(source) => sources.files(source.files()),
            // Files of a stream are in folders of its directory.
            Place::Stream { .. } => sources,
        }
    }

    /// Adds what is opened later than the sandbox.
    pub fn reach(&self, reach: &mut Reach) {
        match &self.0 {
            Place::Vectors(VectorSource::Directory { path, .. }) => reach.read.push(path.clone()),
            Place::Vectors(_) => {}
            Place::Stream { dir, .. } => reach.write.extend(paths_of(dir)),
        }
    }

    /// Opens the source, for at most `senders_max` senders at the same time. To be done before the sandbox.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn open(&self, reassembly: ReassemblyOptions, senders_max: usize) -> Result<VectorReader> {
        Ok(match &self.0 {
            Place::Vectors(source) => {
                VectorReader::open(source, Form::Strata, reassembly, senders_max)?
            }
            Place::Stream { dir, name, is_live } => {
                let stream = VectorStream::open(dir, name, *is_live)?;
                VectorReader::of(Box::new(stream), reassembly, senders_max)?
            }
        })
    }
}

/// Datagrams of vectors in a stream, as `--to-stream` of `strata gpv run` appends them.
struct VectorStream {
    name: String,
    dir: StreamDir,
    stream: StreamName,
    is_live: bool,
    /// Opened when it is read first, in the sandbox.
    reader: Option<StreamReader>,
}

impl VectorStream {
    fn open(dir: &Path, stream: &StreamName, is_live: bool) -> Result<Self> {
        let name = format!("{}/{stream}", dir.display());
        let dir = StreamDir::open(dir)?;
        dir.meet_servers()?;
        // A stream that is not there is reported before anything is written.
        dir.read(stream)?;
        Ok(Self {
            name,
            dir,
            stream: stream.clone(),
            is_live,
            reader: None,
        })
    }
}

impl Datagrams for VectorStream {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_live(&self) -> bool {
        self.is_live
    }

    fn read(
        &mut self,
        wait: Duration,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<bool, VectorError> {
        let failed = |error: StreamError| VectorError::At {
            what: format!("{}: cannot read this stream", self.name),
            source: Box::new(error),
        };
        let reader = match &mut self.reader {
            Some(reader) => reader,
            None => {
                let reader = self.dir.read(&self.stream).map_err(failed)?;
                self.reader.insert(reader)
            }
        };
        let read = reader.read(RECORDS_AT_ONCE, |entry| {
            Ok::<_, StreamError>(take(entry.payload))
        });
        match read.map_err(failed)? {
            0 if !self.is_live => return Ok(false),
            0 => {
                reader.wait(wait);
                reader.refresh().map_err(failed)?;
            }
            _ => {}
        }
        Ok(true)
    }

    fn unread(&self) -> u64 {
        let unread = self.reader.as_ref().map(StreamReader::unread);
        unread.map_or(0, |unread| unread.missing.1.saturating_add(unread.expired))
    }
}

/// What is said of caches in a file or a ring that end without their number of vectors.
#[must_use]
pub fn cut(caches: u64) -> String {
    format!(
        "the vectors of {} end without their number: the command that wrote them was killed, or the file was cut, and \
         the last vectors are missing",
        count_of(caches, "cache")
    )
}

/// What was not read of a source.
#[derive(Debug, Default)]
pub struct Missing {
    /// What is in no answer.
    pub incomplete: Vec<String>,
    /// What was left out rightly.
    pub remarks: Vec<String>,
}

impl Missing {
    /// Of what was read.
    #[must_use]
    pub fn of(read: &VectorsRead) -> Self {
        let received = &read.received;
        let lost = [
            (received.lost, "vector", "never arrived"),
            (received.damaged, "datagram", "could not be read"),
            (
                received.refused,
                "datagram",
                "came from more senders than are accepted",
            ),
            (
                read.overwritten,
                "datagram",
                "were overwritten in the ring before they were read",
            ),
            (read.unread, "record", "could not be read"),
        ];
        let ignored = [
            (
                received.before,
                "vector",
                "were sent before this command listened",
            ),
            (
                received.stale,
                "datagram",
                "arrived twice or too late, and were ignored",
            ),
            (
                read.foreign,
                "datagram",
                "came from senders outside --allow, and were ignored",
            ),
        ];
        let cut = (received.unended > 0).then(|| cut(received.unended));
        let jumped = (received.jumps > 0).then(|| {
            let jumps = count_of(received.jumps, "jump");
            format!("{jumps} of a sender's numbers: it is unknown how many vectors are missing")
        });
        let lost = lost.into_iter().filter(|lost| lost.0 > 0);
        let ignored = ignored.into_iter().filter(|ignored| ignored.0 > 0);
        Self {
            incomplete: lost
                .map(|(count, what, why)| {
                    let lost = count_of(count, what);
                    format!("{lost} {why}: their packets are missing")
                })
                .chain(cut)
                .chain(jumped)
                .collect(),
            remarks: ignored
                .map(|(count, what, why)| format!("{} {why}", count_of(count, what)))
                .collect(),
        }
    }
}
