//! Reading labelled captures as the data path sees them.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use strata_capture::{Input, InputOptions, Next};
use strata_pipeline::{FlowFinder, wire_bytes};
use strata_sketch::PacketFacts;
use strata_store::Sources;
use strata_wire::{Headers, Interface, Meta, TunnelKey, grouped};
use tracing::info;

use crate::labels::{Label, Labels, Usage};
use crate::table::{ColumnSpec, Kind};
use crate::text;

// Columns of every table of labelled packets.
pub(crate) const FRAME: ColumnSpec = (
    "frame",
    Kind::U64,
    "number",
    "Number of the packet in the capture, from 1.",
);
pub(crate) const TS_NS: ColumnSpec = (
    "ts_ns",
    Kind::U64,
    "ns",
    "Arrival since 1970, in compressed time if time was compressed.",
);
pub(crate) const FLOW: ColumnSpec = (
    "flow",
    Kind::U64,
    "",
    "Fingerprint of the flow, both directions.",
);
pub(crate) const IN_FLOW: ColumnSpec = (
    "in_flow",
    Kind::U64,
    "number",
    "Number of the packet in its flow, from 1, over all windows.",
);
pub(crate) const WIRE_LEN: ColumnSpec = (
    "wire_len",
    Kind::U64,
    "bytes",
    "Length of the packet on the wire.",
);
pub(crate) const LABEL: ColumnSpec = (
    "label",
    Kind::Word,
    "",
    "Class of the packet; null if unknown.",
);
pub(crate) const SOURCE: ColumnSpec = (
    "source",
    Kind::Word,
    "",
    "Where the packet came from, as the labels say.",
);

/// A capture and the labels of its packets.
#[derive(Debug, clap::Args)]
pub(crate) struct LabelledArgs {
    /// Read this capture file, as `strata record` does.
    #[arg(short = 'r', long = "read", value_name = "FILE", required = true)]
    read: Vec<PathBuf>,

    #[command(flatten)]
    labels: LabelArgs,

    /// Speed up time by this factor: delays shrink, and a window holds more packets, as it would on
    /// a faster link.
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    time_compression: f64,

    /// Set the key of flow fingerprints.
    #[arg(long, value_name = "N", default_value_t = 0)]
    hash_seed: u64,
}

impl LabelledArgs {
    /// The files that this reads.
    pub(crate) fn sources(&self) -> Sources {
        Sources::default()
            .files(&self.read)
            .files(&self.labels.labels)
    }
}

/// Which label files to read, and how.
#[derive(Debug, Default, clap::Args)]
struct LabelArgs {
    /// Read the packets' labels from this file. CSV by frame number (frame, label, optional source;
    /// 0 is benign, 1 an attack, other labels are classes of their own); CSV of rules (label and
    /// any of address, source_address, destination_address, port, source_port, destination_port,
    /// protocol, from, to; the first match applies); flows of CICFlowMeter (CSV); or Zeek's
    /// conn.log with a label column.
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,

    /// Give this label to packets that no rule or flow matches; by default they have none, and are
    /// used neither to train nor to evaluate.
    #[arg(long, value_name = "LABEL")]
    otherwise: Option<String>,

    /// Set the UTC offset, +HH:MM, of times without a zone in label files: CICFlowMeter writes
    /// local time.
    #[arg(
        long,
        value_name = "OFFSET",
        default_value = "+00:00",
        allow_hyphen_values = true
    )]
    labels_utc_offset: String,
}

impl LabelArgs {
    /// The labels in the named file, if any.
    fn open(&self) -> Result<Option<Labels>> {
        let Some(path) = &self.labels else {
            return Ok(None);
        };
        let bytes = fs::read(path).with_context(|| format!("{}: cannot read", path.display()))?;
        let labels = Labels::read(&bytes, &self.labels_utc_offset, self.otherwise.as_deref());
        Ok(Some(labels.with_context(|| path.display().to_string())?))
    }
}

/// One packet that has a flow.
pub(crate) struct Seen<'a> {
    /// Number of the packet in the capture, from 1.
    pub(crate) frame: u64,
    /// Number of the packet in its flow, from 1, over all windows.
    pub(crate) in_flow: u64,
    pub(crate) headers: &'a Headers,
    /// With sped-up time.
    pub(crate) facts: PacketFacts,
    pub(crate) label: Option<&'a Label>,
    /// Bytes on the wire and captured.
    pub(crate) wire_len: u64,
    pub(crate) captured_len: u64,
}

/// What was read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Read {
    pub(crate) frames: u64,
    /// Frames without a flow, which are not used.
    pub(crate) without_flow: u64,
    /// Of the labels, if there are any.
    pub(crate) usage: Option<Usage>,
}

/// Calls `each` for every packet that has a flow.
pub(crate) fn read(
    args: &LabelledArgs,
    mut each: impl FnMut(&Seen<'_>) -> Result<()>,
) -> Result<Read> {
    if !(1e-6..=1e9).contains(&args.time_compression) {
        bail!(
            "--time-compression {} is not within 1e-6 and 1e9",
            args.time_compression
        );
    }
    let mut labels = args.labels.open()?;
    let mut input = Input::open(&args.read, &InputOptions::default())?;
    let mut flows = FlowFinder::new([args.hash_seed, 0], TunnelKey::Inner);
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut packets_of: HashMap<u64, u64> = HashMap::new();
    let (mut frame, mut without_flow) = (0, 0);
    let mut first_ns = None;
    loop {
        match input.advance()? {
            Next::End => break,
            Next::Meta(Meta::Interface { interface, .. }) => interfaces.push(interface),
            Next::Meta(_) => {}
            Next::Packets => {
                for packet in input.batch().iter() {
                    frame += 1;
                    let link = interfaces[usize::from(packet.interface)].link;
                    let (headers, Some(mut facts)) = flows.find(link, &packet) else {
                        without_flow += 1;
                        continue;
                    };
                    let label = labels.as_mut();
                    let label = label.and_then(|l| l.of(frame, packet.ts_ns, &headers));
                    let first_ns = *first_ns.get_or_insert(packet.ts_ns);
                    facts.ts_ns = compressed(first_ns, packet.ts_ns, args.time_compression);
                    let in_flow = packets_of.entry(facts.fingerprint).or_default();
                    *in_flow += 1;
                    each(&Seen {
                        frame,
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
    for warning in input.take_warnings() {
        text::warn(&warning.to_string());
    }
    let mut read = Read {
        frames: frame,
        without_flow,
        usage: None,
    };
    if let (Some(labels), Some(path)) = (&labels, &args.labels.labels) {
        let usage = labels.usage(frame);
        let usage = usage.with_context(|| path.display().to_string())?;
        say_usage(&usage);
        read.usage = Some(usage);
    }
    Ok(read)
}

/// Reports how many packets have labels, and how many labels have packets.
fn say_usage(usage: &Usage) {
    let Usage {
        labelled,
        unlabelled,
        repeated,
        entries,
        unmatched,
    } = usage;
    let mut said = format!("{} packets have a label", grouped(*labelled));
    if *unlabelled > 0 {
        said += &format!(
            ", {} have none and are neither trained on nor judged",
            grouped(*unlabelled)
        );
    }
    if *repeated > 0 {
        said += &format!("; {} lines repeat another", grouped(*repeated));
    }
    if *unmatched > 0 {
        said += &format!(
            "; {} of {} rules or flows of the labels match no packet",
            grouped(*unmatched),
            grouped(*entries)
        );
    }
    info!("{said}");
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
