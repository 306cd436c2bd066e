//! Flows and tables of several logs together, compared with those of each log, and with tshark and tcpdump.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use serde_json::Value;

use super::read::{halves, mix, tcpdump};
use crate::common::program::{ok, strata};

fn export(logs: &[&Path], to: &str, more: &[&str]) -> String {
    let mut command = strata();
    command.arg("export").args(logs).args(["-w", to]);
    ok(command.args(more))
}

/// Each row names its log, and without this name the rows of a log are those of an export of this log alone, in their
/// order.
#[test]
fn rows_of_flows_are_those_of_each_log() {
    let dir = tempfile::tempdir().unwrap();
    let logs = halves(dir.path());
    let [a, b] = logs.each_ref().map(PathBuf::as_path);
    let csv = export(&[a, b], "-", &["-F", "csv"]);
    let (heading, rows) = csv.split_once('\n').unwrap();
    for log in [a, b] {
        let alone = export(&[log], "-", &["-F", "csv"]);
        let (names, alone) = alone.split_once('\n').unwrap();
        assert_eq!(heading.strip_prefix("log,"), Some(names));
        let prefix = format!("{},", log.display());
        let of_this = rows.lines().filter_map(|row| row.strip_prefix(&prefix));
        assert!(of_this.eq(alone.lines()), "{}", log.display());
        assert!(alone.lines().count() > 100);
    }
    let json = export(&[a, b], "-", &["-F", "json"]);
    assert_eq!(json.lines().count(), rows.lines().count());
    for log in [a, b] {
        let alone = export(&[log], "-", &["-F", "json"]);
        let mut alone = alone.lines().map(parsed);
        for line in json.lines() {
            let mut flow = parsed(line);
            let named = flow.as_object_mut().unwrap().remove("log").unwrap();
            if named == log.to_str().unwrap() {
                assert_eq!(Some(flow), alone.next());
            }
        }
        assert_eq!(alone.next(), None);
    }
    // A filter sees the packets of all logs.
    let filtered = export(&[a, b], "-", &["-F", "json", "port 53"]);
    let packets = filtered.lines().map(|line| {
        let flow = parsed(line);
        let count = |name: &str| flow[name].as_u64().unwrap();
        count("packets") + count("reverse_packets")
    });
    let expected = tcpdump(&mix(), &["port 53"]).len();
    assert_eq!(packets.sum::<u64>(), u64::try_from(expected).unwrap());
}

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
}

/// Rows of a Parquet file by the name of their log, as the library's reader of rows has them.
fn rows_by_log(file: &Path) -> BTreeMap<String, Vec<Vec<(String, Field)>>> {
    let reader = SerializedFileReader::new(File::open(file).unwrap()).unwrap();
    let mut rows: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for row in reader.get_row_iter(None).unwrap() {
        let mut columns: Vec<(String, Field)> = row.unwrap().into_columns();
        let log = match columns.iter().position(|(name, _)| name == "log") {
            Some(at) => columns.remove(at).1.to_string(),
            None => String::new(),
        };
        rows.entry(log).or_default().push(columns);
    }
    rows
}

#[test]
fn parquet_files_name_the_log_of_each_row() {
    let dir = tempfile::tempdir().unwrap();
    let logs = halves(dir.path());
    let [a, b] = logs.each_ref().map(PathBuf::as_path);
    let (together, alone) = (
        dir.path().join("all.parquet"),
        dir.path().join("one.parquet"),
    );
    for format in ["flows-parquet", "packets-parquet"] {
        export(&[a, b], together.to_str().unwrap(), &["-F", format]);
        let mut rows = rows_by_log(&together);
        for log in [a, b] {
            export(&[log], alone.to_str().unwrap(), &["-F", format]);
            // A text is shown in quotes.
            let of_this = rows.remove(&format!("{:?}", log.display().to_string()));
            assert_eq!(of_this, rows_by_log(&alone).remove(""), "{format}");
        }
        assert!(rows.is_empty(), "{:?}", rows.keys());
    }
    // Packets are in the order of their times.
    let reader = SerializedFileReader::new(File::open(&together).unwrap()).unwrap();
    let times = reader.get_row_iter(None).unwrap().map(|row| {
        let columns = row.unwrap().into_columns();
        let of = |name: &str| columns.iter().find(|(of, _)| of == name).unwrap().1.clone();
        match of("time") {
            Field::TimestampMicros(micros) => micros,
            other => panic!("{other}"),
        }
    });
    let times: Vec<i64> = times.collect();
    assert!(times.is_sorted() && times.len() == tcpdump(&mix(), &[]).len());
}

/// In IPFIX, each log is an observation domain: tshark reads the packets of each.
#[test]
fn an_ipfix_file_has_a_domain_for_each_log() {
    let dir = tempfile::tempdir().unwrap();
    let logs = halves(dir.path());
    let [a, b] = logs.each_ref().map(PathBuf::as_path);
    let file = dir.path().join("flows.ipfix");
    export(&[a, b], file.to_str().unwrap(), &[]);
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file).args(["-T", "fields"]);
    let text = ok(tshark.args(["-e", "cflow.od_id", "-e", "cflow.packets"]));
    let mut packets: BTreeMap<String, u64> = BTreeMap::new();
    for line in text.lines() {
        let (domain, counts) = line.split_once('\t').unwrap();
        // A frame of a file may have several messages: all are of one domain then.
        let domain = domain.split(',').next().unwrap().to_owned();
        let counts = counts
            .split(',')
            .filter_map(|count| count.parse::<u64>().ok());
        *packets.entry(domain).or_default() += counts.sum::<u64>();
    }
    let expected = ["not tcp", "tcp"].map(|filter| {
        let lines = tcpdump(&mix(), &[filter]);
        u64::try_from(lines.len()).unwrap()
    });
    assert_eq!(packets.into_values().collect::<Vec<_>>(), expected);
}
