//! `strata gpv tune`: parameters of the cache for a limit of memory. The search is the Python
//! package's; the software model of the cache that it tries them on is `strata gpv model`.

use std::ffi::OsString;
use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use strata_capture::PacketRef;
use strata_filter::Filter;
use strata_gpv::{Basic, Cache, Full, Packet, Parameters, Sequenced, Tuple, Vector};
use strata_gpv_run::{CAPTURED_COLUMNS, Features, Form, with_time};
use strata_terminal::output::{refuse, standard};
use strata_terminal::packets::{Take, captured};
use strata_terminal::text;
use strata_training::python;
use strata_wire::{LinkType, clamped};

use super::{CACHE_BYTES_MAX, FormName, failed, matches, usual_datagram};

/// Maximum number of packets that a model of the cache is tried on: 88 bytes each.
const PACKETS_MAX: usize = 8_000_000;

/// Memory of a switch that is tuned for, by default.
const SWITCH_BYTES: u64 = 1 << 20;

/// Arguments of `strata gpv tune`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata gpv tune -r core.pcap
  strata gpv tune -r core.pcap --cache-memory 2MiB --length 16
  strata gpv tune -r core.pcap --hardware --ways 8
  strata gpv tune -r core.pcap --figures curves/

Tries each set of parameters on all packets of the capture, in the cache that `strata gpv run` has,
with its vectors and its memory: 64 bytes for each slot, 4 for each wide buffer, and 28 for each
packet of a buffer (4 with -F paper, 8 with -F paper-seq). Prints the options of the best one, and
the difference to the default options on the same packets. `strata gpv run -i` also flushes each
slot every --flush-after, which is not tried.

--hardware tunes a switch instead, in the form paper: a slot takes 24 bytes, a packet 4, and each
slot and each wide buffer a pointer of 2 bytes (4 with more than 65,534 wide buffers).

--figures draws Figures 6 to 8 of the *Flow paper, for a switch: vectors per packet by memory (to 32
MiB), by length of vectors (to 32 packets) and over time, for static and dynamic buffers, evicting
on collision and by 8-way LRU. It writes curves.csv, curves.svg, rates.csv and rates.svg.

Needs the Python package, which `make python` installs.")]
pub(super) struct Args {
    /// Try parameters on the packets of these capture files, at most the first 8 million.
    #[arg(short = 'r', long = "read", value_name = "FILE", required = true)]
    read: Vec<PathBuf>,

    /// Tune for vectors of this form.
    #[arg(short = 'F', long, value_enum, default_value_t = FormName::Strata)]
    format: FormName,

    /// Tune for a switch instead of `strata gpv run`.
    #[arg(long, conflicts_with = "format")]
    hardware: bool,

    /// Use at most this much memory, such as 1MiB or 512KiB. The default is that of the default cache
    /// of `strata gpv run` (5.4 MiB with -F strata), or 1 MiB with --hardware and --figures.
    #[arg(long = "cache-memory", value_name = "BYTES", value_parser = text::bytes)]
    memory: Option<u64>,

    /// Limit vectors to this many packets.
    #[arg(long, value_name = "N", default_value_t = 28, value_parser = clap::value_parser!(u32).range(2..=1024))]
    length: u32,

    /// Look for a flow in this many slots, 1 or 8, and evict the least recently used flow.
    /// Only for --hardware.
    #[arg(long, value_name = "N", default_value = "1", requires = "hardware", value_parser = ["1", "8"])]
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
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["format", "hardware", "ways", "is_static", "json"])]
    figures: Option<PathBuf>,

    /// Print the best parameters and every trial as JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `strata gpv model`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line: SLOTS NARROW WIDE BLOCKS WAYS SEED [MILLISECONDS]
  SLOTS         Number of slots, each for one flow
  NARROW        Packets that the narrow buffer of each slot holds
  WIDE          Packets that a wide buffer adds; 0 for no wide buffers
  BLOCKS        Number of wide buffers that the slots share
  WAYS          Number of slots in which a flow may be: 1, or with --hardware also 8
  SEED          Seed of the hash that assigns flows to slots
  MILLISECONDS  Also count each whole interval of this length

Prints for each line PACKETS VECTORS BYTES (packets read, vectors made, memory of the cache), or
refused and the reason. With MILLISECONDS, a line `part PACKETS VECTORS` for each interval comes
before.")]
pub(super) struct ModelArgs {
    /// Try the parameters on the packets of these capture files.
    #[arg(short = 'r', long = "read", value_name = "FILE", required = true)]
    read: Vec<PathBuf>,

    /// Group the packets into vectors of this form.
    #[arg(short = 'F', long, value_enum, default_value_t = FormName::Strata)]
    format: FormName,

    /// Model a switch instead of `strata gpv run`.
    #[arg(long, conflicts_with = "format")]
    hardware: bool,
}

impl Args {
    /// Bytes that the cache may have.
    fn bytes(&self, is_hardware: bool) -> Result<u64> {
        if is_hardware {
            return Ok(self.memory.unwrap_or(SWITCH_BYTES));
        }
        let tuple_len = tuple_len(self.format);
        let bytes = self.memory;
        let bytes = bytes.unwrap_or_else(|| Parameters::PAPER.cache_bytes(tuple_len));
        if bytes > CACHE_BYTES_MAX {
            return Err(refuse(format!(
                "--cache-memory: {} MiB; at most {} are allowed for `strata gpv run`",
                bytes >> 20,
                CACHE_BYTES_MAX >> 20
            )));
        }
        // A command that `run` refuses is not worth a search.
        let columns = with_time(CAPTURED_COLUMNS);
        let room = usual_datagram();
        let datagram = |packets: u32| {
            Form::from(self.format).longest(strata_wire::exact(packets), columns) <= room
        };
        if !datagram(self.length) {
            let most = (2..self.length).rev().find(|packets| datagram(*packets));
            return Err(refuse(format!(
                "--length {}: such vectors do not fit into the datagrams of `strata gpv run`; at most {} packets are \
                 allowed, or tune for a switch with --hardware",
                self.length,
                most.expect("a datagram holds two packets")
            )));
        }
        Ok(bytes)
    }
}

/// Bytes of a packet in the cache of `strata gpv run`.
fn tuple_len(form: FormName) -> usize {
    match form {
        FormName::Strata => size_of::<Full>(),
        FormName::Paper => size_of::<Basic>(),
        FormName::PaperSeq => size_of::<Sequenced>(),
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let is_hardware = args.hardware || args.figures.is_some();
    let bytes = args.bytes(is_hardware)?;
    let mut line: Vec<OsString> = vec!["tune".into()];
    let mut option = |name: &str, value: &str| line.push(format!("--{name}={value}").into());
    option("memory", &bytes.to_string());
    option("length", &args.length.to_string());
    option("ways", &args.ways);
    option("trials", &args.trials.to_string());
    option("seed", &args.seed.to_string());
    if !is_hardware {
        option("form", &Form::from(args.format).to_string());
    }
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

/// A line of `strata gpv model`.
struct Asked {
    parameters: Parameters,
    ways: u32,
    seed: u32,
    /// The length of a part; 0 for no parts.
    every_ns: u64,
}

impl Asked {
    fn of(line: &str) -> Result<Self> {
        let numbers: Option<Vec<u32>> = line.split(' ').map(|word| word.parse().ok()).collect();
        let ([slots, narrow, wide, blocks, ways, seed], every_ms) = match numbers.as_deref() {
            Some(&[slots, narrow, wide, blocks, ways, seed]) => {
                ([slots, narrow, wide, blocks, ways, seed], 0)
            }
            Some(&[slots, narrow, wide, blocks, ways, seed, every_ms]) => {
                ([slots, narrow, wide, blocks, ways, seed], every_ms)
            }
            _ => bail!(
                "standard input: '{line}' is not SLOTS NARROW WIDE BLOCKS WAYS SEED [MILLISECONDS]"
            ),
        };
        Ok(Self {
            parameters: Parameters {
                slots,
                narrow: clamped(narrow),
                wide: clamped(wide),
                blocks,
            },
            ways,
            seed,
            every_ns: u64::from(every_ms) * 1_000_000,
        })
    }
}

/// Reads `SLOTS NARROW WIDE BLOCKS WAYS SEED` from each line, and answers with packets, vectors and bytes of memory, or
/// with `refused` and why. With `MILLISECONDS` as a seventh word, lines of packets and vectors of each such time go
/// before. Vectors of `strata gpv run` include those that its end flushes, as its output does.
pub(super) fn model(args: &ModelArgs) -> Result<()> {
    let packets = packets(&args.read)?;
    let mut out = standard();
    for line in std::io::stdin().lock().lines() {
        let asked = Asked::of(&line.context("cannot read standard input")?)?;
        let at_end = match args.hardware {
            true => AtEnd::Keep,
            false => AtEnd::Flush,
        };
        let modelled = match (args.hardware, args.format, asked.ways) {
            (true, _, 1) | (false, FormName::Paper, 1) => {
                modelled::<Basic, 1>(&packets, &asked, at_end)
            }
            (false, FormName::Strata, 1) => modelled::<Full, 1>(&packets, &asked, at_end),
            (false, FormName::PaperSeq, 1) => modelled::<Sequenced, 1>(&packets, &asked, at_end),
            (true, _, 8) => modelled::<Basic, 8>(&packets, &asked, at_end),
            (_, _, ways) => bail!(
                "standard input: {ways} ways; a switch (--hardware) has 1 or 8, `strata gpv run` has 1"
            ),
        };
        match modelled {
            Ok((vectors, parts)) => {
                for (packets, vectors) in parts {
                    writeln!(out, "part {packets} {vectors}")?;
                }
                let bytes = match args.hardware {
                    true => asked.parameters.switch_bytes(size_of::<Basic>()),
                    false => asked.parameters.cache_bytes(tuple_len(args.format)),
                };
                writeln!(out, "{} {vectors} {bytes}", packets.len())?;
            }
            Err(error) => writeln!(out, "refused {error}")?,
        }
        out.flush()?;
    }
    Ok(())
}

/// What becomes of packets that are in the cache after the last one came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AtEnd {
    /// They leave as vectors.
    Flush,
    /// They stay: the capture is a part of traffic that goes on.
    Keep,
}

/// Vectors of these packets; and packets and vectors of each whole part.
fn modelled<T: Tuple, const WAYS: usize>(
    packets: &[Packet],
    asked: &Asked,
    at_end: AtEnd,
) -> Result<(u64, Vec<(u64, u64)>)> {
    let mut cache = Cache::<T, WAYS>::new(asked.parameters, asked.seed.into())?;
    let mut parts = Vec::new();
    let mut rest = packets;
    let mut out = |_: &Vector<'_, T>| ();
    while asked.every_ns > 0
        && let Some(first) = rest.first()
    {
        let end_ns = first.ts_ns.saturating_add(asked.every_ns);
        let Some(len) = rest.iter().position(|packet| packet.ts_ns >= end_ns) else {
            break;
        };
        let before = cache.counters().vectors_total();
        cache.push(&rest[..len], &mut out);
        parts.push((len as u64, cache.counters().vectors_total() - before));
        rest = &rest[len..];
    }
    cache.push(rest, &mut out);
    if at_end == AtEnd::Flush {
        cache.flush(&mut out);
    }
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
