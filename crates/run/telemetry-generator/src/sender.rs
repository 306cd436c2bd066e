//! A socket that sends datagrams to a collector.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use crate::GenerateError;

/// Maximum number of attempts to send to a socket whose buffer is full, 1 ms apart.
const TRIES: u32 = 5_000;

/// A socket that sends datagrams to a collector.
#[derive(Debug)]
pub struct ReportSender {
    socket: UdpSocket,
    datagrams: u64,
    refused: u64,
}

impl ReportSender {
    /// A socket for reports to this collector.
    ///
    /// # Errors
    ///
    /// If the collector cannot be sent to.
    pub fn connect(to: SocketAddr) -> Result<Self, GenerateError> {
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let open = || -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind(any)?;
            socket.connect(to)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        Ok(Self {
            socket: open().map_err(|source| GenerateError::Connect { to, source })?,
            datagrams: 0,
            refused: 0,
        })
    }

    /// Datagrams that were sent.
    pub(crate) fn datagrams(&self) -> u64 {
        self.datagrams
    }

    /// The number of times that no collector was listening.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Sends a datagram. A missing listener is counted, and is no error: it may start later.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), GenerateError> {
        self.datagrams += 1;
        for _ in 0..TRIES {
            match self.socket.send(bytes) {
                Ok(_) => return Ok(()),
                // Of an earlier datagram; this one was not sent.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => self.refused += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let fd = self.socket.as_fd();
                    let ready = rustix::event::PollFlags::OUT;
                    let mut poll = [rustix::event::PollFd::from_borrowed_fd(fd, ready)];
                    let limit = rustix::time::Timespec {
                        tv_sec: 0,
                        tv_nsec: 1_000_000,
                    };
                    let _ = rustix::event::poll(&mut poll, Some(&limit));
                }
                Err(error) => return Err(GenerateError::Send(error)),
            }
        }
        Err(GenerateError::Full)
    }

    /// Takes what the collector has answered.
    pub(crate) fn receive(&self, mut take: impl FnMut(&[u8])) {
        let mut bytes = [0; 64];
        // An error is that of a datagram sent earlier, or that there is nothing.
        while let Ok(len) = self.socket.recv(&mut bytes) {
            take(&bytes[..len]);
        }
    }
}
