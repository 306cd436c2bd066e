//! RoCEv2 over kernel UDP sockets: many packets per call.
//!
//! When sending, packets of equal length go as one with `UDP_SEGMENT`, and several such runs with
//! one `sendmmsg`; an unconnected socket that forbids fragmentation numbers them from 0. When
//! receiving, `recvmmsg` with `UDP_GRO` gets runs as they are.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery};
use strata_rdma::PacketBatch;
use strata_sys::socket::{self, Destination, Message, Receiver};
use strata_wire::exact;
use strata_wire::roce::Packet;
use strata_wire::roce::icrc;

use crate::Port;
use crate::icrc::{IcrcCheck, outer};
use crate::run::{self, Run};

pub use crate::run::RUNS;

/// Buffer size that the socket should have.
const SOCKET_BUFFER: usize = 16 << 20;

/// A UDP socket for RoCEv2.
#[derive(Debug)]
pub struct UdpPort {
    socket: UdpSocket,
    /// Whether the kernel cuts runs for us.
    segmentation: bool,
    receiver: Receiver<RUNS>,
}

impl UdpPort {
    /// Binds a socket.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let port = Self {
            socket,
            segmentation: true,
            receiver: Receiver::default(),
        };
        // Root may exceed the system's limit; others get what they can.
        if sockopt::set_socket_recv_buffer_size_force(&port.socket, SOCKET_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&port.socket, SOCKET_BUFFER)?;
        }
        if sockopt::set_socket_send_buffer_size_force(&port.socket, SOCKET_BUFFER).is_err() {
            sockopt::set_socket_send_buffer_size(&port.socket, SOCKET_BUFFER)?;
        }
        let whole = sockopt::set_ip_mtu_discover(&port.socket, Ipv4PathMtuDiscovery::DO);
        // An IPv6 socket may reject IPv4 packets; those it takes are as on IPv4 sockets.
        if address.is_ipv4() {
            whole?;
        }
        // Without this, runs are cut before they arrive, which is slower.
        let _ = socket::set_number(port.socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
        Ok(port)
    }

    /// Where it is bound.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits this long for packets; returns whether there are any.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        socket::wait(self.socket.as_fd(), false, limit)
    }

    /// Seals the packets and sends them to `destination`; `icrcs` are for the path there from this
    /// socket.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn send_to(
        &mut self,
        destination: SocketAddr,
        icrcs: &mut icrc::Stream,
        batch: &mut PacketBatch,
    ) -> io::Result<()> {
        let Self {
            socket,
            segmentation,
            ..
        } = self;
        // An IPv6 socket reaches IPv4 addresses as mapped ones (RFC 4291 §2.5.5.2).
        let destination = match destination {
            SocketAddr::V4(v4) if socket.local_addr()?.is_ipv6() => {
                SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port())
            }
            other => other,
        };
        run::send(batch, icrcs, segmentation, |runs| {
            send_runs(socket, destination, runs)
        })
    }

    /// Takes what has arrived, without waiting: at most [`RUNS`]; IPv4 as such on a socket for both
    /// families. `take` gets where each packet came from, its place within its run, and its bytes
    /// from the BTH on. Returns the number of runs.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn receive_with(
        &mut self,
        take: &mut dyn FnMut(SocketAddr, usize, &[u8]),
    ) -> io::Result<usize> {
        self.receiver.receive(self.socket.as_fd(), |run| {
            // IPv4 addresses as such, also where a socket for both families has them.
            let source = SocketAddr::new(run.source.ip().to_canonical(), run.source.port());
            let len = run.segment.unwrap_or(run.bytes.len()).max(1);
            for (place, packet) in run.bytes.chunks(len).enumerate() {
                take(source, place, packet);
            }
        })
    }
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn send_runs(socket: &UdpSocket, destination: SocketAddr, runs: &[Run<'_>]) -> io::Result<()> {
    let to = Destination::Socket(destination);
    let mut messages = [Message::default(); RUNS];
    for (message, run) in messages.iter_mut().zip(runs) {
        message.parts[0] = run.bytes;
        message.segment = (run.packets > 1).then(|| exact::<u16>(run.packet_len));
    }
    socket::send_all::<RUNS>(socket.as_fd(), &to, &messages[..runs.len()])
}

/// The largest IP packet, in bytes, that goes unfragmented to the peer of a connected socket.
///
/// # Errors
///
/// What the operating system says.
pub fn path_mtu(socket: &UdpSocket) -> io::Result<usize> {
    let mtu = match socket.local_addr()? {
        SocketAddr::V4(_) => sockopt::ip_mtu(socket)?,
        SocketAddr::V6(_) => sockopt::ipv6_mtu(socket)?,
    };
    usize::try_from(mtu).map_err(io::Error::other)
}

/// What comes back from one peer.
#[derive(Debug)]
pub(crate) struct Answers {
    port: UdpPort,
    peer: SocketAddr,
    check: IcrcCheck,
}

impl Answers {
    /// Through a bound socket, which is reached at `local`, from the peer's.
    pub(crate) fn new(port: UdpPort, local: SocketAddr, peer: SocketAddr) -> io::Result<Self> {
        let check = IcrcCheck::new(peer, local).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { port, peer, check })
    }

    /// As [`Port::receive`].
    pub(crate) fn receive(&mut self, take: &mut dyn FnMut(&Packet<'_>)) -> io::Result<()> {
        let (peer, check) = (self.peer, &mut self.check);
        self.port.receive_with(&mut |source, place, bytes| {
            // Replies come from the peer's address, and a port of its choice.
            if source.ip() == peer.ip()
                && let Some(packet) = Packet::new_checked(bytes)
                && check.is_right(source.port(), &packet, place)
            {
                take(&packet);
            }
        })?;
        Ok(())
    }

    /// As [`Port::wait`].
    pub(crate) fn wait(&self, limit: Duration) -> io::Result<()> {
        self.port.wait(limit).map(drop)
    }
}

/// A requester's UDP socket, to one peer.
#[derive(Debug)]
pub struct UdpToPeer {
    answers: Answers,
    icrcs: icrc::Stream,
}

impl UdpToPeer {
    /// From a bound socket, which is reached at `local`, to the peer's.
    ///
    /// # Errors
    ///
    /// If the addresses are of different families.
    pub fn new(port: UdpPort, local: SocketAddr, peer: SocketAddr) -> io::Result<Self> {
        let outer = outer(local, peer).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self {
            answers: Answers::new(port, local, peer)?,
            icrcs: icrc::Stream::new(outer),
        })
    }
}

impl AsFd for UdpToPeer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.answers.port.as_fd()
    }
}

impl Port for UdpToPeer {
    fn send(&mut self, batch: &mut PacketBatch) -> io::Result<()> {
        let Answers { port, peer, .. } = &mut self.answers;
        port.send_to(*peer, &mut self.icrcs, batch)
    }

    fn receive(&mut self, take: &mut dyn FnMut(&Packet<'_>)) -> io::Result<()> {
        self.answers.receive(take)
    }

    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        self.answers.wait(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_wire::roce::{Extensions, Opcode, Operation, Repr, Service};

    #[test]
    fn runs_pass_through_the_kernel_with_the_identifications_foreseen() {
        let bind = |address: &str| UdpPort::bind(address.parse().unwrap()).unwrap();
        let (mut sender, mut receiver) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
        let source = sender.local_address().unwrap();
        let destination = receiver.local_address().unwrap();
        let mut icrcs = icrc::Stream::new(outer(source, destination).unwrap());
        let mut batch = PacketBatch::new();
        for psn in 0..500 {
            let repr = Repr {
                opcode: Opcode {
                    service: Service::Rc,
                    operation: Operation::WriteOnly,
                },
                dest_qp: 7,
                psn,
                ack_request: false,
                payload_len: 100,
                extensions: Extensions::default(),
            };
            batch.push(&repr, &[&[3; 100]]);
        }
        sender.send_to(destination, &mut icrcs, &mut batch).unwrap();
        let mut check = IcrcCheck::new(source, destination).unwrap();
        let mut psns = Vec::new();
        for _ in 0..1000 {
            receiver.wait(Duration::from_millis(20)).unwrap();
            receiver
                .receive_with(&mut |from, place, bytes| {
                    assert_eq!(from, source);
                    let packet = Packet::new_checked(bytes).unwrap();
                    assert!(check.is_right(from.port(), &packet, place));
                    // Not computed: predicted.
                    assert!(usize::from(check.last()) == place || check.last() == 0);
                    psns.push(packet.psn());
                })
                .unwrap();
            if psns.len() == 500 {
                break;
            }
        }
        assert_eq!(psns, (0..500).collect::<Vec<_>>());
    }
}
