//! A running recording: seen, steered, gone and back.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::{Value, json};

use crate::http::Serving;
use crate::logs::capture;
use crate::program::{ok, strata};

/// A recording of standard input.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Running {
    fn start(log: &Path, socket: &Path) -> Self {
        let mut command = strata();
        command
            .args(["record", "-r", "-", "-o"])
            .arg(log)
            .arg("--socket")
            .arg(socket);
        let command = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        Self { child, stdin }
    }

    fn feed(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(bytes).unwrap();
        stdin.flush().unwrap();
    }

    fn finish(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// The first ticks of the stream of events.
fn ticks(serving: &Serving, count: usize) -> Vec<Value> {
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    let request = format!(
        "GET /api/v1/live HTTP/1.0\r\nHost: {}\r\n\r\n",
        serving.address
    );
    stream.write_all(request.as_bytes()).unwrap();
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let data = lines.filter_map(|line| Some(line.strip_prefix("data: ")?.to_owned()));
    data.take(count)
        .map(|tick| serde_json::from_str(&tick).unwrap())
        .collect()
}

#[test]
fn a_recording_is_seen_and_steered_and_every_change_undone() {
    let dir = tempfile::tempdir().unwrap();
    let (log, socket) = (dir.path().join("log"), dir.path().join("control.sock"));
    let mut running = Running::start(&log, &socket);
    let trace = fs::read(capture()).unwrap();
    running.feed(&trace);
    let serving = Serving::start(&[&log], &["--socket", socket.to_str().unwrap()]);
    let recorders = serving.until("/api/v1/recorders", "it is seen", |all| {
        all[0]["up"] == true
    });
    assert_eq!(recorders[0]["log"], "0");
    let status = ok(strata().args(["status", "--json", "--socket"]).arg(&socket));
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(recorders[0]["status"]["pid"], status["pid"]);
    let told = ticks(&serving, 2);
    assert_eq!(told[1]["recorders"][0]["up"], true, "{}", told[1]);

    let mode = json!({"mode": "log-all", "seconds": 600, "why": "incident 7"});
    let changed = serving.change("PUT", "/api/v1/recorders/0/mode", &mode);
    assert_eq!(
        changed.status,
        200,
        "{}",
        String::from_utf8_lossy(&changed.body)
    );
    let changed = changed.json();
    let now = |what: &str| -> Value {
        let status = ok(strata().args(["status", "--json", "--socket"]).arg(&socket));
        serde_json::from_str::<Value>(&status).unwrap()[what].clone()
    };
    assert_eq!(now("mode"), "log-all");
    let undo = |changed: &Value| {
        let undo = &changed["undo"];
        let (method, path) = (
            undo["method"].as_str().unwrap(),
            undo["path"].as_str().unwrap(),
        );
        let answer = serving.change(method, path, &undo["body"]);
        assert!(
            matches!(answer.status, 200 | 201),
            "{}",
            String::from_utf8_lossy(&answer.body)
        );
        answer.json()
    };
    undo(&changed);
    assert_eq!(now("mode"), "default");

    let policies = || -> Value {
        let listed = ok(strata()
            .args(["policy", "list", "--json", "--socket"])
            .arg(&socket));
        serde_json::from_str(&listed).unwrap()
    };
    let policy = json!({"match": "host 10.0.0.9 and tcp port 80", "action": "header", "priority": 7, "why": "backup"});
    let added = serving.change("POST", "/api/v1/recorders/0/policies", &policy);
    assert_eq!(
        added.status,
        201,
        "{}",
        String::from_utf8_lossy(&added.body)
    );
    let added = added.json();
    assert_eq!(policies()[0]["match"], policy["match"]);
    // The command line that is told does the same.
    let line = added["command"].as_str().unwrap();
    let line = line.replacen("strata", env!("CARGO_BIN_EXE_strata"), 1);
    ok(Command::new("sh").args(["-c", &format!("{line} --socket {}", socket.display())]));
    assert_eq!(policies()[1]["action"], "header");
    assert_eq!(policies()[1]["priority"], 7);
    let removed = undo(&added);
    assert_eq!(policies().as_array().unwrap().len(), 1);
    undo(&removed);
    assert_eq!(policies().as_array().unwrap().len(), 2);
    for (wrong, field, start) in [
        (
            json!({"match": "tcp port 70000", "action": "header"}),
            "match",
            json!(9),
        ),
        (
            json!({"match": "tcp", "action": "keep"}),
            "action",
            Value::Null,
        ),
        (
            json!({"match": "greater 100", "action": "drop"}),
            "match",
            Value::Null,
        ),
    ] {
        let checked = serving
            .change("POST", "/api/v1/policies/check", &wrong)
            .json();
        assert_eq!(
            (&checked["error"]["field"], &checked["error"]["start"]),
            (&json!(field), &start),
            "{checked}"
        );
        let refused = serving.change("POST", "/api/v1/recorders/0/policies", &wrong);
        assert_eq!(
            refused.status,
            400,
            "{}",
            String::from_utf8_lossy(&refused.body)
        );
    }
    let asked = json!({"match": "tcp port 80", "action": "drop", "log": "0"});
    let checked = serving
        .change("POST", "/api/v1/policies/check", &asked)
        .json();
    assert_eq!(checked["error"], Value::Null);
    assert!(
        checked["matched"]["covered"]["seconds"].is_number(),
        "{checked}"
    );

    // Who did it, and why, is on record at both ends.
    let events = serving.until(
        "/api/v1/recorders/0/events",
        "the event is told",
        |events| {
            events
                .to_string()
                .contains("incident 7 (strata serve: local)")
        },
    );
    let first = events[0]["id"].as_str().unwrap();
    let path = format!("/api/v1/recorders/0/events/{first}/acknowledge");
    assert_eq!(serving.change("POST", &path, &Value::Null).status, 204);
    let events = serving.json("/api/v1/recorders/0/events");
    assert_eq!(events[0]["acknowledged"]["who"], "local");
    let audit = serving.json("/api/v1/audit").to_string();
    for what in [
        "mode log-all for 600 s",
        "policy 1 added",
        "policy 1 removed",
        "acknowledged",
    ] {
        assert!(audit.contains(what), "{what}: {audit}");
    }

    running.finish();
    serving.until("/api/v1/recorders", "it is gone", |all| {
        all[0]["up"] == false
    });
    let again = dir.path().join("again");
    let mut second = Running::start(&again, &socket);
    second.feed(&trace);
    serving.until("/api/v1/recorders", "it is back", |all| {
        all[0]["up"] == true
    });
    let history = serving.json("/api/v1/recorders/0/history");
    assert!(history["t"].as_array().unwrap().len() <= 900);
    second.finish();
}
