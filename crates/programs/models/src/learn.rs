//! `strata learn`: a model of what is ordinary at a site, from its own traffic, without labels. The
//! Python package learns; packets come from captures, a log, or a recording of headers made here.

use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use anyhow::{Context, Result, bail};
use strata_store::Sources;
use strata_terminal::{model, output, signals, text};
use strata_training::labelled::{LabelArgs, LabelledArgs};
use tracing::info;

use crate::features;
use crate::scratch::{Directory, InMemory};
use crate::train::{Line, share};

/// Arguments of `strata learn`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("from").required(true).args(["inputs", "read", "interface"]))]
#[command(after_help = "\
Examples:
  strata learn -i eth0 --for 1h -o model.json && strata record -m model.json -i eth0 -o log/
  strata learn log/ --labels /var/log/suricata/eve.json -o new.json
  strata learn -r monday.pcap -r tuesday.pcap -o model.json

Prints a summary of the learnt traffic, and whether it was sufficient. Exit status: 0 if it was; 3
if there was too little traffic, or the traffic changed too much (the model is written anyway); 1 if
no model is written. With --labels, the model learns only from benign packets; with IDS alerts as
labels, only from packets that are not near an alert.

Needs the Python package, which `make python` installs.")]
pub(crate) struct Args {
    /// Learn from these logs or capture files.
    #[arg(value_name = "LOG")]
    inputs: Vec<PathBuf>,

    /// Learn from this capture file or log; may be given several times.
    #[arg(
        short = 'r',
        long = "read",
        value_name = "FILE",
        conflicts_with = "inputs"
    )]
    read: Vec<PathBuf>,

    /// Learn from this interface: its packet headers are first recorded to a temporary log.
    #[arg(short = 'i', long, value_name = "NAME", conflicts_with_all = ["inputs", "read"])]
    interface: Option<String>,

    /// Record the interface for this long, at least 10s; Ctrl-C ends the recording early.
    #[arg(
        long = "for",
        value_name = "TIME",
        default_value = "10m",
        requires = "interface"
    )]
    length: String,

    // What has an alert of an IDS, or is near one, is not benign, and so not learnt from.
    #[command(flatten)]
    labels: LabelArgs,

    /// Write the model to this file.
    #[arg(short = 'o', long, value_name = "FILE")]
    output: PathBuf,

    /// Combine 4 learnt trees with 4 trees of this model, which was trained on labels; by default,
    /// of the built-in model. The score is the mean of all 8.
    #[arg(short = 'm', long = "model", value_name = "FILE")]
    model: Option<PathBuf>,

    /// Use only learnt trees.
    #[arg(long, conflicts_with = "model")]
    alone: bool,

    /// Set the threshold of the score so that at most this share of ordinary payload is called
    /// unusual.
    #[arg(long, value_name = "SHARE", value_parser = share, default_value_t = 0.01)]
    alarm: f64,

    /// Name the model.
    #[arg(long, default_value = "site")]
    name: String,

    /// Seed the run, to repeat it exactly.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u32,

    /// Use this many threads.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    jobs: u32,

    /// Show no progress bar.
    #[arg(long)]
    quiet: bool,
}

/// Learns a model.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut read: Vec<PathBuf> = args.inputs.iter().chain(&args.read).cloned().collect();
    let labelled = LabelledArgs::of(&read, &args.labels);
    let sources: Sources = labelled.sources().files(&args.model);
    output::check(&args.output, &sources)?;
    let seconds = seconds_of(&args.length)?;
    // A model that cannot be read is reported before an hour of traffic is recorded.
    let beside = match args.alone {
        true => None,
        false => {
            let json = model::load(args.model.as_deref())?.json;
            Some(InMemory::of("beside.json", &json)?)
        }
    };
    strata_training::python::check()?;
    let mut recorded = None;
    if let Some(interface) = &args.interface {
        let directory = Directory::new()?;
        let log = directory.path().join("log");
        record_headers(interface, seconds, &log)?;
        read = vec![log];
        recorded = Some(directory);
    }
    let snapshots = InMemory::new("snapshots.parquet")?;
    features::snapshots(LabelledArgs::of(&read, &args.labels), snapshots.output()?)?;
    if let Some(directory) = recorded {
        directory.remove()?;
    }
    let mut line = Line::new("learn");
    line.option("--output", &args.output);
    if let Some(beside) = &beside {
        line.option("--beside", beside.path());
    }
    line.option("--last-name", snapshots.name());
    line.option("--name", &args.name);
    line.number("--alarm", &args.alarm);
    line.number("--seed", &args.seed);
    line.number("--jobs", &args.jobs);
    line.flag("--quiet", args.quiet);
    strata_training::python::run(line.names([snapshots.path()]))
}

/// A length of time in whole seconds.
fn seconds_of(length: &str) -> Result<u64> {
    let seconds = text::duration_ns(length).context("--for")? / 1_000_000_000;
    if seconds < 10 {
        return Err(output::refuse(format!(
            "--for {length}: too short to learn from: give at least 10s, preferably an hour"
        )));
    }
    Ok(seconds)
}

/// Records the headers of an interface, as `strata record` does, for a time or until interrupted.
fn record_headers(interface: &str, seconds: u64, log: &Path) -> Result<()> {
    let program = strata_terminal::program::strata()?;
    info!("recording headers of {interface} for {seconds} s; Ctrl-C ends this early");
    let mut command = Command::new(program);
    command
        .args(["record", "--default", "header", "-W", "1", "-G"])
        .arg(seconds.to_string())
        .arg("-i")
        .arg(interface)
        .arg("-o")
        .arg(log)
        .arg("--end-with-parent")
        .arg(process::id().to_string())
        .stdout(Stdio::null());
    // The recording gets an interrupt and ends its log; what it has is learnt from.
    let ran = signals::run_child(&mut command)?;
    if !ran.status.success() {
        if ran.interrupted {
            return Err(strata_training::python::interrupted());
        }
        bail!("{interface}: cannot record it, so there is nothing to learn from");
    }
    Ok(())
}
