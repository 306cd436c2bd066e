//! `strata stream to-parquet`, as DuckDB and pyarrow read its files.

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use strata_testkit::workspace_root;

use crate::common::{Streams, appended, refused, succeeded, succeeded_of};

/// What the files must have, as other programs see it.
const READ: &str = r#"
import json, sys
import duckdb, pyarrow.parquet
table = pyarrow.parquet.read_table(sys.argv[1], page_checksum_verification=True)
columns = {field.name: str(field.type) for field in table.schema}
rows = duckdb.sql(f"SELECT * REPLACE (epoch_us(time) AS time, hex(payload) AS payload) FROM '{sys.argv[1]}'")
rows = [dict(zip(rows.columns, row)) for row in rows.fetchall()]
assert len(rows) == table.num_rows
print(json.dumps({"columns": columns, "rows": rows}))
"#;

/// The Python that `make python` installs.
fn python() -> Option<PathBuf> {
    let python = workspace_root().join("python/.venv/bin/python");
    if python.exists() {
        return Some(python);
    }
    eprintln!("not run: no python/.venv; `make python` makes it");
    assert!(std::env::var_os("CI").is_none(), "CI has no python/.venv");
    None
}

/// Writes a file, and what other programs read in it.
fn parquet(streams: &Streams, python: &Path, options: &[&str]) -> (Vec<Value>, Value) {
    let file = streams.file("x.parquet");
    let write = ["x", "-w", file.to_str().unwrap()];
    let mut command = streams.command("to-parquet", &write);
    succeeded_of(command.args(options).output().unwrap());
    read(python, &file)
}

fn read(python: &Path, file: &Path) -> (Vec<Value>, Value) {
    let mut command = Command::new(python);
    command.args(["-c", READ]).arg(file);
    let text = succeeded(command);
    let mut found: Value = serde_json::from_str(&text).unwrap();
    let Value::Array(rows) = found["rows"].take() else {
        panic!("{found}");
    };
    (rows, found["columns"].take())
}

/// Waits until records that are appended now have a later time than those before: times are to 10 ms.
fn next_moment() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let until = now() + Duration::from_millis(11);
    while now() < until {
        std::thread::yield_now();
    }
    u64::try_from(until.as_nanos()).unwrap()
}

#[test]
fn rows_are_the_records_that_tail_prints() {
    let Some(python) = python() else {
        return;
    };
    let streams = Streams::new(&[]);
    let lines = "{\"a\": 1, \"b\": {\"c.d\": \"deep\"}, \"n\": null}\nplain\n\n{\"a\": [1, \"x\"]}\n[1]\nä\n";
    streams.append(&[], lines.as_bytes());
    streams.append(&["--framed"], b"\x03\0\0\0\xff\0\x01");
    let columns = ["--column", "a", "--column", "deep=b.c.d", "--column", "n"];
    let (rows, types) = parquet(&streams, &python, &columns);
    assert_eq!(
        types,
        json!({
            "time": "timestamp[us, tz=UTC]", "time_ns": "int16", "seq": "int64", "producer": "string",
            "number": "int64", "text": "string", "payload": "binary", "decoded": "string", "a": "string",
            "deep": "string", "n": "string",
        })
    );
    let printed = streams.tail();
    assert_eq!((rows.len(), printed.len()), (7, 7));
    for (row, record) in rows.iter().zip(&printed) {
        let ns = |name: &str| row[name].as_u64().unwrap();
        assert_eq!(ns("time") * 1000 + ns("time_ns"), record["time_ns"]);
        assert_eq!(row["seq"], record["seq"]);
        assert_eq!(row["text"], record["text"]);
        let hex = record["hex"].as_str().map(str::to_uppercase);
        assert_eq!(row["payload"].as_str(), hex.as_deref());
        for name in ["producer", "number", "decoded", "n"] {
            assert!(row[name].is_null(), "{row}");
        }
    }
    let of = |name: &str| rows.iter().map(|row| row[name].clone()).collect::<Vec<_>>();
    let none = || Value::Null;
    assert_eq!(
        of("a"),
        [
            json!("1"),
            none(),
            none(),
            json!("[1,\"x\"]"),
            none(),
            none(),
            none()
        ]
    );
    assert_eq!(of("deep")[0], "deep");
    // Only some, by a value.
    let (rows, _) = parquet(&streams, &python, &["--where", "a=1"]);
    assert_eq!(rows.len(), 2);
}

#[test]
fn files_of_consecutive_times_have_each_record_once() {
    let Some(python) = python() else {
        return;
    };
    let streams = Streams::new(&["--pages", "4KiB-4KiB-64KiB"]);
    let mut times = Vec::new();
    for part in 0..4 {
        let lines = (0..2_000).map(|number| format!("line {part} {number}\n"));
        streams.append(&[], lines.collect::<String>().as_bytes());
        times.push(next_moment());
    }
    let seconds = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let mut read = Vec::new();
    for part in 0..4 {
        let from = (part > 0).then(|| seconds(times[part - 1]));
        let to = (part < 3).then(|| seconds(times[part]));
        let from = from.iter().flat_map(|from| ["--from", from.as_str()]);
        let to = to.iter().flat_map(|to| ["--to", to.as_str()]);
        let options: Vec<&str> = from.chain(to).collect();
        let (rows, _) = parquet(&streams, &python, &options);
        assert_eq!(rows.len(), 2_000, "{options:?}");
        read.extend(rows.into_iter().map(|row| row["seq"].as_u64().unwrap()));
    }
    assert!(read.into_iter().eq(0..8_000));
}

#[test]
fn records_of_a_server_have_their_producer() {
    let Some(python) = python() else {
        return;
    };
    let streams = Streams::new(&[]);
    let mut serve = streams.command("serve", &["--listen", "127.0.0.1:0"]);
    let mut child = serve.stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    let place = loop {
        assert!(errors.read_line(&mut said).unwrap() > 0, "{said}");
        let address = said.split_once("streams on TCP ");
        if let Some((address, _)) = address.and_then(|(_, rest)| rest.split_once(',')) {
            break format!("{address}/x");
        }
    };
    let mut append = Command::new(env!("CARGO_BIN_EXE_strata-stream"));
    append.args(["append", &place, "--name", "web-1"]);
    let lines: String = (0..1_000).map(|number| format!("{number}\n")).collect();
    appended(append, lines.as_bytes());
    let file = streams.file("served.parquet");
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata-stream"));
    succeeded_of(
        command
            .args(["to-parquet", &place, "-w"])
            .arg(&file)
            .output()
            .unwrap(),
    );
    let (served, _) = read(&python, &file);
    let (local, _) = parquet(&streams, &python, &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(served, local);
    assert_eq!(served.len(), 1_000);
    for (number, row) in served.iter().enumerate() {
        assert_eq!(
            (&row["producer"], &row["number"]),
            (&json!("web-1"), &json!(number))
        );
        assert_eq!(row["text"], number.to_string());
    }
}

#[test]
fn missing_records_are_counted_and_the_others_are_in_the_file() {
    let Some(python) = python() else {
        return;
    };
    let streams = Streams::new(&[]);
    let lines: String = (0..1_000)
        .map(|number| format!("line {number:04}\n"))
        .collect();
    streams.append(&[], lines.as_bytes());
    let path = streams.dir().join("pages");
    let bytes = fs::read(&path).unwrap();
    let at = bytes.windows(9).position(|text| text == b"line 0500");
    let pages = OpenOptions::new().write(true).open(path).unwrap();
    pages.write_all_at(b"L", at.unwrap() as u64).unwrap();
    let file = streams.file("rest.parquet");
    let said = refused(
        streams.command("to-parquet", &["x", "-w", file.to_str().unwrap()]),
        1,
    );
    assert!(said.contains("1 record missing"), "{said}");
    assert!(said.contains("incomplete: 999 records written"), "{said}");
    assert_eq!(read(&python, &file).0.len(), 999);
}

#[test]
fn what_cannot_be_is_refused_and_leaves_no_file() {
    let streams = Streams::new(&[]);
    streams.append(&[], b"one\n");
    let file = streams.file("x.parquet");
    let file = file.to_str().unwrap();
    for (options, says) in [
        (&["--column", "time"][..], "json_time=time"),
        (&["--column", "a", "--column", "a=b"], "another column a"),
        (&["--column", "=a"], "write KEY or NAME=KEY"),
        (&["--from", "20000", "--to", "10000"], "not after --from"),
        (&["--from", "then"], "--from: 'then' is not a time"),
        (&["--where", "a"], "write KEY=VALUE"),
    ] {
        let command = streams.command("to-parquet", &[&["x", "-w", file], options].concat());
        let said = refused(command, 2);
        assert!(said.contains(says), "{said}");
    }
    let said = refused(streams.command("to-parquet", &["y", "-w", file]), 1);
    assert!(said.contains('y'), "{said}");
    assert!(!Path::new(file).exists());
    // Files of the directory are not replaced.
    let pages = streams.dir().join("pages");
    let before = fs::read(&pages).unwrap();
    let said = refused(
        streams.command("to-parquet", &["x", "-w", pages.to_str().unwrap()]),
        2,
    );
    assert!(said.contains("pages"), "{said}");
    assert!(fs::read(&pages).unwrap() == before);
    // An empty time is an empty file, not an error.
    let none = streams.command("to-parquet", &["x", "-w", file, "--to", "10000"]);
    succeeded(none);
    assert!(fs::metadata(file).unwrap().len() > 0);
}
