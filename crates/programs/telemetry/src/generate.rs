//! `strata telemetry generate`: reports of all kinds at a stated rate, from a seed.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use strata_dta::protocol::UDP_PORT;
use strata_telemetry_generator::{
    GenerateReportsSpec, ReportProfile, ReportSender, generate_reports, tree_paths,
};
use strata_terminal::address::address;
use strata_terminal::output::{refuse, standard};
use strata_terminal::signals::stop_on_signal;
use strata_terminal::{bounded, text};
use strata_wire::{exact, grouped};

/// Port of telemetry reports of INT.
const INT_PORT: u16 = 32_766;
/// Maximum number of keys.
const KEYS_MAX: u64 = 1 << 22;
/// Arguments of `strata telemetry generate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Profiles:
  mix            key-write, key-increment, append and postcards in turn
  key-write      the value of a flow is its rank: 0 is the most frequent
  key-increment  adds 1 to the counter of a flow's source address
  append         numbers, in lists 8 to 11
  postcards      the five hops of a flow's path
  fat-tree       a simulated data center of 20 INT switches and 16 hosts: telemetry reports of INT
                 2.0, sent to UDP port 32766 (`strata telemetry run --int`). Every second, another
                 link is congested for half a second.

Examples:
  strata telemetry generate --send-to 127.0.0.1 --rate 100k --seed 7
  strata telemetry generate --send-to 127.0.0.1 --profile fat-tree --duration 10
  strata telemetry generate --profile fat-tree --list-flows")]
pub(super) struct Args {
    /// Send to this collector: UDP port 40040 (32766 with fat-tree) or the one given.
    #[arg(
        long = "send-to",
        value_name = "HOST[:PORT]",
        required_unless_present = "list_flows"
    )]
    to: Option<String>,

    /// Send reports of this profile; see below.
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Profile::Mix)]
    profile: Profile,

    /// Send this many reports per second, as in 500, 20k or 2M; 0 sends them as fast as possible.
    #[arg(long, value_name = "N", default_value = "10k", value_parser = text::number)]
    rate: u64,

    /// Seed the generator: the same seed gives the same reports.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Stop after this many reports, as in 500, 20k or 2M; with fat-tree, all reports of the last
    /// packet are still sent.
    #[arg(short = 'c', long, value_name = "N", value_parser = text::number)]
    reports: Option<u64>,

    /// Stop after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = bounded::seconds)]
    duration: Option<f64>,

    /// Use this many keys, as in 500, 20k or 2M; 100k by default, at most 4,194,304. With fat-tree,
    /// use this many flows; 200 by default.
    #[arg(long = "key-count", value_name = "N", value_parser = text::number)]
    keys: Option<u64>,

    /// Draw keys by Zipf's law with this exponent, up to 4; with 0, all keys are equally frequent.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = zipf)]
    zipf: f64,

    /// Use the first flows of this capture as keys (--key-count of them); not with fat-tree.
    #[arg(
        short = 'r',
        long = "read",
        value_name = "FILE",
        conflicts_with = "list_flows"
    )]
    read: Option<PathBuf>,

    /// Set the redundancy in the reports: the copies of a value, the counters of a key.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    redundancy: u8,

    /// Keep reports as long as the collector may request them again, and resend the requested ones.
    #[arg(long)]
    retransmit: bool,

    /// Print the flows of fat-tree with their paths, instead of sending reports.
    #[arg(long, requires = "profile")]
    list_flows: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Profile {
    Mix,
    KeyWrite,
    KeyIncrement,
    Append,
    Postcards,
    FatTree,
}

impl From<Profile> for ReportProfile {
    fn from(profile: Profile) -> Self {
        match profile {
            Profile::Mix => Self::Mix,
            Profile::KeyWrite => Self::KeyWrite,
            Profile::KeyIncrement => Self::KeyIncrement,
            Profile::Append => Self::Append,
            Profile::Postcards => Self::Postcards,
            Profile::FatTree => Self::FatTree,
        }
    }
}

fn zipf(text: &str) -> Result<f64, String> {
    bounded::within(text, 0.0..=4.0)
}

pub(super) fn run(args: &Args) -> Result<()> {
    let is_tree = args.profile == Profile::FatTree;
    let keys = args.keys.unwrap_or(if is_tree { 200 } else { 100_000 });
    if !(1..=KEYS_MAX).contains(&keys) {
        return Err(refuse(format!("--key-count must be from 1 to {KEYS_MAX}")));
    }
    let keys = exact::<usize>(keys);
    if args.list_flows {
        if !is_tree {
            return Err(refuse("--list-flows applies only to --profile fat-tree"));
        }
        return list_flows(args.seed, keys);
    }
    let port = if is_tree { INT_PORT } else { UDP_PORT };
    let to = args.to.as_deref().context("--send-to is required")?;
    let sender = ReportSender::connect(address("--send-to", to, port)?)?;
    strata_terminal::confined::SandboxArgs::default().confine(&strata_role::sandbox::Reach {
        read: args.read.iter().cloned().collect(),
        keep: Some(strata_terminal::confined::to_read(args.read.as_slice())),
        ..Default::default()
    })?;
    if is_tree && args.read.is_some() {
        return Err(refuse(
            "-r cannot be combined with --profile fat-tree, which has its own hosts",
        ));
    }
    let spec = GenerateReportsSpec {
        profile: args.profile.into(),
        rate: args.rate,
        seed: args.seed,
        reports: args.reports,
        duration: args.duration.map(Duration::from_secs_f64),
        keys,
        zipf: args.zipf,
        read: args.read.clone(),
        redundancy: args.redundancy,
        retransmit: args.retransmit,
    };
    let sent = generate_reports(&spec, sender, stop_on_signal()?.as_ref())?;
    writeln!(
        standard(),
        "{} in {}, {:.2} s{}",
        text::count_of(sent.reports, "report"),
        text::count_of(sent.datagrams, "datagram"),
        sent.took.as_secs_f64(),
        match sent.refused {
            0 => String::new(),
            refused => format!("; {} times, no collector was listening", grouped(refused)),
        }
    )?;
    Ok(())
}

fn list_flows(seed: u64, keys: usize) -> Result<()> {
    let mut out = standard();
    for (flow, path) in tree_paths(seed, keys) {
        let path: Vec<String> = path.iter().map(ToString::to_string).collect();
        writeln!(out, "{flow}\t{}", path.join(" "))?;
    }
    Ok(())
}
