//! What the kernel's calls for many messages at once ask for.
#![allow(unsafe_code)]

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::RawFd;
use std::time::Duration;

/// Zeros, for structures of C that zeros are a value of.
pub(crate) fn zeroed<T: Zeros, const N: usize>() -> [T; N] {
    // SAFETY: `Zeros` is implemented here alone, for structures of integers and raw
    // pointers.
    unsafe { std::mem::zeroed() }
}

pub(crate) trait Zeros {}
impl Zeros for libc::iovec {}
impl Zeros for libc::mmsghdr {}
impl Zeros for libc::sockaddr_storage {}
impl Zeros for libc::sockaddr_ll {}

/// Sets an option that is a number.
pub(crate) fn set(
    socket: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    // SAFETY: the pointer and the length are those of `value`, which outlives the call.
    let set = unsafe { libc::setsockopt(socket, level, name, (&raw const value).cast(), len) };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Waits until `events` are there, for so long; whether they are.
pub(crate) fn wait(socket: RawFd, events: libc::c_short, limit: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd {
        fd: socket,
        events,
        revents: 0,
    };
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    };
    // SAFETY: one pollfd and a timespec that outlive the call, no signal mask.
    let ready = unsafe { libc::ppoll(&raw mut poll, 1, &raw const timeout, std::ptr::null()) };
    match ready {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
        ready => Ok(ready > 0),
    }
}

/// How often an interface without room is asked again, 50 us apart.
const TRIES: u32 = 100;

/// How often a socket without room is waited for, 100 ms each.
const WAITS: u32 = 50;

/// Sends messages, waiting while the socket has no room for more. `ENOBUFS` if the
/// interface has had none for 5 ms, or cannot send such a message at all; `EAGAIN` if the
/// socket has had none for 5 s.
///
/// # Safety
///
/// The pointers in `messages` lead to memory that outlives the call, with the lengths
/// that stand beside them.
pub(crate) unsafe fn send_all(socket: RawFd, messages: &mut [libc::mmsghdr]) -> io::Result<()> {
    let mut rest = messages;
    let mut tries = 0;
    let mut waits = 0;
    while !rest.is_empty() {
        let count = libc::c_uint::try_from(rest.len()).unwrap_or(libc::c_uint::MAX);
        // SAFETY: so many messages, which are as the caller promises.
        let sent = unsafe { libc::sendmmsg(socket, rest.as_mut_ptr(), count, 0) };
        if let Ok(sent) = usize::try_from(sent) {
            rest = &mut rest[sent..];
            (tries, waits) = (0, 0);
            continue;
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock && waits < WAITS => {
                waits += 1;
                wait(socket, libc::POLLOUT, Duration::from_millis(100))?;
            }
            error if error.raw_os_error() == Some(libc::ENOBUFS) && tries < TRIES => {
                tries += 1;
                std::thread::sleep(Duration::from_micros(50));
            }
            error if error.kind() == io::ErrorKind::Interrupted => {}
            // Of an earlier packet: the queue pair finds out by itself.
            error if error.kind() == io::ErrorKind::ConnectionRefused => {}
            error => return Err(error),
        }
    }
    Ok(())
}

pub(crate) fn to_sockaddr(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
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

pub(crate) fn from_sockaddr(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
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
