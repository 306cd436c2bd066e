//! `strata record`: from arguments to a recording, and what it prints.

mod dedup;
mod interfaces;
mod log;
mod page;
pub(crate) mod shortage;
mod show;
mod steering;
mod triggers;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use clap::builder::Resettable;
use strata_dta::protocol::UDP_PORT;
use strata_filter::Filter;
use strata_policy::DetailBudget;
use strata_record::{
    DestinationSpec, DetailSpec, InputSpec, LogSpec, ModelSpec, RecordSpec, ShadowSpec,
    SteeringSpec, StreamSpec, TriggerSpec,
};
use strata_role::{Handle, Tell};
use strata_terminal::address::address;
use strata_terminal::logging::{self, HAPPENED, LoggingArgs, QuietArgs};
use strata_terminal::output::{refuse, standard};
use strata_terminal::progress::Progress;
use strata_terminal::selection::named_again;
use strata_terminal::signals::{Signals, end_with_parent};
use strata_terminal::text;
use strata_wire::{Ledger, TunnelKey};
use tracing::{info, warn};

use strata_reading::flows::FlowArgs;

pub(crate) use log::LogFiles;

/// How often signals are checked and the progress is updated.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Arguments of `strata record`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "\
Examples:
  strata record -r trace.pcapng -o log/
  strata record -i eth0 -o log/ 'not port 22'",
    after_long_help = "\
Examples:
  strata record -r trace.pcapng -o log/
  strata record -r - -o log/ --mode log-all 'tcp port 443'
  zcat huge.pcap.gz | strata record -r - -o log/ -C 500
  strata record -i eth0 -o log/ 'not port 22'
  strata record -i eth0,eth1 --cores 1,2 -o log/
  strata record -i eth0 --config exports.toml
  strata record -i eth0 -o log/ --serve

While interfaces are captured, SIGINT (Ctrl-C) or SIGTERM finishes the log and prints the counts of
packets. A second signal, at least 1 s later, ends the recording at once and leaves the log
unfinished. SIGUSR1 prints counters, and SIGHUP reloads the configuration. `strata status` shows a
running recording; `mode`, `detail`, `policy`, `rotate` and `model promote` change it."
)]
pub(crate) struct Args {
    #[command(flatten)]
    road: DataPathArgs,

    #[command(flatten)]
    log: log::LogArgs,

    #[command(flatten)]
    page: page::PageArgs,
}

/// Heading of options in the help text.
const CLASSIFICATION: &str = "Classification";

/// What to record, and how to classify it.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("input"))]
pub(crate) struct DataPathArgs {
    /// Read packets from this file, pcap or pcapng, compressed or not; - is standard input.
    /// Several files are merged in time order.
    #[arg(short = 'r', long = "read", value_name = "FILE", group = "input",
        help_heading = Resettable::Reset)]
    read: Vec<PathBuf>,

    #[command(flatten)]
    live: interfaces::InterfaceArgs,

    /// Exit after this many packets have passed the filter.
    ///
    /// Duplicates (--dedup) are not counted.
    #[arg(short = 'c', long, value_name = "PACKETS", help_heading = Resettable::Reset,
        value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Use this model file; without it, the built-in model, with a budget of detail (--detail).
    #[arg(short = 'm', long = "model", value_name = "FILE", help_heading = CLASSIFICATION)]
    model: Option<PathBuf>,

    /// Also run this model, and compare it with the model in force: the summary, `strata status`
    /// and metrics count the packets that it would have kept in more or less detail. The log does
    /// not change. The trees of this model take additional CPU time. The model must have the
    /// classes, features and window of the model in force, because both models get the same
    /// features.
    #[arg(long, value_name = "FILE", help_heading = CLASSIFICATION)]
    shadow: Option<PathBuf>,

    /// Set the logging mode: default, log-all, log-partial, log-sampled, log-minimum, or a mode of
    /// the configuration file.
    ///
    /// If given more than once, the mode that keeps the most decides for
    /// each packet. By default, the mode that the configuration file sets, else `default`.
    #[arg(long, value_name = "NAME", env = "STRATA_MODE", value_delimiter = ',',
        help_heading = CLASSIFICATION)]
    mode: Vec<String>,

    /// Limit the payload that is kept: to a share of all payload, as in 10%; to a rate by packet
    /// timestamps, as in 50MB/s or 20GB/day; or none, for no limit but that of the mode. By default
    /// 10% with the built-in model, none with --model.
    ///
    /// With 0%, no payload is kept beyond headers. Short flows and the start of long flows are kept first. Payload that policies, alerts and
    /// --first-bytes keep is outside the budget. The budget applies in modes that keep some classes
    /// in more detail than others. The value in the configuration file replaces the default.
    #[arg(long, value_name = "BUDGET", env = "STRATA_DETAIL", help_heading = CLASSIFICATION)]
    detail: Option<String>,

    #[command(flatten)]
    dedup: dedup::DedupArgs,

    #[command(flatten)]
    triggers: triggers::TriggerArgs,

    /// Use at most this much memory for the flow tables of all workers together, as in 2GB. Each
    /// worker counts the packets of each flow in its table, and uses these counters to classify
    /// packets. A table starts with at most 128 MiB (about a million flows per window of the model;
    /// for files, only as much as their flows need), and doubles, up to 512 MiB, while more than
    /// 1 % of the packets get no entry. By default, a sixteenth of this machine's memory, or of the
    /// memory limit of the control group, if this limit is lower.
    #[arg(long, value_name = "SIZE", value_parser = strata_wire::parse_bytes,
        help_heading = CLASSIFICATION)]
    memory: Option<u64>,

    /// Send a copy of each packet that a policy mirrors (action mirror) from this interface: to a
    /// monitor that is attached to it, or through a gretap, erspan or vxlan interface to a remote
    /// monitor. Copies that the interface does not accept at once are lost and counted
    /// (mirror_lost). Only for Ethernet packets.
    #[arg(long, value_name = "INTERFACE", help_heading = "Steering")]
    mirror_to: Option<String>,

    /// Report to the telemetry collector (`strata telemetry run`) at this address, by default on
    /// UDP port 40040: the bytes that each host sent, the class of each flow, and lists of
    /// anomalous flows (anomalies) and of TCP gaps and retransmissions (losses). Reports that a
    /// worker has no time to send, or that the network does not accept, are lost and counted.
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "Steering")]
    report_to: Option<String>,

    #[command(flatten)]
    flows: FlowArgs,

    #[command(flatten)]
    steer: steering::SteerArgs,

    /// Choose the flow of a tunnelled packet (GRE, ERSPAN, NSH, IP in IP, VXLAN and other tunnels
    /// in UDP).
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Tunnel::Inner, help_heading = CLASSIFICATION)]
    tunnel_key: Tunnel,

    /// End with the process that started this one.
    #[arg(long, hide = true, value_name = "PID")]
    end_with_parent: Option<i32>,

    /// Accept tcpdump's option; times are always kept in nanoseconds.
    #[arg(long = "nano", hide = true)]
    nano: bool,

    /// Set the seed of flow fingerprints, for repeatable runs: the same files with the same seed
    /// give the same blocks. By default, the seed is random, so that an attacker cannot make flows
    /// collide. A few flows still collide by chance; with another seed, their packets may be kept
    /// in another granularity.
    #[arg(long, value_name = "N", help_heading = CLASSIFICATION)]
    hash_seed: Option<u64>,

    /// Set the seed of the random choice of packets or flows in granularities that sample (1/N, 1/N
    /// flows).
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = CLASSIFICATION)]
    sampling_seed: u64,

    /// Record only packets that match this tcpdump filter. Put options before it.
    #[arg(value_name = "FILTER", trailing_var_arg = true, help_heading = Resettable::Reset)]
    filter: Vec<String>,

    #[command(flatten)]
    quiet: QuietArgs,

    #[command(flatten)]
    logging: LoggingArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tunnel {
    /// The flow of the innermost packet.
    Inner,
    /// The flow between the tunnel's endpoints.
    Outer,
}

impl Args {
    pub(crate) fn logging(&self) -> &LoggingArgs {
        self.road.logging()
    }
}

impl DataPathArgs {
    fn has_input(&self) -> bool {
        !self.read.is_empty() || self.live.is_any_named()
    }

    /// Refuses a recording of nothing. Checked here: without `-r`, the name of the input reads as a
    /// filter.
    fn check_input(&self) -> Result<()> {
        if self.has_input() || self.steer.check {
            return Ok(());
        }
        let forgotten = self.filter.first().filter(|word| Path::new(word).exists());
        Err(refuse(match forgotten {
            Some(file) => format!("no input: to read {file}, write -r {file}"),
            None => String::from("no input: name interfaces (-i eth0) or capture files (-r FILE)"),
        }))
    }

    /// The budget of detail.
    fn detail(&self) -> Result<DetailSpec> {
        let Some(text) = &self.detail else {
            return Ok(DetailSpec::Configured);
        };
        match DetailBudget::parse(text) {
            Ok(budget) => Ok(DetailSpec::Asked(budget)),
            Err(error) => Err(refuse(format!("--detail: {error}"))),
        }
    }

    /// The logging options of a recording.
    pub(crate) fn logging(&self) -> &LoggingArgs {
        &self.logging
    }

    /// What to record, where to, and for interfaces, how long.
    fn spec(&self, destination: DestinationSpec, duration: Option<Duration>) -> Result<RecordSpec> {
        let loaded = strata_terminal::model::load(self.model.as_deref())?;
        Ok(RecordSpec {
            input: match self.live.is_any_named() {
                true => InputSpec::Interfaces(Box::new(self.live.spec(duration)?)),
                false => InputSpec::Files(self.read.clone()),
            },
            destination,
            filter: match self.live.is_any_named() {
                true => text::filter(&self.filter)?.map(Filter::on_interfaces),
                false => text::filter(&self.filter)?,
            },
            stream: None,
            filter_text: self.filter.join(" "),
            dedup: self.dedup.spec()?,
            model: ModelSpec {
                model: loaded.model,
                json: loaded.json,
                is_built_in: self.model.is_none(),
            },
            shadow: match &self.shadow {
                Some(path) => {
                    let loaded = strata_terminal::model::load(Some(path))?;
                    Some(ShadowSpec {
                        model: loaded.model,
                        json: loaded.json,
                    })
                }
                None => None,
            },
            modes: self.mode.clone(),
            detail: self.detail()?,
            triggers: self.triggers.spec()?,
            mirror_to: self.mirror_to.clone(),
            report_to: match &self.report_to {
                Some(host) => Some(address("--report-to", host, UDP_PORT)?),
                None => None,
            },
            flows_to: self.flows.spec()?,
            memory_max: self.memory,
            steering: self.steer.spec()?,
            tunnel_key: match self.tunnel_key {
                Tunnel::Inner => TunnelKey::Inner,
                Tunnel::Outer => TunnelKey::Outer,
            },
            hash_seed: match self.hash_seed {
                Some(seed) => [seed, 0],
                // As repeatable as if it had been chosen.
                None if !self.read.is_empty() => [getrandom::u64()?, 0],
                None => [getrandom::u64()?, getrandom::u64()?],
            },
            sampling_seed: self.sampling_seed,
            packets_max: self.count,
        })
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if !args.road.read.is_empty() {
        args.log.check_for_files()?;
    }
    args.road.check_input()?;
    let destination = match args.road.has_input() {
        true => args.log.destination()?,
        false => args.log.any_destination()?,
    };
    let start_page = || {
        let socket = || args.road.steer.socket();
        args.page.start(args.log.dir(), socket)
    };
    run_with(&args.road, destination, args.log.duration(), start_page)
}

/// Records to a log or a relay; interfaces for at most this long.
pub(crate) fn run_to(
    args: &DataPathArgs,
    destination: DestinationSpec,
    duration: Option<Duration>,
) -> Result<()> {
    args.check_input()?;
    run_with(args, destination, duration, || Ok(page::Page::none()))
}

fn run_with(
    args: &DataPathArgs,
    destination: DestinationSpec,
    duration: Option<Duration>,
    start_page: impl FnOnce() -> Result<page::Page>,
) -> Result<()> {
    if !args.read.is_empty() {
        args.live.check_for_files()?;
        each_once(&args.read)?;
    }
    args.live.netns.enter()?;
    if let Some(parent) = args.end_with_parent {
        end_with_parent(parent)?;
    }
    let spec = args.spec(destination, duration)?;
    let hash_seed = spec.hash_seed[0];
    let tell: Tell = Arc::new(logging::notice);
    if args.steer.check {
        strata_record::check(spec, &tell)?;
        if args.quiet.is_quiet() {
            return Ok(());
        }
        writeln!(
            standard(),
            "{}",
            match args.has_input() {
                true => "configuration OK",
                false => "configuration OK; no input is named, so nothing else was checked",
            }
        )?;
        return Ok(());
    }
    let progress = Progress::unless(args.quiet.is_quiet(), Progress::of_packets);
    let mut signals = match spec.destination {
        DestinationSpec::Log(_) => Signals::stop_log()?,
        _ => Signals::stop()?,
    };
    if args.read.is_empty() {
        signals.also_steer()?;
    }
    let mut page = start_page()?;
    let handle = strata_role::start(spec, Arc::clone(&signals.stop), tell)?;
    while !handle.wait_timeout(LOOK_EVERY) {
        page.look();
        if signals.take_reload() {
            match handle.running().reload() {
                Ok(()) if args.steer.has_files() => {}
                Ok(()) => warn!(
                    target: HAPPENED,
                    "there is no configuration to reload (--config, --policy): nothing has changed"
                ),
                Err(error) => warn!(
                    target: HAPPENED,
                    "configuration not reloaded, nothing has changed: {}",
                    text::chain(&error.into())
                ),
            }
        }
        let counts = handle.running().counts();
        match counts.read {
            Some((read, all)) => {
                progress.expect_bytes(all);
                progress.set(read);
            }
            None => progress.set(counts.ledger.seen.packets),
        }
        if signals.take_report() {
            match args.quiet.is_quiet() {
                // Asked for by the signal.
                true => warn!(target: HAPPENED, "{}", show::counts(&counts)),
                false => info!("{}", show::counts(&counts)),
            }
        }
    }
    drop(progress);
    let outcome = handle.wait()?;
    let shown = match args.quiet.is_quiet() {
        true => Ok(()),
        false => show::outcome(&outcome),
    };
    if !args.read.is_empty() && args.hash_seed.is_none() {
        info!(
            kind = "hash_seed",
            hash_seed,
            "flows were hashed with a random seed: to repeat this recording exactly, give --hash-seed {hash_seed}"
        );
    }
    // A failure is returned even without a reader for the summary.
    outcome.failure.map_or(shown, |failure| Err(failure.into()))
}

/// A recording of a stream of packets into a log, as `-r` makes it.
pub(crate) struct Stream(Handle<RecordSpec>);

impl Stream {
    /// Starts it: from a pipe that another part of this process writes, in these modes and with this model.
    pub(crate) fn start(
        (input, stream): (PathBuf, StreamSpec),
        log: LogSpec,
        (modes, model): (&[String], Option<&Path>),
        steering: SteeringSpec,
    ) -> Result<Self> {
        let loaded = strata_terminal::model::load(model)?;
        let spec = RecordSpec {
            input: InputSpec::Files(vec![input]),
            destination: DestinationSpec::Log(Box::new(log)),
            stream: Some(stream),
            filter: None,
            filter_text: String::new(),
            dedup: None,
            model: ModelSpec {
                model: loaded.model,
                json: loaded.json,
                is_built_in: model.is_none(),
            },
            modes: modes.to_vec(),
            detail: DetailSpec::Configured,
            triggers: TriggerSpec::default(),
            shadow: None,
            mirror_to: None,
            report_to: None,
            flows_to: None,
            memory_max: None,
            steering,
            tunnel_key: TunnelKey::Inner,
            hash_seed: [getrandom::u64()?, getrandom::u64()?],
            sampling_seed: 0,
            packets_max: None,
        };
        let tell: Tell = Arc::new(logging::notice);
        Ok(Self(strata_role::start(spec, Arc::default(), tell)?))
    }

    /// Waits until the stream ends, and prints what became of it; returns where its packets ended, of which there are
    /// none if nothing could be recorded.
    pub(crate) fn ended(self) -> (Ledger, Result<()>) {
        let outcome = match self.0.wait() {
            Ok(outcome) => outcome,
            Err(error) => return (Ledger::default(), Err(error.into())),
        };
        let shown = show::outcome(&outcome);
        let ledger = outcome.counts.ledger;
        let ended = outcome.failure.map_or(shown, |failure| Err(failure.into()));
        (ledger, ended)
    }
}

/// Refuses a file that is named twice: each of its packets would be recorded twice.
fn each_once(paths: &[PathBuf]) -> Result<()> {
    let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    match named_again(&paths) {
        None => Ok(()),
        Some(path) => Err(refuse(format!(
            "{}: this input is named twice, and each packet would be recorded twice",
            path.display()
        ))),
    }
}
