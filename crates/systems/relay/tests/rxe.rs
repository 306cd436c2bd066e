//! Against a foreign RDMA stack: Linux' Soft-RoCE (rdma_rxe) in a guest under QEMU's software
//! emulation. [`GuestTest`] builds and boots it.
//!
//! A binary of its own: it starts itself again in the guest's namespace.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stderr, reason = "says what was done")]

#[path = "rxe/telemetry.rs"]
mod telemetry;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_blocks::{BlockBuilder, PacketRecord, Record, Trees, link_channel};
use strata_rdma::{Event, Failure, OnLoss, PacketBatch, Psn, Requester, RequesterOptions};
use strata_relay::protocol::{
    Begin, BlockFull, BlockStored, End, Hello, HelloPath, Message, Welcome, WelcomePath,
};
use strata_relay::{Link, LinkOptions, Relay, RelayOptions};
use strata_roce::Port;
use strata_roce::udp::{UdpPort, UdpToPeer};
use strata_store::{About, Log, Loss, RealDisk, SavedLedger, Select};
use strata_testkit::guest::{GUEST, GuestTest, HOST, Shell};
use strata_testkit_disk::SimDisk;
use strata_wire::roce::{NakCode, Service, UDP_PORT};
use strata_wire::segment::{BlockWriter, Layout, PacketInfo};
use strata_wire::{KeepKind, Ledger, mix64};

const TEST: GuestTest = GuestTest {
    name: "rxe",
    target_tmp: env!("CARGO_TARGET_TMPDIR"),
    test: "soft_roce_and_we_understand_each_other",
    program: ("strata-relay", "verbs-relay"),
};

#[test]
fn soft_roce_and_we_understand_each_other() {
    TEST.run(&[], within_the_namespace);
}

/// The guest's verbs program, and its memory.
struct Peer {
    shell: Shell,
    qpn: u32,
    rkey: u32,
    va: u64,
}

impl Peer {
    fn start(service: &str, our_qpn: u32, our_psn: u32) -> Self {
        let mut shell = Shell::open();
        shell.say(&format!("exec peer {service} {our_qpn} {our_psn} 2097152"));
        let ready = shell.hear("READY");
        let numbers: Vec<u64> = ready.split(' ').map(|n| n.parse().unwrap()).collect();
        Self {
            shell,
            qpn: u32::try_from(numbers[0]).unwrap(),
            rkey: u32::try_from(numbers[1]).unwrap(),
            va: numbers[2],
        }
    }

    fn dump(&mut self, offset: u64, len: u64) -> Vec<u8> {
        self.shell.say(&format!("d {offset} {len}"));
        let hex = self.shell.hear("DUMP");
        let byte = |at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
        (0..hex.len() / 2).map(byte).collect()
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        for (index, piece) in bytes.chunks(4000).enumerate() {
            let hex: String = piece.iter().map(|byte| format!("{byte:02x}")).collect();
            self.shell
                .say(&format!("p {} {hex}", offset + index * 4000));
            self.shell.hear("PUT");
        }
    }
}

/// Our requester with a kernel UDP socket.
struct Ours {
    requester: Requester,
    port: UdpToPeer,
    out: PacketBatch,
    events: Vec<Event>,
    started: Instant,
}

impl Ours {
    fn new(options: RequesterOptions) -> Self {
        let local = SocketAddr::from((HOST, UDP_PORT));
        let port = UdpPort::bind(local).unwrap();
        let guest = SocketAddr::from((GUEST, UDP_PORT));
        Self {
            requester: Requester::new(options),
            port: UdpToPeer::new(port, local, guest).unwrap(),
            out: PacketBatch::new(),
            events: Vec::new(),
            started: Instant::now(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap()
    }

    fn write(&mut self, peer: &Peer, offset: u64, data: &[u8]) {
        let (now, rkey) = (self.now(), peer.rkey);
        let posted = self
            .requester
            .write(peer.va + offset, rkey, data, now, &mut self.out);
        posted.unwrap();
    }

    /// Sends all packets except those at these positions.
    fn send_without(&mut self, lost: &[usize]) {
        self.requester.request_ack(&mut self.out);
        let mut kept = PacketBatch::new();
        for (index, packet) in self.out.iter().enumerate() {
            if !lost.contains(&index) {
                kept.push_bytes(packet);
            }
        }
        self.out.clear();
        self.port.send(&mut kept).unwrap();
    }

    /// Runs until nothing is in flight, or the queue pair failed.
    fn finish(&mut self) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.requester.in_flight() > 0 {
            assert!(Instant::now() < end, "{:?}", self.requester.counters());
            self.port.wait(Duration::from_millis(5)).unwrap();
            let now = self.now();
            let (requester, out, events) = (&mut self.requester, &mut self.out, &mut self.events);
            self.port
                .receive(&mut |packet| events.extend(requester.receive(packet, now, out)))
                .unwrap();
            events.extend(requester.tick(now, out));
            if !out.is_empty() {
                self.port.send(out).unwrap();
                out.clear();
            }
            if events.iter().any(|event| matches!(event, Event::Failed(_))) {
                return;
            }
        }
    }
}

fn options(service: Service, peer: &Peer, psn: u32) -> RequesterOptions {
    let mut options = RequesterOptions::new(service, peer.qpn, Psn::new(psn), 1024);
    options.timeout_ns = 500_000_000;
    options
}

fn bytes(seed: u64, len: u64) -> Vec<u8> {
    (0..len)
        .map(|at| mix64(seed ^ at << 20).to_le_bytes()[0])
        .collect()
}

fn within_the_namespace() {
    our_requester_writes_reliably();
    a_gap_is_mended_or_skipped();
    a_wrong_key_is_refused_and_we_connect_again();
    our_requester_writes_unreliably();
    the_guest_writes_into_our_relay();
    the_guest_is_the_relay();
    telemetry::a_translators_operations_land_in_the_guest();
}

fn our_requester_writes_reliably() {
    let mut peer = Peer::start("rc", 0x111, 0xff_fff0);
    let mut ours = Ours::new(options(Service::Rc, &peer, 0xff_fff0));
    // A run of packets that the kernel segments, so that its numbering is in their ICRCs.
    let data = bytes(1, 40 * 1024);
    for (index, piece) in data.chunks(1024).enumerate() {
        ours.write(&peer, 4096 + index as u64 * 1024, piece);
    }
    // FIRST, MIDDLE, LAST; one with padding.
    let long = bytes(2, 5000);
    ours.write(&peer, 100_000, &long);
    ours.write(&peer, 110_000, b"odd");
    ours.send_without(&[]);
    ours.finish();
    let rkey = peer.rkey;
    for add in [5, 7] {
        let (now, va) = (ours.now(), peer.va + 256);
        ours.requester
            .fetch_add(va, rkey, add, now, &mut ours.out)
            .unwrap();
        ours.send_without(&[]);
        ours.finish();
    }
    let originals: Vec<u64> = ours
        .events
        .iter()
        .map(|event| match event {
            Event::AtomicDone { original, .. } => *original,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(originals, [0, 5]);
    let counters = ours.requester.counters();
    assert_eq!((counters.acknowledged, counters.lost), (counters.posted, 0));
    assert_eq!(counters.resent, 0, "no ICRC was wrong");
    assert_eq!(peer.dump(256, 8), 12_u64.to_le_bytes());
    for start in (0..data.len()).step_by(4096) {
        assert_eq!(
            peer.dump(4096 + start as u64, 4096),
            data[start..start + 4096]
        );
    }
    assert_eq!(peer.dump(100_000, 4000), long[..4000]);
    assert_eq!(peer.dump(104_000, 1000), long[4000..]);
    assert_eq!(peer.dump(110_000, 4), b"odd\0");
    eprintln!("ok: RC WRITE and FETCH_ADD");
}

fn a_gap_is_mended_or_skipped() {
    for (on_loss, arrived) in [(OnLoss::Resend, 10), (OnLoss::Skip, 3)] {
        let mut peer = Peer::start("rc", 0x112, 0x1000);
        let mut options = options(Service::Rc, &peer, 0x1000);
        options.on_loss = on_loss;
        let mut ours = Ours::new(options);
        for number in 0..10_u64 {
            ours.write(&peer, number * 64, &[u8::try_from(number).unwrap() + 1; 64]);
        }
        ours.send_without(&[3]);
        ours.finish();
        let counters = ours.requester.counters();
        // The specification prescribes NAK code 0, PSN sequence error.
        assert_eq!(counters.sequence_naks, 1);
        assert_eq!(counters.acknowledged, arrived);
        assert_eq!(counters.lost, 10 - arrived);
        // It carries on.
        ours.write(&peer, 1024, b"recovered");
        ours.send_without(&[]);
        ours.finish();
        assert_eq!(peer.dump(1024, 9), b"recovered");
        let there = peer.dump(0, 640);
        for number in 0..10 {
            let expected = if number < arrived { number + 1 } else { 0 };
            let at = usize::try_from(number).unwrap() * 64;
            assert_eq!(u64::from(there[at]), expected, "{on_loss:?}");
        }
    }
    eprintln!("ok: NAK for a wrong PSN, and recovery");
}

fn a_wrong_key_is_refused_and_we_connect_again() {
    let mut peer = Peer::start("rc", 0x113, 0x1000);
    let mut ours = Ours::new(options(Service::Rc, &peer, 0x1000));
    peer.rkey ^= 0x100;
    ours.write(&peer, 0, b"nowhere");
    ours.send_without(&[]);
    ours.finish();
    let refused = Event::Failed(Failure::Nak(NakCode::RemoteAccess));
    assert_eq!(ours.events, [refused]);
    assert_eq!(peer.dump(0, 7), [0; 7]);
    drop(ours);
    let mut again = Peer::start("rc", 0x114, 0x1000);
    let mut ours = Ours::new(options(Service::Rc, &again, 0x1000));
    ours.write(&again, 0, b"somewhere");
    ours.send_without(&[]);
    ours.finish();
    assert_eq!(again.dump(0, 9), b"somewhere");
    eprintln!("ok: NAK for a wrong rkey");
}

fn our_requester_writes_unreliably() {
    let mut peer = Peer::start("uc", 0x222, 0x1000);
    let mut ours = Ours::new(options(Service::Uc, &peer, 0x1000));
    for number in 0..10_u64 {
        ours.write(&peer, number * 64, &[u8::try_from(number).unwrap() + 1; 64]);
    }
    ours.send_without(&[3]);
    let end = Instant::now() + Duration::from_secs(5);
    while peer.dump(9 * 64, 1) != [10] && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    let there = peer.dump(0, 640);
    let firsts: Vec<u8> = there.chunks(64).map(|piece| piece[0]).collect();
    assert_eq!(firsts, [1, 2, 3, 0, 5, 6, 7, 8, 9, 10]);
    eprintln!("ok: UC WRITE");
}

fn packet(seq: u64, data: &[u8]) -> PacketRecord<'_> {
    PacketRecord {
        ts_ns: 1_000 * seq,
        seq,
        wire_len: u32::try_from(data.len()).unwrap(),
        captured_len: u32::try_from(data.len()).unwrap(),
        header_len: 14,
        interface: 0,
        verdict: 0,
        keep: KeepKind::Full,
        has_timestamp: true,
        data,
        options: &[],
    }
}

fn data_of(seq: u64) -> Vec<u8> {
    bytes(seq, 20 + mix64(seq) % 1400)
}

/// A worker's block with these packets.
fn fill(block: &mut BlockBuilder, seqs: std::ops::Range<u64>) {
    block.define_context(b"{\"mode\":\"\",\"model\":\"\",\"classes\":[],\"granularities\":[]}");
    let link = strata_wire::LinkType(1);
    block.define_interface(0, &strata_wire::Interface::new(link, 0));
    block.define_verdict(0, 0, Trees::None, 0, &[]);
    for seq in seqs {
        let data = data_of(seq);
        block.push_packet(&packet(seq, &data), 0);
    }
}

fn check(log: &Log, packets: u64) {
    let recording = &log.recordings()[0];
    let mut next = 0;
    for block in log.blocks(recording, &Select::default()) {
        for record in block.unwrap().records() {
            if let Record::Packet(found) = record.unwrap() {
                assert_eq!(found, packet(next, &data_of(next)));
                next += 1;
            }
        }
    }
    assert_eq!(next, packets);
    assert_eq!(log.accounting(recording).unwrap().1, Loss::default());
}

/// The guest's verbs as the switch: its control connection is ours, through netcat.
#[expect(clippy::too_many_lines, reason = "one run of the guest, step by step")]
fn the_guest_writes_into_our_relay() {
    const KEY: u32 = 0x0bad_cafe;
    let disk = SimDisk::new();
    let mut options = RelayOptions::new(SocketAddr::from((HOST, UDP_PORT)));
    options.block_bytes = 1 << 20;
    options.first_qpn = Some(2);
    strata_sandbox::leave_unrestricted();
    let relay = Relay::start(Arc::new(disk.clone()), options, |_| {}).unwrap();
    let mut peer = Peer::start("rc", 2, 0);
    let mut control = Shell::open();
    // One line, so that the shell reads nothing after it.
    control.say(&format!("echo READY; exec nc {HOST} {UDP_PORT}"));
    control.hear("READY");
    let send = |control: &mut Shell, message: &Message| {
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        control.send(&bytes);
    };
    let hello = Hello {
        session: "guest".into(),
        worker: 0,
        nonce: [1, 2, 3, 4],
        secret: false,
    };
    send(&mut control, &Message::Hello(Box::new(hello)));
    assert!(matches!(answer(&mut control), Message::Challenge(_)));
    let begin = Begin {
        program: "verbs".into(),
        inputs: Vec::new(),
        filter: String::new(),
        mode: String::new(),
        model: String::new(),
        classes: Vec::new(),
        hash_seed: [1, 2],
        key: KEY,
        first_block: 0,
        first_seq: 0,
        unconfirmed_seq: 0,
        resends: false,
        path: HelloPath::Rdma {
            reliable: true,
            qpn: peer.qpn,
            psn: 0x2000,
            port: UDP_PORT,
            mtu: 1024,
        },
    };
    send(&mut control, &Message::Model(b"{}".to_vec()));
    send(&mut control, &Message::Begin(Box::new(begin)));
    let welcome = match answer(&mut control) {
        Message::Welcome(welcome) => *welcome,
        other => panic!("{other:?}"),
    };
    let Welcome {
        path: WelcomePath::Rdma { qpn, rkey, va, .. },
        ..
    } = welcome
    else {
        panic!("{welcome:?}");
    };
    assert_eq!(qpn, 2);

    let mut local = BlockBuilder::new(64 << 10);
    fill(&mut local, 0..20);
    let mut memory = vec![0; 64 << 10];
    let mut writer = BlockWriter::new(KEY, Layout::Mtu, 1024, 1 << 20);
    writer.begin(0);
    let mut definitions = Vec::new();
    let mut put = |at: usize, message: &[u8]| {
        memory[at..at + message.len()].copy_from_slice(message);
    };
    let mut records = strata_blocks::Records::new(local.body(), 0);
    while let Some(record) = records.next_raw() {
        match record.unwrap() {
            strata_blocks::RawRecord::Packet(packet) => {
                let info = PacketInfo {
                    seq: packet.seq,
                    ts_ns: packet.ts_ns,
                    class: 0,
                    flags: packet.flags(),
                };
                let mut record = Vec::new();
                packet.emit(&mut record);
                writer.push(&info, &record, &mut put);
            }
            strata_blocks::RawRecord::Other { bytes, .. } => definitions.extend_from_slice(bytes),
        }
    }
    writer.flush(&mut put);
    let used = writer.used();
    peer.put(8192, &memory[..used]);
    // Part in one message of many packets, the rest in another.
    let (first, rest) = (used / 2 / 8 * 8, used - used / 2 / 8 * 8);
    for (offset, len) in [(0, first), (first, rest)] {
        let (to, from) = (va + offset as u64, 8192 + offset);
        peer.shell.say(&format!("w {to} {rkey} {from} {len}"));
        assert_eq!(peer.shell.hear("DONE"), "0 success");
    }
    // After what is used.
    let counter = va + (1 << 20) - 8;
    for before in [0_u64, 5] {
        peer.shell.say(&format!("a {counter} {rkey} 5"));
        assert_eq!(peer.shell.hear("DONE"), "0 success");
        assert_eq!(peer.dump(0, 8), before.to_le_bytes());
    }
    send(&mut control, &Message::Definitions(definitions));
    let full = BlockFull {
        block: 0,
        used: u32::try_from(used).unwrap(),
        end_psn: 0x2000,
        first_seq: 0,
        next_seq: 20,
        packets: 20,
        segments: writer.segments(),
    };
    send(&mut control, &Message::BlockFull(full));
    let stored = BlockStored {
        block: 0,
        missing: 0,
    };
    assert_eq!(answer(&mut control), Message::BlockStored(stored));
    let end = End {
        accounting: Some(SavedLedger::from(&Ledger::default())),
        warnings: Vec::new(),
    };
    send(&mut control, &Message::End(Box::new(end)));
    assert_eq!(answer(&mut control), Message::Ended);
    relay.stop();
    check(&Log::on(Arc::new(disk)).unwrap(), 20);
    eprintln!("ok: the guest's verbs write into our relay");
}

fn answer(control: &mut Shell) -> Message {
    let mut bytes = Vec::new();
    loop {
        match Message::parse(&bytes).unwrap() {
            Some((Message::Alive, _)) => bytes.clear(),
            Some((message, _)) => return message,
            None => {}
        }
        let mut byte = [0];
        control.lines.read_exact(&mut byte).unwrap();
        bytes.extend(byte);
    }
}

/// The relay runs in the guest, its memory registered with rdma_rxe: the kernel's verbs act as the
/// NIC.
fn the_guest_is_the_relay() {
    let mut shell = Shell::open();
    shell.say("exec /extra/verbs-relay /tmp/log rxe0 2>&1");
    shell.hear("RELAY ready");
    let about = About {
        hash_seed: [8, 9],
        model_json: b"{}".to_vec(),
        ..About::default()
    };
    let mut options = LinkOptions::new(GUEST.to_string(), about, "switch".into());
    options.insecure = true;
    let (mut sink, source) = link_channel(128 << 10, 4);
    let end = sink.end_handle();
    let link = Link::start(options, source, end).unwrap();
    let packets = 2000;
    for first in (0..packets).step_by(50) {
        let mut block = loop {
            match sink.take() {
                Some(block) => break block,
                None => drop(sink.wait().unwrap()),
            }
        };
        fill(&mut block, first..first + 50);
        sink.submit(block).unwrap();
    }
    while let Some(written) = sink.wait().unwrap() {
        written.outcome.unwrap();
    }
    let report = link.finish(Some(&Ledger::default()), Vec::new());
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!((report.packets, report.rdma.lost), (packets, 0));
    assert!(report.blocks >= 2, "the memory was filled more than once");

    let mut fetch = Shell::open();
    fetch.say("tar -C /tmp/log -cf - . ; exit");
    let mut archive = Vec::new();
    fetch.lines.read_to_end(&mut archive).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut tar = Command::new("tar")
        .args(["-xf", "-", "-C"])
        .arg(dir.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    tar.stdin.take().unwrap().write_all(&archive).unwrap();
    assert!(tar.wait().unwrap().success());
    let log = Log::on(Arc::new(RealDisk::at(dir.path()))).unwrap();
    check(&log, packets);
    eprintln!("ok: a log recorded into the guest's memory reads back whole");
}
