//! Programs that listen.

use std::io::Read;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

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

/// Waits until the socket with this port has nothing to read.
pub(crate) fn wait_until_read(port: u16) {
    let end = Instant::now() + Duration::from_secs(60);
    let address = format!("0100007F:{port:04X}");
    loop {
        let table = std::fs::read_to_string("/proc/net/udp").unwrap();
        let line = table.lines().find(|line| line.contains(&address)).unwrap();
        let queues = line.split_whitespace().nth(4).unwrap();
        if queues.ends_with(":00000000") {
            return;
        }
        assert!(Instant::now() < end, "{line}");
        std::thread::yield_now();
    }
}
