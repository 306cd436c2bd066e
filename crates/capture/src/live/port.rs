//! One interface, or a queue of it, that a worker captures: going down, coming back.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use strata_sys::interface as asked;

use super::batch::{Memory, Slot};
use super::error::LiveError;
use super::interface::Device;
use super::kernel::Kernel;
use super::options::LiveOptions;
use super::ring::{ClockEvent, Ring, RingCounts};
use super::xsk::Xsk;

/// Something that happened to an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveEvent {
    /// It was set down.
    Down(String),
    /// It no longer exists.
    Gone(String),
    /// Packets can arrive again.
    Back(String),
    /// Packets can arrive again, and are no longer taken away from the host.
    BackShared(String),
    /// The card's clock is this many ns off the host's: whether its times are still taken.
    CardTimes(String, ClockEvent),
}

impl fmt::Display for LiveEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(name) => write!(f, "{name}: the interface went down; waiting for it"),
            Self::Gone(name) => write!(f, "{name}: the interface is gone; waiting for it"),
            Self::Back(name) => write!(f, "{name}: the interface is back"),
            Self::BackShared(name) => write!(
                f,
                "{name}: the interface is back, captured through AF_PACKET from now on: start anew \
                 to take its packets away from this host again"
            ),
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

/// Where the packets of a port come from.
#[derive(Debug)]
pub(super) enum Source {
    Ring(Ring),
    Xsk(Xsk),
}

impl Source {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Ring(ring) => ring.fd(),
            Self::Xsk(xsk) => xsk.fd(),
        }
    }

    pub(super) fn memory(&self) -> Memory<'_> {
        match self {
            Self::Ring(ring) => Memory::Block(ring.block()),
            Self::Xsk(xsk) => Memory::Frames(xsk.frames()),
        }
    }

    pub(super) fn release(&mut self) {
        match self {
            Self::Ring(ring) => ring.release(),
            Self::Xsk(xsk) => xsk.release(),
        }
    }

    pub(super) fn fill(&mut self, interface: u16, tai_ns: u64, slots: &mut Vec<Slot>) -> bool {
        match self {
            Self::Ring(ring) => ring.fill(interface, slots),
            Self::Xsk(xsk) => xsk.fill(interface, tai_ns, slots),
        }
    }

    pub(super) fn counts(&mut self) -> io::Result<RingCounts> {
        match self {
            Self::Ring(ring) => ring.counts(),
            Self::Xsk(xsk) => xsk.counts(),
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortState {
    Up,
    Down,
    /// Nothing more comes from its ring.
    Gone,
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

    /// Compares what is captured with what exists. Of an interface that is still the same, only its number
    /// and flags are asked for: all else would wait for whoever changes interfaces, while the ring fills.
    pub(super) fn look(
        &mut self,
        options: &LiveOptions,
        kernel: &Kernel,
    ) -> Result<Option<LiveEvent>, LiveError> {
        let name = self.device.name.clone();
        let found = asked::flags(&name).and_then(|flags| Ok((asked::index(&name)?, flags)));
        let (index, flags) = match found {
            Ok(found) => found,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => {
                let events = self.state != PortState::Gone;
                self.state = PortState::Gone;
                return Ok(events.then_some(LiveEvent::Gone(name)));
            }
            Err(error) => return Err(self.device.error("SIOCGIFFLAGS")(error)),
        };
        let is_up = i32::from(flags) & libc::IFF_UP != 0;
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
                false => LiveEvent::Back(name),
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
