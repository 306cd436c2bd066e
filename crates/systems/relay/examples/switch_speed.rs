//! What a packet costs the switch's second thread: from a worker's block to segments in the relay's
//! memory, or to packets of RDMA that a socket would take. No relay answers: all is stored at once.
//!
//!     cargo run --release -p strata-relay --example switch_speed -- TRACE.pcap [rdma] [passes=N]
//!         [fill]
//!
//! Prints JSON: ns per packet, bytes of messages and segments per packet. With `fill`, blocks are
//! filled but not sent: for what that alone takes, in instructions.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a program for developers"
)]

use std::time::Instant;
use std::{env, fs};

use strata_blocks::{BlockBuilder, BlockSource, Incoming, PacketRecord, Trees, link_channel};
use strata_rdma::OnLoss;
use strata_relay::protocol::switch::{Connection, Numbers, Path, Switch, SwitchOptions, Turn};
use strata_relay::protocol::{BlockStored, HelloPath, Message, Stored, Welcome, WelcomePath};
use strata_roce::shared::SharedToPeer;
use strata_sys::shared::SharedMemory;
use strata_wire::segment::Layout;
use strata_wire::{Interface, KeepKind, LinkType};

/// As `strata switch` and `strata relay` have them.
const LOCAL_BLOCK_BYTES: usize = 256 << 10;
const BLOCK_BYTES: usize = 8 << 20;
const BLOCKS: usize = 4;

/// The packets of a classic capture file in this machine's order, microseconds or nanoseconds.
fn packets(capture: &[u8]) -> Vec<&[u8]> {
    let mut rest = &capture[24..];
    let mut found = Vec::new();
    while let Some(head) = rest.first_chunk::<16>() {
        let len = u32::from_le_bytes(*head[8..].first_chunk().unwrap()) as usize;
        found.push(&rest[16..16 + len]);
        rest = &rest[16 + len..];
    }
    found
}

/// The connection to a relay of which there is only the memory.
fn connection(is_rdma: bool) -> Connection {
    let welcome = |path| Welcome {
        recording: 1,
        block_bytes: BLOCK_BYTES,
        block_stride: BLOCK_BYTES + 4096,
        blocks: BLOCKS,
        stored: Stored::default(),
        path,
    };
    let (welcome, path) = if is_rdma {
        let ours = HelloPath::Rdma {
            reliable: false,
            qpn: 2,
            psn: 0,
            port: 4791,
            mtu: 4096,
        };
        let theirs = WelcomePath::Rdma {
            qpn: 3,
            rkey: 4,
            va: 1 << 30,
            mtu: 4096,
            port: 4791,
            psn: 0,
        };
        let path = Path::rdma(&ours, &theirs, OnLoss::Resend).unwrap();
        (welcome(theirs), path)
    } else {
        let stride = BLOCK_BYTES + 4096;
        let memory = SharedMemory::create("switch_speed", BLOCKS * stride).unwrap();
        let file = memory.file().try_clone().unwrap();
        let memory = SharedToPeer::map(file, BLOCKS, stride, 4096).unwrap();
        let token = String::new();
        let path = Path::Shared {
            memory,
            messages: 0,
        };
        (welcome(WelcomePath::SharedMemory { token }), path)
    };
    let numbers = Numbers {
        block: 0,
        seq: 0,
        key: 7,
    };
    Connection::new("nobody".into(), numbers, welcome, path, Layout::Mtu, 0)
}

/// Fills a block with packets from `from` on; returns how many.
fn fill(block: &mut BlockBuilder, packets: &[&[u8]], seq: u64) -> usize {
    block.reset(seq);
    block.define_interface(0, &Interface::new(LinkType(1), 1 << 18));
    block.define_verdict(0, 0, Trees::default(), 0, &[]);
    let mut count = 0;
    for (data, seq) in packets.iter().zip(seq..) {
        if block.room() < data.len() + 64 {
            break;
        }
        let len = u32::try_from(data.len()).unwrap();
        let packet = PacketRecord {
            ts_ns: 1_700_000_000_000_000_000 + seq * 1000,
            seq,
            wire_len: len,
            captured_len: len,
            header_len: 54,
            interface: 0,
            verdict: 0,
            keep: KeepKind::Full,
            has_timestamp: true,
            data,
            options: &[],
        };
        block.push_packet(&packet, 0);
        count += 1;
    }
    count
}

/// Steps until the whole block is sent.
fn send(switch: &mut Switch, connection: &mut Connection, source: &BlockSource) {
    while !matches!(
        switch.step(connection, source, 1).unwrap(),
        Turn::Receive(_)
    ) {
        clear(switch, connection, source);
    }
    clear(switch, connection, source);
}

/// What the socket and the relay would do.
fn clear(switch: &mut Switch, connection: &mut Connection, source: &BlockSource) {
    if let Some(packets) = connection.packets() {
        packets.clear();
    }
    let stored: Vec<u64> = connection
        .messages()
        .filter_map(|message| match message {
            Message::BlockFull(full) => Some(full.block),
            _ => None,
        })
        .collect();
    for block in stored {
        let message = Message::BlockStored(BlockStored { block, missing: 0 });
        switch.receive(connection, message, source, 1).unwrap();
    }
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let capture = fs::read(arguments.first().expect("a capture file")).unwrap();
    let packets = packets(&capture);
    let only_fill = arguments.iter().any(|argument| argument == "fill");
    let is_rdma = arguments.iter().any(|argument| argument == "rdma");
    let passes = arguments.iter().find_map(|a| a.strip_prefix("passes="));
    let passes = passes.map_or(1, |number| number.parse().unwrap());
    let (mut sink, source) = link_channel(LOCAL_BLOCK_BYTES, 2);
    let mut connection = connection(is_rdma);
    let options = SwitchOptions {
        flush_interval_ns: 1_000_000_000,
        patience_ns: 1_000_000_000,
        reads_files: false,
        resends: false,
    };
    let mut switch = Switch::new(options, &connection);
    let (mut seq, mut seconds) = (0, 0.0);
    for _ in 0..passes {
        let mut rest = &packets[..];
        while !rest.is_empty() {
            while sink.poll().is_some() {}
            let mut block = sink.take().unwrap();
            let count = fill(&mut block, rest, seq);
            rest = &rest[count..];
            seq += count as u64;
            sink.submit(block).unwrap();
            let Incoming::Block(block) = source.try_receive() else {
                unreachable!("just submitted");
            };
            if only_fill {
                source.give_back(block);
                continue;
            }
            switch.take(Incoming::Block(block), Some(&mut connection));
            let started = Instant::now();
            send(&mut switch, &mut connection, &source);
            seconds += started.elapsed().as_secs_f64();
        }
    }
    let report = switch.report();
    assert!(only_fill || report.packets == seq);
    let packets = seq as f64;
    println!(
        "{{\"packets\": {seq}, \"ns\": {:.1}, \"bytes\": {:.1}, \"segments\": {:.2}}}",
        seconds * 1e9 / packets,
        report.bytes as f64 / packets,
        report.segments as f64 / packets,
    );
}
