//! What is captured, and how.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use strata_filter::Filter;
use strata_wire::pcapng::options::{self, code};
use strata_wire::{Interface, LinkType};

use super::error::LiveError;
use super::host::interface::Device;

/// How interfaces are captured.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LiveOptions {
    /// Names of interfaces; [`ANY`](super::ANY) is all of them.
    pub interfaces: Vec<String>,
    /// Maximum bytes kept of each packet.
    pub snaplen: u32,
    /// Bytes of each interface's ring; by default chosen by its speed and the memory.
    pub ring_bytes: Option<usize>,
    /// Whether interfaces share a ring.
    pub rings: Rings,
    /// Whether packets for other hosts are captured too.
    pub promiscuous: bool,
    /// Whether packets are delivered within a millisecond rather than ten.
    pub immediate: bool,
    /// Which packets are captured at all; evaluated by the kernel if it can.
    pub filter: Option<Filter>,
    /// Packets of which direction are captured.
    pub direction: Direction,
    /// Whose clock timestamps packets.
    pub stamps: Stamps,
    /// Whether packets of flows in [`Live::cut_table`](super::Live::cut_table) are cut before they are
    /// copied.
    pub cut: bool,
    /// Whether flows can be sampled before packets are copied, with [`Live::sampler`](super::Live::sampler).
    pub sample: bool,
    /// Captured interfaces that are ports of a bridge, those of each together: a packet that goes from one to
    /// another is captured where it comes in, and not again where it leaves.
    pub bridge_ports: Vec<Vec<String>>,
    /// Captured interfaces of which only packets of this direction are captured.
    pub one_way: Vec<(String, Direction)>,
    /// Who opens packet sockets; by default this process itself, which may no longer be permitted
    /// to when an interface comes back.
    pub opener: Option<SocketOpener>,
    /// Whether packets are taken away from the host, through AF_XDP.
    pub exclusive: Exclusive,
}

impl LiveOptions {
    /// Maximum bytes kept of a packet by default, as in tcpdump.
    pub const SNAPLEN_DEFAULT: u32 = 262_144;

    /// Checks the interfaces as [`Live::open`](super::Live::open) does, but opens none.
    ///
    /// # Errors
    ///
    /// The first that does not exist, that is down, or to which the filter cannot be applied.
    pub fn check(&self) -> Result<(), LiveError> {
        if self.interfaces.is_empty() {
            return Err(LiveError::NoInterface);
        }
        let mut names = self.interfaces.iter();
        names.try_for_each(|name| find(name, self).map(drop))
    }
}

/// Opens packet sockets. Given true it opens one that omits the link-layer header; they receive
/// nothing until they are bound.
#[derive(Clone)]
pub struct SocketOpener(Arc<dyn Fn(bool) -> io::Result<OwnedFd> + Send + Sync>);

impl SocketOpener {
    /// An opener that calls this.
    #[must_use]
    pub fn new(open: impl Fn(bool) -> io::Result<OwnedFd> + Send + Sync + 'static) -> Self {
        Self(Arc::new(open))
    }

    pub(super) fn open(&self, cooked: bool) -> io::Result<OwnedFd> {
        (self.0)(cooked)
    }
}

impl fmt::Debug for SocketOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SocketOpener").finish_non_exhaustive()
    }
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            snaplen: Self::SNAPLEN_DEFAULT,
            ring_bytes: None,
            rings: Rings::Auto,
            promiscuous: true,
            immediate: false,
            filter: None,
            direction: Direction::Both,
            stamps: Stamps::Auto,
            cut: false,
            sample: false,
            bridge_ports: Vec::new(),
            one_way: Vec::new(),
            opener: None,
            exclusive: Exclusive::No,
        }
    }
}

/// Whether packets are taken away from the host, through AF_XDP. Several workers then share an
/// interface by its receive queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exclusive {
    /// The host receives them too.
    #[default]
    No,
    /// They are taken away from interfaces that nothing else on this host uses, if the driver runs
    /// XDP programs itself.
    Auto,
    /// They are taken away, whatever uses the interface.
    Yes,
    /// They are taken away, whatever uses the interface, if the driver runs XDP programs itself: so
    /// before the kernel has merged any into what no frame holds.
    Native,
}

/// Whether each interface has a ring, or many share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rings {
    /// They share one if there are many that can.
    #[default]
    Auto,
    /// Each has its own.
    Each,
    /// Those share one that can: others have no Ethernet header, are the loopback, or have times of their
    /// cards.
    One,
}

/// Which packets of an interface are captured, like tcpdump's `-Q`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// Those for this host.
    In,
    /// Those from this host.
    Out,
    /// Both.
    #[default]
    Both,
}

/// Whose clock timestamps packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stamps {
    /// The card's if it stamps every packet and its clock is the host's (ptp4l, phc2sys),
    /// else the kernel's.
    #[default]
    Auto,
    /// The kernel's.
    Host,
    /// The card's, whatever its clock says.
    Adapter,
}

/// An interface that can be captured now, and to which the filter can be applied.
pub(super) fn find(name: &str, options: &LiveOptions) -> Result<Device, LiveError> {
    let device = Device::named(name)?;
    if !device.is_up {
        return Err(LiveError::Down {
            interface: device.name,
        });
    }
    if matches!(options.exclusive, Exclusive::Yes | Exclusive::Native)
        && let Some(why) = no_xdp(&device, options)
    {
        return Err(LiveError::NoXdp {
            interface: device.name,
            why: String::from(why),
        });
    }
    if let Some(filter) = &options.filter {
        filter
            .compile(device.link)
            .map_err(|error| LiveError::Filter {
                interface: device.name.clone(),
                why: error.to_string(),
            })?;
    }
    Ok(device)
}

/// What AF_XDP cannot do of these options.
fn no_xdp(device: &Device, options: &LiveOptions) -> Option<&'static str> {
    if device.link != LinkType::ETHERNET || device.index == 0 {
        return Some("its packets have no Ethernet header");
    }
    match (options.direction, options.stamps) {
        (Direction::Out, _) => Some("it sees received packets only (-Q out)"),
        (_, Stamps::Adapter) => Some("it has no NIC timestamps (-j adapter)"),
        _ => None,
    }
}

/// The interface's description in an export.
pub(super) fn describe(device: &Device, options: &LiveOptions) -> Interface {
    let mut interface = Interface::new(device.link, options.snaplen);
    let mut push = |code: u16, value: &[u8]| {
        // Names and filters are far shorter than an option can be; if not, they are skipped.
        let _ = options::push(&mut interface.options, code, value);
    };
    push(code::IF_NAME, device.name.as_bytes());
    if let Some(mbps) = device.speed_mbps {
        let bits = u64::from(mbps).saturating_mul(1_000_000);
        push(code::IF_SPEED, &bits.to_le_bytes());
    }
    if let Some(filter) = &options.filter {
        // draft-ietf-opsawg-pcapng, section 4.2: 0 is a libpcap filter string.
        let mut value = vec![0];
        value.extend_from_slice(filter.to_string().as_bytes());
        push(code::IF_FILTER, &value);
    }
    interface
}
