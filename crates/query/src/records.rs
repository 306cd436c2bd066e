//! Flow records: the rows of `flows`, for CSV, JSON and IPFIX.

use std::borrow::Cow;
use std::io::{self, Write};
use std::net::IpAddr;

use jiff::Timestamp;
use serde_json::{Map, Value};
use strata_archive::ArchiveError;
use strata_archive::parts::flows::{COLUMNS, icmp_counterpart};
use strata_archive::parts::{self, Column, Kind, Spec, TableReader};
use strata_store::{Disk, FileKind, Part};

use crate::find::Find;

/// Columns that mean nothing outside of the log.
const INTERNAL: [&str; 4] = ["hides_addresses", "row_group", "first_row", "rows"];

/// One row of `flows`, by column.
#[derive(Clone, Debug)]
pub struct FlowRecord {
    values: Vec<Value>,
}

impl FlowRecord {
    /// The names of the columns, in order.
    pub fn columns() -> impl Iterator<Item = &'static str> {
        COLUMNS
            .iter()
            .map(|spec| spec.name)
            .filter(|name| !INTERNAL.contains(name))
    }

    /// A column's value; null where there is none.
    #[must_use]
    pub fn get(&self, column: &str) -> &Value {
        let index = COLUMNS.iter().position(|spec| spec.name == column);
        index.map_or(&Value::Null, |index| &self.values[index])
    }

    fn number(&self, column: &str) -> u64 {
        self.get(column).as_i64().map_or(0, i64::cast_unsigned)
    }

    fn address(&self, column: &str) -> Option<IpAddr> {
        self.get(column).as_str()?.parse().ok()
    }
}

/// Gives the flows of a part to `take` that may be wanted: those of the time and
/// those whose packets may match the filter.
///
/// # Errors
///
/// If the part cannot be read, or what `take` says.
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
    let table = TableReader::open(input, disk.display(name), COLUMNS)?;
    let all: Vec<usize> = (0..COLUMNS.len()).collect();
    for (group, rows) in table.groups().into_iter().enumerate() {
        let whole = 0..rows;
        let columns = table.read(group, &all, std::slice::from_ref(&whole))?;
        let mut iterators: Vec<_> = COLUMNS
            .iter()
            .zip(&columns)
            .map(|(spec, column)| values(spec.kind, column))
            .collect();
        for _ in 0..rows {
            let values = iterators.iter_mut().map(|values| values.next());
            let values: Vec<Value> = values.map(Option::unwrap_or_default).collect();
            let record = FlowRecord { values };
            if wanted(&record, find) {
                take(&record)?;
            }
        }
    }
    Ok(())
}

fn wanted(record: &FlowRecord, find: &Find<'_>) -> bool {
    if !find.may_be_within(record.number("first_time"), record.number("last_time")) {
        return false;
    }
    let Some(filter) = find.filter else {
        return true;
    };
    let port = |column| u16::try_from(record.number(column)).unwrap_or(0);
    filter.may_match(&strata_filter::FlowFacts {
        addresses: record
            .address("src")
            .zip(record.address("dst"))
            .map(|(a, b)| [a, b]),
        ports: [port("src_port"), port("dst_port")],
        protocol: u8::try_from(record.number("protocol")).unwrap_or(0),
    })
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

/// How flow records are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFormat {
    /// Comma-separated values (RFC 4180) with a header line; times in ns since 1970. A text that
    /// a spreadsheet would take for a formula has an apostrophe before it ([`not_formula`]).
    Csv,
    /// One JSON object per line; times as RFC 3339 with ns, integers beyond 2^53, which
    /// many readers would round, as text.
    Json,
    /// IPFIX messages (RFC 7011) in a file (RFC 5655), one record per direction. What
    /// is not IP is left out; octets are those of the whole frames.
    Ipfix,
}

/// Writes flow records.
pub struct RecordWriter<W: Write> {
    sink: Sink<W>,
    /// Records written.
    pub written: u64,
}

/// A format with what it has not written yet.
enum Sink<W: Write> {
    Csv(Box<csv::Writer<W>>),
    Json(W),
    Ipfix(W, Box<Ipfix>),
}

impl<W: Write> std::fmt::Debug for RecordWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordWriter")
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

impl<W: Write> RecordWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn new(output: W, format: RecordFormat) -> io::Result<Self> {
        let sink = match format {
            RecordFormat::Csv => {
                let mut builder = csv::WriterBuilder::new();
                let mut writer = builder
                    .terminator(csv::Terminator::CRLF)
                    .from_writer(output);
                writer.write_record(FlowRecord::columns())?;
                Sink::Csv(Box::new(writer))
            }
            RecordFormat::Json => Sink::Json(output),
            RecordFormat::Ipfix => Sink::Ipfix(output, Box::default()),
        };
        Ok(Self { sink, written: 0 })
    }

    /// Writes a record.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn write(&mut self, record: &FlowRecord) -> io::Result<()> {
        match &mut self.sink {
            Sink::Csv(writer) => {
                for column in FlowRecord::columns() {
                    writer.write_field(csv_field(record.get(column)).as_bytes())?;
                }
                writer.write_record(None::<&[u8]>)?;
            }
            Sink::Json(output) => {
                let object: Map<String, Value> = COLUMNS
                    .iter()
                    .zip(&record.values)
                    .filter(|(spec, value)| !INTERNAL.contains(&spec.name) && !value.is_null())
                    .map(|(spec, value)| (spec.name.to_owned(), json_value(spec, value)))
                    .collect();
                serde_json::to_writer(&mut *output, &object)?;
                output.write_all(b"\n")?;
            }
            Sink::Ipfix(output, ipfix) => {
                if ipfix.add(record) {
                    ipfix.flush(output)?;
                }
            }
        }
        self.written += 1;
        Ok(())
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
            Sink::Ipfix(mut output, mut ipfix) => {
                ipfix.flush(&mut output)?;
                output
            }
        };
        output.flush()?;
        Ok(output)
    }
}

/// What every reader of JSON keeps exact (RFC 8259 §6): integers up to 2^53.
const JSON_INTEGER_MAX: u64 = 1 << 53;

/// A value with its type, for programs.
fn json_value(spec: &Spec, value: &Value) -> Value {
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
        (_, Value::String(text)) if spec.name == "classes" => {
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

/// A text for a cell of CSV. Names come from whoever sent them, and spreadsheets evaluate a cell
/// that begins as a formula does: such a text gets an apostrophe before it (OWASP, CSV injection).
#[must_use]
pub fn not_formula(text: &str) -> Cow<'_, str> {
    match text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠']) {
        true => Cow::Owned(format!("'{text}")),
        false => Cow::Borrowed(text),
    }
}

/// An information element (IANA IPFIX registry) and its length.
type Element = (u16, u16);

/// What follows the addresses: ports, or type and code of ICMP.
const PORTS: [Element; 2] = [
    (7, 2),  // sourceTransportPort
    (11, 2), // destinationTransportPort
];
/// What every record ends with.
const ELEMENTS: [Element; 7] = [
    (4, 1),   // protocolIdentifier
    (6, 2),   // tcpControlBits
    (10, 4),  // ingressInterface
    (2, 8),   // packetDeltaCount
    (1, 8),   // octetDeltaCount
    (152, 8), // flowStartMilliseconds
    (153, 8), // flowEndMilliseconds
];

/// The form of a record.
struct Template {
    id: u16,
    /// Source and destination.
    addresses: [Element; 2],
    /// What follows them.
    of_protocol: &'static [Element],
}

const V4: [Element; 2] = [(8, 4), (12, 4)];
const V6: [Element; 2] = [(27, 16), (28, 16)];
/// Those of IPv4 and IPv6 with ports, and of ICMP over both.
const TEMPLATES: [Template; 4] = [
    Template {
        id: 256,
        addresses: V4,
        of_protocol: &PORTS,
    },
    Template {
        id: 257,
        addresses: V6,
        of_protocol: &PORTS,
    },
    Template {
        id: 258,
        addresses: V4,
        of_protocol: &[(32, 2)], // icmpTypeCodeIPv4
    },
    Template {
        id: 259,
        addresses: V6,
        of_protocol: &[(139, 2)], // icmpTypeCodeIPv6
    },
];

impl Template {
    fn elements(&self) -> impl Iterator<Item = &Element> {
        self.addresses
            .iter()
            .chain(self.of_protocol)
            .chain(&ELEMENTS)
    }
}

/// Bytes of data records after which a message is written; RFC 7011 allows 65,535.
const MESSAGE_BYTES: usize = 32_000;

/// What a record says of its protocol.
#[derive(Clone, Copy)]
enum OfProtocol {
    Ports(u64, u64),
    /// Type and code.
    Icmp([u8; 2]),
}

impl OfProtocol {
    fn new(icmp: Option<[u8; 2]>, from: u64, to: u64) -> Self {
        icmp.map_or(Self::Ports(from, to), Self::Icmp)
    }
}

/// Type and code of a flow of ICMP.
fn icmp(record: &FlowRecord) -> Option<[u8; 2]> {
    let byte = |column| {
        let number = record.get(column).as_u64()?;
        u8::try_from(number).ok()
    };
    Some([byte("icmp_type")?, byte("icmp_code")?])
}

/// IPFIX messages being filled.
#[derive(Default)]
struct Ipfix {
    /// Data records by template.
    sets: [Vec<u8>; 4],
    records: u32,
    sequence: u32,
    export_time_s: u32,
    templates_sent: bool,
}

impl Ipfix {
    /// Adds a flow's two directions; whether the message is full.
    fn add(&mut self, record: &FlowRecord) -> bool {
        let (Some(source), Some(destination)) = (record.address("src"), record.address("dst"))
        else {
            return false;
        };
        let last_ns = record.number("last_time");
        self.export_time_s = self
            .export_time_s
            .max(u32::try_from(last_ns / 1_000_000_000).unwrap_or(u32::MAX));
        let (from, to) = (record.number("src_port"), record.number("dst_port"));
        let there = icmp(record);
        // Only what answers what is known; the other direction's own is not in the record.
        let back = there.and_then(|[kind, _]| {
            let number = u8::try_from(record.number("protocol")).ok()?;
            Some([icmp_counterpart(number, kind)?, 0])
        });
        self.direction(
            record,
            source,
            destination,
            OfProtocol::new(there, from, to),
            "",
        );
        let back = OfProtocol::new(back, to, from);
        self.direction(record, destination, source, back, "reverse_");
        self.sets.iter().map(Vec::len).sum::<usize>() > MESSAGE_BYTES
    }

    #[allow(clippy::cast_possible_truncation)]
    fn direction(
        &mut self,
        record: &FlowRecord,
        source: IpAddr,
        destination: IpAddr,
        of_protocol: OfProtocol,
        prefix: &str,
    ) {
        let of = |column: &str| record.number(&format!("{prefix}{column}"));
        if of("packets") == 0 {
            return;
        }
        let icmp = usize::from(matches!(of_protocol, OfProtocol::Icmp(_))) * 2;
        let out = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let out = &mut self.sets[icmp];
                out.extend_from_slice(&source.octets());
                out.extend_from_slice(&destination.octets());
                out
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let out = &mut self.sets[icmp + 1];
                out.extend_from_slice(&source.octets());
                out.extend_from_slice(&destination.octets());
                out
            }
            _ => return,
        };
        match of_protocol {
            OfProtocol::Icmp(type_and_code) => out.extend_from_slice(&type_and_code),
            OfProtocol::Ports(from, to) => {
                out.extend_from_slice(&(from as u16).to_be_bytes());
                out.extend_from_slice(&(to as u16).to_be_bytes());
            }
        }
        out.push(record.number("protocol") as u8);
        out.extend_from_slice(&(of("tcp_flags") as u16).to_be_bytes());
        out.extend_from_slice(&(record.number("interface") as u32).to_be_bytes());
        out.extend_from_slice(&of("packets").to_be_bytes());
        out.extend_from_slice(&of("wire_bytes").to_be_bytes());
        for column in ["first_time", "last_time"] {
            out.extend_from_slice(&(record.number(column) / 1_000_000).to_be_bytes());
        }
        self.records += 1;
    }

    fn flush(&mut self, output: &mut impl Write) -> io::Result<()> {
        if self.records == 0 {
            return Ok(());
        }
        let mut body = Vec::new();
        if !std::mem::replace(&mut self.templates_sent, true) {
            let mut templates = Vec::new();
            for template in &TEMPLATES {
                let count = u16::try_from(template.elements().count()).map_err(io::Error::other)?;
                templates.extend_from_slice(&template.id.to_be_bytes());
                templates.extend_from_slice(&count.to_be_bytes());
                for (element, len) in template.elements() {
                    templates.extend_from_slice(&element.to_be_bytes());
                    templates.extend_from_slice(&len.to_be_bytes());
                }
            }
            set(&mut body, 2, &templates);
        }
        for (template, records) in TEMPLATES.iter().zip(&mut self.sets) {
            if !records.is_empty() {
                set(&mut body, template.id, records);
                records.clear();
            }
        }
        let len = u16::try_from(16 + body.len()).map_err(io::Error::other)?;
        output.write_all(&10_u16.to_be_bytes())?;
        output.write_all(&len.to_be_bytes())?;
        output.write_all(&self.export_time_s.to_be_bytes())?;
        output.write_all(&self.sequence.to_be_bytes())?;
        // No particular observation domain (RFC 7011 §3.1): templates hold for one.
        output.write_all(&0_u32.to_be_bytes())?;
        output.write_all(&body)?;
        self.sequence = self.sequence.wrapping_add(self.records);
        self.records = 0;
        Ok(())
    }
}

fn set(body: &mut Vec<u8>, id: u16, content: &[u8]) {
    let len = u16::try_from(4 + content.len()).expect("a set has some 32,000 bytes");
    body.extend_from_slice(&id.to_be_bytes());
    body.extend_from_slice(&len.to_be_bytes());
    body.extend_from_slice(content);
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

    /// A flow with this name, and a number below 0 that stays one.
    fn record(name: &str) -> FlowRecord {
        let value = |spec: &Spec| match spec.name {
            "tls_server_name" => name.into(),
            "first_time" => (-1).into(),
            _ => Value::Null,
        };
        FlowRecord {
            values: COLUMNS.iter().map(value).collect(),
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
            "tls_server_name" => naive(name),
            "first_time" => String::from("-1"),
            _ => String::new(),
        });
        let cells: Vec<String> = cells.collect();
        let names: Vec<&str> = FlowRecord::columns().collect();
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
