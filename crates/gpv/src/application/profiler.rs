//! The host timing profiler (section 6.2): when each packet of a host came, for protocol
//! optimisers, simulators and experiments. One look-up a vector, however many packets it has.

use std::collections::HashMap;

use strata_wire::AddressFamily;

use super::Application;
use crate::tuple::Tuple;
use crate::vector::Grouped;

/// How much a profiler holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfilerOptions {
    /// Hosts that are profiled at most: those that sent first.
    pub hosts_max: u32,
    /// Packets of all hosts at most.
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
#[derive(Debug, Default)]
pub struct Profiler {
    options: ProfilerOptions,
    hosts: HashMap<(AddressFamily, u128), u32>,
    times: Vec<Vec<u64>>,
    counters: ProfilerCounters,
}

impl Profiler {
    /// A profiler that has seen nothing.
    #[must_use]
    pub fn new(options: ProfilerOptions) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// What it counted.
    #[must_use]
    pub fn counters(&self) -> &ProfilerCounters {
        &self.counters
    }

    /// Gives the profiles of this interval and begins the next. Memory that was used is kept.
    pub fn end_interval(&mut self, mut take: impl FnMut(Profile<'_>)) {
        for (&(family, address), &index) in &self.hosts {
            let times_ns = &self.times[index as usize][..];
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
        self.counters.groups += 1;
        let (key, hosts) = (group.key(), self.hosts.len());
        let host = (key.family(), key.source().address);
        let known = self.hosts.get(&host).copied();
        let has_room = self.counters.packets + count <= self.options.packets_max
            && (known.is_some() || hosts < self.options.hosts_max as usize);
        if !has_room {
            self.counters.cut += count;
            return;
        }
        self.counters.packets += count;
        let index = known.unwrap_or_else(|| {
            let index = strata_wire::exact(hosts);
            self.hosts.insert(host, index);
            if self.times.len() == hosts {
                self.times.push(Vec::new());
            }
            index
        });
        let times = &mut self.times[index as usize];
        group.for_each_run(|start_ns, tuples| {
            times.extend(tuples.iter().map(|tuple| start_ns + tuple.delta_ns()));
        });
    }
}
