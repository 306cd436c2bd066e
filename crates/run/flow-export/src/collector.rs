//! A collector of flows elsewhere, which takes IPFIX (RFC 7011, section 10.3) or NetFlow 9 (RFC 3954) over UDP.

use std::io::{self, Write};
use std::net::{SocketAddr, UdpSocket};

use strata_query::FlowProtocol;
use strata_send::Ticks;

/// The UDP port of a collector of this protocol, unless another is given: that of IPFIX is registered with IANA; most
/// collectors of NetFlow 9, which has none, wait on port 2055.
#[must_use]
pub fn usual_port(protocol: FlowProtocol) -> u16 {
    match protocol {
        FlowProtocol::Ipfix => 4739,
        FlowProtocol::Netflow9 => 2055,
    }
}

/// Sends each write as a datagram, at most `per_second` of them.
#[derive(Debug)]
pub struct FlowCollector {
    socket: UdpSocket,
    to: SocketAddr,
    per_second: u64,
    ticks: Ticks,
}

impl FlowCollector {
    /// Sends to this address.
    ///
    /// # Errors
    ///
    /// If a socket cannot be created, or there is no route.
    pub fn connect(to: SocketAddr, per_second: u64) -> io::Result<Self> {
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => ([0; 4], 0).into(),
            SocketAddr::V6(_) => ([0; 16], 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(to)?;
        Ok(Self {
            socket,
            to,
            per_second,
            ticks: Ticks::per_second(per_second),
        })
    }

    /// A second handle of the same socket, at the same rate.
    ///
    /// # Errors
    ///
    /// If no file descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            socket: self.socket.try_clone()?,
            to: self.to,
            per_second: self.per_second,
            ticks: Ticks::per_second(self.per_second),
        })
    }

    /// The collector's address.
    #[must_use]
    pub fn to(&self) -> SocketAddr {
        self.to
    }

    /// A test in tcpdump's language that what the socket sends fails.
    pub(crate) fn own_traffic(&self) -> io::Result<String> {
        let (from, to) = (self.socket.local_addr()?, self.to);
        Ok(format!(
            "not (udp and src host {} and src port {} and dst host {} and dst port {})",
            from.ip(),
            from.port(),
            to.ip(),
            to.port()
        ))
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
