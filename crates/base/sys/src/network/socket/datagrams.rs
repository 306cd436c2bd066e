//! Many messages in one call, each way.

use std::ffi::c_int;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use super::{check, family, link_address, socklen, wait};
use crate::pause;

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

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd as _;

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
