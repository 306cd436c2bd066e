//! Signals to a program under test.

use std::process::{Child, Command};

/// Sends a signal by name, as in `INT`.
pub(crate) fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-s", name, &id]).status();
    assert!(sent.unwrap().success(), "signal {name}");
}
