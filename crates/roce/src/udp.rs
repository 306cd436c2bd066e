//! RoCEv2 over UDP sockets of the kernel: many packets with one call.
//!
//! Out, packets of one length go as one with `UDP_SEGMENT`, and several such runs
//! with one `sendmmsg`; an unconnected socket that forbids fragmentation numbers them
//! from 0. In, `recvmmsg` with `UDP_GRO` gets runs as they are.
#![allow(unsafe_code)]

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use strata_rdma::PacketBatch;
use strata_wire::roce::Packet;
use strata_wire::roce::icrc;

use crate::Port;
use crate::icrc::{IcrcCheck, outer};
use crate::run::{self, Run};
use crate::socket::{self, from_sockaddr, to_sockaddr, zeroed};

pub use crate::run::RUNS;

/// Bytes of the buffer of one run that is received.
const RUN_BUFFER: usize = 65_536;
/// What the socket should hold.
const SOCKET_BUFFER: libc::c_int = 16 << 20;
/// Bytes for the one control message that is used, aligned.
type Ancillary = [u64; 4];

/// A UDP socket for RoCEv2.
#[derive(Debug)]
pub struct UdpPort {
    socket: UdpSocket,
    /// Whether the kernel cuts runs for us.
    segmentation: bool,
    received: Vec<u8>,
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
            received: vec![0; RUNS * RUN_BUFFER],
        };
        // Root may exceed the system's limit; others get what they get.
        for (forced, asked) in [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        ] {
            if port.set(libc::SOL_SOCKET, forced, SOCKET_BUFFER).is_err() {
                port.set(libc::SOL_SOCKET, asked, SOCKET_BUFFER)?;
            }
        }
        let whole = port.set(
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DO,
        );
        // An IPv6 socket may take no IPv4 packets; if it does, they are as those of IPv4 sockets.
        if address.is_ipv4() {
            whole?;
        }
        // Without it, runs are cut before they arrive, which is slower.
        let _ = port.set(libc::SOL_UDP, libc::UDP_GRO, 1);
        Ok(port)
    }

    fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
        socket::set(self.socket.as_raw_fd(), level, name, value)
    }

    /// Where it is bound.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits for packets for so long; whether there are some.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        socket::wait(self.socket.as_raw_fd(), libc::POLLIN, limit)
    }

    /// Seals the packets and sends them to `destination`, which `icrcs` lead to from
    /// where the socket is.
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

    /// Takes what has arrived, IPv4 as such on a socket for both families, without waiting: at most [`RUNS`]. `take` gets where
    /// each packet came from, its place within its run, and its bytes from the BTH on.
    /// Returns the number of runs.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn receive_with(
        &mut self,
        take: &mut dyn FnMut(SocketAddr, usize, &[u8]),
    ) -> io::Result<usize> {
        let mut addresses: [libc::sockaddr_storage; RUNS] = zeroed();
        let mut vectors: [libc::iovec; RUNS] = zeroed();
        let mut control: [Ancillary; RUNS] = [[0; 4]; RUNS];
        let mut messages: [libc::mmsghdr; RUNS] = zeroed();
        for index in 0..RUNS {
            let buffer = &mut self.received[index * RUN_BUFFER..(index + 1) * RUN_BUFFER];
            vectors[index].iov_base = buffer.as_mut_ptr().cast();
            vectors[index].iov_len = buffer.len();
            let header = &mut messages[index].msg_hdr;
            header.msg_name = (&raw mut addresses[index]).cast();
            header.msg_namelen =
                libc::socklen_t::try_from(size_of::<libc::sockaddr_storage>()).unwrap_or(0);
            header.msg_iov = &raw mut vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = control[index].as_mut_ptr().cast();
            header.msg_controllen = size_of::<Ancillary>();
        }
        // SAFETY: as many messages as there are, whose pointers lead to `addresses`,
        // `vectors`, `control` and the buffers of `received`, each with its length.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                libc::c_uint::try_from(RUNS).unwrap_or(0),
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            return match io::Error::last_os_error() {
                error
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::Interrupted
                            | io::ErrorKind::ConnectionRefused
                    ) =>
                {
                    Ok(0)
                }
                error => Err(error),
            };
        };
        for index in 0..count {
            let len = (messages[index].msg_len as usize).min(RUN_BUFFER);
            let Some(source) = from_sockaddr(&addresses[index]) else {
                continue;
            };
            // IPv4 addresses as such, also where a socket for both families has them.
            let source = SocketAddr::new(source.ip().to_canonical(), source.port());
            let size = segment_size(&messages[index].msg_hdr, &control[index]);
            let bytes = &self.received[index * RUN_BUFFER..][..len];
            for (place, packet) in bytes.chunks(size.unwrap_or(len).max(1)).enumerate() {
                take(source, place, packet);
            }
        }
        Ok(count)
    }
}

fn send_runs(socket: &UdpSocket, destination: SocketAddr, runs: &[Run<'_>]) -> io::Result<()> {
    let (mut address, address_len) = to_sockaddr(destination);
    let mut vectors: [libc::iovec; RUNS] = zeroed();
    let mut control: [Ancillary; RUNS] = [[0; 4]; RUNS];
    let mut messages: [libc::mmsghdr; RUNS] = zeroed();
    for (index, run) in runs.iter().enumerate() {
        vectors[index].iov_base = run.bytes.as_ptr().cast_mut().cast();
        vectors[index].iov_len = run.bytes.len();
        let header = &mut messages[index].msg_hdr;
        header.msg_name = (&raw mut address).cast();
        header.msg_namelen = address_len;
        header.msg_iov = &raw mut vectors[index];
        header.msg_iovlen = 1;
        if run.packets > 1 {
            let size = u16::try_from(run.packet_len).unwrap_or(0);
            header.msg_control = control[index].as_mut_ptr().cast();
            header.msg_controllen = segment_message(&mut control[index], size);
        }
    }
    // SAFETY: the pointers lead to `vectors`, `control`, `address` and the runs, all of
    // which outlive the call.
    unsafe { socket::send_all(socket.as_raw_fd(), &mut messages[..runs.len()]) }
}

/// The largest IP packet that goes unfragmented where a connected socket leads, in
/// bytes.
///
/// # Errors
///
/// What the operating system says.
pub fn path_mtu(socket: &UdpSocket) -> io::Result<usize> {
    let (level, name) = match socket.local_addr()? {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mut value: libc::c_int = 0;
    let mut len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    // SAFETY: value and length outlive the call, and the length is that of the value.
    let got = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut len)
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    usize::try_from(value).map_err(io::Error::other)
}

/// A control message that says `UDP_SEGMENT`; returns its bytes.
fn segment_message(control: &mut Ancillary, size: u16) -> usize {
    // cmsghdr: length usize, level i32, type i32; then the value.
    let len = size_of::<libc::cmsghdr>() + size_of::<u16>();
    let level = u64::from(libc::SOL_UDP.cast_unsigned());
    let kind = u64::from(libc::UDP_SEGMENT.cast_unsigned());
    control[0] = len as u64;
    control[1] = if cfg!(target_endian = "little") {
        level | kind << 32
    } else {
        level << 32 | kind
    };
    control[2] = u64::from_ne_bytes(std::array::from_fn(|byte| {
        size.to_ne_bytes().get(byte).copied().unwrap_or(0)
    }));
    // CMSG_SPACE.
    len.next_multiple_of(size_of::<usize>())
}

/// What `UDP_GRO` says: bytes of each packet of a run.
fn segment_size(header: &libc::msghdr, control: &Ancillary) -> Option<usize> {
    if header.msg_controllen < size_of::<libc::cmsghdr>() + size_of::<libc::c_int>() {
        return None;
    }
    let word = control[1].to_ne_bytes();
    let level = i32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
    let kind = i32::from_ne_bytes([word[4], word[5], word[6], word[7]]);
    let value = control[2].to_ne_bytes();
    let size = i32::from_ne_bytes([value[0], value[1], value[2], value[3]]);
    (level == libc::SOL_UDP && kind == libc::UDP_GRO)
        .then(|| usize::try_from(size).ok())
        .flatten()
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
            // Answers come from the peer's address, and a port of its choice.
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

/// A UDP socket of a requester, to one peer.
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
                    // Not worked out: foreseen.
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
