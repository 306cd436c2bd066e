//! Sockets that the standard library and rustix do not have, and many datagrams per call.
#![allow(unsafe_code)]

mod datagrams;

use std::ffi::c_int;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

pub use datagrams::{Destination, Message, Received, Receiver, send_all, send_many};

/// A packet socket that receives nothing until it is bound. `cooked` ones omit the link-layer
/// header.
///
/// # Errors
///
/// What the operating system says.
pub fn packet_socket(cooked: bool) -> io::Result<OwnedFd> {
    let kind = if cooked {
        SocketType::DGRAM
    } else {
        SocketType::RAW
    };
    open(libc::AF_PACKET, kind)
}

/// A socket of an address family, without a protocol.
pub(crate) fn open(family: c_int, kind: SocketType) -> io::Result<OwnedFd> {
    let family = u16::try_from(family).map_err(io::Error::other)?;
    let family = AddressFamily::from_raw(family);
    Ok(socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
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

/// Lets datagrams of a UDP socket that are longer than the path carries leave in IP fragments: on the way, routers may
/// cut them further, but for IPv6.
///
/// # Errors
///
/// What the operating system says.
pub fn may_fragment(fd: BorrowedFd<'_>, is_v6: bool) -> io::Result<()> {
    let (level, name, value) = match is_v6 {
        false => (
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DONT,
        ),
        true => (
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_DONT,
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

#[cfg(test)]
mod tests {
    use super::*;

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
        may_fragment(alone.as_fd(), false).unwrap();
        assert!(path_mtu(alone.as_fd(), false).is_err());
    }
}
