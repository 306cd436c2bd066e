//! `strata learn`, `train`, `eval`, `model`, `compare`, `features` and `labels`: models, from labelled packets to
//! the one in force; and `publish` and `lake`, logs as Iceberg tables. The Python package does the rest: it trains, draws, and
//! knows the catalogs of tables.
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "../../strata/tests/it/common/commands.rs"]
mod commands;
mod compare;
mod eval;
mod features;
mod label_flows;
mod lake;
mod learn;
mod p4;
mod promote;
mod publish;
mod scratch;
mod train;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser, Subcommand};
use strata_terminal::logging::LoggingArgs;
use strata_terminal::program::{self, Program};

/// Make models, evaluate them, and put them in force.
#[derive(Debug, Parser)]
#[command(name = "strata-models", bin_name = "strata", max_term_width = 100)]
enum Command {
    /// Write the features of each packet, as the classifier sees them.
    Features(features::Args),
    /// Label flows of a log, for training.
    Labels(label_flows::Args),
    /// Train a model on labelled features.
    Train(Box<train::TrainArgs>),
    /// Learn the ordinary traffic of a site; needs no labels.
    Learn(Box<learn::Args>),
    /// Evaluate a model on a labelled capture; write an HTML page and JSON.
    Eval(eval::Args),
    /// Put another model in force, compare two models, or write one as tables of a switch.
    #[command(subcommand)]
    Model(Model),
    /// Compare model presets on labelled captures.
    Compare(train::CompareArgs),
    /// Publish the compacted files of a log in Iceberg tables, which many sensors can share.
    Publish(publish::Args),
    /// Look after the tables of published logs: what is in them, and what leaves them.
    #[command(subcommand)]
    Lake(lake::Command),
}

#[derive(Debug, Subcommand)]
enum Model {
    /// Put another model in force: the shadow model of a running recording, or a model file.
    Promote(promote::Args),
    /// Compare two models on captures or logs, or the two models of a running recording.
    Compare(Box<compare::Args>),
    /// Write a model as tables of the switch program titanlog.
    P4(p4::Args),
}

impl Program for Command {
    fn is_long_running(&self) -> bool {
        false
    }

    fn logging(&self) -> Option<&LoggingArgs> {
        None
    }

    fn run(&self) -> Result<()> {
        match self {
            Self::Features(args) => features::run(args),
            Self::Labels(args) => label_flows::run(args),
            Self::Train(args) => train::train(args),
            Self::Learn(args) => learn::run(args),
            Self::Eval(args) => eval::run(args),
            Self::Model(Model::Promote(args)) => promote::run(args),
            Self::Model(Model::Compare(args)) => compare::run(args),
            Self::Model(Model::P4(args)) => p4::run(args),
            Self::Compare(args) => train::compare(args),
            Self::Publish(args) => publish::run(args),
            Self::Lake(command) => lake::run(command),
        }
    }
}

/// What to say if a directory for temporary files cannot be made.
fn no_temporary_files() -> String {
    format!(
        "cannot write temporary files in {} (set TMPDIR to use another directory)",
        std::env::temp_dir().display()
    )
}

fn main() -> ExitCode {
    program::main::<Command>(Command::command())
}

/// A new command says whether it runs until it is stopped: then it has a sandbox and attacks.
#[test]
fn every_command_is_known_to_run_for_long_or_to_end() {
    commands::are_known(
        program::leaves(&Command::command(), ""),
        &[
            "learn", "train", "eval", "model", "compare", "features", "labels", "publish", "lake",
        ],
    );
}
