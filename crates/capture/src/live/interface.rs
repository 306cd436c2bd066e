//! Network interfaces: what they are, and how they can be captured.

use std::fs;
use std::io;

use strata_wire::LinkType;

use super::error::LiveError;
use super::sys;

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
    /// What the first byte of its packets means when they are captured.
    pub link: LinkType,
    /// Whether it is set up (`IFF_UP`).
    pub is_up: bool,
    /// Whether it has a carrier (`IFF_RUNNING`).
    pub is_running: bool,
    /// Whether it leads back to this host.
    pub is_loopback: bool,
    /// Bits per second in millions, if its driver says so.
    pub speed_mbps: Option<u32>,
    /// Bytes of the largest packet that it sends, without its link layer header.
    pub mtu: u32,
}

/// Ring sizes by default: what the link brings in a fifth of a second, within
/// these bounds and a sixteenth of the memory. It bridges pauses of the worker
/// and of the disk.
const RING_BYTES_MIN: usize = 32 << 20;
const RING_BYTES_MAX: usize = 512 << 20;
const RING_BYTES_UNKNOWN: usize = 64 << 20;

impl Device {
    /// All interfaces, by number, and last [`ANY`].
    ///
    /// # Errors
    ///
    /// If the kernel does not say.
    pub fn all() -> Result<Vec<Self>, LiveError> {
        let names = sys::interface_names().map_err(|source| LiveError::System {
            interface: ANY.into(),
            call: "if_nameindex",
            source,
        })?;
        let mut found = Vec::new();
        for (_, name) in names {
            match Self::named(&name) {
                // It may have gone in between.
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
    /// If there is none.
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
        let index = sys::interface_index(name).map_err(fail("SIOCGIFINDEX"))?;
        let flags = i32::from(sys::interface_flags(name).map_err(fail("SIOCGIFFLAGS"))?);
        let hardware = sys::interface_hardware(name).map_err(fail("SIOCGIFHWADDR"))?;
        let mtu = sys::interface_mtu(name).map_err(fail("SIOCGIFMTU"))?;
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

    /// Bytes of a ring that is large enough for pauses at the link's rate.
    pub(super) fn ring_bytes(&self) -> usize {
        let wanted = self.speed_mbps.map_or(RING_BYTES_UNKNOWN, |mbps| {
            // A fifth of a second: 10^6 / 8 / 5 bytes for each Mb/s.
            (mbps as usize).saturating_mul(25_000)
        });
        let share = memory_bytes().map_or(RING_BYTES_MAX, |bytes| bytes / 16);
        wanted
            .clamp(RING_BYTES_MIN, RING_BYTES_MAX)
            .min(share.max(RING_BYTES_MIN))
    }

    /// Makes errors of system calls about this interface.
    pub(super) fn error(&self, call: &'static str) -> impl FnOnce(io::Error) -> LiveError {
        let interface = self.name.clone();
        move |source| LiveError::System {
            interface,
            call,
            source,
        }
    }
}

fn known_names() -> String {
    let names = sys::interface_names().unwrap_or_default();
    let names: Vec<String> = names.into_iter().map(|(_, name)| name).collect();
    names.join(", ")
}

/// `ARPHRD_*` of linux/if_arp.h, as libpcap 1.10 reads them. What has no usable
/// link layer header of its own is captured cooked.
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

/// `ETHTOOL_GSET` (linux/ethtool.h): the speed stands in two halves.
fn speed_mbps(name: &str) -> Option<u32> {
    const ETHTOOL_GSET: u32 = 1;
    let mut command = [0; 44];
    command[..4].copy_from_slice(&ETHTOOL_GSET.to_ne_bytes());
    sys::ethtool(name, &mut command).ok()?;
    let half = |at: usize| u16::from_ne_bytes([command[at], command[at + 1]]);
    let speed = u32::from(half(28)) << 16 | u32::from(half(12));
    // SPEED_UNKNOWN, also where a driver has 16 bits of it only.
    (speed != 0 && speed != u32::MAX && speed != 0xffff).then_some(speed)
}

fn memory_bytes() -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}
