//! Starts a relay.

use std::io::Read;
use std::process::{Child, ChildStderr, Command, Stdio};

/// Starts a relay and waits until it listens; returns what it says from then on, too, which must be
/// read so that it does not block.
pub(crate) fn listening(command: &mut Command) -> (Child, ChildStderr) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = child.stderr.take().unwrap();
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b"ends it") {
        let len = errors.read(&mut byte).unwrap();
        assert!(len > 0, "no relay: {}", String::from_utf8_lossy(&seen));
        seen.extend(byte);
    }
    (child, errors)
}
