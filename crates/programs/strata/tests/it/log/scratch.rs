//! Commands that take packets from logs, and what they leave in the directory for temporary files.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use strata_testkit::data_dir;

use crate::common::agents::{Running, until};
use crate::common::program::{ok, record, strata};
use crate::common::signal::signal;

fn trace(name: &str) -> PathBuf {
    data_dir().join("labelled").join(name).join("trace.pcap")
}

/// An empty directory for temporary files.
fn temporary(dir: &Path) -> PathBuf {
    let made = dir.join("temporary");
    fs::create_dir(&made).unwrap();
    made
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// The test mix in a log, encrypted, and its key.
fn encrypted(dir: &Path) -> [PathBuf; 2] {
    let [log, key] = ["log", "log.key"].map(|name| dir.join(name));
    let public = ok(strata().args(["key", "new"]).arg(&key));
    ok(record(trace("mix-test"), &log).args(["--mode", "log-all"]));
    ok(strata()
        .arg("compact")
        .arg(&log)
        .args(["--encrypt-to", public.trim()]));
    [log, key]
}

#[test]
fn features_leave_no_copy_of_an_encrypted_log() {
    let dir = tempfile::tempdir().unwrap();
    let [log, key] = encrypted(dir.path());
    let temporary = temporary(dir.path());
    for how in ["INT", "TERM", "KILL"] {
        let mut features = strata();
        features.arg("features").arg("-r").arg(&log);
        features.arg("--key").arg(&key);
        let features = features.env("TMPDIR", &temporary);
        let mut running = Running(features.stdout(Stdio::piped()).spawn().unwrap());
        // It has begun to write rows, and waits until they are read.
        let mut rows = BufReader::new(running.0.stdout.take().unwrap());
        let mut row = String::new();
        for _ in 0..2 {
            rows.read_line(&mut row).unwrap();
        }
        assert!(row.starts_with("frame,ts_ns,flow"), "{row}");
        assert_eq!(entries(&temporary), [] as [PathBuf; 0], "{how}");
        signal(&running.0, how);
        assert!(running.0.wait().unwrap().signal().is_some(), "{how}");
        assert_eq!(entries(&temporary), [] as [PathBuf; 0], "{how}");
    }
}

/// Logs and captures are merged by time, as mergecap merges capture files.
#[test]
fn packets_of_logs_and_captures_are_merged_by_time() {
    let dir = tempfile::tempdir().unwrap();
    let [log, key] = encrypted(dir.path());
    let [other, merged] = ["other", "merged.pcapng"].map(|name| dir.path().join(name));
    ok(record(trace("cic2017-sqli"), &other).args(["--mode", "log-all"]));
    ok(Command::new("mergecap")
        .arg("-w")
        .arg(&merged)
        .args(["mix-test", "cic2017-sqli"].map(trace)));
    let features = |read: &[&Path]| {
        let mut command = strata();
        command.arg("features").arg("--key").arg(&key);
        for one in read {
            command.arg("-r").arg(one);
        }
        ok(&mut command)
    };
    let expected = features(&[merged.as_path()]);
    assert!(expected.lines().count() > 60_000);
    for read in [
        [log.as_path(), other.as_path()],
        [trace("mix-test").as_path(), other.as_path()],
        [log.as_path(), trace("cic2017-sqli").as_path()],
    ] {
        assert!(features(&read) == expected, "{read:?}");
    }
}

/// An interpreter that only says what the files in memory begin with, and waits until it is ended.
fn stand_in(dir: &Path) -> PathBuf {
    let script = dir.join("python");
    let waits = dir.join("waits");
    ok(Command::new("mkfifo").arg(&waits));
    let text = format!(
        "#!/bin/sh\n\
         test \"$1\" = -c && exit 0\n\
         for file; do case \"$file\" in /proc/self/fd/*) head -c 4 \"$file\"; esac; done\n\
         echo\n\
         exec cat '{}'\n",
        waits.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    script
}

#[test]
fn what_the_python_package_gets_is_only_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    ok(&mut record(trace("cic2017-sqli"), &log));
    let temporary = temporary(dir.path());
    let python = stand_in(dir.path());
    let labels = data_dir().join("labelled/cic2017-sqli/labels.csv");
    let capture = trace("cic2017-sqli");
    let [model, report] = ["model.json", "report.html"].map(|name| dir.path().join(name));
    let [log, capture, labels, model, report] =
        [&log, &capture, &labels, &model, &report].map(|path| path.to_str().unwrap());
    for words in [
        &["learn", log, "-o", model][..],
        &["train", capture, "--labels", labels, "-o", model],
        &[
            "eval", "-r", capture, "--labels", labels, "--report", report,
        ],
    ] {
        for how in ["INT", "TERM", "KILL"] {
            let mut command = strata();
            command.args(words).env("TMPDIR", &temporary);
            command.env("STRATA_PYTHON", &python);
            let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut running = Running(command.spawn().unwrap());
            let mut begins = BufReader::new(running.0.stdout.take().unwrap());
            let mut line = String::new();
            begins.read_line(&mut line).unwrap();
            assert!(line.starts_with("PAR1"), "{words:?}: {line}");
            assert_eq!(entries(&temporary), [] as [PathBuf; 0], "{words:?}");
            let children = children_of(&running.0);
            signal(&running.0, how);
            let status = running.0.wait().unwrap();
            let mut said = String::new();
            let mut errors = running.0.stderr.take().unwrap();
            if how == "KILL" {
                // Nothing ends the package then.
                for child in children {
                    ok(Command::new("kill").arg(child));
                }
            } else {
                errors.read_to_string(&mut said).unwrap();
                assert_eq!(status.code(), Some(130), "{words:?}: {said}");
                assert!(said.ends_with("strata: interrupted\n"), "{said}");
            }
            assert_eq!(entries(&temporary), [] as [PathBuf; 0], "{words:?}, {how}");
        }
    }
}

/// Numbers of the processes that a process has started.
fn children_of(parent: &Child) -> Vec<String> {
    let id = parent.id().to_string();
    let found = ok(Command::new("pgrep").args(["-P", &id]));
    found.lines().map(str::to_owned).collect()
}

/// The recording of `learn -i` is in a directory of the user alone, which is gone afterwards.
#[test]
fn a_recording_to_learn_from_is_removed() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for how in ["INT", "TERM"] {
        let dir = tempfile::tempdir().unwrap();
        let temporary = temporary(dir.path());
        let mut command = strata();
        command.args(["learn", "-i", "lo", "--for", "10m", "-o"]);
        command.arg(dir.path().join("model.json"));
        command.env("STRATA_PYTHON", stand_in(dir.path()));
        let command = command.env("TMPDIR", &temporary).stderr(Stdio::null());
        let mut running = Running(command.stdout(Stdio::piped()).spawn().unwrap());
        until("it records", || {
            let made = entries(&temporary);
            made.iter()
                .any(|made| made.join("log/manifest.json").exists())
        });
        let [directory] = &entries(&temporary)[..] else {
            panic!("more than one directory");
        };
        let mode = fs::metadata(directory).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        // The first signal ends the recording, from which it then learns.
        signal(&running.0, how);
        let mut begins = BufReader::new(running.0.stdout.take().unwrap());
        let mut line = String::new();
        begins.read_line(&mut line).unwrap();
        assert_eq!(line, "PAR1\n", "{how}");
        assert_eq!(entries(&temporary), [] as [PathBuf; 0], "{how}");
        for child in children_of(&running.0) {
            ok(Command::new("kill").arg(child));
        }
        running.0.wait().unwrap();
    }
}
