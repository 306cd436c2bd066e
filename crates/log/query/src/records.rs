//! Flow records as CSV, JSON, IPFIX and NetFlow 9; and the rows of the table `flows` as such records.

pub(crate) mod messages;
pub(crate) mod record;

use std::borrow::Cow;
use std::io::{self, Write};

use jiff::Timestamp;
use serde_json::{Map, Value};
use strata_archive::parts::{self, Column, TableReader};
use strata_archive::{ArchiveError, Coding, FlowColumn, Kind, Spec};
use strata_store::{Disk, FileKind, Part};

use crate::parts::cells::{NO_PORT, NO_PROTOCOL, WrongValue};
use crate::parts::find::Find;
use crate::records::messages::{Carrier, FlowProtocol, Messages};
use crate::records::record::FlowRecord;

/// Passes to `take` the rows of a part's table `flows` that may be wanted: those within the time and
/// whose packets may match the filter. Rows are of a run each; exports make their own records, which do
/// not depend on what was compacted together.
///
/// # Errors
///
/// If the part cannot be read, or any error from `take`.
pub fn flow_records<E: From<ArchiveError>>(
    disk: &dyn Disk,
    part: &Part,
    find: &Find<'_>,
    mut take: impl FnMut(&FlowRecord) -> Result<(), E>,
) -> Result<(), E> {
    if !find.may_be_within(part.ts_min_ns, part.ts_max_ns) {
        return Ok(());
    }
    let name = part.file(FileKind::Flows).map_or("", |file| &file.name);
    let input = parts::open(disk, part, FileKind::Flows)?;
    let table = TableReader::open(input, disk.display(name), FlowColumn::SPECS)
        .map_err(ArchiveError::from)?;
    let wrong = |value: WrongValue| ArchiveError::Table {
        file: disk.display(name),
        source: value.into(),
    };
    let all: Vec<usize> = (0..FlowColumn::ALL.len()).collect();
    for (group, rows) in table.groups().into_iter().enumerate() {
        let whole = 0..rows;
        let columns = table
            .read(group, &all, std::slice::from_ref(&whole))
            .map_err(ArchiveError::from)?;
        let mut iterators: Vec<_> = FlowColumn::SPECS
            .iter()
            .zip(&columns)
            .map(|(spec, column)| values(spec.kind, column))
            .collect();
        for _ in 0..rows {
            let record = next(&mut iterators);
            if wanted(&record, find).map_err(wrong)? {
                take(&record)?;
            }
        }
    }
    Ok(())
}

/// The next row, from all columns.
fn next(columns: &mut [impl Iterator<Item = Value>]) -> FlowRecord {
    let values: Option<Vec<Value>> = columns.iter_mut().map(Iterator::next).collect();
    FlowRecord {
        values: values.expect("columns have as many rows as were read"),
    }
}

fn wanted(record: &FlowRecord, find: &Find<'_>) -> Result<bool, WrongValue> {
    let [first, last] = [FlowColumn::FirstTime, FlowColumn::LastTime];
    if !find.may_be_within(record.time(first), record.time(last)) {
        return Ok(false);
    }
    let Some(filter) = find.filter else {
        return Ok(true);
    };
    let (src, dst) = (
        record.address(FlowColumn::Src),
        record.address(FlowColumn::Dst),
    );
    let port = |column| Ok(record.int(column)?.unwrap_or(NO_PORT));
    Ok(filter.may_match(&strata_filter::FlowFacts {
        addresses: src.zip(dst).map(|(a, b)| [a, b]),
        ports: [port(FlowColumn::SrcPort)?, port(FlowColumn::DstPort)?],
        protocol: record.int(FlowColumn::Protocol)?.unwrap_or(NO_PROTOCOL),
    }))
}

fn values(kind: Kind, column: &Column) -> Box<dyn Iterator<Item = Value> + '_> {
    match kind {
        Kind::Float => Box::new(
            column
                .floats()
                .map(|value| value.map_or(Value::Null, |v| f64::from(v).into())),
        ),
        Kind::Text | Kind::Bytes => Box::new(column.bytes().map(|value| {
            value.map_or(Value::Null, |v| {
                String::from_utf8_lossy(v.data()).into_owned().into()
            })
        })),
        Kind::Bool => Box::new(
            column
                .ints()
                .map(|value| value.map_or(Value::Null, |v| (v != 0).into())),
        ),
        Kind::Time | Kind::Int32 | Kind::Int64 => Box::new(
            column
                .ints()
                .map(|value| value.map_or(Value::Null, Into::into)),
        ),
    }
}

/// The column with the name of a row's log, if the rows are of several logs.
pub(crate) static LOG: Spec = Spec::new(
    "log",
    Kind::Text,
    Coding::Dictionary,
    "The log that the row is of.",
);

/// The format of flow records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFormat {
    /// Comma-separated values (RFC 4180) with a header line; times in ns since 1970. Texts that a
    /// spreadsheet would take for a formula are prefixed with an apostrophe ([`not_formula`]).
    Csv,
    /// One JSON object per line; times as RFC 3339 with ns, integers beyond 2^53, which
    /// many readers would round, as text.
    Json,
    /// IPFIX messages (RFC 7011) in a file (RFC 5655), one record per direction that has packets.
    Ipfix,
    /// Messages of this protocol as datagrams, each with one write; one record per direction that has packets.
    Datagrams(FlowProtocol),
}

/// Writes flow records.
pub struct RecordWriter<W: Write> {
    sink: Sink<W>,
    /// Of several logs, which records name; else empty.
    logs: Vec<String>,
    /// Flows written.
    pub written: u64,
}

/// A format and its unwritten data.
enum Sink<W: Write> {
    Csv(Box<csv::Writer<W>>),
    Json(W),
    /// Of each log.
    Messages(W, Vec<Messages>),
}

impl<W: Write> std::fmt::Debug for RecordWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordWriter")
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

impl<W: Write> RecordWriter<W> {
    /// Starts a file.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn new(output: W, format: RecordFormat) -> io::Result<Self> {
        Self::of_logs(output, format, Vec::new())
    }

    /// Starts a file with records of several logs with these names: each record has a field `log` with the name; in
    /// IPFIX and NetFlow 9, the number of the log, from 1, is the observation domain or source ID. Without names, as
    /// [`RecordWriter::new`].
    ///
    /// # Errors
    ///
    /// If it cannot be written, or there are more than 2^32 - 1 logs.
    pub fn of_logs(output: W, format: RecordFormat, logs: Vec<String>) -> io::Result<Self> {
        let messages = |protocol, carrier| -> io::Result<Vec<Messages>> {
            let domains = match u32::try_from(logs.len()).map_err(io::Error::other)? {
                0 => 0..=0,
                logs => 1..=logs,
            };
            let each = domains.map(|domain| Messages::new(protocol, carrier, domain));
            Ok(each.collect())
        };
        let sink = match format {
            RecordFormat::Csv => {
                let mut builder = csv::WriterBuilder::new();
                let mut writer = builder
                    .terminator(csv::Terminator::CRLF)
                    .from_writer(output);
                let columns = FlowRecord::columns();
                let names = columns.map(|column| column.spec().name);
                let log = (!logs.is_empty()).then_some(LOG.name);
                let names = log.into_iter().chain(names);
                writer.write_record(names).map_err(unwritten)?;
                Sink::Csv(Box::new(writer))
            }
            RecordFormat::Json => Sink::Json(output),
            RecordFormat::Ipfix => {
                let messages = messages(FlowProtocol::Ipfix, Carrier::File)?;
                Sink::Messages(output, messages)
            }
            RecordFormat::Datagrams(protocol) => {
                let messages = messages(protocol, Carrier::Datagrams)?;
                Sink::Messages(output, messages)
            }
        };
        Ok(Self {
            sink,
            logs,
            written: 0,
        })
    }

    /// Writes a record of the only log, or of the first.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn write(&mut self, record: &FlowRecord) -> io::Result<()> {
        self.write_of(0, record)
    }

    /// Writes a record of the log with this number.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    ///
    /// # Panics
    ///
    /// If there is no such log.
    pub fn write_of(&mut self, log: usize, record: &FlowRecord) -> io::Result<()> {
        let name = (!self.logs.is_empty()).then(|| self.logs[log].as_str());
        match &mut self.sink {
            Sink::Csv(writer) => {
                if let Some(name) = name {
                    let field = not_formula(name);
                    writer.write_field(field.as_bytes()).map_err(unwritten)?;
                }
                for column in FlowRecord::columns() {
                    let field = csv_field(record.get(column));
                    writer.write_field(field.as_bytes()).map_err(unwritten)?;
                }
                writer.write_record(None::<&[u8]>).map_err(unwritten)?;
            }
            Sink::Json(output) => {
                let mut object: Map<String, Value> = FlowRecord::columns()
                    .map(|column| (column.spec(), record.get(column)))
                    .filter(|(_, value)| !value.is_null())
                    .map(|(spec, value)| (spec.name.to_owned(), json_value(spec, value)))
                    .collect();
                object.extend(name.map(|name| (LOG.name.to_owned(), name.into())));
                serde_json::to_writer(&mut *output, &object)?;
                output.write_all(b"\n")?;
            }
            Sink::Messages(output, messages) => messages[log].add(record, output)?,
        }
        self.written += 1;
        Ok(())
    }

    /// Records that these flows are in the file: in IPFIX and NetFlow 9, one for each direction.
    #[must_use]
    pub fn records(&self) -> u64 {
        match &self.sink {
            Sink::Csv(_) | Sink::Json(_) => self.written,
            Sink::Messages(_, messages) => messages.iter().map(|of| of.written).sum(),
        }
    }

    /// Writes what is buffered: of IPFIX and NetFlow 9, a message that is not full yet.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn send(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Sink::Csv(writer) => writer.flush(),
            Sink::Json(output) => output.flush(),
            Sink::Messages(output, messages) => {
                for of in messages {
                    of.flush(output)?;
                }
                output.flush()
            }
        }
    }

    /// Repeats the templates of IPFIX or NetFlow 9 with the next message: a collector may have been started meanwhile.
    pub fn repeat_templates(&mut self) {
        if let Sink::Messages(_, messages) = &mut self.sink {
            messages.iter_mut().for_each(Messages::repeat_templates);
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn finish(self) -> io::Result<W> {
        let mut output = match self.sink {
            Sink::Csv(writer) => writer
                .into_inner()
                .map_err(csv::IntoInnerError::into_error)?,
            Sink::Json(output) => output,
            Sink::Messages(mut output, messages) => {
                for mut of in messages {
                    of.flush(&mut output)?;
                }
                output
            }
        };
        output.flush()?;
        Ok(output)
    }
}

/// The error of the output itself, by whose kind a caller knows a closed pipe or a full disk.
fn unwritten(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

/// Integers that every JSON reader keeps exact (RFC 8259 §6): up to 2^53.
const JSON_INTEGER_MAX: u64 = 1 << 53;

/// A value with its type, for programs.
pub(crate) fn json_value(spec: &Spec, value: &Value) -> Value {
    match (spec.kind, value) {
        (Kind::Time, Value::Number(ns)) => {
            let ns = ns.as_i64().map(i64::cast_unsigned).map(i128::from);
            let time = ns.and_then(|ns| Timestamp::from_nanosecond(ns).ok());
            time.map_or(Value::Null, |time| format!("{time:.9}").into())
        }
        (_, Value::Number(number)) => match number.as_i64() {
            Some(integer) if integer.unsigned_abs() > JSON_INTEGER_MAX => number.to_string().into(),
            _ => value.clone(),
        },
        (_, Value::String(text)) if spec.is_json => {
            serde_json::from_str(text).unwrap_or_else(|_| value.clone())
        }
        _ => value.clone(),
    }
}

fn csv_field(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Null => Cow::Borrowed(""),
        Value::String(text) => not_formula(text),
        other => Cow::Owned(other.to_string()),
    }
}

/// A text for a CSV cell. Names come from their senders, and spreadsheets evaluate cells that
/// start like a formula: such a text gets an apostrophe before it (OWASP, CSV injection).
#[must_use]
pub fn not_formula(text: &str) -> Cow<'_, str> {
    match text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠']) {
        true => Cow::Owned(format!("'{text}")),
        false => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 4180 §2, rules 5 to 7, cell by cell.
    fn naive(cell: &str) -> String {
        let formula = cell
            .chars()
            .next()
            .is_some_and(|first| "=+-@\t\r\n＝＋－＠".contains(first));
        let cell = if formula {
            format!("'{cell}")
        } else {
            cell.to_owned()
        };
        match cell.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell,
        }
    }

    /// A flow with this name, and a negative number, which must stay one.
    fn record(name: &str) -> FlowRecord {
        let value = |column: &FlowColumn| match column {
            FlowColumn::TlsServerName => name.into(),
            FlowColumn::FirstTime => (-1).into(),
            _ => Value::Null,
        };
        FlowRecord {
            values: FlowColumn::ALL.iter().map(value).collect(),
        }
    }

    fn page(name: &str) -> String {
        let mut writer = RecordWriter::new(Vec::new(), RecordFormat::Csv).unwrap();
        writer.write(&record(name)).unwrap();
        String::from_utf8(writer.finish().unwrap()).unwrap()
    }

    fn check(name: &str) {
        let page = page(name);
        let cells = FlowRecord::columns().map(|column| match column {
            FlowColumn::TlsServerName => naive(name),
            FlowColumn::FirstTime => String::from("-1"),
            _ => String::new(),
        });
        let cells: Vec<String> = cells.collect();
        let names: Vec<&str> = FlowRecord::columns()
            .map(|column| column.spec().name)
            .collect();
        assert_eq!(
            page,
            format!("{}\r\n{}\r\n", names.join(","), cells.join(","))
        );
        let mut reader = csv::Reader::from_reader(page.as_bytes());
        let column = names.iter().position(|column| *column == "tls_server_name");
        let row = reader.records().next().unwrap().unwrap();
        assert_eq!(&row[column.unwrap()], not_formula(name));
    }

    #[test]
    fn a_name_is_no_formula_and_stays_in_its_cell() {
        for (name, cell) in [
            ("example.org", "example.org"),
            ("=HYPERLINK(\"http://x\",\"y\")", "'=HYPERLINK"),
            ("+1", "'+1"),
            ("-2+3", "'-2+3"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("\r=1", "'\r=1"),
        ] {
            assert!(page(name).contains(cell), "{}", page(name));
            check(name);
        }
    }

    proptest! {
        #[test]
        fn rows_are_as_of_a_naive_writer(name in "[\\PC=+@,\"'\r\n\t -]{0,12}") {
            check(&name);
        }
    }
}
