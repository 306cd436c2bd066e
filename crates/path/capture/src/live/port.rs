//! One interface, or a queue of it, that a worker captures: going down, coming back.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use strata_sys::socket;

use super::batch::{Memory, Slot};
use super::common::CommonRing;
use super::error::LiveError;
use super::host::interface::Device;
use super::kernel::Kernel;
use super::options::LiveOptions;
use super::ring::{Ring, RingCounts};
use super::state::{Found, LiveEvent, PortState, ask};
use super::xsk::Xsk;

/// Where the packets of a port come from.
#[derive(Debug)]
pub(super) enum Source {
    Ring(Ring),
    Xsk(Xsk),
    /// Of many interfaces, not one: it looks after them itself.
    Common(Box<CommonRing>),
}

impl Source {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Ring(ring) => ring.fd(),
            Self::Xsk(xsk) => xsk.fd(),
            Self::Common(common) => common.ring.fd(),
        }
    }

    pub(super) fn memory(&self) -> Memory<'_> {
        match self {
            Self::Ring(ring) => Memory::Block(ring.block()),
            Self::Xsk(xsk) => Memory::Frames(xsk.frames()),
            Self::Common(common) => Memory::Block(common.ring.block()),
        }
    }

    pub(super) fn release(&mut self) {
        match self {
            Self::Ring(ring) => ring.release(),
            Self::Xsk(xsk) => xsk.release(),
            Self::Common(common) => common.ring.release(),
        }
    }

    pub(super) fn fill(&mut self, interface: u16, tai_ns: u64, slots: &mut Vec<Slot>) -> bool {
        match self {
            Self::Ring(ring) => ring.fill(interface, slots),
            Self::Xsk(xsk) => xsk.fill(interface, tai_ns, slots),
            Self::Common(common) => common.fill(slots),
        }
    }

    pub(super) fn counts(&mut self) -> io::Result<RingCounts> {
        match self {
            Self::Ring(ring) => ring.counts(),
            Self::Xsk(xsk) => xsk.counts(),
            Self::Common(common) => common.ring.counts(),
        }
    }

    pub(super) fn fill_share(&self) -> f64 {
        match self {
            Self::Ring(ring) => ring.fill_share(),
            Self::Xsk(xsk) => xsk.fill_share(),
            Self::Common(common) => common.ring.fill_share(),
        }
    }
}

/// An interface, or a queue of it, and its ring.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) device: Device,
    pub(super) interface: u16,
    pub(super) source: Source,
    /// Counters of rings that this one has replaced.
    pub(super) earlier: RingCounts,
    pub(super) state: PortState,
}

impl Port {
    pub(super) fn new(device: &Device, interface: u16, source: Source) -> Self {
        Self {
            source,
            interface,
            device: device.clone(),
            earlier: RingCounts::default(),
            state: PortState::Up,
        }
    }

    /// Whether the interface went down or away since this was last asked.
    pub(super) fn take_down(&self) -> Result<bool, LiveError> {
        // The pending error, which reading it clears.
        match socket_error(self.source.fd()).flatten() {
            Ok(()) => Ok(false),
            Err(Errno::NETDOWN) => Ok(true),
            Err(error) => Err(self.device.error("receiving")(error.into())),
        }
    }

    /// Whether its socket still is on the interface. Of an AF_XDP socket it is not known.
    fn is_bound(&self) -> Result<bool, LiveError> {
        let bound = match &self.source {
            Source::Xsk(_) => return Ok(self.state != PortState::Gone),
            Source::Ring(_) | Source::Common(_) => socket::bound_interface(self.source.fd()),
        };
        let bound = bound.map_err(self.device.error("getsockname"))?;
        Ok(bound == Some(self.device.index))
    }

    /// Compares what is captured with what exists. Of an interface that is still the same, only its number
    /// and flags are queried: all else would wait for programs that change interfaces, while the ring
    /// fills.
    pub(super) fn look(
        &mut self,
        options: &LiveOptions,
        kernel: &Kernel,
    ) -> Result<Option<LiveEvent>, LiveError> {
        let name = self.device.name.clone();
        let (index, is_up) = match ask(&self.device, self.is_bound()?)? {
            Found::Named(index, is_up) => (index, is_up),
            Found::Renamed(now) => {
                self.device.name.clone_from(&now);
                return Ok(Some(LiveEvent::Renamed(name, now)));
            }
            Found::Nothing => {
                let events = self.state != PortState::Gone;
                self.state = PortState::Gone;
                return Ok(events.then_some(LiveEvent::Gone(name)));
            }
        };
        if index != self.device.index {
            if !is_up {
                return Ok(None);
            }
            let found = match Device::named(&name) {
                Ok(found) => found,
                // It has gone again since.
                Err(LiveError::NoSuchInterface { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            // Attaching an XDP program may no longer be permitted, and something else may use the
            // new interface: the ring works in any case.
            let was_exclusive = matches!(self.source, Source::Xsk(_));
            let ring = Ring::open(&found, options)?;
            // An interface of the same name: the old ring belongs to the old one, and leaves before
            // the new one joins.
            let counts = self.source.counts();
            let counts = counts.map_err(self.device.error("PACKET_STATISTICS"))?;
            self.earlier = self.earlier.plus(counts);
            self.source = Source::Ring(ring);
            kernel.join(self.source.fd(), &found)?;
            kernel.admit(self.source.fd(), &found)?;
            self.device = found;
            self.state = PortState::Up;
            return Ok(Some(match was_exclusive {
                true => LiveEvent::BackShared(name),
                false => LiveEvent::Again(name),
            }));
        }
        // The kernel attaches the ring again by itself.
        if self.state == PortState::Down && is_up {
            self.state = PortState::Up;
            return Ok(Some(LiveEvent::Back(name)));
        }
        Ok(None)
    }
}
