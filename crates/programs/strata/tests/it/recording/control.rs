//! Controlling a running recording, as users do.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::{data_dir, workspace_root};

fn strata() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    for name in [
        "STRATA_CONFIG",
        "STRATA_SOCKET",
        "STRATA_MODE",
        "STRATA_DEFAULT",
        "STRATA_POLICY",
    ] {
        command.env_remove(name);
    }
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A recording of standard input with a socket.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    socket: PathBuf,
}

impl Running {
    fn start(dir: &Path, arguments: &[&str]) -> Self {
        Self::start_at(dir, dir.join("control.sock"), arguments)
    }

    fn start_at(dir: &Path, socket: PathBuf, arguments: &[&str]) -> Self {
        let mut child = strata()
            .args(["record", "-r", "-", "--sampling-seed", "1", "-o"])
            .arg(dir.join("log"))
            .arg("--socket")
            .arg(&socket)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        Self {
            child,
            stdin,
            socket,
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
        self.stdin.as_mut().unwrap().flush().unwrap();
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = strata();
        command.args(arguments).arg("--socket").arg(&self.socket);
        command.output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(arguments)).unwrap()
    }

    /// Waits until a condition on the recording is true.
    fn until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn until_listening(&self) {
        self.until("it listens", |running| {
            running.socket.exists() && running.ask(&["status"]).status.success()
        });
    }

    fn until_seen(&self, packets: u64) {
        self.until("packets arrive", |running| {
            let status = running.json(&["status", "--json"]);
            let packets_of = |result: &Value| result["packets"].as_u64().unwrap();
            let seen: u64 = status["packets"]
                .as_array()
                .unwrap()
                .iter()
                .map(packets_of)
                .sum();
            seen >= packets
        });
    }

    fn finish(mut self) -> String {
        drop(self.stdin.take());
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert!(
            !self.socket.exists(),
            "the socket is gone with the recording"
        );
        text(&output)
    }
}

/// Each recording has a line, where several run: those of other tests too.
#[test]
fn several_recordings_have_a_line_each() {
    let tmp = tempfile::tempdir().unwrap();
    // Where sockets are looked for: as root, that of the system.
    let dir = match rustix::process::geteuid().is_root() {
        true => PathBuf::from("/run/strata"),
        false => tmp.path().join("strata"),
    };
    fs::create_dir_all(&dir).unwrap();
    let logs = ["a", "b"].map(|name| tmp.path().join(name));
    let sockets = logs.each_ref().map(|log| {
        let name = log.file_name().unwrap().to_str().unwrap();
        dir.join(format!("several-{name}-{}.sock", std::process::id()))
    });
    let running: Vec<Running> = logs
        .iter()
        .zip(&sockets)
        .map(|(log, socket)| {
            fs::create_dir(log).unwrap();
            let mut running = Running::start_at(log, socket.clone(), &["--mode", "log-all"]);
            running.feed(&halves().0[..24]);
            running
        })
        .collect();
    for one in &running {
        one.until_listening();
    }
    let status = || {
        let mut status = strata();
        status.arg("status").env("XDG_RUNTIME_DIR", tmp.path());
        status
    };
    let shown = text(&status().output().unwrap());
    let titles = shown.lines().next().unwrap();
    assert!(
        titles.starts_with("interfaces") && titles.contains("lost"),
        "{shown}"
    );
    for socket in &sockets {
        let socket = socket.to_str().unwrap();
        let line = shown.lines().find(|line| line.ends_with(socket));
        assert!(line.unwrap().contains(" log-all "), "{shown}");
    }
    let refused = status().arg("--json").output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).contains("choose one with --socket"));
    for one in running {
        one.finish();
    }
}

/// A capture, the offset of its middle between two packets, and the number of packets before it.
fn halves() -> (Vec<u8>, usize, u64) {
    let bytes = fs::read(data_dir().join("labelled/mix-test/trace.pcap")).unwrap();
    let (mut at, mut packets) = (24, 0);
    while at < bytes.len() / 2 {
        let length = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap());
        at += 16 + length as usize;
        packets += 1;
    }
    (bytes, at, packets)
}

/// How many packets of `log` match a filter, by exporting it.
fn exported(dir: &Path, filter: &str) -> usize {
    let out = dir.join("out.pcap");
    let mut command = strata();
    command.args(["export", "-F", "pcap", "-w"]).arg(&out);
    let done = command.arg(dir.join("log")).arg(filter).output().unwrap();
    assert!(done.status.success(), "{}", text(&done));
    let (bytes, mut at, mut packets) = (fs::read(&out).unwrap(), 24, 0);
    while at + 16 <= bytes.len() {
        let length = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap());
        at += 16 + length as usize;
        packets += 1;
    }
    packets
}

#[test]
fn modes_and_policies_change_while_packets_come() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, middle, packets) = halves();
    let mut running = Running::start(dir.path(), &[]);
    running.until_listening();
    running.feed(&bytes[..middle]);
    running.until_seen(packets - 300);

    assert_eq!(
        running.ok(&["policy", "add", "--prio", "10", "udp", "--action", "drop"]),
        "policy 1\n"
    );
    assert_eq!(
        running.ok(&[
            "policy", "add", "tcp", "--action", "full", "--why", "a test"
        ]),
        "policy 2\n"
    );
    let refused = running.ask(&["policy", "add", "greater 100", "--action", "drop"]);
    assert!(!refused.status.success() && text(&refused).contains("cannot be part of a policy"));
    let refused = running.ask(&["policy", "remove", "7"]);
    assert!(text(&refused).contains("no policy 7"), "{}", text(&refused));
    let refused = running.ask(&["mode", "set", "log-everything"]);
    assert!(text(&refused).contains("log-minimum"), "{}", text(&refused));
    assert_eq!(
        running.ok(&["mode", "set", "log-all", "--for", "1h"]),
        "mode log-all\n"
    );

    running.feed(&bytes[middle..]);
    running.until("packets meet policies", |running| {
        let list = running.json(&["policy", "list", "--json"]);
        list[0]["packets"].as_u64().unwrap() > 100 && list[1]["packets"].as_u64().unwrap() > 100
    });
    let status = running.json(&["status", "--json"]);
    assert_eq!(status["mode"], "log-all");
    assert!(status["mode_seconds_left"].as_f64().unwrap() > 3000.0);
    assert_eq!(
        status["changes"]["count"], 1,
        "three changes before the next packet are one"
    );
    // Hits are counted per packet, but the status follows a little later.
    running.until("status shows what the policy dropped", |running| {
        running.ok(&["status"]).contains("discarded (policy)")
    });
    let page = running.ok(&["status"]);
    assert!(page.contains("mode log-all for 3600 s (by uid"), "{page}");
    let accounting = running.finish();
    assert!(
        accounting.contains("policy 2 added: tcp: full (by uid"),
        "{accounting}"
    );
    assert!(
        accounting.contains("dropped 0 + in_flight 0"),
        "{accounting}"
    );
}

#[test]
fn timed_modes_fall_back() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), &["--mode", "log-partial"]);
    running.until_listening();
    running.ok(&["mode", "set", "log-all", "--for", "300ms"]);
    assert_eq!(running.json(&["status", "--json"])["mode"], "log-all");
    running.until("it falls back", |running| {
        running.json(&["status", "--json"])["mode"] == "log-partial"
    });
    let page = running.ok(&["status"]);
    assert!(page.contains("mode log-partial (by timer"), "{page}");
    drop(running.finish_early());
}

impl Running {
    /// Ends it before it has read anything.
    fn finish_early(mut self) -> Output {
        drop(self.stdin.take());
        self.child.wait_with_output().unwrap()
    }
}

/// Added policies are back, with their numbers, when a recording into the same directory is
/// restarted; and texts from requests cannot affect a terminal.
#[test]
fn policies_of_run_time_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("strata.toml");
    fs::write(&config, "[[policy]]\nmatch = 'arp'\naction = 'drop'\n").unwrap();
    let config = config.display().to_string();
    let (bytes, middle, packets) = halves();
    let start = || {
        let running = Running::start(dir.path(), &["--config", &config]);
        running.until_listening();
        running
    };
    let end = |mut running: Running| {
        running.feed(&bytes[..middle]);
        running.until_seen(packets - 300);
        running.finish()
    };
    let saved = dir.path().join("log/policies.jsonl");
    let mut running = start();
    let why = "first\n\u{1b}[2Jstrata: second";
    // Before the log exists: it is created when packets arrive.
    let add = [
        "policy",
        "add",
        "udp port 53",
        "--action",
        "full",
        "--why",
        why,
    ];
    assert_eq!(running.ok(&add), "policy 2\n");
    running.ok(&["policy", "add", "tcp", "--action", "drop"]);
    running.ok(&["policy", "remove", "3"]);
    let page = running.ok(&["status"]);
    let shown = r"first\n\u{1b}[2Jstrata: second";
    assert!(page.contains(shown) && !page.contains('\u{1b}'), "{page}");
    running.feed(&bytes[..24]);
    running.until("it is saved", |_| saved.exists());
    running.feed(&bytes[24..middle]);
    let said = running.finish();
    assert!(said.contains(shown) && !said.contains('\u{1b}'), "{said}");

    let again = start();
    let list = again.ok(&["policy", "list"]);
    let rows: Vec<Vec<&str>> = list
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 2, "{list}");
    assert_eq!((rows[0][0], rows[0].last()), ("1", Some(&"arp")), "{list}");
    assert!(
        list.contains("run time  full             udp port 53"),
        "{list}"
    );
    assert_eq!(
        again.ok(&["policy", "add", "icmp", "--action", "full"]),
        "policy 4\n",
        "numbers are not used again"
    );
    let said = end(again);
    assert!(
        said.contains("1 policies that were added at run time are in force again"),
        "{said}"
    );
    // An unusable file is reported, kept, and stops nothing.
    fs::write(&saved, "{}\n").unwrap();
    let third = start();
    let list = third.json(&["policy", "list", "--json"]);
    assert_eq!(list.as_array().unwrap().len(), 1);
    let said = end(third);
    assert!(said.contains("policies.jsonl.invalid"), "{said}");
}

#[test]
fn new_files_begin_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, middle, packets) = halves();
    let mut running = Running::start(dir.path(), &["--mode", "log-all"]);
    running.until_listening();
    running.feed(&bytes[..middle]);
    running.until_seen(packets - 300);
    assert_eq!(running.ok(&["rotate"]), "new files begin\n");
    running.feed(&bytes[middle..]);
    let accounting = running.finish();
    assert!(
        accounting.contains("new files begin (by uid"),
        "{accounting}"
    );
    let files = fs::read_dir(dir.path().join("log/blocks")).unwrap();
    let files = files.filter(|file| {
        let name = file.as_ref().unwrap().file_name();
        name.to_string_lossy().ends_with(".strata")
    });
    assert_eq!(files.count(), 2);
}

#[test]
fn policies_of_a_file_are_kept_to() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policies.toml");
    fs::write(
        &file,
        "default = 'drop'\n[[policy]]\nmatch = 'tcp port 443'\naction = 'full'\npriority = 7\n",
    )
    .unwrap();
    let trace = data_dir().join("labelled/mix-test/trace.pcap");
    let record = |output: &str, more: &[&str]| {
        let mut command = strata();
        command
            .args(["record", "-r"])
            .arg(&trace)
            .arg("-o")
            .arg(dir.path().join(output));
        command
            .arg("--policy")
            .arg(&file)
            .args(more)
            .output()
            .unwrap()
    };
    let checked = record("log", &["--check"]);
    assert!(checked.status.success() && !dir.path().join("log").exists());
    assert!(record("log", &[]).status.success());
    let all = exported(dir.path(), "");
    // Including those in VLANs and tunnels, which the filter does not see.
    let seen = exported(dir.path(), "tcp port 443");
    assert!(
        seen > 10_000 && (seen..seen + 400).contains(&all),
        "{seen} of {all}"
    );

    let others = record("others", &["--default", "everything"]);
    assert!(
        text(&others).contains("--default: 'everything' is not an action"),
        "{}",
        text(&others)
    );
    fs::write(&file, "[[policy]]\nmatch = 'tcp'\naktion = 'full'\n").unwrap();
    let wrong = record("others", &[]);
    assert!(
        text(&wrong).contains("did you mean 'policy.action'?"),
        "{}",
        text(&wrong)
    );
    assert!(
        !dir.path().join("others").exists(),
        "a mistake leaves no log behind"
    );
}

/// One HTTP/1.1 exchange over TCP; returns the whole answer.
fn http(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn tcp_asks_for_the_token_and_has_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let address = format!("127.0.0.1:{port}");
    let (token, config) = (dir.path().join("token"), dir.path().join("strata.toml"));
    fs::write(&config, format!("[control]\nlisten = '{address}'\n")).unwrap();
    let config_text = config.display().to_string();
    let mut refused = strata();
    refused
        .args(["record", "-r", "/dev/null", "-o"])
        .arg(dir.path().join("none"));
    let refused = refused.args(["--config", &config_text]).output().unwrap();
    assert!(!refused.status.success(), "{}", text(&refused));

    fs::write(&token, "0123456789abcdef\n").unwrap();
    fs::write(
        &config,
        format!(
            "[control]\nlisten = '{address}'\ntoken_file = '{}'\n",
            token.display()
        ),
    )
    .unwrap();
    // A token that others can read is invalid, which is reported at startup, before it is used.
    for mode in [0o644, 0o640] {
        fs::set_permissions(&token, fs::Permissions::from_mode(mode)).unwrap();
        let mut refused = strata();
        refused.args(["record", "-r", "-", "-o"]);
        refused.arg(dir.path().join("log")).stdin(Stdio::null());
        let refused = refused.args(["--config", &config_text]).output().unwrap();
        assert!(!refused.status.success(), "{}", text(&refused));
        let wanted = format!("chmod 600 {}", token.display());
        assert!(text(&refused).contains(&wanted), "{}", text(&refused));
    }
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let (bytes, middle, packets) = halves();
    let mut running = Running::start(dir.path(), &["--config", &config_text]);
    running.until_listening();
    running.feed(&bytes[..middle]);
    running.until_seen(packets - 300);
    let get = |path: &str, token: &str| {
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
        );
        http(&address, &request)
    };
    assert!(get("/metrics", "0123456789abcdeX").starts_with("HTTP/1.1 401"));
    let metrics = get("/metrics", "0123456789abcdef");
    for line in [
        "content-type: text/plain; version=0.0.4",
        "# TYPE strata_packets_total counter",
        "strata_class_packets_total{class=\"benign\",granularity=\"header\"}",
        "strata_packets_total{result=\"dropped\",reason=\"disk_full\"} 0",
        "strata_mode{mode=\"default\",asked=\"default\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let description = get("/api/v1/openapi.json", "0123456789abcdef");
    assert!(
        description.contains("/api/v1/policies/{id}"),
        "{description}"
    );
    let body = "{\"mode\":\"log-all\",\"why\":\"curl\"}";
    let put = format!(
        "PUT /api/v1/mode HTTP/1.1\r\nhost: x\r\nauthorization: Bearer 0123456789abcdef\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    assert!(http(&address, &put).starts_with("HTTP/1.1 200"));
    assert_eq!(running.json(&["status", "--json"])["mode"], "log-all");
    running.feed(&bytes[middle..]);
    running.finish();
}

/// A client of a recording that is suspended gets an answer.
#[test]
fn a_recording_that_does_not_answer_is_said_not_to() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), &[]);
    running.until_listening();
    let signal = |name: &str| {
        let id = running.child.id().to_string();
        let mut kill = Command::new("kill");
        assert!(kill.args([name, &id]).status().unwrap().success());
    };
    signal("-STOP");
    let start = Instant::now();
    let output = running.ask(&["status"]);
    let took = start.elapsed();
    signal("-CONT");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let wanted = "no answer within 5 s";
    assert!(text(&output).contains(wanted), "{}", text(&output));
    assert!(took < Duration::from_secs(40), "{took:?}");
    running.ok(&["status"]);
    running.finish_early();
}

#[test]
fn the_reference_page_is_printed() {
    let output = strata().args(["config", "reference"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let page = fs::read_to_string(workspace_root().join("docs/configuration.md")).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), page);
}

/// A mistaken path costs no file: what is not a socket is not replaced.
#[test]
fn a_file_is_not_replaced_by_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    let precious = dir.path().join("precious.txt");
    fs::write(&precious, "precious").unwrap();
    for option in ["--socket", "--eve"] {
        let mut command = strata();
        command.args(["record", "-r", "-", "-o"]);
        command.arg(dir.path().join("log")).arg(option);
        let link = dir.path().join("link.sock");
        let _ = std::os::unix::fs::symlink(dir.path().join("nowhere"), &link);
        let output = command.arg(&link).stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success(), "{option}: {}", text(&output));
        assert!(
            text(&output).contains("is not a socket"),
            "{option}: {}",
            text(&output)
        );
    }
    let mut command = strata();
    command
        .args(["record", "-r", "-", "-o"])
        .arg(dir.path().join("log"));
    command.arg("--socket").arg(&precious).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let wanted = format!(
        "{}: this file exists and is not a socket",
        precious.display()
    );
    assert!(text(&output).contains(&wanted), "{}", text(&output));
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
}

/// A shadow model is promoted while packets come, and taken back; the log says which model has decided.
#[test]
fn a_shadow_model_is_promoted_and_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes, middle, packets) = halves();
    let json = fs::read(workspace_root().join("models/default.json")).unwrap();
    let mut model: Value = serde_json::from_slice(&json).unwrap();
    model["name"] = "half".into();
    model.as_object_mut().unwrap().remove("known");
    let trees = model["flow_trees"].as_array_mut().unwrap();
    trees.truncate(trees.len() / 2);
    let shadow = dir.path().join("half.json");
    fs::write(&shadow, model.to_string()).unwrap();

    let own = ["--detail", "none", "--shadow", shadow.to_str().unwrap()];
    let mut running = Running::start(dir.path(), &own);
    running.until_listening();
    running.feed(&bytes[..middle]);
    running.until_seen(packets - 300);
    let promoted = ["model", "promote", "--why", "two weeks"];
    running.ok(&promoted);
    running.feed(&bytes[middle..]);
    running.until("the change has taken place", |running| {
        let status = running.json(&["status", "--json"]);
        status["changes"]["count"].as_u64() >= Some(1)
    });
    // A second time changes nothing.
    running.ok(&promoted);
    let back = running.ask(&[
        "model",
        "promote",
        "--back",
        "--why",
        "x".repeat(2_000).as_str(),
    ]);
    assert!(text(&back).contains("why: 2000 bytes"), "{}", text(&back));
    let shown = running.ok(&["status"]);
    assert_eq!(
        shown.matches("the shadow model half is promoted (").count(),
        1,
        "{shown}"
    );
    running.finish();

    let info = strata()
        .args(["info", "--reasons", "--trees"])
        .arg(dir.path().join("log"))
        .output()
        .unwrap();
    let before = text(&info);
    assert!(before.contains(", shadow half\n"), "{before}");
    assert!(before.contains("    flow-trees:"), "{before}");
    // Four of the eight trees, explained by the right model.
    let line = before
        .lines()
        .find(|line| line.contains("shadow-flow-trees:"));
    let leaves = line.unwrap().split("shadow-flow-trees:").nth(1).unwrap();
    assert_eq!(leaves.split(',').count(), trees_of(&shadow), "{before}");
    for arguments in [["verify"], ["compact"]] {
        let done = strata()
            .args(arguments)
            .arg(dir.path().join("log"))
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", text(&done));
    }
    let info = strata()
        .args(["info", "--reasons", "--trees"])
        .arg(dir.path().join("log"))
        .output()
        .unwrap();
    let why = |text: &str| {
        text.split("kept as ")
            .skip(1)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(why(&text(&info)), why(&before), "compacted too");
    // A damaged copy of the shadow model is found.
    let kept = dir.path().join("log/models/r0001-shadow.json");
    fs::write(&kept, "{}").unwrap();
    let verified = strata()
        .arg("verify")
        .arg(dir.path().join("log"))
        .output()
        .unwrap();
    assert!(!verified.status.success() && text(&verified).contains("r0001-shadow.json"));
}

fn trees_of(model: &Path) -> usize {
    let model: Value = serde_json::from_slice(&fs::read(model).unwrap()).unwrap();
    model["flow_trees"].as_array().unwrap().len()
}

#[test]
fn there_has_to_be_a_shadow_to_promote() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = Running::start(dir.path(), &[]);
    running.until_listening();
    running.feed(&halves().0[..24]);
    for arguments in [["model", "promote"], ["model", "compare"]] {
        let refused = running.ask(&arguments);
        assert!(!refused.status.success());
        assert!(
            text(&refused).contains("--shadow FILE"),
            "{}",
            text(&refused)
        );
    }
    running.finish();
}
