//! How fast capture files are read: nanoseconds per packet, next to those for reading the same
//! bytes and doing nothing.
//!
//! ```text
//! cargo run --release -p strata-capture --example read_speed [PACKETS]
//! ```
//!
//! Writes files of about 770 bytes per packet to the temporary folder and removes them. They are in
//! the page cache when they are read.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use strata_capture::{Input, InputOptions, Next, PacketRef, PcapNgWriter, PcapWriter};
use strata_wire::pcapng::options;
use strata_wire::{Interface, LinkType};

const RUNS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let packets = match std::env::args().nth(1) {
        Some(count) => count.parse()?,
        None => 1_000_000,
    };
    let folder = std::env::temp_dir().join(format!("strata-read-speed-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let result = measure(&folder, packets);
    std::fs::remove_dir_all(&folder)?;
    result
}

fn measure(folder: &Path, packets: u64) -> Result<(), Box<dyn Error>> {
    let names = ["pcap", "pcapng", "pcapng with comments"];
    let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    write(&paths, packets)?;
    for (name, path) in names.iter().zip(&paths) {
        let bytes = std::fs::metadata(path)?.len();
        let copied = best(|| copy(path))?;
        let read = best(|| read(std::slice::from_ref(path), packets))?;
        report(name, bytes, packets, copied, read);
    }
    let merged = best(|| read(&paths[..2], 2 * packets))?;
    let copied = best(|| Ok(copy(&paths[0])? + copy(&paths[1])?))?;
    let bytes = std::fs::metadata(&paths[0])?.len() + std::fs::metadata(&paths[1])?.len();
    report("pcap and pcapng merged", bytes, 2 * packets, copied, merged);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn report(name: &str, bytes: u64, packets: u64, copied: u64, read: u64) {
    let each = |ns: u64| ns as f64 / packets as f64;
    println!(
        "{name}: {packets} packets, {bytes} bytes: {:.1} ns per packet, of which read() {:.1}, ours {:.1}",
        each(read),
        each(copied),
        each(read) - each(copied)
    );
}

/// The shortest of several runs, in ns.
fn best(mut run: impl FnMut() -> Result<u64, Box<dyn Error>>) -> Result<u64, Box<dyn Error>> {
    let mut shortest = u64::MAX;
    for _ in 0..RUNS {
        shortest = shortest.min(run()?);
    }
    Ok(shortest)
}

/// Reads a file in pieces the size of the window.
fn copy(path: &Path) -> Result<u64, Box<dyn Error>> {
    let mut buffer = vec![0; InputOptions::default().window_bytes];
    let start = Instant::now();
    let mut file = File::open(path)?;
    while file.read(&mut buffer)? > 0 {
        black_box(&buffer);
    }
    Ok(u64::try_from(start.elapsed().as_nanos())?)
}

/// Reads as a consumer that looks at every descriptor does.
fn read(paths: &[PathBuf], expected: u64) -> Result<u64, Box<dyn Error>> {
    let start = Instant::now();
    let mut input = Input::open(paths, &InputOptions::default())?;
    let (mut count, mut sum) = (0u64, 0u64);
    loop {
        match input.advance()? {
            Next::Packets => {
                for packet in input.batch() {
                    count += 1;
                    sum = sum.wrapping_add(packet.ts_ns ^ packet.data.len() as u64);
                }
            }
            Next::Meta(_) => {}
            Next::End => break,
        }
    }
    black_box(sum);
    assert_eq!(count, expected);
    Ok(u64::try_from(start.elapsed().as_nanos())?)
}

fn write(paths: &[PathBuf], packets: u64) -> Result<(), Box<dyn Error>> {
    let create =
        |path: &PathBuf| File::create(path).map(|file| BufWriter::with_capacity(1 << 20, file));
    let interface = Interface::new(LinkType::ETHERNET, 262_144);
    let mut pcap = PcapWriter::new(create(&paths[0])?);
    let mut plain = PcapNgWriter::new(create(&paths[1])?, &[])?;
    let mut noted = PcapNgWriter::new(create(&paths[2])?, &[])?;
    pcap.interface(0, &interface)?;
    plain.interface(0, &interface)?;
    noted.interface(0, &interface)?;
    let bytes = [0x55; 1514];
    let mut comment = Vec::new();
    options::push_comment(&mut comment, "seen twice")?;
    let mut state = 1u64;
    for index in 0..packets {
        // Lengths from 60 to 1480, evenly: 770 in the middle.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let len = 60 + usize::try_from((state >> 33) % 1421)?;
        let packet = PacketRef {
            ts_ns: 1_700_000_000_000_000_000 + index * 1000,
            interface: 0,
            wire_len: u32::try_from(len)?,
            data: &bytes[..len],
            options: &[],
            has_timestamp: true,
        };
        pcap.packet(&packet)?;
        plain.packet(&packet)?;
        noted.packet(&PacketRef {
            options: &comment,
            ..packet
        })?;
    }
    pcap.finish()?.flush()?;
    plain.finish()?.flush()?;
    noted.finish()?.flush()?;
    Ok(())
}
