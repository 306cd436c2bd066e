//! The queue pair by RDMA: entries, data and doorbells are written into the guest's memory, completions
//! are read from there.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use strata_rdma::{Event, PacketBatch, Psn, Requester, RequesterOptions};
use strata_roce::Port;
use strata_roce::udp::{UdpPort, UdpToPeer};
use strata_stream::nvme::{
    Command, Done, ListPage, Memory, Page, Places, Prps, QueuePair, Ring, Status,
};
use strata_testkit::guest::{GUEST, HOST, Shell};
use strata_wire::mix64;
use strata_wire::roce::{Service, UDP_PORT};

use super::{numbers, start};

const MTU: usize = 1024;
const DEPTH: u16 = 16;
const PSN: u32 = 0x00ff_fff0;
const QPN: u32 = 0x131;
/// Of each kind.
const COMMANDS: u64 = 1_000;
/// Bytes of a command, and of those with a list.
const LEN: usize = 4096;
const LONG_LEN: usize = 128 << 10;
/// Between looks at completions: the guest's only CPU answers reads too.
const PAUSE: Duration = Duration::from_micros(200);
/// Where the test writes: behind what the process wrote first.
const FIRST_BYTE: u64 = 2 << 20;

/// The guest's memory, as a requester reaches it.
struct Wire {
    requester: Requester,
    port: UdpToPeer,
    out: PacketBatch,
    started: Instant,
    rkey: u32,
    va: u64,
    /// Answers of reads, by their numbers.
    read: Vec<(u64, Vec<u8>)>,
    /// The next packet of an entry is lost on its way.
    lose_entry: bool,
    lost: u64,
}

impl Memory for Wire {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.requester.room() < bytes.len().div_ceil(MTU) {
            assert!(Instant::now() < end, "{:?}", self.requester.counters());
            self.exchange();
        }
        let now_ns = self.now_ns();
        let is_lost = self.lose_entry && bytes.len() == 64;
        if is_lost {
            self.send();
        }
        let (va, rkey) = (self.va + at, self.rkey);
        let posted = self.requester.write(va, rkey, bytes, now_ns, &mut self.out);
        posted.unwrap();
        if is_lost {
            self.lose_entry = false;
            self.lost += 1;
            self.out.clear();
        }
    }
}

impl Wire {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap()
    }

    fn send(&mut self) {
        if !self.out.is_empty() {
            self.port.send(&mut self.out).unwrap();
            self.out.clear();
        }
    }

    /// Takes answers, for a moment.
    fn exchange(&mut self) {
        self.send();
        let now_ns = self.now_ns();
        let Self {
            requester,
            port,
            out,
            read,
            ..
        } = self;
        let mut took = |event, payload: &[u8]| match event {
            Some(Event::ReadDone { number }) => read.push((number, payload.to_vec())),
            Some(event) => panic!("{event:?}"),
            None => {}
        };
        port.wait(PAUSE).unwrap();
        port.receive(&mut |packet| {
            took(requester.receive(packet, now_ns, out), packet.payload());
        })
        .unwrap();
        took(requester.tick(now_ns, out), &[]);
        self.send();
    }

    fn read(&mut self, at: u64, len: usize) -> Vec<u8> {
        let end = Instant::now() + Duration::from_secs(30);
        let mut asked = Vec::new();
        let mut content = vec![0; len];
        self.read.clear();
        while content.len() > asked.len() * MTU || self.read.len() < asked.len() {
            assert!(Instant::now() < end, "{:?}", self.requester.counters());
            while asked.len() * MTU < len && self.requester.atomic_room() > 0 {
                let done = asked.len() * MTU;
                let now_ns = self.now_ns();
                let (va, piece) = (self.va + at + done as u64, MTU.min(len - done));
                let rkey = self.rkey;
                let number = self
                    .requester
                    .read(va, rkey, piece, now_ns, &mut self.out)
                    .unwrap();
                asked.push(number);
            }
            self.exchange();
        }
        for (piece, number) in content.chunks_mut(MTU).zip(asked) {
            let (_, bytes) = self.read.iter().find(|(of, _)| *of == number).unwrap();
            piece.copy_from_slice(bytes);
        }
        content
    }
}

struct Remote {
    shell: Shell,
    wire: Wire,
    pair: QueuePair,
    bus: u64,
    lists: u64,
    data: u64,
    block: u64,
    blocks: u64,
}

impl Remote {
    fn open() -> Self {
        let mut shell = start(&format!("lend {DEPTH} rxe0 {HOST} {QPN} {PSN}"));
        let ready = numbers(&shell.hear("READY"));
        let &[
            qpn,
            rkey,
            va,
            bus,
            blocks,
            block,
            _,
            submissions,
            completions,
            bells,
            lists,
            data,
        ] = ready.as_slice()
        else {
            panic!("{ready:?}");
        };
        let mut options =
            RequesterOptions::new(Service::Rc, u32::try_from(qpn).unwrap(), Psn::new(PSN), MTU);
        options.timeout_ns = 100_000_000;
        options.window = 128;
        let local = SocketAddr::from((HOST, UDP_PORT));
        let guest = SocketAddr::from((GUEST, UDP_PORT));
        let port = UdpPort::bind(local).unwrap();
        // Doorbells of queue 1, 4 bytes apart.
        let places = Places {
            submissions,
            completions,
            tail: bells + 8,
            head: bells + 12,
            shadow: None,
        };
        Self {
            shell,
            wire: Wire {
                requester: Requester::new(options),
                port: UdpToPeer::new(port, local, guest).unwrap(),
                out: PacketBatch::new(),
                started: Instant::now(),
                rkey: u32::try_from(rkey).unwrap(),
                va,
                read: Vec::new(),
                lose_entry: false,
                lost: 0,
            },
            pair: QueuePair::new(1, DEPTH, places).unwrap(),
            bus,
            lists,
            data,
            block,
            blocks,
        }
    }

    fn buffer(&self, number: u64, len: usize) -> u64 {
        self.data + number * len.next_multiple_of(4096) as u64
    }

    fn prps(&mut self, number: u64, len: usize) -> Prps {
        let start = self.bus + self.buffer(number, len);
        let pages = (0..len.div_ceil(4096) as u64).map(|page| Page(start + page * 4096));
        let at = self.lists + number * 4096;
        let list = ListPage {
            at,
            bus: self.bus + at,
        };
        let len = u32::try_from(len).unwrap();
        Prps::describe(&pages.collect::<Vec<_>>(), 0, len, &[list], &mut self.wire).unwrap()
    }

    fn ring(&mut self) {
        for ring in [
            self.pair.ring(&mut self.wire),
            self.pair.ring_head(&mut self.wire),
        ] {
            assert_eq!(ring, Ring::Done);
        }
    }

    fn submit(&mut self, command: &Command, token: u64) {
        let deadline_ns = self.wire.now_ns() + 30_000_000_000;
        let given = self
            .pair
            .submit(command, token, deadline_ns, &mut self.wire);
        given.unwrap();
    }

    /// Tells the controller, and takes completions until nothing is in flight.
    fn finish(&mut self) -> Vec<Done> {
        let mut ended = Vec::new();
        self.ring();
        while let Some((at, len)) = self.pair.look() {
            let bytes = self.wire.read(at, len);
            self.pair.take(&bytes, |done| ended.push(done)).unwrap();
            self.ring();
            assert_eq!(self.pair.expire(self.wire.now_ns(), 0), None);
        }
        ended
    }

    fn one(&mut self, command: &Command) -> Status {
        self.submit(command, 0);
        self.finish()[0].status
    }

    fn blocks_of(&self, len: usize) -> u16 {
        u16::try_from(len as u64 / self.block).unwrap()
    }
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..len as u64 / 8).map(|at| mix64(seed << 20 ^ at));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Writes `count` pieces of the disk, in batches as large as the queue, and reads them back.
fn series(remote: &mut Remote, at: u64, len: usize, count: u64, batch: u64) {
    let first = |n: u64| at + n * len as u64;
    for start in (0..count).step_by(usize::try_from(batch).unwrap()) {
        let these = start..count.min(start + batch);
        for n in these.clone() {
            let number = n - start;
            let prps = remote.prps(number, len);
            let to = remote.buffer(number, len);
            remote.wire.write(to, &content(first(n), len));
            let block = first(n) / remote.block;
            let command = Command::write(1, block, remote.blocks_of(len), prps);
            remote.submit(&command, n);
            remote.wire.send();
        }
        let ended = remote.finish();
        assert!(ended.iter().all(|done| done.status.is_success()));
        assert_eq!(ended.len() as u64, these.end - these.start);
        for n in these.clone() {
            let prps = remote.prps(n - start, len);
            // Nothing is left of what was written.
            let to = remote.buffer(n - start, len);
            remote.wire.write(to, &[0; 64]);
            let block = first(n) / remote.block;
            let command = Command::read(1, block, remote.blocks_of(len), prps);
            remote.submit(&command, n);
        }
        let ended = remote.finish();
        assert!(ended.iter().all(|done| done.status.is_success()));
        for n in these {
            let from = remote.buffer(n - start, len);
            let there = remote.wire.read(from, len);
            assert!(there == content(first(n), len), "piece {n}");
        }
    }
    assert_eq!(remote.one(&Command::flush(1)), Status::SUCCESS);
}

pub(super) fn writes_and_reads_by_rdma(image: &Path) {
    let start = Instant::now();
    let mut remote = Remote::open();
    let on_disk = |at: u64, len: usize| {
        let mut bytes = vec![0; len];
        let disk = File::open(image).unwrap();
        disk.read_exact_at(&mut bytes, at).unwrap();
        bytes
    };
    let is_there = |at: u64, len: usize, count: u64| {
        let at = |n: u64| at + n * len as u64;
        (0..count).all(|n| on_disk(at(n), len) == content(at(n), len))
    };
    series(&mut remote, FIRST_BYTE, LEN, COMMANDS, u64::from(DEPTH) - 1);
    assert!(is_there(FIRST_BYTE, LEN, COMMANDS), "in the file");
    let long = FIRST_BYTE + COMMANDS * LEN as u64;
    series(&mut remote, long, LONG_LEN, 20, 8);
    assert!(is_there(long, LONG_LEN, 20), "in the file");
    let seconds = start.elapsed().as_secs_f64();

    an_error_is_seen_and_a_lost_entry_is_sent_again(&mut remote);
    let known = a_reset_forgets_what_was_in_flight(&mut remote);
    let counters = remote.wire.requester.counters();
    eprintln!(
        "ok: by RDMA: {COMMANDS} writes and reads of {LEN} bytes, 20 of {LONG_LEN}, in {seconds:.1} s; an entry that was lost; a reset with {known} in flight; {counters:?}"
    );
    remote.shell.say("end");
    remote.shell.hear("BYE");
}

fn an_error_is_seen_and_a_lost_entry_is_sent_again(remote: &mut Remote) {
    let prps = remote.prps(0, LEN);
    let blocks = remote.blocks_of(LEN);
    let beyond = Command::write(1, remote.blocks, blocks, prps);
    let status = remote.one(&beyond);
    assert_eq!((status.kind, status.code), (0, 0x80));
    // The doorbell behind it is refused until it is there: no old entry runs, and the pair goes on.
    remote.wire.lose_entry = true;
    let naks = remote.wire.requester.counters().sequence_naks;
    series(remote, FIRST_BYTE, LEN, 30, u64::from(DEPTH) - 1);
    let counters = remote.wire.requester.counters();
    assert_eq!(remote.wire.lost, 1);
    assert!(
        counters.sequence_naks > naks && counters.resent > 0,
        "{counters:?}"
    );
}

/// The guest resets the controller, with commands in flight; the queue pair begins again.
fn a_reset_forgets_what_was_in_flight(remote: &mut Remote) -> usize {
    let blocks = remote.blocks_of(LEN);
    for n in 0..8 {
        let prps = remote.prps(n, LEN);
        let block = FIRST_BYTE / remote.block + 8 * n;
        remote.submit(&Command::read(1, block, blocks, prps), n);
    }
    // Entries without a doorbell: what the controller does is unknown.
    remote.wire.send();
    remote.shell.say("reset");
    remote.shell.hear("RESET");
    let unknown = remote.pair.reset();
    assert_eq!(unknown, (0..8).collect::<Vec<u64>>());
    series(remote, FIRST_BYTE, LEN, 30, u64::from(DEPTH) - 1);
    unknown.len()
}
