//! Live capture: packets of network interfaces, as they come.
//!
//! [`Live`] is what one worker captures from: a ring of each interface. It hands
//! out batches that borrow from the ring, so that the kernel's copy into it is the
//! only one, and gives the memory back with the next step.
//!
//! Layers, top-down:
//!
//! ```text
//! Live          the interfaces of one worker: waiting, going down, coming back
//! ring          one TPACKET_V3 ring
//! interface     what interfaces there are
//! drops         what was lost before us, and where
//! sys           system calls and shared memory: all that is unsafe
//! ```

mod drops;
mod error;
mod interface;
mod ring;
mod sys;

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

pub use drops::{DropCounts, Drops, Lost};
pub use error::LiveError;
pub use interface::{ANY, Device};
pub use ring::RingCounts;

use crate::batch::{BATCH_MAX, PacketRef, Packets};
use crate::meta::{Interface, Meta};
use crate::options::{self, code};
use ring::Ring;

/// How long a step waits for packets at most.
const WAIT: Duration = Duration::from_millis(100);
/// How often an interface that is gone is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How interfaces are captured.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LiveOptions {
    /// Names of interfaces; [`ANY`] is all of them.
    pub interfaces: Vec<String>,
    /// Bytes kept of each packet at most.
    pub snaplen: u32,
    /// Bytes of each interface's ring; by default by its speed and the memory.
    pub ring_bytes: Option<usize>,
    /// Whether packets for other hosts are captured too.
    pub promiscuous: bool,
    /// Whether packets are delivered within a millisecond rather than ten.
    pub immediate: bool,
    /// What the interface description says the filter is.
    pub filter_text: String,
}

impl LiveOptions {
    /// Bytes of a packet at most by default, as tcpdump has it.
    pub const SNAPLEN_DEFAULT: u32 = 262_144;
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            snaplen: Self::SNAPLEN_DEFAULT,
            ring_bytes: None,
            promiscuous: true,
            immediate: false,
            filter_text: String::new(),
        }
    }
}

/// What [`Live::advance`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveNext {
    /// At least one packet is in [`Live::batch`].
    Packets,
    /// What an interface is; the batch is empty.
    Meta(Meta),
    /// Nothing came for a while; the batch is empty.
    Idle,
}

/// Something that happened to an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveEvent {
    /// It was set down.
    Down(String),
    /// It is no more.
    Gone(String),
    /// Packets can come again.
    Back(String),
}

impl fmt::Display for LiveEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(name) => write!(f, "{name}: the interface went down; waiting for it"),
            Self::Gone(name) => write!(f, "{name}: the interface is gone; waiting for it"),
            Self::Back(name) => write!(f, "{name}: the interface is back"),
        }
    }
}

/// Where one packet of a batch lies in its block.
#[derive(Debug, Clone, Copy)]
struct Slot {
    ts_ns: u64,
    at: u32,
    len: u32,
    wire_len: u32,
    interface: u16,
}

impl Slot {
    /// Makes room for `bytes` before the packet.
    fn lengthen(&mut self, bytes: usize) {
        // A few bytes of the gap before each packet.
        let bytes = u32::try_from(bytes).unwrap_or(0);
        self.at -= bytes;
        self.len += bytes;
        self.wire_len += bytes;
    }
}

/// The packets of one step, borrowed from a ring.
#[derive(Debug, Clone, Copy)]
pub struct RingBatch<'a> {
    block: &'a [u8],
    slots: &'a [Slot],
}

impl Packets for RingBatch<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    fn get(&self, index: usize) -> PacketRef<'_> {
        let slot = &self.slots[index];
        let at = slot.at as usize;
        PacketRef {
            ts_ns: slot.ts_ns,
            interface: slot.interface,
            wire_len: slot.wire_len,
            data: &self.block[at..at + slot.len as usize],
            options: &[],
            has_timestamp: true,
        }
    }
}

/// An interface and its ring.
#[derive(Debug)]
struct Port {
    device: Device,
    ring: Ring,
    /// Counts of rings that this one has replaced.
    earlier: RingCounts,
    state: PortState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortState {
    Up,
    Down,
    /// Nothing comes from its ring any more.
    Gone,
}

/// Interfaces being captured by one worker.
///
/// Memory: a ring for each interface ([`LiveOptions::ring_bytes`]), and 24 bytes
/// for each of 256 packets. No allocation and no system call per packet; a step
/// without packets waits in `poll`.
#[derive(Debug)]
pub struct Live {
    ports: Vec<Port>,
    options: LiveOptions,
    slots: Vec<Slot>,
    /// Whose slots they are.
    current: usize,
    metas: VecDeque<Meta>,
    events: Vec<LiveEvent>,
    looked: Instant,
}

impl Live {
    /// Opens the interfaces. Packets come from now on.
    ///
    /// # Errors
    ///
    /// If an interface is not there, is down, or may not be captured.
    pub fn open(options: LiveOptions) -> Result<Self, LiveError> {
        if options.interfaces.is_empty() {
            return Err(LiveError::NoInterface);
        }
        let mut ports = Vec::new();
        let mut metas = VecDeque::new();
        for (id, name) in (0_u16..).zip(&options.interfaces) {
            let device = Device::named(name)?;
            if !device.is_up {
                return Err(LiveError::Down {
                    interface: name.clone(),
                });
            }
            metas.push_back(Meta::Interface {
                id,
                interface: describe(&device, &options),
            });
            ports.push(Port {
                ring: Ring::open(&device, &options)?,
                device,
                earlier: RingCounts::default(),
                state: PortState::Up,
            });
        }
        for port in &ports {
            port.ring
                .admit()
                .map_err(port.device.error("SO_ATTACH_FILTER"))?;
        }
        Ok(Self {
            ports,
            options,
            slots: Vec::with_capacity(BATCH_MAX),
            current: 0,
            metas,
            events: Vec::new(),
            looked: Instant::now(),
        })
    }

    /// Goes one step on. The packets of the step before are given back.
    ///
    /// # Errors
    ///
    /// If an interface cannot be captured further. One that goes down or away is
    /// waited for.
    pub fn advance(&mut self) -> Result<LiveNext, LiveError> {
        if let Some(meta) = self.metas.pop_front() {
            return Ok(LiveNext::Meta(meta));
        }
        self.slots.clear();
        self.ports[self.current].ring.release();
        if self.fill() {
            return Ok(LiveNext::Packets);
        }
        sys::wait(self.ports.iter().map(|port| port.ring.fd()), WAIT)
            .map_err(self.ports[0].device.error("poll"))?;
        if self.fill() {
            return Ok(LiveNext::Packets);
        }
        self.look_after_ports()?;
        Ok(LiveNext::Idle)
    }

    /// Takes from the first ring that has something, in turn.
    fn fill(&mut self) -> bool {
        for step in 1..=self.ports.len() {
            let index = (self.current + step) % self.ports.len();
            let id = u16::try_from(index).unwrap_or(u16::MAX);
            if self.ports[index].ring.fill(id, &mut self.slots) {
                self.current = index;
                return true;
            }
        }
        false
    }

    /// The packets of the last step; empty after anything but
    /// [`LiveNext::Packets`]. Valid until the next step.
    #[inline]
    #[must_use]
    pub fn batch(&self) -> RingBatch<'_> {
        RingBatch {
            block: self.ports[self.current].ring.block(),
            slots: &self.slots,
        }
    }

    /// What happened to interfaces since the last call.
    pub fn take_events(&mut self) -> Vec<LiveEvent> {
        std::mem::take(&mut self.events)
    }

    /// What the kernel has counted, by interface.
    ///
    /// # Errors
    ///
    /// If the kernel does not say.
    pub fn counts(&mut self) -> Result<Vec<(String, RingCounts)>, LiveError> {
        let mut all = Vec::new();
        for port in &mut self.ports {
            let counts = port.ring.counts();
            let counts = counts.map_err(port.device.error("PACKET_STATISTICS"))?;
            all.push((port.device.name.clone(), port.earlier.plus(counts)));
        }
        Ok(all)
    }

    /// Notices interfaces that went down, and opens those that are back.
    fn look_after_ports(&mut self) -> Result<(), LiveError> {
        for port in &mut self.ports {
            match sys::take_error(port.ring.fd()) {
                None => {}
                Some(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {
                    port.state = PortState::Down;
                    self.events.push(LiveEvent::Down(port.device.name.clone()));
                }
                Some(error) => return Err(port.device.error("receiving")(error)),
            }
        }
        if self.looked.elapsed() < LOOK_AGAIN {
            return Ok(());
        }
        self.looked = Instant::now();
        for port in &mut self.ports {
            if port.device.index != 0
                && let Some(event) = port.look(&self.options)?
            {
                self.events.push(event);
            }
        }
        Ok(())
    }
}

impl Port {
    /// Compares what is captured with what is there.
    fn look(&mut self, options: &LiveOptions) -> Result<Option<LiveEvent>, LiveError> {
        let name = self.device.name.clone();
        let found = match Device::named(&name) {
            Ok(found) => found,
            Err(LiveError::NoSuchInterface { .. }) => {
                let news = self.state != PortState::Gone;
                self.state = PortState::Gone;
                return Ok(news.then_some(LiveEvent::Gone(name)));
            }
            Err(error) => return Err(error),
        };
        if found.index != self.device.index {
            if !found.is_up {
                return Ok(None);
            }
            // An interface of the same name: the old ring belongs to the old one.
            self.earlier = self.earlier.plus(self.ring.counts().unwrap_or_default());
            self.ring = Ring::open(&found, options)?;
            self.ring.admit().map_err(found.error("SO_ATTACH_FILTER"))?;
            self.device = found;
            self.state = PortState::Up;
            return Ok(Some(LiveEvent::Back(name)));
        }
        // The kernel attaches the ring again by itself.
        if self.state == PortState::Down && found.is_up {
            self.state = PortState::Up;
            return Ok(Some(LiveEvent::Back(name)));
        }
        Ok(None)
    }
}

impl RingCounts {
    /// The sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            received: self.received + other.received,
            dropped: self.dropped + other.dropped,
            full: self.full + other.full,
        }
    }
}

/// The description that an export will have.
fn describe(device: &Device, options: &LiveOptions) -> Interface {
    let mut interface = Interface::new(device.link, options.snaplen);
    let mut push = |code: u16, value: &[u8]| {
        // Names and filters are far shorter than an option can be, or left out.
        let _ = options::push(&mut interface.options, code, value);
    };
    push(code::IF_NAME, device.name.as_bytes());
    if let Some(mbps) = device.speed_mbps {
        let bits = u64::from(mbps) * 1_000_000;
        push(code::IF_SPEED, &bits.to_le_bytes());
    }
    if !options.filter_text.is_empty() {
        // draft-ietf-opsawg-pcapng, section 4.2: 0 is a filter string of libpcap's.
        let mut filter = vec![0];
        filter.extend_from_slice(options.filter_text.as_bytes());
        push(code::IF_FILTER, &filter);
    }
    interface
}
