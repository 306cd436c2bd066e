//! The program `strata`: a file for each command or group of commands, in folders as the help groups them.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr)]

mod ask;
mod beside;
mod bug_report;
#[cfg(test)]
#[path = "../tests/it/common/commands.rs"]
mod commands;
mod config;
mod control;
mod help;
mod interfaces;
mod keeping;
mod links;
mod reading;
mod record;
mod serve;
mod traffic;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use strata_reading::{export, grep, read, top};
use strata_terminal::logging::LoggingArgs;
use strata_terminal::program::{self, HelperArgs, Program};

use keeping::{compact, key, object_tier, prune, verify};
use links::{collector, extcap, relay, switch};
use reading::{info, query};
use traffic::{generate, replay};

/// Log network traffic: all headers, and as much payload as there is room for.
#[derive(Debug, Parser)]
#[command(
    name = "strata",
    version,
    max_term_width = 100,
    help_template = help::PAGE
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Record packets from interfaces or files, classifying each.
    Record(Box<record::Args>),
    /// List network interfaces, and how each can be captured, or why it cannot.
    #[command(short_flag = 'D')]
    Interfaces(interfaces::Args),
    /// Show the status of a running recording.
    Status(control::StatusArgs),
    /// Change the logging mode of a running recording.
    Mode(control::ModeArgs),
    /// Change the budget of detail of a running recording.
    Detail(control::DetailArgs),
    /// Add, list and remove policies of a running recording.
    Policy(control::PolicyArgs),
    /// Start new block files in the log of a running recording.
    Rotate(control::RotateArgs),
    /// Make a configuration file, and show what is in force.
    Config(config::Args),
    /// Record packets to a relay, by RDMA.
    Switch(Box<switch::Args>),
    /// Run a relay: take packets from switches into memory, and write them to disk.
    Relay(relay::Args),
    /// Receive headers and packets that recordings export, as pcapng or into a log.
    Collector(collector::Args),
    /// Serve a web page that shows running recordings and the contents of logs.
    Serve(Box<serve::Args>),
    /// Show the contents of a log, and its losses.
    Info(info::Args),
    /// Print the packets of a log, one per line.
    Read(read::Args),
    /// Search the kept payload of a log for a pattern.
    Grep(grep::Args),
    /// Show the largest flows, hosts, ports, protocols, classes or reasons of a log.
    Top(top::Args),
    /// Export packets or flow records of a log to a file: pcapng, pcap, CSV, JSON, IPFIX or Parquet.
    Export(export::Args),
    /// Compact block files into Parquet and pcapng files, which other tools can read.
    Compact(compact::Args),
    /// Query a log with SQL; needs strata-sql, which `make sql` builds.
    Query(query::Args),
    /// Query the packets of a capture, a log, an interface or a running recording.
    Ask(Box<ask::Args>),
    /// Check every byte of a log against its checksums.
    Verify(verify::Args),
    /// Make keys for encrypted logs, and replace the keys of a log.
    Key(key::Args),
    /// Delete data beyond a given age or size.
    Prune(prune::Args),
    /// Move compacted files to an object store or another disk, and back.
    Move(object_tier::Args),
    /// Generate traffic with known statistics and labels, from a seed.
    Generate(generate::Args),
    /// Replay a capture file on an interface.
    Replay(replay::Args),
    /// Write a report for diagnosing a fault on this machine, without packets.
    BugReport(bug_report::Args),
    /// Open packet sockets for a recording without the privilege.
    #[command(hide = true)]
    Helper(HelperArgs),
}

impl Program for Cli {
    fn is_long_running(&self) -> bool {
        match &self.command {
            Command::Record(_)
            | Command::Switch(_)
            | Command::Relay(_)
            | Command::Serve(_)
            | Command::Collector(_)
            | Command::Generate(_)
            | Command::Replay(_) => true,
            Command::Ask(args) => args.is_live(),
            _ => false,
        }
    }

    fn logging(&self) -> Option<&LoggingArgs> {
        match &self.command {
            Command::Record(args) => Some(args.logging()),
            Command::Switch(args) => Some(args.logging()),
            Command::Relay(args) => Some(&args.logging),
            Command::Serve(args) => Some(&args.logging),
            Command::Compact(args) => Some(&args.logging),
            Command::Collector(args) => Some(&args.logging),
            _ => None,
        }
    }

    fn is_quiet(&self) -> bool {
        match &self.command {
            Command::Export(args) => args.quiet.is_quiet(),
            Command::Verify(args) => args.quiet.is_quiet(),
            Command::Prune(args) => args.quiet.is_quiet(),
            Command::Move(args) => args.quiet.is_quiet(),
            _ => false,
        }
    }

    fn run(&self) -> Result<()> {
        match &self.command {
            Command::Record(args) => record::run(args),
            Command::Interfaces(args) => interfaces::run(args),
            Command::Status(args) => control::status(args),
            Command::Mode(args) => control::mode(args),
            Command::Detail(args) => control::detail(args),
            Command::Policy(args) => control::policy(args),
            Command::Rotate(args) => control::rotate(args),
            Command::Config(args) => config::run(args),
            Command::Switch(args) => switch::run(args),
            Command::Relay(args) => relay::run(args),
            Command::Collector(args) => collector::run(args),
            Command::Serve(args) => serve::run(args),
            Command::Info(args) => info::run(args),
            Command::Read(args) => read::run(args),
            Command::Grep(args) => grep::run(args),
            Command::Top(args) => match args.live()? {
                Some(live) => ask::largest(&live),
                None => top::run(args),
            },
            Command::Export(args) => export::run(args),
            Command::Compact(args) => compact::run(args),
            Command::Query(args) => query::run(args),
            Command::Ask(args) => ask::run(args),
            Command::Verify(args) => verify::run(args),
            Command::Key(args) => key::run(args),
            Command::Prune(args) => prune::run(args),
            Command::Move(args) => object_tier::run(args),
            Command::Generate(args) => generate::run(args),
            Command::Replay(args) => replay::run(args),
            Command::BugReport(args) => bug_report::run(args),
            Command::Helper(args) => args.run(),
        }
    }

    fn elsewhere(command: &str) -> Option<&'static str> {
        beside::program_of(command).map(|(program, _)| program)
    }
}

fn main() -> ExitCode {
    if extcap::is_called() {
        strata_terminal::logging::begin(None);
        return extcap::main().unwrap_or_else(|error| program::failed(&error));
    }
    if let Some(ended) = help::topics::run().or_else(beside::run) {
        return ended;
    }
    program::main::<Cli>(help::command())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::{Cli, beside, commands};

    /// A new command says whether it runs until it is stopped: then it has a sandbox and attacks.
    #[test]
    fn every_command_is_known_to_run_for_long_or_to_end() {
        let all = commands::all();
        let once: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(once.len(), all.len(), "a command is listed twice");
        let is_here = |name: &&str| beside::program_of(name.split(' ').next().unwrap()).is_none();
        let listed: BTreeSet<&str> = once.into_iter().filter(is_here).collect();
        let there = strata_terminal::program::leaves(&Cli::command(), "");
        let there: BTreeSet<&str> = there.iter().map(String::as_str).filter(is_here).collect();
        assert_eq!(there, listed);
    }
}
