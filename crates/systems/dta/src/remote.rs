//! A collector at the other end of an RDMA connection.

use std::collections::{BTreeSet, VecDeque};

use strata_rdma::{Event, Failure, PacketBatch, PostError, Requester, RequesterCounters};
use strata_wire::roce::Packet;

use crate::key::Key;
use crate::key_increment::largest::Largest;
use crate::sink::{Addition, Operation, Operations, Origin, Room, Sink};
use crate::tally;

/// Operations that are left to reports when the collector's CPU gets an immediate one.
const TELL_ROOM: usize = 256;

/// The outcome of one reporter's reports after they became operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteCounters {
    /// Reports that were acknowledged: they are in the collector's memory.
    pub confirmed: u64,
    /// Reports that were not acknowledged when the connection ended, or are known to be lost. Some may have arrived.
    pub lost: u64,
}

/// An operation in flight: the number after its last packet, and how many reports it completes.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    end: u64,
    reports: usize,
}

/// Additions of a report whose answers say how large the key's counters are.
#[derive(Clone, Copy, Debug)]
struct Asked {
    key: Key,
    /// Where the first of the key's counters lies.
    place: u64,
    add: u64,
    /// Number of the first packet, and after the last one.
    first: u64,
    end: u64,
    /// Answers that have not come.
    left: u64,
    /// The smallest counter of those that have.
    least: u64,
}

/// A collector behind a requester. Packets to be sent gather in [`Remote::packets`].
#[derive(Debug)]
pub struct Remote {
    /// Or why there is no connection, until the next.
    requester: Result<Requester, Failure>,
    va: u64,
    rkey: u32,
    /// Packets of the longest write.
    packets_max: usize,
    now_ns: u64,
    packets: PacketBatch,
    in_flight: VecDeque<InFlight>,
    origins: VecDeque<Origin>,
    counters: Vec<RemoteCounters>,
    operations: Operations,
    /// Of the connections before this one.
    before: RequesterCounters,
    /// The keys with the largest counts, if they are kept.
    largest: Option<Box<Largest>>,
    /// By their packets; as many as may be in flight.
    asked: VecDeque<Asked>,
    /// Rows of keys that have got one, until the caller has written them.
    taken: BTreeSet<usize>,
    /// What was added on connections that broke before it was answered, saturating.
    overlooked: u64,
}

impl Remote {
    /// A collector that is not connected yet: see [`Remote::reconnect`]. The longest write has
    /// `write_len_max` bytes, and packets have at least `mtu`; reporters are fewer than `reporters`.
    #[must_use]
    pub fn unconnected(write_len_max: usize, mtu: usize, reporters: usize) -> Self {
        Self {
            requester: Err(Failure::Timeout),
            va: 0,
            rkey: 0,
            packets_max: write_len_max.div_ceil(mtu).max(1),
            now_ns: 0,
            packets: PacketBatch::new(),
            in_flight: VecDeque::new(),
            origins: VecDeque::new(),
            counters: vec![RemoteCounters::default(); reporters],
            operations: Operations::default(),
            before: RequesterCounters::default(),
            largest: None,
            asked: VecDeque::new(),
            taken: BTreeSet::new(),
            overlooked: 0,
        }
    }

    /// Writes through `requester` to the region `rkey` that begins at `va`. The longest write has
    /// `write_len_max` bytes, and packets have `mtu`; reporters are fewer than `reporters`.
    #[must_use]
    pub fn new(
        requester: Requester,
        va: u64,
        rkey: u32,
        write_len_max: usize,
        mtu: usize,
        reporters: usize,
    ) -> Self {
        Self {
            requester: Ok(requester),
            va,
            rkey,
            ..Self::unconnected(write_len_max, mtu, reporters)
        }
    }

    /// The outcome of reports, by reporter.
    #[must_use]
    pub fn counters(&self) -> &[RemoteCounters] {
        &self.counters
    }

    /// Reports whose operations are in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.origins.len()
    }

    /// Whether no operation is in flight, including operations that complete no report, and no row waits to be written.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let is_gone = self.requester.is_err();
        self.in_flight.is_empty() && (self.taken.is_empty() || is_gone)
    }

    /// Keeps the keys with the largest counts from now on, as their additions are answered. The table is
    /// that of the collector; what was added without an answer until now may be missing in it.
    pub fn keep_largest(&mut self, mut largest: Largest) {
        self.asked.clear();
        largest.overlook(std::mem::take(&mut self.overlooked));
        self.taken.clear();
        self.largest = Some(Box::new(largest));
    }

    /// The table of the keys with the largest counts is done with: answers to additions that are in flight
    /// come too late for it.
    pub fn finish_largest(&mut self) {
        let missed = self.asked.drain(..).filter(|asked| asked.left > 0);
        let missed = missed.fold(0_u64, |sum, asked| sum.saturating_add(asked.add));
        if let Some(largest) = &mut self.largest {
            largest.overlook(missed);
        }
    }

    /// The keys with the largest counts, if they are kept.
    pub fn largest(&mut self) -> Option<&mut Largest> {
        self.largest.as_deref_mut()
    }

    /// The next row that got a key since it was last returned.
    pub fn next_taken(&mut self) -> Option<(usize, Key)> {
        let largest = self.largest.as_ref()?;
        while let Some(row) = self.taken.pop_first() {
            // One that was given up meanwhile has no key.
            if let Some(key) = largest.key(row) {
                return Some((row, key));
            }
        }
        None
    }

    /// Requested operations, whether they could be sent or not.
    #[must_use]
    pub fn operations(&self) -> Operations {
        self.operations
    }

    /// The sum of the counters of the requesters of all its connections.
    #[must_use]
    pub fn requester_counters(&self) -> RequesterCounters {
        match &self.requester {
            Ok(requester) => sum(self.before, requester.counters()),
            Err(_) => self.before,
        }
    }

    /// Why there is no connection.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.requester.as_ref().err().copied()
    }

    /// The packets to be sent, which the caller takes out.
    pub fn packets(&mut self) -> &mut PacketBatch {
        &mut self.packets
    }

    /// The time, before operations are given to it.
    pub fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Asks for an acknowledgement of what was posted last: at the end of a burst, before the
    /// packets are taken out.
    pub fn finish_burst(&mut self) {
        if let Ok(requester) = &mut self.requester
            && !self.in_flight.is_empty()
        {
            requester.request_ack(&mut self.packets);
        }
    }

    /// Processes a packet of the responder.
    pub fn receive(&mut self, packet: &Packet<'_>, now_ns: u64) {
        let Ok(requester) = &mut self.requester else {
            return;
        };
        let event = requester.receive(packet, now_ns, &mut self.packets);
        self.after(event);
    }

    /// Lets time pass.
    pub fn tick(&mut self, now_ns: u64) {
        let Ok(requester) = &mut self.requester else {
            return;
        };
        let event = requester.tick(now_ns, &mut self.packets);
        self.after(event);
    }

    /// When [`Remote::tick`] is due.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        self.requester.as_ref().ok()?.deadline_ns()
    }

    /// Continues with a new connection, to the region `rkey` that begins at `va`; operations in flight on the old one
    /// are lost.
    pub fn reconnect(&mut self, requester: Requester, va: u64, rkey: u32) {
        self.disconnect(Failure::Timeout);
        (self.va, self.rkey) = (va, rkey);
        self.requester = Ok(requester);
    }

    /// Ends the connection, if there is one; operations in flight are lost.
    pub fn disconnect(&mut self, why: Failure) {
        if self.requester.is_ok() {
            self.fail(why);
        }
        self.packets.clear();
    }

    /// Writes `bytes` at `at` of another region, whose key is `rkey`, and has the collector's CPU look at
    /// them: it gets `immediate`. It completes no report. Returns whether there was room for it beside
    /// what reports need.
    pub fn tell(&mut self, rkey: u32, at: u64, bytes: &[u8], immediate: u32) -> bool {
        let Room::Operations(TELL_ROOM..) = self.room(Operation::Write) else {
            return false;
        };
        let Ok(requester) = &mut self.requester else {
            return false;
        };
        let (now_ns, packets) = (self.now_ns, &mut self.packets);
        let told = requester.write_immediate(at, rkey, bytes, immediate, now_ns, packets);
        let told = told.map(|()| requester.next());
        let is_told = told.is_ok();
        self.posted(told, &[]);
        is_told
    }

    fn after(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Lost { first, packets }) => {
                self.settle(first, true);
                self.settle(first.saturating_add(packets), false);
            }
            Some(Event::Failed(failure)) => self.fail(failure),
            Some(Event::AtomicDone { .. } | Event::ReadDone { .. }) | None => {
                if let Some(Event::AtomicDone { number, original }) = event {
                    self.counted(number, original);
                }
                let settled = self.requester.as_ref().map(Requester::settled);
                if let Ok(settled) = settled {
                    self.settle(settled, true);
                }
            }
        }
    }

    /// An addition was done, to a counter that was `original` before.
    fn counted(&mut self, number: u64, original: u64) {
        let at = self.asked.partition_point(|asked| asked.end <= number);
        let Some(asked) = self.asked.get_mut(at) else {
            return;
        };
        if asked.first > number {
            return;
        }
        asked.least = asked.least.min(original.wrapping_add(asked.add));
        asked.left = asked.left.saturating_sub(1);
        if asked.left == 0
            && let Some(largest) = &mut self.largest
            && asked.least > largest.floor()
        {
            let row = largest.offer(asked.key.bytes(), asked.place, asked.least);
            self.taken.extend(row);
        }
        while self.asked.front().is_some_and(|asked| asked.left == 0) {
            self.asked.pop_front();
        }
    }

    fn fail(&mut self, failure: Failure) {
        for asked in self.asked.drain(..).filter(|asked| asked.left > 0) {
            self.overlooked = self.overlooked.saturating_add(asked.add);
        }
        let settled = self.requester.as_ref().map(Requester::settled);
        if let Ok(settled) = settled {
            self.settle(settled, true);
        }
        self.settle(u64::MAX, false);
        self.before = self.requester_counters();
        self.requester = Err(failure);
    }

    /// What ends before this packet number was acknowledged, or is lost.
    fn settle(&mut self, number: u64, confirmed: bool) {
        while let Some(front) = self.in_flight.front()
            && front.end <= number
        {
            let InFlight { reports, .. } = *front;
            self.in_flight.pop_front();
            for origin in self.origins.drain(..reports) {
                let counters = &mut self.counters[usize::from(origin.0)];
                match confirmed {
                    true => tally::one(&mut counters.confirmed),
                    false => tally::one(&mut counters.lost),
                }
            }
        }
    }

    fn posted(&mut self, result: Result<u64, PostError>, origins: &[Origin]) {
        match result {
            Ok(end) => {
                self.origins.extend(origins);
                self.in_flight.push_back(InFlight {
                    end,
                    reports: origins.len(),
                });
            }
            // Gone meanwhile, or without room although it was checked.
            Err(_) => {
                for origin in origins {
                    tally::one(&mut self.counters[usize::from(origin.0)].lost);
                }
            }
        }
    }
}

fn sum(a: RequesterCounters, b: RequesterCounters) -> RequesterCounters {
    RequesterCounters {
        posted: a.posted.wrapping_add(b.posted),
        acknowledged: a.acknowledged.wrapping_add(b.acknowledged),
        lost: a.lost.wrapping_add(b.lost),
        resent: a.resent.wrapping_add(b.resent),
        sequence_naks: a.sequence_naks.wrapping_add(b.sequence_naks),
        timeouts: a.timeouts.wrapping_add(b.timeouts),
    }
}

impl Sink for Remote {
    const KEEPS_ORIGINS: bool = true;

    fn room(&self, operation: Operation) -> Room {
        let Ok(requester) = &self.requester else {
            return Room::Gone;
        };
        Room::Operations(match operation {
            // A write has one packet at least.
            Operation::Write => requester
                .room()
                .checked_div(self.packets_max)
                .expect("packets"),
            Operation::FetchAdd => requester.atomic_room(),
        })
    }

    fn write(&mut self, at: u64, bytes: &[u8], origins: &[Origin]) {
        let result = match &mut self.requester {
            Ok(requester) => requester
                .write(
                    self.va.wrapping_add(at),
                    self.rkey,
                    bytes,
                    self.now_ns,
                    &mut self.packets,
                )
                .map(|()| requester.next()),
            Err(failure) => Err(PostError::Failed(*failure)),
        };
        tally::one(&mut self.operations.writes);
        self.posted(result, origins);
    }

    fn count(&mut self, addition: &Addition<'_>, origin: Origin) {
        let Addition { key, add, .. } = *addition;
        let (place, others) = addition.split();
        let next = |remote: &Self| remote.requester.as_ref().ok().map(Requester::next);
        let before = next(self);
        for &at in others.iter().rev() {
            self.fetch_add(at, add, &[]);
        }
        self.fetch_add(place, add, &[origin]);
        let (Some(first), Some(end)) = (before, next(self)) else {
            return;
        };
        // A packet each, unless there was no room for one.
        let left = end.saturating_sub(first);
        if self.largest.is_some() && left == u64::from(addition.places_len) {
            self.asked.push_back(Asked {
                key: Key::new(key),
                place,
                add,
                first,
                end,
                left,
                least: u64::MAX,
            });
        } else if let Some(largest) = &mut self.largest
            && left > 0
        {
            largest.overlook(add);
        }
    }

    fn fetch_add(&mut self, at: u64, add: u64, origins: &[Origin]) {
        let result = match &mut self.requester {
            Ok(requester) => requester
                .fetch_add(
                    self.va.wrapping_add(at),
                    self.rkey,
                    add,
                    self.now_ns,
                    &mut self.packets,
                )
                .map(|number| number.wrapping_add(1)),
            Err(failure) => Err(PostError::Failed(*failure)),
        };
        tally::one(&mut self.operations.additions);
        self.posted(result, origins);
    }
}
