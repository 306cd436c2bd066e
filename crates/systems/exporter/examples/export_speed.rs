//! How small headers become and how fast, beside the paper's algorithm and what their fields' entropy
//! allows:
//!
//!     cargo run --release -p strata-exporter --example export_speed [PACKETS]
//!
//! One line of JSON for each kind of traffic: packets of `strata generate --profile cic-w3`; the same
//! with flows in trains of 3; those of a core link.
//!
//!     valgrind --tool=callgrind --toggle-collect='*write_headers*' .../export_speed --count
//!
//! counts instructions, of one pass over 100,000 packets; so does `*read_headers*`. `--count trains` has
//! them in trains of 3.
//!
//!     .../export_speed --raw FILE
//!
//! writes the headers of w3 to a file, one after the other, for other compressors.
#![allow(clippy::print_stdout, reason = "this is what it is for")]
#![allow(clippy::cast_precision_loss, reason = "figures to read")]
#![allow(clippy::unwrap_used, reason = "a failed step ends it")]

#[path = "../tests/it/common/mod.rs"]
mod common;

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use common::{Kept, SOURCE, compressed, generated, in_trains, paper};
use strata_exporter::{HEADER_LEN, HeaderReader, HeaderWriter};
use strata_wire::{LinkType, Plain};

const ROOM: usize = 1472;
const ROUNDS: usize = 7;
/// Packets whose instructions are counted.
const COUNTED: usize = 100_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    match first.as_deref() {
        Some("--count") => {
            let mut headers = generated("cic-w3", COUNTED);
            if arguments.next().is_some() {
                headers = in_trains(&headers, 3, 8 * 32_768);
            }
            let datagrams = write_headers(&headers);
            println!("{}", read_headers(&datagrams));
        }
        Some("--raw") => {
            let file = arguments.next().expect("a file");
            let headers = generated("cic-w3", 1_000_000);
            let bytes: Vec<u8> = headers
                .iter()
                .flat_map(|header| header.bytes.clone())
                .collect();
            std::fs::write(file, bytes).unwrap();
        }
        count => {
            let count = count.map_or(1_000_000, |word| word.parse().expect("a number"));
            let w3 = generated("cic-w3", count);
            figure("w3", &w3);
            figure("w3 in trains of 3", &in_trains(&w3, 3, 8 * 32_768));
            figure("core-2015", &generated("core-2015", count));
        }
    }
}

#[inline(never)]
fn write_headers(headers: &[Kept]) -> Vec<Vec<u8>> {
    compressed(LinkType::ETHERNET, headers, ROOM)
}

#[inline(never)]
fn read_headers(datagrams: &[Vec<u8>]) -> u64 {
    let (mut reader, mut sum) = (HeaderReader::new(), 0_u64);
    for datagram in datagrams {
        let take = |_, header: &strata_exporter::Header<'_>| {
            sum ^= header.ts_ns ^ header.bytes.len() as u64;
        };
        reader.read(datagram, take).unwrap();
    }
    sum
}

fn figure(name: &str, headers: &[Kept]) {
    let datagrams = write_headers(headers);
    let (_, of_paper) = paper::compressed(headers, ROOM);
    let packets = headers.len() as f64;
    let mut best = [f64::MAX; 2];
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut writer = HeaderWriter::new(SOURCE, LinkType::ETHERNET, ROOM);
        for header in headers {
            writer
                .put(&header.header(), |bytes| {
                    black_box(bytes);
                })
                .unwrap();
        }
        best[0] = best[0].min(start.elapsed().as_nanos() as f64 / packets);
        let start = Instant::now();
        black_box(read_headers(&datagrams));
        best[1] = best[1].min(start.elapsed().as_nanos() as f64 / packets);
    }
    let bytes: usize = datagrams
        .iter()
        .map(|datagram| datagram.len() - HEADER_LEN)
        .sum();
    let raw: usize = headers.iter().map(|header| header.bytes.len()).sum();
    let bits = entropy(headers);
    let fields: Vec<String> = bits
        .iter()
        .map(|(name, bits)| format!("\"{name}\": {bits:.2}"))
        .collect();
    let limit: f64 = bits.iter().map(|field| field.1).sum();
    println!(
        "{{\"traffic\": \"{name}\", \"packets\": {packets}, \"raw_bytes\": {:.2}, \"bytes\": {:.2}, \
         \"per_datagram\": {:.2}, \"paper_per_datagram\": {:.2}, \"entropy_bytes\": {:.2}, \
         \"compress_ns\": {:.1}, \"decompress_ns\": {:.1}, \"entropy_bits\": {{{}}}}}",
        raw as f64 / packets,
        bytes as f64 / packets,
        packets / datagrams.len() as f64,
        packets / of_paper as f64,
        limit / 8.0,
        best[0],
        best[1],
        fields.join(", "),
    );
}

/// Bits per packet of each field, whose values are taken as independent of each other and of those
/// before; times as differences; numbers of TCP and identifications that cannot be predicted within a
/// datagram as the bits that they have. What is computed from others costs nothing.
fn entropy(headers: &[Kept]) -> Vec<(&'static str, f64)> {
    let mut counts: HashMap<&str, HashMap<u64, u64>> = HashMap::new();
    let (mut last_ns, mut plain) = (headers[0].ts_ns, 0.0);
    let mut fixed = [0.0; 3];
    for header in headers {
        let Some(fields) = Plain::read(&[&header.bytes[..], &[0; 60]].concat()) else {
            continue;
        };
        plain += 1.0;
        let mut count = |name, value: u64| {
            *counts.entry(name).or_default().entry(value).or_default() += 1;
        };
        count("time", header.ts_ns - last_ns);
        last_ns = header.ts_ns;
        count("frame", u64::from(header.bytes[5]));
        count(
            "transport",
            u64::from(fields.protocol) << 8 | u64::from(fields.transport_len),
        );
        count("length", u64::from(header.wire_len));
        count("ttl", u64::from(fields.ttl));
        count("source", u64::from(fields.source));
        count("destination", u64::from(fields.destination));
        let ports = [fields.source_port, fields.destination_port];
        count("service", u64::from(ports[0].min(ports[1])));
        count("port", u64::from(ports[0].max(ports[1])));
        count("flags", u64::from(fields.tcp_flags));
        count("window", u64::from(fields.tcp_window));
        fixed[0] += 16.0;
        let is_tcp = fields.protocol == 6;
        let is_empty = is_tcp && header.wire_len as usize == header.bytes.len();
        fixed[1] += if is_empty { 0.0 } else { 16.0 };
        let stamps = if fields.transport_len == 32 {
            64.0
        } else {
            0.0
        };
        fixed[2] += if is_tcp { 64.0 + stamps } else { 0.0 };
    }
    let bits = |values: &HashMap<u64, u64>| -> f64 {
        values
            .values()
            .map(|&n| -(n as f64 / plain) * (n as f64 / plain).log2())
            .sum()
    };
    let mut all: Vec<_> = counts
        .iter()
        .map(|(&name, values)| (name, bits(values)))
        .collect();
    all.sort_by_key(|field| field.0);
    let names = ["identification", "checksum", "sequence and stamps"];
    all.extend(names.into_iter().zip(fixed.map(|sum| sum / plain)));
    all
}
