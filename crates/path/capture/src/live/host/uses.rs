//! What on this host uses an interface, and would lose its packets if they were taken away.
//!
//! What a program does later, and what lies in other network namespaces, cannot be seen; of the
//! latter a MAC address on the interface that is not its own is a sign (a container's macvlan).

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use strata_sys::bpf;

use super::interface::{ANY, Device};
use super::netlink::{Netlink, attribute, malformed, text, u16_at, u32_at};
use crate::live::error::LiveError;

/// Maximum number of uses of an interface that are kept, of each kind.
const EXAMPLES: usize = 2;

/// A use of an interface by this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// It has this address.
    Address(IpAddr, u8),
    /// A route leads out of it: to this address, in this table.
    Route(IpAddr, u8, u32),
    /// It is a port of this bridge, bond, team, VRF or virtual switch.
    Master(String),
    /// This interface is stacked on it: a VLAN, macvlan, ipvlan, tunnel ...
    Upper(String),
    /// It receives for this MAC address, which is not its own.
    Mac(String),
    /// An XDP program is attached.
    Xdp,
    /// Traffic control looks at what it receives: `clsact`, `ingress` or `tcx`.
    TrafficControl(String),
    /// A program has a packet socket on it, or on all interfaces (then 0).
    PacketSocket(u32),
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address, bits) => write!(f, "has address {address}/{bits}"),
            Self::Route(to, bits, table) => {
                write!(f, "has a route, to {to}/{bits}")?;
                match *table {
                    MAIN_TABLE => Ok(()),
                    table => write!(f, " in table {table}"),
                }
            }
            Self::Master(name) => write!(f, "belongs to {name}"),
            Self::Upper(name) => write!(f, "carries {name}"),
            Self::Mac(mac) => write!(
                f,
                "receives packets for {mac} too, perhaps for a container's interface on top of it"
            ),
            Self::Xdp => f.write_str("has an XDP program"),
            Self::TrafficControl(what) => write!(f, "has tc programs or filters ({what})"),
            Self::PacketSocket(0) => {
                f.write_str("a program captures from all interfaces (a packet socket)")
            }
            Self::PacketSocket(_) => {
                f.write_str("another program captures from it (a packet socket)")
            }
        }
    }
}

/// `RT_TABLE_MAIN` (linux/rtnetlink.h).
const MAIN_TABLE: u32 = 254;

/// What uses each interface of this host, at one moment.
///
/// Memory: a few entries for each interface and kind of use.
#[derive(Clone, Debug, Default)]
pub struct HostUses {
    /// By the number of the interface, 0 for all of them.
    found: BTreeMap<u32, Vec<Use>>,
}

impl HostUses {
    /// Looks at all interfaces of this thread's network namespace.
    ///
    /// # Errors
    ///
    /// If the kernel does not tell.
    pub fn now() -> Result<Self, LiveError> {
        Self::read(None).map_err(|(call, source)| LiveError::System {
            interface: ANY.into(),
            call,
            source,
        })
    }

    /// Looks at one interface only, which takes less time on a router.
    ///
    /// # Errors
    ///
    /// As [`HostUses::now`].
    pub fn of_device(device: &Device) -> Result<Self, LiveError> {
        Self::read(Some(device.index)).map_err(|(call, source)| device.error(call)(source))
    }

    /// The same without the XDP program, which is the caller's own.
    pub(in crate::live) fn without_xdp(mut self) -> Self {
        for uses in self.found.values_mut() {
            uses.retain(|found| *found != Use::Xdp);
        }
        self
    }

    /// What uses this interface. Packet sockets that only send are not among it.
    #[must_use]
    pub fn of(&self, device: &Device) -> Vec<Use> {
        let all = [device.index, 0];
        let found = all.iter().filter_map(|index| self.found.get(index));
        found.flatten().cloned().collect()
    }

    fn read(only: Option<u32>) -> Result<Self, (&'static str, io::Error)> {
        let fail = |call: &'static str| move |error: io::Error| (call, error);
        let mut uses = Self::default();
        let mut netlink = Netlink::open().map_err(fail("NETLINK_ROUTE"))?;
        let indices = uses.links(&mut netlink).map_err(fail("RTM_GETLINK"))?;
        uses.addresses(&mut netlink).map_err(fail("RTM_GETADDR"))?;
        uses.routes(&mut netlink, only)
            .map_err(fail("RTM_GETROUTE"))?;
        uses.neighbours(&mut netlink)
            .map_err(fail("RTM_GETNEIGH"))?;
        uses.queueing(&mut netlink).map_err(fail("RTM_GETQDISC"))?;
        let wanted = |index: &&u32| only.is_none_or(|only| only == **index);
        for &index in indices.iter().filter(wanted) {
            if bpf::has_tcx(index).map_err(fail("BPF_PROG_QUERY"))? {
                uses.add(index, Use::TrafficControl("tcx".into()));
            }
        }
        uses.packet_sockets().map_err(fail("/proc/net/packet"))?;
        Ok(uses)
    }

    fn add(&mut self, index: u32, new: Use) {
        let all = self.found.entry(index).or_default();
        let kind = std::mem::discriminant(&new);
        let alike = all
            .iter()
            .filter(|known| std::mem::discriminant(*known) == kind);
        if alike.count() < EXAMPLES && !all.contains(&new) {
            all.push(new);
        }
    }

    /// Masters, stacked interfaces and XDP programs. Returns the numbers of all interfaces.
    fn links(&mut self, netlink: &mut Netlink) -> io::Result<Vec<u32>> {
        // linux/if_link.h; the header is `struct ifinfomsg`.
        const HEADER_LEN: usize = 16;
        const GET: u16 = 18;
        const NAME: u16 = 3;
        const LINK: u16 = 5;
        const MASTER: u16 = 10;
        const INFO: u16 = 18;
        const LINK_NAMESPACE: u16 = 37;
        const XDP: u16 = 43;
        const INFO_KIND: u16 = 1;
        const XDP_ATTACHED: u16 = 2;
        /// Their "link" is the other end.
        const PAIRS: [&str; 3] = ["veth", "vxcan", "netkit"];
        let links = netlink.dump(GET, &[0; HEADER_LEN])?;
        let mut names = BTreeMap::new();
        for (_, link) in &links {
            let name = attribute(link, HEADER_LEN, NAME).map_or_else(String::new, text);
            names.insert(u32_at(link, 4)?, name);
        }
        for (_, link) in &links {
            let index = u32_at(link, 4)?;
            let find = |wanted| attribute(link, HEADER_LEN, wanted);
            if let Some(master) = find(MASTER) {
                let master = u32_at(master, 0)?;
                let name = names.get(&master).cloned();
                let name = name.unwrap_or_else(|| format!("interface {master}"));
                self.add(index, Use::Master(name));
            }
            let program = find(XDP).and_then(|xdp| attribute(xdp, 0, XDP_ATTACHED));
            if program.is_some_and(|mode| mode != [0]) {
                self.add(index, Use::Xdp);
            }
            let kind = find(INFO).and_then(|info| attribute(info, 0, INFO_KIND));
            let is_end = kind.is_some_and(|kind| PAIRS.contains(&&*text(kind)));
            if let (Some(below), None, false) = (find(LINK), find(LINK_NAMESPACE), is_end) {
                let below = u32_at(below, 0)?;
                if below != index && below != 0 {
                    self.add(below, Use::Upper(names[&index].clone()));
                }
            }
        }
        Ok(names.into_keys().collect())
    }

    fn addresses(&mut self, netlink: &mut Netlink) -> io::Result<()> {
        // linux/if_addr.h; the header is `struct ifaddrmsg`.
        const HEADER_LEN: usize = 8;
        const GET: u16 = 22;
        const ADDRESS: u16 = 1;
        const LOCAL: u16 = 2;
        for (_, found) in netlink.dump(GET, &[0; HEADER_LEN])? {
            let local = attribute(&found, HEADER_LEN, LOCAL);
            let address = local.or_else(|| attribute(&found, HEADER_LEN, ADDRESS));
            let address = address.and_then(ip_address);
            let bits = found.get(1).copied();
            if let Some((address, bits)) = address.zip(bits) {
                self.add(u32_at(&found, 4)?, Use::Address(address, bits));
            }
        }
        Ok(())
    }

    /// Routes of all tables but those that follow from addresses.
    fn routes(&mut self, netlink: &mut Netlink, only: Option<u32>) -> io::Result<()> {
        // linux/rtnetlink.h; the header is `struct rtmsg`.
        const HEADER_LEN: usize = 12;
        const GET: u16 = 26;
        const TO: u16 = 1;
        const OUT: u16 = 4;
        const MULTIPATH: u16 = 9;
        const TABLE: u16 = 15;
        const LOCAL_TABLE: u32 = 255;
        let mut request = vec![0; HEADER_LEN];
        if let Some(index) = only {
            request.extend(8_u16.to_ne_bytes());
            request.extend(OUT.to_ne_bytes());
            request.extend(index.to_ne_bytes());
        }
        for (_, route) in netlink.dump(GET, &request)? {
            let find = |wanted| attribute(&route, HEADER_LEN, wanted);
            let &[family, bits, _, _, table, ..] = &route[..] else {
                return Err(malformed());
            };
            let table = match find(TABLE) {
                Some(table) => u32_at(table, 0)?,
                None => u32::from(table),
            };
            if table == LOCAL_TABLE {
                continue;
            }
            let anywhere = match i32::from(family) {
                libc::AF_INET6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
                _ => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            };
            let to = find(TO).and_then(ip_address).unwrap_or(anywhere);
            let found = Use::Route(to, bits, table);
            if let Some(out) = find(OUT) {
                self.add(u32_at(out, 0)?, found.clone());
            }
            for hop in find(MULTIPATH).map_or_else(Vec::new, next_hops) {
                self.add(hop, found.clone());
            }
        }
        Ok(())
    }

    /// MAC addresses for which an interface receives in addition to its own. A bridge's own table
    /// is not read: its ports have a master.
    fn neighbours(&mut self, netlink: &mut Netlink) -> io::Result<()> {
        // linux/neighbour.h; the header is `struct ndmsg`.
        const HEADER_LEN: usize = 12;
        const GET: u16 = 30;
        const MAC: u16 = 2;
        const SELF: u8 = 1 << 1;
        let mut request = [0; HEADER_LEN];
        request[0] = u8::try_from(libc::AF_BRIDGE).map_err(io::Error::other)?;
        for (_, entry) in netlink.dump(GET, &request)? {
            let Some(mac) = attribute(&entry, HEADER_LEN, MAC) else {
                continue;
            };
            let is_group = mac.first().is_none_or(|first| first & 1 != 0);
            if entry.get(10).is_some_and(|flags| flags & SELF != 0) && !is_group {
                let mac: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
                self.add(u32_at(&entry, 4)?, Use::Mac(mac.join(":")));
            }
        }
        Ok(())
    }

    /// The queueing disciplines that hold filters for received packets.
    fn queueing(&mut self, netlink: &mut Netlink) -> io::Result<()> {
        // linux/rtnetlink.h; the header is `struct tcmsg`.
        const HEADER_LEN: usize = 20;
        const GET: u16 = 38;
        const KIND: u16 = 1;
        for (_, found) in netlink.dump(GET, &[0; HEADER_LEN])? {
            let kind = attribute(&found, HEADER_LEN, KIND).map_or_else(String::new, text);
            if kind == "clsact" || kind == "ingress" {
                self.add(u32_at(&found, 4)?, Use::TrafficControl(kind));
            }
        }
        Ok(())
    }

    /// The packet sockets that receive: those with a protocol.
    fn packet_sockets(&mut self) -> io::Result<()> {
        // Of this thread's network namespace.
        let sockets = fs::read_to_string("/proc/thread-self/net/packet")?;
        for line in sockets.lines().skip(1) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let (Some(protocol), Some(index)) = (columns.get(3), columns.get(4)) else {
                return Err(io::Error::other("a line has too few columns"));
            };
            if u16::from_str_radix(protocol, 16).map_err(io::Error::other)? != 0 {
                let index = index.parse().map_err(io::Error::other)?;
                self.add(index, Use::PacketSocket(index));
            }
        }
        Ok(())
    }
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(bytes).into());
    }
    let bytes = <[u8; 16]>::try_from(bytes).ok()?;
    Some(Ipv6Addr::from(bytes).into())
}

/// The interfaces of `struct rtnexthop`s.
fn next_hops(mut rest: &[u8]) -> Vec<u32> {
    let mut all = Vec::new();
    while let (Ok(len), Ok(index)) = (u16_at(rest, 0), u32_at(rest, 4)) {
        all.push(index);
        // Shorter than itself: what follows cannot be found.
        if len < 8 {
            break;
        }
        rest = rest
            .get(usize::from(len).next_multiple_of(4)..)
            .unwrap_or(&[]);
    }
    all
}
