//! What long-running roles log: lines, JSON, and journal entries, as systemd starts them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use strata_testkit::{Namespace, data_dir, may_use_kernel};

use crate::common::recording::wait_for;
use crate::common::signal::signal;

const NEAR: &str = "st-log-c";
const FAR: &str = "st-log-d";

fn strata() -> Command {
    Command::new(env!("CARGO_BIN_EXE_strata"))
}

fn trace() -> PathBuf {
    data_dir().join("labelled/cic2017-sqli/trace.pcap")
}

/// Records a capture file into a new log.
fn record(dir: &Path, name: &str) -> Command {
    let mut command = strata();
    command.arg("record").arg("-r").arg(trace());
    command.arg("-o").arg(dir.join(name));
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn lines_and_json_say_the_same_at_the_level_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let said = |name: &str, arguments: &[&str]| {
        let output = record(dir.path(), name).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        stderr(&output)
    };
    let lines = said("text", &[]);
    assert!(
        lines.starts_with("strata: no model given (-m): "),
        "{lines}"
    );
    let json = said("json", &["--log-format", "json"]);
    assert_eq!(json.lines().count(), lines.lines().count(), "{json}");
    for (json, line) in json.lines().zip(lines.lines()) {
        let entry: Value = serde_json::from_str(json).unwrap();
        assert_eq!(entry["level"], "INFO", "{entry}");
        assert!(
            entry["timestamp"].is_string() && entry["kind"].is_string(),
            "{entry}"
        );
        let (prefix, message) = line.split_at("strata: ".len());
        assert_eq!(prefix, "strata: ");
        // Another measurement of the disk gives other figures.
        let start: String = entry["message"].as_str().unwrap().chars().take(8).collect();
        assert!(message.starts_with(&start), "{entry} {line}");
    }
    assert_eq!(said("warn", &["--log-level", "warn"]), "");
    assert_eq!(said("off", &["--log-level", "off"]), "");
    let directives = record(dir.path(), "env")
        .env("STRATA_LOG", "error,strata=off")
        .output();
    assert_eq!(stderr(&directives.unwrap()), "");
    for wrong in ["loud", "strata=loud", ""] {
        let output = record(dir.path(), "wrong")
            .args(["--log-level", wrong])
            .output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(
            stderr(&output).contains("write error, warn, info"),
            "{output:?}"
        );
    }
    assert!(!dir.path().join("wrong").exists());
}

/// A failure is logged like everything else.
#[test]
fn the_last_error_is_an_entry_too() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "no log").unwrap();
    let output = record(dir.path(), "file")
        .args(["--log-format", "json"])
        .output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["level"], "ERROR", "{last}");
}

/// The reader of standard error may be gone: the recording matters more.
#[test]
fn a_recording_goes_on_without_a_reader_of_its_messages() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = record(dir.path(), "log").stderr(writer).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).starts_with("94 packets"),
        "{output:?}"
    );
}

/// As systemd sets it for a process that writes to this file.
fn journal_stream(file: &File) -> String {
    let metadata = file.metadata().unwrap();
    format!("{}:{}", metadata.dev(), metadata.ino())
}

#[test]
fn lines_have_priorities_where_the_journal_has_no_socket() {
    if !may_use_kernel("a /run of its own") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let log = File::create(dir.path().join("stderr")).unwrap();
    let stream = journal_stream(&log);
    let said = |name: &str, stream: &str, arguments: &[&str]| {
        let path = dir.path().join(name).with_extension("stderr");
        let file = match name {
            "journal" => log.try_clone().unwrap(),
            _ => File::create(&path).unwrap(),
        };
        let path = if name == "journal" {
            dir.path().join("stderr")
        } else {
            path
        };
        let mut command = in_run(dir.path(), &record(dir.path(), name), arguments);
        let command = command.env("JOURNAL_STREAM", stream).stdout(Stdio::null());
        let status = command.stderr(file).status();
        assert!(status.unwrap().success());
        fs::read_to_string(path).unwrap()
    };
    let lines = said("journal", &stream, &[]);
    assert!(
        lines.lines().all(|line| line.starts_with("<6>strata: ")),
        "{lines}"
    );
    // Not ours: standard error has been redirected since.
    let elsewhere = said("elsewhere", &stream, &[]);
    assert!(
        elsewhere.lines().all(|line| line.starts_with("strata: ")),
        "{elsewhere}"
    );
}

/// The command, where /run is the directory `run` within `dir`.
fn in_run(dir: &Path, command: &Command, arguments: &[&str]) -> Command {
    let run = dir.join("run");
    fs::create_dir_all(&run).unwrap();
    let mut wrapped = Command::new("unshare");
    wrapped
        .args([
            "--mount",
            "sh",
            "-c",
            "mount --bind \"$0\" /run && exec \"$@\"",
        ])
        .arg(&run)
        .arg(command.get_program())
        .args(command.get_args())
        .args(arguments);
    wrapped
}

/// A stand-in for systemd-journald: receives entries of its native protocol.
struct Journal {
    socket: UnixDatagram,
}

type Entry = HashMap<String, String>;

impl Journal {
    /// Within `dir`, where /run is for [`in_run`].
    fn new(dir: &Path) -> Self {
        let place = dir.join("run/systemd/journal");
        fs::create_dir_all(&place).unwrap();
        let socket = UnixDatagram::bind(place.join("socket")).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        Self { socket }
    }

    /// The next entry whose message contains this; earlier ones are in `seen`.
    fn until(&self, wanted: &str, seen: &mut Vec<Entry>) -> Entry {
        let start = Instant::now();
        let mut bytes = vec![0; 1 << 20];
        loop {
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "{wanted}: {seen:#?}"
            );
            let len = match self.socket.recv(&mut bytes) {
                Ok(0) => continue,
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => panic!("{error}"),
            };
            let entry = parse(&bytes[..len]);
            seen.push(entry.clone());
            if entry["MESSAGE"].contains(wanted) {
                return entry;
            }
        }
    }
}

/// An entry (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>).
fn parse(mut bytes: &[u8]) -> Entry {
    let mut entry = Entry::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    while !bytes.is_empty() {
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        let line = &bytes[..end];
        bytes = &bytes[end + 1..];
        if let Some(equals) = line.iter().position(|byte| *byte == b'=') {
            entry.insert(text(&line[..equals]), text(&line[equals + 1..]));
            continue;
        }
        let (len, rest) = bytes.split_first_chunk::<8>().unwrap();
        let len = usize::try_from(u64::from_le_bytes(*len)).unwrap();
        entry.insert(text(line), text(&rest[..len]));
        assert_eq!(rest[len], b'\n');
        bytes = &rest[len + 1..];
    }
    entry
}

struct Running {
    child: Child,
    socket: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn ask(&self, arguments: &[&str]) {
        let socket = [Path::new("--socket"), &self.socket];
        let output = strata().args(arguments).args(socket).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// A sandboxed recording of an interface, whose threads still reach the journal.
#[test]
fn the_journal_gets_priorities_and_fields() {
    if !may_use_kernel("a namespace of its own") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::new(dir.path());
    let namespace = Namespace::new("st-log");
    namespace.pair(NEAR, FAR);
    let socket = dir.path().join("sock");
    let file = File::create(dir.path().join("stderr")).unwrap();
    let mut record = strata();
    record.args(["record", "-i", FAR, "-B", "32MiB", "-o"]);
    record
        .arg(dir.path().join("log"))
        .arg("--socket")
        .arg(&socket);
    let record = in_run(dir.path(), &record, &[]);
    // What `ip` does needs the real /run.
    let child = Command::new("ip")
        .args(["netns", "exec", namespace.name()])
        .arg(record.get_program())
        .args(record.get_args())
        .env("JOURNAL_STREAM", journal_stream(&file))
        .stdout(Stdio::null())
        .stderr(file)
        .spawn();
    let mut running = Running {
        child: child.unwrap(),
        socket,
    };
    let mut seen = Vec::new();
    let capturing = journal.until("capturing on", &mut seen);
    assert_eq!(capturing["PRIORITY"], "6");
    assert_eq!(capturing["SYSLOG_IDENTIFIER"], "strata");
    assert_eq!(capturing["STRATA_KIND"], "capturing");
    assert!(capturing["STRATA_WAYS"].contains(FAR), "{capturing:?}");
    wait_for(&running.socket, "a recording", |status| {
        status["interfaces"][0]["received"].is_u64()
    });
    running.ask(&["mode", "set", "log-all", "--why", "line 1\nPRIORITY=0\n"]);
    let mode = journal.until("mode log-all (by uid 0", &mut seen);
    assert_eq!((&*mode["PRIORITY"], &*mode["STRATA_WHO"]), ("6", "uid 0"));
    assert_eq!(mode["STRATA_WHAT"], "mode log-all");
    assert_eq!(mode["STRATA_WHY"], "line 1\nPRIORITY=0\n");
    // An event that was not requested is a warning.
    let gone = Command::new("ip")
        .args(["-n", namespace.name(), "link", "del", FAR])
        .status();
    assert!(gone.unwrap().success());
    let alert = journal.until(FAR, &mut seen);
    assert_eq!(
        (&*alert["PRIORITY"], &*alert["STRATA_WHO"]),
        ("4", "strata"),
        "{alert:?}"
    );
    signal(&running.child, "INT");
    assert!(running.child.wait().unwrap().success());
    let lines = fs::read_to_string(dir.path().join("stderr")).unwrap();
    assert_eq!(lines, "", "everything is in the journal");
}
