//! Packet labels, from the formats that data sets come in; a file's first lines say which one it is.

use std::io::{BufRead, Cursor, Read};

use strata_wire::Headers;

use crate::cells::Columns;
use crate::error::{ContentError, LabelError, Problem, UsageError};
use crate::flows::FlowLabels;
use crate::frames::Frames;
use crate::ids::{self, Format, Ids, Said};
use crate::label::{ClassError, Classes, Label};
use crate::rules::{self, Rule};

/// What tells the format of a file is within this many bytes.
const HEAD_BYTES: u64 = 64 << 10;
/// A larger file that is not an IDS's is not read: it would have to fit into memory.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// How to read label files.
#[derive(Clone, Copy, Debug, Default)]
pub struct How<'a> {
    /// East of UTC, in seconds, of times without a zone.
    pub utc_offset_s: i64,
    /// The label of packets that no rule or flow matches.
    pub otherwise: Option<&'a str>,
    /// What becomes of the alerts of an IDS.
    pub alerts: ids::Options,
}

/// A label file to read.
pub struct LabelFile<'f> {
    /// Its name in messages.
    pub name: String,
    /// Its content.
    pub content: Box<dyn BufRead + 'f>,
}

/// All labels of files.
#[derive(Debug)]
pub struct Labels {
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

/// How the labels of files were used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Packets that got a label.
    pub labelled: u64,
    /// Packets that did not.
    pub unlabelled: u64,
    /// Lines that repeat the label of a packet.
    pub repeated: u64,
    /// Rules or flows in the files.
    pub entries: u64,
    /// Those of them that match no packet.
    pub unmatched: u64,
    /// Of the packets without a label, those near an alert.
    pub near_alert: u64,
    /// Lines of the files without a label.
    pub without_label: u64,
}

impl Form {
    fn read(text: &str, offset_s: i64, classes: &mut Classes) -> Result<Self, ContentError> {
        let first = text.lines().next().unwrap_or("");
        if first.starts_with("#separator") || first.starts_with("#fields") {
            return Ok(Self::Flows(FlowLabels::zeek_tsv(text, classes)?));
        }
        if first.starts_with('{') {
            return Ok(Self::Flows(FlowLabels::zeek_json(text, classes)?));
        }
        let columns = Columns::of(first);
        if columns.find(&["frame"]).is_some() {
            return Ok(Self::Frames(Frames::read(text, &columns, classes)?));
        }
        if columns.find(&["flow duration"]).is_some() {
            return Ok(Self::Flows(FlowLabels::cic(
                text, &columns, offset_s, classes,
            )?));
        }
        if columns.find(&["label"]).is_some() {
            return Ok(Self::Rules(rules::read(text, &columns, offset_s, classes)?));
        }
        Err(ContentError::NoLabels(first.chars().take(80).collect()))
    }
}

impl Labels {
    /// Reads a label file, or several of an IDS.
    ///
    /// # Errors
    ///
    /// What is wrong, with its file and line.
    pub fn read(files: Vec<LabelFile<'_>>, how: &How<'_>) -> Result<Self, LabelError> {
        let mut known = Vec::new();
        for LabelFile { name, mut content } in files {
            let mut head = Vec::new();
            let read = content.by_ref().take(HEAD_BYTES).read_to_end(&mut head);
            if let Err(source) = read {
                return Err(LabelError::Read { file: name, source });
            }
            let format = Format::of(&String::from_utf8_lossy(&head));
            known.push((format, name, Cursor::new(head).chain(content)));
        }
        let other = known.iter().position(|(format, ..)| format.is_none());
        let Some(other) = other else {
            let of_ids = |(format, name, content)| Some((format?, name, content));
            return Self::of_ids(known.into_iter().filter_map(of_ids).collect(), how);
        };
        let is_alone = known.len() == 1;
        let (_, file, content) = known.swap_remove(other);
        if !is_alone {
            return Err(LabelError::Several { file });
        }
        let mut bytes = Vec::new();
        if let Err(source) = content.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes) {
            return Err(LabelError::Read { file, source });
        }
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(LabelError::Large { file });
        }
        // Data sets contain Latin-1 names: one odd byte is no reason to stop.
        let text = String::from_utf8_lossy(&bytes);
        let mut classes = Classes::default();
        let form = Form::read(&text, how.utc_offset_s, &mut classes);
        let form = form.map_err(|source| LabelError::Content {
            file,
            source: Box::new(source),
        })?;
        let without_label = classes.without_label;
        Ok(Self {
            form,
            otherwise: otherwise(how, &mut classes)?,
            may_match_none: how.otherwise.is_some(),
            usage: Usage {
                without_label,
                ..Usage::default()
            },
        })
    }

    fn of_ids<R: BufRead>(
        mut files: Vec<(Format, String, R)>,
        how: &How<'_>,
    ) -> Result<Self, LabelError> {
        // Connections after the alerts, since only those with one are remembered.
        files.sort_by_key(|(format, ..)| *format);
        let mut reader = ids::Reader::new(how.alerts, how.utc_offset_s);
        for (format, name, content) in files {
            reader.read(content, format, &name)?;
        }
        let clean = Label {
            class: String::from("benign"),
            source: String::from("no alert"),
        };
        let otherwise = otherwise(how, &mut reader.classes)?;
        Ok(Self {
            form: Form::Ids(Box::new(reader.finish()?)),
            otherwise: Some(otherwise.unwrap_or(clean)),
            may_match_none: false,
            usage: Usage::default(),
        })
    }

    /// Whether packets are named by their number in the capture.
    #[must_use]
    pub fn are_by_frame(&self) -> bool {
        matches!(self.form, Form::Frames(_))
    }

    /// What is odd about the files, which are used all the same.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        match &self.form {
            Form::Ids(ids) => ids.problems(),
            _ => &[],
        }
    }

    /// The label of a packet; `ts_ns` as captured.
    pub fn of(&mut self, frame: u64, ts_ns: u64, headers: &Headers) -> Option<&Label> {
        let otherwise = self.otherwise.as_ref();
        let label = match &mut self.form {
            Form::Frames(frames) => frames.of(frame).or(otherwise),
            Form::Rules(rules) => rules::first(rules, ts_ns, headers).unwrap_or(otherwise),
            Form::Flows(flows) => flows.of(ts_ns, headers).or(otherwise),
            Form::Ids(ids) => match ids.of(ts_ns, headers) {
                Said::Alert(label) => Some(label),
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
    pub fn usage(&self, packets: u64) -> Result<Usage, UsageError> {
        let mut usage = self.usage;
        match &self.form {
            Form::Frames(frames) => usage.repeated = frames.repeated(packets)?,
            Form::Rules(rules) => {
                usage.entries = rules.len() as u64;
                usage.unmatched = rules.iter().filter(|rule| !rule.is_used()).count() as u64;
            }
            Form::Flows(flows) => (usage.entries, usage.unmatched) = flows.unmatched(),
            Form::Ids(ids) => {
                (usage.entries, usage.unmatched) = ids.unmatched();
                usage.near_alert = ids.quarantined();
            }
        }
        let none_match = usage.entries > 0 && usage.unmatched == usage.entries;
        if none_match && packets > 0 && !self.may_match_none {
            return Err(UsageError::NoneMatches {
                entries: usage.entries,
                packets,
            });
        }
        Ok(usage)
    }
}

/// The label of packets that no rule or flow matches, if one is given.
fn otherwise(how: &How<'_>, classes: &mut Classes) -> Result<Option<Label>, LabelError> {
    let Some(written) = how.otherwise else {
        return Ok(None);
    };
    let label = classes.label(written).map_err(LabelError::Otherwise)?;
    let none = || LabelError::Otherwise(ClassError::NoName(written.to_owned()));
    label.ok_or_else(none).map(Some)
}
