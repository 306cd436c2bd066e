//! The program as it is installed: `strata` runs it, so it must exist.

use std::process::Command;

#[test]
fn it_calls_itself_what_users_type() {
    let shown = Command::new(env!("CARGO_BIN_EXE_strata-stream"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(shown.stdout).unwrap();
    assert!(help.contains("Usage: strata stream <COMMAND>"), "{help}");
}
