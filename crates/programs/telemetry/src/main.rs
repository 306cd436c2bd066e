//! `strata telemetry`: reports of switches into memory, and queries of it.
//!
//! ```text
//! run        the collector, or a translator whose collectors are elsewhere
//! collect    a collector whose translator is elsewhere
//! ask        get, list, top, status: of a store, whether it is written or not
//! flow       path, flows: of a store
//! rows       counters as people read them
//! shown      entries of lists as people read them
//! snapshot   what a store knows, as Parquet
//! generate   reports of all kinds, from a seed
//! ```
#![forbid(unsafe_code)]

mod ask;
mod collect;
#[cfg(test)]
#[path = "../../strata/tests/it/common/commands.rs"]
mod commands;
mod flow;
mod generate;
mod rows;
mod run;
mod shown;
mod snapshot;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser};
use strata_control::config::{Config, ControlConfig};
use strata_dta::int::table::DEFAULT;
use strata_telemetry_run::TelemetryApiSpec;
use strata_terminal::logging::LoggingArgs;
use strata_terminal::output::{refuse, standard};
use strata_terminal::program::{self, Program};

/// Collect telemetry reports from switches (DTA, INT) in memory, and query them.
#[derive(Debug, Parser)]
#[command(
    name = "strata-telemetry",
    bin_name = "strata telemetry",
    max_term_width = 100
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

/// Where the process that has a store's memory answers queries over HTTP.
#[derive(Debug, clap::Args)]
struct ApiArgs {
    /// Answer queries over HTTP on this Unix socket (docs/telemetry.md).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Answer queries over HTTP as configured in section `control` of this file: on a Unix socket,
    /// and over TCP for clients with a token or a certificate (docs/configuration.md).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ApiArgs {
    fn spec(&self) -> Result<TelemetryApiSpec> {
        let config = self.config.as_deref().map(Config::read).transpose()?;
        let control = config.map_or_else(ControlConfig::default, |config| config.control);
        let tcp = control.tcp()?;
        let socket = self.socket.clone().or(control.socket);
        if self.config.is_some() && socket.is_none() && tcp.is_none() {
            return Err(refuse(
                "--config: the file has neither control.socket nor control.listen, the only keys \
                 that telemetry uses",
            ));
        }
        Ok(TelemetryApiSpec { socket, tcp })
    }
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Receive reports and store them in memory that can be queried at any time: on this machine,
    /// or on others by RDMA.
    Run(Box<run::Args>),
    /// Provide memory that a translator on another machine (`run --collector`) writes by RDMA.
    Collect(collect::Args),
    /// Show the value and the counter of a key.
    Get(ask::GetArgs),
    /// Show the entries of a list; without a name, the lists.
    List(ask::ListArgs),
    /// Show the path of a flow, hop by hop, with the latency of each.
    Path(flow::PathArgs),
    /// Show the flows in the events of lists, such as flows that met congestion or drops.
    Flows(flow::FlowsArgs),
    /// Show the keys with the largest counters.
    Top(ask::TopArgs),
    /// Show the counters of the collector: reports, refusals, losses.
    Status(ask::StatusArgs),
    /// Print the built-in table, which turns INT reports into DTA reports (`run --table` extends
    /// it).
    Table,
    /// Write the contents of a store to Parquet files, even while the collector runs.
    Snapshot(snapshot::Args),
    /// Send generated reports of all kinds, or those of a simulated network.
    Generate(Box<generate::Args>),
}

impl Program for Args {
    fn is_long_running(&self) -> bool {
        matches!(
            self.command,
            Command::Run(_) | Command::Collect(_) | Command::Generate(_)
        )
    }

    fn logging(&self) -> Option<&LoggingArgs> {
        match &self.command {
            Command::Run(args) => Some(&args.logging),
            Command::Collect(args) => Some(&args.logging),
            _ => None,
        }
    }

    fn run(&self) -> Result<()> {
        match &self.command {
            Command::Run(args) => run::run(args),
            Command::Collect(args) => collect::run(args),
            Command::Get(args) => ask::get(args),
            Command::List(args) => ask::list(args),
            Command::Path(args) => flow::path(args),
            Command::Flows(args) => flow::flows(args),
            Command::Top(args) => ask::top(args),
            Command::Status(args) => ask::status(args),
            Command::Table => Ok(write!(standard(), "{}", DEFAULT.trim_start())?),
            Command::Snapshot(args) => snapshot::run(args),
            Command::Generate(args) => generate::run(args),
        }
    }
}

fn main() -> ExitCode {
    program::main::<Args>(Args::command())
}

/// A new command says whether it runs until it is stopped: then it has a sandbox and attacks.
#[test]
fn every_command_is_known_to_run_for_long_or_to_end() {
    commands::are_known(
        program::leaves(&Args::command(), "telemetry"),
        &["telemetry"],
    );
}
