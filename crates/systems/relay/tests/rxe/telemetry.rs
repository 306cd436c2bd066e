//! A telemetry translator whose collector is the guest: its operations land in memory that Soft-RoCE
//! writes, and what is read back from there answers as memory of this process does.

use std::io::Read;
use std::time::{Duration, Instant};

use strata_dta::append::{Append, Cursor, End};
use strata_dta::key_increment::KeyIncrement;
use strata_dta::key_write::{Agreement, KeyWrite};
use strata_dta::postcarding::{Postcarding, Values};
use strata_dta::protocol::{Flags, Report, packed};
use strata_dta::reporter::{Reporter, ReporterOptions};
use strata_dta::translator::{Options, Translator};
use strata_dta::{KeyHasher, Local, Operation, Origin, Remote, Room, Sink};
use strata_rdma::Requester;
use strata_roce::Port;
use strata_roce::udp::{UdpPort, UdpToPeer};
use strata_wire::mix64;
use strata_wire::roce::{Service, UDP_PORT};

use super::{GUEST, HOST, Peer};

/// Keys of each kind of report.
const KEYS: u32 = 2_000;
const LISTS: u32 = 4;
const ROUNDS: u32 = 2;
/// Most operations: the guest is emulated.
const OPERATIONS_MAX: u64 = 20_000;
const PSN: u32 = 0xff_ff80;

/// Where everything lies: the same here and in the guest.
struct Stores {
    hasher: KeyHasher,
    key_write: KeyWrite,
    postcarding: Postcarding,
    append: Append,
    key_increment: KeyIncrement,
    len: u64,
}

impl Stores {
    fn new() -> Self {
        let hasher = KeyHasher::new([17, 4]);
        let key_write = KeyWrite::new(0, 8192, 4, 32);
        let mut end = key_write.memory_len().next_multiple_of(64);
        let postcarding = Postcarding::new(end, 4096, 5, 32, 2, hasher);
        end = (end + postcarding.memory_len()).next_multiple_of(64);
        let append = Append::new(end, LISTS, 64, 16, 18);
        end = (end + append.memory_len()).next_multiple_of(64);
        let key_increment = KeyIncrement::new(end, 4096, 2);
        Self {
            hasher,
            key_write,
            postcarding,
            append,
            key_increment,
            len: end + key_increment.memory_len(),
        }
    }

    fn translator<S: Sink>(&self) -> (Translator, Origin) {
        let mut options = Options::new(self.hasher);
        options.key_write = Some(self.key_write);
        options.postcarding = Some(self.postcarding);
        options.append = Some(self.append);
        options.key_increment = Some(self.key_increment);
        options.cache_rows = 64;
        let mut translator = Translator::new::<S>(options, |_| End::default());
        let origin = translator.reporter(HOST.into()).unwrap();
        (translator, origin)
    }
}

/// Datagrams with reports of all kinds.
fn datagrams() -> Vec<Vec<u8>> {
    let mut reporter = Reporter::new(ReporterOptions::new(1));
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        for kind in 0..4 {
            for n in 0..KEYS {
                let key = (n / 5 * 5).to_be_bytes();
                let own = n.to_be_bytes();
                let data = (round * KEYS + n).to_be_bytes();
                let entry: [u8; 18] = std::array::from_fn(|at| data[at % 4]);
                let hop = u8::try_from(n % 5).unwrap();
                let report = match kind {
                    0 => Report::KeyWrite {
                        redundancy: 2,
                        key: &own,
                        data: &data,
                    },
                    1 => Report::Append {
                        list: n % LISTS,
                        data: &entry,
                    },
                    2 => Report::KeyIncrement {
                        redundancy: 2,
                        key: &own,
                        counter: u64::from(n) + 1,
                    },
                    _ => Report::Postcard {
                        key: &key,
                        hop,
                        path_len: None,
                        value: node(n / 5, hop),
                    },
                };
                let send = &mut |bytes: &[u8]| all.push(bytes.to_vec());
                reporter.report(&report, Flags::default(), 1, 0, send);
            }
        }
    }
    reporter.flush(&mut |bytes: &[u8]| all.push(bytes.to_vec()));
    all
}

/// The node that a flow passes at a hop.
fn node(flow: u32, hop: u8) -> u32 {
    100 + u32::try_from(mix64(u64::from(flow) << 8 | u64::from(hop)) % 900).unwrap()
}

/// A requester's connection, from its operations to the guest and back.
struct Wire {
    remote: [Remote; 1],
    port: UdpToPeer,
    started: Instant,
}

impl Wire {
    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap()
    }

    /// Exchanges packets until the collector has room for a number of operations of each kind, or,
    /// for 0, until nothing is in flight.
    fn exchange(&mut self, room: usize) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let now = self.now();
            let Self { remote, port, .. } = self;
            let remote = &mut remote[0];
            remote.set_now(now);
            remote.finish_burst();
            if !remote.packets().is_empty() {
                port.send(remote.packets()).unwrap();
                remote.packets().clear();
            }
            port.receive(&mut |packet| remote.receive(packet, now))
                .unwrap();
            remote.tick(now);
            assert_eq!(remote.failure(), None);
            let has = |operation| match remote.room(operation) {
                Room::Operations(has) => has >= room,
                Room::Gone => panic!("the guest is gone"),
            };
            // Of atomic operations, the guest takes 4 at a time.
            let is_there =
                has(Operation::Write) && remote.room(Operation::FetchAdd) == Room::Operations(4);
            if is_there && (room > 0 || remote.is_settled()) {
                return;
            }
            assert!(Instant::now() < end, "{:?}", remote.requester_counters());
            port.wait(Duration::from_millis(2)).unwrap();
        }
    }
}

impl Peer {
    /// Its memory from the front, as it is.
    fn fetch(&mut self, len: u64) -> Vec<u8> {
        self.shell.say(&format!("f 0 {len}"));
        self.shell.hear("DATA");
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        self.shell.lines.read_exact(&mut bytes).unwrap();
        bytes
    }
}

/// As datagrams of one report each, since the guest has room for few atomic operations.
fn one_by_one(datagram: &[u8], mut take: impl FnMut(&[u8])) {
    let packet = packed::Packet::new_checked(datagram).unwrap();
    for (n, report) in (0_u32..).zip(packet.reports()) {
        let mut repr = packed::Repr::of(&report, Flags::default());
        repr.sequence = packet.sequence() + n;
        repr.session = packet.session();
        repr.time_ns = packet.time_ns();
        let mut bytes = Vec::new();
        repr.emit(&[report], &mut bytes);
        take(&bytes);
    }
}

pub(super) fn a_translators_operations_land_in_the_guest() {
    let start = Instant::now();
    let stores = Stores::new();
    let datagrams = datagrams();
    let mut here = vec![0; usize::try_from(stores.len).unwrap()];
    let (mut translator, origin) = stores.translator::<Local<&mut [u8]>>();
    {
        let mut sinks = [Local::new(&mut here)];
        for datagram in &datagrams {
            one_by_one(datagram, |one| {
                translator.receive_from(origin, one, 0, &mut sinks, &mut Vec::new());
            });
        }
        translator.finish(&mut sinks);
    }

    let mut peer = Peer::start("rc", 0x115, PSN);
    let mut options = super::options(Service::Rc, &peer, PSN);
    // As many as the guest's queue pair says.
    options.atomics_max = 4;
    let local = std::net::SocketAddr::from((HOST, UDP_PORT));
    let guest = std::net::SocketAddr::from((GUEST, UDP_PORT));
    let port = UdpPort::bind(local).unwrap();
    let slot = stores.append.slot_len();
    let mut wire = Wire {
        remote: [Remote::new(
            Requester::new(options),
            peer.va,
            peer.rkey,
            slot,
            1024,
            16,
        )],
        port: UdpToPeer::new(port, local, guest).unwrap(),
        started: start,
    };
    let (mut translator, origin) = stores.translator::<Remote>();
    for datagram in &datagrams {
        one_by_one(datagram, |one| {
            let at_once = matches!(one.first(), Some(0x23));
            let room = wire.remote[0].room(Operation::Write);
            let has_room = matches!(room, Room::Operations(64..));
            if at_once || !has_room {
                wire.exchange(64);
            }
            wire.remote[0].set_now(wire.now());
            let sinks = &mut wire.remote;
            translator.receive_from(origin, one, 0, sinks, &mut Vec::new());
        });
    }
    while translator.cache().unwrap().counters().held > 0
        || translator.lists().unwrap().counters().held > 0
    {
        wire.exchange(64);
        translator.finish(&mut wire.remote);
    }
    wire.exchange(0);
    let counters = translator.counters(origin);
    assert!(
        counters.balances() && counters.dropped() == 0,
        "{counters:?}"
    );
    let done = wire.remote[0].counters()[usize::from(origin.0)];
    assert_eq!(
        (done.confirmed, done.lost),
        (counters.accepted - counters.superseded, 0)
    );
    let operations = wire.remote[0].operations();
    let operations = operations.writes + operations.additions;
    assert!(
        (17_000..=OPERATIONS_MAX).contains(&operations),
        "{operations}"
    );

    let there = peer.fetch(stores.len);
    assert_eq!(there, here, "byte for byte as in memory of this process");
    answers(&stores, &there);
    eprintln!(
        "ok: {operations} operations of a telemetry translator, read back and asked for, in {:.1} s",
        start.elapsed().as_secs_f64()
    );
}

/// What is in the memory answers for all keys.
fn answers(stores: &Stores, memory: &[u8]) {
    let values = Values::new(&stores.postcarding, 0..=1_000);
    for n in 0..KEYS {
        let key = stores.hasher.hash(&n.to_be_bytes());
        let last = ((ROUNDS - 1) * KEYS + n).to_be_bytes();
        let value = stores.key_write.get(memory, key, 2, Agreement::AtLeast(1));
        assert!(
            value.is_none_or(|value| value[..4] == last),
            "{n}: {value:?}"
        );
        let count = stores.key_increment.get(memory, key);
        assert!(
            count >= u64::from(ROUNDS) * (u64::from(n) + 1),
            "{n}: {count}"
        );
        if n % 5 == 0 {
            let path = stores.postcarding.get(memory, key, &values);
            let hops = path.map(|path| path.values()[..5].to_vec());
            let sent: Vec<_> = (0..5).map(|hop| Some(node(n / 5, hop))).collect();
            assert!(hops.is_none_or(|hops| hops == sent), "{n}");
        }
    }
    for list in 0..LISTS {
        let mut cursor = Cursor::new(list);
        let mut entries = 0;
        while let Some(read) = cursor.read(&stores.append, memory, |_| {}) {
            assert_eq!(read.missed, 0);
            entries += read.entries;
        }
        assert_eq!(entries, u64::from(ROUNDS * KEYS / LISTS));
    }
}
