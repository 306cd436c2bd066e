//! RoCEv2 over UDP sockets of the kernel: many packets with one call.
//!
//! Out, packets of one length go as one with `UDP_SEGMENT`, and several such runs
//! with one `sendmmsg`. The kernel numbers the segments of a run 0, 1, 2 ... in the
//! IPv4 identification, which the ICRC covers; an unconnected socket that forbids
//! fragmentation begins at 0. In, `recvmmsg` with `UDP_GRO` gets runs as they are.
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use strata_rdma::PacketBatch;
use strata_wire::roce::Packet;
use strata_wire::roce::icrc::{Ip, Outer};

use crate::link::Port;

/// Packets of one run at most (the kernel's `UDP_MAX_SEGMENTS`).
const RUN_PACKETS_MAX: usize = 64;
/// Bytes of one run at most: an IP packet.
const RUN_BYTES_MAX: usize = 65_000;
/// Runs sent, or received, with one call.
const RUNS: usize = 16;
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
        if address.is_ipv4() {
            port.set(
                libc::IPPROTO_IP,
                libc::IP_MTU_DISCOVER,
                libc::IP_PMTUDISC_DO,
            )?;
        }
        // Without it, runs are cut before they arrive, which is slower.
        let _ = port.set(libc::SOL_UDP, libc::UDP_GRO, 1);
        Ok(port)
    }

    fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
        // SAFETY: the pointer and the length are those of `value`, which outlives
        // the call.
        let set = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0),
            )
        };
        if set == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Where it is bound.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits for packets for so long.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let mut poll = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let timeout = libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // SAFETY: one pollfd and a timespec that outlive the call, no signal mask.
        let ready = unsafe { libc::ppoll(&raw mut poll, 1, &raw const timeout, std::ptr::null()) };
        match ready {
            -1 => Err(io::Error::last_os_error()),
            ready => Ok(ready > 0),
        }
    }

    /// Seals the packets and sends them from `source`, which the socket is bound to
    /// or the system chooses, to `destination`.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn send_to(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        batch: &mut PacketBatch,
    ) -> io::Result<()> {
        let Some(outer) = outer(source, destination) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let runs_max = if self.segmentation {
            RUN_PACKETS_MAX
        } else {
            1
        };
        let mut runs = Vec::new();
        let mut at = 0;
        while at < batch.len() {
            let (count, _) = batch.run(at, runs_max, RUN_BYTES_MAX);
            for index in 0..count {
                let number = u16::try_from(index).unwrap_or(0);
                batch.seal(at + index, &outer.with_identification(number));
            }
            runs.push((at, count));
            at += count;
        }
        for group in runs.chunks(RUNS) {
            let sent = self.send_runs(destination, batch, group);
            match sent {
                // No segmentation on this path: one by one, from the first on, since
                // an RDMA packet that comes twice is recognised.
                Err(error)
                    if self.segmentation
                        && matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL)) =>
                {
                    self.segmentation = false;
                    return self.send_to(source, destination, batch);
                }
                sent => sent?,
            }
        }
        Ok(())
    }

    fn send_runs(
        &self,
        destination: SocketAddr,
        batch: &PacketBatch,
        runs: &[(usize, usize)],
    ) -> io::Result<()> {
        let (mut address, address_len) = to_sockaddr(destination);
        let mut vectors: [libc::iovec; RUNS] = zeroed();
        let mut control: [Ancillary; RUNS] = [[0; 4]; RUNS];
        let mut messages: [libc::mmsghdr; RUNS] = zeroed();
        for (index, &(at, count)) in runs.iter().enumerate() {
            let (_, bytes) = batch.run(at, count, RUN_BYTES_MAX);
            vectors[index].iov_base = bytes.as_ptr().cast_mut().cast();
            vectors[index].iov_len = bytes.len();
            let header = &mut messages[index].msg_hdr;
            header.msg_name = (&raw mut address).cast();
            header.msg_namelen = address_len;
            header.msg_iov = &raw mut vectors[index];
            header.msg_iovlen = 1;
            if count > 1 {
                let size = u16::try_from(batch.get(at).len()).unwrap_or(0);
                header.msg_control = control[index].as_mut_ptr().cast();
                header.msg_controllen = segment_message(&mut control[index], size);
            }
        }
        let mut done = 0;
        while done < runs.len() {
            let left = libc::c_uint::try_from(runs.len() - done).unwrap_or(0);
            // SAFETY: `left` messages from `done` on, whose pointers lead to `vectors`,
            // `control`, `address` and the batch, all of which outlive the call.
            let sent = unsafe {
                let first = messages.as_mut_ptr().add(done);
                libc::sendmmsg(self.socket.as_raw_fd(), first, left, 0)
            };
            match usize::try_from(sent) {
                Ok(sent) => done += sent,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => self.wait_to_send()?,
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    // Of an earlier packet: the queue pair finds out by itself.
                    error if error.kind() == io::ErrorKind::ConnectionRefused => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }

    fn wait_to_send(&self) -> io::Result<()> {
        let mut poll = libc::pollfd {
            fd: self.socket.as_raw_fd(),
            events: libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: one pollfd that outlives the call.
        match unsafe { libc::poll(&raw mut poll, 1, 100) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Takes what has arrived, without waiting: at most 16 runs. `take` gets where
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
            let size = segment_size(&messages[index].msg_hdr, &control[index]);
            let bytes = &self.received[index * RUN_BUFFER..][..len];
            for (place, packet) in bytes.chunks(size.unwrap_or(len).max(1)).enumerate() {
                take(source, place, packet);
            }
        }
        Ok(count)
    }
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

/// Zeros, for structures of C that zeros are a value of.
fn zeroed<T: Zeros, const N: usize>() -> [T; N] {
    // SAFETY: `Zeros` is implemented here alone, for structures of integers and raw
    // pointers.
    unsafe { std::mem::zeroed() }
}

trait Zeros {}
impl Zeros for libc::iovec {}
impl Zeros for libc::mmsghdr {}
impl Zeros for libc::sockaddr_storage {}

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

fn to_sockaddr(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    let [mut storage]: [libc::sockaddr_storage; 1] = zeroed();
    let len = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap_or(0),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage has room and alignment for any address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::sa_family_t::try_from(libc::AF_INET6).unwrap_or(0),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, libc::socklen_t::try_from(len).unwrap_or(0))
}

fn from_sockaddr(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is, and the storage is large enough.
            let raw = unsafe { (&raw const *storage).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            let port = u16::from_be(raw.sin_port);
            Some(SocketAddr::V4(SocketAddrV4::new(ip, port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { (&raw const *storage).cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            let (flow, scope) = (raw.sin6_flowinfo, raw.sin6_scope_id);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port, flow, scope)))
        }
        _ => None,
    }
}

/// What stands before the BTH of a packet between two sockets; `None` if they are
/// of different families.
#[must_use]
pub fn outer(source: SocketAddr, destination: SocketAddr) -> Option<Outer> {
    let ip = match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Ip::V4 {
            source,
            destination,
            identification: 0,
            dont_fragment: true,
        },
        (IpAddr::V6(source), IpAddr::V6(destination)) => Ip::V6 {
            source,
            destination,
        },
        _ => return None,
    };
    Some(Outer {
        ip,
        source_port: source.port(),
        destination_port: destination.port(),
    })
}

/// Checks ICRCs of packets from a UDP socket, which does not show the IPv4
/// identification: what it must have been is worked out.
#[derive(Debug)]
pub struct IcrcCheck {
    outer: Outer,
    /// The identification of the packet before.
    last: u16,
}

impl IcrcCheck {
    /// For packets from `source` to `destination`; `None` for different families.
    #[must_use]
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        let outer = outer(source, destination)?;
        Some(Self { outer, last: 0 })
    }

    /// Whether the ICRC of a packet from this port is right. `place` is where in a
    /// run of the kernel's it was.
    pub fn is_right(&mut self, source_port: u16, packet: &Packet<'_>, place: usize) -> bool {
        self.outer.source_port = source_port;
        let (covered, carried) = (packet.covered(), packet.icrc());
        let with = |number: u16| self.outer.with_identification(number).icrc(covered);
        // A sender's segments count from 0; a run may have been cut or joined on
        // the way; other stacks number as they like.
        let likely = [
            u16::try_from(place).unwrap_or(0),
            self.last.wrapping_add(1),
            0,
        ];
        if let Some(number) = likely.into_iter().find(|&number| with(number) == carried) {
            self.last = number;
            return true;
        }
        if matches!(self.outer.ip, Ip::V6 { .. }) {
            return false;
        }
        let none = with(0);
        let Some(number) = combination(carried ^ none, |bit| with(1 << bit) ^ none) else {
            return false;
        };
        self.last = number;
        true
    }
}

/// The bits whose words together, by exclusive or, make `wanted`: a CRC is linear,
/// so each bit of the identification changes it by a word of its own. 16 bits of
/// the ICRC's 32 still check the packet, beside the UDP checksum.
fn combination(mut wanted: u32, word_of: impl Fn(u32) -> u32) -> Option<u16> {
    // Gaussian elimination: words with their bits, each with a leading one of its own.
    let mut basis: Vec<(u32, u16)> = Vec::with_capacity(16);
    for bit in 0..16 {
        let (mut word, mut bits) = (word_of(bit), 1_u16 << bit);
        for &(other, others) in &basis {
            if word ^ other < word {
                (word, bits) = (word ^ other, bits ^ others);
            }
        }
        if word != 0 {
            basis.push((word, bits));
            basis.sort_unstable_by_key(|&(word, _)| std::cmp::Reverse(word));
        }
    }
    let mut bits = 0;
    for (word, its_bits) in basis {
        if wanted ^ word < wanted {
            (wanted, bits) = (wanted ^ word, bits ^ its_bits);
        }
    }
    (wanted == 0).then_some(bits)
}

/// A switch's UDP socket, to one relay.
#[derive(Debug)]
pub struct UdpToRelay {
    port: UdpPort,
    local: SocketAddr,
    relay: SocketAddr,
    check: IcrcCheck,
}

impl UdpToRelay {
    /// From a bound socket, which is reached at `local`, to the relay's.
    ///
    /// # Errors
    ///
    /// If the addresses are of different families.
    pub fn new(port: UdpPort, local: SocketAddr, relay: SocketAddr) -> io::Result<Self> {
        let check = IcrcCheck::new(relay, local);
        let check = check.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self {
            port,
            local,
            relay,
            check,
        })
    }
}

impl Port for UdpToRelay {
    fn send(&mut self, batch: &mut PacketBatch) -> io::Result<()> {
        self.port.send_to(self.local, self.relay, batch)
    }

    fn receive(&mut self, take: &mut dyn FnMut(&Packet<'_>)) -> io::Result<()> {
        let (relay, check) = (self.relay, &mut self.check);
        self.port.receive_with(&mut |source, place, bytes| {
            // Answers come from the relay's address, and a port of its choice.
            if source.ip() == relay.ip()
                && let Some(packet) = Packet::new_checked(bytes)
                && check.is_right(source.port(), &packet, place)
            {
                take(&packet);
            }
        })?;
        Ok(())
    }

    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        self.port.wait(limit).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_wire::roce::{Extensions, Opcode, Operation, Repr, Service, UDP_PORT};

    fn packet(psn: u32, outer: &Outer) -> Vec<u8> {
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
        let mut batch = PacketBatch::new();
        batch.push(&repr, &[&[3; 100]]);
        batch.seal(0, outer);
        batch.get(0).to_vec()
    }

    #[test]
    fn any_identification_is_worked_out_and_damage_is_noticed() {
        let source: SocketAddr = "192.0.2.1:4000".parse().unwrap();
        let destination = SocketAddr::new("192.0.2.2".parse().unwrap(), UDP_PORT);
        let outer = outer(source, destination).unwrap();
        let mut check = IcrcCheck::new(source, destination).unwrap();
        let mut wrongly = 0;
        for number in [0, 1, 2, 63, 0x03c1, 0x8000, 0xffff] {
            let bytes = packet(9, &outer.with_identification(number));
            let view = Packet::new_checked(&bytes).unwrap();
            assert!(check.is_right(4000, &view, 0), "{number}");
            assert_eq!(check.last, number);
            for bit in 0..bytes.len() * 8 {
                // Byte 4 may change on the way; the first bytes say where it ends.
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let Some(view) = Packet::new_checked(&changed) else {
                    continue;
                };
                wrongly += usize::from(bit / 8 != 4 && check.is_right(4000, &view, 0));
            }
        }
        assert!(wrongly < 3, "{wrongly} of about 7,000");
    }

    #[test]
    fn runs_pass_through_the_kernel_with_the_identifications_foreseen() {
        let bind = |address: &str| UdpPort::bind(address.parse().unwrap()).unwrap();
        let (mut sender, mut receiver) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
        let source = sender.local_address().unwrap();
        let destination = receiver.local_address().unwrap();
        let outer = outer(source, destination).unwrap();
        let mut batch = PacketBatch::new();
        for psn in 0..500 {
            batch.push_bytes(&packet(psn, &outer));
        }
        sender.send_to(source, destination, &mut batch).unwrap();
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
                    assert!(usize::from(check.last) == place || check.last == 0);
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
