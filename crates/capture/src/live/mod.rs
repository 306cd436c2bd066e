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
//! port          one of them, through a ring or a socket
//! ring, xsk     one TPACKET_V3 ring; one AF_XDP socket
//! kernel        eBPF: filter, cut, sampling, spreading over workers
//! options       what is captured, and how
//! interface     what interfaces there are
//! batch         where packets lie; headers: what is put in front of them
//! drops         what was lost before us, and where
//! event, clock  waiting, and what time it is
//! ```

mod batch;
pub(crate) mod clock;
mod drops;
mod error;
mod event;
mod headers;
mod interface;
mod kernel;
mod options;
mod port;
mod ring;
mod xsk;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use strata_bpf::SocketMap;
use strata_wire::{Counters, Meta};

use crate::packet::BATCH_MAX;
pub use batch::RingBatch;
use batch::Slot;
pub use drops::{DropCounts, Drops, Lost};
pub use error::LiveError;
pub use interface::{ANY, Device, Offers};
use kernel::{Attached, Kernel, Placed};
pub use kernel::{CUT_BYTES_MIN, CutTable, FlowSampler, ShareFollower};
pub use options::{Direction, LiveOptions, SocketOpener, Stamps};
use options::{describe, find};
pub use port::LiveEvent;
use port::{Port, PortState, Source};
use ring::Ring;
pub use ring::{ClockEvent, RingCounts};
use xsk::Xsk;

/// How long a step waits for packets at most.
const WAIT: Duration = Duration::from_millis(100);
/// How often to look for an interface that is gone.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

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
