//! Starts a server of streams.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, Stdio};

/// Starts a server and waits until it listens, and where; its later messages must not be dropped, so that it can
/// write them.
pub(crate) fn serving(command: &mut Command) -> (Child, BufReader<ChildStderr>, SocketAddr) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    let address = loop {
        let start = said.len();
        assert!(errors.read_line(&mut said).unwrap() > 0, "{said}");
        let address = said[start..].split_once("streams on TCP ");
        if let Some((address, _)) = address.and_then(|(_, rest)| rest.split_once(',')) {
            break address.parse().unwrap();
        }
    };
    (child, errors, address)
}
