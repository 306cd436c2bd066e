//! Micro-burst diagnosis (section 6.2): who had packets in the queue when it was long. From each
//! packet that met a long queue the diagnosis walks back a stated interval, in the order of all
//! packets, whichever flow they are of.

mod order;

use std::collections::VecDeque;

use strata_wire::{AddressFamily, prefetch};

use self::order::{Held, Order};
use super::Application;
use super::hosts::Hosts;
use crate::tuple::{Column, Tuple};
use crate::vector::Grouped;

/// What says that the queue was long when a packet came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Congestion {
    /// The flag that a switch sets.
    HighQueue,
    /// A router on the way marked it "congestion experienced" (RFC 3168 section 5).
    Ecn,
    /// The amount in the queue, or in the ring of a capture, in the unit of the measurement.
    Depth {
        /// From this depth on.
        at_least: u32,
    },
    /// A model: one queue that takes every packet as it arrives and sends at this rate.
    Model {
        /// The rate at which it sends.
        bits_per_second: u64,
        /// It is long with more bytes than this.
        bytes: u64,
    },
}

/// What is diagnosed, and with how much memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BurstOptions {
    /// What says that the queue was long.
    pub congestion: Congestion,
    /// How far to walk back from such a packet, ns. Walks that meet are one burst.
    pub lookback_ns: u64,
    /// A burst that takes longer is continued as another one, ns.
    pub burst_ns_max: u64,
    /// How long packets wait for those of vectors that come later, ns: as long as a vector may be
    /// in the cache.
    pub hold_ns: u64,
    /// Maximum number of packets that wait.
    pub packets_max: u32,
    /// Maximum number of hosts that these packets come from.
    pub hosts_max: u32,
    /// Sources of a burst that are named: those of the most bytes.
    pub top: usize,
}

impl Default for BurstOptions {
    /// 100 us back from each packet that met a long queue; the 10 largest sources; 2 seconds, 4
    /// million packets and 100,000 hosts: 72 MB.
    fn default() -> Self {
        Self {
            congestion: Congestion::HighQueue,
            lookback_ns: 100_000,
            burst_ns_max: 10_000_000,
            hold_ns: 2_000_000_000,
            packets_max: 4_000_000,
            hosts_max: 100_000,
            top: 10,
        }
    }
}

/// What a diagnosis counted. Packets that came are those ordered, late, refused and waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BurstCounters {
    /// Vectors or records taken.
    pub groups: u64,
    /// Packets that were put into order.
    pub ordered: u64,
    /// Packets that came after their time was diagnosed.
    pub late: u64,
    /// Packets of hosts for which there was no room.
    pub refused: u64,
    /// Packets that met a long queue.
    pub congested: u64,
    /// Packets that were diagnosed before `hold_ns` was over, since there was no room.
    pub hurried: u64,
    /// Packets that a walk might have found, given up since there was no room.
    pub cut: u64,
    /// Bursts given.
    pub bursts: u64,
}

/// A host with packets in a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BurstSource {
    /// What the address is.
    pub family: AddressFamily,
    /// Its address.
    pub address: u128,
    /// Its packets in the burst.
    pub packets: u64,
    /// Bytes of these on the wire.
    pub bytes: u64,
}

/// A burst.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Burst {
    /// The first packet that the walks found, ns since 1970.
    pub first_ns: u64,
    /// The first packet that met a long queue.
    pub start_ns: u64,
    /// The last one.
    pub end_ns: u64,
    /// How many did.
    pub congested: u64,
    /// Packets that the walks found, with these.
    pub packets: u64,
    /// Bytes of these on the wire.
    pub bytes: u64,
    /// How many hosts they are from.
    pub hosts: usize,
    /// Those of the most bytes; equal ones by address.
    pub sources: Vec<BurstSource>,
    /// It goes on in the next one.
    pub continues: bool,
}

/// Tuples that get room at once.
const PIECE: usize = 1024;
/// How many packets before it is needed a host's share is fetched.
const AHEAD: usize = 16;

/// What a host has in the open burst, and how many of its packets wait.
#[derive(Clone, Copy, Default, Debug)]
struct Share {
    bytes: u64,
    /// Not 0 if it is in the open burst.
    packets: u32,
    held: u32,
}

const _: () = assert!(size_of::<Share>() == 16);

impl Share {
    /// Counts a packet that waited for the open burst; true if it is the host's first there.
    #[inline(always)]
    fn count(&mut self, bytes: u64) -> bool {
        self.held = self.held.wrapping_sub(1);
        let is_first = self.packets == 0;
        self.bytes = if is_first {
            bytes
        } else {
            self.bytes.wrapping_add(bytes)
        };
        self.packets = self.packets.wrapping_add(1);
        is_first
    }
}

/// Finds bursts in vectors of one queue and gives them to a closure.
#[derive(Debug)]
pub struct Bursts<F> {
    options: BurstOptions,
    out: F,
    order: Order,
    hosts: Hosts,
    shares: Vec<Share>,
    /// Packets since the last that met a long queue, not older than a walk.
    recent: VecDeque<Held>,
    open: Option<Burst>,
    /// Hosts of the open burst.
    present: Vec<u32>,
    queue: Queue,
    newest_ns: u64,
    sorted: Vec<Held>,
    /// Whether hosts were given up since packets were last put into order.
    has_swept: bool,
    counters: BurstCounters,
}

/// The queue of [`Congestion::Model`].
#[derive(Clone, Copy, Default, Debug)]
struct Queue {
    last_ns: u64,
    backlog_ps: u128,
}

impl<F: FnMut(&Burst)> Bursts<F> {
    /// A diagnosis that has seen nothing; it gives bursts to `out` in their order.
    #[must_use]
    pub fn new(options: BurstOptions, seed: u64, out: F) -> Self {
        Self {
            options,
            out,
            order: Order::new(options.hold_ns, options.packets_max),
            hosts: Hosts::new(options.hosts_max, seed),
            shares: Vec::new(),
            recent: VecDeque::new(),
            open: None,
            present: Vec::new(),
            queue: Queue::default(),
            newest_ns: 0,
            sorted: Vec::new(),
            has_swept: false,
            counters: BurstCounters::default(),
        }
    }

    /// What it counted.
    #[must_use]
    pub fn counters(&self) -> &BurstCounters {
        &self.counters
    }

    /// Diagnoses the packets that still wait, and gives the last burst.
    pub fn finish(&mut self) {
        while self.order.len() > 0 {
            self.diagnose_next(u64::MAX);
        }
        for packet in std::mem::take(&mut self.recent) {
            self.forget(&packet);
        }
        self.close(false);
    }

    /// The host's number; if there is no room, after giving up hosts of which nothing waits.
    #[inline]
    fn host(&mut self, host: (AddressFamily, u128)) -> Option<u32> {
        let number = match self.hosts.number(host) {
            Some(number) => number,
            None if self.has_swept => return None,
            None => {
                self.has_swept = true;
                let shares = &self.shares;
                self.hosts.retain(|host| {
                    let share = &shares[host as usize];
                    share.held > 0 || share.packets > 0
                });
                self.hosts.number(host)?
            }
        };
        if number as usize == self.shares.len() {
            self.shares.push(Share::default());
        }
        Some(number)
    }

    /// Diagnoses what has waited long enough at this time, and more if `count` have no room.
    #[inline]
    fn make_room(&mut self, now_ns: u64, count: usize) {
        self.newest_ns = self.newest_ns.max(now_ns);
        let due = self.order.due(self.newest_ns);
        while self.order.is_below(due) {
            self.diagnose_next(due);
        }
        while self.order.room() < count && self.order.len() > 0 {
            let before = self.order.len();
            self.diagnose_next(u64::MAX);
            self.counters.hurried = self
                .counters
                .hurried
                .wrapping_add(before.wrapping_sub(self.order.len()) as u64);
        }
    }

    /// Lets the packets of a vector wait, after room was made for them. `is_congested` says which of
    /// them met a long queue.
    #[inline(always)]
    fn hold<T: Tuple, G: Grouped<T>>(
        &mut self,
        host: u32,
        group: &G,
        is_congested: impl Fn(&T) -> bool,
    ) {
        group.for_each_run(|start_ns, tuples| {
            for tuples in tuples.chunks(PIECE) {
                if let Some(last) = tuples.last() {
                    self.make_room(start_ns.wrapping_add(last.delta_ns()), tuples.len());
                }
                let late = self.order.put(tuples.iter().map(|tuple| {
                    let ts_ns = start_ns.wrapping_add(tuple.delta_ns());
                    Held::new(ts_ns, host, tuple.get(Column::Size), is_congested(tuple))
                }));
                self.counters.late = self.counters.late.wrapping_add(u64::from(late));
                let held = strata_wire::exact::<u32>(tuples.len()).wrapping_sub(late);
                self.shares[host as usize].held =
                    self.shares[host as usize].held.wrapping_add(held);
            }
        });
    }

    /// Diagnoses the oldest packets that wait in intervals below `end`.
    fn diagnose_next(&mut self, end: u64) {
        let mut sorted = std::mem::take(&mut self.sorted);
        self.order.next(end, &mut sorted);
        let mut rest = sorted.as_slice();
        while let [packet, ..] = rest {
            let passed = match self.go_on(rest) {
                0 => {
                    self.fetch_ahead(rest);
                    self.packet(packet);
                    1
                }
                several => several,
            };
            rest = &rest[passed..];
        }
        self.counters.ordered = self.counters.ordered.wrapping_add(sorted.len() as u64);
        self.has_swept &= sorted.is_empty();
        self.sorted = sorted;
    }

    /// Fetches the share of a packet that comes a little later.
    #[inline(always)]
    fn fetch_ahead(&self, packets: &[Held]) {
        if let Some(later) = packets.get(AHEAD) {
            prefetch(&self.shares, later.host as usize);
        }
    }

    /// Counts those of the next packets that just go on with the open burst: packets that met a long
    /// queue while no others wait for a walk. The same as [`Bursts::packet`] for each of them.
    #[inline]
    fn go_on(&mut self, packets: &[Held]) -> usize {
        let Some(burst) = &mut self.open else {
            return 0;
        };
        let is_model = matches!(self.options.congestion, Congestion::Model { .. });
        if is_model || !self.recent.is_empty() {
            return 0;
        }
        let (lookback_ns, longest_ns) = (self.options.lookback_ns, self.options.burst_ns_max);
        let (mut end_ns, mut bytes, mut passed) = (burst.end_ns, 0_u64, 0);
        for (number, packet) in packets.iter().enumerate() {
            let now_ns = packet.ts_ns;
            let is_near = now_ns.saturating_sub(end_ns) <= lookback_ns
                && now_ns.saturating_sub(burst.start_ns) < longest_ns;
            if !is_near || !packet.is_congested() {
                break;
            }
            if let Some(later) = packets.get(number.wrapping_add(AHEAD)) {
                prefetch(&self.shares, later.host as usize);
            }
            let size = u64::from(packet.size());
            if self.shares[packet.host as usize].count(size) {
                self.present.push(packet.host);
            }
            (end_ns, bytes, passed) = (now_ns, bytes.wrapping_add(size), number.wrapping_add(1));
        }
        burst.end_ns = end_ns;
        burst.bytes = burst.bytes.wrapping_add(bytes);
        burst.packets = burst.packets.wrapping_add(passed as u64);
        burst.congested = burst.congested.wrapping_add(passed as u64);
        self.counters.congested = self.counters.congested.wrapping_add(passed as u64);
        passed
    }

    /// The next packet in the order of all.
    #[inline]
    fn packet(&mut self, packet: &Held) {
        let (now_ns, lookback_ns) = (packet.ts_ns, self.options.lookback_ns);
        if let Some(burst) = &self.open
            && now_ns.saturating_sub(burst.end_ns) > lookback_ns
        {
            self.close(false);
        }
        while let Some(&oldest) = self.recent.front()
            && now_ns.saturating_sub(oldest.ts_ns) > lookback_ns
        {
            self.recent.pop_front();
            self.forget(&oldest);
        }
        if !self.is_congested(packet) {
            if self.recent.len() == self.options.packets_max as usize
                && let Some(oldest) = self.recent.pop_front()
            {
                self.counters.cut = self.counters.cut.wrapping_add(1);
                self.forget(&oldest);
            }
            self.recent.push_back(*packet);
            return;
        }
        if let Some(burst) = &self.open
            && now_ns.saturating_sub(burst.start_ns) >= self.options.burst_ns_max
        {
            self.close(true);
        }
        let first_ns = self.recent.front().map_or(now_ns, |oldest| oldest.ts_ns);
        let burst = self.open.get_or_insert_with(|| Burst {
            first_ns,
            start_ns: now_ns,
            ..Burst::default()
        });
        burst.end_ns = now_ns;
        burst.congested = burst.congested.wrapping_add(1);
        self.counters.congested = self.counters.congested.wrapping_add(1);
        while let Some(oldest) = self.recent.pop_front() {
            self.count(&oldest);
        }
        self.count(packet);
    }

    #[inline]
    fn is_congested(&mut self, packet: &Held) -> bool {
        let Congestion::Model {
            bits_per_second,
            bytes,
        } = self.options.congestion
        else {
            return packet.is_congested();
        };
        let ps_of = |bytes: u64| {
            // 64 and 43 bits.
            let bits_ps = u128::from(bytes).wrapping_mul(8_000_000_000_000);
            bits_ps.div_euclid(u128::from(bits_per_second.max(1)))
        };
        let queue = &mut self.queue;
        let passed_ps = u128::from(packet.ts_ns.saturating_sub(queue.last_ns)).wrapping_mul(1000);
        queue.last_ns = packet.ts_ns;
        queue.backlog_ps = queue.backlog_ps.saturating_sub(passed_ps);
        let is_long = queue.backlog_ps > ps_of(bytes);
        queue.backlog_ps = queue
            .backlog_ps
            .wrapping_add(ps_of(u64::from(packet.size())));
        is_long
    }

    /// Counts a packet for the open burst.
    #[inline]
    fn count(&mut self, packet: &Held) {
        let Some(burst) = &mut self.open else {
            return;
        };
        let bytes = u64::from(packet.size());
        burst.packets = burst.packets.wrapping_add(1);
        burst.bytes = burst.bytes.wrapping_add(bytes);
        if self.shares[packet.host as usize].count(bytes) {
            self.present.push(packet.host);
        }
    }

    fn forget(&mut self, packet: &Held) {
        self.shares[packet.host as usize].held =
            self.shares[packet.host as usize].held.wrapping_sub(1);
    }

    fn close(&mut self, continues: bool) {
        let Some(mut burst) = self.open.take() else {
            return;
        };
        burst.continues = continues;
        burst.hosts = self.present.len();
        let source = |number: &u32| {
            let (family, address) = self.hosts.host(*number);
            let share = &self.shares[*number as usize];
            BurstSource {
                family,
                address,
                packets: u64::from(share.packets),
                bytes: share.bytes,
            }
        };
        let rank = |source: &BurstSource| {
            (
                std::cmp::Reverse(source.bytes),
                source.family as u8,
                source.address,
            )
        };
        burst.sources = self.present.iter().map(source).collect();
        if burst.sources.len() > self.options.top && self.options.top > 0 {
            burst
                .sources
                .select_nth_unstable_by_key(self.options.top.wrapping_sub(1), rank);
        }
        burst.sources.truncate(self.options.top);
        burst.sources.sort_unstable_by_key(rank);
        for &host in &self.present {
            self.shares[host as usize].packets = 0;
        }
        self.present.clear();
        self.counters.bursts = self.counters.bursts.wrapping_add(1);
        (self.out)(&burst);
    }
}

impl<T: Tuple, F: FnMut(&Burst)> Application<T> for Bursts<F> {
    #[inline]
    fn take<G: Grouped<T>>(&mut self, _switch: u32, group: &G) {
        self.counters.groups = self.counters.groups.wrapping_add(1);
        let (key, count) = (group.key(), group.count());
        let Some(host) = self.host((key.family(), key.source().address)) else {
            self.counters.refused = self.counters.refused.wrapping_add(count as u64);
            return;
        };
        match self.options.congestion {
            Congestion::HighQueue => {
                self.hold(host, group, |tuple| tuple.get(Column::HighQueue) != 0);
            }
            Congestion::Ecn => self.hold(host, group, |tuple| tuple.get(Column::Ecn) == 3),
            Congestion::Depth { at_least } => {
                self.hold(host, group, |tuple| {
                    tuple.get(Column::QueueDepth) >= at_least
                });
            }
            Congestion::Model { .. } => self.hold(host, group, |_| false),
        }
    }
}
