//! A destination and its sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};

use strata_control::config::NamedDestination;
use strata_exporter::{Channel, Destination, LEN_MIN, LEN_USUAL, SEALED_MORE, vxlan};
use strata_rules::DestinationName;
use strata_sys::socket::{self, may_fragment, never_fragment, path_mtu};
use strata_wire::exact;

use super::own::Own;
use crate::error::{At as _, RecordError, Result};

/// Bytes of a datagram at most, however much the path carries: a loss then costs no more.
const ROOM_MAX: usize = 8952;
/// Bytes of the send buffer: what waits for a slow network card.
const SEND_BUFFER: u32 = 4 << 20;

/// Sockets to a receiver of VXLAN: what leaves by each has another source port.
const VXLAN_SOCKETS: u16 = 8;
/// Ports for them (RFC 7348, section 5), which have to be one after the other, and how often some are tried.
const VXLAN_PORTS: RangeInclusive<u16> = 49_152..=65_535;
const ATTEMPTS: usize = 64;
/// Maximum bytes of a UDP datagram: what IPv4 can say (RFC 791), less its header and UDP's.
pub(super) const DATAGRAM_MAX: usize = 65_507;

/// Sockets that send to one address.
#[derive(Debug)]
struct Connected {
    own: Own,
    sockets: Vec<UdpSocket>,
}

/// This number of sockets, with ports one after the other.
fn bound(any: IpAddr, sockets: u16) -> io::Result<Vec<UdpSocket>> {
    if sockets <= 1 {
        return Ok(vec![UdpSocket::bind((any, 0))?]);
    }
    let firsts = (VXLAN_PORTS.end() - VXLAN_PORTS.start()).saturating_sub(sockets);
    let mut last = io::Error::other("no ports are free");
    for _ in 0..ATTEMPTS {
        let random = getrandom::u32().map_err(io::Error::other)?;
        let first = VXLAN_PORTS.start() + exact::<u16>(random % u32::from(firsts));
        let all = (first..first + sockets).map(|port| UdpSocket::bind((any, port)));
        match all.collect() {
            Ok(all) => return Ok(all),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Connected {
    /// Fails if there is no route, or no address to send from.
    fn to(address: SocketAddr, destination: &Destination) -> io::Result<Self> {
        let any: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let is_vxlan = destination.channel == Channel::Vxlan;
        let fragments = may_be_fragmented(destination);
        let sockets = bound(any, if is_vxlan { VXLAN_SOCKETS } else { 1 })?;
        for socket in &sockets {
            socket.connect(address)?;
            socket.set_nonblocking(true)?;
            let set = if fragments {
                may_fragment
            } else {
                never_fragment
            };
            set(socket.as_fd(), address.is_ipv6())?;
            // Less than that is not an error.
            let _ = socket::set_send_buffer(socket.as_fd(), SEND_BUFFER);
        }
        let own = Own {
            from: sockets[0].local_addr()?,
            to: address,
            sockets: exact::<u16>(sockets.len()),
            may_fragment: fragments,
        };
        Ok(Self { own, sockets })
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            own: self.own,
            sockets: self
                .sockets
                .iter()
                .map(UdpSocket::try_clone)
                .collect::<io::Result<_>>()?,
        })
    }

    /// Bytes that a datagram may have on the path, with IP and UDP header.
    fn carries(&self) -> io::Result<usize> {
        let is_v6 = self.own.to.is_ipv6();
        let headers = if is_v6 { 48 } else { 28 };
        path_mtu(self.sockets[0].as_fd(), is_v6).map(|mtu| mtu.saturating_sub(headers))
    }
}

/// Whether datagrams that are longer than the path carries are sent in IP fragments.
fn may_be_fragmented(destination: &Destination) -> bool {
    destination.channel == Channel::Vxlan && !destination.is_cut
}

/// A destination and its sockets.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: DestinationName,
    pub(super) destination: Destination,
    /// `None` while the address of its name is not known.
    address: Option<SocketAddr>,
    /// `None` until it could be reached once.
    connected: Option<Connected>,
    /// Whether it is tried again.
    pub(super) may_wait: bool,
}

impl Target {
    /// Opens a socket to a destination, which `must_reach` it.
    pub(super) fn open(named: &NamedDestination, must_reach: bool) -> Result<Self> {
        let NamedDestination {
            name,
            destination,
            address,
        } = named;
        let look_up = || -> io::Result<SocketAddr> {
            let host = (destination.host.as_str(), destination.port);
            let address = host.to_socket_addrs()?.next();
            address.ok_or_else(|| io::Error::other("the name has no address"))
        };
        let (address, connected) = match must_reach {
            true => {
                let address = address.map_or_else(look_up, Ok);
                let opened =
                    address.and_then(|address| Ok((address, Connected::to(address, destination)?)));
                let (address, connected) = opened.map_err(RecordError::from).at_with(|| {
                    format!("export.destinations.{name}: {destination}: cannot be reached")
                })?;
                (Some(address), Some(connected))
            }
            // The thread that sends says why not.
            false => {
                let connected =
                    address.and_then(|address| Connected::to(address, destination).ok());
                (*address, connected)
            }
        };
        Ok(Self {
            name: *name,
            destination: destination.clone(),
            address,
            connected,
            may_wait: !must_reach,
        })
    }

    /// A second handle of the same socket.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let connected = self.connected.as_ref().map(Connected::try_clone);
        Ok(Self {
            name: self.name,
            destination: self.destination.clone(),
            address: self.address,
            connected: connected.transpose()?,
            may_wait: self.may_wait,
        })
    }

    /// Its two ends, if it has been reached.
    pub(super) fn own(&self) -> Option<Own> {
        self.connected.as_ref().map(|connected| connected.own)
    }

    /// Looks for a way to its address. The socket stays if another one would have the same ends.
    pub(super) fn connect(&mut self) -> io::Result<()> {
        let address = self.address.ok_or_else(not_looked_up)?;
        let found = Connected::to(address, &self.destination)?;
        let ends = |own: Own| (own.from.ip(), own.to);
        if self.own().map(ends) != Some(ends(found.own)) {
            self.connected = Some(found);
        }
        Ok(())
    }

    /// One of its sockets, by number.
    pub(super) fn socket(&self, way: usize) -> Option<BorrowedFd<'_>> {
        let sockets = &self.connected.as_ref()?.sockets;
        sockets.get(way).map(UdpSocket::as_fd)
    }

    /// How many sockets it has, or will have.
    pub(super) fn ways(&self) -> usize {
        match self.destination.channel {
            Channel::Udp => 1,
            Channel::Vxlan => VXLAN_SOCKETS.into(),
        }
    }

    pub(super) fn has_address(&self) -> bool {
        self.address.is_some()
    }

    /// Sends to this address from the next [`Target::connect`] on, if it is known; returns whether it is another.
    pub(super) fn use_address(&mut self, address: Option<SocketAddr>) -> bool {
        let is_other = address.is_some() && address != self.address;
        if is_other {
            self.address = address;
        }
        is_other
    }

    /// Bytes of a datagram that the path carries in one packet, as far as is known now.
    pub(super) fn carries(&self) -> usize {
        let carried = self.connected.as_ref().map(Connected::carries);
        carried.and_then(io::Result::ok).unwrap_or(LEN_USUAL)
    }

    /// Bytes of the longest frame that the path carries in one packet, of VXLAN; `None` of others, which are never too
    /// long, and as long as there is no way to the destination.
    pub(super) fn frames(&self) -> Option<usize> {
        let is_vxlan = self.destination.channel == Channel::Vxlan;
        let carried = self
            .connected
            .as_ref()
            .filter(|_| is_vxlan)?
            .carries()
            .ok()?;
        Some(carried.saturating_sub(vxlan::HEADER_LEN))
    }

    /// Bytes that a datagram may have, as far as is known now, before it is encrypted.
    pub(super) fn room(&self, is_sealed: bool) -> usize {
        if may_be_fragmented(&self.destination) {
            return DATAGRAM_MAX;
        }
        let carried = self.carries();
        let more = if is_sealed { SEALED_MORE } else { 0 };
        carried.clamp(LEN_MIN + more, ROOM_MAX) - more
    }
}

/// The resolver reports why names have no address.
fn not_looked_up() -> io::Error {
    io::Error::other("the address of its name is not known")
}
