//! What is wrong with a label file: which one, where, and what.

use std::io;
use std::net::AddrParseError;
use std::num::{ParseFloatError, ParseIntError};

use strata_wire::count_of;

use crate::label::{ClassError, Label};

/// What is wrong with a value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// Not an address.
    #[error(transparent)]
    Address(#[from] AddrParseError),
    /// Not a port, outside of conditions.
    #[error(transparent)]
    Whole(#[from] ParseIntError),
    /// Not a number.
    #[error(transparent)]
    Number(#[from] ParseFloatError),
    /// Neither an address nor a network.
    #[error("'{text}' is not an address or network: {source}")]
    Network {
        /// As written.
        text: String,
        /// What is wrong with it as a network.
        source: ipnet::AddrParseError,
    },
    /// Not a port.
    #[error("'{text}' is not a port: {source}")]
    Port {
        /// As written.
        text: String,
        /// What is wrong with it.
        source: ParseIntError,
    },
    /// Neither the name nor the number of a protocol.
    #[error("'{text}' is not an IP protocol: {source}")]
    Protocol {
        /// As written.
        text: String,
        /// What is wrong with it as a number.
        source: ParseIntError,
    },
    /// Not a time in a known form.
    #[error(
        "'{0}' is not a time: write 2026-01-31T13:05:00Z, 2026-01-31 13:05:00 or seconds since 1970"
    )]
    Time(String),
    /// A column of conditions that is not known.
    #[error(
        "is not one of label, source, address, source_address, destination_address, port, \
         source_port, destination_port, protocol, from, to"
    )]
    Column,
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// A value of another kind than its place has.
    #[error("'{text}' in {place} is not {}", expected(source.as_ref()))]
    Cell {
        /// As written.
        text: String,
        /// Its column or field.
        place: String,
        /// What is wrong with it; `None` if it is not a time.
        source: Option<ValueError>,
    },
    /// A label that cannot be a class.
    #[error(transparent)]
    Class(#[from] ClassError),
    /// Not JSON, or not as it has to be.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Not the number of a packet.
    #[error("frame '{text}' is not a number: {source}")]
    Frame {
        /// As written.
        text: String,
        /// What is wrong with it.
        source: ParseIntError,
    },
    /// The number of a packet is 0.
    #[error("frame 0: frames are numbered from 1")]
    FrameZero,
    /// Another line says something else of the same packet.
    #[error(
        "frame {frame} is '{}' ({}) here, but '{}' ({}) on an earlier line",
        here.class, here.source, before.class, before.source
    )]
    FrameTwice {
        /// The packet's number.
        frame: u64,
        /// What this line says.
        here: Label,
        /// What the other one says.
        before: Label,
    },
    /// A line of Zeek's with another number of fields than its head names.
    #[error("the line has {found} fields, but #fields names {named}")]
    Fields {
        /// How many the line has.
        found: usize,
        /// How many the head names.
        named: usize,
    },
    /// A line that is too long for an event.
    #[error("the line is longer than 1 MiB")]
    Long,
    /// A field that an event needs is missing, or empty.
    #[error("the field '{0}' is missing or empty")]
    Missing(&'static str),
    /// An object of JSON that has no type of event.
    #[error("the line has no event_type, so it is not an event of Suricata")]
    NoEvent,
    /// An alert without a time, or with one that cannot be read.
    #[error("the alert has no valid timestamp")]
    NoTimestamp,
    /// An alert that does not say of what.
    #[error("the alert event has no 'alert' object")]
    NoAlert,
    /// A Community ID of another form.
    #[error("'{0}' in 'community_id' is not a Community ID of version 1")]
    CommunityId(String),
    /// More different labels than a model tells apart.
    #[error("there are more than {0} different categories")]
    Categories(usize),
    /// A connection without a label, where each needs one.
    #[error("the object has no member 'label'")]
    NoLabel,
    /// JSON, but not an object.
    #[error("the line is not a JSON object")]
    NoObject,
}

impl LineError {
    /// That what is written in a place is not what belongs there; without a source, a time does.
    pub(crate) fn cell(text: &str, place: impl Into<String>, source: Option<ValueError>) -> Self {
        Self::Cell {
            text: text.to_owned(),
            place: place.into(),
            source,
        }
    }

    /// At this line, from 1.
    pub(crate) fn at(self, line: u64) -> ContentError {
        ContentError::Line { line, source: self }
    }
}

/// What belongs into a place that has something else.
fn expected(source: Option<&ValueError>) -> String {
    let kind = match source {
        None | Some(ValueError::Time(_)) => "a time",
        Some(ValueError::Address(_)) => "an IP address",
        Some(ValueError::Whole(_) | ValueError::Port { .. }) => "a port (0 to 65535)",
        Some(ValueError::Number(_)) => "a number",
        Some(ValueError::Protocol { .. }) => "the name or number of an IP protocol",
        Some(source @ (ValueError::Network { .. } | ValueError::Column)) => {
            return format!("valid: {source}");
        }
    };
    kind.to_owned()
}

/// What is wrong with the text of a label file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContentError {
    /// It is no label file.
    #[error("not a label file: the column 'label' is missing in the first line '{0}'")]
    NoLabels(String),
    /// A column that it needs is missing.
    #[error("line 1: the column '{0}' is missing")]
    NoColumn(&'static str),
    /// It is no CSV.
    #[error(transparent)]
    Csv(#[from] csv::Error),
    /// A line is wrong.
    #[error("line {line}: {source}")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// What is wrong with it.
        source: LineError,
    },
    /// A condition cannot be read.
    #[error("line {line}, column '{column}': {source}")]
    Condition {
        /// The line's number, from 1.
        line: u64,
        /// Its column.
        column: String,
        /// What is wrong with it.
        source: ValueError,
    },
}

/// Why label files cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabelError {
    /// A file cannot be read.
    #[error("{file}: cannot read: {source}")]
    Read {
        /// The file.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Several files, of which one is not of an IDS.
    #[error(
        "{file}: cannot be combined with other label files: only label files of an IDS can \
         (Suricata's \
         eve.json, Zeek's notice.log, and conn.log without labels)"
    )]
    Several {
        /// That file.
        file: String,
    },
    /// A file that does not fit into memory.
    #[error("{file}: larger than 1 GiB: give labels for fewer packets")]
    Large {
        /// The file.
        file: String,
    },
    /// What is in a file.
    #[error("{file}: {source}")]
    Content {
        /// The file.
        file: String,
        /// What is wrong with it.
        source: Box<ContentError>,
    },
    /// The label of packets that no rule or flow matches cannot be a class.
    #[error("for packets that no rule or flow matches: {0}")]
    Otherwise(#[source] ClassError),
    /// More alerts than fit into memory.
    #[error(
        "{file}: line {line}: more than {most} alerts in all label files: give fewer files, or only \
         part of this one"
    )]
    Alerts {
        /// The file.
        file: String,
        /// The line of the first one that is too many, from 1.
        line: u64,
        /// How many alerts fit.
        most: usize,
    },
    /// No line of an IDS's file can be read: all problems so far.
    #[error("{}: no valid line", joined(.0))]
    Invalid(Vec<Problem>),
    /// Files of an IDS without an alert.
    #[error(
        "{}: no alert in {}: give the IDS's alerts (eve.json) or notices (notice.log) from \
         the time of the packets",
        files.join(", "), count_of(*lines, "line")
    )]
    NoAlarm {
        /// The files.
        files: Vec<String>,
        /// Their valid lines.
        lines: u64,
    },
}

fn joined(problems: &[Problem]) -> String {
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    problems.join("; ")
}

/// What is odd about label files that are used all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A line that was skipped.
    #[error("{file}: line {line}: {source}")]
    Line {
        /// The file.
        file: String,
        /// The line's number, from 1.
        line: u64,
        /// What is wrong with it.
        source: LineError,
    },
    /// Further lines that were skipped.
    #[error("{file}: and {}", count_of(*lines, "other invalid line"))]
    More {
        /// The file.
        file: String,
        /// How many there are.
        lines: u64,
    },
    /// Alerts that name no flow.
    #[error("{} without a flow: only packets of their hosts at about that time are left out", count_of(*.0, "alert"))]
    WithoutFlow(u64),
    /// Alerts that are not severe enough.
    #[error("{} less severe than the limit: flows close to them are left out", count_of(*.0, "alert"))]
    Mild(u64),
}

/// Why labels do not belong to a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsageError {
    /// Labels name packets beyond its end.
    #[error(
        "line {line}: frame {frame}, but the capture has {packets} packets; {beyond} of the file's \
         {labels} labels are for frames that do not exist: the file belongs to another capture"
    )]
    Beyond {
        /// The line of the highest number, from 1.
        line: u64,
        /// That number.
        frame: u64,
        /// Packets of the capture.
        packets: u64,
        /// Labels of packets that are not there.
        beyond: usize,
        /// All labels.
        labels: usize,
    },
    /// No rule or flow matches a packet.
    #[error(
        "none of the file's {entries} rules or flows matches any of the {packets} packets: the \
         file belongs to another capture, or its clock differs (--labels-utc-offset)"
    )]
    NoneMatches {
        /// Rules or flows.
        entries: u64,
        /// Packets of the capture.
        packets: u64,
    },
}
