//! Reading labelled captures as the data path sees them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use strata_capture::{Input, InputOptions, Next};
use strata_pipeline::{FlowFinder, wire_bytes};
use strata_query::{ExportOptions, FileFormat, Find, export};
use strata_sketch::PacketFacts;
use strata_store::Sources;
use strata_wire::{Headers, Interface, Meta, TunnelKey, grouped};
use tracing::info;

use crate::key::KeyArgs;
use crate::labels::{AlarmClass, AlarmOptions, How, Label, LabelFile, Labels, Usage};
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
    /// Read this capture file, as `strata record` does, or the packets of this log.
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
    /// These captures and logs, in real time.
    pub(crate) fn of(read: &[PathBuf], labels: &LabelArgs) -> Self {
        Self {
            read: read.to_vec(),
            labels: labels.clone(),
            time_compression: 1.0,
            hash_seed: 0,
        }
    }

    /// The files that this reads.
    pub(crate) fn sources(&self) -> Sources {
        Sources::default()
            .files(&self.read)
            .files(&self.labels.labels)
    }
}

/// What the class of a flow with an alarm is.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum AlarmClassArg {
    /// One class for all, `anomalous`.
    Any,
    /// Suricata's category, the kind of Zeek's notice.
    Category,
    /// `severity-1`, the gravest, and so on.
    Severity,
}

/// Which label files to read, and how.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LabelArgs {
    /// Read the packets' labels from this file. CSV by frame number (frame, label, optional source;
    /// 0 is benign, 1 an attack, other labels are classes of their own); CSV of rules (label and
    /// any of address, source_address, destination_address, port, source_port, destination_port,
    /// protocol, from, to; the first match applies); flows of CICFlowMeter (CSV); Zeek's conn.log
    /// with a label column; or the alarms of an IDS: Suricata's eve.json, Zeek's notice.log. The
    /// latter may be several files; conn.log then says when the flows of notices were.
    #[arg(long, value_name = "FILE")]
    labels: Vec<PathBuf>,

    /// Give this label to packets that no rule or flow matches. By default they have none, and are
    /// used neither to train nor to evaluate; with alarms of an IDS they are benign.
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

    /// Choose the class of flows with an alarm of an IDS.
    #[arg(long, value_enum, default_value_t = AlarmClassArg::Any)]
    alarm_class: AlarmClassArg,

    /// Take only alarms of this severity or graver as labels (1 is the gravest); flows with others
    /// have no label.
    #[arg(long, value_name = "N")]
    alarm_severity: Option<u64>,

    /// Leave out packets of hosts that have an alarm within this many seconds before or after: an
    /// IDS does not alert on all of an attack. 0 takes as benign whatever has no alarm itself.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    alarm_quarantine: u32,

    #[command(flatten)]
    key: KeyArgs,
}

impl LabelArgs {
    /// Whether labels are given.
    pub(crate) fn is_given(&self) -> bool {
        !self.labels.is_empty()
    }

    /// The labels in the named files, if any.
    fn open(&self) -> Result<Option<Labels>> {
        if !self.is_given() {
            return Ok(None);
        }
        let files: Result<Vec<_>> = self.labels.iter().map(|path| label_file(path)).collect();
        let how = How {
            utc_offset: Some(&self.labels_utc_offset),
            otherwise: self.otherwise.as_deref(),
            alarms: AlarmOptions {
                class: match self.alarm_class {
                    AlarmClassArg::Any => AlarmClass::Any,
                    AlarmClassArg::Category => AlarmClass::Category,
                    AlarmClassArg::Severity => AlarmClass::Severity,
                },
                severity_max: self.alarm_severity,
                quarantine_ns: i128::from(self.alarm_quarantine) * 1_000_000_000,
            },
        };
        let labels = Labels::read(files?, &how)?;
        for problem in labels.problems() {
            text::warn(&problem);
        }
        Ok(Some(labels))
    }

    fn named(&self) -> String {
        let names = self.labels.iter().map(|path| path.display().to_string());
        names.collect::<Vec<_>>().join(", ")
    }
}

fn label_file(path: &Path) -> Result<LabelFile<'static>> {
    let name = path.display().to_string();
    let opened = path.metadata().and_then(|found| {
        let is_socket = found.file_type().is_socket();
        (!is_socket).then(|| File::open(path)).transpose()
    });
    let Some(file) = opened.with_context(|| format!("{name}: cannot read"))? else {
        bail!("{name}: is a socket: let the IDS write its alarms to a file (filetype: regular)");
    };
    Ok((name, Box::new(BufReader::new(file)) as Box<dyn BufRead>))
}

/// What a log holds of the packets that it was shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct OfLogs {
    /// Packets in the logs, and those of them that are cut, mostly after the headers.
    pub(crate) logged: u64,
    pub(crate) cut: u64,
    /// Packets that the recordings dropped, skipped or lost.
    pub(crate) not_logged: u64,
}

/// Capture files to read; packets of logs are exported to temporary ones.
struct Captures {
    files: Vec<PathBuf>,
    of_logs: Option<OfLogs>,
    scratch: Vec<tempfile::TempDir>,
}

impl Captures {
    fn open(read: &[PathBuf], key: &KeyArgs) -> Result<Self> {
        let mut captures = Self {
            files: Vec::new(),
            of_logs: None,
            scratch: Vec::new(),
        };
        for path in read {
            if !path.is_dir() {
                captures.files.push(path.clone());
                continue;
            }
            let log = key.open(path)?;
            let scratch = tempfile::tempdir().context("no room for temporary files")?;
            let file = scratch.path().join("log.pcapng");
            let target = File::create(&file).context("no room for temporary files")?;
            let target = std::io::BufWriter::new(target);
            let options = ExportOptions::default();
            let done = export(&log, target, FileFormat::PcapNg, &Find::default(), options);
            let done = done.with_context(|| path.display().to_string())?;
            for damage in done.damage {
                text::warn(&damage.to_string());
            }
            let of_logs = captures.of_logs.get_or_insert_default();
            let ledgers = log
                .recordings()
                .iter()
                .filter_map(|one| one.ledger.as_ref());
            for ledger in ledgers {
                let lost = ledger.dropped.iter().map(|(_, counters)| counters.0);
                of_logs.not_logged += ledger.discarded.0 + ledger.sampled_out.0;
                of_logs.not_logged += lost.sum::<u64>();
            }
            captures.files.push(file);
            captures.scratch.push(scratch);
        }
        Ok(captures)
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
    /// Of logs, if any was read.
    pub(crate) of_logs: Option<OfLogs>,
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
    let mut captures = Captures::open(&args.read, &args.labels.key)?;
    if captures.of_logs.is_some() && labels.as_ref().is_some_and(Labels::are_by_frame) {
        bail!(
            "{}: labels by frame number do not fit a log, which need not hold every packet: give \
             rules, flows or alarms",
            args.labels.named()
        );
    }
    let mut input = Input::open(&captures.files, &InputOptions::default())?;
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
                    if let Some(of_logs) = &mut captures.of_logs {
                        of_logs.logged += 1;
                        of_logs.cut += u64::from((packet.data.len() as u64) < wire_bytes(&packet));
                    }
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
        of_logs: captures.of_logs,
    };
    if let Some(of_logs) = &captures.of_logs {
        say_of_logs(of_logs);
    }
    if let Some(labels) = &labels {
        let usage = labels.usage(frame).with_context(|| args.labels.named())?;
        say_usage(&usage);
        read.usage = Some(usage);
    }
    Ok(read)
}

/// Reports how much of the packets a log holds.
#[allow(clippy::cast_precision_loss)]
fn say_of_logs(of_logs: &OfLogs) {
    let OfLogs {
        logged,
        cut,
        not_logged,
    } = *of_logs;
    let share = 100.0 * cut as f64 / logged.max(1) as f64;
    let mut said = format!(
        "{} from the log, {share:.1} % of them as headers, which are exact",
        text::count_of(logged, "packet")
    );
    if not_logged > 0 {
        said += &format!(
            "; {} more are not in it, so features of their flows differ from those that a \
             recording sees",
            grouped(not_logged)
        );
    }
    info!("{said}");
}

/// Reports how many packets have labels, and how many labels have packets.
fn say_usage(usage: &Usage) {
    let Usage {
        labelled,
        unlabelled,
        repeated,
        entries,
        unmatched,
        near_alarm,
    } = usage;
    let have = if *labelled == 1 { "has" } else { "have" };
    let mut said = format!("{} {have} a label", text::count_of(*labelled, "packet"));
    if *unlabelled > 0 {
        said += &format!(
            ", {} have none and are neither trained on nor judged",
            grouped(*unlabelled)
        );
    }
    if *near_alarm > 0 {
        said += &format!(" ({} since an alarm is near)", grouped(*near_alarm));
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
