//! Live capture: packets from network interfaces, as they arrive.
//!
//! [`Live`] is what one worker captures from: a ring for each interface. It hands out batches that
//! borrow from the ring, so that the kernel's copy into it is the only one, and gives the memory
//! back with the next step.
//!
//! Layers, top-down:
//!
//! ```text
//! Live          the interfaces of one worker: waiting, going down, coming back
//! ring, xsk     one TPACKET_V3 ring; one AF_XDP socket
//! kernel        eBPF: filter, cut, spreading over workers
//! sampler       eBPF: sampling flow by flow
//! interface     what interfaces there are
//! drops         what was lost before us, and where
//! event, clock  waiting, and what time it is
//! ```

pub(crate) mod clock;
mod drops;
mod error;
mod event;
mod interface;
mod kernel;
mod ring;
mod sampler;
mod xsk;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use drops::{DropCounts, Drops, Lost};
pub use error::LiveError;
pub use interface::{ANY, Device, Offers};
pub use kernel::{CUT_BYTES_MIN, CutTable, Direction};
pub use ring::{ClockEvent, RingCounts, Stamps};
pub use sampler::{FlowSampler, ShareFollower};

use crate::batch::{BATCH_MAX, PacketRef, Packets};
use kernel::{Attached, Kernel, Placed};
use ring::Ring;
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use strata_bpf::SocketMap;
use strata_filter::Filter;
use strata_sys::xdp::XdpSocket;
use strata_wire::pcapng::options::{self, code};
use strata_wire::{Counters, Interface, LinkType, Meta, exact};
use xsk::Xsk;

/// How long a step waits for packets at most.
const WAIT: Duration = Duration::from_millis(100);
/// How often to look for an interface that is gone.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How interfaces are captured.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LiveOptions {
    /// Names of interfaces; [`ANY`] is all of them.
    pub interfaces: Vec<String>,
    /// Bytes kept of each packet at most.
    pub snaplen: u32,
    /// Bytes of each interface's ring; by default chosen by its speed and the memory.
    pub ring_bytes: Option<usize>,
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
    /// Whether packets of flows in [`Live::cut_table`] are cut before they are
    /// copied.
    pub cut: bool,
    /// Whether flows can be sampled before packets are copied, with [`Live::sampler`].
    pub sample: bool,
    /// Who opens packet sockets; by default this process itself, which may no longer be permitted
    /// to when an interface comes back.
    pub opener: Option<SocketOpener>,
    /// Whether packets are taken away from the host, through AF_XDP. Several workers then share an
    /// interface by its receive queues.
    pub exclusive: bool,
}

impl LiveOptions {
    /// Most bytes kept of a packet by default, as in tcpdump.
    pub const SNAPLEN_DEFAULT: u32 = 262_144;

    /// Checks the interfaces as [`Live::open`] does, but opens none.
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
            promiscuous: true,
            immediate: false,
            filter: None,
            direction: Direction::Both,
            stamps: Stamps::Auto,
            cut: false,
            sample: false,
            opener: None,
            exclusive: false,
        }
    }
}

/// What [`Live::advance`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveNext {
    /// At least one packet is in [`Live::batch`].
    Packets,
    /// The description of an interface; the batch is empty.
    Meta(Meta),
    /// No packets for a while; the batch is empty.
    Idle,
}

/// Something that happened to an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveEvent {
    /// It was set down.
    Down(String),
    /// It no longer exists.
    Gone(String),
    /// Packets can arrive again.
    Back(String),
    /// The card's clock is this many ns off the host's: whether its times are still taken.
    CardTimes(String, ClockEvent),
}

impl fmt::Display for LiveEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(name) => write!(f, "{name}: the interface went down; waiting for it"),
            Self::Gone(name) => write!(f, "{name}: the interface is gone; waiting for it"),
            Self::Back(name) => write!(f, "{name}: the interface is back"),
            Self::CardTimes(name, ClockEvent { off_ns, taken }) => {
                write!(
                    f,
                    "{name}: the card's clock is {} s off this host's; {}",
                    off_ns / 1_000_000_000,
                    if *taken {
                        "its times are taken as asked for"
                    } else {
                        "times are the host's (phc2sys sets it; -j adapter takes them as they are)"
                    }
                )
            }
        }
    }
}

/// Where one packet of a batch lies in its block, or frame.
#[derive(Debug, Clone, Copy)]
struct Slot {
    ts_ns: u64,
    at: u32,
    len: u32,
    wire_len: u32,
    interface: u16,
}

impl Slot {
    /// Makes space for `bytes` before the packet.
    fn lengthen(&mut self, bytes: usize) {
        // A few bytes of the gap before each packet.
        let bytes = exact::<u32>(bytes);
        self.at -= bytes;
        self.len += bytes;
        self.wire_len += bytes;
    }
}

/// The packets of one step, borrowed from a ring.
#[derive(Debug, Clone, Copy)]
pub struct RingBatch<'a> {
    memory: Memory<'a>,
    slots: &'a [Slot],
}

/// Where the packets of a step are: memory that the kernel has handed over, until the next step.
#[derive(Debug, Clone, Copy)]
enum Memory<'a> {
    /// In a block, where the slots say.
    Block(&'a [u8]),
    /// Each in a frame, in the order of the slots.
    Frames(&'a XdpSocket),
}

impl Packets for RingBatch<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    fn get(&self, index: usize) -> PacketRef<'_> {
        let slot = &self.slots[index];
        let (at, len) = (slot.at as usize, slot.len as usize);
        PacketRef {
            ts_ns: slot.ts_ns,
            interface: slot.interface,
            wire_len: slot.wire_len,
            data: match self.memory {
                Memory::Block(block) => &block[at..at + len],
                Memory::Frames(frames) => &frames.packet(index)[at..at + len],
            },
            options: &[],
            has_timestamp: true,
        }
    }
}

/// Where the packets of a port come from.
#[derive(Debug)]
enum Source {
    Ring(Ring),
    Xsk(Xsk),
}

impl Source {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Ring(ring) => ring.fd(),
            Self::Xsk(xsk) => xsk.fd(),
        }
    }

    fn memory(&self) -> Memory<'_> {
        match self {
            Self::Ring(ring) => Memory::Block(ring.block()),
            Self::Xsk(xsk) => Memory::Frames(xsk.frames()),
        }
    }

    fn release(&mut self) {
        match self {
            Self::Ring(ring) => ring.release(),
            Self::Xsk(xsk) => xsk.release(),
        }
    }

    fn fill(&mut self, interface: u16, tai_ns: u64, slots: &mut Vec<Slot>) -> bool {
        match self {
            Self::Ring(ring) => ring.fill(interface, slots),
            Self::Xsk(xsk) => xsk.fill(interface, tai_ns, slots),
        }
    }

    fn counts(&mut self) -> io::Result<RingCounts> {
        match self {
            Self::Ring(ring) => ring.counts(),
            Self::Xsk(xsk) => xsk.counts(),
        }
    }
}

/// An interface, or a queue of it, and its ring.
#[derive(Debug)]
struct Port {
    device: Device,
    interface: u16,
    source: Source,
    /// Counters of rings that this one has replaced.
    earlier: RingCounts,
    state: PortState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortState {
    Up,
    Down,
    /// Nothing more comes from its ring.
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
    kernel: Arc<Kernel>,
    /// The programs that take packets away, by interface.
    attached: Arc<Vec<Attached>>,
    /// How far the clock of AF_XDP's timestamps is ahead.
    tai_ns: u64,
    /// Why the kernel does not evaluate the filter on some interface.
    filter_in_user_space: Option<String>,
    slots: Vec<Slot>,
    /// The port whose slots they are.
    current: usize,
    metas: VecDeque<Meta>,
    events: Vec<LiveEvent>,
    looked: Instant,
    waker: Waker,
}

/// Ends a [`Live`]'s wait for packets, from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    fn new() -> io::Result<Self> {
        event::event().map(|fd| Self(Arc::new(fd)))
    }

    /// Ends the current wait, or the next one.
    pub fn wake(&self) {
        event::signal_event(self.0.as_fd());
    }
}

impl Live {
    /// Opens the interfaces for this many workers, over which flows are spread: both directions,
    /// fragments and tunnels between two hosts go to the same one. Packets arrive from then on.
    ///
    /// # Errors
    ///
    /// If an interface does not exist, is down, or may not be captured.
    pub fn open(options: &LiveOptions, workers: u16) -> Result<Vec<Self>, LiveError> {
        if options.interfaces.is_empty() {
            return Err(LiveError::NoInterface);
        }
        let devices: Result<Vec<Device>, _> = options
            .interfaces
            .iter()
            .map(|name| find(name, options))
            .collect();
        let devices = devices?;
        let key = getrandom::u64().map_err(|error| LiveError::NoRandomness {
            why: error.to_string(),
        })?;
        let kernel = Arc::new(Kernel::new(options, workers, key));
        let mut all = Vec::new();
        for _ in 0..workers.max(1) {
            all.push(Self::joined(&devices, options, &kernel)?);
        }
        if options.exclusive {
            Self::take_away(&mut all, &devices, &kernel)?;
            return Ok(all);
        }
        for live in &mut all {
            for port in &live.ports {
                let placed = kernel.admit(port.source.fd(), &port.device)?;
                if let Placed::InUserSpace(why) = placed {
                    live.filter_in_user_space = Some(why);
                }
            }
        }
        Ok(all)
    }

    /// Gives each worker its share of the interfaces' queues, and then attaches the programs that
    /// send packets there.
    fn take_away(
        all: &mut [Self],
        devices: &[Device],
        kernel: &Arc<Kernel>,
    ) -> Result<(), LiveError> {
        let workers = all.len();
        let mut attached = Vec::new();
        for (id, device) in (0_u16..).zip(devices) {
            let queues = interface::receive_queues(&device.name);
            let sockets = SocketMap::new(queues).map_err(device.error("XSKMAP"))?;
            for (queue, worker) in (0..queues).zip((0..workers).cycle()) {
                let live = &mut all[worker];
                let xsk = Xsk::open(device, queue, &live.options)?;
                sockets
                    .set(queue, xsk.fd())
                    .map_err(device.error("XSKMAP"))?;
                live.ports.push(Port::new(device, id, Source::Xsk(xsk)));
            }
            attached.push(kernel.take_away(device, &sockets)?);
        }
        if let Some(idle) = all.iter().find(|live| live.ports.is_empty()) {
            return Err(LiveError::NoXdp {
                interface: idle.options.interfaces.join(", "),
                why: format!("there are fewer receive queues than workers ({workers})"),
            });
        }
        let attached = Arc::new(attached);
        for live in all {
            live.attached = Arc::clone(&attached);
        }
        Ok(())
    }

    /// How each interface is captured, in plain English.
    #[must_use]
    pub fn ways(&self) -> Vec<String> {
        let way = |port: &Port| match &port.source {
            Source::Ring(ring) if ring.has_card_times() => {
                format!("{}: AF_PACKET, times of the card", port.device.name)
            }
            Source::Ring(_) => format!("{}: AF_PACKET", port.device.name),
            Source::Xsk(xsk) => {
                let program = self.attached.get(usize::from(port.interface));
                let native = program.is_some_and(|program| program.native);
                format!(
                    "{}: AF_XDP, {} program, {}",
                    port.device.name,
                    if native { "native" } else { "generic" },
                    if xsk.zero_copy { "zero-copy" } else { "copy" },
                )
            }
        };
        let mut ways: Vec<String> = self.ports.iter().map(way).collect();
        ways.dedup();
        ways
    }

    /// One worker's rings, which admit nothing yet.
    fn joined(
        devices: &[Device],
        options: &LiveOptions,
        kernel: &Arc<Kernel>,
    ) -> Result<Self, LiveError> {
        let mut ports = Vec::new();
        let mut metas = VecDeque::new();
        for (id, device) in (0_u16..).zip(devices) {
            metas.push_back(Meta::Interface {
                id,
                interface: describe(device, options),
            });
            if options.exclusive {
                continue;
            }
            let ring = Ring::open(device, options)?;
            kernel.join(ring.fd(), device)?;
            ports.push(Port::new(device, id, Source::Ring(ring)));
        }
        Ok(Self {
            ports,
            attached: Arc::default(),
            tai_ns: clock::tai_ahead_ns(),
            options: options.clone(),
            kernel: Arc::clone(kernel),
            filter_in_user_space: None,
            slots: Vec::with_capacity(BATCH_MAX),
            current: 0,
            metas,
            events: Vec::new(),
            looked: Instant::now(),
            waker: Waker::new().map_err(devices[0].error("eventfd"))?,
        })
    }

    /// Ends a wait for packets: the step is [`LiveNext::Idle`] then.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Why the kernel does not evaluate the filter on all interfaces, so that it must be evaluated
    /// again; `None` if it does.
    #[must_use]
    pub fn filter_in_user_space(&self) -> Option<&str> {
        let why = self.filter_in_user_space.as_deref();
        why.filter(|_| self.options.filter.is_some())
    }

    /// Packets that the kernel has skipped because of the filter, for all workers.
    #[must_use]
    pub fn filtered(&self) -> Counters {
        self.kernel.filtered()
    }

    /// Where to set how much of a flow's packets is enough; `None` unless [`LiveOptions::cut`] asks
    /// for it.
    #[must_use]
    pub fn cut_table(&self) -> Option<CutTable> {
        self.kernel.cut_table()
    }

    /// Where to set which share of flows is captured; `None` unless [`LiveOptions::sample`] asks
    /// for it.
    #[must_use]
    pub fn sampler(&self) -> Option<FlowSampler> {
        self.kernel.sampler()
    }

    /// Takes one step. The packets of the previous step are given back.
    ///
    /// # Errors
    ///
    /// If an interface cannot be captured any longer. One that goes down or away is waited for.
    pub fn advance(&mut self) -> Result<LiveNext, LiveError> {
        if let Some(meta) = self.metas.pop_front() {
            return Ok(LiveNext::Meta(meta));
        }
        self.slots.clear();
        self.ports[self.current].source.release();
        if self.fill() {
            return Ok(LiveNext::Packets);
        }
        let fds = self.ports.iter().map(|port| port.source.fd());
        event::wait(fds, self.waker.0.as_fd(), WAIT).map_err(self.ports[0].device.error("poll"))?;
        if self.fill() {
            return Ok(LiveNext::Packets);
        }
        self.look_after_ports()?;
        Ok(LiveNext::Idle)
    }

    /// Takes packets from the first ring that has some, in turn.
    fn fill(&mut self) -> bool {
        for step in 1..=self.ports.len() {
            let index = (self.current + step) % self.ports.len();
            let port = &mut self.ports[index];
            let slots = &mut self.slots;
            if port.source.fill(port.interface, self.tai_ns, slots) {
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
            memory: self.ports[self.current].source.memory(),
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
    /// If the kernel does not tell.
    pub fn counts(&mut self) -> Result<Vec<(String, RingCounts)>, LiveError> {
        let mut all = Vec::new();
        for port in &mut self.ports {
            let counts = port.source.counts();
            let counts = counts.map_err(port.device.error("PACKET_STATISTICS"))?;
            all.push((port.device.name.clone(), port.earlier.plus(counts)));
        }
        Ok(all)
    }

    /// The share of a ring's memory that waits to be processed, for the fullest one; `None` without
    /// rings.
    #[must_use]
    pub fn ring_fill(&self) -> Option<f64> {
        let shares = self.ports.iter().filter_map(|port| match &port.source {
            Source::Ring(ring) => Some(ring.fill_share()),
            Source::Xsk(_) => None,
        });
        shares.reduce(f64::max)
    }

    /// Notices interfaces that went down, and reopens those that are back.
    fn look_after_ports(&mut self) -> Result<(), LiveError> {
        for port in &mut self.ports {
            if let Source::Ring(ring) = &mut port.source
                && let Some(off) = ring.take_clock_events()
            {
                let name = port.device.name.clone();
                self.events.push(LiveEvent::CardTimes(name, off));
            }
            // The pending error, which reading it clears.
            match socket_error(port.source.fd()).flatten() {
                Ok(()) => {}
                Err(Errno::NETDOWN) => {
                    port.state = PortState::Down;
                    self.events.push(LiveEvent::Down(port.device.name.clone()));
                }
                Err(error) => return Err(port.device.error("receiving")(error.into())),
            }
        }
        if self.looked.elapsed() < LOOK_AGAIN {
            return Ok(());
        }
        self.looked = Instant::now();
        for port in &mut self.ports {
            if port.device.index != 0
                && let Some(event) = port.look(&self.options, &self.kernel)?
            {
                self.events.push(event);
            }
        }
        Ok(())
    }
}

impl Port {
    fn new(device: &Device, interface: u16, source: Source) -> Self {
        Self {
            source,
            interface,
            device: device.clone(),
            earlier: RingCounts::default(),
            state: PortState::Up,
        }
    }

    /// Compares what is captured with what exists.
    fn look(
        &mut self,
        options: &LiveOptions,
        kernel: &Kernel,
    ) -> Result<Option<LiveEvent>, LiveError> {
        let name = self.device.name.clone();
        let found = match Device::named(&name) {
            Ok(found) => found,
            Err(LiveError::NoSuchInterface { .. }) => {
                let events = self.state != PortState::Gone;
                self.state = PortState::Gone;
                return Ok(events.then_some(LiveEvent::Gone(name)));
            }
            Err(error) => return Err(error),
        };
        if found.index != self.device.index {
            if !found.is_up || options.exclusive {
                return Ok(None);
            }
            // An interface of the same name: the old ring belongs to the old one.
            self.earlier = self.earlier.plus(self.source.counts().unwrap_or_default());
            self.source = Source::Ring(Ring::open(&found, options)?);
            kernel.join(self.source.fd(), &found)?;
            kernel.admit(self.source.fd(), &found)?;
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

/// An interface that can be captured now, and to which the filter can be applied.
fn find(name: &str, options: &LiveOptions) -> Result<Device, LiveError> {
    let device = Device::named(name)?;
    if !device.is_up {
        return Err(LiveError::Down {
            interface: device.name,
        });
    }
    if options.exclusive && (device.link != LinkType::ETHERNET || device.index == 0) {
        return Err(LiveError::NoXdp {
            interface: device.name,
            why: String::from("its packets have no Ethernet header"),
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

/// The interface's description in an export.
fn describe(device: &Device, options: &LiveOptions) -> Interface {
    let mut interface = Interface::new(device.link, options.snaplen);
    let mut push = |code: u16, value: &[u8]| {
        // Names and filters are far shorter than an option can be; if not, they are skipped.
        let _ = options::push(&mut interface.options, code, value);
    };
    push(code::IF_NAME, device.name.as_bytes());
    if let Some(mbps) = device.speed_mbps {
        let bits = u64::from(mbps) * 1_000_000;
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
