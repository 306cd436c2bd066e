//! The columns as seen from outside: the schema and coding of the Parquet files, all values in
//! them, and flows as CSV, JSON and IPFIX. A log at rest outlives the code that wrote it.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::file::reader::{FileReader, SerializedFileReader};
use strata_archive::compact;
use strata_query::{Find, FlowRecord, RecordFormat, RecordWriter, flow_records};
use strata_store::{Disk, FileKind, Log};
use strata_testkit::{check_golden, data_dir, format_captures};
use strata_testkit_disk::SimDisk;

use crate::common::{model, record};

/// Captures that use everything columns can hold: ICMP, IPv6, tunnels, fragments, non-IP packets.
fn log() -> (SimDisk, Log) {
    let sim = SimDisk::new();
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let model = model();
    for name in ["cic2017-sqli", "mix-test", "westermo-right"] {
        let path = data_dir().join("labelled").join(name).join("trace.pcap");
        assert!(record(&disk, &path, &model, "default", 0));
    }
    for path in format_captures().iter().step_by(29) {
        record(&disk, path, &model, "log-all", 0);
    }
    compact(&disk, |_| ()).unwrap();
    let log = Log::on(disk).unwrap();
    (sim, log)
}

fn opened(sim: &SimDisk, name: &str) -> SerializedFileReader<Bytes> {
    let file = sim.open(name, false).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    SerializedFileReader::new(Bytes::from(bytes)).unwrap()
}

/// Field id, name, type, coding of each column of the first file of a kind.
fn forms(sim: &SimDisk, log: &Log, kind: FileKind) -> String {
    let part = log.archive().parts.first().unwrap();
    let reader = opened(sim, &part.file(kind).unwrap().name);
    let group = reader.metadata().row_group(0);
    let mut text = format!("{}\n", kind.dir());
    for column in group.columns() {
        let described = column.column_descr();
        let encodings: Vec<String> = column.encodings().map(|e| e.to_string()).collect();
        let logical = described.logical_type_ref();
        let basic = described.self_type().get_basic_info();
        let id = basic.has_id().then(|| basic.id());
        let _ = writeln!(
            text,
            "  {} {} {:?} {} {} {} {}{}",
            id.map_or_else(|| "-".to_owned(), |id| id.to_string()),
            described.name(),
            basic.repetition(),
            described.physical_type(),
            logical.map_or_else(|| "-".to_owned(), |of| format!("{of:?}")),
            column.compression(),
            encodings.join("+"),
            if column.bloom_filter_offset().is_some() {
                " bloom"
            } else {
                ""
            },
        );
    }
    text
}

/// The checksum of all rows of all files of a kind, as text.
fn rows(sim: &SimDisk, log: &Log, kind: FileKind) -> String {
    let (mut crc, mut count) = (0, 0);
    for part in &log.archive().parts {
        let reader = opened(sim, &part.file(kind).unwrap().name);
        for row in reader.get_row_iter(None).unwrap() {
            crc = crc32c::crc32c_append(crc, row.unwrap().to_string().as_bytes());
            count += 1;
        }
    }
    format!("{} rows {count} crc {crc:08x}\n", kind.dir())
}

fn flows(log: &Log, format: RecordFormat) -> Vec<u8> {
    let mut writer = RecordWriter::new(Vec::new(), format).unwrap();
    for part in &log.archive().parts {
        let take = |record: &FlowRecord| -> Result<(), strata_archive::ArchiveError> {
            writer.write(record).unwrap();
            Ok(())
        };
        flow_records(log.disk().as_ref(), part, &Find::default(), take).unwrap();
    }
    writer.finish().unwrap()
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"))
}

#[test]
fn columns_at_rest_and_in_exports_stay_as_they_are() {
    let (sim, log) = log();
    let mut text = String::new();
    for kind in [FileKind::Packets, FileKind::Flows] {
        text += &forms(&sim, &log, kind);
        text += &rows(&sim, &log, kind);
    }
    for format in [RecordFormat::Csv, RecordFormat::Json, RecordFormat::Ipfix] {
        let bytes = flows(&log, format);
        let crc = crc32c::crc32c(&bytes);
        let _ = writeln!(text, "{format:?} {} bytes crc {crc:08x}", bytes.len());
        if format == RecordFormat::Csv {
            let csv = std::str::from_utf8(&bytes).unwrap();
            let first: Vec<&str> = csv.lines().take(12).collect();
            text += &format!("{}\n", first.join("\n"));
        }
    }
    check_golden(&folder().join("columns.txt"), &text);
}
