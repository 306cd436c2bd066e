//! `strata agent` and `strata controller`: capture on many hosts, steered from one place.
#![forbid(unsafe_code)]

mod agent;
#[cfg(test)]
#[path = "../../strata/tests/it/common/commands.rs"]
mod commands;
mod controller;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser};
use strata_terminal::logging::LoggingArgs;
use strata_terminal::program::{self, Program};

/// Capture on many hosts, steered from one place.
#[derive(Debug, Parser)]
#[command(name = "strata-fleet", bin_name = "strata", max_term_width = 100)]
enum Command {
    /// Capture this host's interfaces and export packets, as a controller or a file directs.
    Agent(Box<agent::Args>),
    /// Direct the agents of many hosts: policies by selector, identities, certificates.
    Controller(controller::Args),
}

impl Program for Command {
    fn is_long_running(&self) -> bool {
        match self {
            Self::Agent(_) => true,
            Self::Controller(args) => args.is_long_running(),
        }
    }

    fn logging(&self) -> Option<&LoggingArgs> {
        match self {
            Self::Agent(args) => Some(&args.logging),
            Self::Controller(args) => args.logging(),
        }
    }

    fn run(&self) -> Result<()> {
        match self {
            Self::Agent(args) => agent::run(args),
            Self::Controller(args) => controller::run(args),
        }
    }
}

fn main() -> ExitCode {
    program::main::<Command>(Command::command())
}

/// A new command says whether it runs until it is stopped: then it has a sandbox and attacks.
#[test]
fn every_command_is_known_to_run_for_long_or_to_end() {
    commands::are_known(
        program::leaves(&Command::command(), ""),
        &["agent", "controller"],
    );
}
