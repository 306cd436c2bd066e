//! Sockets that the standard library and rustix do not have, and many messages per call.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::pause;

/// A packet socket that receives nothing until it is bound. `cooked` ones omit the link-layer
/// header.
///
/// # Errors
///
/// What the operating system says.
pub fn packet_socket(cooked: bool) -> io::Result<OwnedFd> {
    let kind = if cooked {
        libc::SOCK_DGRAM
    } else {
        libc::SOCK_RAW
    };
    // SAFETY: no pointer is passed.
    owned(unsafe { libc::socket(libc::AF_PACKET, kind | libc::SOCK_CLOEXEC, 0) })
}

/// Binds a packet socket to an interface, 0 for all, and to every protocol; or, to send only, to
/// none, so that it receives nothing.
///
/// # Errors
///
/// What the operating system says.
pub fn bind_packet(fd: BorrowedFd<'_>, ifindex: u32, receives: bool) -> io::Result<()> {
    let protocol = if receives { libc::ETH_P_ALL } else { 0 };
    let protocol = u16::try_from(protocol).map_err(io::Error::other)?;
    bind(fd, &link_address(ifindex, protocol)?)
}

/// The index of the interface that a packet socket is bound to; `None` once that was removed.
///
/// # Errors
///
/// What the operating system says.
pub fn bound_interface(fd: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut address = link_address(0, 0)?;
    let mut len = socklen::<libc::sockaddr_ll>();
    // SAFETY: the address is valid for its size, which is passed along, and any bytes are a valid one.
    let done = unsafe {
        libc::getsockname(
            fd.as_raw_fd(),
            std::ptr::from_mut(&mut address).cast(),
            &raw mut len,
        )
    };
    check(done)?;
    // The kernel makes it -1.
    Ok(u32::try_from(address.sll_ifindex).ok())
}

fn link_address(ifindex: u32, protocol: u16) -> io::Result<libc::sockaddr_ll> {
    // SAFETY: all zeros is a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = family(libc::AF_PACKET);
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = c_int::try_from(ifindex).map_err(io::Error::other)?;
    Ok(address)
}

/// Binds a socket to an address structure of its family.
pub(crate) fn bind<T>(fd: BorrowedFd<'_>, address: &T) -> io::Result<()> {
    // SAFETY: the address is valid for its size, which is passed along, and is only read.
    let done = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            std::ptr::from_ref(address).cast(),
            socklen::<T>(),
        )
    };
    check(done)
}

/// `setsockopt` with a 32-bit number, which no option takes as an address.
///
/// # Errors
///
/// What the operating system says.
pub fn set_number(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: u32) -> io::Result<()> {
    // SAFETY: a 32-bit number holds no address.
    unsafe { set_option(fd, level, name, &value) }
}

/// `setsockopt` with a kernel structure.
///
/// # Safety
///
/// Addresses in the value point to memory as the option requires it, for as long as it does.
pub(crate) unsafe fn set_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the value is valid for its size, which is passed along; the caller guarantees any
    // addresses in it.
    let done = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            socklen::<T>(),
        )
    };
    check(done)
}

/// `getsockopt` into a kernel structure.
///
/// # Safety
///
/// `T` consists of integers only, and the option takes no address from it.
pub(crate) unsafe fn get_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
) -> io::Result<T> {
    // SAFETY: integers, as the caller guarantees.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = socklen::<T>();
    // SAFETY: the kernel writes at most `len` bytes, which the value has.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_mut(&mut value).cast(),
            &raw mut len,
        )
    };
    check(done).map(|()| value)
}

/// Datagrams that arrived at a socket and were dropped, since its buffer was full; modulo 2^32.
///
/// # Errors
///
/// What the operating system says.
pub fn dropped(fd: BorrowedFd<'_>) -> io::Result<u32> {
    /// `SK_MEMINFO_DROPS` of `SK_MEMINFO_VARS` (linux/sock_diag.h).
    const DROPS: usize = 8;
    // SAFETY: an array of integers.
    let values = unsafe { get_option::<[u32; 9]>(fd, libc::SOL_SOCKET, libc::SO_MEMINFO) };
    values.map(|values| values[DROPS])
}

/// Asks for a send buffer of this size; the kernel gives what the system's limit permits.
///
/// # Errors
///
/// What the operating system says.
pub fn set_send_buffer(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    set_number(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)
}

/// Makes datagrams of a UDP socket leave whole or not at all: longer ones than the path carries fail
/// with `EMSGSIZE` instead of being cut into IP fragments.
///
/// # Errors
///
/// What the operating system says.
pub fn never_fragment(fd: BorrowedFd<'_>, is_v6: bool) -> io::Result<()> {
    let (level, name, value) = match is_v6 {
        false => (
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DO,
        ),
        true => (
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_DO,
        ),
    };
    set_number(fd, level, name, value.cast_unsigned())
}

/// Bytes of the largest IP packet on the path of a connected socket, as far as is known.
///
/// # Errors
///
/// What the operating system says, `ENOTCONN` if it is not connected.
pub fn path_mtu(fd: BorrowedFd<'_>, is_v6: bool) -> io::Result<usize> {
    let (level, name) = match is_v6 {
        false => (libc::IPPROTO_IP, libc::IP_MTU),
        true => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    // SAFETY: a number.
    let mtu = unsafe { get_option::<c_int>(fd, level, name) }?;
    usize::try_from(mtu).map_err(io::Error::other)
}

/// A classic BPF filter that keeps the first `snaplen` bytes of every packet; with 0 it admits no
/// packet.
///
/// # Errors
///
/// What the operating system says.
pub fn attach_snaplen(fd: BorrowedFd<'_>, snaplen: u32) -> io::Result<()> {
    /// `BPF_RET | BPF_K` (linux/bpf_common.h).
    const RETURN: u16 = 0x06;
    let mut code = [libc::sock_filter {
        code: RETURN,
        jt: 0,
        jf: 0,
        k: snaplen,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: code.as_mut_ptr(),
    };
    // SAFETY: the program has one instruction, and the kernel copies it.
    unsafe { set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program) }
}

/// Makes an interface accept packets that are not for this host, for as long as the packet socket
/// is open.
///
/// # Errors
///
/// What the operating system says.
pub fn set_promiscuous(fd: BorrowedFd<'_>, ifindex: u32) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: c_int::try_from(ifindex).map_err(io::Error::other)?,
        mr_type: u16::try_from(libc::PACKET_MR_PROMISC).map_err(io::Error::other)?,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    let name = libc::PACKET_ADD_MEMBERSHIP;
    // SAFETY: no memory addresses.
    unsafe { set_option(fd, libc::SOL_PACKET, name, &membership) }
}

/// Waits this long until a socket has something to read, or space to write to; returns whether it
/// has. After a signal it returns false.
///
/// # Errors
///
/// What the operating system says.
pub fn wait(socket: BorrowedFd<'_>, to_write: bool, limit: Duration) -> io::Result<bool> {
    let events = if to_write {
        PollFlags::OUT
    } else {
        PollFlags::IN
    };
    let timeout = Timespec::try_from(limit).map_err(io::Error::other)?;
    match poll(
        &mut [PollFd::from_borrowed_fd(socket, events)],
        Some(&timeout),
    ) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits this long until one of these sockets has something to read. After a signal it returns
/// earlier.
///
/// # Errors
///
/// What the operating system says.
pub fn wait_any<'a>(
    sockets: impl IntoIterator<Item = BorrowedFd<'a>>,
    limit: Duration,
) -> io::Result<()> {
    let timeout = Timespec::try_from(limit).map_err(io::Error::other)?;
    let sockets = sockets.into_iter();
    let mut all: Vec<_> = sockets
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    match poll(&mut all, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A UDP socket that does not block and merges datagrams of a run (`UDP_GRO`), with a receive
/// buffer of this size, or what the system's limit permits.
///
/// # Errors
///
/// What the operating system says.
pub fn udp(address: SocketAddr, buffer_bytes: u32) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    let fd = socket.as_fd();
    // Root may exceed the limit.
    if set_number(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, buffer_bytes).is_err() {
        set_number(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, buffer_bytes)?;
    }
    // Without this, runs are cut before they arrive, which is slower.
    let _ = set_number(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
    Ok(socket)
}

/// A message to send.
#[derive(Clone, Copy, Debug, Default)]
pub struct Message<'a> {
    /// Its bytes, in two parts, the second of which may be empty.
    pub parts: [&'a [u8]; 2],
    /// Bytes of the packets that the kernel cuts it into (`UDP_SEGMENT`).
    pub segment: Option<u16>,
}

/// Where messages go.
#[derive(Clone, Copy, Debug)]
pub enum Destination {
    /// Where the socket is bound or connected to.
    Own,
    /// To a socket.
    Socket(SocketAddr),
    /// Out of an interface, in frames of this EtherType, whose headers are in the messages.
    Link {
        /// The interface's number.
        ifindex: u32,
        /// Host order.
        ethertype: u16,
    },
}

/// Bytes for the one control message that is used, aligned.
type Ancillary = [u64; 4];

/// Sends messages in one call, the first `N` at most; returns how many were sent, at least one.
///
/// # Errors
///
/// What the operating system says: [`io::ErrorKind::WouldBlock`] if there is no space, and the
/// socket is non-blocking or `dont_wait` is set.
pub fn send_many<const N: usize>(
    socket: BorrowedFd<'_>,
    to: &Destination,
    messages: &[Message<'_>],
    dont_wait: bool,
) -> io::Result<usize> {
    let (mut address, address_len) = to.emit()?;
    // SAFETY: all zeros are valid `iovec`s.
    let mut parts: [[libc::iovec; 2]; N] = unsafe { std::mem::zeroed() };
    // SAFETY: all zeros are valid `mmsghdr`s: null pointers with lengths of 0.
    let mut headers: [libc::mmsghdr; N] = unsafe { std::mem::zeroed() };
    let mut control: [Ancillary; N] = [[0; 4]; N];
    let each = messages.iter().zip(&mut parts).zip(&mut headers);
    let mut count = 0;
    for (((message, parts), header), control) in each.zip(&mut control) {
        for (part, bytes) in parts.iter_mut().zip(message.parts) {
            part.iov_base = bytes.as_ptr().cast_mut().cast();
            part.iov_len = bytes.len();
        }
        let header = &mut header.msg_hdr;
        header.msg_iov = parts.as_mut_ptr();
        header.msg_iovlen = if message.parts[1].is_empty() { 1 } else { 2 };
        if address_len > 0 {
            header.msg_name = (&raw mut address).cast();
            header.msg_namelen = address_len;
        }
        if let Some(size) = message.segment {
            let len = emit_segment(control, size);
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = len;
        }
        count += 1;
    }
    let flags = if dont_wait { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: `count` messages, whose pointers lead to `address`, `parts`, `control` and what
    // `messages` borrow; all of it outlives the call, and sending only reads it. Without
    // MSG_ZEROCOPY the kernel keeps none of it.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, flags) };
    check(sent)?;
    usize::try_from(sent).map_err(io::Error::other)
}

/// How often a send to a full interface is retried, 50 us apart.
const TRIES: u32 = 100;
/// How often a full socket is waited for, 100 ms each.
const WAITS: u32 = 50;

/// Sends messages, `N` per call at most, waiting while the socket has no space for more.
///
/// # Errors
///
/// `ENOBUFS` if the interface has had no space for 5 ms, or cannot send such a message at all;
/// `EAGAIN` if the socket has had none for 5 s; else what the operating system says.
pub fn send_all<const N: usize>(
    socket: BorrowedFd<'_>,
    to: &Destination,
    messages: &[Message<'_>],
) -> io::Result<()> {
    let mut rest = messages;
    let mut tries = 0;
    let mut waits = 0;
    while !rest.is_empty() {
        match send_many::<N>(socket, to, rest, false) {
            Ok(sent) => {
                rest = &rest[sent..];
                (tries, waits) = (0, 0);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && waits < WAITS => {
                waits += 1;
                wait(socket, true, Duration::from_millis(100))?;
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) && tries < TRIES => {
                tries += 1;
                pause::backoff(Duration::from_micros(50));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Caused by an earlier packet: the queue pair finds out by itself.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Bytes of the largest received message: an IP packet.
const RECEIVED_MAX: usize = 65_536;

/// Memory for datagrams received in one call.
#[derive(Debug)]
pub struct Receiver<const N: usize> {
    buffers: Vec<u8>,
}

/// A datagram, or several that the kernel has merged.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Where it came from.
    pub source: SocketAddr,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Bytes of each datagram except the last, if there are several (`UDP_GRO`).
    pub segment: Option<usize>,
}

impl<const N: usize> Default for Receiver<N> {
    fn default() -> Self {
        Self {
            buffers: vec![0; N * RECEIVED_MAX],
        }
    }
}

impl<const N: usize> Receiver<N> {
    /// Takes what has arrived, without waiting: at most `N`. Returns how many.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        mut take: impl FnMut(&Received<'_>),
    ) -> io::Result<usize> {
        // SAFETY: all zeros are valid structures of each kind: integers and null pointers.
        let mut addresses: [libc::sockaddr_storage; N] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut vectors: [libc::iovec; N] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut headers: [libc::mmsghdr; N] = unsafe { std::mem::zeroed() };
        let mut control: [Ancillary; N] = [[0; 4]; N];
        let buffers = self.buffers.chunks_exact_mut(RECEIVED_MAX);
        for (index, buffer) in buffers.enumerate() {
            vectors[index].iov_base = buffer.as_mut_ptr().cast();
            vectors[index].iov_len = buffer.len();
            let header = &mut headers[index].msg_hdr;
            header.msg_name = (&raw mut addresses[index]).cast();
            header.msg_namelen = socklen::<libc::sockaddr_storage>();
            header.msg_iov = &raw mut vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = control[index].as_mut_ptr().cast();
            header.msg_controllen = size_of::<Ancillary>();
        }
        let count = libc::c_uint::try_from(N).map_err(io::Error::other)?;
        // SAFETY: as many messages as there are, whose pointers lead to `addresses`, `vectors`,
        // `control` and the buffers, each with its length.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            use io::ErrorKind::{ConnectionRefused, Interrupted, WouldBlock};
            return match io::Error::last_os_error() {
                error if matches!(error.kind(), WouldBlock | Interrupted | ConnectionRefused) => {
                    Ok(0)
                }
                error => Err(error),
            };
        };
        let buffers = self.buffers.chunks_exact(RECEIVED_MAX).take(count);
        for (index, buffer) in buffers.enumerate() {
            let len = (headers[index].msg_len as usize).min(buffer.len());
            if let Some(source) = parse_address(&addresses[index]) {
                take(&Received {
                    source,
                    bytes: &buffer[..len],
                    segment: parse_segment(&headers[index].msg_hdr, &control[index]),
                });
            }
        }
        Ok(count)
    }
}

/// A `UDP_SEGMENT` control message; returns its bytes.
fn emit_segment(control: &mut Ancillary, size: u16) -> usize {
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
    let [a, b] = size.to_ne_bytes();
    control[2] = u64::from_ne_bytes([a, b, 0, 0, 0, 0, 0, 0]);
    // CMSG_SPACE.
    len.next_multiple_of(size_of::<usize>())
}

/// The value of `UDP_GRO`: bytes of each packet of a run.
fn parse_segment(header: &libc::msghdr, control: &Ancillary) -> Option<usize> {
    if header.msg_controllen < size_of::<libc::cmsghdr>() + size_of::<c_int>() {
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

impl Destination {
    /// The address, and its bytes; none if there is no address.
    fn emit(&self) -> io::Result<(libc::sockaddr_storage, libc::socklen_t)> {
        // SAFETY: all zeros is a valid `sockaddr_storage`.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let len = match *self {
            Self::Own => 0,
            Self::Socket(SocketAddr::V4(v4)) => {
                let raw = libc::sockaddr_in {
                    sin_family: family(libc::AF_INET),
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(v4.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                put(&mut storage, raw)
            }
            Self::Socket(SocketAddr::V6(v6)) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: family(libc::AF_INET6),
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    sin6_scope_id: v6.scope_id(),
                };
                put(&mut storage, raw)
            }
            Self::Link { ifindex, ethertype } => {
                let mut raw = link_address(ifindex, ethertype)?;
                raw.sll_halen = 6;
                put(&mut storage, raw)
            }
        };
        Ok((storage, len))
    }
}

/// Puts an address where there is space for any; returns its bytes.
fn put<T: Copy>(storage: &mut libc::sockaddr_storage, address: T) -> libc::socklen_t {
    const {
        assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>());
        assert!(align_of::<T>() <= align_of::<libc::sockaddr_storage>());
    }
    // SAFETY: size and alignment suffice for the address, as was asserted.
    unsafe { (&raw mut *storage).cast::<T>().write(address) };
    socklen::<T>()
}

fn parse_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: any bytes are a `sockaddr_in`, for which size and alignment suffice.
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

fn family(family: c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).expect("families of addresses have 16 bits")
}

fn socklen<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).expect("structures of the kernel are small")
}

pub(crate) fn check(done: c_int) -> io::Result<()> {
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

pub(crate) fn owned(fd: c_int) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: a descriptor that was just made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What arrives within 5 s, up to `count`.
    fn received(socket: &UdpSocket, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut receiver = Receiver::<4>::default();
        let mut all = Vec::new();
        while all.len() < count && wait(socket.as_fd(), false, Duration::from_secs(5)).unwrap() {
            let take = |one: &Received<'_>| all.push((one.source, one.bytes.to_vec()));
            receiver.receive(socket.as_fd(), take).unwrap();
        }
        all
    }

    #[test]
    fn messages_in_two_parts_arrive_whole_and_in_order() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let (to, from) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
            let bodies: Vec<Vec<u8>> = (0..10).map(|n| vec![n; usize::from(n)]).collect();
            let messages: Vec<Message<'_>> = bodies
                .iter()
                .map(|body| Message {
                    parts: [b"head", body],
                    segment: None,
                })
                .collect();
            let destination = Destination::Socket(to.local_addr().unwrap());
            send_all::<4>(from.as_fd(), &destination, &messages).unwrap();
            let expected = bodies.iter().map(|body| [b"head", &body[..]].concat());
            let expected = expected.map(|bytes| (from.local_addr().unwrap(), bytes));
            assert_eq!(received(&to, 10), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn datagrams_longer_than_the_path_carries_fail() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let (to, from) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
            from.connect(to.local_addr().unwrap()).unwrap();
            let is_v6 = any.starts_with('[');
            never_fragment(from.as_fd(), is_v6).unwrap();
            let mtu = path_mtu(from.as_fd(), is_v6).unwrap();
            let headers = if is_v6 { 48 } else { 28 };
            assert!((1280..=65_536).contains(&mtu), "{mtu}");
            // The loopback interface carries more than a datagram may have.
            let fits = (mtu - headers).min(65_000);
            assert_eq!(from.send(&vec![0; fits]).unwrap(), fits);
            let error = from.send(&vec![0; 65_536]).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
        }
        let alone = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(path_mtu(alone.as_fd(), false).is_err());
    }

    #[test]
    fn one_message_becomes_several_datagrams() {
        let any = "127.0.0.1:0";
        let (to, from) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
        from.connect(to.local_addr().unwrap()).unwrap();
        let message = Message {
            parts: [b"aaaabbbbc", &[]],
            segment: Some(4),
        };
        send_all::<1>(from.as_fd(), &Destination::Own, &[message]).unwrap();
        let bytes = received(&to, 3).into_iter().map(|(_, bytes)| bytes);
        assert_eq!(bytes.collect::<Vec<_>>(), [&b"aaaa"[..], b"bbbb", b"c"]);
    }
}
