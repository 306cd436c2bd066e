//! RoCEv2 in whole frames through an `AF_PACKET` socket: past the kernel's UDP and
//! IP, and its queueing discipline. Answers come through a UDP socket.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use strata_rdma::PacketBatch;
use strata_wire::ethernet::{self, ethertype};
use strata_wire::ipv4;
use strata_wire::roce::Packet;
use strata_wire::transport::{UDP_HEADER_LEN, UdpRepr};

use crate::link::Port;
use crate::udp::{IcrcCheck, UdpPort, outer};

/// Ethernet, IPv4 and UDP headers.
const HEADERS_LEN: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN_MIN + UDP_HEADER_LEN;
/// Frames sent with one call.
const FRAMES: usize = 64;
const TTL: u8 = 64;
const UDP: u8 = 17;

/// A switch's interface, to a relay on the same link.
#[derive(Debug)]
pub struct RawToRelay {
    socket: OwnedFd,
    index: libc::c_int,
    macs: ([u8; 6], [u8; 6]),
    /// Takes answers; it never sends.
    answers: UdpPort,
    local: SocketAddr,
    relay: SocketAddr,
    check: IcrcCheck,
    frames: Vec<u8>,
    ends: Vec<usize>,
}

impl RawToRelay {
    /// Frames from `local`, to which `answers` is bound, through `interface` to the
    /// relay, whose MAC address the kernel must know: talk to it before.
    ///
    /// # Errors
    ///
    /// If the interface or the relay's MAC address is not known, the addresses are
    /// not IPv4, or the operating system refuses.
    pub fn new(
        interface: &str,
        answers: UdpPort,
        local: SocketAddr,
        relay: SocketAddr,
    ) -> io::Result<Self> {
        let (SocketAddr::V4(_), SocketAddr::V4(to)) = (local, relay) else {
            let problem = "raw frames are sent over IPv4 only";
            return Err(io::Error::new(io::ErrorKind::Unsupported, problem));
        };
        let own = fs::read_to_string(format!("/sys/class/net/{interface}/address"));
        let own = own.ok().and_then(|text| parse_mac(text.trim()));
        let own = own.ok_or_else(|| {
            let problem = format!("{interface}: no such interface, or not Ethernet");
            io::Error::new(io::ErrorKind::NotFound, problem)
        })?;
        let arp = fs::read_to_string("/proc/net/arp")?;
        let peer = neighbour(&arp, *to.ip(), interface).ok_or_else(|| {
            let problem = format!(
                "{}: not a neighbour on {interface}: raw frames reach a relay on the same link only",
                to.ip()
            );
            io::Error::new(io::ErrorKind::NotFound, problem)
        })?;
        let name = CString::new(interface)?;
        // SAFETY: a C string that outlives the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        let index = libc::c_int::try_from(index).unwrap_or(0);
        // Protocol 0: nothing is received.
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, owned by nothing else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let on: libc::c_int = 1;
        // SAFETY: pointer and length of `on`. Where it is not known, frames queue.
        unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_PACKET,
                libc::PACKET_QDISC_BYPASS,
                (&raw const on).cast(),
                4,
            )
        };
        let check = IcrcCheck::new(relay, local).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self {
            socket,
            index,
            macs: (own, peer),
            answers,
            local,
            relay,
            check,
            frames: Vec::new(),
            ends: Vec::new(),
        })
    }

    fn frame(&mut self, packet: &[u8]) {
        let (SocketAddr::V4(from), SocketAddr::V4(to)) = (self.local, self.relay) else {
            return;
        };
        let out = &mut self.frames;
        let udp_len = u16::try_from(packet.len() + UDP_HEADER_LEN).unwrap_or(u16::MAX);
        ethernet::Repr {
            destination: self.macs.1,
            source: self.macs.0,
            ethertype: ethertype::IPV4,
        }
        .emit(out);
        let start = out.len();
        ipv4::Repr {
            source: from.ip().to_bits(),
            destination: to.ip().to_bits(),
            protocol: UDP,
            tos: 0,
            ttl: TTL,
            identification: 0,
            fragment_offset: 0,
            more_fragments: false,
            payload_len: udp_len,
        }
        .emit(out);
        forbid_fragments(&mut out[start..]);
        UdpRepr {
            source_port: from.port(),
            destination_port: to.port(),
            payload_len: udp_len - 8,
        }
        .emit(out);
        out.extend_from_slice(packet);
        self.ends.push(out.len());
    }

    fn send_frames(&mut self) -> io::Result<()> {
        let mut address = libc::sockaddr_ll {
            sll_family: u16::try_from(libc::AF_PACKET).unwrap_or(0),
            sll_protocol: ethertype::IPV4.to_be(),
            sll_ifindex: self.index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 6,
            sll_addr: [0; 8],
        };
        // SAFETY: structures of integers and raw pointers, of which zeros are values.
        let mut vectors: [libc::iovec; FRAMES] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; FRAMES] = unsafe { std::mem::zeroed() };
        let mut start = 0;
        for (index, &end) in self.ends.iter().enumerate() {
            vectors[index].iov_base = self.frames[start..end].as_ptr().cast_mut().cast();
            vectors[index].iov_len = end - start;
            let header = &mut messages[index].msg_hdr;
            header.msg_name = (&raw mut address).cast();
            header.msg_namelen =
                libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or(0);
            header.msg_iov = &raw mut vectors[index];
            header.msg_iovlen = 1;
            start = end;
        }
        let mut done = 0;
        while done < self.ends.len() {
            let left = libc::c_uint::try_from(self.ends.len() - done).unwrap_or(0);
            // SAFETY: `left` messages from `done` on; their pointers lead to `vectors`,
            // `address` and `frames`, all of which outlive the call.
            let sent = unsafe {
                let first = messages.as_mut_ptr().add(done);
                libc::sendmmsg(self.socket.as_raw_fd(), first, left, 0)
            };
            match usize::try_from(sent) {
                Ok(sent) => done += sent,
                Err(_) => match io::Error::last_os_error() {
                    // The interface's queue is full.
                    error if error.raw_os_error() == Some(libc::ENOBUFS) => {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        Ok(())
    }
}

impl Port for RawToRelay {
    fn send(&mut self, batch: &mut PacketBatch) -> io::Result<()> {
        let outer = outer(self.local, self.relay).ok_or(io::ErrorKind::InvalidInput)?;
        let mut at = 0;
        while at < batch.len() {
            self.frames.clear();
            self.ends.clear();
            let end = (at + FRAMES).min(batch.len());
            for index in at..end {
                batch.seal(index, &outer);
                self.frame(batch.get(index));
            }
            debug_assert!(self.frames.len() > HEADERS_LEN);
            self.send_frames()?;
            at = end;
        }
        Ok(())
    }

    fn receive(&mut self, take: &mut dyn FnMut(&Packet<'_>)) -> io::Result<()> {
        let (relay, check) = (self.relay, &mut self.check);
        self.answers.receive_with(&mut |source, place, bytes| {
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
        self.answers.wait(limit).map(drop)
    }
}

/// Sets the flag in an IPv4 header, and puts its checksum right.
fn forbid_fragments(header: &mut [u8]) {
    header[6] |= 0x40;
    header[10..12].fill(0);
    let sum = ipv4::checksum(&header[..ipv4::HEADER_LEN_MIN]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut bytes = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(bytes.next()?, 16).ok()?;
    }
    bytes.next().is_none().then_some(mac)
}

/// The MAC address of a neighbour in the table of `/proc/net/arp`.
fn neighbour(table: &str, address: Ipv4Addr, interface: &str) -> Option<[u8; 6]> {
    let mut rows = table.lines().skip(1).map(str::split_whitespace);
    rows.find_map(|mut columns| {
        let is_it = columns.next()?.parse() == Ok(address);
        // Hardware type, flags, MAC address, mask, interface.
        let mac = parse_mac(columns.nth(2)?)?;
        let on = columns.nth(1)? == interface;
        (is_it && on && mac != [0; 6]).then_some(mac)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_found_in_the_kernels_table() {
        let table = "IP address HW type Flags HW address Mask Device\n\
            192.0.2.7 0x1 0x0 00:00:00:00:00:00 * eth0\n\
            192.0.2.8 0x1 0x2 02:00:00:00:00:08 * eth1\n";
        let find = |last: u8, name| neighbour(table, Ipv4Addr::new(192, 0, 2, last), name);
        assert_eq!(find(8, "eth1"), Some([2, 0, 0, 0, 0, 8]));
        assert_eq!(find(8, "eth0"), None);
        assert_eq!(find(7, "eth0"), None, "not resolved");
        assert_eq!(parse_mac("02:00:00:00:00"), None);
    }
}
