//! Records as rows of a Parquet file.

use std::str;

use anyhow::{Result, ensure};
use serde_json::Value;
use strata_columnar::{Cell, CellKind, Leaf, ParquetFile};
use strata_stream_run::Entry;
use strata_terminal::output::{Output, refuse};

use crate::decode::decoded;
use crate::tail::filter::find;

/// The columns of every file, their types, and whether values may be missing. Times are as in the tables of a log:
/// Spark takes nanoseconds for microseconds.
const FIXED: [(&str, CellKind, bool); 8] = [
    ("time", CellKind::Time, false),
    ("time_ns", CellKind::Short, false),
    ("seq", CellKind::Long, true),
    ("producer", CellKind::Text, true),
    ("number", CellKind::Long, true),
    ("text", CellKind::Text, true),
    ("payload", CellKind::Bytes, true),
    ("decoded", CellKind::Text, true),
];
/// Columns of keys at most.
const KEYS_MAX: usize = 100;

/// Rows, and bytes of their values, that are held before they are encoded.
const HELD_ROWS: usize = 65_536;
const HELD_BYTES: usize = 8 << 20;
/// Rows of a row group at most, and bytes of their values, about.
const GROUP_ROWS: usize = 1 << 20;
const GROUP_BYTES: usize = 128 << 20;

const NS_PER_MICRO: u64 = 1_000;

/// A column with a value of records that are JSON.
#[derive(Clone, Debug)]
pub(super) struct Column {
    name: String,
    key: String,
}

impl Column {
    /// Of `KEY` or `NAME=KEY`.
    pub(super) fn all(texts: &[String]) -> Result<Vec<Self>> {
        if texts.len() > KEYS_MAX {
            return Err(refuse(format!("--column: at most {KEYS_MAX} are allowed")));
        }
        let mut columns: Vec<Self> = Vec::new();
        for text in texts {
            let (name, key) = text.split_once('=').unwrap_or((text, text));
            if name.is_empty() || key.is_empty() {
                return Err(refuse(format!(
                    "--column {text}: write KEY or NAME=KEY, such as MESSAGE or service=resource.service.name"
                )));
            }
            let is_taken = FIXED.iter().any(|(fixed, ..)| *fixed == name)
                || columns.iter().any(|column| column.name == name);
            if is_taken {
                return Err(refuse(format!(
                    "--column {text}: the file has another column {name}: write NAME=KEY, such as json_{name}={key}"
                )));
            }
            columns.push(Self {
                name: name.to_owned(),
                key: key.to_owned(),
            });
        }
        Ok(columns)
    }
}

/// A Parquet file of records. Memory: what was not encoded (8 MiB, or a record), and a row group as it will be written,
/// of about 128 MiB before compression.
pub(super) struct RecordTable {
    file: ParquetFile<Output>,
    leaves: Vec<Leaf>,
    keys: Vec<String>,
    rows: usize,
    held_bytes: usize,
    group_bytes: usize,
    written: u64,
}

impl RecordTable {
    /// Begins a file.
    pub(super) fn create(output: Output, columns: &[Column]) -> Result<Self> {
        let fixed = FIXED.iter();
        let fixed = fixed.map(|&(name, kind, is_optional)| kind.column(name, is_optional));
        let keys = columns.iter();
        let keys = keys.map(|column| CellKind::Text.column(&column.name, true));
        let types = fixed.chain(keys).collect::<Result<_, _>>()?;
        let (file, leaves) = ParquetFile::new(output, types, Vec::new(), GROUP_ROWS)?;
        Ok(Self {
            file,
            leaves,
            keys: columns.iter().map(|column| column.key.clone()).collect(),
            rows: 0,
            held_bytes: 0,
            group_bytes: 0,
            written: 0,
        })
    }

    /// Adds a record.
    ///
    /// # Errors
    ///
    /// If nothing can be written, or a number has more than 63 bits.
    pub(super) fn push(&mut self, entry: &Entry<'_>) -> Result<()> {
        let signed = |number: u64| {
            let signed = i64::try_from(number).ok();
            ensure!(
                signed.is_some(),
                "record at {}: the number {number} is too large for a column of the file",
                entry.next
            );
            Ok(signed.map_or(Cell::Null, Cell::Long))
        };
        let below = u16::try_from(entry.time_ns % NS_PER_MICRO)?;
        let text = str::from_utf8(entry.payload).ok();
        let decoded = decoded(entry.payload).map(|decoded| decoded.to_string());
        let fixed = [
            signed(entry.time_ns / NS_PER_MICRO)?,
            Cell::Int(below.into()),
            entry.seq.map_or(Ok(Cell::Null), signed)?,
            entry
                .origin
                .map_or(Cell::Null, |origin| Cell::Text(origin.name)),
            // A producer chooses its numbers: one of 64 bits does not end the export.
            entry.origin.map_or(Cell::Null, |origin| {
                let number = i64::try_from(origin.number);
                number.map_or(Cell::Null, Cell::Long)
            }),
            text.map_or(Cell::Null, Cell::Text),
            match text {
                Some(_) => Cell::Null,
                None => Cell::Bytes(entry.payload),
            },
            decoded.as_deref().map_or(Cell::Null, Cell::Text),
        ];
        for (leaf, cell) in self.leaves.iter_mut().zip(fixed) {
            leaf.push(cell);
        }
        let mut bytes = entry.payload.len() + decoded.as_ref().map_or(0, String::len);
        if !self.keys.is_empty() {
            let object = serde_json::from_slice::<Value>(entry.payload).ok();
            for (leaf, key) in self.leaves[FIXED.len()..].iter_mut().zip(&self.keys) {
                let value = object.as_ref().and_then(|object| find(object, key));
                let written = match value {
                    None | Some(Value::Null) => None,
                    Some(Value::String(text)) => Some(text.clone()),
                    Some(other) => Some(other.to_string()),
                };
                bytes += written.as_ref().map_or(0, String::len);
                leaf.push(written.as_deref().map_or(Cell::Null, Cell::Text));
            }
        }
        self.rows += 1;
        self.held_bytes += bytes;
        if self.rows >= HELD_ROWS || self.held_bytes >= HELD_BYTES {
            self.encode()?;
        }
        Ok(())
    }

    fn encode(&mut self) -> Result<()> {
        self.file.write(&mut self.leaves, self.rows)?;
        self.written += self.rows as u64;
        self.group_bytes += self.held_bytes;
        if self.group_bytes >= GROUP_BYTES || self.file.group_rows() == 0 {
            self.file.end_group()?;
            self.group_bytes = 0;
        }
        (self.rows, self.held_bytes) = (0, 0);
        Ok(())
    }

    /// Ends the file; the number of its records.
    pub(super) fn close(mut self) -> Result<u64> {
        self.encode()?;
        self.file.finish()?.finish()?;
        Ok(self.written)
    }
}
