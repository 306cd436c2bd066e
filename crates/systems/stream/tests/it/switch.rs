//! `p4/alt_buffer.spec` in DPDK's software switch, against [`PageWriter`](strata_stream::PageWriter): what its writes
//! leave in memory are the pages that Strata would have written, byte for byte.

use std::net::Ipv4Addr;
use std::path::Path;

use strata_stream::{Form, StreamKey};
use strata_testkit::capture::{Frame, read};
use strata_testkit::{data_dir, switch};
use strata_wire::roce::icrc::{Ip, Outer};
use strata_wire::roce::{Operation, Packet, Service, UDP_PORT};

use crate::lossy::{Draw, header, write};

const PAGE_BYTES: usize = 1 << 20;
const PAGES: usize = 4;
const VA: u64 = 0x7f00_0010_0000;
const RKEY: u32 = 0xbeef_0002;
const QPN: u32 = 0x77;
const FIRST_PSN: u32 = 0xff_fffe;
const FROM: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const TO: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const FROM_PORT: u16 = 50_000;

/// The payload of a frame's record: sizes and time, and the frame's first 48 bytes.
fn payload(frame: &Frame) -> Vec<u8> {
    let mut payload = frame.wire_len.to_be_bytes().to_vec();
    payload.extend(u32::try_from(frame.bytes.len()).unwrap().to_be_bytes());
    payload.extend(frame.ts_ns.to_be_bytes());
    payload.extend(&frame.bytes[..48]);
    payload
}

/// Executes a write; the packet is checked as a responder would.
fn execute(frame: &[u8], number: u32, memory: &mut [u8]) {
    assert_eq!(frame[12..14], [0x08, 0]);
    let packet = Packet::new_checked(&frame[42..]).unwrap();
    let outer = Outer {
        ip: Ip::V4 {
            source: FROM,
            destination: TO,
            identification: 0,
            dont_fragment: true,
        },
        source_port: FROM_PORT,
        destination_port: UDP_PORT,
    };
    assert_eq!(
        outer.icrc(packet.covered()),
        packet.icrc(),
        "ICRC of write {number}"
    );
    let opcode = packet.opcode();
    assert_eq!(
        (opcode.service, opcode.operation),
        (Service::Uc, Operation::WriteOnly)
    );
    assert_eq!(
        (packet.dest_qp(), packet.psn()),
        (QPN, FIRST_PSN.wrapping_add(number) & 0xff_ffff)
    );
    let reth = packet.reth().unwrap();
    assert_eq!(
        (reth.rkey, reth.dma_len),
        (RKEY, u32::try_from(packet.payload().len()).unwrap())
    );
    let at = usize::try_from(reth.va - VA).unwrap();
    memory[at..at + packet.payload().len()].copy_from_slice(packet.payload());
}

#[test]
fn the_buffer_in_a_switch_fills_the_pages_that_ours_fills() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let Some(runner) = switch::runner(target) else {
        return;
    };
    switch::check(runner, "alt_buffer");
    let folder = target.join("alt_buffer");
    let mut frames = read(&data_dir().join("labelled/mix-test/trace.pcap"));
    frames.truncate(45_000);
    frames.retain(|frame| (14..=16_384).contains(&frame.bytes.len()));
    let key = StreamKey::new([7; 16]);
    let form = Form::Linked {
        redundancy: 2,
        block_bytes: Some(1 << 16),
    };
    let mut draw = Draw(5);
    let headers: Vec<_> = (0..PAGES as u64)
        .map(|index| header(form, index, &mut draw))
        .collect();
    let mut words: Vec<String> = Vec::new();
    for (page, header) in headers.iter().enumerate() {
        let va = VA + (page * PAGE_BYTES) as u64;
        words.extend([
            "--page".into(),
            va.to_string(),
            header.record_magic.to_string(),
        ]);
    }
    let (rkey, qpn, psn) = (RKEY.to_string(), QPN.to_string(), FIRST_PSN.to_string());
    let (from, to, port) = (FROM.to_string(), TO.to_string(), FROM_PORT.to_string());
    let more = [
        ["--rkey", &rkey],
        ["--qpn", &qpn],
        ["--first-psn", &psn],
        ["--from", &from],
        ["--to", &to],
        ["--from-port", &port],
    ];
    let words = words
        .iter()
        .map(String::as_str)
        .chain(more.into_iter().flatten());
    switch::tables("alt_buffer", &words.collect::<Vec<_>>(), &folder);

    let ran = switch::run(runner, "alt_buffer", None, &folder, &frames);
    let (long, short): (Vec<_>, Vec<_>) = frames
        .into_iter()
        .partition(|frame| frame.bytes.len() >= 48);
    assert!(short.len() > 100 && ran.ports[1] == short);
    assert_eq!(ran.ports[0].len(), long.len());
    let mut memory = vec![0; PAGES * PAGE_BYTES];
    for (number, frame) in (0..).zip(&ran.ports[0]) {
        execute(&frame.bytes, number, &mut memory);
    }

    // Pages of Strata: full ones, and the beginning of the last.
    let mut rest = long.iter();
    for (page, header) in headers.into_iter().enumerate() {
        let mut payloads = rest.clone();
        let written = write(header, &key, PAGE_BYTES, |_, _| {
            payloads.next().map_or_else(|| vec![0; 64], payload)
        });
        let records = ran.register("records", page);
        let full = written.records.len();
        assert!(
            records == full as u64 || page == PAGES - 1,
            "page {page}: {records}"
        );
        let count = usize::try_from(records).unwrap();
        let (_, end, _) = written.records[count - 1];
        let ours = &mut memory[page * PAGE_BYTES..][..PAGE_BYTES];
        // The control plane writes the header.
        ours[..64].copy_from_slice(&written.bytes[..64]);
        assert!(ours[..end] == written.bytes[..end], "page {page}");
        assert!(
            ours[end..].iter().all(|&byte| byte == 0) || count == full,
            "page {page}"
        );
        rest.nth(count - 1);
    }
    assert_eq!(rest.len(), 0);
}
