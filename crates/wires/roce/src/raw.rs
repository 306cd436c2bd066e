//! RoCEv2 in whole frames through an `AF_PACKET` socket, bypassing the kernel's UDP, IP and
//! queueing discipline. Replies come through a UDP socket.
//!
//! A run of packets goes as one frame, as large as an IP packet may be, with a header that says
//! where to cut it (`PACKET_VNET_HDR`, Linux 6.2): the bytes go from the batch to the kernel
//! without being assembled first. If a driver cannot take such a frame, packets go one by one.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use strata_rdma::PacketBatch;
use strata_sys::interface;
use strata_sys::socket::{self, Destination, Message};
use strata_wire::ethernet::{self, ethertype};
use strata_wire::roce::{Packet, icrc};
use strata_wire::transport::{UDP_HEADER_LEN, UdpRepr};
use strata_wire::{exact, ipv4};

use crate::Port;
use crate::icrc::outer;
use crate::run::{self, RUNS, Run};
use crate::udp::{Answers, UdpPort};

/// Ethernet, IPv4 and UDP headers.
const HEADERS_LEN: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN_MIN + UDP_HEADER_LEN;
/// `struct virtio_net_hdr` (virtio 1.2 §5.1.6).
const VIRTIO_LEN: usize = 10;
const TTL: u8 = 64;
const UDP: u8 = 17;

/// An interface, to a peer on the same link.
#[derive(Debug)]
pub struct RawToPeer {
    socket: OwnedFd,
    link: Link,
    icrcs: icrc::Stream,
    /// Whether the kernel cuts runs for us.
    segmentation: bool,
    answers: Answers,
}

/// Where frames go.
#[derive(Debug)]
struct Link {
    index: u32,
    own: [u8; 6],
    peer: [u8; 6],
    from: SocketAddrV4,
    to: SocketAddrV4,
}

impl RawToPeer {
    /// Frames from `local`, to which `answers` is bound, through `interface` to the peer, whose MAC
    /// address the kernel must know: talk to it first.
    ///
    /// # Errors
    ///
    /// If the interface or the peer's MAC address is unknown, the addresses are not IPv4, or the
    /// operating system refuses.
    pub fn new(
        interface: &str,
        answers: UdpPort,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> io::Result<Self> {
        let (SocketAddr::V4(from), SocketAddr::V4(to)) = (local, peer) else {
            let problem = "raw frames are sent over IPv4 only";
            return Err(io::Error::new(io::ErrorKind::Unsupported, problem));
        };
        let outer = outer(local, peer).ok_or(io::ErrorKind::InvalidInput)?;
        // Protocol 0: nothing is received.
        let socket = socket::packet_socket(false)?;
        let fd = socket.as_fd();
        // Where the option is unknown, frames queue, and a failure to cut them is not reported.
        let bypass = socket::set_number(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1);
        socket::set_number(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        Ok(Self {
            socket,
            link: Link::to(interface, from, to)?,
            icrcs: icrc::Stream::new(outer),
            segmentation: bypass.is_ok(),
            answers: Answers::new(answers, local, peer)?,
        })
    }
}

impl Link {
    fn to(interface: &str, from: SocketAddrV4, to: SocketAddrV4) -> io::Result<Self> {
        let own = fs::read_to_string(format!("/sys/class/net/{interface}/address"));
        let own = own.ok().and_then(|text| parse_mac(text.trim()));
        let own = own.ok_or_else(|| {
            let problem = format!("{interface}: no such interface, or not Ethernet");
            io::Error::new(io::ErrorKind::NotFound, problem)
        })?;
        let arp = fs::read_to_string("/proc/net/arp")?;
        let peer = neighbour(&arp, *to.ip(), interface).ok_or_else(|| {
            let problem = format!(
                "{}: not a neighbour on {interface}: raw frames reach hosts on the same link only",
                to.ip()
            );
            io::Error::new(io::ErrorKind::NotFound, problem)
        })?;
        let index = interface::index(interface)?;
        Ok(Self {
            index,
            own,
            peer,
            from,
            to,
        })
    }

    /// What precedes a run: how to cut it, and the headers of its frames.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a run of ours has at most 65,000 bytes; the place was just written"
    )]
    fn headers(&self, run: &Run<'_>) -> Vec<u8> {
        let mut out = Vec::with_capacity(VIRTIO_LEN + HEADERS_LEN);
        out.extend_from_slice(&cut(run));
        ethernet::Repr {
            destination: self.peer,
            source: self.own,
            ethertype: ethertype::IPV4,
        }
        .emit(&mut out);
        let payload_len = exact::<u16>(run.bytes.len());
        let udp_len = exact::<u16>(run.bytes.len() + UDP_HEADER_LEN);
        let start = out.len();
        let (source, destination) = (self.from.ip().to_bits(), self.to.ip().to_bits());
        ipv4::Repr {
            source,
            destination,
            protocol: UDP,
            tos: 0,
            ttl: TTL,
            identification: 0,
            fragment_offset: 0,
            more_fragments: false,
            payload_len: udp_len,
        }
        .emit(&mut out);
        forbid_fragments(&mut out[start..]);
        let start = out.len();
        UdpRepr {
            source_port: self.from.port(),
            destination_port: self.to.port(),
            payload_len,
        }
        .emit(&mut out);
        if run.packets > 1 {
            // Only of the pseudo header: the card or kernel that cuts adds the rest.
            let mut pseudo = [0; 12];
            pseudo[..4].copy_from_slice(&source.to_be_bytes());
            pseudo[4..8].copy_from_slice(&destination.to_be_bytes());
            pseudo[9] = UDP;
            pseudo[10..].copy_from_slice(&udp_len.to_be_bytes());
            let sum = !ipv4::checksum(&pseudo);
            out[start + CHECKSUM_AT..start + CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
        }
        out
    }
}

/// Where in a UDP header the checksum is.
const CHECKSUM_AT: usize = 6;

/// The header that says how a run is cut.
///
/// ```text
/// 0 flags u8, 1: a checksum is to be put in | kind u8, 5: UDP | header length u16
/// 4 packet length u16 | checksum from u16 | checksum at u16, after that
/// ```
#[expect(
    clippy::arithmetic_side_effects,
    reason = "places of a constant header"
)]
fn cut(run: &Run<'_>) -> [u8; VIRTIO_LEN] {
    let mut out = [0; VIRTIO_LEN];
    if run.packets > 1 {
        (out[0], out[1]) = (1, 5);
        let mut put = |at: usize, value: usize| {
            out[at..at + 2].copy_from_slice(&exact::<u16>(value).to_ne_bytes());
        };
        put(2, HEADERS_LEN);
        put(4, run.packet_len);
        put(6, HEADERS_LEN - UDP_HEADER_LEN);
        put(8, CHECKSUM_AT);
    }
    out
}

fn send_runs(socket: &OwnedFd, link: &Link, runs: &[Run<'_>]) -> io::Result<()> {
    let to = Destination::Link {
        ifindex: link.index,
        ethertype: ethertype::IPV4,
    };
    let headers: Vec<Vec<u8>> = runs.iter().map(|run| link.headers(run)).collect();
    let mut messages = [Message::default(); RUNS];
    for ((message, headers), run) in messages.iter_mut().zip(&headers).zip(runs) {
        message.parts = [headers, run.bytes];
    }
    socket::send_all::<RUNS>(socket.as_fd(), &to, &messages[..runs.len()])
}

impl Port for RawToPeer {
    fn send(&mut self, batch: &mut PacketBatch) -> io::Result<()> {
        let Self {
            socket,
            link,
            icrcs,
            segmentation,
            ..
        } = self;
        run::send(batch, icrcs, segmentation, |runs| {
            send_runs(socket, link, runs)
        })
    }

    fn receive(&mut self, take: &mut dyn FnMut(&Packet<'_>)) -> io::Result<()> {
        self.answers.receive(take)
    }

    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        self.answers.wait(limit)
    }
}

/// Sets the flag in an IPv4 header, and corrects its checksum.
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
