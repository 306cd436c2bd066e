//! Both ends in one process, with a network between them that loses, duplicates, reorders, delays
//! and corrupts packets by a seed: millions of messages, every one accounted for.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use strata_rdma::{
    Access, Event, Failure, Memory, OnLoss, PacketBatch, PostError, Psn, QueuePairOptions,
    QueuePairState, Refused, Region, Replies, Requester, RequesterOptions, Responder,
};
use strata_wire::mix64;
use strata_wire::roce::icrc::{self, Ip, Outer};
use strata_wire::roce::{NakCode, Packet, Service, UDP_PORT};

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const VA: u64 = 0x7000_0000;
const RKEY: u32 = 0x55;
/// Bytes of a message; each has its own place in a ring.
const MESSAGE: usize = 32;
const PLACES: u64 = 1 << 16;
const ATOMIC_AT: u64 = MESSAGE as u64 * PLACES;
const US: u64 = 1_000;

/// Memory that also counts how often each message was executed.
#[derive(Default)]
struct CountingMemory {
    bytes: Vec<u8>,
    executed: BTreeMap<u64, u32>,
}

impl Memory for CountingMemory {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Refused> {
        let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        *self.executed.entry(number).or_default() += 1;
        self.bytes.write(at, bytes)
    }

    fn update(&mut self, at: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Refused> {
        self.bytes.update(at, change)
    }
}

/// What the network does, in 1/10 000.
#[derive(Clone, Copy, Default)]
struct Faults {
    loss: u64,
    duplication: u64,
    reordering: u64,
    corruption: u64,
}

struct Network {
    faults: Faults,
    seed: u64,
    now_ns: u64,
    sent: u64,
    /// By arrival time and order.
    on_the_way: BTreeMap<(u64, u64), (bool, Vec<u8>)>,
    lost: u64,
    corrupted: u64,
}

impl Network {
    fn draw(&mut self) -> u64 {
        self.seed = mix64(self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
        self.seed
    }

    fn happens(&mut self, per_10_000: u64) -> bool {
        self.draw() % 10_000 < per_10_000
    }

    fn send(&mut self, to_server: bool, packet: &[u8]) {
        if self.happens(self.faults.loss) {
            self.lost += 1;
            return;
        }
        let copies = 1 + u64::from(self.happens(self.faults.duplication));
        for _ in 0..copies {
            let mut packet = packet.to_vec();
            let mut delay = 10 * US;
            if self.happens(self.faults.reordering) {
                delay += self.draw() % (40 * US);
            }
            if self.happens(self.faults.corruption) {
                let bit = usize::try_from(self.draw() % (packet.len() as u64 * 8)).unwrap();
                packet[bit / 8] ^= 1 << (bit % 8);
                self.corrupted += 1;
            }
            self.sent += 1;
            self.on_the_way
                .insert((self.now_ns + delay, self.sent), (to_server, packet));
        }
    }
}

fn outer(to_server: bool) -> Outer {
    let (source, destination) = if to_server {
        (CLIENT, SERVER)
    } else {
        (SERVER, CLIENT)
    };
    Outer {
        ip: Ip::V4 {
            source,
            destination,
            identification: 0,
            dont_fragment: true,
        },
        source_port: 50_000,
        destination_port: UDP_PORT,
    }
}

struct World {
    network: Network,
    requester: Requester,
    responder: Responder<CountingMemory>,
    out: PacketBatch,
    replies: Replies,
    events: Vec<Event>,
    dropped_bad_icrc: u64,
}

impl World {
    fn new(seed: u64, faults: Faults, options: RequesterOptions) -> Self {
        let mut responder = Responder::new();
        let access = Access {
            write: true,
            atomic: true,
        };
        responder.register(Region {
            rkey: RKEY,
            va: VA,
            len: ATOMIC_AT + 8,
            domain: 1,
            access,
            memory: CountingMemory {
                bytes: vec![0; usize::try_from(ATOMIC_AT).unwrap() + 8],
                ..CountingMemory::default()
            },
        });
        responder.connect(QueuePairOptions {
            number: 0x11,
            peer_number: 0x22,
            peer: IpAddr::V4(CLIENT),
            service: options.service,
            first_psn: options.first_psn,
            mtu: options.mtu,
            domain: 1,
            access,
        });
        Self {
            network: Network {
                faults,
                seed,
                now_ns: 0,
                sent: 0,
                on_the_way: BTreeMap::new(),
                lost: 0,
                corrupted: 0,
            },
            requester: Requester::new(options),
            responder,
            out: PacketBatch::new(),
            replies: Replies::default(),
            events: Vec::new(),
            dropped_bad_icrc: 0,
        }
    }

    fn message(number: u64) -> (u64, [u8; MESSAGE]) {
        let mut bytes = [0; MESSAGE];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..16].copy_from_slice(&mix64(number).to_le_bytes());
        (VA + number % PLACES * MESSAGE as u64, bytes)
    }

    fn post(&mut self, number: u64) -> bool {
        let (va, bytes) = Self::message(number);
        let now = self.network.now_ns;
        let out = &mut self.out;
        self.requester.write(va, RKEY, &bytes, now, out).is_ok()
    }

    fn flush(&mut self) {
        for index in 0..self.out.len() {
            icrc::put(&outer(true), self.out.get_mut(index));
            self.network.send(true, self.out.get(index));
        }
        self.out.clear();
        for index in 0..self.replies.packets.len() {
            icrc::put(&outer(false), self.replies.packets.get_mut(index));
            self.network.send(false, self.replies.packets.get(index));
        }
        self.replies.clear();
    }

    /// Delivers what arrives within `ns`.
    fn pass(&mut self, ns: u64) {
        let end = self.network.now_ns + ns;
        while let Some(entry) = self.network.on_the_way.first_entry() {
            if entry.key().0 > end {
                break;
            }
            let ((time, _), (to_server, bytes)) = entry.remove_entry();
            self.network.now_ns = time;
            let packet = Packet::new_checked(&bytes);
            let packet = packet.filter(|p| p.icrc() == outer(to_server).icrc(p.covered()));
            let Some(packet) = packet else {
                self.dropped_bad_icrc += 1;
                continue;
            };
            if to_server {
                let source = IpAddr::V4(CLIENT);
                let _ = self.responder.receive(source, &packet, &mut self.replies);
                if packet.ack_request() {
                    self.responder.acknowledge(&mut self.replies);
                }
            } else {
                let event = self.requester.receive(&packet, time, &mut self.out);
                self.events.extend(event);
            }
            self.flush();
        }
        self.network.now_ns = end;
        let event = self.requester.tick(end, &mut self.out);
        self.events.extend(event);
        self.flush();
    }

    /// Posts messages 0..count as the window allows, and waits for the end.
    fn run(&mut self, count: u64) {
        let mut number = 0;
        while number < count {
            let burst = (count - number).min(16);
            for _ in 0..burst {
                if !self.post(number) {
                    break;
                }
                number += 1;
            }
            self.requester.request_ack(&mut self.out);
            self.flush();
            self.pass(5 * US);
        }
        for _ in 0..1_000_000 {
            if self.requester.in_flight() == 0 && self.network.on_the_way.is_empty() {
                return;
            }
            self.pass(20 * US);
        }
        panic!("it does not finish: {:?}", self.requester.counters());
    }

    fn executed(&mut self) -> BTreeMap<u64, u32> {
        let region = self.responder.region_mut(RKEY).unwrap();
        std::mem::take(&mut region.memory.executed)
    }

    fn lost_events(&self) -> u64 {
        let lost = |event: &Event| match event {
            Event::Lost { packets, .. } => *packets,
            _ => 0,
        };
        self.events.iter().map(lost).sum()
    }
}

fn options(service: Service, on_loss: OnLoss) -> RequesterOptions {
    RequesterOptions {
        window: 128,
        on_loss,
        timeout_ns: 500 * US,
        retries: 1000,
        // Close to the wraparound.
        ..RequesterOptions::new(service, 0x11, Psn::new(0xff_fe00), 1024)
    }
}

const HARSH: Faults = Faults {
    loss: 100,
    duplication: 100,
    reordering: 200,
    corruption: 50,
};

#[test]
fn resending_everything_arrives_once_whatever_the_network_does() {
    for (seed, faults, count) in [
        (1, Faults::default(), 200_000),
        (2, HARSH, 1_000_000),
        (
            3,
            Faults {
                loss: 2000,
                ..HARSH
            },
            50_000,
        ),
    ] {
        let mut world = World::new(seed, faults, options(Service::Rc, OnLoss::Resend));
        world.run(count);
        let counters = world.requester.counters();
        assert_eq!(counters.acknowledged, count, "seed {seed}");
        assert_eq!(counters.lost, 0, "seed {seed}");
        let executed = world.executed();
        assert_eq!(executed.len() as u64, count, "seed {seed}");
        assert!(executed.values().all(|&times| times == 1), "seed {seed}");
        let region = world.responder.region_mut(RKEY).unwrap();
        for number in count - PLACES.min(count)..count {
            let (va, bytes) = World::message(number);
            let at = usize::try_from(va - VA).unwrap();
            assert_eq!(region.memory.bytes[at..at + MESSAGE], bytes, "seed {seed}");
        }
        assert!(world.dropped_bad_icrc <= world.network.corrupted);
        assert!(
            world.dropped_bad_icrc * 10 >= world.network.corrupted * 7,
            "nearly every corruption is detected: the rest is in bits that may change"
        );
    }
}

#[test]
fn skipping_counts_exactly_what_was_lost() {
    for seed in 10..16 {
        let faults = Faults {
            loss: 100,
            corruption: 20,
            ..Faults::default()
        };
        let count = 200_000;
        let mut world = World::new(seed, faults, options(Service::Rc, OnLoss::Skip));
        world.run(count);
        let counters = world.requester.counters();
        let executed = world.executed();
        assert!(executed.values().all(|&times| times == 1), "seed {seed}");
        assert_eq!(counters.acknowledged + counters.lost, count, "seed {seed}");
        assert_eq!(counters.lost, world.lost_events(), "seed {seed}");
        assert_eq!(counters.acknowledged, executed.len() as u64, "seed {seed}");
        assert!(counters.lost > 0 && counters.resent == 0, "seed {seed}");
    }
}

#[test]
fn unreliable_writes_are_in_place_or_nowhere() {
    for seed in 20..24 {
        let count = 500_000;
        let mut world = World::new(seed, HARSH, options(Service::Uc, OnLoss::Skip));
        world.run(count);
        let executed = world.executed();
        let qp = world.responder.queue_pair(0x11).unwrap();
        let at_least = count - world.network.lost - world.network.corrupted;
        assert!(executed.len() as u64 >= at_least, "seed {seed}");
        assert!(executed.keys().all(|&number| number < count));
        assert_eq!(qp.state(), QueuePairState::Ready);
        assert_eq!(qp.counters().answers, 0, "UC is never acknowledged");
    }
}

#[test]
fn atomics_are_executed_once_and_answered() {
    let mut world = World::new(31, HARSH, options(Service::Rc, OnLoss::Resend));
    let count = 20_000;
    let mut posted = 0;
    while posted < count || world.requester.in_flight() > 0 {
        // At most as many in flight as a responder keeps answers for.
        while posted < count && world.requester.in_flight() < 8 {
            let now = world.network.now_ns;
            let (va, add) = (VA + ATOMIC_AT, posted + 1);
            let requester = &mut world.requester;
            if requester
                .fetch_add(va, RKEY, add, now, &mut world.out)
                .is_err()
            {
                break;
            }
            posted += 1;
        }
        world.flush();
        world.pass(20 * US);
    }
    let region = world.responder.region_mut(RKEY).unwrap();
    let at = usize::try_from(ATOMIC_AT).unwrap();
    let sum = u64::from_ne_bytes(region.memory.bytes[at..at + 8].try_into().unwrap());
    assert_eq!(sum, count * (count + 1) / 2);
    // Each once, and each sees the sum of those before it.
    let done_of = |event: &Event| match event {
        Event::AtomicDone { number, original } => (*number, *original),
        other => panic!("{other:?}"),
    };
    let mut all: Vec<_> = world.events.iter().map(done_of).collect();
    all.sort_unstable();
    let (mut before, mut done) = (0, 0);
    for event in all {
        assert_eq!(event, (done, before));
        done += 1;
        before += done;
    }
    assert_eq!(done, count);
}

#[test]
fn long_messages_are_split_and_reassembled() {
    let mut world = World::new(41, HARSH, options(Service::Rc, OnLoss::Resend));
    let data: Vec<u8> = (0..50_000_u64).map(|n| mix64(n).to_le_bytes()[0]).collect();
    let (now, out) = (world.network.now_ns, &mut world.out);
    world
        .requester
        .write(VA + 8, RKEY, &data, now, out)
        .unwrap();
    assert_eq!(world.out.len(), 49, "FIRST, 47 MIDDLE, LAST");
    world.run(0);
    let region = world.responder.region_mut(RKEY).unwrap();
    assert_eq!(region.memory.bytes[8..8 + data.len()], data);
}

/// What a faulty or hostile peer may do, and the answer of a real NIC.
#[test]
fn a_faulty_peer_writes_nowhere_and_gets_a_nak() {
    type Attempt = Box<dyn Fn(&mut Requester, &mut PacketBatch)>;
    let write = |va: u64, rkey: u32, len: usize| -> Attempt {
        Box::new(move |requester, out| {
            requester.write(va, rkey, &vec![1; len], 0, out).unwrap();
        })
    };
    let end = VA + ATOMIC_AT + 8;
    let add = |va: u64| -> Attempt {
        Box::new(move |requester, out| {
            requester.fetch_add(va, RKEY, 1, 0, out).unwrap();
        })
    };
    // The requester has none, so a write is turned into one.
    let read = || -> Attempt {
        Box::new(|requester, out| {
            requester.write(VA, RKEY, &[], 0, out).unwrap();
            out.get_mut(0)[0] = 0x0c;
        })
    };
    let attempts: Vec<(&str, Attempt, NakCode)> = vec![
        ("wrong key", write(VA, RKEY ^ 1, 64), NakCode::RemoteAccess),
        (
            "before the start",
            write(VA - 1, RKEY, 64),
            NakCode::RemoteAccess,
        ),
        (
            "past the end",
            write(end - 63, RKEY, 64),
            NakCode::RemoteAccess,
        ),
        (
            "wraps",
            write(u64::MAX - 7, RKEY, 64),
            NakCode::RemoteAccess,
        ),
        ("long", write(end - 4000, RKEY, 4001), NakCode::RemoteAccess),
        ("atomic past the end", add(end), NakCode::RemoteAccess),
        ("unaligned", add(VA + 4), NakCode::InvalidRequest),
        ("READ", read(), NakCode::RemoteAccess),
    ];
    for (name, attempt, code) in attempts {
        let mut world = World::new(50, Faults::default(), options(Service::Rc, OnLoss::Resend));
        attempt(&mut world.requester, &mut world.out);
        let requester = &mut world.requester;
        requester.request_ack(&mut world.out);
        world.flush();
        world.pass(100 * US);
        assert_eq!(world.events, [Event::Failed(Failure::Nak(code))], "{name}");
        assert!(world.executed().is_empty(), "{name}");
        let qp = world.responder.queue_pair(0x11).unwrap();
        assert_eq!(qp.state(), QueuePairState::Error(code), "{name}");
        assert!(
            !world.post(1),
            "{name}: the queue pair can no longer be used"
        );
    }
}

#[test]
fn a_stranger_a_stray_answer_and_half_a_message_are_dropped() {
    let mut world = World::new(60, Faults::default(), options(Service::Rc, OnLoss::Resend));
    world.post(0);
    let packet = world.out.get(0).to_vec();
    let stranger = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));
    let view = Packet::new_checked(&packet).unwrap();
    let responder = &mut world.responder;
    let refused = responder.receive(stranger, &view, &mut world.replies);
    assert_eq!(refused, Err(strata_rdma::Dropped::QueuePair));
    let peer = IpAddr::V4(CLIENT);
    for (byte, value, what) in [
        (1, 0x41, strata_rdma::Dropped::Header),
        (2, 0x00, strata_rdma::Dropped::Header),
        (7, 0x12, strata_rdma::Dropped::QueuePair),
        (0, 0x2a, strata_rdma::Dropped::QueuePair),
        (0, 0x11, strata_rdma::Dropped::NoRequest),
    ] {
        let mut changed = packet.clone();
        changed[byte] = value;
        let view = Packet::new_checked(&changed).unwrap();
        let refused = responder.receive(peer, &view, &mut world.replies);
        assert_eq!(refused, Err(what), "byte {byte}");
    }
    // MIDDLE without FIRST.
    let mut changed = packet;
    changed[0] = 0x07;
    let view = Packet::new_checked(&changed).unwrap();
    responder.receive(peer, &view, &mut world.replies).unwrap();
    let nak = Packet::new_checked(world.replies.packets.get(0)).unwrap();
    assert_eq!(
        nak.aeth().unwrap().syndrome,
        strata_wire::roce::Syndrome::Nak(NakCode::InvalidRequest)
    );
}

/// Arbitrary packets: nothing is written outside the region, and nothing panics.
#[test]
fn arbitrary_packets_write_inside_or_nowhere() {
    let mut world = World::new(70, Faults::default(), options(Service::Rc, OnLoss::Resend));
    let mut seed = 70;
    let mut draw = move || {
        seed = mix64(seed + 1);
        seed
    };
    let codes = [0x06, 0x07, 0x08, 0x0a, 0x13, 0x14, 0x0c, 0x04, 0x0b, 0x11];
    for _ in 0..200_000 {
        let mut bytes = vec![0_u8; 24 + usize::try_from(draw() % 64).unwrap()];
        for chunk in bytes.chunks_mut(8) {
            let word = draw().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        bytes[0] = codes[usize::try_from(draw() % 10).unwrap()];
        bytes[1] = 0x40 | bytes[1] & 0x30;
        bytes[2..8].copy_from_slice(&[0xff, 0xff, 0, 0, 0, 0x11]);
        let expected = world.responder.queue_pair(0x11).unwrap().expected();
        bytes[9..12].copy_from_slice(&expected.get().to_be_bytes()[1..]);
        if bytes.len() >= 40 && draw() % 2 == 0 {
            // Near the edges of the region, with the right key.
            let edge = if draw() % 2 == 0 { VA } else { VA + ATOMIC_AT };
            let va = edge.wrapping_add(draw() % 64).wrapping_sub(32);
            bytes[12..20].copy_from_slice(&va.to_be_bytes());
            bytes[20..24].copy_from_slice(&RKEY.to_be_bytes());
            let len = u32::try_from(draw() % 80).unwrap();
            bytes[24..28].copy_from_slice(&len.to_be_bytes());
        }
        if let Some(packet) = Packet::new_checked(&bytes) {
            let peer = IpAddr::V4(CLIENT);
            let _ = world.responder.receive(peer, &packet, &mut world.replies);
            world.replies.clear();
        }
        let state = world.responder.queue_pair(0x11).unwrap().state();
        if state != QueuePairState::Ready {
            let qp = world.responder.disconnect(0x11).unwrap();
            world.responder.connect(qp.options().clone());
        }
    }
}

/// A responder with one counter and its requester.
fn counter() -> (Requester, Responder<Vec<u8>>) {
    let access = Access {
        write: true,
        atomic: true,
    };
    let mut responder = Responder::new();
    responder.register(Region {
        rkey: RKEY,
        va: VA,
        len: 64,
        domain: 1,
        access,
        memory: vec![0_u8; 64],
    });
    responder.connect(QueuePairOptions {
        number: 5,
        peer_number: 6,
        peer: IpAddr::V4(CLIENT),
        service: Service::Rc,
        first_psn: Psn::new(0),
        mtu: 1024,
        domain: 1,
        access,
    });
    let options = RequesterOptions::new(Service::Rc, 5, Psn::new(0), 1024);
    (Requester::new(options), responder)
}

/// What the responder answers to these packets.
fn answers(responder: &mut Responder<Vec<u8>>, requests: &mut PacketBatch) -> Vec<Vec<u8>> {
    let mut replies = Replies::default();
    for request in requests.iter() {
        let request = Packet::new_checked(request).unwrap();
        responder
            .receive(IpAddr::V4(CLIENT), &request, &mut replies)
            .unwrap();
    }
    responder.acknowledge(&mut replies);
    requests.clear();
    replies.packets.iter().map(<[u8]>::to_vec).collect()
}

const ADDITIONS: u64 = 16;

/// Only the operation whose answer was lost is repeated, once: repeating everything in flight
/// would have every repetition answered, and each answer be a reason for more.
#[test]
fn a_lost_answer_of_an_atomic_operation_is_asked_for_once() {
    let (mut requester, mut responder) = counter();
    let mut out = PacketBatch::new();
    for _ in 0..ADDITIONS {
        requester.fetch_add(VA, RKEY, 1, 0, &mut out).unwrap();
    }
    // More answers than these could not be repeated.
    let another = requester.fetch_add(VA, RKEY, 1, 0, &mut out);
    assert_eq!(another, Err(PostError::WindowFull));
    let first = answers(&mut responder, &mut out);
    let mut done = 0;
    let mut take = |requester: &mut Requester, answer: &[u8], out: &mut PacketBatch| {
        let event = requester.receive(&Packet::new_checked(answer).unwrap(), 1, out);
        done += u64::from(matches!(event, Some(Event::AtomicDone { .. })));
        done
    };
    for answer in &first[1..] {
        take(&mut requester, answer, &mut out);
    }
    assert_eq!(out.len(), 1, "one repetition of one operation");
    // Those that were answered still count: a 17th would cost the responder the first answer.
    let another = requester.fetch_add(VA, RKEY, 1, 0, &mut out);
    assert_eq!(another, Err(PostError::WindowFull));
    let again = answers(&mut responder, &mut out);
    assert_eq!(take(&mut requester, &again[0], &mut out), ADDITIONS);
    assert_eq!((requester.in_flight(), requester.atomic_room()), (0, 16));
    // What comes twice is done once.
    assert_eq!(take(&mut requester, &first[0], &mut out), ADDITIONS);
}

/// Answers that overtake each other cost at most one repetition per operation, however often.
#[test]
fn answers_in_any_order_settle_additions_without_a_storm() {
    for seed in 0..200 {
        let mut draw = seed << 32;
        let (mut requester, mut responder) = counter();
        let mut out = PacketBatch::new();
        let (mut posted, mut done, mut pending) = (0, 0, Vec::new());
        while done < 500 {
            while posted < 500 && requester.atomic_room() > 0 {
                // A WRITE between additions, of which an acknowledgement is requested.
                requester.write(VA + 8, RKEY, &[1], 0, &mut out).unwrap();
                requester.fetch_add(VA, RKEY, 1, 0, &mut out).unwrap();
                requester.request_ack(&mut out);
                posted += 1;
            }
            pending.extend(answers(&mut responder, &mut out));
            draw += 1;
            let next = usize::try_from(mix64(draw) % pending.len() as u64).unwrap();
            let answer = pending.swap_remove(next);
            let answer = Packet::new_checked(&answer).unwrap();
            let event = requester.receive(&answer, 1, &mut out);
            done += u64::from(matches!(event, Some(Event::AtomicDone { .. })));
        }
        assert_eq!(requester.in_flight(), 0, "seed {seed}");
        let resent = requester.counters().resent;
        assert!(resent <= posted, "seed {seed}: {resent} of {posted}");
        let memory = &responder.region_mut(RKEY).unwrap().memory;
        assert_eq!(memory[..8], 500_u64.to_ne_bytes(), "seed {seed}");
    }
}

/// Everything sent is received once and in order, with its immediate data; what a WRITE announces is in
/// the region by then. Receives are posted a few at a time, so the requester also has to wait.
#[test]
fn messages_and_announced_writes_are_received_once_and_in_order() {
    let mut world = World::new(51, HARSH, options(Service::Rc, OnLoss::Resend));
    let count = 5_000_u32;
    let (mut posted, mut received) = (0_u32, 0_u32);
    for round in 0..2_000_000_u32 {
        while posted < count {
            let now = world.network.now_ns;
            let bytes = posted.to_le_bytes();
            let (requester, out) = (&mut world.requester, &mut world.out);
            let long = bytes.repeat(700);
            let (va, message) = World::message(u64::from(posted));
            let result = match posted % 4 {
                0 => requester.send(&bytes, None, now, out),
                1 => requester.send(&long, Some(posted), now, out),
                2 => requester.write_immediate(va, RKEY, &message, posted, now, out),
                _ => requester.send(&[], Some(posted), now, out),
            };
            if result.is_err() {
                break;
            }
            posted += 1;
        }
        world.requester.request_ack(&mut world.out);
        world.flush();
        if round % 8 == 0 {
            assert!(world.responder.post_receives(0x11, 3, 4096));
        }
        world.pass(50 * US);
        while let Some(message) = world.responder.take_received(0x11) {
            let bytes = received.to_le_bytes();
            let expected = match received % 4 {
                0 => (bytes.to_vec(), None),
                1 => (bytes.repeat(700), Some(received)),
                _ => (Vec::new(), Some(received)),
            };
            assert_eq!((message.data, message.immediate), expected, "{received}");
            if received % 4 == 2 {
                let (va, bytes) = World::message(u64::from(received));
                let at = usize::try_from(va - VA).unwrap();
                let region = world.responder.region_mut(RKEY).unwrap();
                assert_eq!(region.memory.bytes[at..at + MESSAGE], bytes);
            }
            received += 1;
        }
        if received == count && world.requester.in_flight() == 0 {
            return;
        }
    }
    panic!("{received} of {count}: {:?}", world.requester.counters());
}

#[test]
fn a_message_without_a_receive_waits_and_one_that_is_too_long_is_refused() {
    let (mut requester, mut responder) = counter();
    let mut out = PacketBatch::new();
    requester.send(b"hello", Some(7), 0, &mut out).unwrap();
    requester.write(VA, RKEY, &[1; 8], 0, &mut out).unwrap();
    let answered = answers(&mut responder, &mut out);
    assert_eq!(
        answered.len(),
        1,
        "what came after is dropped without a word"
    );
    let answer = Packet::new_checked(&answered[0]).unwrap();
    assert!(requester.receive(&answer, 0, &mut out).is_none());
    assert!(requester.room() == 0 && out.is_empty(), "it waits");
    assert!(responder.post_receives(5, 1, 8));
    let due = requester.deadline_ns().unwrap();
    assert!(requester.tick(due, &mut out).is_none());
    for answer in answers(&mut responder, &mut out) {
        requester.receive(&Packet::new_checked(&answer).unwrap(), due, &mut out);
    }
    assert_eq!(requester.in_flight(), 0);
    let received = responder.take_received(5).unwrap();
    assert_eq!(
        (&received.data[..], received.immediate),
        (&b"hello"[..], Some(7))
    );
    assert!(responder.take_received(5).is_none() && !responder.post_receives(6, 1, 8));

    assert!(responder.post_receives(5, 1, 8));
    requester.send(&[0; 9], None, due, &mut out).unwrap();
    let answered = answers(&mut responder, &mut out);
    let answer = Packet::new_checked(&answered[0]).unwrap();
    let event = requester.receive(&answer, due, &mut out);
    let failure = Failure::Nak(NakCode::InvalidRequest);
    assert_eq!(event, Some(Event::Failed(failure)));
    assert!(responder.take_received(5).is_none());
}
