//! A running recording: seen, steered, gone and back.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::{Value, json};
use strata_testkit::workspace_root;

use super::http::Serving;
use super::logs::capture;
use crate::common::program::{ok, strata};

/// A recording of standard input.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Running {
    fn start(log: &Path, socket: &Path) -> Self {
        Self::with(log, socket, &[])
    }

    fn with(log: &Path, socket: &Path, more: &[&str]) -> Self {
        let mut command = strata();
        command
            .args(["record", "-r", "-", "-o"])
            .arg(log)
            .arg("--socket")
            .arg(socket)
            .args(more);
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

/// A recording, and a server that shows it.
struct Shown {
    running: Running,
    serving: Serving,
    socket: PathBuf,
    dir: tempfile::TempDir,
}

impl Shown {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (log, socket) = (dir.path().join("log"), dir.path().join("control.sock"));
        let mut running = Running::start(&log, &socket);
        running.feed(&fs::read(capture()).unwrap());
        let serving = Serving::start(&[&log], &["--socket", socket.to_str().unwrap()]);
        serving.until("/api/v1/recorders", "it is seen", |all| {
            all[0]["up"] == true
        });
        Self {
            running,
            serving,
            socket,
            dir,
        }
    }

    /// What a subcommand says of the recording.
    fn told(&self, words: &[&str]) -> Value {
        let said = ok(strata()
            .args(words)
            .args(["--json", "--socket"])
            .arg(&self.socket));
        serde_json::from_str(&said).unwrap()
    }

    /// A change that succeeds.
    fn change(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.serving.change(method, path, body);
        let said = String::from_utf8_lossy(&answer.body);
        assert!(matches!(answer.status, 200 | 201), "{path}: {said}");
        answer.json()
    }

    fn undo(&self, changed: &Value) -> Value {
        let undo = &changed["undo"];
        let (method, path) = (
            undo["method"].as_str().unwrap(),
            undo["path"].as_str().unwrap(),
        );
        self.change(method, path, &undo["body"])
    }
}

#[test]
fn a_recording_is_seen_also_when_it_comes_back() {
    let shown = Shown::start();
    let serving = &shown.serving;
    let recorders = serving.json("/api/v1/recorders");
    assert_eq!(recorders[0]["log"], "0");
    assert_eq!(
        recorders[0]["status"]["pid"],
        shown.told(&["status"])["pid"]
    );
    let told = ticks(serving, 2);
    assert_eq!(told[1]["recorders"][0]["up"], true, "{}", told[1]);
    shown.running.finish();
    serving.until("/api/v1/recorders", "it is gone", |all| {
        all[0]["up"] == false
    });
    let mut second = Running::start(&shown.dir.path().join("again"), &shown.socket);
    second.feed(&fs::read(capture()).unwrap());
    serving.until("/api/v1/recorders", "it is back", |all| {
        all[0]["up"] == true
    });
    let history = serving.json("/api/v1/recorders/0/history");
    assert!(history["t"].as_array().unwrap().len() <= 900);
    second.finish();
}

/// What the shadow model would have kept is what the recording says at its socket, and nothing once the
/// recording has ended.
#[test]
fn a_shadow_model_is_shown_beside_the_one_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let (log, socket) = (dir.path().join("log"), dir.path().join("control.sock"));
    let json = fs::read(workspace_root().join("models/default.json")).unwrap();
    let mut model: Value = serde_json::from_slice(&json).unwrap();
    model["name"] = "half".into();
    model.as_object_mut().unwrap().remove("known");
    let trees = model["flow_trees"].as_array_mut().unwrap();
    trees.truncate(trees.len() / 2);
    let shadow = dir.path().join("half.json");
    fs::write(&shadow, model.to_string()).unwrap();
    let own = ["--detail", "none", "--shadow", shadow.to_str().unwrap()];
    let mut running = Running::with(&log, &socket, &own);
    running.feed(&fs::read(capture()).unwrap());
    let serving = Serving::start(&[&log], &["--socket", socket.to_str().unwrap()]);
    let path = "/api/v1/logs/0/models";
    let compared = |shadow: &Value| {
        let mut all = shadow["packets"].as_array().into_iter().flatten();
        let compared = all.find(|one| one["result"] == "compared");
        compared.and_then(|one| one["packets"].as_u64())
    };
    let all = serving.until(path, "it shows what the recording says", |all| {
        let said = ok(strata().args(["status", "--json", "--socket"]).arg(&socket));
        let said: Value = serde_json::from_str(&said).unwrap();
        let shown = &all[0]["shadow"];
        compared(shown) > Some(0) && *shown == said["shadow"]
    });
    let models = &all[0]["shadow"]["models"];
    assert_eq!(
        (&models["in_shadow"], &models["promoted"]),
        (&json!("half"), &json!(false))
    );
    running.finish();
    serving.until(path, "it has ended", |all| {
        all[0]["state"] == "closed" && all[0]["shadow"].is_null()
    });
}

#[test]
fn the_mode_is_changed_and_back_and_who_did_it_is_on_record() {
    let shown = Shown::start();
    let mode = json!({"mode": "log-all", "seconds": 600, "why": "incident 7"});
    let changed = shown.change("PUT", "/api/v1/recorders/0/mode", &mode);
    assert_eq!(shown.told(&["status"])["mode"], "log-all");
    shown.undo(&changed);
    assert_eq!(shown.told(&["status"])["mode"], "default");
    let serving = &shown.serving;
    let events = serving.until("/api/v1/recorders/0/events", "it is reported", |events| {
        events
            .to_string()
            .contains("incident 7 (strata serve: local)")
    });
    let first = events[0]["id"].as_str().unwrap();
    let path = format!("/api/v1/recorders/0/events/{first}/acknowledge");
    assert_eq!(serving.change("POST", &path, &Value::Null).status, 204);
    let events = serving.json("/api/v1/recorders/0/events");
    assert_eq!(events[0]["acknowledged"]["who"], "local");
    let audit = serving.json("/api/v1/audit").to_string();
    for what in ["mode log-all for 600 s", "incident 7", "acknowledged"] {
        assert!(audit.contains(what), "{what}: {audit}");
    }
    shown.running.finish();
}

#[test]
fn policies_are_checked_added_and_removed_and_all_of_it_undone() {
    let shown = Shown::start();
    let policies = || shown.told(&["policy", "list"]);
    let policy = json!({
        "match": "host 10.0.0.9 and tcp port 80", "action": "header", "priority": 7, "why": "backup",
    });
    let added = shown.change("POST", "/api/v1/recorders/0/policies", &policy);
    assert_eq!(policies()[0]["match"], policy["match"]);
    // The command line that is shown does the same.
    let line = added["command"].as_str().unwrap();
    let line = line.replacen("strata", env!("CARGO_BIN_EXE_strata"), 1);
    let line = format!("{line} --socket {}", shown.socket.display());
    ok(Command::new("sh").args(["-c", &line]));
    assert_eq!(policies()[1]["action"], "header");
    assert_eq!(policies()[1]["priority"], 7);
    let removed = shown.undo(&added);
    assert_eq!(policies().as_array().unwrap().len(), 1);
    let path = added["undo"]["path"].as_str().unwrap();
    let again = shown.serving.change("DELETE", path, &Value::Null);
    assert_eq!(
        (again.status, &again.json()["code"]),
        (404, &json!("not_found"))
    );
    shown.undo(&removed);
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
        (
            json!({"match": " ", "action": "drop"}),
            "match",
            Value::Null,
        ),
    ] {
        let checked = shown.change("POST", "/api/v1/policies/check", &wrong);
        let error = &checked["error"];
        assert_eq!(
            (&error["field"], &error["start"]),
            (&json!(field), &start),
            "{checked}"
        );
        let refused = shown
            .serving
            .change("POST", "/api/v1/recorders/0/policies", &wrong);
        assert_eq!(
            refused.status,
            400,
            "{}",
            String::from_utf8_lossy(&refused.body)
        );
    }
    let asked = json!({"match": "tcp port 80", "action": "drop", "log": "0"});
    let checked = shown.change("POST", "/api/v1/policies/check", &asked);
    assert_eq!(checked["error"], Value::Null);
    assert!(
        checked["matched"]["covered"]["seconds"].is_number(),
        "{checked}"
    );
    let audit = shown.serving.json("/api/v1/audit").to_string();
    for what in ["policy 1 added", "policy 1 removed"] {
        assert!(audit.contains(what), "{what}: {audit}");
    }
    shown.running.finish();
}

#[test]
fn a_recordings_own_page_shows_it_and_ends_with_it() {
    for is_killed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (log, socket) = (dir.path().join("log"), dir.path().join("control.sock"));
        let mut command = strata();
        command
            .args(["record", "-r", "-", "--serve=127.0.0.1:0", "-o"])
            .arg(&log)
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::piped());
        let mut serving = Serving::of(&mut command);
        let mut stdin = serving.stdin();
        stdin.write_all(&fs::read(capture()).unwrap()).unwrap();
        stdin.flush().unwrap();
        serving.until("/api/v1/recorders", "it is seen", |all| {
            all[0]["up"] == true
        });
        let session = serving.json("/api/v1/session");
        assert_eq!(session["logs"][0]["path"], log.to_str().unwrap());
        if is_killed {
            serving.kill();
        } else {
            drop(stdin);
        }
        assert_eq!(serving.ended(), !is_killed);
    }
}

#[test]
fn a_recordings_own_page_finds_the_socket_of_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let (config, socket) = (
        dir.path().join("strata.toml"),
        dir.path().join("named.sock"),
    );
    let text = format!("[control]\nsocket = \"{}\"\n", socket.display());
    fs::write(&config, text).unwrap();
    let mut command = strata();
    command
        .args(["record", "-r", "-", "--serve=127.0.0.1:0", "-o"])
        .arg(dir.path().join("log"))
        .arg("--config")
        .arg(&config)
        .stdin(Stdio::piped());
    let mut serving = Serving::of(&mut command);
    let mut stdin = serving.stdin();
    stdin.write_all(&fs::read(capture()).unwrap()).unwrap();
    stdin.flush().unwrap();
    let seen = serving.until("/api/v1/recorders", "it is seen", |all| {
        all[0]["up"] == true
    });
    assert_eq!(seen[0]["socket"], socket.to_str().unwrap());
    drop(stdin);
    assert!(serving.ended());
}

#[test]
fn a_recordings_own_page_is_for_this_machine_and_of_a_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let log = ["-o", log.to_str().unwrap()];
    for (arguments, said) in [
        (
            &["--serve=0.0.0.0:9470", log[0], log[1]][..],
            "--token-file",
        ),
        (&["--serve=nowhere", log[0], log[1]], "write an address"),
        (&["--serve"], "add -o DIR"),
    ] {
        let mut command = strata();
        command
            .args(["record", "-r"])
            .arg(capture())
            .args(arguments);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(said), "{error}");
    }
    assert!(!dir.path().join("log").exists());
}
