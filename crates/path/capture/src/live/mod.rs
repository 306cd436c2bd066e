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
//! together      which interfaces share a ring
//! common        one ring for many interfaces, and who lost packets there
//! ring, xsk     one TPACKET_V3 ring; one AF_XDP socket
//! kernel        eBPF: filter, cut, sampling, spreading over workers
//! options       what is captured, and how
//! state         whether an interface is there and up
//! batch         where packets lie; headers: what is put in front of them
//! host          interfaces of this host, and what else uses them
//!   exclusive     whether packets may be taken away from the host
//!   uses, netlink what else on this host uses an interface
//!   bridges       which interfaces are ports of one
//!   interface     what interfaces there are, and by which names
//!   namespaces    which network namespace is at the other end of one
//!   link_changes  when interfaces come, go or change
//! losses        what was lost before us
//!   drops, cpus   where; what receiving costs the kernel
//!   contention    whether our CPUs are short for others
//! event, clock  waiting, and what time it is
//! ```

mod batch;
pub(crate) mod clock;
mod common;
mod error;
mod event;
mod headers;
mod host;
mod kernel;
mod losses;
mod options;
mod port;
mod ring;
mod state;
mod together;
mod xsk;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_bpf::SocketMap;
use strata_wire::{Counters, Meta};

use crate::packet::BATCH_MAX;
pub use batch::RingBatch;
use batch::Slot;
pub use error::LiveError;
pub use host::bridges::bridges_of_ports;
pub use host::exclusive::{Exclusivity, Way};
pub use host::interface::{ANY, Device, Offers, interface_names};
pub use host::link_changes::LinkChanges;
pub use host::namespaces::{enter_namespace, namespaces_behind};
pub use host::uses::{HostUses, Use};
use host::{exclusive, interface};
use kernel::{Attached, Kernel, Placed, XdpModes};
pub use kernel::{CUT_BYTES_MIN, CopyLimit, CutTable, FlowSampler, ShareFollower};
pub use losses::contention::{Contention, ContentionReading};
pub use losses::cpus::{ReceiveCpu, ReceiveCpus};
pub use losses::drops::{DropCounts, Drops, Lost, softnet_dropped};
pub use options::{Direction, Exclusive, LiveOptions, Rings, SocketOpener, Stamps};
use options::{describe, find};
use port::{Port, Source};
use ring::Ring;
pub use ring::{ClockEvent, RingCounts};
pub use state::LiveEvent;
use state::PortState;
use together::Together;
use xsk::Xsk;

/// How long a step waits for packets at most.
const WAIT: Duration = Duration::from_millis(100);
/// By then the kernel has handed over every block that had something in it.
const HANDED_OVER: Duration = ring::BLOCK_TIMEOUT.saturating_mul(3);
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
    attached: Arc<BTreeMap<u16, Attached>>,
    /// Whether packets could be taken away, by interface.
    exclusivity: Vec<Exclusivity>,
    /// How far the clock of AF_XDP's timestamps is ahead.
    tai_ns: u64,
    /// Why the kernel does not evaluate the filter on some interface.
    filter_in_user_space: Option<String>,
    /// Why interfaces do not share a ring that should.
    not_shared: Option<String>,
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
            all.push(Self::without_ports(&devices, options, &kernel)?);
        }
        let together = Together::new(&devices, options, &kernel);
        let not_shared = together.refused.clone();
        // Once for all: it is the longer the more there are.
        let uses = (options.exclusive == Exclusive::No && devices.len() > 1).then(HostUses::now);
        let uses = uses.map(|uses| uses.map_err(|error| error.to_string()));
        let mut attached = BTreeMap::new();
        for (id, device) in (0_u16..).zip(&devices) {
            let exclusivity = match Self::take_away(&mut all, id, device, (workers, uses.as_ref()))?
            {
                Ok(program) => {
                    attached.insert(id, program);
                    Exclusivity::Taken
                }
                Err(exclusivity) => {
                    if !together.has(id) {
                        Self::share(&mut all, id, device)?;
                    }
                    exclusivity
                }
            };
            for live in &mut all {
                live.exclusivity.push(exclusivity.clone());
            }
        }
        // After what looks for sockets of all interfaces.
        for (live, port) in all.iter_mut().zip(together.open(options, &kernel)?) {
            live.ports.push(port);
        }
        if let Some(idle) = all.iter().find(|live| live.ports.is_empty()) {
            return Err(LiveError::NoXdp {
                interface: idle.options.interfaces.join(", "),
                why: format!("there are fewer receive queues than workers ({workers})"),
            });
        }
        let attached = Arc::new(attached);
        for live in &mut all {
            live.not_shared.clone_from(&not_shared);
            live.attached = Arc::clone(&attached);
            live.admit()?;
        }
        Ok(all)
    }

    /// Takes the packets of an interface away from the host if that is wanted, or says why they are
    /// shared with it.
    fn take_away(
        all: &mut [Self],
        id: u16,
        device: &Device,
        (workers, uses): (u16, Option<&Result<HostUses, String>>),
    ) -> Result<Result<Attached, Exclusivity>, LiveError> {
        let options = all[0].options.clone();
        let (ports, attached) = match options.exclusive {
            Exclusive::No => {
                let own = || HostUses::of_device(device).map_err(|error| error.to_string());
                let uses = uses.cloned().unwrap_or_else(own);
                return Ok(Err(match uses {
                    Ok(uses) => device.exclusivity_for(&options, workers, &uses),
                    Err(why) => Exclusivity::No(why),
                }));
            }
            Exclusive::Yes => Self::attach(all, id, device, XdpModes::Any)?,
            Exclusive::Native => Self::attach(all, id, device, XdpModes::Native)?,
            Exclusive::Auto => {
                let mut looked = false;
                let look = || {
                    let uses = HostUses::of_device(device)?;
                    // The second time, the program is ours.
                    let uses = match std::mem::replace(&mut looked, true) {
                        true => uses.without_xdp(),
                        false => uses,
                    };
                    Ok(device.exclusivity_for(&options, workers, &uses))
                };
                let take = || Self::attach(all, id, device, XdpModes::Native);
                match exclusive::take_unused(look, take) {
                    Ok(taken) => taken,
                    Err(why) => return Ok(Err(Exclusivity::No(why))),
                }
            }
        };
        for (live, port) in ports {
            all[live].ports.push(port);
        }
        Ok(Ok(attached))
    }

    /// Opens sockets for an interface's queues, each for a worker, and then attaches the program
    /// that sends packets there.
    fn attach(
        all: &[Self],
        id: u16,
        device: &Device,
        modes: XdpModes,
    ) -> Result<(Vec<(usize, Port)>, Attached), LiveError> {
        let mut ports = Vec::new();
        let queues = interface::receive_queues(&device.name);
        let sockets = SocketMap::new(queues).map_err(device.error("XSKMAP"))?;
        for (queue, worker) in (0..queues).zip((0..all.len()).cycle()) {
            let xsk = Xsk::open(device, queue, &all[worker].options)?;
            sockets
                .set(queue, xsk.fd())
                .map_err(device.error("XSKMAP"))?;
            ports.push((worker, Port::new(device, id, Source::Xsk(xsk))));
        }
        let attached = all[0].kernel.take_away(device, &sockets, modes)?;
        Ok((ports, attached))
    }

    /// Opens a ring on an interface for each worker, which admit nothing yet.
    fn share(all: &mut [Self], id: u16, device: &Device) -> Result<(), LiveError> {
        for live in all {
            let ring = Ring::open(device, &live.options)?;
            live.kernel.join(ring.fd(), device)?;
            live.ports.push(Port::new(device, id, Source::Ring(ring)));
        }
        Ok(())
    }

    /// Lets the rings admit packets, once those of all workers are there.
    fn admit(&mut self) -> Result<(), LiveError> {
        for port in &self.ports {
            match &port.source {
                Source::Ring(ring) => {
                    let placed = self.kernel.admit(ring.fd(), &port.device)?;
                    if let Placed::InUserSpace(why) = placed {
                        self.filter_in_user_space = Some(why);
                    }
                }
                Source::Common(common) => common.admit(&self.kernel)?,
                Source::Xsk(_) => {}
            }
        }
        Ok(())
    }

    /// How each interface is captured.
    #[must_use]
    pub fn ways(&self) -> Vec<Way> {
        let how = |port: &Port| match &port.source {
            Source::Ring(ring) if ring.has_card_times() => {
                String::from("AF_PACKET, NIC timestamps")
            }
            Source::Ring(_) => String::from("AF_PACKET"),
            Source::Xsk(xsk) => {
                let native = self.attached.get(&port.interface).is_some_and(|a| a.native);
                format!(
                    "AF_XDP, {} program, {}",
                    if native { "native" } else { "generic" },
                    if xsk.zero_copy { "zero-copy" } else { "copy" },
                )
            }
            Source::Common(_) => String::from("AF_PACKET, shared ring"),
        };
        let way = |name: &str, interface: u16, how: String| Way {
            interface: name.to_owned(),
            how,
            exclusive: self.exclusivity[usize::from(interface)].clone(),
        };
        let mut ways: Vec<Way> = Vec::new();
        for port in &self.ports {
            match &port.source {
                Source::Common(common) => {
                    let members = common.names();
                    ways.extend(members.map(|(name, number)| way(name, number, how(port))));
                }
                _ => ways.push(way(&port.device.name, port.interface, how(port))),
            }
        }
        ways.dedup();
        ways
    }

    /// Why each interface has a ring of its own though many should share one; `None` if they do.
    #[must_use]
    pub fn not_shared(&self) -> Option<&str> {
        self.not_shared.as_deref()
    }

    /// A worker without rings or sockets.
    fn without_ports(
        devices: &[Device],
        options: &LiveOptions,
        kernel: &Arc<Kernel>,
    ) -> Result<Self, LiveError> {
        let meta = |(id, device)| Meta::Interface {
            id,
            interface: describe(device, options),
        };
        Ok(Self {
            ports: Vec::new(),
            attached: Arc::default(),
            exclusivity: Vec::new(),
            tai_ns: clock::tai_ahead_ns(),
            options: options.clone(),
            kernel: Arc::clone(kernel),
            filter_in_user_space: None,
            not_shared: None,
            slots: Vec::with_capacity(BATCH_MAX),
            current: 0,
            metas: (0_u16..).zip(devices).map(meta).collect(),
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

    /// Where to set how much of any packet is copied at most; `None` if eBPF is not permitted, and then
    /// packets are copied whole.
    #[must_use]
    pub fn copy_limit(&self) -> Option<CopyLimit> {
        self.kernel.copy_limit()
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
        if self.step() {
            return Ok(LiveNext::Packets);
        }
        event::wait(self.sockets(), self.waker.0.as_fd(), WAIT)
            .map_err(self.ports[0].device.error("poll"))?;
        if self.fill() {
            return Ok(LiveNext::Packets);
        }
        self.look_after_ports()?;
        Ok(LiveNext::Idle)
    }

    /// Takes packets that have come, without waiting for any or looking after interfaces. The packets
    /// of the previous step are given back.
    pub fn step(&mut self) -> bool {
        self.slots.clear();
        self.ports[self.current].source.release();
        self.fill()
    }

    /// What becomes readable when packets have come.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().map(|port| port.source.fd())
    }

    /// Whether an interface has gone away, or to another network namespace, since this was last asked:
    /// for those who take steps themselves.
    ///
    /// # Errors
    ///
    /// If an interface cannot be captured any longer for another reason.
    pub fn has_lost_interface(&self) -> Result<bool, LiveError> {
        let mut lost = false;
        for port in &self.ports {
            lost |= port.take_down()?;
        }
        Ok(lost)
    }

    /// Hands out the packets that had arrived by now, ring by ring: for the end of a capture. Takes `most` at
    /// the longest.
    ///
    /// # Errors
    ///
    /// What `take` returns.
    pub fn drain<E>(
        &mut self,
        most: Duration,
        mut take: impl FnMut(&RingBatch<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.metas.is_empty() {
            // Nothing was taken yet, and the caller does not know the interfaces.
            return Ok(());
        }
        let began = Instant::now();
        for port in &mut self.ports {
            if let Source::Common(common) = &mut port.source {
                common.begin_end();
            }
        }
        let end_ns = clock::realtime_ns();
        let left = |of: Duration| of.saturating_sub(began.elapsed());
        for index in 0..self.ports.len() {
            let mut is_read = false;
            while !left(most).is_zero() {
                self.slots.clear();
                self.ports[self.current].source.release();
                self.current = index;
                let port = &mut self.ports[index];
                if port
                    .source
                    .fill(port.interface, self.tai_ns, &mut self.slots)
                {
                    if self.slots[0].ts_ns >= end_ns {
                        is_read = true;
                        break;
                    }
                    take(&self.batch())?;
                    continue;
                }
                // The kernel still has the block that is being filled.
                let wait = left(HANDED_OVER).min(left(most));
                let fd = port.source.fd();
                if wait.is_zero()
                    || event::wait([fd].into_iter(), self.waker.0.as_fd(), wait).is_err()
                {
                    is_read = true;
                    break;
                }
            }
            if is_read && let Source::Common(common) = &mut self.ports[index].source {
                common.finish_end();
            }
        }
        self.slots.clear();
        Ok(())
    }

    /// Takes packets from the first ring that has some, in turn.
    fn fill(&mut self) -> bool {
        let current = self.current;
        // From the next one on, and the current one last.
        let (after, until) = (current.saturating_add(1)..self.ports.len(), 0..=current);
        for index in after.chain(until) {
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
            let fail = port.device.error("PACKET_STATISTICS");
            if let Source::Common(common) = &mut port.source {
                let each = common.counts().map_err(fail)?.into_iter();
                all.extend(each.map(|(name, counts)| (name.to_owned(), counts)));
                continue;
            }
            let counts = port.source.counts().map_err(fail)?;
            all.push((port.device.name.clone(), port.earlier.plus(counts)));
        }
        Ok(all)
    }

    /// The share of a ring's memory that waits to be processed, for the fullest one.
    #[must_use]
    pub fn ring_fill(&self) -> Option<f64> {
        let shares = self.ports.iter().map(|port| port.source.fill_share());
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
            if port.take_down()? {
                port.state = PortState::Down;
                let event = LiveEvent::Down(port.device.name.clone());
                add_event(&mut self.events, event);
            }
        }
        if self.looked.elapsed() < LOOK_AGAIN {
            return Ok(());
        }
        self.looked = Instant::now();
        // One ring replaces the sockets of all queues.
        let mut shared = Vec::new();
        for port in &mut self.ports {
            if let Source::Common(common) = &mut port.source {
                let events = &mut self.events;
                common.look(&self.kernel, |event| add_event(events, event))?;
            }
            if port.device.index == 0 || shared.contains(&port.interface) {
                continue;
            }
            let event = match port.look(&self.options, &self.kernel) {
                Ok(Some(event)) => event,
                Ok(None) => continue,
                // Packets still arrive; the next look may succeed.
                Err(error) if error.may_pass() => continue,
                Err(error) => return Err(error),
            };
            if matches!(event, LiveEvent::BackShared(_)) {
                shared.push(port.interface);
                let why = String::from("the interface was replaced");
                self.exclusivity[usize::from(port.interface)] = Exclusivity::No(why);
            }
            add_event(&mut self.events, event);
        }
        if !shared.is_empty() {
            self.forget_queues();
        }
        Ok(())
    }

    /// Drops the sockets of queues whose interface has come back, with a ring for all of them, and
    /// keeps their counters.
    fn forget_queues(&mut self) {
        let has_ring = |ports: &[Port], id: u16| {
            let mut rings = ports.iter().filter(|p| matches!(p.source, Source::Ring(_)));
            rings.any(|port| port.interface == id)
        };
        let (mut kept, mut old) = (Vec::new(), Vec::new());
        let ports = std::mem::take(&mut self.ports);
        let is_old: Vec<bool> = ports
            .iter()
            .map(|port| matches!(port.source, Source::Xsk(_)) && has_ring(&ports, port.interface))
            .collect();
        for (port, is_old) in ports.into_iter().zip(is_old) {
            match is_old {
                true => old.push(port),
                false => kept.push(port),
            }
        }
        for mut port in old {
            // An error here means that there is nothing more to learn.
            let counts = port.source.counts().unwrap_or(RingCounts::default());
            let ring = kept
                .iter_mut()
                .find(|ring| ring.interface == port.interface);
            if let Some(ring) = ring {
                ring.earlier = ring.earlier.plus(port.earlier).plus(counts);
            }
        }
        self.ports = kept;
        // No slots refer to a port now.
        self.current = 0;
    }
}

/// An interface may have several queues, each of which notices.
fn add_event(events: &mut Vec<LiveEvent>, event: LiveEvent) {
    if !events.contains(&event) {
        events.push(event);
    }
}
