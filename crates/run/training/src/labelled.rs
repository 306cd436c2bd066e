//! Reading labelled captures as the data path sees them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use strata_labels::{
    AlertClass, AlertOptions, Captures, How, LabelFile, Labels, OfLogs, ReadOptions, Usage,
};
use strata_store::{Sources, damage_texts};
use strata_terminal::key::KeyArgs;
use strata_terminal::table::{ColumnSpec, Kind};
use strata_terminal::{plain, text};
use strata_wire::grouped;
use tracing::info;

pub use strata_labels::Seen;

// Columns of every table of labelled packets.
/// The column of: the number of a packet in what is read.
pub const FRAME: ColumnSpec = (
    "frame",
    Kind::U64,
    "number",
    "Number of the packet in the capture, from 1.",
);
/// The column of: when it arrived.
pub const TS_NS: ColumnSpec = (
    "ts_ns",
    Kind::U64,
    "ns",
    "Arrival since 1970, in compressed time if time was compressed.",
);
/// The column of: the number of its flow.
pub const FLOW: ColumnSpec = (
    "flow",
    Kind::U64,
    "",
    "Fingerprint of the flow, both directions.",
);
/// The column of: its number in the flow.
pub const IN_FLOW: ColumnSpec = (
    "in_flow",
    Kind::U64,
    "number",
    "Number of the packet in its flow, from 1, over all windows.",
);
/// The column of: its length.
pub const WIRE_LEN: ColumnSpec = (
    "wire_len",
    Kind::U64,
    "bytes",
    "Length of the packet on the wire.",
);
/// The column of: what the labels say of it.
pub const LABEL: ColumnSpec = (
    "label",
    Kind::Word,
    "",
    "Class of the packet; null if unknown.",
);
/// The column of: where its label comes from.
pub const SOURCE: ColumnSpec = (
    "source",
    Kind::Word,
    "",
    "Where the packet came from, as the labels say.",
);

/// A capture and the labels of its packets.
#[derive(Debug, clap::Args)]
pub struct LabelledArgs {
    /// Read this capture file, or the packets of this log; may be given several times.
    #[arg(short = 'r', long = "read", value_name = "FILE", required = true)]
    read: Vec<PathBuf>,

    #[command(flatten)]
    labels: LabelArgs,

    /// Divide the times between packets by this factor, so that a window holds more packets, as on
    /// a faster link.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    time_compression: f64,

    /// Set the seed of flow fingerprints.
    #[arg(long, value_name = "N", default_value_t = 0)]
    hash_seed: u64,
}

impl LabelledArgs {
    /// These captures and logs, in real time.
    pub fn of(read: &[PathBuf], labels: &LabelArgs) -> Self {
        Self {
            read: read.to_vec(),
            labels: labels.clone(),
            time_compression: 1.0,
            hash_seed: 0,
        }
    }

    /// The files that this reads.
    pub fn sources(&self) -> Sources {
        Sources::default()
            .files(&self.read)
            .files(&self.labels.labels)
    }
}

/// What the class of a flow with an alert is.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum AlertClassArg {
    /// One class for all alerts, `anomalous`.
    Any,
    /// Suricata's category, or the type of Zeek's notice.
    Category,
    /// `severity-1`, the most severe, and so on.
    Severity,
}

/// Which label files to read, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct LabelArgs {
    /// Read the labels of packets from this file. CSV by frame number (frame, label, optionally
    /// source; label 0 is benign, 1 is an attack, and any other label is a class of its own; lines
    /// without a label are not used); CSV of rules (label and any of address, source_address,
    /// destination_address, port, source_port, destination_port, protocol, from, to; the first
    /// match applies); flows of CICFlowMeter (CSV); Zeek's conn.log with a label column; or the
    /// alerts of an IDS: Suricata's eve.json, Zeek's notice.log. Alerts may be in several files,
    /// each with --labels; a conn.log among them gives the times of the flows in notice.log.
    #[arg(long, value_name = "FILE")]
    labels: Vec<PathBuf>,

    /// Give this label to packets that no rule or flow matches. By default, they have no label, and
    /// are used neither for training nor for evaluation; with IDS alerts, they are benign.
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

    /// Choose the class of flows with an IDS alert.
    #[arg(long, value_enum, default_value_t = AlertClassArg::Any)]
    alert_class: AlertClassArg,

    /// Use only alerts of this severity or more severe ones as labels (1 is the most severe). Flows
    /// with other alerts have no label; with --alert-quarantine 0, they are benign.
    #[arg(long, value_name = "N")]
    alert_severity: Option<u64>,

    /// Leave out packets of a host that are within this many seconds of an alert on the host,
    /// because an IDS does not alert on every part of an attack. With 0, leave out only packets
    /// with the addresses and ports of an alert's flow from before or after this flow.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    alert_quarantine: u32,

    #[command(flatten)]
    key: KeyArgs,
}

impl LabelArgs {
    /// Whether labels are given.
    pub fn is_given(&self) -> bool {
        !self.labels.is_empty()
    }

    /// The labels in the named files, if any.
    fn open(&self) -> Result<Option<Labels>> {
        if !self.is_given() {
            return Ok(None);
        }
        let files: Result<Vec<_>> = self.labels.iter().map(|path| label_file(path)).collect();
        let files = files?;
        let how = How {
            utc_offset_s: offset_s(&self.labels_utc_offset)?,
            otherwise: self.otherwise.as_deref(),
            alerts: AlertOptions {
                class: match self.alert_class {
                    AlertClassArg::Any => AlertClass::Any,
                    AlertClassArg::Category => AlertClass::Category,
                    AlertClassArg::Severity => AlertClass::Severity,
                },
                severity_max: self.alert_severity,
                quarantine_ns: i128::from(self.alert_quarantine) * 1_000_000_000,
            },
        };
        let labels = Labels::read(files, &how)?;
        for problem in labels.problems() {
            text::warn(&plain::words(&problem.to_string()));
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
        bail!(
            "{name}: this is a socket: let the IDS write its alerts to a file (filetype: regular)"
        );
    };
    let content: Box<dyn BufRead> = Box::new(BufReader::new(file));
    Ok(LabelFile { name, content })
}

/// `+HH:MM` in seconds.
fn offset_s(text: &str) -> Result<i64> {
    let wrong = || format!("--labels-utc-offset '{text}' is not +HH:MM or -HH:MM");
    let (sign, rest) = match text.split_at_checked(1) {
        Some(("+", rest)) => (1, rest),
        Some(("-", rest)) => (-1, rest),
        _ => bail!(wrong()),
    };
    let (hours, minutes) = rest.split_once(':').with_context(wrong)?;
    let (hours, minutes): (u8, u8) = (
        hours.parse().with_context(wrong)?,
        minutes.parse().with_context(wrong)?,
    );
    if hours > 23 || minutes > 59 {
        bail!(wrong());
    }
    Ok(sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60))
}

/// What was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Read {
    /// Packets.
    pub frames: u64,
    /// Frames without a flow, which are not used.
    pub without_flow: u64,
    /// Of the labels, if there are any.
    pub usage: Option<Usage>,
    /// Of logs, if any was read.
    pub of_logs: Option<OfLogs>,
}

/// The captures, and the packets of logs.
fn captures(read: &[PathBuf], key: &KeyArgs) -> Result<Captures> {
    let mut captures = Captures::default();
    for path in read {
        if !path.is_dir() {
            captures.add_file(path);
            continue;
        }
        captures.add_log(path, key.open(path)?);
    }
    Ok(captures)
}

/// Why labels by frame number cannot belong to these packets, if they cannot.
fn by_frame_problem(captures: &Captures) -> Option<&'static str> {
    if captures.has_logs() {
        return Some(
            "labels by frame number cannot be used for a log, which may not have every packet: \
             give rules, flows or alerts",
        );
    }
    // Packets of several captures are merged by time, and numbered in that order.
    let several = "labels by frame number are for one capture, and several are given: read each \
                   capture with its own labels, or give rules, flows or alerts";
    (captures.count() > 1).then_some(several)
}

/// Calls `each` for every packet that has a flow.
pub fn read(args: &LabelledArgs, each: impl FnMut(&Seen<'_>) -> Result<()>) -> Result<Read> {
    if !(1e-6..=1e9).contains(&args.time_compression) {
        bail!(
            "--time-compression {} is not between 1e-6 and 1e9",
            args.time_compression
        );
    }
    let mut labels = args.labels.open()?;
    let captures = captures(&args.read, &args.labels.key)?;
    if labels.as_ref().is_some_and(Labels::are_by_frame)
        && let Some(problem) = by_frame_problem(&captures)
    {
        bail!("{}: {problem}", args.labels.named());
    }
    let options = ReadOptions {
        time_compression: args.time_compression,
        hash_seed: args.hash_seed,
    };
    let counts = strata_labels::read(&captures, labels.as_mut(), options, each)?;
    for warning in counts.warnings {
        text::warn(&warning.to_string());
    }
    for problem in damage_texts(&counts.damage) {
        text::warn(&problem);
    }
    let mut read = Read {
        frames: counts.frames,
        without_flow: counts.without_flow,
        usage: None,
        of_logs: counts.of_logs,
    };
    if let Some(of_logs) = &counts.of_logs {
        say_of_logs(of_logs);
    }
    if let Some(labels) = &labels {
        let usage = labels.usage(counts.frames);
        let usage = usage.with_context(|| args.labels.named())?;
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
        near_alert,
        without_label,
    } = usage;
    let have = if *labelled == 1 { "has" } else { "have" };
    let mut said = format!("{} {have} a label", text::count_of(*labelled, "packet"));
    if *unlabelled > 0 {
        said += &format!(
            ", {} have none and are used neither for training nor for evaluation",
            grouped(*unlabelled)
        );
    }
    if *near_alert > 0 {
        said += &format!(
            " ({} because they are close to an alert)",
            grouped(*near_alert)
        );
    }
    if *repeated > 0 {
        said += &format!("; {} lines repeat another", grouped(*repeated));
    }
    if *without_label > 0 {
        let lines = text::count_of(*without_label, "line");
        said += &format!("; no label in {lines} of the label file");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_hours_and_minutes() {
        assert_eq!(offset_s("-03:30").unwrap(), -12_600);
        assert!(offset_s("3").is_err());
        assert!(offset_s("+9223372036854775807:00").is_err());
    }
}
