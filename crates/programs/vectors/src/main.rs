//! `strata gpv`: grouped packet vectors (GPVs): making them, receiving them, keeping them, tuning
//! the cache that makes them, and a classifier of flows over them. What runs is in `strata_gpv_run`.
//!
//! ```text
//! run export      packets into vectors: to UDP or a file, to Parquet
//! agent           vectors received, put together into records of longer intervals
//! tune flows      the cache's parameters, the traffic classifier: with the Python package
//! apps            applications: bursts of a queue, times of hosts, classes of flows
//! target rotate   where vectors go; files of limited size or time
//! targets         where a running command sends them: a file that another command changes
//! counted         what is in no vector, or not whole
//! ```
#![forbid(unsafe_code)]

mod agent;
mod apps;
#[cfg(test)]
#[path = "../../strata/tests/it/common/commands.rs"]
mod commands;
mod counted;
mod export;
mod flows;
mod rotate;
mod run;
mod target;
mod targets;
mod tune;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser};
use strata_filter::Filter;
use strata_gpv::format::datagram::LEN_USUAL;
use strata_gpv::{Column, Parameters};
use strata_gpv_run::{CAPTURED_COLUMNS, COLUMN_NAMES, Form, Matches, VectorError};
use strata_query::ByLink;
use strata_terminal::logging::LoggingArgs;
use strata_terminal::output::{refuse, refused};
use strata_terminal::program::{self, Program};
use strata_terminal::selection::say_no_match;

/// Maximum memory of a cache: far more than any of use, and less than machines have.
const CACHE_BYTES_MAX: u64 = 4 << 30;

/// Group packets by flow into grouped packet vectors (GPVs); send, receive, store and classify
/// them; tune the cache.
#[derive(Debug, Parser)]
#[command(name = "strata-vectors", bin_name = "strata gpv", max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Group packets of a capture or an interface into vectors; send or write them.
    Run(run::Args),
    /// Receive vectors, merge them into records of longer intervals, and write or forward the
    /// records.
    Agent(agent::Args),
    /// Write the vectors of a capture or a log to a Parquet file.
    Export(export::Args),
    /// Find micro-bursts, and the hosts whose packets were in the queue.
    Bursts(apps::BurstsArgs),
    /// Profile the arrival times of the packets of each host.
    Profile(apps::ProfileArgs),
    /// Classify flows with a trained model.
    Classify(apps::ClassifyArgs),
    /// Change the addresses that a running `strata gpv run --targets` sends vectors to.
    #[command(subcommand)]
    Target(targets::TargetCommand),
    /// Search for the cache parameters that produce the fewest vectors within a memory limit.
    Tune(tune::Args),
    /// Write the features of each flow, to train the traffic classifier.
    Features(flows::FeaturesArgs),
    /// Train the traffic classifier, and compare its features with those of flow records.
    Train(flows::TrainArgs),
    /// Count the vectors of a cache for each line of parameters on standard input.
    #[command(hide = true)]
    Model(tune::ModelArgs),
}

impl Program for Args {
    fn is_long_running(&self) -> bool {
        match &self.command {
            Command::Run(args) => args.is_live(),
            Command::Agent(_) | Command::Bursts(_) | Command::Profile(_) | Command::Classify(_) => {
                true
            }
            _ => false,
        }
    }

    fn logging(&self) -> Option<&LoggingArgs> {
        None
    }

    fn run(&self) -> Result<()> {
        match &self.command {
            Command::Run(args) => run::run(args),
            Command::Agent(args) => agent::run(args),
            Command::Export(args) => export::run(args),
            Command::Bursts(args) => apps::bursts(args),
            Command::Profile(args) => apps::profile(args),
            Command::Classify(args) => apps::classify(args),
            Command::Target(command) => targets::run(command),
            Command::Tune(args) => tune::run(args),
            Command::Features(args) => flows::features(args),
            Command::Train(args) => flows::train(args),
            Command::Model(args) => tune::model(args),
        }
    }
}

fn main() -> ExitCode {
    program::helper().unwrap_or_else(|| program::main::<Args>(Args::command()))
}

/// How large the cache is.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Cache")]
struct CacheArgs {
    /// Track at most this many flows at once.
    #[arg(long, value_name = "N", default_value_t = Parameters::PAPER.slots)]
    slots: u32,

    /// Give each slot a narrow buffer for this many packets (at least 2).
    #[arg(long, value_name = "N", default_value_t = Parameters::PAPER.narrow)]
    narrow: u16,

    /// Set the number of packets that a wide buffer adds to a slot; 0, with --wide-blocks 0, for no
    /// wide buffers.
    #[arg(long, value_name = "N", default_value_t = Parameters::PAPER.wide)]
    wide: u16,

    /// Share this many wide buffers among the slots; 0, with --wide 0, for none.
    #[arg(long = "wide-blocks", value_name = "N", default_value_t = Parameters::PAPER.blocks)]
    blocks: u32,
}

impl CacheArgs {
    /// The parameters, if a cache of them fits into memory.
    fn parameters(&self) -> Result<Parameters> {
        let parameters = Parameters {
            slots: self.slots,
            narrow: self.narrow,
            wide: self.wide,
            blocks: self.blocks,
        };
        let bytes = parameters.cache_bytes(size_of::<strata_gpv::Full>());
        if bytes > CACHE_BYTES_MAX {
            return Err(refuse(format!(
                "a cache of --slots {} --narrow {} --wide {} --wide-blocks {} takes {} MiB; at most {} \
                 are allowed",
                self.slots,
                self.narrow,
                self.wide,
                self.blocks,
                bytes >> 20,
                CACHE_BYTES_MAX >> 20
            )));
        }
        strata_record::room_for(
            bytes,
            "the cache (--slots, --narrow, --wide, --wide-blocks)",
        )?;
        Ok(parameters)
    }
}

/// Names of what a capture says of a packet, but for the time.
const CAPTURED_NAMES: &str = "size,tcp_seq,tcp_ack,tcp_flags,tcp_window,ecn,payload_len";

/// Reads a column that packets of a capture have.
fn column(text: &str) -> Result<Column, String> {
    let found = COLUMN_NAMES.iter().find(|(name, _)| *name == text);
    match found {
        Some(&(_, column)) if CAPTURED_COLUMNS.has(column) => Ok(column),
        Some(_) => Err(format!("packets of a capture have no {text}")),
        None => Err(format!(
            "no such column; the columns are time,{CAPTURED_NAMES}"
        )),
    }
}

/// How vectors are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum FormName {
    /// Strata's form: numbered, so that lost vectors are counted; IPv4 and IPv6, times in ns.
    Strata,
    /// The form of the *Flow paper: not numbered; IPv4 only, times in us, sizes up to 2047 bytes.
    Paper,
    /// Like paper, but with the TCP sequence number of each packet.
    PaperSeq,
}

impl From<FormName> for Form {
    fn from(name: FormName) -> Self {
        match name {
            FormName::Strata => Self::Strata,
            FormName::Paper => Self::Paper,
            FormName::PaperSeq => Self::PaperSeq,
        }
    }
}

/// Bytes of a datagram by default.
const fn usual_datagram() -> usize {
    LEN_USUAL
}

/// Whether a filter matches packets; says of which link types it cannot be tested on.
fn matches(filter: Filter) -> Matches {
    let mut by_link = ByLink::new(filter, say_no_match);
    Box::new(move |link, packet, wire_len| by_link.matches(link, packet, wire_len))
}

/// An error of what runs: what was refused ends the program as an invalid option does.
fn failed(error: VectorError) -> anyhow::Error {
    match error {
        VectorError::Refused(problem) => refuse(problem),
        VectorError::Output(error) => refused(error),
        other => other.into(),
    }
}

/// A new command says whether it runs until it is stopped: then it has a sandbox and attacks.
#[test]
fn every_command_is_known_to_run_for_long_or_to_end() {
    commands::are_known(program::leaves(&Args::command(), "gpv"), &["gpv"]);
}
