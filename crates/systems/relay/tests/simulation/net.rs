//! The network between the two, and its faults.

use std::collections::BTreeMap;

use strata_relay::protocol::Message;
use strata_store::Placed;
use strata_sys::disk::AnyBlock;
use strata_testkit::sim::{MS, Queue, Rng, Weather};

/// A connection by its number.
pub(crate) type Conn = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Switch,
    Relay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Packets are lost, delayed or duplicated.
    Weather,
    /// Nothing gets through.
    Cut,
    /// A connection is reset.
    Reset,
    /// The relay's process is killed; its files stay as they are.
    KillRelay,
    /// The relay's machine loses power: whatever was not synced may be gone.
    PowerLoss,
    /// The relay is stopped.
    StopRelay,
    /// The switch's process is killed.
    KillSwitch,
    /// The switch is stopped.
    StopSwitch,
    /// The disk is full.
    FullDisk,
    /// One write fails.
    BadWrite,
    /// Writes are slow.
    SlowDisk,
    /// The disk is nearly full, but still accepts data.
    ShortDisk,
}

pub(crate) const FAULTS: [Fault; 12] = [
    Fault::Weather,
    Fault::Cut,
    Fault::Reset,
    Fault::KillRelay,
    Fault::PowerLoss,
    Fault::StopRelay,
    Fault::KillSwitch,
    Fault::StopSwitch,
    Fault::FullDisk,
    Fault::BadWrite,
    Fault::SlowDisk,
    Fault::ShortDisk,
];

/// A block being written to the relay's disk.
pub(crate) struct Writing {
    pub(crate) conn: Conn,
    pub(crate) job: u64,
    pub(crate) place: Option<usize>,
    pub(crate) placed: Placed,
    pub(crate) block: AnyBlock,
}

pub(crate) enum Event {
    /// Packets arrive at the switch.
    Feed,
    Wake(End),
    /// The switch tries to connect.
    Connect(Conn),
    /// Whether it succeeded.
    Connected(Conn, bool),
    Bytes(Conn, End, Vec<u8>),
    HungUp(Conn, End),
    Packet(Conn, End, Vec<u8>),
    Write(Box<Writing>),
    Fault(Fault),
    /// The effect of a fault on network and disk is over.
    Mend(Fault),
    Start(End),
}

/// Network, time and randomness.
pub(crate) struct Net {
    pub(crate) queue: Queue<Event>,
    pub(crate) rng: Rng,
    pub(crate) weather: Weather,
    /// Longest duration of a write.
    pub(crate) disk_ns: u64,
    /// Used share of the relay's disk.
    pub(crate) disk_used: f64,
    /// When the last data sent to an end of a connection arrives: nothing overtakes it.
    streams: BTreeMap<(Conn, End), u64>,
    /// When an end is woken.
    wakes: [Option<u64>; 2],
    next_conn: Conn,
}

impl Net {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            queue: Queue::default(),
            rng: Rng::new(seed),
            weather: Weather::default(),
            disk_ns: 5 * MS,
            disk_used: 0.5,
            streams: BTreeMap::new(),
            wakes: [None; 2],
            next_conn: 1,
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.queue.now()
    }

    /// Schedules an event in this many ns.
    pub(crate) fn after(&mut self, ns: u64, event: Event) {
        let now = self.now();
        self.queue.at(now + ns, event);
    }

    /// Wakes an end at this time, or before.
    pub(crate) fn wake(&mut self, end: End, at: u64) {
        let at = at.max(self.now() + 1);
        let slot = &mut self.wakes[end as usize];
        if slot.is_none_or(|before| at < before || before < self.queue.now()) {
            *slot = Some(at);
            self.queue.at(at, Event::Wake(end));
        }
    }

    /// Whether this is the time when it was to be woken.
    pub(crate) fn is_woken(&mut self, end: End) -> bool {
        let is_due = self.wakes[end as usize].is_some_and(|at| at <= self.queue.now());
        if is_due {
            self.wakes[end as usize] = None;
        }
        is_due
    }

    pub(crate) fn new_conn(&mut self) -> Conn {
        self.next_conn += 1;
        self.next_conn
    }

    fn stream_time(&mut self, conn: Conn, to: End) -> u64 {
        let now = self.queue.now();
        let time = self.weather.stream(&mut self.rng, now);
        let last = self.streams.entry((conn, to)).or_default();
        *last = time.max(*last);
        *last
    }

    /// Sends a message; it may arrive in pieces.
    pub(crate) fn say(&mut self, conn: Conn, to: End, message: &Message) {
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        if bytes.len() > 1 && self.rng.chance(20_000) {
            let rest = bytes.split_off(1 + self.rng.below(bytes.len() as u64 - 1) as usize);
            let at = self.stream_time(conn, to);
            self.queue.at(
                at,
                Event::Bytes(conn, to, std::mem::replace(&mut bytes, rest)),
            );
        }
        let at = self.stream_time(conn, to);
        self.queue.at(at, Event::Bytes(conn, to, bytes));
    }

    /// An end closes the connection: the other one learns it after everything sent before.
    pub(crate) fn hang_up(&mut self, conn: Conn, to: End) {
        let at = self.stream_time(conn, to);
        self.queue.at(at, Event::HungUp(conn, to));
    }

    pub(crate) fn connect(&mut self, conn: Conn) {
        let now = self.now();
        let at = self.weather.stream(&mut self.rng, now);
        self.queue.at(at, Event::Connect(conn));
    }

    pub(crate) fn connected(&mut self, conn: Conn, is_there: bool) {
        let at = self.stream_time(conn, End::Switch);
        self.queue.at(at, Event::Connected(conn, is_there));
    }

    pub(crate) fn packet(&mut self, conn: Conn, to: End, bytes: &[u8]) {
        let now = self.now();
        for at in self
            .weather
            .datagram(&mut self.rng, now)
            .into_iter()
            .flatten()
        {
            self.queue.at(at, Event::Packet(conn, to, bytes.to_vec()));
        }
    }

    pub(crate) fn write(&mut self, writing: Writing) {
        let now = self.now();
        let at = now + MS / 10 + self.rng.below(self.disk_ns);
        self.queue.at(at, Event::Write(Box::new(writing)));
    }
}
