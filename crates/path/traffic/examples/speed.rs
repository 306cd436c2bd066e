//! How fast packets are generated, into a buffer that stays in the cache:
//!
//!     cargo run --release -p strata-traffic --example speed -- [PROFILE [PACKETS]]
#![allow(clippy::print_stdout, reason = "a program")]

use std::hint::black_box;
use std::time::Instant;

use strata_traffic::{Generator, GeneratorOptions, Profile, SPACE, UnknownProfile};

fn main() -> Result<(), UnknownProfile> {
    let mut arguments = std::env::args().skip(1);
    let profile: Profile = arguments.next().as_deref().unwrap_or("cic-w3").parse()?;
    let packets: u64 = arguments
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(10_000_000);
    let mut generator = Generator::new(&profile, &GeneratorOptions::default());
    let mut frame = [0; SPACE];
    let mut bytes = 0;
    let started = Instant::now();
    for _ in 0..packets {
        bytes += u64::from(generator.packet_into(black_box(&mut frame)).len);
    }
    let seconds = started.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss)]
    let (packets, bytes) = (packets as f64, bytes as f64);
    println!(
        "{}: {:.1} Mpps, {:.1} ns a packet, {:.1} Gb/s, {:.0} B on average",
        profile.name(),
        packets / seconds / 1e6,
        seconds * 1e9 / packets,
        bytes * 8.0 / seconds / 1e9,
        bytes / packets,
    );
    Ok(())
}
