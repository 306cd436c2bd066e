//! `strata generate`: synthetic traffic from a seed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::ValueEnum;
use strata_capture::{CaptureWriter, PacketRef, WriteError};
use strata_record::GenerateSpec;
use strata_role::sandbox::Reach;
use strata_store::Sources;
use strata_terminal::confined::{SandboxArgs, TO_SEND};
use strata_terminal::output::{Content, Output, refuse, suffix};
use strata_terminal::progress::Progress;
use strata_terminal::signals::stop_on_signal;
use strata_terminal::{bounded, text};
use strata_traffic::{Generator, GeneratorOptions, Packet, Profile, Rate, SPACE};
use strata_wire::{Interface, LinkType, exact, grouped, human_bytes};
use tracing::info;

use super::sending::{self, Method};

/// Arguments of `strata generate`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("to").required(true).args(["output", "interface"]))]
#[command(after_help = "\
Profiles:
  cic-w1 … cic-w5   the five days of CIC-IDS2017, with the active flows, packet rate, mean size
                    and share of attacks in Table IV of the TitanLog paper, at 100 Gb/s
  core-2015         one direction of a 10 Gb/s core link, like CAIDA's traces of 2015: 417,000
                    packets and fewer than 20,000 new flows per second, a heavy tail
  imix              UDP frames of 64, 594 and 1518 bytes, 7 : 4 : 1
  flood64           UDP flood of 64-byte frames in 300,000 flows; other sizes up to flood1518
  syn-flood         TCP SYNs from forged addresses

Addresses are private (10/8, 172.16/12), or reserved for benchmarks (198.18/15) or documentation
(2001:db8::/32).

Examples:
  strata generate -o w3.pcap --profile cic-w3 -c 4M --labels labels.csv
  strata generate -o many.pcap --profile cic-w1 -c 10M --flows 300k --seed 7
  strata generate -i veth0 --profile cic-w3 --mbps 9000 --duration 20
  strata generate -o - --profile imix --mbps 1000 -c 1M | tcpdump -n -r -")]
pub(crate) struct Args {
    /// Write to this file, replacing it; - is standard output. A file whose name ends in .gz or
    /// .zst is compressed.
    #[arg(short = 'o', short_alias = 'w', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,

    /// Send from this interface instead, until Ctrl-C or for -c packets.
    #[arg(short = 'i', long, value_name = "NAME", conflicts_with_all = ["labels", "snaplen", "format"])]
    interface: Option<String>,

    /// Choose how to send; sendmmsg by default. live-frames generates up to 1M packets first, then
    /// sends them in a loop.
    #[arg(long, value_enum, value_name = "METHOD", requires = "interface")]
    method: Option<Method>,

    #[command(flatten)]
    sandbox: SandboxArgs,

    /// Send packets as fast as they can be generated, ignoring their timestamps.
    #[arg(short = 't', long, requires = "interface", group = "rate")]
    topspeed: bool,

    /// Stop sending after this many seconds.
    #[arg(long, value_name = "SECONDS", requires = "interface", value_parser = bounded::seconds)]
    duration: Option<f64>,

    /// Choose the traffic profile; see below.
    #[arg(long, value_name = "NAME", default_value = "cic-w1")]
    profile: Profile,

    /// Generate this many packets, as in 500, 20k or 4M; by default 1M into a file, and without
    /// limit on an interface.
    #[arg(short = 'c', long = "packets", value_name = "N", value_parser = text::number)]
    packets: Option<u64>,

    /// Seed the generator: the same seed gives the same packets.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Write a CSV file with the frame number of each packet, its label (1 is an attack) and its
    /// kind of traffic.
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,

    /// Keep this many flows active at a time, as in 500 or 20k, instead of the number in the
    /// profile.
    #[arg(long, value_name = "N", value_parser = text::number)]
    flows: Option<u64>,

    /// Set the rate in packets per second, as in 500, 20k or 2M, instead of the rate in the
    /// profile.
    #[arg(short = 'p', long, value_name = "N", value_parser = text::number, group = "rate")]
    pps: Option<u64>,

    /// Set the rate in megabits of frames per second, instead of the rate in the profile.
    #[arg(short = 'M', long, value_name = "N", group = "rate", value_parser = bounded::factor)]
    mbps: Option<f64>,

    /// Multiply the rate in the profile by this factor.
    #[arg(
        short = 'x',
        long,
        visible_alias = "multiplier",
        value_name = "FACTOR",
        group = "rate",
        value_parser = bounded::factor
    )]
    time_compression: Option<f64>,

    /// Fill payloads, after any application header, with these bytes.
    #[arg(long, value_enum, default_value_t = Payload::Random)]
    payload: Payload,

    /// Make this percentage of the flows IPv6, instead of the share in the profile.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(..=100))]
    ipv6: Option<u32>,

    /// Write at most this many bytes of each packet; 0 means all.
    #[arg(
        short = 's',
        long = "snaplen",
        value_name = "BYTES",
        default_value_t = 0
    )]
    snaplen: u32,

    /// Set the file format. By default, the file's name decides: pcapng for .pcapng, pcap for all
    /// others.
    #[arg(short = 'F', long, value_enum)]
    format: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Payload {
    /// Incompressible bytes.
    Random,
    /// Zeros.
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// pcap with nanosecond timestamps.
    Pcap,
    /// pcapng.
    Pcapng,
}

impl Format {
    /// The format for a file of this name.
    fn of(path: &Path) -> Self {
        match suffix(path).as_str() {
            "pcapng" => Self::Pcapng,
            _ => Self::Pcap,
        }
    }
}

impl Args {
    fn options(&self) -> Result<GeneratorOptions> {
        let rate = match (self.pps, self.mbps, self.time_compression) {
            (Some(rate), _, _) => Rate::PacketsPerSecond(positive(rate, "--pps")?),
            (_, Some(rate), _) => Rate::BitsPerSecond(scaled(rate, 1e6, "--mbps")?),
            (_, _, Some(factor)) => Rate::Profile {
                permille: scaled(factor, 1e3, "--time-compression")?,
            },
            _ => GeneratorOptions::default().rate,
        };
        let flows = self.flows.map(|flows| {
            let fits = u32::try_from(flows)
                .ok()
                .filter(|flows| (1..=1 << 26).contains(flows));
            fits.context("--flows must be from 1 to 67108864")
        });
        Ok(GeneratorOptions {
            seed: self.seed,
            flows: flows.transpose()?,
            rate,
            random_payload: self.payload == Payload::Random,
            ipv6_percent: self.ipv6,
            ..GeneratorOptions::default()
        })
    }
}

fn positive(number: u64, option: &str) -> Result<u64> {
    match number {
        0 => Err(refuse(format!("{option} must be above 0"))),
        number => Ok(number),
    }
}

/// A number given by the user, in units of 1 / `scale`.
fn scaled(number: f64, scale: f64, option: &str) -> Result<u64> {
    let scaled = (number * scale).round();
    anyhow::ensure!(
        (1.0..1e15).contains(&scaled),
        "{option} must be above 0 and below 1e9"
    );
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Ok(scaled as u64)
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match (&args.interface, &args.output) {
        (Some(interface), _) => send(args, interface),
        (None, Some(output)) => write(args, output),
        // The command line requires one of them.
        (None, None) => Ok(()),
    }
}

fn send(args: &Args, interface: &str) -> Result<()> {
    let spec = GenerateSpec {
        profile: args.profile.clone(),
        options: args.options()?,
        interface: interface.to_owned(),
        method: args.method.map(Into::into),
        packets: args.packets,
        top_speed: args.topspeed,
        duration: sending::duration(args.duration)?,
        sandboxed: args.sandbox.is_on(),
    };
    args.sandbox.confine(&Reach {
        interfaces: vec![interface.to_owned()],
        keep: Some(TO_SEND),
        ..Reach::default()
    })?;
    let outcome = strata_record::generate(&spec, stop_on_signal()?)?;
    sending::print(&outcome, interface);
    Ok(())
}

/// Packets between two updates of the progress.
const PROGRESS_EVERY: u64 = 1 << 14;

fn write(args: &Args, path: &Path) -> Result<()> {
    let mut generator = Generator::new(&args.profile, &args.options()?);
    let packets = args.packets.unwrap_or(1_000_000);
    let format = args.format.unwrap_or_else(|| Format::of(path));
    let mut output = CaptureFile::create(path, format, args.snaplen)?;
    let labels = args.labels.as_deref();
    let labels = labels.map(|labels| Labels::create(labels, path));
    let mut labels = labels.transpose()?;
    let started = Instant::now();
    let progress = Progress::up_to_packets(packets);
    let mut frame = [0; SPACE];
    let (mut bytes, mut anomalous) = (0, 0);
    for number in 1..=packets {
        let packet = generator.packet_into(&mut frame);
        let data = &frame[..usize::from(packet.len)];
        output.packet(packet.ts_ns, data)?;
        if let Some(labels) = &mut labels {
            labels.write(number, &packet, generator.source(&packet))?;
        }
        bytes += u64::from(packet.len);
        anomalous += u64::from(packet.anomalous);
        if number.is_multiple_of(PROGRESS_EVERY) {
            progress.set(number);
        }
    }
    drop(progress);
    output.finish()?;
    if let Some(labels) = labels {
        labels.finish()?;
    }
    info!(
        "{} packets ({}), {} of them attacks, of profile {} in {:.2} s -> {}",
        grouped(packets),
        human_bytes(bytes),
        text::percent(anomalous, packets),
        args.profile.name(),
        started.elapsed().as_secs_f64(),
        path.display(),
    );
    Ok(())
}

/// A capture file with one Ethernet interface.
struct CaptureFile {
    writer: CaptureWriter<Output>,
    snaplen: usize,
}

impl CaptureFile {
    fn create(path: &Path, format: Format, snaplen: u32) -> Result<Self> {
        let output = Output::create(path, Content::Binary, &Sources::default())?;
        let interface = Interface::new(LinkType::ETHERNET, snaplen);
        let mut writer = match format {
            Format::Pcap => CaptureWriter::pcap(output),
            Format::Pcapng => CaptureWriter::pcapng(output)?,
        };
        writer.interface(0, &interface)?;
        let snaplen = if snaplen == 0 {
            usize::MAX
        } else {
            snaplen as usize
        };
        Ok(Self { writer, snaplen })
    }

    #[inline]
    fn packet(&mut self, ts_ns: u64, data: &[u8]) -> Result<(), WriteError> {
        let packet = PacketRef {
            ts_ns,
            interface: 0,
            wire_len: exact::<u32>(data.len()),
            data: &data[..data.len().min(self.snaplen)],
            options: &[],
            has_timestamp: true,
        };
        self.writer.packet(&packet)
    }

    fn finish(self) -> Result<()> {
        self.writer.finish()?.finish()
    }
}

/// The labels, in the format that `strata train` reads.
struct Labels {
    writer: csv::Writer<Output>,
}

impl Labels {
    fn create(path: &Path, capture: &Path) -> Result<Self> {
        // The capture file exists by now.
        let file = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
        if path == capture || file(path).is_ok_and(|path| file(capture).is_ok_and(|it| it == path))
        {
            let (name, capture) = (path.display(), capture.display());
            return Err(refuse(format!(
                "--labels {name}: the packets (-o {capture}) go to the same file: name another one"
            )));
        }
        let output = Output::create(path, Content::Text, &Sources::default())?;
        let writer = csv::Writer::from_writer(output);
        let mut labels = Self { writer };
        labels.row(["frame", "label", "source"])?;
        Ok(labels)
    }

    fn write(&mut self, frame: u64, packet: &Packet, source: &str) -> Result<()> {
        let label = if packet.anomalous { "1" } else { "0" };
        self.row([&frame.to_string(), label, source])
    }

    fn row(&mut self, cells: [&str; 3]) -> Result<()> {
        Ok(self.writer.write_record(cells)?)
    }

    fn finish(self) -> Result<()> {
        let output = self.writer.into_inner();
        output.map_err(csv::IntoInnerError::into_error)?.finish()
    }
}
