//! The cost of putting packets into RDMA messages: segment headers with checksums, RoCEv2 headers,
//! ICRC; compared with a copy of the same bytes. `make bench`.
//!
//! Limit, per 128 bytes of a packet that is segmented as a switch does it: 256 bytes are written
//! (32 segment header, 128 payload, 28 BTH and RETH, 4 ICRC; once into the message and once into
//! the packet), 156 go through CRC-32C, 8 at a time in a chain of 3 cycles a step, 188 through
//! CRC-32 by carry-less multiplication: the two checksums are most of the cost. MTU messages share
//! one RoCEv2 header and ICRC among 31 times as much.
#![allow(clippy::print_stdout, reason = "a program")]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

use strata_rdma::{PacketBatch, Psn, Requester, RequesterOptions};
use strata_wire::roce::icrc::{Ip, Outer, Stream};
use strata_wire::roce::{Service, UDP_PORT};
use strata_wire::segment::{BlockWriter, Layout, PacketInfo};

/// Bytes of a segment of the packet.
const SEGMENT: usize = 128;
const SEGMENTS: usize = 1 << 14;
const BLOCK: usize = 8 << 20;
const ROUNDS: usize = 21;

fn outer() -> Outer {
    Outer {
        ip: Ip::V4 {
            source: Ipv4Addr::new(192, 0, 2, 1),
            destination: Ipv4Addr::new(192, 0, 2, 2),
            identification: 0,
            dont_fragment: true,
        },
        source_port: UDP_PORT,
        destination_port: UDP_PORT,
    }
}

/// ns per 128 bytes of packets of `packet_len` bytes.
fn encapsulate(packets: &[u8], packet_len: usize, layout: Layout, mtu: usize) -> f64 {
    let mut writer = BlockWriter::new(1, layout, mtu, BLOCK);
    let options = RequesterOptions::new(Service::Uc, 2, Psn::new(0), mtu);
    let mut requester = Requester::new(options);
    let mut out = PacketBatch::new();
    let mut icrcs = Stream::new(outer());
    writer.begin(1);
    let started = Instant::now();
    for (number, packet) in packets.chunks_exact(packet_len).enumerate() {
        let info = PacketInfo {
            seq: number as u64,
            ts_ns: number as u64,
            class: 1,
            flags: 3,
        };
        writer.push(&info, packet, &mut |at, message| {
            let posted = requester.write(at as u64, 7, message, 0, &mut out);
            assert!(posted.is_ok(), "UC has no window");
        });
        if out.len() >= 64 {
            for index in 0..out.len() {
                out.seal(index, 0, &mut icrcs);
            }
            black_box(out.get(out.len() - 1));
            out.clear();
        }
    }
    let ns = started.elapsed().as_nanos();
    #[allow(clippy::cast_precision_loss)]
    let per_segment = ns as f64 / (packets.len() / SEGMENT) as f64;
    per_segment
}

/// ns per 128 bytes, copied in pieces of `packet_len`.
fn copy(packets: &[u8], packet_len: usize) -> f64 {
    let mut target = vec![0_u8; 64 << 10];
    let started = Instant::now();
    let mut at = 0;
    for packet in packets.chunks_exact(packet_len) {
        if at + packet_len > target.len() {
            black_box(&target);
            at = 0;
        }
        target[at..at + packet_len].copy_from_slice(packet);
        at += packet_len;
    }
    black_box(&target);
    let ns = started.elapsed().as_nanos();
    #[allow(clippy::cast_precision_loss)]
    let per_segment = ns as f64 / (packets.len() / SEGMENT) as f64;
    per_segment
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let packets: Vec<u8> = (0..SEGMENT * SEGMENTS)
        .map(|at| (at * 31 % 251).to_le_bytes()[0])
        .collect();
    println!(
        "| what | packets | ns per 128 B | share of a core per Gb/s | copies of the same bytes |"
    );
    println!("|---|---|---|---|---|");
    for (name, packet_len, layout, mtu) in [
        ("a message per 128 B", 128, Layout::PowersOfTwo, 1024),
        ("messages of 1024", 1024, Layout::Mtu, 1024),
        ("messages of 4096", 1024, Layout::Mtu, 4096),
        ("messages of 4096", 128, Layout::Mtu, 4096),
    ] {
        // In turns, so that disturbances affect both alike.
        let (mut ours, mut copies) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(encapsulate(&packets, packet_len, layout, mtu));
            copies.push(copy(&packets, packet_len));
        }
        let (ns, copied) = (median(ours), median(copies));
        // 1 Gb/s is 0.125 bytes a ns.
        let share = ns / 128.0 * 0.125 * 100.0;
        println!(
            "| {name} | {packet_len} B | {ns:.1} | {share:.2} % | {:.1} (memcpy {copied:.1} ns) |",
            ns / copied
        );
    }
}
