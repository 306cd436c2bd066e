//! Labelled captures and logs, packet by packet, as the data path sees them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use strata_archive::ArchiveError;
use strata_capture::{CaptureError, Input, InputOptions, Next, Warning};
use strata_pipeline::{FlowFinder, wire_bytes};
use strata_query::{ExportOptions, FileFormat, Find, export};
use strata_sketch::PacketFacts;
use strata_store::{Damage, Log};
use strata_wire::{Headers, Interface, Meta, TunnelKey};

use crate::label::Label;
use crate::labels::Labels;

/// Why captures and logs cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Packets of a log are exported to a temporary file, which cannot be written.
    #[error(
        "cannot write temporary files in {dir} (set TMPDIR to use another directory): {0}",
        dir = std::env::temp_dir().display()
    )]
    Scratch(#[source] io::Error),
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

/// Capture files to read; packets of logs are exported to temporary ones, which are deleted with this.
#[derive(Debug, Default)]
pub struct Captures {
    files: Vec<PathBuf>,
    of_logs: Option<OfLogs>,
    scratch: Vec<tempfile::TempDir>,
}

impl Captures {
    /// Adds a capture file.
    pub fn add_file(&mut self, file: &Path) {
        self.files.push(file.to_owned());
    }

    /// Adds the packets of a log in this directory; the damaged places, which are skipped.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or the temporary file cannot be written.
    pub fn add_log(&mut self, dir: &Path, log: &Log) -> Result<Vec<Damage>, ReadError> {
        let scratch = tempfile::tempdir().map_err(ReadError::Scratch)?;
        let file = scratch.path().join("log.pcapng");
        let target = File::create(&file).map_err(ReadError::Scratch)?;
        let target = BufWriter::new(target);
        let options = ExportOptions::default();
        let done = export(log, target, FileFormat::PcapNg, &Find::default(), options);
        let done = done.map_err(|source| ReadError::Log {
            log: dir.display().to_string(),
            source,
        })?;
        let of_logs = self.of_logs.get_or_insert_default();
        let ledgers = log
            .recordings()
            .iter()
            .filter_map(|one| one.ledger.as_ref());
        for ledger in ledgers {
            let lost = ledger.dropped.iter().map(|(_, counters)| counters.0);
            of_logs.not_logged += ledger.discarded.0 + ledger.sampled_out.0;
            of_logs.not_logged += lost.sum::<u64>();
        }
        self.files.push(file);
        self.scratch.push(scratch);
        Ok(done.damage)
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
}

/// Calls `each` for every packet that has a flow.
///
/// # Errors
///
/// If captures cannot be read, or `each` fails.
pub fn read<E: From<ReadError>>(
    captures: &Captures,
    mut labels: Option<&mut Labels>,
    options: ReadOptions,
    mut each: impl FnMut(&Seen<'_>) -> Result<(), E>,
) -> Result<ReadCounts, E> {
    let input = Input::open(&captures.files, &InputOptions::default());
    let mut input = input.map_err(ReadError::from)?;
    let mut flows = FlowFinder::new([options.hash_seed, 0], TunnelKey::Inner);
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut packets_of: HashMap<u64, u64> = HashMap::new();
    let mut counts = ReadCounts {
        of_logs: captures.of_logs,
        ..ReadCounts::default()
    };
    let mut first_ns = None;
    loop {
        match input.advance().map_err(ReadError::from)? {
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
                    })?;
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
