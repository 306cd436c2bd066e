//! `strata record`: the main road.

use std::collections::BTreeMap;
use std::fs;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use strata_capture::{Input, InputOptions};
use strata_pipeline::{Mode, ModeConfig, Worker, WorkerOptions, run as run_worker};
use strata_store::{About, MANIFEST_NAME, RealDisk, Recorder, RecorderOptions, StoreError};
use strata_wire::{Ledger, TunnelKey};

use crate::text;

/// Arguments of `strata record`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata record -r trace.pcapng -o log/
  strata record -r - -o log/ --mode log-all 'tcp port 443'
  zcat huge.pcap.gz | strata record -r - -o log/ -C 500")]
pub(crate) struct Args {
    /// Capture file to read: pcap or pcapng, plain, gzip or zstd; - is standard
    /// input. Several are merged in time order.
    #[arg(short = 'r', long = "read", value_name = "FILE", required = true)]
    read: Vec<PathBuf>,

    /// Directory of the log; made if need be. Recording into an existing log adds
    /// to it.
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    output: PathBuf,

    /// Model file; without it the built-in model, which is conservative.
    #[arg(short = 'm', long = "model", value_name = "FILE")]
    model: Option<PathBuf>,

    /// Logging mode: default, log-all, log-partial, log-sampled, log-minimum, or
    /// one of the configuration file. Given more than once, each packet is kept
    /// as the most demanding one asks.
    #[arg(long, value_name = "NAME", default_value = "default")]
    mode: Vec<String>,

    /// Configuration file with own modes (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Whose flow a tunnelled packet belongs to (GRE, ERSPAN, VXLAN, GENEVE,
    /// GTP-U, IP in IP).
    #[arg(long, value_enum, default_value_t = Tunnel::Inner)]
    tunnel_key: Tunnel,

    /// Begin a new block file before one holds more than so many million bytes;
    /// with a unit (500MB, 2GiB) that size; 0 never. At least one block.
    #[arg(short = 'C', long, value_name = "SIZE", default_value = "1GiB")]
    rotate_size: String,

    /// Begin a new block file once one spans so many seconds of packet time; 0
    /// never. Files end with a block, so a quiet input rotates late.
    #[arg(short = 'G', long, value_name = "SECONDS", default_value_t = 0)]
    rotate_seconds: u64,

    /// Size of a memory block, which is written at once.
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    block_size: String,

    /// Key of flow fingerprints, for repeatable runs; random by default, so that
    /// nobody can aim at a bucket.
    #[arg(long, value_name = "N")]
    hash_seed: Option<u64>,

    /// Chooses which packets sampled granularities keep.
    #[arg(long, value_name = "N", default_value_t = 0)]
    sampling_seed: u64,

    /// Only packets that match, in the filter language of tcpdump. Options go
    /// before it.
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    filter: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tunnel {
    /// The innermost packet's flow.
    Inner,
    /// The flow between the tunnel's ends.
    Outer,
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Own modes by name.
    #[serde(default)]
    modes: BTreeMap<String, ModeConfig>,
}

fn config(path: Option<&Path>) -> Result<Config> {
    let Some(path) = path else {
        return Ok(Config::default());
    };
    let named = || path.display().to_string();
    let content = fs::read_to_string(path).with_context(named)?;
    toml::from_str(&content).with_context(named)
}

/// The directory as a disk, unless something that is no log lies there.
fn log_directory(dir: &Path) -> Result<RealDisk> {
    let listed = fs::read_dir(dir).map(|entries| entries.flatten().collect::<Vec<_>>());
    let entries = listed.unwrap_or_default();
    let ours = ["lock", "models", "blocks", "manifest.json.new"];
    let foreign = entries
        .iter()
        .any(|e| !ours.iter().any(|name| e.file_name() == *name));
    if foreign && !dir.join(MANIFEST_NAME).exists() {
        let dir = dir.display().to_string();
        return Err(StoreError::NotALog { dir }.into());
    }
    RealDisk::create_dir(dir).with_context(|| format!("{}: cannot make the log", dir.display()))
}

/// As tcpdump's -C, a bare number counts millions of bytes.
fn rotate_bytes(text: &str) -> Result<u64> {
    match text.parse::<u64>() {
        Ok(millions) => millions.checked_mul(1_000_000).context("-C is too large"),
        Err(_) => text::bytes(text),
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let config = config(args.config.as_deref())?;
    let modes: Result<Vec<Mode>, _> = args
        .mode
        .iter()
        .map(|name| Mode::by_name(name, &config.modes))
        .collect();
    let modes = modes?;
    let filter = text::filter(&args.filter)?;
    let loaded = crate::model::load(args.model.as_deref())?;
    let block_bytes = usize::try_from(text::bytes(&args.block_size)?)?;
    anyhow::ensure!(
        (64 << 10..=256 << 20).contains(&block_bytes),
        "--block-size must be from 64KiB to 256MiB"
    );
    let hash_seed = match args.hash_seed {
        Some(seed) => [seed, 0],
        None => [getrandom::u64()?, getrandom::u64()?],
    };
    let options = RecorderOptions {
        block_bytes,
        rotate_bytes: rotate_bytes(&args.rotate_size)?,
        rotate_ns: args.rotate_seconds.saturating_mul(1_000_000_000),
        ..RecorderOptions::default()
    };
    // What can be wrong first: a mistyped name shall not leave a log behind.
    for mode in &modes {
        mode.granularities(&loaded.model)?;
    }
    let stop = stop_on_signal()?;
    let mut input_options = InputOptions::default();
    input_options.stop = Some(Arc::clone(&stop));
    let mut input = Input::open(&args.read, &input_options)?;
    if args.model.is_none() {
        eprintln!(
            "strata: no model given (-m): the built-in one cuts to headers only what is \
             confidently ordinary and keeps the rest whole"
        );
    }
    let about = About {
        program: concat!("strata ", env!("CARGO_PKG_VERSION")).into(),
        inputs: args
            .read
            .iter()
            .map(|path| path.display().to_string())
            .collect(),
        filter: args.filter.join(" "),
        mode: args.mode.join("+"),
        model: loaded.model.name.clone(),
        model_json: loaded.json,
        classes: loaded.model.class_names(),
        hash_seed,
    };
    let disk = log_directory(&args.output)?;
    let (recorder, sink) = Recorder::start(Arc::new(disk), options, &about)?;
    let worker_options = WorkerOptions {
        modes,
        filter,
        tunnel_key: match args.tunnel_key {
            Tunnel::Inner => TunnelKey::Inner,
            Tunnel::Outer => TunnelKey::Outer,
        },
        hash_seed,
        sampling_seed: args.sampling_seed,
    };
    let mut worker = Worker::new(&loaded.model, worker_options, sink)?;
    let started = Instant::now();
    let bar = progress_bar();
    let mut last_shown = started;
    let ran = run_worker(&mut input, &mut worker, |worker| {
        if last_shown.elapsed() > Duration::from_millis(100) {
            last_shown = Instant::now();
            bar.set_position(worker.ledger().seen.packets);
        }
        if stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let mut warnings: Vec<String> = input
        .take_warnings()
        .iter()
        .map(ToString::to_string)
        .collect();
    for (link, problem) in worker.filter_problems() {
        warnings.push(format!("the filter matches no packet of {link}: {problem}"));
    }
    if stop.load(Ordering::Relaxed) {
        warnings.push(String::from("interrupted by a signal: the input has more"));
    }
    for warning in &warnings {
        eprintln!("strata: warning: {warning}");
    }
    let filter_fits_nowhere = worker.filter_fits_nowhere();
    let id = recorder.id();
    let ledger = worker.ledger();
    let pressure = worker.pressure();
    drop(worker);
    let unfiltered = worker_problem(&ledger, filter_fits_nowhere);
    warnings.extend(
        ran.as_ref()
            .err()
            .map(|error| format!("ended early: {error}")),
    );
    let closed = recorder.finish(&ledger, warnings);
    let shown = summary(args, id, &ledger, pressure, started.elapsed());
    // What went wrong counts, also where nobody reads the summary.
    ran?;
    closed?;
    ledger.check()?;
    unfiltered?;
    shown
}

/// Set by the first interrupt or termination signal: what has been read is then
/// recorded properly. The second one ends the program at once.
fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset.
        flag::register_conditional_default(signal, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// An error if packets came and the filter could be applied to none of them.
fn worker_problem(ledger: &Ledger, fits_nowhere: Option<String>) -> Result<()> {
    match fits_nowhere {
        Some(problem) if ledger.seen.packets > 0 => {
            bail!("the filter cannot be applied to any interface of the input: {problem}")
        }
        _ => Ok(()),
    }
}

fn progress_bar() -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {human_pos} packets, {per_sec}, {elapsed}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::new_spinner().with_style(style)
}

fn summary(
    args: &Args,
    id: u32,
    ledger: &Ledger,
    pressure: strata_sketch::Pressure,
    took: Duration,
) -> Result<()> {
    let dir = &args.output;
    let mut out = stdout().lock();
    writeln!(
        out,
        "{} packets ({}) in {:.2} s -> {} recording {id}",
        text::count(ledger.seen.packets),
        text::human_bytes(ledger.seen.bytes),
        took.as_secs_f64(),
        dir.display(),
    )?;
    crate::info::print_recording(&mut out, dir, id)?;
    writeln!(out, "{ledger}")?;
    if pressure.packets > 0 {
        writeln!(
            out,
            "sketch: {} windows, {} flow buckets taken, {} of them from another flow, {} packets without a bucket ({})",
            text::count(pressure.windows),
            text::count(pressure.claimed),
            text::count(pressure.replaced),
            text::count(pressure.without_bucket),
            text::percent(pressure.without_bucket, pressure.packets),
        )?;
    }
    Ok(())
}
