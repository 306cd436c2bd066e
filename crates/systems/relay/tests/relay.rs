//! A switch's link and a relay in one process, over the loopback interface.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use strata_auth::tls;
use strata_blocks::{BlockBuilder, BlockSink, PacketRecord, Record, Trees, Written, link_channel};
use strata_rdma::{OnLoss, PacketBatch};
use strata_relay::{Link, LinkOptions, LinkReport, Relay, RelayOptions, Transport};
use strata_roce::Port;
use strata_store::{About, Log, Loss, Select, State};
use strata_testkit::Certificates;
use strata_testkit_disk::SimDisk;
use strata_wire::roce::{Packet, Service};
use strata_wire::segment::{Layout, SegmentHeader};
use strata_wire::{KeepKind, Ledger, mix64};

/// The contents of a test packet, from its number.
fn content(seq: u64) -> Vec<u8> {
    let len = match mix64(seq) % 4 {
        0 => 60,
        1 => 1500,
        _ => mix64(seq ^ 7) % 9000,
    };
    (0..len)
        .map(|at| mix64(seq ^ at << 32).to_le_bytes()[0])
        .collect()
}

fn record(seq: u64, data: &[u8]) -> PacketRecord<'_> {
    PacketRecord {
        ts_ns: 1_000_000 + seq * 1000,
        seq,
        wire_len: u32::try_from(data.len()).unwrap() + 4,
        captured_len: u32::try_from(data.len()).unwrap(),
        header_len: 54,
        interface: u16::from(seq.is_multiple_of(3)),
        verdict: u16::try_from(seq % 5).unwrap(),
        keep: KeepKind::Full,
        has_timestamp: true,
        data,
        options: &[],
    }
}

fn define(block: &mut BlockBuilder, seq: u64) {
    if block.needs_context() {
        block.define_context(
            b"{\"mode\":\"m\",\"model\":\"x\",\"classes\":[],\"granularities\":[]}",
        );
    }
    let packet = record(seq, &[]);
    if block.needs_interface(packet.interface) {
        let link = strata_store_interface();
        block.define_interface(packet.interface, &link);
    }
    if block.needs_verdict(packet.verdict) {
        let class = u8::try_from(packet.verdict).unwrap();
        block.define_verdict(packet.verdict, class, Trees::Packet, 9, &[1, 2, 3]);
    }
}

fn strata_store_interface() -> strata_wire::Interface {
    strata_wire::Interface::new(strata_wire::LinkType(1), 65_535)
}

/// Plays the worker.
struct Worker {
    sink: BlockSink,
    /// Packets on the relay's disk.
    stored: u64,
    lost: u64,
}

impl Worker {
    fn account(&mut self, written: &Written) {
        match written.outcome {
            Ok(()) => self.stored += written.counters.packets,
            Err(_) => self.lost += written.counters.packets,
        }
    }

    fn take(&mut self) -> Box<BlockBuilder> {
        loop {
            if let Some(block) = self.sink.take() {
                return block;
            }
            let written = self.sink.wait().unwrap().unwrap();
            self.account(&written);
        }
    }

    /// Hands over the packets in a range of numbers.
    fn feed(&mut self, seqs: std::ops::Range<u64>) {
        let mut block = self.take();
        for seq in seqs {
            let data = content(seq);
            if block.room() < data.len() + 2048 {
                let empty = self.take();
                let full = std::mem::replace(&mut block, empty);
                self.sink.submit(full).unwrap();
            }
            define(&mut block, seq);
            let packet = record(seq, &data);
            block.push_packet(&packet, u8::try_from(packet.verdict).unwrap());
        }
        self.sink.submit(block).unwrap();
    }

    /// Waits until everything handed over is settled.
    fn settle(&mut self) {
        while let Some(written) = self.sink.wait().unwrap() {
            self.account(&written);
        }
    }
}

fn relay_options() -> RelayOptions {
    let mut options = RelayOptions::new("127.0.0.1:0".parse().unwrap());
    options.rdma_port = 0;
    options.block_bytes = 1 << 20;
    options
}

fn relay(disk: &SimDisk, options: RelayOptions) -> Relay {
    strata_sandbox::leave_unrestricted();
    Relay::start(Arc::new(disk.clone()), options, |_| {}).unwrap()
}

fn link_options(address: SocketAddr) -> LinkOptions {
    let about = About {
        program: "test".into(),
        hash_seed: [3, 4],
        model_json: b"{}".to_vec(),
        ..About::default()
    };
    LinkOptions::new(address.to_string(), about, String::from("a session"))
}

fn start(options: LinkOptions) -> (Worker, Link) {
    let (sink, source) = link_channel(128 << 10, 8);
    let end = sink.end_handle();
    let link = Link::start(options, source, end).unwrap();
    let (stored, lost) = (0, 0);
    (Worker { sink, stored, lost }, link)
}

/// Sends this many packets, and closes the recording.
fn send(options: LinkOptions, packets: u64) -> LinkReport {
    let (mut worker, link) = start(options);
    worker.feed(0..packets);
    worker.settle();
    assert_eq!((worker.stored, worker.lost), (packets, 0));
    link.finish(Some(&Ledger::default()), Vec::new())
}

/// The contents of the log: whole packets by number, and those that end early.
#[derive(Default)]
struct Found {
    whole: BTreeSet<u64>,
    incomplete: BTreeSet<u64>,
    loss: Loss,
}

/// Reads the one recording, and checks every packet in it.
fn read(disk: &SimDisk) -> Found {
    let log = Log::on(Arc::new(disk.clone())).unwrap();
    let recording = &log.recordings()[0];
    let mut found = Found {
        loss: log.accounting(recording).unwrap().1,
        ..Found::default()
    };
    let mut classes = BTreeMap::new();
    let mut interfaces = BTreeSet::new();
    for block in log.blocks(recording, &Select::default()) {
        let block = block.unwrap();
        for item in block.records() {
            match item.unwrap() {
                Record::Verdict(id, verdict) => drop(classes.insert(id, verdict.class)),
                Record::Meta(strata_wire::Meta::Interface { id, .. }) => {
                    interfaces.insert(id);
                }
                Record::Meta(_) | Record::Context(_) | Record::FlowShare(_) => {}
                Record::Packet(packet) => {
                    let data = content(packet.seq);
                    let expected = record(packet.seq, &data);
                    let whole = packet.data.len() == data.len();
                    assert!(data.starts_with(packet.data));
                    let got = PacketRecord {
                        data: expected.data,
                        options: &[],
                        ..packet
                    };
                    assert_eq!(got, expected);
                    assert!(interfaces.contains(&packet.interface));
                    assert_eq!(
                        u16::from(classes[&packet.verdict]),
                        packet.verdict,
                        "the verdict is defined"
                    );
                    let marked = String::from_utf8_lossy(packet.options).contains("incomplete");
                    assert!(whole || marked);
                    let of = if marked {
                        &mut found.incomplete
                    } else {
                        &mut found.whole
                    };
                    assert!(of.insert(packet.seq), "once");
                }
            }
        }
    }
    assert!(found.whole.is_disjoint(&found.incomplete));
    found
}

#[test]
fn everything_arrives_by_every_way() {
    let (files, _dir) = certificates();
    let with_tls = |options: &mut LinkOptions| {
        options.tls = Some(tls_of(&files, "switch", tls::ClientTls::new));
    };
    type Change<'a> = Box<dyn Fn(&mut LinkOptions) + 'a>;
    let ways: Vec<(&str, bool, Change<'_>)> = vec![
        ("rc", false, Box::new(|_| ())),
        ("rc, TLS", true, Box::new(with_tls)),
        (
            "rc as a switch cuts",
            false,
            Box::new(|o| o.layout = Layout::PowersOfTwo),
        ),
        (
            "shared memory",
            false,
            Box::new(|o| o.transport = Transport::SharedMemory),
        ),
    ];
    for (name, tls, change) in ways {
        let disk = SimDisk::new();
        let mut options = relay_options();
        options.rotate_bytes = 5 << 20;
        if tls {
            options.tls = Some(tls_of(&files, "relay", tls::ServerTls::new));
        }
        let runtime = tempfile::tempdir().unwrap();
        options.memory_socket = Some(runtime.path().join("memory"));
        let memory_socket = options.memory_socket.clone();
        let relay = relay(&disk, options);
        let mut options = link_options(relay.address());
        options.memory.socket = memory_socket;
        change(&mut options);
        let report = send(options, 5000);
        assert_eq!(report.problems, Vec::<String>::new(), "{name}");
        assert_eq!((report.packets, report.disconnections), (5000, 0), "{name}");
        let found = read(&disk);
        assert!(found.whole.iter().copied().eq(0..5000), "{name}");
        assert_eq!(found.loss, Loss::default(), "{name}");
        let log = Log::on(Arc::new(disk.clone())).unwrap();
        let recording = &log.recordings()[0];
        assert_eq!(recording.state, State::Closed, "{name}");
        assert!(recording.files.len() > 2, "{name}: files of 5 MB");
        relay.stop();
        let log = Log::on(Arc::new(disk)).unwrap();
        assert!(
            log.recordings()[0].files.iter().all(|file| file.sealed),
            "{name}"
        );
    }
}

/// Certificates, and the directory with their files.
fn certificates() -> (Certificates, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (Certificates::make(dir.path(), "127.0.0.1"), dir)
}

fn tls_of<T>(
    certificates: &Certificates,
    name: &str,
    make: impl Fn(&tls::TlsFiles<'_>) -> Result<T, tls::TlsError>,
) -> T {
    let [certificate, key, authority] = &certificates.of(name);
    let files = tls::TlsFiles {
        certificate,
        key,
        authority,
    };
    make(&files).unwrap()
}

#[test]
fn with_tls_a_stranger_and_a_plain_switch_are_not_let_in() {
    let (files, _dir) = certificates();
    let disk = SimDisk::new();
    let mut options = relay_options();
    options.tls = Some(tls_of(&files, "relay", tls::ServerTls::new));
    let relay = relay(&disk, options);
    let (sink, source) = link_channel(64 << 10, 2);
    let mut options = link_options(relay.address());
    options.tls = Some(tls_of(&files, "stranger", tls::ClientTls::new));
    let refused = Link::start(options, source, sink.end_handle()).unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
    let (sink, source) = link_channel(64 << 10, 2);
    let plain = link_options(relay.address());
    let refused = Link::start(plain, source, sink.end_handle()).unwrap_err();
    assert!(refused.to_string().contains("--tls-cert"), "{refused}");
    let log = Log::on(Arc::new(disk)).unwrap();
    assert!(log.recordings().is_empty());
}

#[test]
fn a_switch_does_not_talk_to_a_relay_of_another_authority() {
    let (files, _dir) = certificates();
    let disk = SimDisk::new();
    let mut options = relay_options();
    options.tls = Some(tls_of(&files, "relay", tls::ServerTls::new));
    let relay = relay(&disk, options);
    let (sink, source) = link_channel(64 << 10, 2);
    let mut options = link_options(relay.address());
    let (other, _other_dir) = certificates();
    options.tls = Some(tls_of(&other, "switch", tls::ClientTls::new));
    let refused = Link::start(options, source, sink.end_handle()).unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
}

/// What a broken or hostile switch may send, and the consequences.
#[test]
fn who_breaks_the_protocol_is_let_go_and_the_relay_lives() {
    use strata_relay::Channel;
    use strata_relay::protocol::{Begin, BlockFull, Hello, HelloPath, Message};
    let disk = SimDisk::new();
    let relay = relay(&disk, relay_options());
    let connect = || {
        let stream = std::net::TcpStream::connect(relay.address()).unwrap();
        Channel::new(stream, None).unwrap()
    };
    let hello = || {
        Message::Hello(Box::new(Hello {
            session: "hostile".into(),
            worker: u16::MAX,
            nonce: [0; 4],
            secret: false,
        }))
    };
    let begin = |first_block: u64| {
        Message::Begin(Box::new(Begin {
            program: String::new(),
            inputs: Vec::new(),
            filter: String::new(),
            mode: String::new(),
            model: String::new(),
            classes: Vec::new(),
            hash_seed: [1, 2],
            key: 7,
            first_block,
            first_seq: 0,
            unconfirmed_seq: 0,
            resends: false,
            path: HelloPath::Rdma {
                reliable: true,
                qpn: 9,
                psn: 0,
                port: 9,
                mtu: 1024,
            },
        }))
    };
    let full = BlockFull {
        used: 4096,
        next_seq: 3,
        packets: 3,
        segments: 3,
        ..BlockFull::default()
    };
    let with = |change: fn(&mut BlockFull)| {
        let mut changed = full;
        change(&mut changed);
        Message::BlockFull(changed)
    };
    let attempts = [
        vec![Message::Ended],
        vec![hello(), begin(u64::MAX)],
        vec![hello(), begin(0), hello()],
        vec![hello(), hello()],
        vec![begin(0)],
        vec![hello(), Message::Proof([0; 32])],
        vec![hello(), begin(0), Message::Definitions(vec![9; 100])],
        vec![hello(), begin(0), with(|full| full.block = 1)],
        vec![hello(), begin(0), with(|full| full.used = u32::MAX)],
        vec![hello(), begin(0), with(|full| full.next_seq = u64::MAX)],
        vec![hello(), begin(0), with(|full| full.first_seq = 4)],
        // Counts that no block has, which files would add up.
        vec![hello(), begin(0), with(|full| full.packets = u64::MAX)],
        vec![hello(), begin(0), with(|full| full.segments = u64::MAX)],
        vec![hello(), begin(0), with(|full| full.segments = 2)],
        vec![hello(), begin(0), with(|full| full.used = 95)],
    ];
    for messages in attempts {
        let mut channel = connect();
        let said = format!("{messages:?}");
        for message in &messages {
            // It may have closed the connection already.
            let _ = channel.send(message);
        }
        let over = loop {
            match channel.wait(Duration::from_secs(20), || false) {
                Ok(Message::Welcome(_) | Message::Alive | Message::Challenge(_)) => {}
                Ok(Message::Refused(_)) => break true,
                Ok(other) => panic!("{said}: {other:?}"),
                Err(error) => break !error.to_string().contains("cannot get an answer"),
            }
        };
        assert!(over, "{said}");
    }
    let report = send(link_options(relay.address()), 1000);
    assert_eq!((report.packets, report.disconnections), (1000, 0));
}

/// Loses packets by a seed, and records which segments got through.
struct Lossy {
    port: Box<dyn Port>,
    seed: u64,
    per_100_000: u64,
    notes: Arc<Mutex<Notes>>,
}

#[derive(Default)]
struct Notes {
    /// By packet: the number of its segments, and which of them were sent.
    sent: BTreeMap<u64, (u16, BTreeSet<u16>)>,
    lost: u64,
}

impl Lossy {
    fn note(&self, payload: &[u8]) {
        let mut notes = self.notes.lock().unwrap();
        let mut at = 0;
        while let Some(head) = payload.get(at..at + 32) {
            let header = SegmentHeader::parse(head.try_into().unwrap());
            if header.total == 0 {
                break;
            }
            let entry = notes.sent.entry(header.seq).or_default();
            entry.0 = header.total;
            entry.1.insert(header.index);
            at += (32 + usize::from(header.len)).next_multiple_of(8);
        }
    }
}

impl Port for Lossy {
    fn send(&mut self, batch: &mut PacketBatch) -> io::Result<()> {
        let mut kept = PacketBatch::new();
        for packet in batch.iter() {
            self.seed = mix64(self.seed.wrapping_add(1));
            if self.seed % 100_000 < self.per_100_000 {
                self.notes.lock().unwrap().lost += 1;
                continue;
            }
            self.note(Packet::new_checked(packet).unwrap().payload());
            kept.push_bytes(packet);
        }
        if kept.is_empty() {
            return Ok(());
        }
        // UC has no flow control but the receiver's buffer.
        std::thread::sleep(Duration::from_micros(300));
        self.port.send(&mut kept)
    }

    fn receive(&mut self, take: &mut dyn FnMut(&Packet<'_>)) -> io::Result<()> {
        self.port.receive(take)
    }

    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        self.port.wait(limit)
    }
}

fn lossy(options: &mut LinkOptions, seed: u64, per_100_000: u64) -> Arc<Mutex<Notes>> {
    let notes: Arc<Mutex<Notes>> = Arc::default();
    let shared = Arc::clone(&notes);
    options.wrap = Some(Arc::new(move |port| {
        let notes = Arc::clone(&shared);
        Box::new(Lossy {
            port,
            seed,
            per_100_000,
            notes,
        })
    }));
    notes
}

#[test]
fn of_what_uc_loses_every_packet_is_counted_and_none_is_wrong() {
    for (seed, per_100_000, packets) in [(1, 10, 30_000), (2, 1000, 10_000), (3, 10_000, 10_000)] {
        let disk = SimDisk::new();
        let relay = relay(&disk, relay_options());
        let mut options = link_options(relay.address());
        options.transport = Transport::Udp(Service::Uc);
        let notes = lossy(&mut options, seed, per_100_000);
        let report = send(options, packets);
        let found = read(&disk);
        let notes = notes.lock().unwrap();
        assert!(notes.lost > 0, "seed {seed}");
        // The relay has told the switch how much of it is missing.
        let arrived: usize = notes.sent.values().map(|(_, there)| there.len()).sum();
        let missing = report.segments - arrived as u64;
        assert_eq!(
            (report.segments_stored, report.segments_missing),
            (report.segments, missing),
            "seed {seed}"
        );
        let all = |(total, there): &(u16, BTreeSet<u16>)| usize::from(*total) == there.len();
        let whole: BTreeSet<u64> = notes
            .sent
            .iter()
            .filter(|(_, segments)| all(segments))
            .map(|(&seq, _)| seq)
            .collect();
        assert_eq!(found.whole, whole, "seed {seed}");
        assert!(
            found
                .incomplete
                .iter()
                .all(|seq| notes.sent[seq].1.contains(&0))
        );
        let shown = (found.whole.len() + found.incomplete.len()) as u64;
        assert_eq!(found.loss.packets, packets - shown, "seed {seed}");
        assert_eq!(
            found.loss.incomplete,
            found.incomplete.len() as u64,
            "seed {seed}"
        );
    }
}

#[test]
fn rc_resends_what_is_lost_or_skips_and_counts_it() {
    let disk = SimDisk::new();
    let first = relay(&disk, relay_options());
    let mut options = link_options(first.address());
    lossy(&mut options, 5, 1000);
    let report = send(options, 10_000);
    assert!(report.rdma.resent > 0 && report.rdma.lost == 0);
    let found = read(&disk);
    assert!(found.whole.iter().copied().eq(0..10_000));

    let disk = SimDisk::new();
    let second = relay(&disk, relay_options());
    let mut options = link_options(second.address());
    options.on_loss = OnLoss::Skip;
    lossy(&mut options, 6, 200);
    let report = send(options, 10_000);
    assert!(report.rdma.lost > 0 && report.rdma.resent == 0);
    assert_eq!(
        report.rdma.posted,
        report.rdma.acknowledged + report.rdma.lost
    );
    let found = read(&disk);
    let shown = (found.whole.len() + found.incomplete.len()) as u64;
    assert_eq!(found.loss.packets, 10_000 - shown);
    assert!(found.whole.len() > 1000);
}

/// A dual-stack socket shows IPv4 addresses as mapped ones, and accepts them only in that form.
#[test]
fn a_relay_that_listens_on_all_addresses_is_written_to_over_ipv4_and_ipv6() {
    for host in ["127.0.0.1", "[::1]"] {
        let disk = SimDisk::new();
        let mut options = relay_options();
        options.listen = "[::]:0".parse().unwrap();
        let relay = relay(&disk, options);
        let mut options = link_options(relay.address());
        options.relay = format!("{host}:{}", relay.address().port());
        let report = send(options, 1000);
        assert_eq!((report.packets, report.disconnections), (1000, 0), "{host}");
        assert!(read(&disk).whole.iter().copied().eq(0..1000), "{host}");
    }
}

/// A write that fails at any moment ends link and relay, and what was confirmed to the link is
/// stored.
#[test]
fn a_failed_write_is_the_end_of_both_and_neither_waits_for_ever() {
    for operation in (8..60).step_by(4) {
        let disk = SimDisk::new();
        disk.fail_once(operation);
        strata_sandbox::leave_unrestricted();
        let relay = Relay::start(Arc::new(disk.clone()), relay_options(), |_| {});
        let Ok(relay) = relay else {
            continue;
        };
        let (sink, source) = link_channel(128 << 10, 8);
        let end = sink.end_handle();
        let Ok(link) = Link::start(link_options(relay.address()), source, end) else {
            assert!(relay.failure().is_some(), "operation {operation}");
            continue;
        };
        let (stored, lost) = (0, 0);
        let mut worker = Worker { sink, stored, lost };
        worker.feed(0..5000);
        worker.settle();
        let report = link.finish(Some(&Ledger::default()), Vec::new());
        assert_eq!(worker.stored + worker.lost, 5000, "operation {operation}");
        assert_eq!(report.lost.packets, worker.lost, "operation {operation}");
        let failed = relay.stop().failure;
        assert_eq!(failed.is_some(), report.failure.is_some());
        if let Some(failure) = failed {
            let told = report.failure.unwrap();
            assert_eq!(told, failure, "operation {operation}");
            let stored = read(&disk).whole.len() as u64;
            assert!(stored >= worker.stored, "operation {operation}");
        }
    }
}
