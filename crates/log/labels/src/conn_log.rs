//! Labels of flows in a file that is added to: Zeek's conn.log as JSON lines, with the member `label`.
//!
//! A flow that is labelled again has the new label only.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use strata_wire::FlowKey;

use crate::chosen::Span;
use crate::error::LineError;
use crate::flows::{SLACK_NS, address, texts_of, zeek_flow};
use crate::label::{ClassError, Classes, same_class};

/// Times in the file are rounded by less than this.
const ROUNDED_NS: i128 = 2_000;
/// A larger file is not one of labels given by hand.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// What became of the flows that were labelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// They were not in the file.
    pub new: u64,
    /// They had the label.
    pub same: u64,
    /// They had another one.
    pub changed: u64,
}

/// Why labels cannot be added to a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnLogError {
    /// It is no file, or one that is too large to be one of labels given by hand.
    #[error("{0}: labels cannot be added to this file")]
    NoFile(String),
    /// It cannot be read.
    #[error("{file}: cannot read: {source}")]
    Read {
        /// The file.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Its directory cannot be locked.
    #[error(
        "{file}: cannot lock its directory, so that nothing else adds labels meanwhile: {source}"
    )]
    Lock {
        /// The file.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A line is not that of a connection with a label.
    #[error("{file}: line {line}: labels cannot be added to this file: {source}")]
    Line {
        /// The file.
        file: String,
        /// The line's number, from 1.
        line: u64,
        /// What is wrong with it.
        source: Box<LineError>,
    },
    /// It cannot be written.
    #[error("{file}: cannot write: {source}")]
    Write {
        /// The file.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// What was written cannot take its place.
    #[error("{file}: cannot write: {source}")]
    Replace {
        /// The file.
        file: String,
        /// The error of the operating system.
        source: tempfile::PersistError,
    },
}

/// A file of labels: read, changed and replaced as a whole.
#[derive(Debug)]
pub struct ConnLog {
    path: PathBuf,
    name: String,
    flows: Vec<Labelled>,
    /// Places in `flows`.
    by_key: HashMap<FlowKey, Vec<usize>>,
    /// The directory, which is locked while this exists.
    _lock: Option<File>,
}

/// A line of it.
#[derive(Debug)]
struct Labelled {
    from_ns: i128,
    to_ns: i128,
    members: Map<String, Value>,
    /// As it was read, unless it has changed since: numbers lose digits when they are read.
    line: Option<String>,
}

/// The directory of a file, as it is opened.
fn folder(path: &Path) -> &Path {
    let folder = path.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

impl ConnLog {
    /// Reads a file, if there is one, to change it: until this is dropped, others who do so wait. Its directory is
    /// locked (flock(2)), since the file is replaced, and the kernel unlocks it however this process ends.
    ///
    /// # Errors
    ///
    /// As [`Self::read`]; if its directory cannot be locked.
    pub fn read_locked(path: &Path) -> Result<Self, ConnLogError> {
        let real = match fs::canonicalize(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(path.to_owned()),
            found => found,
        };
        let locked = real.and_then(|real| {
            let folder = File::open(folder(&real))?;
            folder.lock()?;
            Ok(folder)
        });
        let lock = locked.map_err(|source| ConnLogError::Lock {
            file: path.display().to_string(),
            source,
        })?;
        Ok(Self {
            _lock: Some(lock),
            ..Self::read(path)?
        })
    }

    /// Reads a file, if there is one.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or labels cannot be added to it.
    pub fn read(path: &Path) -> Result<Self, ConnLogError> {
        let name = path.display().to_string();
        let mut file = Self {
            path: path.to_owned(),
            name,
            flows: Vec::new(),
            by_key: HashMap::new(),
            _lock: None,
        };
        let cannot = |source| ConnLogError::Read {
            file: path.display().to_string(),
            source,
        };
        let found = match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(file),
            found => found.map_err(cannot)?,
        };
        if !found.is_file() || found.len() > FILE_BYTES_MAX {
            return Err(ConnLogError::NoFile(file.name));
        }
        file.path = fs::canonicalize(path).map_err(cannot)?;
        let content = fs::read_to_string(path).map_err(cannot)?;
        for (number, line) in (1..).zip(content.lines()) {
            if line.trim().is_empty() {
                continue;
            }
            let added = file.add_line(line);
            added.map_err(|source| ConnLogError::Line {
                file: file.name.clone(),
                line: number,
                source: Box::new(source),
            })?;
        }
        Ok(file)
    }

    fn add_line(&mut self, line: &str) -> Result<(), LineError> {
        let object: Value = serde_json::from_str(line)?;
        let texts = texts_of(&object);
        let cell = |name: &str| texts.get(name).map_or("-", String::as_str);
        let (key, from_ns, to_ns) = zeek_flow(&cell)?;
        if !texts.contains_key("label") {
            return Err(LineError::NoLabel);
        }
        let Value::Object(members) = object else {
            return Err(LineError::NoObject);
        };
        self.push(
            key,
            Labelled {
                from_ns,
                to_ns,
                members,
                line: Some(line.to_owned()),
            },
        );
        Ok(())
    }

    fn push(&mut self, key: FlowKey, labelled: Labelled) {
        self.by_key.entry(key).or_default().push(self.flows.len());
        self.flows.push(labelled);
    }

    /// The class of a label that flows of the file may get.
    ///
    /// # Errors
    ///
    /// If it says that there is no label, if no class can have its name, or if another label of the file has the class.
    pub fn class_of(&self, label: &str) -> Result<String, ClassError> {
        let mut classes = Classes::default();
        for flow in &self.flows {
            let written = ["detailed-label", "label"].map(|name| flow.members.get(name));
            for written in written.into_iter().flatten().filter_map(Value::as_str) {
                // What is wrong with these is reported when the file is used, not here.
                drop(classes.label(written));
            }
        }
        let label_of = classes.label(label)?;
        let none = || ClassError::NoName(label.to_owned());
        label_of.map(|label| label.class).ok_or_else(none)
    }

    /// Labels a flow, which may be there already, and counts what that changes.
    pub fn put(&mut self, key: FlowKey, span: &Span, label: &str, changes: &mut Changes) {
        let (mut from_ns, mut to_ns) = (i128::from(span.from_ns), i128::from(span.to_ns));
        let same =
            |flow: &Labelled| flow.from_ns - SLACK_NS <= to_ns && from_ns <= flow.to_ns + SLACK_NS;
        let places = self.by_key.get(&key).into_iter().flatten();
        let places: Vec<usize> = places
            .copied()
            .filter(|&place| same(&self.flows[place]))
            .collect();
        if places.is_empty() {
            changes.new += 1;
            let members = described(&key, span, label);
            let labelled = Labelled {
                from_ns,
                to_ns,
                members,
                line: None,
            };
            self.push(key, labelled);
            return;
        }
        let has_label = |flow: &Labelled| {
            let known = flow.members.get("label").and_then(Value::as_str);
            known.is_some_and(|known| same_class(known, label))
                && !flow.members.contains_key("detailed-label")
        };
        let is_same = places.iter().all(|&place| has_label(&self.flows[place]));
        *(if is_same {
            &mut changes.same
        } else {
            &mut changes.changed
        }) += 1;
        for &place in &places {
            let flow = &self.flows[place];
            (from_ns, to_ns) = (from_ns.min(flow.from_ns), to_ns.max(flow.to_ns));
        }
        // Each says the same of all of the time, so it does not matter which of them is looked up.
        for place in places {
            let flow = &mut self.flows[place];
            if !has_label(flow) {
                flow.line = None;
                flow.members.remove("detailed-label");
                flow.members.insert(String::from("label"), json!(label));
            }
            if flow.from_ns - from_ns > ROUNDED_NS || to_ns - flow.to_ns > ROUNDED_NS {
                (flow.from_ns, flow.to_ns, flow.line) = (from_ns, to_ns, None);
                insert_times(&mut flow.members, from_ns, to_ns);
            }
        }
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Replaces the file.
    ///
    /// # Errors
    ///
    /// If it cannot be written; then it is as it was.
    pub fn write(&self) -> Result<(), ConnLogError> {
        let cannot = |source: io::Error| ConnLogError::Write {
            file: self.name.clone(),
            source,
        };
        let mut builder = tempfile::Builder::new();
        // What is not there yet gets the permissions of any new file.
        let before = fs::metadata(&self.path).map(|found| found.permissions());
        let permissions = before.unwrap_or_else(|_| fs::Permissions::from_mode(0o666));
        builder.prefix(".labels").permissions(permissions);
        let mut file = builder.tempfile_in(folder(&self.path)).map_err(cannot)?;
        let mut text = String::new();
        for flow in &self.flows {
            match &flow.line {
                Some(line) => text += line,
                None => text += &Value::Object(flow.members.clone()).to_string(),
            }
            text.push('\n');
        }
        file.write_all(text.as_bytes()).map_err(cannot)?;
        file.as_file().sync_all().map_err(cannot)?;
        let replaced = file.persist(&self.path);
        replaced.map_err(|source| ConnLogError::Replace {
            file: self.name.clone(),
            source,
        })?;
        Ok(())
    }
}

/// A line for a flow that is labelled for the first time.
fn described(key: &FlowKey, span: &Span, label: &str) -> Map<String, Value> {
    let [from, to] = match span.low_to_high {
        true => [key.low, key.high],
        false => [key.high, key.low],
    };
    let mut members = Map::new();
    let mut put = |name: &str, value: Value| members.insert(name.to_owned(), value);
    put("id.orig_h", json!(address(key.family, from)));
    put("id.orig_p", json!(from.port));
    put("id.resp_h", json!(address(key.family, to)));
    put("id.resp_p", json!(to.port));
    put("proto", protocol(key.protocol));
    put("label", json!(label));
    insert_times(&mut members, span.from_ns.into(), span.to_ns.into());
    members
}

fn insert_times(members: &mut Map<String, Value>, from_ns: i128, to_ns: i128) {
    #[allow(clippy::cast_precision_loss, reason = "to less than a microsecond")]
    let seconds = |ns: i128| json!(ns as f64 / 1e9);
    members.insert(String::from("ts"), seconds(from_ns));
    members.insert(String::from("duration"), seconds(to_ns - from_ns));
}

/// By name where Zeek has one.
fn protocol(number: u8) -> Value {
    match number {
        1 => json!("icmp"),
        6 => json!("tcp"),
        17 => json!("udp"),
        58 => json!("icmp6"),
        number => json!(number),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::thread;

    use super::*;

    const SPAN: Span = Span {
        from_ns: 1_700_000_000_000_000_000,
        to_ns: 1_700_000_001_000_000_000,
        low_to_high: true,
    };

    #[test]
    fn labels_that_are_added_at_once_are_all_kept() {
        const ADDERS: u16 = 8;
        const EACH: u16 = 20;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("labels.json");
        let key = |adder: u16, number: u16| {
            let [from, to] = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(10, 0, 0, last)));
            crate::flows::key((from, 1000 + adder), (to, 2000 + number), 6)
        };
        thread::scope(|scope| {
            for adder in 0..ADDERS {
                let path = &path;
                scope.spawn(move || {
                    for number in 0..EACH {
                        let mut file = ConnLog::read_locked(path).unwrap();
                        let mut changes = Changes::default();
                        file.put(key(adder, number), &SPAN, "scan", &mut changes);
                        assert_eq!(changes.new, 1);
                        file.write().unwrap();
                    }
                });
            }
        });
        let lines = fs::read_to_string(&path).unwrap();
        assert_eq!(lines.lines().count(), usize::from(ADDERS * EACH));
    }
}
