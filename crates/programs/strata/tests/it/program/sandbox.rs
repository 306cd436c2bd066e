//! What commands that run until they are stopped can still do once they have opened what they need: a
//! recording can record, and no more; no thread of any of them has a capability.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::{Namespace, may_use_kernel};

use crate::common::commands::{FLOW_FOREST, LONG_RUNNING};
use crate::common::disk::NEVER_FULL;
use crate::common::recording;
use crate::common::signal::signal;

const STRATA: &str = env!("CARGO_BIN_EXE_strata");
/// `nobody` and its capability to open packet sockets (linux/capability.h).
const NOBODY: u32 = 65_534;
const NET_RAW: u64 = 1 << 13;

struct Recording(Option<Child>);

impl Recording {
    fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    fn signal(&self, name: &str) {
        signal(self.0.as_ref().unwrap(), name);
    }

    fn ended(mut self) -> Output {
        self.signal("INT");
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(namespace: &Namespace, dir: &Path, more: &[&str]) -> Recording {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name(), STRATA]);
    command.args(["record", "-i", "in0", "-B", "4096", "--config"]);
    command
        .arg(dir.join("strata.toml"))
        .arg("-o")
        .arg(dir.join("log"));
    command
        .arg("--socket")
        .arg(dir.join("run/control"))
        .args(more);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Recording(Some(child.spawn().unwrap()))
}

fn wait_for(dir: &Path, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    recording::wait_for(&dir.join("run/control"), what, wanted)
}

/// A field of the kernel's status of a process or thread.
fn field(status: &Path, name: &str) -> String {
    let text = fs::read_to_string(status).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().trim_start_matches(':').trim().to_owned()
}

fn capabilities(status: &Path) -> [u64; 2] {
    ["CapEff", "CapPrm"].map(|name| u64::from_str_radix(&field(status, name), 16).unwrap())
}

/// Sends this many small packets.
fn send(namespace: &Namespace, packets: u32) {
    let program = format!(
        "import socket\n\
         s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n\
         s.bind(('out0', 0))\n\
         ip = bytes.fromhex('4500002e0000400040110000c0000201c0000202')\n\
         udp = bytes.fromhex('0fa00fa1001a0000')\n\
         f = bytes.fromhex('0200000000020200000000010800') + ip + udp + bytes(18)\n\
         [s.send(f) for _ in range({packets})]\n"
    );
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name(), "python3", "-c", &program]);
    assert!(command.status().unwrap().success());
}

fn received(status: &Value) -> u64 {
    // None before a worker has reported.
    status["interfaces"][0]["received"].as_u64().unwrap_or(0)
}

fn events(dir: &Path, wanted: &str) -> bool {
    let output = Command::new(STRATA)
        .args(["status", "--socket"])
        .arg(dir.join("run/control"))
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).contains(wanted)
}

/// Drops all privileges, and still records, reloads its configuration, and captures an interface
/// that comes back.
#[test]
fn without_any_privilege_it_goes_on_recording() {
    if !may_use_kernel("giving up privileges") {
        return;
    }
    for user in [None, Some("nobody")] {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        for dir in [&dir, &elsewhere] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let dir = dir.path();
        let config = dir.join("strata.toml");
        // Every kind of thread: including one that sends alerts, and one that reads them.
        let alerts = "[alerts]\nwebhook = 'http://127.0.0.1:9/'\n";
        fs::write(&config, format!("mode = ['log-all']\n{alerts}{NEVER_FULL}")).unwrap();
        let eve = dir.join("eve.json");
        fs::write(&eve, "").unwrap();
        let namespace = Namespace::new("rules-confine");
        namespace.pair("in0", "out0");
        let mut more: Vec<&str> = user.iter().flat_map(|user| ["-Z", *user]).collect();
        more.extend(["--eve", eve.to_str().unwrap()]);
        let recording = start(&namespace, dir, &more);
        wait_for(dir, "a recording", |status| {
            status["interfaces"][0]["received"].is_u64()
        });

        let process = Path::new("/proc").join(recording.id().to_string());
        let mut names = Vec::new();
        for task in fs::read_dir(process.join("task")).unwrap() {
            let status = task.unwrap().path().join("status");
            assert_eq!(capabilities(&status), [0, 0], "{}", field(&status, "Name"));
            assert_eq!(field(&status, "NoNewPrivs"), "1");
            assert_eq!(field(&status, "Seccomp"), "2", "{}", field(&status, "Name"));
            // The kernel's own threads of io_uring come and go.
            if !field(&status, "Name").starts_with("iou-wrk") {
                names.push(field(&status, "Name"));
            }
        }
        names.sort();
        // Names are truncated to 15 bytes.
        let threads = [
            "strata",
            "strata-alerts",
            "strata-api",
            "strata-eve",
            "strata-memory",
            "strata-record",
            "strata-sensors",
            "strata-worker-0",
            "strata-writer-0",
        ];
        assert_eq!(names, threads);
        let id = recording.id();
        let children = fs::read_to_string(process.join(format!("task/{id}/children"))).unwrap();
        let helper = Path::new("/proc").join(children.trim()).join("status");
        assert_eq!(capabilities(&helper), [NET_RAW, NET_RAW]);
        assert_eq!(field(&helper, "Seccomp"), "2");
        for status in [&process.join("status"), &helper] {
            let wanted = if user.is_some() { NOBODY } else { 0 };
            let uids = field(status, "Uid");
            let mut uids = uids.split_whitespace().map(|id| id.parse::<u32>().unwrap());
            assert!(uids.all(|uid| uid == wanted));
        }
        let owner = fs::metadata(dir.join("log/manifest.json")).unwrap().uid();
        assert_eq!(owner, if user.is_some() { NOBODY } else { 0 });

        send(&namespace, 100);
        wait_for(dir, "packets", |status| received(status) == 100);
        namespace.ip("link del in0");
        wait_for(dir, "an interface that is gone", |_| {
            events(dir, "was removed")
        });
        namespace.pair("in0", "out0");
        wait_for(dir, "an interface that is back", |_| events(dir, "is back"));
        send(&namespace, 100);
        wait_for(dir, "packets", |status| received(status) == 200);

        fs::write(&config, format!("mode = ['log-partial']\n{NEVER_FULL}")).unwrap();
        recording.signal("HUP");
        wait_for(dir, "the new mode", |status| {
            status["mode"] == "log-partial"
        });
        // A file elsewhere that anyone may read.
        let other = elsewhere.path().join("other.toml");
        fs::write(&other, "mode = ['log-minimum']\n").unwrap();
        fs::remove_file(&config).unwrap();
        std::os::unix::fs::symlink(&other, &config).unwrap();
        recording.signal("HUP");
        // The file that starts at the signal is there when the configuration has been checked.
        send(&namespace, 100);
        wait_for(dir, "packets", |status| received(status) == 300);
        let status = wait_for(dir, "nothing in flight", |status| {
            let mut all = status["packets"].as_array().unwrap().iter();
            all.find(|r| r["result"] == "in_flight").unwrap()["packets"] == 0
        });
        assert_eq!(status["mode"], "log-partial");

        let output = recording.ended();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let heard = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}{heard}");
        assert!(said.contains("logged 300 + dropped 0"), "{said}");
        assert!(heard.contains("reaches only its log"), "{heard}");
        assert!(!heard.contains("blocked"), "{heard}");
    }
}

/// `--socket` names one file: its directory, and what else is in it, belong to others.
#[test]
fn another_user_gets_the_socket_and_not_its_directory() {
    if !may_use_kernel("giving up privileges") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.path().join("strata.toml"), "").unwrap();
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(run.join("other.pid"), "1").unwrap();
    let namespace = Namespace::new("rules-owner");
    namespace.pair("in0", "out0");
    let recording = start(&namespace, dir.path(), &["-Z", "nobody"]);
    wait_for(dir.path(), "a recording", |_| true);
    let seen = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.uid(), found.mode() & 0o777)
    };
    assert_eq!(seen(&run), (0, 0o755));
    assert_eq!(seen(&run.join("other.pid")).0, 0);
    assert_eq!(seen(&run.join("control")), (NOBODY, 0o600));
    assert_eq!(seen(&dir.path().join("log")), (NOBODY, 0o750));
    let output = recording.ended();
    assert!(output.status.success(), "{output:?}");

    // A directory that Strata did not create does not change owner, which is reported.
    let theirs = dir.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name(), STRATA, "record"]);
    command.args(["-i", "in0", "-Z", "nobody", "-o"]);
    let output = command.arg(&theirs).output().unwrap();
    let heard = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{heard}");
    assert!(
        heard.contains("cannot write to this directory: make this user the owner"),
        "{heard}"
    );
    assert_eq!(seen(&theirs).0, 0);
}

/// Whatever the umask: the contents of a log are for its owner and group only, from the recording
/// to the archive.
#[test]
fn nothing_of_a_log_is_for_everyone() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("a/log");
    let capture = dir.path().join("in.pcap");
    let run = |arguments: &str| {
        let program = format!("umask 0; exec '{STRATA}' {arguments}");
        let output = Command::new("sh").args(["-c", &program]).output().unwrap();
        assert!(output.status.success(), "{arguments}: {output:?}");
    };
    run(&format!(
        "generate --profile cic-w1 -c 20k -o {}",
        capture.display()
    ));
    for _ in 0..2 {
        run(&format!(
            "record -r {} -C 1MiB -o {}",
            capture.display(),
            log.display()
        ));
    }
    run(&format!("compact {}", log.display()));
    run(&format!(
        "record -r {} -o {}",
        capture.display(),
        log.display()
    ));
    run(&format!("info {}", log.display()));
    let mut left = vec![dir.path().join("a")];
    let mut files = 0;
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let found = fs::symlink_metadata(&path).unwrap();
            let wanted = if found.is_dir() { 0o750 } else { 0o640 };
            assert_eq!(found.mode() & 0o7777, wanted, "{}", path.display());
            files += usize::from(found.is_file());
            left.extend(found.is_dir().then_some(path));
        }
    }
    assert!(files > 8, "{files} files");
    // Files exported with -w belong to the user, with the user's umask.
}

/// A command that runs until it is stopped.
struct Reach {
    name: &'static str,
    child: Child,
    said: std::path::PathBuf,
    /// What it may still do, and keep for programs that it starts.
    effective: u64,
    permitted: u64,
}

impl Drop for Reach {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Reach {
    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap()
    }

    /// What is not as it should be with one of its threads.
    fn problem(&self) -> Option<String> {
        let tasks = Path::new("/proc").join(self.child.id().to_string());
        let Ok(tasks) = fs::read_dir(tasks.join("task")) else {
            return Some(String::from("it has ended"));
        };
        let mut threads = 0;
        for task in tasks {
            let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else {
                continue;
            };
            threads += 1;
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.map_or("", |value| value.trim_start_matches(':').trim())
            };
            let capabilities = |name| u64::from_str_radix(field(name), 16).unwrap_or(u64::MAX);
            let is_so = capabilities("CapEff") == self.effective
                && capabilities("CapPrm") & !self.permitted == 0
                && field("NoNewPrivs") == "1"
                && field("Seccomp") == "2";
            if !is_so {
                return Some(format!("thread {}: {status}", field("Name")));
            }
        }
        (threads == 0).then(|| String::from("it has no threads"))
    }

    /// Waits until all of its threads are confined, and it has printed this.
    fn is_confined(&mut self, says: &str) {
        let started = Instant::now();
        loop {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{}: {ended:?}: {}", self.name, self.said());
            let problem = self.problem();
            if problem.is_none() && self.said().contains(says) {
                return;
            }
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "{}: {problem:?}: {}",
                self.name,
                self.said()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Starts commands in a directory and a namespace.
struct Starter<'a> {
    namespace: &'a Namespace,
    dir: &'a Path,
    all: Vec<Reach>,
}

impl Starter<'_> {
    /// A command and its arguments, with `{}` for the directory.
    fn start(&mut self, name: &'static str, arguments: &str, says: &str) {
        let dir = self.dir.display().to_string();
        let said = self.dir.join(format!("said-{}", self.all.len()));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.namespace.name(), STRATA]);
        command.args(name.split(' '));
        command.args(
            arguments
                .split_whitespace()
                .map(|word| word.replace("{}", &dir)),
        );
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.stderr(fs::File::create(&said).unwrap());
        let permitted = match name {
            // For the recordings that it starts.
            "agent" => 0xc0_0080_7004,
            _ => 0,
        };
        let mut confined = Reach {
            name,
            child: child.spawn().unwrap(),
            said,
            effective: 0,
            permitted,
        };
        confined.is_confined(says);
        self.all.push(confined);
    }

    /// A command of the list, in each of its forms.
    fn command(&mut self, name: &'static str) {
        match name {
            "agent" => self.start(
                name,
                "--policy {}/policies.toml --identity 5 -i in0 --state {}/agent \
                 --destination here=udp://127.0.0.1:4749",
                "capturing on",
            ),
            "ask" => {
                self.start(name, "-i in0 packet-counts-per-source -w {}/answer.csv", "");
                self.start(name, "--socket {}/record.sock packet-counts-per-source", "");
                let from = "--vectors udp://127.0.0.1:4763 packet-counts-per-source -w {}/v.csv";
                self.start(name, from, "listening");
            }
            "collector" => {
                self.start(name, "--listen 127.0.0.1:4741 -w {}/c.pcapng", "collecting");
                self.start(
                    name,
                    "--listen 127.0.0.1:4742 -o {}/collected",
                    "collecting",
                );
            }
            "compact" => self.start(name, "{}/log --every 1s --keep 9999d", ""),
            "controller run" => self.start(
                name,
                "--state {}/controller --listen 127.0.0.1:4743",
                "agents on",
            ),
            "generate" => self.start(name, "-i out0 --mbps 1", ""),
            "gpv agent" => {
                let listens = "--listen 127.0.0.1:4744 -w {}/r.parquet --flush-idle 1s";
                self.start(name, listens, "listening");
                self.start(name, "-F paper -r - -w {}/s.parquet", "");
            }
            "gpv bursts" => {
                let from = "udp://127.0.0.1:4760 --when depth:7 -w {}/bursts.csv";
                self.start(name, from, "listening");
            }
            "gpv profile" => {
                let from = "udp://127.0.0.1:4761 -w {}/profile.json";
                self.start(name, from, "listening");
            }
            "gpv classify" => {
                let from = "udp://127.0.0.1:4762 -m {}/flows.forest -w {}/c.parquet";
                self.start(name, from, "listening");
            }
            "gpv run" => {
                let files = "-i in0 -w {}/v.gpv --ring {}/ring --to-stream {}/streams/events";
                self.start(name, files, "grouping");
            }
            // A child of the recording.
            "helper" => self.helper(),
            "record" => self.start(
                name,
                "-i in0 -o {}/recorded --socket {}/record.sock",
                "capturing on",
            ),
            "relay" => self.start(name, "-o {}/relayed", "ends it"),
            "replay" => {
                self.start(name, "-i out0 -r {}/in.pcap --loop 0 --pps 100", "");
                let live = "-i out0 -r {}/in.pcap --loop 0 --pps 100 --method live-frames";
                self.start(name, live, "");
            }
            "serve" => self.start(
                name,
                "{}/log --listen 127.0.0.1:9470 --state {}/page",
                "the page is",
            ),
            "status" => self.start(name, "--watch --socket {}/record.sock", ""),
            "stream append" => {
                self.start(name, "{}/streams logs", "");
                self.start(name, "127.0.0.1:4793/there", "");
            }
            "stream serve" => self.start(
                name,
                "{}/served --otlp 127.0.0.1 --otlp-stream there",
                "streams on",
            ),
            "stream tail" => {
                self.start(name, "{}/streams logs -f --cursor @me", "");
                self.start(name, "127.0.0.1:4793/there -f", "");
            }
            "switch" => self.start(name, "--relay 127.0.0.1 -i in0 -B 8MiB", "capturing on"),
            "telemetry collect" => self.start(
                name,
                "-o {}/there --store-memory 16MiB --listen 127.0.0.1:4795",
                "",
            ),
            "telemetry generate" => self.start(name, "--send-to 127.0.0.1:40040 --rate 10", ""),
            "telemetry list" => self.start(name, "{}/store congestion --follow", ""),
            "telemetry run" => {
                let int = "-o {}/store --store-memory 16MiB --int 127.0.0.1";
                self.start(name, int, "reports");
            }
            _ => panic!("{name} runs until it is stopped: say how it is started here"),
        }
    }

    fn helper(&self) {
        let recording = self.all.iter().find(|one| one.name == "record").unwrap();
        let id = recording.child.id();
        let children = format!("/proc/{id}/task/{id}/children");
        let children = fs::read_to_string(children).unwrap();
        let helper = Path::new("/proc").join(children.trim()).join("status");
        assert_eq!(capabilities(&helper), [NET_RAW, NET_RAW]);
        assert_eq!(field(&helper, "Seccomp"), "2");
    }
}

/// What the commands start with.
fn prepare(dir: &Path) {
    let run = |arguments: &str| {
        let arguments = arguments.replace("{}", &dir.display().to_string());
        let mut command = Command::new(STRATA);
        let output = command.args(arguments.split_whitespace()).output().unwrap();
        assert!(output.status.success(), "{arguments}: {output:?}");
    };
    run("generate --profile cic-w1 -c 2k -o {}/in.pcap");
    run("record -r {}/in.pcap -o {}/log");
    run("stream create {}/streams events");
    run("stream create {}/streams logs");
    run("stream create {}/served there");
    let policies = "[[policy]]\nname = 'all'\nmatch = 'udp'\naction = 'header -> here'\n";
    fs::write(dir.join("policies.toml"), policies).unwrap();
    fs::write(dir.join("flows.forest"), FLOW_FOREST).unwrap();
}

/// Started as root, no thread of a command that runs until it is stopped has a capability or may gain
/// one, and each has a filter of system calls; none of them tries a call that it may not.
#[test]
fn every_long_running_command_is_confined() {
    if !may_use_kernel("giving up privileges") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    prepare(dir.path());
    let namespace = Namespace::new("st-confined");
    namespace.ip("link set lo up");
    namespace.pair("in0", "out0");
    let mut starter = Starter {
        namespace: &namespace,
        dir: dir.path(),
        all: Vec::new(),
    };
    // Some need others.
    let first = ["record", "relay", "stream serve", "telemetry run"];
    let all = LONG_RUNNING.iter().map(|(name, _)| *name);
    let rest = all.filter(|name| !first.contains(name));
    for name in first.into_iter().chain(rest) {
        starter.command(name);
    }
    for one in &mut starter.all {
        // Threads that began later, too.
        one.is_confined("");
    }
    // The last first, each once it has ended: what needs another command ends before that does.
    for mut one in starter.all.into_iter().rev() {
        signal(&one.child, "INT");
        let status = one.child.wait().unwrap();
        let said = one.said();
        // It does not know when to end.
        let is_watch = one.name == "status";
        assert!(
            status.success() || is_watch,
            "{}: {status}: {said}",
            one.name
        );
        assert!(!said.contains("blocked"), "{}: {said}", one.name);
    }
    let rows = fs::read(dir.path().join("r.parquet")).unwrap();
    assert!(rows.ends_with(b"PAR1"));
    // Logs, stores and state are private; what is exported is as the umask says.
    let kept = [
        "recorded",
        "relayed",
        "collected",
        "store",
        "there",
        "controller",
        "agent",
        "page",
    ];
    let mut left: Vec<_> = kept.iter().map(|name| dir.path().join(name)).collect();
    while let Some(path) = left.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        assert_eq!(found.mode() & 0o007, 0, "{}", path.display());
        if found.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
}
