//! One ring for many interfaces: a packet socket of all interfaces of this network namespace, with a program
//! that admits packets of some of them (`kernel::common`).
//!
//! A ring of its own for each costs memory, a place in every wait, and seconds to open and close hundreds.
//! What the ring costs interfaces that are not captured is a run of the program for each of their packets,
//! and of those that leave, the copy of a descriptor.

mod losses;

use std::collections::VecDeque;
use std::io;

use strata_sys::socket;
use strata_wire::LinkType;

use super::batch::Slot;
use super::clock;
use super::error::LiveError;
use super::host::interface::Device;
use super::kernel::{Common, Kernel};
use super::options::{LiveOptions, Stamps};
use super::ring::{Ring, RingCounts, in_order};
use super::state::{Found, LiveEvent, PortState, ask};
use losses::{Losses, Tally};

/// The ring has what its members' would have together, but no more than this unless one alone would.
const RING_BYTES_MAX: usize = 64 << 20;
/// Indexes that members had before and of which packets may still be in the ring.
const FORMER_MAX: usize = 1024;
/// A block that was begun so long after a moment has no packet from before it.
const SURELY_LATER_NS: u64 = 5_000_000;

/// A ring of one worker, and the interfaces whose packets it gets.
#[derive(Debug)]
pub(super) struct CommonRing {
    pub(super) ring: Ring,
    kernel: Common,
    members: Vec<Member>,
    /// Of each member.
    tallies: Vec<Tally>,
    losses: Losses,
    /// Indexes that members had, and whose.
    former: VecDeque<(u32, u32)>,
    /// Whether this ring makes interfaces promiscuous: one of those of all workers does.
    promiscuous: bool,
}

/// An interface whose packets come by the ring.
#[derive(Debug)]
struct Member {
    device: Device,
    state: PortState,
}

/// Whether an interface can share a ring: its packets have the same headers as all others there, come once,
/// and have the kernel's times.
pub(super) fn can_share(device: &Device, options: &LiveOptions) -> bool {
    device.index != 0
        && device.link == LinkType::ETHERNET
        && !device.is_loopback
        && match options.stamps {
            Stamps::Host => true,
            Stamps::Auto => !super::host::interface::stamps(&device.name),
            Stamps::Adapter => false,
        }
}

impl CommonRing {
    /// A ring for these interfaces, with their numbers in a worker. It admits nothing until
    /// [`CommonRing::admit`].
    pub(super) fn open(
        devices: &[(u16, Device)],
        options: &LiveOptions,
        kernel: Common,
        promiscuous: bool,
    ) -> Result<Self, LiveError> {
        let wanted = devices.iter().map(|(_, device)| match options.ring_bytes {
            Some(bytes) => bytes,
            None => device.ring_bytes(),
        });
        let largest = wanted.clone().max().expect("there are interfaces");
        let together = wanted.fold(0, usize::saturating_add);
        let mut options = options.clone();
        options.ring_bytes = Some(together.min(RING_BYTES_MAX).max(largest));
        let ring = Ring::open(&Device::together(devices.len()), &options)?;
        let member = |(_, device): &(u16, Device)| Member {
            device: device.clone(),
            state: PortState::Up,
        };
        let tally = |(interface, _): &(u16, Device)| Tally {
            interface: *interface,
            ..Tally::default()
        };
        let common = Self {
            ring,
            kernel,
            members: devices.iter().map(member).collect(),
            tallies: devices.iter().map(tally).collect(),
            losses: Losses::new(devices.len()),
            former: VecDeque::new(),
            promiscuous: promiscuous && options.promiscuous,
        };
        for member in &common.members {
            common.make_promiscuous(&member.device)?;
        }
        Ok(common)
    }

    /// One that has gone meanwhile is noticed later.
    fn make_promiscuous(&self, device: &Device) -> Result<(), LiveError> {
        if !self.promiscuous {
            return Ok(());
        }
        match socket::set_promiscuous(self.ring.fd(), device.index) {
            Err(error) if error.raw_os_error() != Some(libc::ENODEV) => {
                Err(device.error("PACKET_MR_PROMISC")(error))
            }
            _ => Ok(()),
        }
    }

    /// Lets the ring have packets, once those of all workers are there.
    pub(super) fn admit(&self, kernel: &Kernel) -> Result<(), LiveError> {
        for member in &self.members {
            kernel.note_port(&member.device);
        }
        let attached = kernel.admit_members(self.ring.fd(), &self.kernel);
        attached.map_err(self.members[0].device.error("SO_ATTACH_BPF"))
    }

    /// Names of the interfaces, and their numbers.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, u16)> {
        let both = self.members.iter().zip(&self.tallies);
        both.map(|(member, tally)| (member.device.name.as_str(), tally.interface))
    }

    /// Describes the next packets; returns whether there are any.
    pub(super) fn fill(&mut self, slots: &mut Vec<Slot>) -> bool {
        while slots.is_empty() {
            if !self.ring.take() {
                return false;
            }
            let mut moment_ns = self.losses.moment_ns();
            let later = |at: u64| self.ring.began_ns() > at.saturating_add(SURELY_LATER_NS);
            if moment_ns.is_some_and(later) {
                self.losses.passed(&self.tallies);
                moment_ns = None;
            }
            let Self {
                kernel,
                former,
                tallies,
                ..
            } = self;
            let mut member = None;
            self.ring.describe(slots, |index, ts_ns| {
                let number = match member {
                    Some((of, number)) if of == index => number,
                    _ => {
                        let mut old = former.iter().rev();
                        let old = || old.find(|(old, _)| *old == index).map(|(_, of)| *of);
                        let number = kernel.indexes.get(index).or_else(old)?;
                        member = Some((index, number));
                        number
                    }
                };
                let tally = &mut tallies[number as usize];
                // Of 64 bits: no count gets there.
                tally.seen = tally.seen.wrapping_add(1);
                if moment_ns.is_some_and(|at| ts_ns > at) {
                    tally.seen_after = tally.seen_after.wrapping_add(1);
                }
                Some((tally.interface, in_order(ts_ns, &mut tally.last_ts_ns)))
            });
        }
        true
    }

    /// What the kernel has counted of each interface. Who lost packets is known once the ring was read as far
    /// as it was filled then.
    pub(super) fn counts(&mut self) -> io::Result<Vec<(&str, RingCounts)>> {
        let before = self.ring.counts()?;
        let mut admitted = vec![0; self.members.len()];
        self.kernel.add_admitted(&mut admitted);
        if !self.losses.are_known(before.dropped) {
            let now_ns = clock::realtime_ns();
            let drops = [before.dropped, self.ring.counts()?.dropped];
            self.losses
                .look(now_ns, &admitted, drops, &mut self.tallies);
        }
        let each = self.members.iter().zip(admitted).zip(self.losses.dropped());
        let counted = each.map(|((member, received), &dropped)| {
            let counts = RingCounts {
                received,
                dropped,
                ..before
            };
            (member.device.name.as_str(), counts)
        });
        Ok(counted.collect())
    }

    /// Prepares for the end: what was dropped until now is to be known once the ring was read that far.
    pub(super) fn begin_end(&mut self) {
        self.losses.forget();
        // An error means that there is nothing to know.
        let _ = self.counts();
    }

    /// The ring was read as far as it was filled at [`CommonRing::begin_end`].
    pub(super) fn finish_end(&mut self) {
        self.losses.passed(&self.tallies);
    }

    /// Compares the interfaces with what exists.
    pub(super) fn look(
        &mut self,
        kernel: &Kernel,
        mut tell: impl FnMut(LiveEvent),
    ) -> Result<(), LiveError> {
        for number in 0..self.members.len() {
            match self.look_at(number, kernel) {
                Ok(event) => event.into_iter().for_each(&mut tell),
                Err(error) if error.may_pass() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn look_at(&mut self, number: usize, kernel: &Kernel) -> Result<Option<LiveEvent>, LiveError> {
        let member = &mut self.members[number];
        let name = member.device.name.clone();
        let (before, index_before) = (member.state, member.device.index);
        let (index, is_up) = match ask(&member.device, before != PortState::Gone)? {
            Found::Named(index, is_up) => (index, is_up),
            // Packets are told apart by its index.
            Found::Renamed(now) => {
                member.device.name.clone_from(&now);
                return Ok(Some(LiveEvent::Renamed(name, now)));
            }
            Found::Nothing => {
                member.state = PortState::Gone;
                if before == PortState::Gone {
                    return Ok(None);
                }
                self.leave(number);
                return Ok(Some(LiveEvent::Gone(name)));
            }
        };
        if index == index_before && before != PortState::Gone {
            member.state = if is_up {
                PortState::Up
            } else {
                PortState::Down
            };
            return Ok(match (before, member.state) {
                (PortState::Up, PortState::Down) => Some(LiveEvent::Down(name)),
                (PortState::Down, PortState::Up) => Some(LiveEvent::Back(name)),
                _ => None,
            });
        }
        if !is_up {
            return Ok(None);
        }
        let found = match Device::named(&name) {
            Ok(found) if found.link == LinkType::ETHERNET => found,
            // It has gone again since, or another kind of interface has its name.
            Ok(_) | Err(LiveError::NoSuchInterface { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if found.index != index_before {
            self.leave(number);
        }
        kernel.note_port(&found);
        let of = u32::try_from(number).expect("an interface has a number of 16 bits");
        if !self.kernel.indexes.put(found.index, of) {
            return Ok(None);
        }
        self.make_promiscuous(&found)?;
        let member = &mut self.members[number];
        (member.device, member.state) = (found, PortState::Up);
        Ok(Some(LiveEvent::Again(name)))
    }

    /// No more packets are admitted by the index that a member had.
    fn leave(&mut self, number: usize) {
        let index = self.members[number].device.index;
        let of = u32::try_from(number).expect("an interface has a number of 16 bits");
        self.kernel.indexes.remove(index);
        if self.former.len() >= FORMER_MAX {
            self.former.pop_front();
        }
        self.former.push_back((index, of));
    }
}
