//! The first errors of users say what to do next.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use strata_testkit::data_dir;

use crate::common::program::{failed, record, strata};

fn log(dir: &Path) -> PathBuf {
    let log = dir.join("log");
    let trace = data_dir().join("labelled/cic2017-sqli/trace.pcap");
    assert!(record(trace, &log).output().unwrap().status.success());
    log
}

/// As a user who may neither capture nor read what others own, but everything else in this directory.
fn as_nobody(dir: &Path) -> Command {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return strata();
    }
    // The program of a build may be where only root is.
    let program = dir.join("strata");
    fs::copy(env!("CARGO_BIN_EXE_strata"), &program).unwrap();
    fs::set_permissions(dir, Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new(program);
    command.uid(65_534).gid(65_534);
    command
}

#[test]
fn before_files_are_moved_they_are_compacted() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    let moved = |log: &Path| {
        let to = format!("file://{}", dir.path().join("elsewhere").display());
        let output = strata().arg("move").arg(log).arg(to).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let hint = format!("first run `strata compact {}`", log.display());
    let said = moved(&log);
    assert!(said.contains(&hint), "{said}");
    let compacted = strata().arg("compact").arg(&log).output().unwrap();
    assert!(compacted.status.success());
    let said = moved(&log);
    assert!(!said.contains(&hint), "{said}");
}

#[test]
fn who_may_not_read_a_log_is_told_who_may() {
    let dir = tempfile::tempdir().unwrap();
    let log = log(dir.path());
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        let none = Permissions::from_mode(0o000);
        fs::set_permissions(&log, none).unwrap();
    }
    let said = failed(as_nobody(dir.path()).arg("read").arg(&log));
    let usual = Permissions::from_mode(0o750);
    fs::set_permissions(&log, usual).unwrap();
    assert!(
        said.contains("members of its group can read it") && said.contains("--group GROUP"),
        "{said}"
    );
}

#[test]
fn who_may_not_capture_is_told_how() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = as_nobody(dir.path());
    command.args(["record", "-i", "lo", "-o"]);
    let said = failed(command.arg(dir.path().join("log")));
    assert!(
        said.contains("run as root") && said.contains("sudo setcap cap_net_raw"),
        "{said}"
    );
}
