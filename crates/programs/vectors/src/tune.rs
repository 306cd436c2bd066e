//! `strata gpv tune`: parameters of the cache for a limit of memory. The search is the Python
//! package's; the software model of the cache that it tries them on is `strata gpv model`.

use std::ffi::OsString;
use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use strata_capture::PacketRef;
use strata_filter::Filter;
use strata_gpv::{Basic, Cache, Packet, Parameters, Vector};
use strata_gpv_run::Features;
use strata_terminal::output::standard;
use strata_terminal::packets::{Take, captured};
use strata_terminal::text;
use strata_training::python;
use strata_wire::{LinkType, clamped};

use super::{failed, matches};

/// Maximum number of packets that a model of the cache is tried on: 88 bytes each.
const PACKETS_MAX: usize = 8_000_000;

/// Arguments of `strata gpv tune`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata gpv tune -r core.pcap --cache-memory 1MiB --length 28
  strata gpv tune -r core.pcap --figures curves/

Tries each set of parameters on all packets of the capture, in a software model of the cache. Memory
is counted as in a switch: 24 bytes for each slot, 4 bytes for each packet in a narrow or wide
buffer, and a pointer of 2 bytes (4 bytes with more than 65,534 wide buffers) for each slot and each
wide buffer.

--figures draws Figures 6 to 8 of the *Flow paper: vectors per packet by memory (to 32 MiB), by
length of vectors (to 32 packets) and over time, for static and dynamic buffers, evicting on
collision and by 8-way LRU. It writes curves.csv, curves.svg, rates.csv and rates.svg.

Needs the Python package, which `make python` installs.")]
pub(super) struct Args {
    /// Try parameters on the packets of these capture files, at most the first 8 million.
    #[arg(short = 'r', long = "read", value_name = "FILE", required = true)]
    read: Vec<PathBuf>,

    /// Use at most this much memory, such as 1MiB or 512KiB.
    #[arg(long = "cache-memory", value_name = "BYTES", default_value = "1MiB", value_parser = text::bytes)]
    memory: u64,

    /// Limit vectors to this many packets.
    #[arg(long, value_name = "N", default_value_t = 28, value_parser = clap::value_parser!(u32).range(2..=1024))]
    length: u32,

    /// Look for a flow in this many slots (1 or 8), and evict the least recently used flow.
    #[arg(long, value_name = "N", default_value = "1", value_parser = ["1", "8"])]
    ways: String,

    /// Give every slot one buffer, instead of a narrow buffer and wide buffers from a pool.
    #[arg(long = "static")]
    is_static: bool,

    /// Try this many sets of parameters; with --figures, this many for each point of a figure.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    trials: u32,

    /// Seed the search, to repeat it exactly.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u32,

    /// Draw the figures into this directory, created if missing.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["ways", "is_static", "json"])]
    figures: Option<PathBuf>,

    /// Print the best parameters and every trial as JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `strata gpv model`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line: SLOTS NARROW WIDE BLOCKS WAYS [MILLISECONDS]; WAYS is 1 or 8.")]
pub(super) struct ModelArgs {
    /// Try the parameters on the packets of these capture files.
    #[arg(short = 'r', long = "read", value_name = "FILE", required = true)]
    read: Vec<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut line: Vec<OsString> = vec!["tune".into()];
    let mut option = |name: &str, value: &str| line.push(format!("--{name}={value}").into());
    option("memory", &args.memory.to_string());
    option("length", &args.length.to_string());
    option("ways", &args.ways);
    option("trials", &args.trials.to_string());
    option("seed", &args.seed.to_string());
    if let Some(folder) = &args.figures {
        let mut word = OsString::from("--figures=");
        word.push(folder);
        line.push(word);
    }
    line.extend(args.is_static.then(|| "--static".into()));
    line.extend(args.json.then(|| "--json".into()));
    line.push("--".into());
    line.extend(args.read.iter().map(OsString::from));
    python::run(line)
}

/// Reads `SLOTS NARROW WIDE BLOCKS WAYS` from each line, and answers with packets, vectors and
/// bytes of a switch's memory, or with `refused` and why. With `MILLISECONDS` as a sixth word, lines
/// of packets and vectors of each such time go before.
pub(super) fn model(args: &ModelArgs) -> Result<()> {
    let packets = packets(&args.read)?;
    let mut out = standard();
    for line in std::io::stdin().lock().lines() {
        let line = line.context("standard input")?;
        let numbers: Option<Vec<u32>> = line.split(' ').map(|word| word.parse().ok()).collect();
        let (slots, narrow, wide, blocks, ways, every_ms) = match numbers.as_deref() {
            Some(&[slots, narrow, wide, blocks, ways]) => (slots, narrow, wide, blocks, ways, 0),
            Some(&[slots, narrow, wide, blocks, ways, every_ms]) => {
                (slots, narrow, wide, blocks, ways, every_ms)
            }
            _ => bail!(
                "standard input: '{line}' is not SLOTS NARROW WIDE BLOCKS WAYS [MILLISECONDS]"
            ),
        };
        let parameters = Parameters {
            slots,
            narrow: clamped(narrow),
            wide: clamped(wide),
            blocks,
        };
        let every_ns = u64::from(every_ms) * 1_000_000;
        let modelled = match ways {
            1 => modelled::<1>(&packets, parameters, every_ns),
            8 => modelled::<8>(&packets, parameters, every_ns),
            _ => bail!("standard input: {ways} ways; 1 or 8 are allowed"),
        };
        match modelled {
            Ok((vectors, parts)) => {
                for (packets, vectors) in parts {
                    writeln!(out, "part {packets} {vectors}")?;
                }
                let bytes = parameters.switch_bytes(size_of::<Basic>());
                writeln!(out, "{} {vectors} {bytes}", packets.len())?;
            }
            Err(error) => writeln!(out, "refused {error}")?,
        }
        out.flush()?;
    }
    Ok(())
}

/// Vectors of these packets; and packets and vectors of each whole part of `every_ns` ns.
fn modelled<const WAYS: usize>(
    packets: &[Packet],
    parameters: Parameters,
    every_ns: u64,
) -> Result<(u64, Vec<(u64, u64)>)> {
    let mut cache = Cache::<Basic, WAYS>::new(parameters, 1)?;
    let mut parts = Vec::new();
    let mut rest = packets;
    let mut out = |_: &Vector<'_, Basic>| ();
    while every_ns > 0
        && let Some(first) = rest.first()
    {
        let end_ns = first.ts_ns.saturating_add(every_ns);
        let Some(len) = rest.iter().position(|packet| packet.ts_ns >= end_ns) else {
            break;
        };
        let before = cache.counters().vectors_total();
        cache.push(&rest[..len], &mut out);
        parts.push((len as u64, cache.counters().vectors_total() - before));
        rest = &rest[len..];
    }
    cache.push(rest, &mut out);
    Ok((cache.counters().vectors_total(), parts))
}

struct Arrivals {
    features: Features,
    packets: Vec<Packet>,
}

impl Take for Arrivals {
    fn begin(&mut self, filter: Option<Filter>) -> Result<()> {
        self.features.filter(filter.map(matches));
        Ok(())
    }

    fn packet(&mut self, link: LinkType, packet: &PacketRef<'_>) -> Result<()> {
        if !self.is_done() {
            self.packets.extend(self.features.of(link, packet));
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.packets.len() >= PACKETS_MAX
    }
}

fn packets(paths: &[PathBuf]) -> Result<Vec<Packet>> {
    let mut arrivals = Arrivals {
        features: Features::new().map_err(failed)?,
        packets: Vec::new(),
    };
    captured(paths, None, &std::sync::Arc::default(), &mut arrivals)?;
    if arrivals.packets.is_empty() {
        bail!("the captures have no IP packets");
    }
    Ok(arrivals.packets)
}
