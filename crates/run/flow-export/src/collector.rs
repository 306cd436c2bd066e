//! A collector of flows elsewhere, which takes IPFIX over UDP (RFC 7011, section 10.3).

use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};

use anyhow::{Context, Result};
use strata_send::Ticks;
use strata_terminal::output::refuse;
use strata_wire::Printable;

/// That of IPFIX, as registered with IANA.
const PORT: u16 = 4739;

/// Sends each write as a datagram, at a rate at most.
#[derive(Debug)]
pub(super) struct FlowCollector {
    socket: UdpSocket,
    to: SocketAddr,
    ticks: Ticks,
}

impl FlowCollector {
    /// Sends to `HOST`, `HOST:PORT` or `udp://HOST:PORT`.
    pub(super) fn open(to: &str, per_second: u64) -> Result<Self> {
        let name = to.strip_prefix("udp://").unwrap_or(to);
        let wrong = |problem: &str| {
            let to = Printable(to);
            refuse(format!(
                "--to-collector '{to}': {problem}: write HOST or HOST:PORT"
            ))
        };
        let found = match name.to_socket_addrs() {
            Ok(found) => Ok(found),
            Err(_) => (name.trim_matches(['[', ']']), PORT).to_socket_addrs(),
        };
        let mut found = found.map_err(|error| wrong(&error.to_string()))?;
        let to = found.next().ok_or_else(|| wrong("no address"))?;
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => ([0; 4], 0).into(),
            SocketAddr::V6(_) => ([0; 16], 0).into(),
        };
        let socket = UdpSocket::bind(any).context("a socket for datagrams")?;
        socket
            .connect(to)
            .with_context(|| format!("--to-collector {to}"))?;
        Ok(Self {
            socket,
            to,
            ticks: Ticks::per_second(per_second),
        })
    }

    fn failed(&self, error: &io::Error) -> io::Error {
        let text = match error.kind() {
            io::ErrorKind::ConnectionRefused => format!(
                "{}: no collector listens on this UDP port, and flows that were sent to it are lost",
                self.to
            ),
            _ => format!("{}: {error}", self.to),
        };
        io::Error::new(error.kind(), text)
    }
}

impl Write for FlowCollector {
    fn write(&mut self, datagram: &[u8]) -> io::Result<usize> {
        self.ticks.wait();
        self.socket
            .send(datagram)
            .map_err(|error| self.failed(&error))
    }

    /// An answer that no one listens comes after the datagram.
    fn flush(&mut self) -> io::Result<()> {
        match self.socket.take_error()? {
            Some(error) => Err(self.failed(&error)),
            None => Ok(()),
        }
    }
}
