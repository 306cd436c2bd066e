//! The program `strata`: one file per subcommand.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr)]

mod address;
mod agent;
mod ask;
mod bounded;
mod collector;
#[cfg(test)]
#[path = "../tests/it/common/commands.rs"]
mod commands;
mod compact;
mod confined;
mod control;
mod controller;
mod descriptors;
mod drift;
mod eval;
mod export;
mod extcap;
mod features;
mod generate;
mod gpv;
mod help;
mod info;
mod interfaces;
mod key;
mod label_flows;
mod labelled;
mod learn;
mod listing;
mod logging;
mod model;
mod models;
mod object_tier;
mod output;
mod packets;
mod plain;
mod prune;
mod python;
mod query;
mod read;
mod record;
mod relay;
mod replay;
mod selection;
mod sending;
mod serve;
mod signals;
mod stream;
mod switch;
mod table;
mod telemetry;
mod text;
mod top;
mod train;
mod verify;

use std::io::Write;
use std::process::ExitCode;

use clap::{FromArgMatches as _, Parser, Subcommand};

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
    /// List network interfaces: how each can be captured, or why not.
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
    /// Start new files in a running recording's log.
    Rotate(control::RotateArgs),
    /// Print the reference of the configuration file, in Markdown.
    ConfigReference,
    /// Record packets to a relay, by RDMA.
    Switch(Box<switch::Args>),
    /// Run the relay: memory for switches, and the disks behind it.
    Relay(relay::Args),
    /// Collect reports of switches (DTA, INT) in memory, and query it.
    Telemetry(telemetry::Args),
    /// Receive headers and packets that recordings export, as pcapng or into a log.
    Collector(collector::Args),
    /// Capture this host's interfaces and export packets, as a controller or a file directs.
    Agent(Box<agent::Args>),
    /// Steer agents of many hosts: policies by selector, identities, certificates.
    Controller(controller::Args),
    /// Append records to named streams on disk, and read them from any place.
    Stream(stream::Args),
    /// Serve a web page that shows running recordings and the contents of logs.
    Serve(Box<serve::Args>),
    /// Show what a log contains.
    Info(info::Args),
    /// Print the packets of a log, a line each.
    Read(read::Args),
    /// Count the packets of a log by flow, host, port, protocol, class or reason: the largest of them.
    Top(top::Args),
    /// Export packets of a log to a pcapng or pcap file.
    Export(export::Args),
    /// Compact block files into Parquet and pcapng files, readable by all tools.
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
    /// Write the features of each packet, as the classifier sees them.
    Features(features::Args),
    /// Generate traffic with known statistics and labels, from a seed.
    Generate(generate::Args),
    /// Group packets by flow into grouped packet vectors (GPVs): send, receive, keep and classify them,
    /// tune the cache.
    Gpv(gpv::Args),
    /// Label flows of a log, to train on.
    Labels(label_flows::Args),
    /// Train a model on labelled features.
    Train(Box<train::TrainArgs>),
    /// Learn the ordinary traffic of a site, without labels.
    Learn(Box<learn::Args>),
    /// Evaluate a model on a labelled capture; write a page and JSON.
    Eval(eval::Args),
    /// Put another model in force, and compare two.
    Model(models::Args),
    /// Compare model presets on labelled captures.
    Compare(train::CompareArgs),
    /// Replay a capture file on an interface.
    Replay(replay::Args),
    /// Open packet sockets for a recording without the privilege.
    #[command(hide = true)]
    Helper(record::HelperArgs),
}

impl Command {
    /// Whether it runs until stopped, and so opens descriptors for others meanwhile.
    fn is_long_running(&self) -> bool {
        matches!(
            self,
            Self::Record(_)
                | Self::Switch(_)
                | Self::Relay(_)
                | Self::Serve(_)
                | Self::Collector(_)
                | Self::Agent(_)
                | Self::Generate(_)
                | Self::Replay(_)
        ) || matches!(self, Self::Ask(args) if args.is_live())
            || matches!(self, Self::Telemetry(args) if args.is_long_running())
            || matches!(self, Self::Controller(args) if args.is_long_running())
            || matches!(self, Self::Gpv(args) if args.is_long_running())
            || matches!(self, Self::Stream(args) if args.is_long_running())
    }

    /// Its logging options, if it is long-running.
    fn logging(&self) -> Option<&logging::LoggingArgs> {
        match self {
            Self::Record(args) => Some(args.logging()),
            Self::Switch(args) => Some(args.logging()),
            Self::Relay(args) => Some(&args.logging),
            Self::Serve(args) => Some(&args.logging),
            Self::Compact(args) => Some(&args.logging),
            Self::Collector(args) => Some(&args.logging),
            Self::Agent(args) => Some(&args.logging),
            Self::Controller(args) => args.logging(),
            Self::Telemetry(args) => args.logging(),
            Self::Stream(args) => args.logging(),
            _ => None,
        }
    }
}

fn main() -> ExitCode {
    if extcap::is_called() {
        logging::begin(None);
        return extcap::main().unwrap_or_else(|error| failed(&error));
    }
    let command = help::command()
        .try_get_matches()
        .and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches))
        .unwrap_or_else(|error| refused(&error))
        .command;
    logging::begin(command.logging());
    if command.is_long_running() {
        descriptors::raise_limit();
    }
    let result = match command {
        Command::Record(args) => record::run(&args),
        Command::Interfaces(args) => interfaces::run(&args),
        Command::Status(args) => control::status(&args),
        Command::Mode(args) => control::mode(&args),
        Command::Detail(args) => control::detail(&args),
        Command::Policy(args) => control::policy(&args),
        Command::Rotate(args) => control::rotate(&args),
        Command::ConfigReference => {
            let page = strata_control::config::reference();
            let mut out = output::standard();
            out.write_all(page.as_bytes()).map_err(Into::into)
        }
        Command::Switch(args) => switch::run(&args),
        Command::Relay(args) => relay::run(&args),
        Command::Telemetry(args) => telemetry::run(&args),
        Command::Collector(args) => collector::run(&args),
        Command::Agent(args) => agent::run(&args),
        Command::Controller(args) => controller::run(&args),
        Command::Stream(args) => stream::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Read(args) => read::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Compact(args) => compact::run(&args),
        Command::Query(args) => query::run(&args),
        Command::Ask(args) => ask::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Prune(args) => prune::run(&args),
        Command::Move(args) => object_tier::run(&args),
        Command::Features(args) => features::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Gpv(args) => gpv::run(&args),
        Command::Labels(args) => label_flows::run(&args),
        Command::Train(args) => train::train(&args),
        Command::Learn(args) => learn::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Model(args) => models::run(&args),
        Command::Compare(args) => train::compare(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Helper(args) => record::helper(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Says what is wrong with the command line, or shows what was asked for, and ends the program.
fn refused(error: &clap::Error) -> ! {
    let theirs = error.render().to_string();
    let ours = plain::words(&theirs);
    if error.kind() != clap::error::ErrorKind::ValueValidation || ours == theirs {
        error.exit();
    }
    eprint!("{ours}");
    std::process::exit(error.exit_code())
}

/// Says why the program fails, and returns the status that says so too.
fn failed(error: &anyhow::Error) -> ExitCode {
    // The reader of our output has seen enough: `strata export -w - | head`.
    if text::is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if let Some(python::Ended(status)) = error.downcast_ref() {
        return ExitCode::from(*status);
    }
    if error.is::<signals::Interrupted>() {
        return ExitCode::from(signals::Interrupted::STATUS);
    }
    tracing::error!("{}", text::chain(error));
    match error.is::<output::Refused>() {
        true => ExitCode::from(2),
        false => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Command, CommandFactory as _};

    use super::{Cli, commands};

    /// The names of commands without subcommands of their own.
    fn leaves(command: &Command, name: &str, all: &mut BTreeSet<String>) {
        if !command.has_subcommands() {
            all.insert(name.to_owned());
        }
        for one in command.get_subcommands() {
            leaves(one, format!("{name} {}", one.get_name()).trim(), all);
        }
    }

    /// A new command says whether it runs until it is stopped: then it has a sandbox and attacks.
    #[test]
    fn every_command_is_known_to_run_for_long_or_to_end() {
        let mut there = BTreeSet::new();
        leaves(&Cli::command(), "", &mut there);
        let long = commands::LONG_RUNNING.iter().map(|(name, _)| *name);
        let known: Vec<&str> = long.chain(commands::ENDING.iter().copied()).collect();
        let listed: BTreeSet<String> = known.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(listed.len(), known.len(), "a command is listed twice");
        assert_eq!(there, listed);
    }
}
