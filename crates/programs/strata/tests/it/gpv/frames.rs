//! Frames of the *Flow paper's switch, in bytes of a switch written apart from our reader (`frames.py`).

use std::path::Path;
use std::process::Command;

#[test]
fn frames_of_the_papers_switch_are_read_as_its_packets() {
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/gpv/frames.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(env!("CARGO_BIN_EXE_strata"));
    let output = python.arg(dir.path()).output().unwrap();
    let [said, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{said}\n{errors}");
    let ok = said.lines().filter(|line| line.starts_with("ok "));
    assert_eq!(ok.count(), 6, "{said}");
}
