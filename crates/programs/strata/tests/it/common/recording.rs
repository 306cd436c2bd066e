//! Helpers for tests of running recordings.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long to wait for a state, on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The answer of `strata status`; `None` before it answers.
fn status(socket: &Path) -> Option<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_strata"))
        .args(["status", "--json", "--socket"])
        .arg(socket)
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).ok()
}

/// Waits until the status is as wanted.
pub(crate) fn wait_for(socket: &Path, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let status = status(socket);
        if let Some(status) = status.as_ref().filter(|status| wanted(status)) {
            return status.clone();
        }
        assert!(start.elapsed() < PATIENCE, "{what}: {status:#?}");
        thread::sleep(Duration::from_millis(100));
    }
}
