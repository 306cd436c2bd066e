//! Packet labels, from the formats that data sets come in.
//!
//! - by frame: CSV with `frame`, `label` and, if need be, `source`;
//! - [`rules`]: CSV of conditions on addresses, ports, protocol and time;
//! - [`flows`]: the flow CSVs of CICFlowMeter and Zeek's `conn.log` with labels;
//! - [`ids`]: the alarms of an IDS: Suricata's EVE events, Zeek's `notice.log` and `conn.log`.
//!
//! A file's first lines say which one it is.

pub(crate) mod flows;
mod ids;
mod rules;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{BufRead, Cursor, Read};

use anyhow::{Context, Result, bail};
use strata_wire::Headers;

use flows::FlowLabels;
use ids::{Format, Ids, Said};
use rules::Rule;

pub(crate) use ids::{AlarmClass, Options as AlarmOptions};

/// What tells the format of a file is within this many bytes.
const HEAD_BYTES: u64 = 64 << 10;
/// A larger file that is not an IDS's is not read: it would have to fit into memory.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// How to read label files.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How<'a> {
    /// +HH:MM, of times without a zone; none is UTC.
    pub(crate) utc_offset: Option<&'a str>,
    /// The label of packets that no rule or flow matches.
    pub(crate) otherwise: Option<&'a str>,
    pub(crate) alarms: AlarmOptions,
}

/// A label file: its name in messages, and its content.
pub(crate) type LabelFile<'f> = (String, Box<dyn BufRead + 'f>);

/// What one packet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// Name of the class, as models have it.
    pub(crate) class: String,
    /// Where the packet came from; by default the label as written in the file.
    pub(crate) source: String,
}

/// All labels of a file.
#[derive(Debug)]
pub(crate) struct Labels {
    form: Form,
    /// For packets that no rule or flow matches.
    otherwise: Option<Label>,
    /// Whether no match at all is possible: the user said what such packets are.
    may_match_none: bool,
    usage: Usage,
}

#[derive(Debug)]
enum Form {
    Frames(Frames),
    Rules(Vec<Rule>),
    Flows(FlowLabels),
    Ids(Box<Ids>),
}

/// Labels by packet number.
#[derive(Debug, Default)]
struct Frames {
    labels: HashMap<u64, Label>,
    /// The highest number, and its line.
    last: (u64, u64),
    /// Lines that repeat the label of a frame.
    repeated: u64,
}

/// How the labels of a file were used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Packets that got a label, and packets that did not.
    pub(crate) labelled: u64,
    pub(crate) unlabelled: u64,
    /// Lines that repeat the label of a packet.
    pub(crate) repeated: u64,
    /// Rules or flows in the file, and those that match no packet.
    pub(crate) entries: u64,
    pub(crate) unmatched: u64,
    /// Of the packets without a label, those near an alarm.
    pub(crate) near_alarm: u64,
}

impl Form {
    fn read(text: &str, offset_s: i64) -> Result<Self> {
        let first = text.lines().next().unwrap_or("");
        if first.starts_with("#separator") || first.starts_with("#fields") {
            return Ok(Self::Flows(FlowLabels::zeek_tsv(text)?));
        }
        if first.starts_with('{') {
            return Ok(Self::Flows(FlowLabels::zeek_json(text)?));
        }
        let columns = Columns::of(first);
        if columns.find(&["frame"]).is_some() {
            return Ok(Self::Frames(frames(text, &columns)?));
        }
        if columns.find(&["flow duration"]).is_some() {
            return Ok(Self::Flows(FlowLabels::cic(text, &columns, offset_s)?));
        }
        if columns.find(&["label"]).is_some() {
            return Ok(Self::Rules(rules::read(text, &columns, offset_s)?));
        }
        bail!(
            "not a label file: no column 'label' in the first line '{}'",
            first.chars().take(80).collect::<String>()
        )
    }
}

impl Labels {
    /// Reads a label file, or several of an IDS.
    ///
    /// # Errors
    ///
    /// What is wrong, with its file and line.
    pub(crate) fn read(files: Vec<LabelFile<'_>>, how: &How<'_>) -> Result<Self> {
        let offset_s = offset_s(how.utc_offset.unwrap_or("+00:00"))?;
        let mut known = Vec::new();
        for (name, mut file) in files {
            let mut head = Vec::new();
            let read = file.by_ref().take(HEAD_BYTES).read_to_end(&mut head);
            read.with_context(|| format!("{name}: cannot read"))?;
            let format = Format::of(&String::from_utf8_lossy(&head));
            known.push((format, name, Cursor::new(head).chain(file)));
        }
        let count = known.len();
        if known.iter().all(|(format, ..)| format.is_some()) {
            return Self::of_ids(known, offset_s, how);
        }
        let is_alone = count == 1;
        let other = known.into_iter().find(|(format, ..)| format.is_none());
        let (_, name, file) = other.context("no label file")?;
        if !is_alone {
            bail!(
                "{name}: several label files have to be those of an IDS: Suricata's eve.json, \
                 Zeek's notice.log and conn.log without labels"
            );
        }
        let mut bytes = Vec::new();
        let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.with_context(|| format!("{name}: cannot read"))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            bail!("{name}: larger than 1 GiB: give the labels of part of the packets");
        }
        // Data sets contain Latin-1 names: one odd byte is no reason to stop.
        let text = String::from_utf8_lossy(&bytes);
        Ok(Self {
            form: Form::read(&text, offset_s).context(name)?,
            otherwise: how.otherwise.map(Label::new),
            may_match_none: how.otherwise.is_some(),
            usage: Usage::default(),
        })
    }

    fn of_ids<R: BufRead>(
        mut files: Vec<(Option<Format>, String, R)>,
        offset_s: i64,
        how: &How<'_>,
    ) -> Result<Self> {
        // Connections after the alarms, since only those with one are remembered.
        files.sort_by_key(|(format, ..)| *format);
        let mut reader = ids::Reader::new(how.alarms, offset_s);
        let mut names = Vec::new();
        for (format, name, file) in files {
            let format = format.context("no format")?;
            reader.read(file, format, &name)?;
            names.push(name);
        }
        let ids = reader.finish().with_context(|| names.join(", "))?;
        let clean = Label {
            class: class_name("benign"),
            source: String::from("no alarm"),
        };
        Ok(Self {
            form: Form::Ids(Box::new(ids)),
            otherwise: Some(how.otherwise.map_or(clean, Label::new)),
            may_match_none: false,
            usage: Usage::default(),
        })
    }

    /// Whether packets are named by their number in the capture.
    pub(crate) fn are_by_frame(&self) -> bool {
        matches!(self.form, Form::Frames(_))
    }

    /// What a user is told about the files.
    pub(crate) fn problems(&self) -> Vec<String> {
        match &self.form {
            Form::Ids(ids) => ids.problems(),
            _ => Vec::new(),
        }
    }

    /// The label of a packet; `ts_ns` as captured.
    pub(crate) fn of(&mut self, frame: u64, ts_ns: u64, headers: &Headers) -> Option<&Label> {
        let otherwise = self.otherwise.as_ref();
        let label = match &mut self.form {
            Form::Frames(frames) => frames.labels.get(&frame).or(otherwise),
            Form::Rules(rules) => rules::first(rules, ts_ns, headers).or(otherwise),
            Form::Flows(flows) => flows.of(ts_ns, headers).or(otherwise),
            Form::Ids(ids) => match ids.of(ts_ns, headers) {
                Said::Alarm(label) => Some(label),
                Said::Near => None,
                Said::Nothing => otherwise,
            },
        };
        match label {
            Some(_) => self.usage.labelled += 1,
            None => self.usage.unlabelled += 1,
        }
        label
    }

    /// How the labels were used, once all packets of the capture were looked up.
    ///
    /// # Errors
    ///
    /// If labels name packets beyond the end of a capture of this many.
    pub(crate) fn usage(&self, packets: u64) -> Result<Usage> {
        let mut usage = self.usage;
        match &self.form {
            Form::Frames(frames) => {
                let (last, line) = frames.last;
                if last > packets {
                    let beyond = frames.labels.keys().filter(|frame| **frame > packets);
                    bail!(
                        "line {line}: frame {last}, but the capture has {packets} packets; {} of \
                         its {} labels are of frames that are not there: it belongs to another \
                         capture",
                        beyond.count(),
                        frames.labels.len()
                    );
                }
                usage.repeated = frames.repeated;
            }
            Form::Rules(rules) => {
                usage.entries = rules.len() as u64;
                usage.unmatched = rules.iter().filter(|rule| !rule.is_used()).count() as u64;
            }
            Form::Flows(flows) => (usage.entries, usage.unmatched) = flows.unmatched(),
            Form::Ids(ids) => {
                (usage.entries, usage.unmatched) = ids.unmatched();
                usage.near_alarm = ids.quarantined();
            }
        }
        let none_match = usage.entries > 0 && usage.unmatched == usage.entries;
        if none_match && packets > 0 && !self.may_match_none {
            bail!(
                "none of its {} rules or flows matches one of the {packets} packets: it belongs to \
                 another capture, or its clock differs (--labels-utc-offset)",
                usage.entries
            );
        }
        Ok(usage)
    }
}

impl Label {
    fn new(label: &str) -> Self {
        Self {
            class: class_name(label),
            source: label.trim().to_owned(),
        }
    }
}

/// A label as a class name: letters, digits, - and _.
pub(crate) fn class_name(label: &str) -> String {
    let label = label.trim();
    match label.to_ascii_lowercase().as_str() {
        "0" | "benign" | "normal" | "background" => return String::from("benign"),
        "1" | "attack" | "malicious" | "anomalous" => return String::from("anomalous"),
        _ => {}
    }
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let mut name: String = label.chars().map(plain).collect();
    while name.contains("--") {
        name = name.replace("--", "-");
    }
    name.truncate(64);
    let name = name.trim_matches('-');
    if name.is_empty() {
        String::from("unnamed")
    } else {
        name.to_owned()
    }
}

/// The columns of a CSV file by name, ignoring case and spaces.
struct Columns(Vec<String>);

impl Columns {
    fn of(first: &str) -> Self {
        let plain = |name: &str| name.trim().trim_matches('"').to_ascii_lowercase();
        Self(
            first
                .trim_start_matches('\u{feff}')
                .split(',')
                .map(plain)
                .collect(),
        )
    }

    /// The first column with one of these names.
    fn find(&self, names: &[&str]) -> Option<usize> {
        names
            .iter()
            .find_map(|name| self.0.iter().position(|column| column == name))
    }

    fn need(&self, names: &[&str]) -> Result<usize> {
        self.find(names)
            .with_context(|| format!("line 1: no column '{}'", names[0]))
    }
}

/// The rows of a CSV file with their line numbers.
fn rows(text: &str) -> impl Iterator<Item = Result<(u64, csv::StringRecord)>> {
    let reader = csv::ReaderBuilder::new()
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let mut records = reader.into_records();
    std::iter::from_fn(move || {
        let record = records.next()?;
        let line = records.reader().position().line();
        Some(
            record
                .map(|r| (line.saturating_sub(1), r))
                .map_err(Into::into),
        )
    })
}

fn frames(text: &str, columns: &Columns) -> Result<Frames> {
    let (frame, label) = (columns.need(&["frame"])?, columns.need(&["label"])?);
    let source = columns.find(&["source"]);
    let mut frames = Frames::default();
    for row in rows(text) {
        let (line, row) = row?;
        let number = row.get(frame).unwrap_or("");
        let number: u64 = number
            .parse()
            .with_context(|| format!("line {line}: frame '{number}' is not a number"))?;
        if number == 0 {
            bail!("line {line}: frame 0: frames are numbered from 1");
        }
        let mut label = Label::new(row.get(label).unwrap_or(""));
        if let Some(source) = source.and_then(|column| row.get(column)) {
            source.clone_into(&mut label.source);
        }
        frames.last = frames.last.max((number, line));
        match frames.labels.entry(number) {
            Entry::Vacant(vacant) => drop(vacant.insert(label)),
            Entry::Occupied(known) if *known.get() == label => frames.repeated += 1,
            Entry::Occupied(known) => bail!(
                "line {line}: frame {number} is '{}' ({}) here, but '{}' ({}) on a line before",
                label.class,
                label.source,
                known.get().class,
                known.get().source
            ),
        }
    }
    Ok(frames)
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

/// No time is further from 1970, and no flow longer: about 3000 years, in seconds.
const SECONDS_MAX: f64 = 1e11;

/// How long a flow lasted, in ns. Negative durations, which occur in data sets, are invalid.
#[allow(clippy::cast_possible_truncation)]
fn duration_ns(seconds: f64) -> i128 {
    (seconds.clamp(0.0, SECONDS_MAX) * 1e9) as i128
}

/// A time in ns since 1970, and its resolution in ns: seconds, RFC 3339, or the formats that
/// CICFlowMeter has used, in local time at this offset.
fn time_ns(text: &str, offset_s: i64) -> Option<(i128, i128)> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        #[allow(clippy::cast_possible_truncation)]
        return (seconds.abs() <= SECONDS_MAX).then_some(((seconds * 1e9) as i128, 1_000));
    }
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Some((time.as_nanosecond(), 1));
    }
    let forms = [
        ("%d/%m/%Y %I:%M:%S %p", 1_000_000_000),
        ("%d/%m/%Y %H:%M:%S", 1_000_000_000),
        ("%d/%m/%Y %H:%M", 60_000_000_000),
        ("%Y-%m-%d %H:%M:%S%.f", 1_000),
        ("%Y-%m-%dT%H:%M:%S%.f", 1_000),
        ("%Y-%m-%d %H:%M", 60_000_000_000),
    ];
    forms.iter().find_map(|(form, step)| {
        let time = jiff::civil::DateTime::strptime(form, text).ok()?;
        let time = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
        let ns = time.timestamp().as_nanosecond() - i128::from(offset_s) * 1_000_000_000;
        Some((ns, *step))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_become_names_of_classes() {
        assert_eq!(class_name("0"), "benign");
        assert_eq!(class_name(" BENIGN"), "benign");
        assert_eq!(class_name("1"), "anomalous");
        assert_eq!(
            class_name("Web Attack \u{fffd} Sql Injection"),
            "web-attack-sql-injection"
        );
        assert_eq!(class_name("?"), "unnamed");
    }

    #[test]
    fn times_are_read_in_the_forms_of_data_sets() {
        let ns = |text, offset| time_ns(text, offset).unwrap().0;
        assert_eq!(ns("1499083200.5", 0), 1_499_083_200_500_000_000);
        assert_eq!(ns("2017-07-03T12:00:00Z", 0), 1_499_083_200_000_000_000);
        assert_eq!(
            ns("03/07/2017 09:00:00", -3 * 3600),
            1_499_083_200_000_000_000
        );
        assert_eq!(ns("3/7/2017 9:00", -3 * 3600), 1_499_083_200_000_000_000);
        assert_eq!(time_ns("yesterday", 0), None);
    }

    #[test]
    fn times_that_no_clock_shows_are_refused() {
        for text in ["inf", "-inf", "nan", "1e300", "-1e300"] {
            assert_eq!(time_ns(text, 0), None, "{text}");
        }
    }

    #[test]
    fn clocks_are_hours_and_minutes() {
        assert_eq!(offset_s("-03:30").unwrap(), -12_600);
        assert!(offset_s("3").is_err());
        assert!(offset_s("+9223372036854775807:00").is_err());
    }
}
