//! Simulated networks whose switches report in every form of INT, in bytes of an encoder written apart from
//! ours (`fabric.py`): what the collector answers of paths, latencies, losses and congestion is the truth, or
//! says that it is not whole.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

#[test]
fn what_is_said_of_simulated_networks_is_true_or_said_to_be_incomplete() {
    let dir = TempDir::new().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/telemetry/fabric.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(env!("CARGO_BIN_EXE_strata"));
    let output = python.arg(dir.path()).output().unwrap();
    let [said, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{said}\n{errors}");
    assert_eq!(
        said.lines().filter(|line| line.starts_with("ok ")).count(),
        17,
        "{said}"
    );
}
