//! Network interfaces: what they are, and how they can be captured.

use std::fs;
use std::io;
use std::sync::OnceLock;

use strata_sys::interface as asked;
use strata_sys::socket::packet_socket;
use strata_wire::{LinkType, exact};

use super::netlink::{Netlink, attribute, malformed, text};
use crate::live::error::{LiveError, PERMIT};

/// The name under which all interfaces are captured together.
pub const ANY: &str = "any";

/// A network interface as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its number; 0 for all interfaces together.
    pub index: u32,
    /// What the first bytes of its captured packets mean.
    pub link: LinkType,
    /// Whether it is set up (`IFF_UP`).
    pub is_up: bool,
    /// Whether it has a carrier (`IFF_RUNNING`).
    pub is_running: bool,
    /// Whether it is a loopback to this host.
    pub is_loopback: bool,
    /// Speed in Mb/s, if its driver reports it.
    pub speed_mbps: Option<u32>,
    /// Bytes of the largest packet that it sends, without the link-layer header.
    pub mtu: u32,
}

/// Default ring sizes: what the link delivers in a fifth of a second, within these bounds and a
/// sixteenth of the memory. It bridges pauses of the worker and of the disk.
const RING_BYTES_MIN: usize = 32 << 20;
const RING_BYTES_MAX: usize = 512 << 20;
const RING_BYTES_UNKNOWN: usize = 64 << 20;

/// What an AF_XDP frame holds in addition to a packet: the kernel's `XDP_PACKET_HEADROOM`, and its
/// `skb_shared_info` after the data.
const XDP_OVERHEAD_BYTES: u32 = 256 + 320;
/// The largest MTU of which each packet fits an AF_XDP frame.
pub(in crate::live) const XDP_MTU_MAX: u32 = 4096 - XDP_OVERHEAD_BYTES - 18;

impl Device {
    /// All interfaces, by number, and last [`ANY`].
    ///
    /// # Errors
    ///
    /// If the kernel does not tell.
    pub fn all() -> Result<Vec<Self>, LiveError> {
        let names = asked::names().map_err(|source| LiveError::System {
            interface: ANY.into(),
            call: "if_nameindex",
            source,
        })?;
        let mut found = Vec::new();
        for (_, name) in names {
            match Self::named(&name) {
                // It may have gone away in the meantime.
                Err(LiveError::NoSuchInterface { .. }) => {}
                device => found.push(device?),
            }
        }
        found.push(Self::any());
        Ok(found)
    }

    /// The interface with this name.
    ///
    /// # Errors
    ///
    /// If there is no such interface.
    pub fn named(name: &str) -> Result<Self, LiveError> {
        if name == ANY {
            return Ok(Self::any());
        }
        let fail = |call: &'static str| {
            move |source: io::Error| match source.raw_os_error() {
                Some(libc::ENODEV | libc::ENXIO) => LiveError::NoSuchInterface {
                    name: name.to_owned(),
                    known: known_names(),
                },
                _ => LiveError::System {
                    interface: name.to_owned(),
                    call,
                    source,
                },
            }
        };
        let index = asked::index(name).map_err(fail("SIOCGIFINDEX"))?;
        let flags = i32::from(asked::flags(name).map_err(fail("SIOCGIFFLAGS"))?);
        let hardware = asked::hardware(name).map_err(fail("SIOCGIFHWADDR"))?;
        let mtu = asked::mtu(name).map_err(fail("SIOCGIFMTU"))?;
        Ok(Self {
            name: name.to_owned(),
            index,
            link: link_type(hardware),
            is_up: flags & libc::IFF_UP != 0,
            is_running: flags & libc::IFF_RUNNING != 0,
            is_loopback: flags & libc::IFF_LOOPBACK != 0,
            speed_mbps: speed_mbps(name),
            mtu,
        })
    }

    /// The interface whose packets it shows as sent and as received, if it shows one: a socket can ignore what is
    /// sent, but not a group of sockets.
    pub(in crate::live) fn seen_twice(&self, loopback: Option<u32>) -> Option<u32> {
        match self.index {
            0 => loopback,
            index => self.is_loopback.then_some(index),
        }
    }

    fn any() -> Self {
        Self {
            name: ANY.into(),
            index: 0,
            link: LinkType::LINUX_SLL2,
            is_up: true,
            is_running: true,
            is_loopback: false,
            speed_mbps: None,
            mtu: 0,
        }
    }

    /// `count` interfaces with Ethernet headers that share a socket.
    pub(in crate::live) fn together(count: usize) -> Self {
        Self {
            name: format!("{count} interfaces"),
            link: LinkType::ETHERNET,
            ..Self::any()
        }
    }

    /// Bytes of a ring large enough for pauses at the link's rate.
    pub(in crate::live) fn ring_bytes(&self) -> usize {
        let wanted = self.speed_mbps.map_or(RING_BYTES_UNKNOWN, |mbps| {
            // A fifth of a second: 10^6 / 8 / 5 bytes for each Mb/s.
            (mbps as usize).saturating_mul(25_000)
        });
        let share = memory_bytes().map_or(RING_BYTES_MAX, |bytes| bytes / 16);
        wanted
            .clamp(RING_BYTES_MIN, RING_BYTES_MAX)
            .min(share.max(RING_BYTES_MIN))
    }

    /// Turns errors of system calls into ones about this interface.
    pub(in crate::live) fn error(&self, call: &'static str) -> impl FnOnce(io::Error) -> LiveError {
        let interface = self.name.clone();
        move |source| LiveError::System {
            interface,
            call,
            source,
        }
    }
}

/// Interfaces that are named where one is not found: hosts of virtual machines have hundreds.
const NAMED_MAX: usize = 20;

fn known_names() -> String {
    match asked::names() {
        Ok(names) => first_names(in_words(names)),
        Err(error) => format!("interfaces that the kernel does not list ({error})"),
    }
}

/// Interfaces as they can be given. Those with a comma in their names come first, with the number to give instead.
fn in_words(mut names: Vec<(u32, String)>) -> Vec<String> {
    let has_comma = |name: &str| name.contains(',');
    names.sort_by_key(|(_, name)| !has_comma(name));
    let word = |(number, name): (u32, String)| match has_comma(&name) {
        true => format!("'{name}' (commas separate names: give its number, {number})"),
        false => name,
    };
    names.into_iter().map(word).collect()
}

fn first_names(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    if more > 0 {
        names.push(format!("{more} more (ip link)"));
    }
    names.join(", ")
}

/// `ARPHRD_*` of linux/if_arp.h, as libpcap 1.10 reads them. What has no usable link-layer header
/// of its own is captured cooked.
fn link_type(hardware: u16) -> LinkType {
    match hardware {
        // Ethernet, loopback
        1 | 772 => LinkType::ETHERNET,
        // 802.11: bare, with Prism, with radiotap header
        801 => LinkType::IEEE802_11,
        802 => LinkType::IEEE802_11_PRISM,
        803 => LinkType::IEEE802_11_RADIOTAP,
        // IP in IP, SIT, GRE over IPv4 and IPv6, raw IP, nothing at all (WireGuard, tun)
        768 | 769 | 776 | 778 | 823 | 519 | 0xfffe => LinkType::RAW,
        _ => LinkType::LINUX_SLL2,
    }
}

/// `ETHTOOL_GSET` (linux/ethtool.h): the speed is in two halves.
fn speed_mbps(name: &str) -> Option<u32> {
    const ETHTOOL_GSET: u32 = 1;
    let mut command = [0; 44];
    command[..4].copy_from_slice(&ETHTOOL_GSET.to_ne_bytes());
    asked::ethtool(name, &mut command).ok()?;
    let half = |at: usize| Some(u16::from_ne_bytes(*command[at..].first_chunk()?));
    let speed = u32::from(half(28)?) << 16 | u32::from(half(12)?);
    // SPEED_UNKNOWN, also where a driver has only 16 bits of it.
    (speed != 0 && speed != u32::MAX && speed != 0xffff).then_some(speed)
}

/// What an interface offers to captures.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offers {
    /// Its driver, if it has one.
    pub driver: Option<String>,
    /// Why packets cannot be captured; `None` if they can.
    pub packet_problem: Option<String>,
    /// Why AF_XDP cannot be used; `None` if it can be tried.
    pub xdp_problem: Option<String>,
    /// Receive queues.
    pub queues: u32,
    /// Whether received packets of a flow are merged before they are captured.
    pub merges: bool,
    /// Whether the card timestamps all packets itself.
    pub stamps: bool,
}

impl Device {
    /// Why its packets do not fit AF_XDP's frames; `None` if they do.
    pub(in crate::live) fn frame_problem(&self) -> Option<String> {
        if self.link != LinkType::ETHERNET || self.index == 0 {
            return Some(String::from("its packets have no Ethernet header"));
        }
        (self.mtu > XDP_MTU_MAX).then(|| format!("its MTU is above {XDP_MTU_MAX}"))
    }

    /// What it offers to captures. Takes a hundredth of a second: the kernel waits before it closes the socket
    /// with which this is tried.
    #[must_use]
    pub fn offers(&self) -> Offers {
        let packet_problem = match packet_socket(false) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Some(format!("not permitted: {PERMIT}"))
            }
            Err(error) => Some(error.to_string()),
            Ok(_) if !self.is_up => Some(format!("it is down: `ip link set {} up`", self.name)),
            Ok(_) => None,
        };
        let xdp_problem = self.frame_problem().or_else(|| packet_problem.clone());
        Offers {
            driver: driver(&self.name),
            packet_problem,
            xdp_problem,
            queues: receive_queues(&self.name),
            merges: merges(&self.name),
            stamps: stamps(&self.name),
        }
    }
}

/// `ETHTOOL_GDRVINFO` (linux/ethtool.h): the driver's name is first.
fn driver(name: &str) -> Option<String> {
    const ETHTOOL_GDRVINFO: u32 = 3;
    let mut command = [0; 196];
    command[..4].copy_from_slice(&ETHTOOL_GDRVINFO.to_ne_bytes());
    asked::ethtool(name, &mut command).ok()?;
    let text = command[4..36].split(|&byte| byte == 0).next()?;
    let text = String::from_utf8_lossy(text).into_owned();
    (!text.is_empty()).then_some(text)
}

/// `ETHTOOL_GGRO`, and LRO among `ETHTOOL_GFLAGS` (linux/ethtool.h).
fn merges(name: &str) -> bool {
    const ETHTOOL_GGRO: u32 = 0x2b;
    const ETHTOOL_GFLAGS: u32 = 0x25;
    const LRO: u32 = 1 << 15;
    let value = |number: u32| {
        let mut command = [0; 8];
        command[..4].copy_from_slice(&number.to_ne_bytes());
        asked::ethtool(name, &mut command).ok()?;
        Some(word_at(&command, 4))
    };
    value(ETHTOOL_GGRO).is_some_and(|on| on != 0)
        || value(ETHTOOL_GFLAGS).is_some_and(|flags| flags & LRO != 0)
}

/// `ETHTOOL_GET_TS_INFO` (linux/ethtool.h): raw hardware timestamps, and the filter for all packets
/// among its filters.
pub(in crate::live) fn stamps(name: &str) -> bool {
    const ETHTOOL_GET_TS_INFO: u32 = 0x41;
    const FILTER_ALL: u32 = 1 << 1;
    let mut command = [0; 44];
    command[..4].copy_from_slice(&ETHTOOL_GET_TS_INFO.to_ne_bytes());
    if asked::ethtool(name, &mut command).is_err() {
        return false;
    }
    let word = |at| word_at(&command, at);
    word(4) & libc::SOF_TIMESTAMPING_RAW_HARDWARE != 0 && word(28) & FILTER_ALL != 0
}

/// `ETHTOOL_GCHANNELS` (linux/ethtool.h): receive queues, alone and combined.
pub(in crate::live) fn receive_queues(name: &str) -> u32 {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    let mut command = [0; 36];
    command[..4].copy_from_slice(&ETHTOOL_GCHANNELS.to_ne_bytes());
    if asked::ethtool(name, &mut command).is_err() {
        return 1;
    }
    let count = |at| word_at(&command, at);
    count(20).saturating_add(count(32)).clamp(1, 1024)
}

/// A field of an ethtool command.
fn word_at(command: &[u8], at: usize) -> u32 {
    let bytes = command[at..].first_chunk();
    u32::from_ne_bytes(*bytes.expect("a field lies within its command"))
}

/// This machine's memory. Determined once: when an interface is captured again, a recording no
/// longer reaches any path in `/proc`.
fn memory_bytes() -> Option<usize> {
    static BYTES: OnceLock<Option<usize>> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let text = fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
        kib.checked_mul(1024)
    })
}

/// `struct ifinfomsg`.
const LINK_HEADER_LEN: usize = 16;

/// The names of interfaces that are given by name, by another name (`ip link property add dev eth0 altname uplink`)
/// or by number (`ip link`). A name comes before a number. What is none of these stays as it is, and cannot be
/// opened.
#[must_use]
pub fn interface_names(given: &[String]) -> Vec<String> {
    let named = |given: &String| name_of(given).unwrap_or_else(|| given.clone());
    given.iter().map(named).collect()
}

/// The name that an interface has now.
fn name_of(given: &str) -> Option<String> {
    if given == ANY {
        return None;
    }
    // The kernel finds short names among both kinds.
    if let Ok(index) = asked::index(given) {
        return asked::name(index).ok();
    }
    if let Ok(name) = name_behind(given) {
        return Some(name);
    }
    let index: u32 = given.parse().ok()?;
    asked::name(index).ok()
}

/// The name of the interface that has this other name, which may be longer than a name.
fn name_behind(other: &str) -> io::Result<String> {
    /// linux/rtnetlink.h, linux/if_link.h.
    const RTM_GETLINK: u16 = 18;
    const IFLA_IFNAME: u16 = 3;
    const IFLA_ALT_IFNAME: u16 = 53;
    /// With the closing NUL (`ALTIFNAMSIZ`).
    const LEN_MAX: usize = 128;
    if other.len() >= LEN_MAX {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let mut body = vec![0; LINK_HEADER_LEN];
    let value = [other.as_bytes(), &[0]].concat();
    body.extend(exact::<u16>(value.len().saturating_add(4)).to_ne_bytes());
    body.extend(IFLA_ALT_IFNAME.to_ne_bytes());
    body.extend(&value);
    body.resize(body.len().next_multiple_of(4), 0);
    let link = Netlink::open()?.one(RTM_GETLINK, &body)?;
    let name = attribute(&link, LINK_HEADER_LEN, IFLA_IFNAME).ok_or_else(malformed)?;
    Ok(text(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_hundreds_of_interfaces_the_first_are_named() {
        let names = |count: usize| (0..count).map(|at| format!("tap{at}")).collect();
        assert_eq!(first_names(names(2)), "tap0, tap1");
        let all = first_names(names(NAMED_MAX));
        assert!(all.ends_with("tap18, tap19"), "{all}");
        let some = first_names(names(500));
        assert_eq!(some, format!("{all}, 480 more (ip link)"));
    }

    #[test]
    fn an_interface_with_a_comma_in_its_name_is_named_first_with_its_number() {
        let mut names: Vec<(u32, String)> =
            (1..500).map(|at: u32| (at, format!("tap{at}"))).collect();
        names.push((700, "a,b".into()));
        let said = first_names(in_words(names));
        let start = "'a,b' (commas separate names: give its number, 700), tap1, ";
        assert!(said.starts_with(start), "{said}");
    }
}
