//! Flow records made from packets, as the metering process of an IPFIX exporter makes them (RFC 7011
//! §2): a flow ends when it has no packet for some time, when it has gone on for some time, or when its
//! TCP connection ends, whichever is first.
//!
//! The log's own table `flows` has a row per run instead, which depends on what was compacted together.
//! Records made here depend on the packets and their order alone, so they are the same from both tiers.

mod clock;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use parquet::data_type::ByteArray;
use serde_json::Value;
use strata_names::Begun;
use strata_wire::dissect::protocol;
use strata_wire::transport::tcp_flag;
use strata_wire::{FlowHasher, FlowKey, FlowShare, FragmentTable, Headers, LinkType};

use crate::flows::{FlowColumn, FlowRow, values};
use crate::run::flow::{EndReason, Flow, PacketBytes, address_text, class_mix, end_connection};
use crate::run::pending::{NOT_IP, headers_of, hides_addresses};
use clock::Clock;

/// Flows at a time. One takes some 700 bytes, so 180 MiB at most, and up to 8 KiB of names and processes, so 2 GiB at
/// most.
const FLOWS_MAX: usize = 1 << 18;
/// A packet's class, where too many classes have been seen: as one without a class.
const NO_CLASS: u8 = u8::MAX;
/// Records that wait until a time is known: those that end later before that have the time of the beginning.
const EARLY_MAX: usize = 4_096;
/// The time by the clock before any packet.
const BEGINNING_NS: u64 = 0;
/// In place of a neighbour in the list.
const NONE: u32 = u32::MAX;

/// When a flow ends that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// A flow that has gone on for longer ends before its next packet, which begins another, ns.
    pub active_ns: u64,
    /// A flow ends after this time without a packet, ns.
    pub idle_ns: u64,
}

impl Default for Timeouts {
    /// Those of nfpcapd, of nfdump: 5 minutes, which is also how long its files are, and 1 minute.
    fn default() -> Self {
        Self {
            active_ns: 300_000_000_000,
            idle_ns: 60_000_000_000,
        }
    }
}

/// A packet to be metered.
#[derive(Clone, Copy, Debug)]
pub struct MeteredPacket<'a> {
    /// Its interface, within the recording.
    pub interface: u16,
    /// The interface's link type.
    pub link: LinkType,
    /// Arrival, ns.
    pub ts_ns: u64,
    /// False where the input gave no time.
    pub has_timestamp: bool,
    /// Length on the wire.
    pub wire_len: u32,
    /// How much of it was captured.
    pub captured_len: u32,
    /// Where its headers end.
    pub header_len: u16,
    /// The bytes kept.
    pub data: &'a [u8],
    /// Its options, of which comments may name processes.
    pub options: &'a [u8],
    /// Name of its class; `None` if it has none.
    pub class: Option<&'a str>,
    /// The class's share of the trees, in 65,535ths; `None` if they did not decide.
    pub score: Option<u16>,
    /// The share of all flows that was captured then.
    pub share: FlowShare,
}

/// What a flow's packets are looked up by.
type Id = (FlowKey, u16);

/// A flow that goes on, in a list by the time of the last packet.
struct Entry {
    flow: Flow,
    /// When its earliest packet came, and its latest one, by the clock.
    began_ns: u64,
    seen_ns: u64,
    /// By how much the clock was ahead of the time of packets then.
    ahead_ns: u64,
    /// All TCP flags of its connection, by direction, also of earlier records.
    flags: [u16; 2],
    older: u32,
    newer: u32,
}

impl Entry {
    /// Whether both sides of its TCP connection have sent FIN, or one RST.
    fn has_ended(&self) -> bool {
        self.flow.is_tcp() && end_connection(self.flags)
    }
}

/// Makes flow records of the packets of a recording.
///
/// Memory: 262,144 flows ([`FLOWS_MAX`](Self::FLOWS_MAX); fewer with [`at_most`](Self::at_most)), some 180 MiB, and a table of fragments;
/// and names in their payloads and processes, at most 2 GiB, if they are all as long as can be
/// ([`without_names`](Self::without_names)). With more flows at a time, the one whose last packet is the oldest ends, for lack of resources.
pub struct Metering {
    timeouts: Timeouts,
    recording: u32,
    hasher: FlowHasher,
    fragments: FragmentTable,
    /// Names of classes, by number in the flows.
    classes: Vec<String>,
    known: HashMap<Id, u32>,
    entries: Vec<Entry>,
    /// By place in `entries`; `None` if names are not looked for.
    begun: Option<Begun>,
    /// Places in `entries` that are free.
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
    clock: Clock,
    /// Records that ended before any time was known.
    early: Vec<Vec<Value>>,
    flows_max: usize,
    /// Flows that ended since there were too many at a time.
    pub crowded_out: u64,
}

impl std::fmt::Debug for Metering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metering")
            .field("timeouts", &self.timeouts)
            .field("flows", &self.known.len())
            .finish_non_exhaustive()
    }
}

/// Takes the values of a record, in the order of [`FlowColumn::ALL`](crate::FlowColumn::ALL).
pub type TakeRecord<'a, E> = dyn FnMut(Vec<Value>) -> Result<(), E> + 'a;

impl Metering {
    /// Flows at a time, unless there are to be fewer.
    pub const FLOWS_MAX: usize = FLOWS_MAX;

    /// Meters the packets of a recording; `hash_seed` keys fingerprints.
    #[must_use]
    pub fn new(timeouts: Timeouts, recording: u32, hash_seed: [u64; 2]) -> Self {
        Self {
            timeouts,
            recording,
            hasher: FlowHasher::new(hash_seed),
            fragments: FragmentTable::default(),
            classes: Vec::new(),
            known: HashMap::new(),
            entries: Vec::new(),
            begun: Some(Begun::default()),
            free: Vec::new(),
            oldest: NONE,
            newest: NONE,
            clock: Clock::new(timeouts.idle_ns.min(timeouts.active_ns)),
            early: Vec::new(),
            flows_max: FLOWS_MAX,
            crowded_out: 0,
        }
    }

    /// Has at most this number of flows at a time, and at least one.
    #[must_use]
    pub fn at_most(mut self, flows_max: usize) -> Self {
        self.flows_max = flows_max.clamp(1, FLOWS_MAX);
        self
    }

    /// Does not look for names in payloads, for formats that have none, such as IPFIX: their columns
    /// are NULL, and take no memory.
    #[must_use]
    pub fn without_names(mut self) -> Self {
        self.begun = None;
        self
    }

    /// Takes a packet, and gives the records of flows that ended before it.
    ///
    /// # Errors
    ///
    /// Those of `take`.
    pub fn packet<E>(
        &mut self,
        packet: &MeteredPacket<'_>,
        take: &mut TakeRecord<'_, E>,
    ) -> Result<(), E> {
        if packet.has_timestamp {
            let has_begun = self.clock.now_ns().is_some();
            self.clock.packet(packet.ts_ns);
            if !has_begun {
                self.time_begins(take)?;
            }
            self.expire(take)?;
        }
        let mut headers = headers_of(
            packet.link,
            packet.data,
            packet.header_len,
            packet.captured_len,
        );
        if let Some(fragment) = headers.fragment {
            self.fragments
                .resolve(&mut headers, fragment, &self.hasher, self.now_ns());
        }
        let key = headers.flow_key();
        let id = (key, packet.interface);
        let direction = usize::from(!headers.low_to_high);
        let mut number = self.known.get(&id).copied();
        let mut flags = [0; 2];
        if let Some(place) = number
            && let Some(reason) = self.ends_before(place, &headers)
        {
            if reason == EndReason::Active {
                flags = self.entries[place as usize].flags;
            }
            self.end(place, reason, take)?;
            number = None;
        }
        let number = match number {
            Some(number) => number,
            None => {
                if self.known.len() >= self.flows_max {
                    self.crowded_out += 1;
                    self.end(self.oldest, EndReason::Resources, take)?;
                }
                self.begin(id, direction, flags)
            }
        };
        self.count(number, packet, &headers, direction);
        Ok(())
    }

    /// Ends the flows that are idle at this time, ns: no packet of before is to come, where packets come in order. It
    /// passes also after it was set back.
    ///
    /// # Errors
    ///
    /// Those of `take`.
    pub fn pass<E>(&mut self, until_ns: u64, take: &mut TakeRecord<'_, E>) -> Result<(), E> {
        self.advance(take, |clock| clock.tell(until_ns))
    }

    /// Ends what the time ends, once the clock has been advanced.
    fn advance<E>(
        &mut self,
        take: &mut TakeRecord<'_, E>,
        clock: impl FnOnce(&mut Clock),
    ) -> Result<(), E> {
        let has_begun = self.clock.now_ns().is_some();
        clock(&mut self.clock);
        if !has_begun {
            self.time_begins(take)?;
        }
        self.expire(take)
    }

    /// Gives the packets that came before any time was known, and have none, the first time that is.
    fn time_begins<E>(&mut self, take: &mut TakeRecord<'_, E>) -> Result<(), E> {
        let now_ns = self.now_ns();
        for &place in self.known.values() {
            let entry = &mut self.entries[place as usize];
            (entry.began_ns, entry.seen_ns) = (now_ns, now_ns);
            (entry.flow.stats.first_ns, entry.flow.stats.last_ns) = (now_ns, now_ns);
        }
        for mut record in std::mem::take(&mut self.early) {
            for column in [FlowColumn::FirstTime, FlowColumn::LastTime] {
                record[column.index()] = now_ns.cast_signed().into();
            }
            take(record)?;
        }
        Ok(())
    }

    /// Ends all flows: what is metered ends at this time, ns.
    ///
    /// # Errors
    ///
    /// Those of `take`.
    pub fn finish<E>(&mut self, end_ns: u64, take: &mut TakeRecord<'_, E>) -> Result<(), E> {
        self.advance(take, |clock| clock.pass(end_ns))?;
        while self.oldest != NONE {
            let of = &self.entries[self.oldest as usize];
            let reason = match self.expired(of) {
                Some(reason) => reason,
                None if of.has_ended() => EndReason::End,
                None => EndReason::Forced,
            };
            self.end(self.oldest, reason, take)?;
        }
        Ok(())
    }

    /// When the last packet came that has a time, by the clock.
    fn now_ns(&self) -> u64 {
        self.clock.now_ns().unwrap_or(BEGINNING_NS)
    }

    /// Why a flow has ended before the time of the clock: the first of what happened.
    fn expired(&self, of: &Entry) -> Option<EndReason> {
        let since = |ns: u64| self.now_ns().saturating_sub(ns);
        let Timeouts { active_ns, idle_ns } = self.timeouts;
        let (is_idle, is_long) = (since(of.seen_ns) > idle_ns, since(of.began_ns) > active_ns);
        if !is_idle && !is_long {
            return None;
        }
        if of.has_ended() {
            return Some(EndReason::End);
        }
        let active_at = of.began_ns.saturating_add(active_ns);
        let idle_at = of.seen_ns.saturating_add(idle_ns);
        Some(match is_long && (!is_idle || active_at <= idle_at) {
            true => EndReason::Active,
            false => EndReason::Idle,
        })
    }

    /// Why a flow ends before its next packet, if it does.
    fn ends_before(&self, place: u32, headers: &Headers) -> Option<EndReason> {
        let of = &self.entries[place as usize];
        // Another connection between the same ports.
        let is_new = headers.tcp_flags & (tcp_flag::SYN | tcp_flag::ACK) == tcp_flag::SYN;
        if is_new && of.has_ended() {
            return Some(EndReason::End);
        }
        self.expired(of)
    }

    /// Ends flows that have been idle.
    fn expire<E>(&mut self, take: &mut TakeRecord<'_, E>) -> Result<(), E> {
        while self.oldest != NONE {
            let of = &self.entries[self.oldest as usize];
            if self.now_ns().saturating_sub(of.seen_ns) <= self.timeouts.idle_ns {
                break;
            }
            let reason = self.expired(of).expect("it has been idle for longer");
            self.end(self.oldest, reason, take)?;
        }
        Ok(())
    }

    /// Begins a flow; returns its place.
    fn begin(&mut self, id: Id, direction: usize, flags: [u16; 2]) -> u32 {
        let (key, interface) = id;
        let entry = Entry {
            flow: Flow::new(key, interface, direction),
            began_ns: self.now_ns(),
            seen_ns: self.now_ns(),
            ahead_ns: self.clock.ahead_ns(),
            flags,
            older: NONE,
            newer: NONE,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place as usize] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("flows have a bound")
            }
        };
        self.known.insert(id, place);
        self.link(place);
        place
    }

    fn count(
        &mut self,
        place: u32,
        packet: &MeteredPacket<'_>,
        headers: &Headers,
        direction: usize,
    ) {
        self.unlink(place);
        self.link(place);
        let (class, now_ns) = (self.class(packet.class), self.now_ns());
        let entry = &mut self.entries[place as usize];
        entry.began_ns = entry.began_ns.min(now_ns);
        entry.seen_ns = entry.seen_ns.max(now_ns);
        // Its own time, unless the time of packets was set back or forth since the record began.
        let ts_ns = now_ns.saturating_sub(entry.ahead_ns);
        entry.flags[direction] |= u16::from(headers.tcp_flags);
        let flow = &mut entry.flow;
        let kept_len = packet.data.len();
        let header_len = usize::from(packet.header_len).min(kept_len);
        let (header, payload) = packet.data.split_at(header_len);
        flow.hides_addresses |= hides_addresses(headers, header_len, kept_len);
        let bytes = PacketBytes {
            wire_len: packet.wire_len,
            ip: headers
                .ip_bytes(packet.data, packet.wire_len)
                .unwrap_or(NOT_IP),
            logged: kept_len as u64,
        };
        flow.stats.count(direction, ts_ns, &bytes);
        flow.stats.class(class);
        flow.stats.share_max = flow.stats.share_max.max(packet.share);
        flow.stats.score_max = flow.stats.score_max.max(packet.score);
        flow.stats.tcp_flags[direction] |= u16::from(headers.tcp_flags);
        flow.icmp = flow.icmp.or_else(|| icmp(headers, packet.data));
        flow.processes.look(packet.options, direction);
        let place = (place, direction);
        if let Some(begun) = &mut self.begun {
            flow.look(begun, place, headers, header, payload);
        }
    }

    /// The number of a class.
    fn class(&mut self, name: Option<&str>) -> u8 {
        let Some(name) = name else {
            return NO_CLASS;
        };
        let place = match self.classes.iter().position(|known| known == name) {
            Some(place) => place,
            None => {
                self.classes.push(name.to_owned());
                self.classes.len() - 1
            }
        };
        // A recording has fewer classes.
        u8::try_from(place).unwrap_or(NO_CLASS)
    }

    /// Ends a flow and gives its record.
    fn end<E>(
        &mut self,
        place: u32,
        reason: EndReason,
        take: &mut TakeRecord<'_, E>,
    ) -> Result<(), E> {
        self.unlink(place);
        let flow = &mut self.entries[place as usize].flow;
        flow.end_reason = Some(reason);
        self.known.remove(&(flow.key, flow.interface));
        self.free.push(place);
        let record = record(flow, self.recording, &self.classes);
        if self.clock.now_ns().is_none() && self.early.len() < EARLY_MAX {
            self.early.push(record);
            return Ok(());
        }
        take(record)
    }

    /// Puts a flow at the end of the list.
    fn link(&mut self, place: u32) {
        let before = std::mem::replace(&mut self.newest, place);
        let entry = &mut self.entries[place as usize];
        (entry.older, entry.newer) = (before, NONE);
        match before {
            NONE => self.oldest = place,
            before => self.entries[before as usize].newer = place,
        }
    }

    /// Takes a flow out of the list.
    fn unlink(&mut self, place: u32) {
        let Entry { older, newer, .. } = self.entries[place as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer as usize].older = older,
        }
    }
}

/// Type and code of an ICMP message.
fn icmp(headers: &Headers, data: &[u8]) -> Option<[u8; 2]> {
    let is_icmp = matches!(headers.key?.protocol, protocol::ICMP | protocol::ICMPV6);
    let len = usize::from(headers.transport_len);
    let at = usize::try_from(headers.header_len).ok()?.checked_sub(len)?;
    let message = data.get(at..at.checked_add(len)?)?;
    message.first_chunk().copied().filter(|_| is_icmp)
}

/// The values of a flow's record.
fn record(flow: &Flow, recording: u32, classes: &[String]) -> Vec<Value> {
    let texts = flow.has_addresses().then(|| {
        let text = |address| ByteArray::from(address_text(flow.key.family, address).as_str());
        [flow.key.low.address, flow.key.high.address].map(text)
    });
    let most = flow.stats.classes.iter().max_by_key(|(_, n)| *n);
    let class = most.and_then(|(class, _)| classes.get(usize::from(*class)));
    values(&FlowRow {
        flow_id: 0,
        flow,
        addresses: texts.as_ref().map(|[low, high]| [low, high]),
        recording,
        class: ByteArray::from(class.map_or("unknown", String::as_str)),
        classes: ByteArray::from(class_mix(&flow.stats.classes, classes).as_str()),
        group: 0,
        first_row: 0,
        rows: 0,
    })
}
