//! Labelled captures and logs, packet by packet, as the data path sees them.
//!
//! Packets of a log are read as those of a capture: a thread exports the log into a pipe. So captures and logs are
//! merged by time, and no copy of a log, which may be encrypted, is on disk.

use std::collections::HashMap;
use std::io::{self, BufWriter, ErrorKind, PipeWriter, pipe};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use strata_archive::ArchiveError;
use strata_capture::{CaptureError, Input, InputOptions, InputSource, Next, Warning, WriteError};
use strata_pipeline::{FlowFinder, wire_bytes};
use strata_query::{ExportOptions, FileFormat, Find, MEMORY_BYTES, export_within};
use strata_sketch::PacketFacts;
use strata_store::{Damage, Log};
use strata_wire::{Headers, Interface, Meta, TunnelKey};

use crate::label::Label;
use crate::labels::Labels;

/// Why captures and logs cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no pipe, or no thread that exports a log into it.
    #[error("cannot read a log together with other packets: {0}")]
    Pipe(#[source] io::Error),
    /// A log cannot be read.
    #[error("{log}: {source}")]
    Log {
        /// Its directory.
        log: String,
        /// What is wrong with it.
        source: ArchiveError,
    },
    /// A capture cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

/// What a log holds of the packets that it was shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct OfLogs {
    /// Packets in the logs.
    pub logged: u64,
    /// Those of them that are cut, mostly after the headers.
    pub cut: u64,
    /// Packets that the recordings dropped, skipped or lost.
    pub not_logged: u64,
}

/// Capture files and logs to read.
#[derive(Debug, Default)]
pub struct Captures {
    inputs: Vec<Given>,
    of_logs: Option<OfLogs>,
}

#[derive(Debug)]
enum Given {
    File(PathBuf),
    /// A log, and its directory.
    Log(PathBuf, Box<Log>),
}

impl Captures {
    /// Adds a capture file.
    pub fn add_file(&mut self, file: &Path) {
        self.inputs.push(Given::File(file.to_owned()));
    }

    /// Adds the packets of a log in this directory.
    pub fn add_log(&mut self, dir: &Path, log: Log) {
        let of_logs = self.of_logs.get_or_insert_default();
        let ledgers = log
            .recordings()
            .iter()
            .filter_map(|one| one.ledger.as_ref());
        for ledger in ledgers {
            let lost = ledger.dropped.iter().map(|(_, counters)| counters.0);
            let not_kept = [ledger.discarded, ledger.sampled_out, ledger.duplicates];
            let packets = not_kept.iter().map(|counters| counters.0).chain(lost);
            of_logs.not_logged = packets.fold(of_logs.not_logged, u64::saturating_add);
        }
        self.inputs.push(Given::Log(dir.to_owned(), Box::new(log)));
    }

    /// The number of capture files and logs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inputs.len()
    }

    /// Whether some of them are logs, which need not hold every packet.
    #[must_use]
    pub fn has_logs(&self) -> bool {
        self.of_logs.is_some()
    }
}

/// How packets are read.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Distances in time are divided by this, from 1e-6 to 1e9.
    pub time_compression: f64,
    /// Key of flow fingerprints.
    pub hash_seed: u64,
}

/// One packet that has a flow.
pub struct Seen<'a> {
    /// Number of the packet in the capture, from 1.
    pub frame: u64,
    /// Number of the packet in its flow, from 1, over all windows.
    pub in_flow: u64,
    /// Its headers.
    pub headers: &'a Headers,
    /// With sped-up time.
    pub facts: PacketFacts,
    /// What it is, if labels say.
    pub label: Option<&'a Label>,
    /// Bytes on the wire.
    pub wire_len: u64,
    /// Bytes captured.
    pub captured_len: u64,
}

/// What was read.
#[derive(Debug, Default)]
pub struct ReadCounts {
    /// Packets.
    pub frames: u64,
    /// Those without a flow, which are not used.
    pub without_flow: u64,
    /// Of logs, if any was read.
    pub of_logs: Option<OfLogs>,
    /// What was odd about capture files.
    pub warnings: Vec<Warning>,
    /// Damaged places of logs, which were skipped.
    pub damage: Vec<Damage>,
}

/// Calls `each` for every packet that has a flow. At most 256 MiB of packets of all logs wait in memory for their turn.
///
/// # Errors
///
/// If captures or logs cannot be read, or `each` fails.
pub fn read<E: From<ReadError>>(
    captures: &Captures,
    labels: Option<&mut Labels>,
    options: ReadOptions,
    each: impl FnMut(&Seen<'_>) -> Result<(), E>,
) -> Result<ReadCounts, E> {
    let mut inputs = Vec::new();
    let mut logs = Vec::new();
    for given in &captures.inputs {
        match given {
            Given::File(path) => inputs.push(InputSource::File(path.clone())),
            Given::Log(dir, log) => {
                let (reader, writer) = pipe().map_err(ReadError::Pipe)?;
                inputs.push(InputSource::Reader(dir.clone(), Box::new(reader)));
                logs.push((dir, log.as_ref(), writer));
            }
        }
    }
    let memory_bytes = MEMORY_BYTES / logs.len().max(1);
    thread::scope(|scope| {
        let mut exports = Vec::new();
        for (dir, log, writer) in logs {
            let thread = thread::Builder::new().name("strata-log".into());
            let export = move || exported(log, writer, memory_bytes);
            let export = thread.spawn_scoped(scope, export);
            exports.push((dir, export.map_err(ReadError::Pipe)?));
        }
        // It closes the pipes when it returns, so that the exports end.
        let read = read_all(inputs, captures.of_logs, labels, options, each);
        let mut damage = Vec::new();
        let mut failed = None;
        for (dir, export) in exports {
            match export.join().unwrap_or_else(|panic| resume_unwind(panic)) {
                Ok(more) => damage.extend(more),
                Err(source) => {
                    failed.get_or_insert(ReadError::Log {
                        log: dir.display().to_string(),
                        source,
                    });
                }
            }
        }
        match (read, failed) {
            (Err(Failed::Each(error)), _) => Err(error),
            // What the reader of the pipe says follows from it.
            (_, Some(error)) => Err(error.into()),
            (Err(Failed::Capture(error)), None) => Err(ReadError::from(error).into()),
            (Ok(counts), None) => Ok(ReadCounts { damage, ..counts }),
        }
    })
}

/// Exports a log into a pipe; the damaged places, none if the reader has closed it.
fn exported(log: &Log, to: PipeWriter, memory_bytes: usize) -> Result<Vec<Damage>, ArchiveError> {
    let (to, find) = (BufWriter::with_capacity(PIPE_BYTES, to), Find::default());
    let options = ExportOptions::default();
    match export_within(memory_bytes, log, to, FileFormat::PcapNg, &find, options) {
        Ok(done) => Ok(done.damage),
        Err(ArchiveError::Write(WriteError::Io(error)))
            if error.kind() == ErrorKind::BrokenPipe =>
        {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// The kernel's buffer of a pipe.
const PIPE_BYTES: usize = 64 << 10;

/// Why reading ended early.
enum Failed<E> {
    Capture(CaptureError),
    Each(E),
}

impl<E> From<CaptureError> for Failed<E> {
    fn from(error: CaptureError) -> Self {
        Self::Capture(error)
    }
}

fn read_all<E>(
    inputs: Vec<InputSource>,
    of_logs: Option<OfLogs>,
    mut labels: Option<&mut Labels>,
    options: ReadOptions,
    mut each: impl FnMut(&Seen<'_>) -> Result<(), E>,
) -> Result<ReadCounts, Failed<E>> {
    let mut input = Input::of(inputs, &InputOptions::default())?;
    let mut flows = FlowFinder::new([options.hash_seed, 0], TunnelKey::Inner);
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut packets_of: HashMap<u64, u64> = HashMap::new();
    let mut counts = ReadCounts {
        of_logs,
        ..ReadCounts::default()
    };
    let mut first_ns = None;
    loop {
        match input.advance()? {
            Next::End => break,
            Next::Meta(Meta::Interface { interface, .. }) => interfaces.push(interface),
            Next::Meta(_) => {}
            Next::Packets => {
                for packet in input.batch().iter() {
                    counts.frames += 1;
                    if let Some(of_logs) = &mut counts.of_logs {
                        of_logs.logged += 1;
                        of_logs.cut += u64::from((packet.data.len() as u64) < wire_bytes(&packet));
                    }
                    let link = interfaces[usize::from(packet.interface)].link;
                    let (headers, Some(mut facts)) = flows.find(link, &packet) else {
                        counts.without_flow += 1;
                        continue;
                    };
                    let labels = labels.as_mut();
                    let label = labels.and_then(|it| it.of(counts.frames, packet.ts_ns, &headers));
                    let first_ns = *first_ns.get_or_insert(packet.ts_ns);
                    facts.ts_ns = compressed(first_ns, packet.ts_ns, options.time_compression);
                    let in_flow = packets_of.entry(facts.fingerprint).or_default();
                    *in_flow += 1;
                    each(&Seen {
                        frame: counts.frames,
                        in_flow: *in_flow,
                        headers: &headers,
                        facts,
                        label,
                        wire_len: wire_bytes(&packet),
                        captured_len: packet.data.len() as u64,
                    })
                    .map_err(Failed::Each)?;
                }
            }
        }
    }
    counts.warnings = input.take_warnings();
    Ok(counts)
}

/// A time whose distance from the first packet is divided by `factor`.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
fn compressed(first_ns: u64, ts_ns: u64, factor: f64) -> u64 {
    let scale = |ns: u64| (ns as f64 / factor) as u64;
    if factor == 1.0 {
        ts_ns
    } else if ts_ns >= first_ns {
        first_ns.saturating_add(scale(ts_ns - first_ns))
    } else {
        first_ns.saturating_sub(scale(first_ns - ts_ns))
    }
}
