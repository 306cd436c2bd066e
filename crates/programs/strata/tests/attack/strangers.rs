//! What strangers do to a TCP listener.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use strata_testkit::connect_from;

/// Prefix of a line that only a stranger can have written.
pub(crate) const FORGED: &str = "forged-line";
/// Text that does damage where it is shown raw: a title, a cleared screen, a line of its own, and
/// C1 and bidirectional control characters.
pub(crate) const HOSTILE_TEXT: &str =
    "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\r\nforged-line: all is well\n\u{202e}\u{0}\u{7f}";

/// How long a stranger waits for a connection or for room to write.
const STEP: Duration = Duration::from_millis(200);
/// How many addresses strangers come from: 127.0.1.1 and up.
const SOURCES: u32 = 60;
/// After this many refusals in a row, they give up for now.
const REFUSALS_MAX: u32 = 4;

/// Simultaneous connections from many sources.
pub(crate) struct Crowd {
    to: SocketAddr,
    size: usize,
    first: Vec<u8>,
    connections: Vec<TcpStream>,
    next: u32,
}

impl Crowd {
    /// Up to `size` connections, all of which send `first` and wait.
    pub(crate) fn gather(to: SocketAddr, size: usize, first: &[u8]) -> Self {
        let first = first.to_vec();
        let mut crowd = Self {
            to,
            size,
            first,
            connections: Vec::new(),
            next: 0,
        };
        crowd.fill();
        crowd
    }

    fn connect(&mut self) -> Option<TcpStream> {
        let source = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 0, 1, 1)) + self.next % SOURCES);
        self.next += 1;
        let mut stream = connect_from(source, self.to, STEP).ok()?;
        stream.write_all(&self.first).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    }

    fn fill(&mut self) {
        let mut refusals = 0;
        while self.connections.len() < self.size && refusals < REFUSALS_MAX {
            match self.connect() {
                Some(stream) => self.connections.push(stream),
                None => refusals += 1,
            }
        }
    }

    /// Sends a little on each connection, and replaces closed ones.
    pub(crate) fn drip(&mut self, bytes: &[u8]) {
        self.connections.retain_mut(|stream| {
            let is_open = match stream.read(&mut [0; 1024]) {
                Ok(len) => len > 0,
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            };
            let sent = stream.write(bytes);
            is_open && !sent.is_err_and(|error| error.kind() != ErrorKind::WouldBlock)
        });
        self.fill();
    }

    /// Writes `bytes` again and again on each connection, up to `most`, and reads nothing.
    pub(crate) fn pour(&mut self, bytes: &[u8], most: usize) {
        for stream in &mut self.connections {
            let mut sent = 0;
            while sent < most {
                match stream.write(bytes) {
                    Ok(len) => sent += len,
                    Err(_) => break,
                }
            }
        }
    }
}

/// Sends all of `bytes` on one connection if the other end accepts them, then reads for a moment.
pub(crate) fn send(to: SocketAddr, source: u8, bytes: &[u8]) {
    let source = Ipv4Addr::new(127, 0, 2, source.max(1));
    if let Ok(mut stream) = connect_from(source, to, STEP) {
        let _ = stream.set_read_timeout(Some(STEP / 4));
        let _ = stream.write_all(bytes);
        let _ = stream.read(&mut [0; 4096]);
    }
}
