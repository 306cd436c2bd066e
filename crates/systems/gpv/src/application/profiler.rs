//! The host timing profiler (section 6.2): when each packet of a host came, for protocol
//! optimisers, simulators and experiments. One look-up a vector, however many packets it has.

use strata_wire::AddressFamily;

use super::Application;
use super::hosts::Hosts;
use crate::tuple::Tuple;
use crate::vector::Grouped;

/// How much a profiler holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfilerOptions {
    /// Maximum number of hosts that are profiled: those that sent first.
    pub hosts_max: u32,
    /// Maximum number of packets of all hosts.
    pub packets_max: u64,
}

impl Default for ProfilerOptions {
    /// A hundred thousand hosts, 16 million packets: 128 MB of times.
    fn default() -> Self {
        Self {
            hosts_max: 100_000,
            packets_max: 16_000_000,
        }
    }
}

/// What a profiler counted. Packets that came are those held and those cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProfilerCounters {
    /// Vectors or records taken.
    pub groups: u64,
    /// Packets whose times are held.
    pub packets: u64,
    /// Packets for which there was no room, of hosts or of packets.
    pub cut: u64,
}

/// A host and when its packets came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile<'a> {
    /// What the address is.
    pub family: AddressFamily,
    /// Its address.
    pub address: u128,
    /// When its packets came, ns since 1970: of each flow in order, flows as their vectors came.
    pub times_ns: &'a [u64],
}

/// When each packet of each host came, by source address.
#[derive(Debug)]
pub struct Profiler {
    options: ProfilerOptions,
    hosts: Hosts,
    times: Vec<Vec<u64>>,
    counters: ProfilerCounters,
}

impl Profiler {
    /// A profiler that has seen nothing.
    #[must_use]
    pub fn new(options: ProfilerOptions, seed: u64) -> Self {
        Self {
            options,
            hosts: Hosts::new(options.hosts_max, seed),
            times: Vec::new(),
            counters: ProfilerCounters::default(),
        }
    }

    /// What it counted.
    #[must_use]
    pub fn counters(&self) -> &ProfilerCounters {
        &self.counters
    }

    /// Gives the profiles of this interval and begins the next. Memory that was used is kept.
    pub fn end_interval(&mut self, mut take: impl FnMut(Profile<'_>)) {
        for (number, times_ns) in (0..).zip(&self.times[..self.hosts.len()]) {
            let (family, address) = self.hosts.host(number);
            take(Profile {
                family,
                address,
                times_ns,
            });
        }
        self.hosts.clear();
        self.times.iter_mut().for_each(Vec::clear);
        self.counters.packets = 0;
        self.counters.groups = 0;
        self.counters.cut = 0;
    }
}

impl<T: Tuple> Application<T> for Profiler {
    #[inline]
    fn take<G: Grouped<T>>(&mut self, _switch: u32, group: &G) {
        let count = group.count() as u64;
        self.counters.groups = self.counters.groups.wrapping_add(1);
        let (key, counters) = (group.key(), &mut self.counters);
        let has_room = counters.packets.wrapping_add(count) <= self.options.packets_max;
        let host = (key.family(), key.source().address);
        let Some(number) = has_room.then(|| self.hosts.number(host)).flatten() else {
            counters.cut = counters.cut.wrapping_add(count);
            return;
        };
        counters.packets = counters.packets.wrapping_add(count);
        if number as usize == self.times.len() {
            self.times.push(Vec::new());
        }
        let times = &mut self.times[number as usize];
        group.for_each_run(|start_ns, tuples| {
            times.extend(
                tuples
                    .iter()
                    .map(|tuple| start_ns.wrapping_add(tuple.delta_ns())),
            );
        });
    }
}
