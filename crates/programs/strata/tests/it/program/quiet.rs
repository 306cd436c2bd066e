//! `--quiet`: a command that succeeds prints nothing, and one that does not says why.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use strata_testkit::data_dir;

use crate::common::program::{record, strata};

fn mix() -> PathBuf {
    data_dir().join("labelled/mix-test/trace.pcap")
}

/// What a command prints on standard output and standard error, with this exit status.
fn printed(command: &mut Command, status: i32) -> [String; 2] {
    let output = command.env_remove("STRATA_LOG").output().unwrap();
    let texts = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(output.status.code(), Some(status), "{command:?}: {texts:?}");
    texts
}

#[test]
fn what_succeeds_prints_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let trace = path("trace.pcap");
    fs::copy(mix(), &trace).unwrap();
    let elsewhere = format!("file://{}", path("elsewhere"));
    let nothing = [String::new(), String::new()];
    for (log, is_quiet) in [("loud", false), ("quiet", true)] {
        let log = path(log);
        let (packets, flows) = (format!("{log}.pcapng"), format!("{log}.csv"));
        let steps: [&[&str]; 9] = [
            &["record", "-o", &log, "-r", &trace, "--hash-seed", "1"],
            &["verify", &log],
            &["export", &log, "-w", &packets],
            &["export", &log, "-w", &flows, "--from", "2035-01-01"],
            &["prune", &log, "--keep", "36500d"],
            &["compact", &log],
            &["move", &log, &elsewhere],
            &["move", &log, "--back"],
            &["record", "--check", "-r", &trace, "-o", &log],
        ];
        for step in steps {
            let mut command = strata();
            command.args(step);
            if is_quiet {
                command.arg("--quiet");
            }
            assert_eq!(printed(&mut command, 0) == nothing, is_quiet, "{step:?}");
        }
        fs::remove_dir_all(path("elsewhere")).unwrap();
    }
    let [loud, quiet] = ["loud.pcapng", "quiet.pcapng"].map(|name| fs::metadata(path(name)));
    assert_eq!(loud.unwrap().len(), quiet.unwrap().len());

    let log = path("quiet");
    let [stdout, stderr] = printed(strata().args(["verify", &log, "--quiet", "--json"]), 0);
    let verified: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (&verified["packets"], stderr.as_str()),
        (&67_690.into(), "")
    );
    let mut export = strata();
    export.args(["export", &log, "--quiet", "-F", "csv", "-w", "-"]);
    let [stdout, stderr] = printed(&mut export, 0);
    assert!(stdout.lines().count() > 1_000 && stderr.is_empty());
}

#[test]
fn what_went_wrong_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let half = dir.path().join("half.pcap");
    let bytes = fs::read(mix()).unwrap();
    fs::write(&half, &bytes[..bytes.len() / 2]).unwrap();
    let [stdout, stderr] = printed(record(&half, &log).arg("--quiet"), 0);
    assert!(
        stdout.is_empty() && stderr.starts_with("strata: warning: "),
        "{stderr}"
    );
    let mut prune = strata();
    prune.args(["prune", "--quiet", "--keep-class", "benighn:1d"]);
    let [stdout, stderr] = printed(prune.arg(&log), 0);
    assert!(
        stdout.is_empty() && stderr.contains("warning: "),
        "{stderr}"
    );

    let blocks = fs::read_dir(log.join("blocks")).unwrap();
    let mut blocks = blocks.map(|entry| entry.unwrap().path());
    let file = blocks.find(|path| path.extension().is_some_and(|e| e == "strata"));
    let file = file.unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    let out = dir.path().join("out.pcap");
    for command in [
        strata().args(["verify", "--quiet"]).arg(&log),
        strata().args(["compact", "--quiet"]).arg(&log),
        strata()
            .args(["export", "--quiet"])
            .arg(&log)
            .arg("-w")
            .arg(&out),
    ] {
        let [stdout, stderr] = printed(command, 1);
        assert!(stdout.is_empty() && stderr.contains("damage"), "{stderr}");
    }
}

#[test]
fn a_level_that_is_named_is_that_of_messages() {
    let dir = tempfile::tempdir().unwrap();
    let [_, stderr] = printed(&mut record(mix(), dir.path().join("loud")), 0);
    assert!(stderr.contains("--hash-seed"), "{stderr}");
    let mut named = record(mix(), dir.path().join("named"));
    let [stdout, stderr] = printed(named.args(["--quiet", "--log-level", "info"]), 0);
    assert!(
        stdout.is_empty() && stderr.contains("--hash-seed"),
        "{stderr}"
    );
}

/// What a command writes to a terminal that is its standard error.
fn on_a_terminal(command: &mut Command) -> Vec<u8> {
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let name = ptsname(&screen, Vec::new()).unwrap();
    let terminal = OpenOptions::new()
        .read(true)
        .write(true)
        .open(name.to_str().unwrap());
    let mut child = command
        .stderr(terminal.unwrap())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The command has the other end, until its last copy is dropped.
    *command = Command::new("true");
    let reading = thread::spawn(move || {
        let (mut screen, mut seen, mut bytes) = (File::from(screen), Vec::new(), [0; 4096]);
        while let Ok(len @ 1..) = screen.read(&mut bytes) {
            seen.extend_from_slice(&bytes[..len]);
        }
        seen
    });
    assert!(child.wait().unwrap().success());
    reading.join().unwrap()
}

/// A warning has a colour on a terminal that has some, unless the user wants none.
#[test]
fn warnings_have_a_colour_on_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let half = dir.path().join("half.pcap");
    let bytes = fs::read(mix()).unwrap();
    fs::write(&half, &bytes[..bytes.len() / 2]).unwrap();
    let said = |log: &str, variables: &[(&str, &str)]| {
        let mut command = record(&half, dir.path().join(log));
        command.arg("--quiet").env_remove("NO_COLOR");
        let command = command.env("TERM", "xterm").envs(variables.iter().copied());
        String::from_utf8(on_a_terminal(command)).unwrap()
    };
    let coloured = said("coloured", &[]);
    let begin = "strata: \x1b[1;33mwarning:\x1b[0m ";
    assert!(coloured.starts_with(begin), "{coloured:?}");
    for (log, variable) in [("plain", ("NO_COLOR", "1")), ("dumb", ("TERM", "dumb"))] {
        let plain = said(log, &[variable]);
        assert!(plain.starts_with("strata: warning: "), "{plain:?}");
        assert!(!plain.contains('\x1b'), "{plain:?}");
    }
    // What the option says comes before the variables.
    let chosen = |log: &str, when: &str, variables: &[(&str, &str)]| {
        let mut command = record(&half, dir.path().join(log));
        command
            .args(["--quiet", "--color", when])
            .envs(variables.iter().copied());
        command
    };
    let mut never = chosen("never", "never", &[("TERM", "xterm")]);
    let never = String::from_utf8(on_a_terminal(never.env_remove("NO_COLOR"))).unwrap();
    assert!(never.starts_with("strata: warning: "), "{never:?}");
    let always = chosen("always", "always", &[("NO_COLOR", "1")])
        .output()
        .unwrap();
    let always = String::from_utf8(always.stderr).unwrap();
    assert!(always.starts_with(begin), "in a pipe: {always:?}");
    // Also before the command, of another program too.
    let before = strata()
        .args(["--color", "always", "stream", "list", "missing"])
        .output()
        .unwrap();
    let before = String::from_utf8(before.stderr).unwrap();
    assert!(before.starts_with("\x1b[1;31mstrata:"), "{before:?}");
    for program in [
        "strata-stream",
        "strata-telemetry",
        "strata-fleet",
        "strata-models",
    ] {
        let program = Path::new(env!("CARGO_BIN_EXE_strata")).with_file_name(program);
        let refused = Command::new(program)
            .args(["--color", "sometimes"])
            .output();
        let refused = String::from_utf8(refused.unwrap().stderr).unwrap();
        assert!(refused.contains("auto, always, never"), "{refused}");
    }
}

/// How much is done and what is left, where that is known; nothing of it in a pipe.
#[test]
fn reading_files_and_exporting_show_percent_on_a_terminal_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let copies: Vec<PathBuf> = (0..8).map(|copy| path(&format!("{copy}.pcap"))).collect();
    for copy in &copies {
        fs::copy(mix(), copy).unwrap();
    }
    let recording = |log: &str| {
        let mut command = record(&copies[0], path(log));
        for copy in &copies[1..] {
            command.arg("-r").arg(copy);
        }
        command
    };
    let export = |file: &str| {
        let mut command = strata();
        command
            .arg("export")
            .arg(path("shown"))
            .arg("-w")
            .arg(path(file));
        command
    };
    for mut command in [recording("shown"), export("shown.pcapng")] {
        let name = format!("{command:?}");
        let seen = String::from_utf8_lossy(&on_a_terminal(&mut command)).into_owned();
        assert!(
            seen.contains(" % ") && seen.contains(" left"),
            "{name}: {seen:?}"
        );
    }
    for mut command in [recording("piped"), export("piped.pcapng")] {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}");
        let seen = String::from_utf8(output.stderr).unwrap();
        assert!(!seen.contains(" % ") && !seen.contains('\x1b'), "{seen:?}");
    }
}

#[test]
fn a_terminal_gets_no_progress() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    printed(record(mix(), &log).arg("--quiet"), 0);
    let verify = |options: &[&str]| {
        let mut command = strata();
        command.arg("verify").args(options).arg(&log);
        on_a_terminal(&mut command)
    };
    assert!(!verify(&[]).is_empty(), "a bar");
    assert_eq!(verify(&["--quiet"]), b"");
}
