//! `strata stream serve --otlp`: logs from OpenTelemetry's SDK for Python, and requests that it would not send.
#![allow(clippy::print_stderr, reason = "says why a test did not run")]

use std::collections::BTreeSet;
use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use strata_testkit::workspace_root;
use tempfile::TempDir;

use crate::common::program::{ok, refused, strata};
use crate::common::serving::serving;
use crate::common::signal::signal;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Sends a number of records by the SDK, and ends once all are confirmed.
const SEND: &str = r#"
import sys
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

endpoint, compression, name, count = *sys.argv[1:4], int(sys.argv[4])
exporter = OTLPLogExporter(endpoint=endpoint, compression=Compression(compression), timeout=60)
provider = LoggerProvider(resource=Resource({"service.name": name, "host.cpus": 2}))
provider.add_log_record_processor(
    BatchLogRecordProcessor(exporter, max_export_batch_size=100, max_queue_size=100_000)
)
logger = provider.get_logger("a.module", "1.5")
for number in range(count):
    logger.emit(LogRecord(
        timestamp=1_700_000_000_000_000_000 + number,
        severity_number=SeverityNumber.WARN,
        severity_text="WARN",
        body={"text": f"line {number} é", "parts": [1, 2.5, True, None]},
        attributes={"number": number, "raw": b"\x00\xff"},
    ))
assert provider.force_flush(60_000), "not all was confirmed"
provider.shutdown()
"#;

struct Server {
    dir: PathBuf,
    child: Child,
    _errors: BufReader<ChildStderr>,
    otlp: SocketAddr,
}

/// A port that is free now. Another process may take it before it is used, which fails the test.
fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

impl Server {
    fn start(folder: &TempDir) -> Self {
        let dir = folder.path().join("streams");
        if !dir.exists() {
            ok(strata().args(["stream", "create"]).arg(&dir).arg("other"));
        }
        let otlp = free();
        let mut command = strata();
        command.args(["stream", "serve"]).arg(&dir);
        command.args(["--listen", "127.0.0.1:0", "--create", "1GB"]);
        command.args(["--otlp", &otlp.to_string()]);
        let (child, errors, _) = serving(command.stdout(Stdio::piped()));
        Self {
            dir,
            child,
            _errors: errors,
            otlp,
        }
    }

    /// The records of the stream, as JSON.
    fn records(&self) -> Vec<Value> {
        let mut command = strata();
        command.args(["stream", "tail"]).arg(&self.dir);
        let text = ok(command.args(["logs", "--cursor", "0.0"]));
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Sends a request, and returns the status and the body of the answer.
    fn post(&self, path: &str, headers: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(self.otlp).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let len = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // One that is refused may be answered before all of it was read.
        let _ = stream.write_all(body);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(&answer)));
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer[end + 4..].to_vec())
    }

    fn post_json(&self, body: &Value) -> (u16, Value) {
        let json = "Content-Type: application/json\r\n";
        let (status, answer) = self.post("/v1/logs", json, body.to_string().as_bytes());
        (status, serde_json::from_slice(&answer).unwrap())
    }

    /// Ends it by Ctrl-C; what it says.
    fn end(mut self) -> String {
        signal(&self.child, "INT");
        let mut said = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success());
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn python() -> Option<PathBuf> {
    let python = workspace_root().join("python/.venv/bin/python");
    if python.exists() {
        return Some(python);
    }
    eprintln!("not run: no python/.venv; `make python` makes it");
    assert!(std::env::var_os("CI").is_none(), "CI has no python/.venv");
    None
}

#[test]
fn logs_that_an_agent_was_told_are_stored_survive_the_server() {
    let Some(python) = python() else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let mut server = Server::start(&folder);
    let endpoint = format!("http://{}/v1/logs", server.otlp);
    let agents = [("web", "gzip"), ("db", "none"), ("proxy", "gzip")];
    let senders = agents.map(|(name, compression)| {
        let mut command = Command::new(&python);
        command.args(["-c", SEND, &endpoint, compression, name, "1000"]);
        command.stderr(Stdio::piped()).spawn().unwrap()
    });
    for sender in senders {
        let output = sender.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
    }
    // The server may be killed: what was confirmed is in the stream.
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let records = server.records();
    assert_eq!(records.len(), 3000);
    for (name, _) in agents {
        let of_it = records.iter();
        let of_it: Vec<_> = of_it
            .filter(|record| record["resource"]["service.name"] == name)
            .collect();
        let numbers = of_it.iter().map(|record| &record["attributes"]["number"]);
        let numbers: BTreeSet<u64> = numbers.map(|number| number.as_u64().unwrap()).collect();
        assert!(numbers.into_iter().eq(0..1000), "{name}");
    }
    let seventh = records.iter().find(|record| {
        record["attributes"]["number"] == 7 && record["resource"]["service.name"] == "db"
    });
    let mut seventh = seventh.unwrap().clone();
    let observed = seventh["observed_time_unix_nano"].take();
    assert!(
        observed.as_u64().unwrap() > 1_700_000_000_000_000_000,
        "{observed}"
    );
    seventh
        .as_object_mut()
        .unwrap()
        .remove("observed_time_unix_nano");
    assert_eq!(
        seventh,
        json!({
            "time_unix_nano": 1_700_000_000_000_000_007_u64,
            "severity_number": 13,
            "severity_text": "WARN",
            "body": {"text": "line 7 é", "parts": [1, 2.5, true, null]},
            "attributes": {"number": 7, "raw": "AP8="},
            "scope": {"name": "a.module", "version": "1.5"},
            "resource": {"service.name": "db", "host.cpus": 2},
        })
    );
    // Another server goes on with the stream.
    let server = Server::start(&folder);
    let endpoint = format!("http://{}/v1/logs", server.otlp);
    let mut command = Command::new(&python);
    ok(command.args(["-c", SEND, &endpoint, "none", "late", "10"]));
    assert_eq!(server.records().len(), 3010);
    assert!(server.end().contains("10 records appended"));
}

fn request(records: &[Value]) -> Value {
    json!({"resourceLogs": [{
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "web"}}]},
        "scopeLogs": [{"scope": {"name": "m"}, "logRecords": records}],
    }]})
}

#[test]
fn json_of_the_protocol_is_taken_and_a_record_that_cannot_be_is_counted() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder);
    let id = "5b8efff798038103d269b633813fc60c";
    let whole = json!({
        "timeUnixNano": "1700000000000000001", "severityNumber": 9, "body": {"intValue": "-5"},
        "traceId": id, "spanId": "eee19b7ec3c1b174", "flags": 1, "eventName": "e",
        "attributes": [{"key": "list", "value": {"arrayValue": {"values": [{"doubleValue": 0.5}]}}}],
        "somethingNew": {"a": [1]},
    });
    let (status, answer) = server.post_json(&request(std::slice::from_ref(&whole)));
    assert_eq!((status, answer), (200, json!({})));
    let expected = json!({
        "time_unix_nano": 1_700_000_000_000_000_001_u64, "severity_number": 9, "body": -5,
        "trace_id": id, "span_id": "eee19b7ec3c1b174", "flags": 1, "event_name": "e",
        "attributes": {"list": [0.5]}, "scope": {"name": "m"}, "resource": {"service.name": "web"},
    });
    assert_eq!(server.records(), std::slice::from_ref(&expected));
    // One is too long, and one is not as the protocol says; the others are stored.
    let long = json!({"body": {"stringValue": "x".repeat((1 << 20) + 1)}});
    let wrong = json!({"timeUnixNano": "yesterday"});
    let mixed = [whole.clone(), long, wrong, whole];
    let (status, answer) = server.post_json(&request(&mixed));
    assert_eq!(status, 200);
    let partial = &answer["partialSuccess"];
    assert_eq!(partial["rejectedLogRecords"], "2", "{answer}");
    let why = partial["errorMessage"].as_str().unwrap();
    assert!(why.contains("1048576"), "{why}");
    assert_eq!(server.records(), vec![expected; 3]);
    // Nothing to store is no fault.
    assert_eq!(server.post_json(&json!({})), (200, json!({})));
    assert!(server.end().contains("3 records appended"));
}

#[test]
fn each_record_has_the_resource_and_the_scope_that_it_is_of() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder);
    let named = |name: &str| json!({"attributes": [{"key": "n", "value": {"stringValue": name}}]});
    let record = |number: u32| json!({"severityNumber": number});
    let (status, answer) = server.post_json(&json!({"resourceLogs": [
        {"resource": named("a"), "schemaUrl": "r", "scopeLogs": [
            {"scope": {"name": "m"}, "schemaUrl": "s", "logRecords": [record(1), record(2)]},
            {"logRecords": [record(3), {}]},
        ]},
        {"scopeLogs": [{"logRecords": [{}]}, {"scope": {"name": "o"}, "logRecords": [{}, record(4)]}]},
        {"resource": named("b"), "scopeLogs": [{"logRecords": [record(5)]}]},
    ]}));
    assert_eq!((status, answer), (200, json!({})));
    let (a, b) = (json!({"n": "a"}), json!({"n": "b"}));
    let (m, o) = (json!({"name": "m"}), json!({"name": "o"}));
    let expected = [
        json!({"severity_number": 1, "schema_url": "s", "scope": m, "resource": a, "resource_schema_url": "r"}),
        json!({"severity_number": 2, "schema_url": "s", "scope": m, "resource": a, "resource_schema_url": "r"}),
        json!({"severity_number": 3, "resource": a, "resource_schema_url": "r"}),
        json!({"resource": a, "resource_schema_url": "r"}),
        json!({}),
        json!({"scope": o}),
        json!({"severity_number": 4, "scope": o}),
        json!({"severity_number": 5, "resource": b}),
    ];
    assert_eq!(server.records(), expected);
}

/// A field of a protobuf message that has a length.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut len = value.len();
    while len > 0x7f {
        out.push(u8::try_from(len & 0x7f).unwrap() | 0x80);
        len >>= 7;
    }
    out.push(u8::try_from(len).unwrap());
    out.extend_from_slice(value);
    out
}

#[test]
fn a_resource_of_many_records_is_written_once_as_json() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder);
    let request = |resource: &[u8], records: usize| {
        let records = field(2, &field(2, b"").repeat(records));
        field(1, &[field(1, resource), records].concat())
    };
    let protobuf = "Content-Type: application/x-protobuf\r\n";
    // As JSON, each byte has 6, and each record is too long: it is not written 262,144 times to find that out.
    let text = field(2, &field(1, &vec![1; (1 << 20) - 100]));
    let long = field(1, &[field(1, b"k"), text].concat());
    let (status, answer) = server.post("/v1/logs", protobuf, &request(&long, 1 << 18));
    let said = String::from_utf8_lossy(&answer);
    assert_eq!(status, 200, "{said}");
    assert!(said.contains("is too long"), "{said}");
    assert!(server.records().is_empty());
    // Attributes whose JSON is short, since all have the same key.
    let same = field(1, b"").repeat(500_000);
    let (status, answer) = server.post("/v1/logs", protobuf, &request(&same, 20_000));
    let said = String::from_utf8_lossy(&answer);
    assert_eq!((status, &*said), (200, ""));
    let records = server.records();
    assert_eq!(records.len(), 20_000);
    let expected = json!({"resource": {"": null}});
    assert!(records.iter().all(|record| *record == expected));
}

#[test]
fn requests_that_are_not_as_the_protocol_says_are_refused_whole() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder);
    let json = "Content-Type: application/json; charset=utf-8\r\n";
    let protobuf = "Content-Type: application/x-protobuf\r\n";
    let gzip = format!("{protobuf}Content-Encoding: gzip\r\n");
    let zstd = format!("{protobuf}Content-Encoding: zstd\r\n");
    let one = request(&[json!({"body": {"stringValue": "x"}})]).to_string();
    // A record, and then a field that ends after its message.
    let short = b"\x0a\x04\x12\x02\x12\x00\x0a\x7f";
    for (path, headers, body, expected) in [
        ("/v1/logs", json, &b"{"[..], 400),
        ("/v1/logs", json, b"7", 400),
        ("/v1/logs", json, br#"{"resourceLogs": [7]}"#, 400),
        ("/v1/logs", protobuf, short, 400),
        ("/v1/logs", protobuf, b"\x0b", 400),
        ("/v1/logs", gzip.as_str(), one.as_bytes(), 400),
        ("/v1/logs", zstd.as_str(), one.as_bytes(), 415),
        (
            "/v1/logs",
            "Content-Type: text/plain\r\n",
            one.as_bytes(),
            415,
        ),
        ("/v1/logs", "", one.as_bytes(), 415),
        ("/v1/traces", json, b"{}", 404),
    ] {
        let (status, answer) = server.post(path, headers, body);
        let said = String::from_utf8_lossy(&answer).into_owned();
        assert_eq!(status, expected, "{headers:?} {body:?}: {said}");
        assert!(!said.is_empty(), "{headers:?} {body:?}");
    }
    let (status, _) = server.post("/v1/logs", json, &vec![b' '; (8 << 20) + 1]);
    assert_eq!(status, 413);
    // 64 MiB of zeros.
    let mut bomb = Command::new("sh");
    bomb.args(["-c", "head -c 67108864 /dev/zero | gzip -c"]);
    let bomb = bomb.output().unwrap().stdout;
    assert!(bomb.len() < 1 << 20);
    let (status, answer) = server.post("/v1/logs", &gzip, &bomb);
    assert_eq!(status, 413, "{}", String::from_utf8_lossy(&answer));
    assert!(server.records().is_empty());
    let said = refused(strata().args(["stream", "serve", "x", "--otlp", "0.0.0.0"]));
    assert!(
        said.contains("--otlp 0.0.0.0: other machines can reach this address"),
        "{said}"
    );
    assert!(server.end().contains("0 records appended"));
}
