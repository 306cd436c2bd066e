//! A destination and its socket.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use strata_control::config::NamedDestination;
use strata_exporter::{Destination, LEN_MIN, LEN_USUAL, SEALED_MORE};
use strata_rules::DestinationName;
use strata_sys::socket::{self, never_fragment, path_mtu};

use super::own::Own;
use crate::error::{At as _, RecordError, Result};

/// Bytes of a datagram at most, however much the path carries: a loss then costs no more.
pub(super) const ROOM_MAX: usize = 8952;
/// Bytes of the send buffer: what waits for a slow network card.
const SEND_BUFFER: u32 = 4 << 20;

/// A socket that sends to one address.
#[derive(Debug)]
struct Connected {
    own: Own,
    socket: UdpSocket,
}

impl Connected {
    /// Fails if there is no route, or no address to send from.
    fn to(address: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        never_fragment(socket.as_fd(), address.is_ipv6())?;
        // Less than that is not an error.
        let _ = socket::set_send_buffer(socket.as_fd(), SEND_BUFFER);
        let from = socket.local_addr()?;
        let own = Own { from, to: address };
        Ok(Self { own, socket })
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            own: self.own,
            socket: self.socket.try_clone()?,
        })
    }

    /// Bytes that a datagram may have on the path, with IP and UDP header.
    fn carries(&self) -> io::Result<usize> {
        let is_v6 = self.own.to.is_ipv6();
        let headers = if is_v6 { 48 } else { 28 };
        path_mtu(self.socket.as_fd(), is_v6).map(|mtu| mtu.saturating_sub(headers))
    }
}

/// A destination and its socket.
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
                let opened = address.and_then(|address| Ok((address, Connected::to(address)?)));
                let (address, connected) = opened.map_err(RecordError::from).at_with(|| {
                    format!("export.destinations.{name}: {destination}: cannot be reached")
                })?;
                (Some(address), Some(connected))
            }
            // The thread that sends says why not.
            false => {
                let connected = address.and_then(|address| Connected::to(address).ok());
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
        let found = Connected::to(address)?;
        let ends = |own: Own| (own.from.ip(), own.to);
        if self.own().map(ends) != Some(ends(found.own)) {
            self.connected = Some(found);
        }
        Ok(())
    }

    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.connected.as_ref().map(|one| one.socket.as_fd())
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

    /// Bytes that a datagram may have on the path, as far as is known now, before it is encrypted.
    pub(super) fn room(&self, is_sealed: bool) -> usize {
        let carried = self.connected.as_ref().map(Connected::carries);
        let carried = carried.and_then(io::Result::ok).unwrap_or(LEN_USUAL);
        let more = if is_sealed { SEALED_MORE } else { 0 };
        carried.clamp(LEN_MIN + more, ROOM_MAX) - more
    }
}

/// The resolver reports why names have no address.
fn not_looked_up() -> io::Error {
    io::Error::other("the address of its name is not known")
}
