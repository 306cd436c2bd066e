//! `strata compact`: block files into Parquet and pcapng.

use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use strata_archive::{Compacted, Retention, compact_until, encrypt_to};
use strata_node::log_directory;
use strata_store::{Disk, Log};
use strata_wire::{grouped, human_bytes};
use tracing::{error, info, warn};

use crate::key;
use crate::logging::LoggingArgs;
use crate::object_tier::{self, MoveArgs};
use crate::output::{refuse, standard};
use crate::prune::{self, RetentionArgs};
use crate::record::GroupArgs;
use crate::signals::stop_on_signal;
use crate::text::{chain, count_of, duration_ns, percent};

/// Arguments of `strata compact`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata compact log/
  strata compact log/ --encrypt-to age1...                    # a public key of `strata key new`
  strata compact log/ --watch 10s --keep 30d --max-size 2T    # alongside a recording
  duckdb -c \"SELECT * FROM 'log/flows/**/*.parquet' LIMIT 5\"  # no Strata needed

What was compacted stays readable by export, query and info. A block file that is
still being written, or that is damaged, is left as it is.")]
pub(crate) struct Args {
    /// Read the log in this directory.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    /// Keep running, and compact newly completed block files each time this long has passed: 10s.
    #[arg(long, value_name = "TIME")]
    watch: Option<String>,

    /// Encrypt compacted files from now on, to this public key (age1...) or the keys in this file;
    /// may be given several times. The log remembers it; `none` turns it off.
    #[arg(long, value_name = "KEY")]
    encrypt_to: Vec<String>,

    #[command(flatten)]
    group: GroupArgs,

    #[command(flatten)]
    retention: RetentionArgs,

    #[command(flatten)]
    moving: MoveArgs,

    #[command(flatten)]
    pub(crate) logging: LoggingArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let owner = args.group.owner()?;
    let disk = object_tier::disk(&args.log)?;
    if owner.group.is_some() {
        log_directory(&args.log, &owner)?;
    }
    let moving = args.moving.parse(&args.log)?;
    let retention = args.retention.parse()?;
    let pause = args.watch.as_deref().map(pause).transpose()?;
    if !args.encrypt_to.is_empty() {
        let nobody = args.encrypt_to == ["none"];
        let keys: &[String] = if nobody { &[] } else { &args.encrypt_to };
        encrypt_to(&disk, &key::recipients(keys)?)?;
    }
    let stop = stop_on_signal()?;
    // Reported once, until it changes.
    let (mut known, mut known_full) = (None, None);
    loop {
        let done = turn(&disk, retention.as_ref(), &stop);
        let full = done
            .as_ref()
            .err()
            .filter(|error| is_for_want_of_room(error));
        let full = full.filter(|_| pause.is_some()).map(chain);
        if let Some(text) = full.as_ref().filter(|_| full != known_full) {
            warn!("no room to compact, will be tried again: {text}");
        }
        let done = if full.is_some() { None } else { Some(done?) };
        known_full = full;
        if stop.load(Ordering::Relaxed) {
            if done.as_ref().is_some_and(|done| done.interrupted) {
                info!("interrupted: what is compacted stays so, the rest comes with the next run");
            }
            return Ok(());
        }
        if let Some((place, age_ns)) = &moving {
            let moved = object_tier::apply(&disk, place, *age_ns, false);
            if pause.is_none() {
                moved?;
            } else {
                // The store may answer again; what is recorded meanwhile must be compacted.
                let problem = moved.err().map(|error| chain(&error));
                if let Some(text) = problem.as_ref().filter(|_| problem != known) {
                    warn!("not moved, will be tried again: {text}");
                }
                known = problem;
            }
        }
        let Some(pause) = pause else {
            let damaged = done.as_ref().map_or(0, |done| done.damage.len());
            let unknown = done.map_or(0, |done| done.unknown_models.len());
            ensure!(
                damaged == 0,
                "{} left as it is because of damage",
                count_of(damaged as u64, "block file")
            );
            ensure!(
                unknown == 0,
                "{unknown} recordings whose model cannot be read were left as they are"
            );
            return Ok(());
        };
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// How long to wait between two turns.
fn pause(text: &str) -> Result<Duration> {
    let pause = Duration::from_nanos(duration_ns(text)?);
    if pause.is_zero() {
        return Err(refuse("--watch must be above 0, as in 10s"));
    }
    Ok(pause)
}

/// Compacts, then deletes what has expired, which frees space even if compaction finds none.
fn turn(
    disk: &Arc<dyn Disk>,
    retention: Option<&Retention>,
    stop: &AtomicBool,
) -> Result<Compacted> {
    let started = Instant::now();
    // So that flows are those that the recording saw. Whatever else is wrong, compaction says.
    if let Ok(log) = Log::on(Arc::clone(disk))
        && let Err(error) = log.look_into_its_tunnels()
    {
        warn!("recordings of the log have different tunnels on a UDP port: {error}");
    }
    let done = compact_until(disk, stop, |_| ());
    if let Ok(done) = &done {
        report(done, started.elapsed())?;
    }
    if let Some(retention) = retention.filter(|_| !stop.load(Ordering::Relaxed)) {
        prune::apply(disk, retention, false, false)?;
    }
    Ok(done?)
}

/// Whether the disk is full, which may have changed by the next attempt.
fn is_for_want_of_room(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| {
        matches!(
            cause.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded
        )
    })
}

fn report(done: &Compacted, took: Duration) -> Result<()> {
    for damage in done.damage.iter().chain(&done.unknown_models) {
        error!("{damage}");
    }
    if done.files > 0 {
        writeln!(
            standard(),
            "{} packets of {} compacted in {:.2} s: {} -> {} ({})",
            grouped(done.packets),
            count_of(done.files, "block file"),
            took.as_secs_f64(),
            human_bytes(done.bytes_before),
            human_bytes(done.bytes_after),
            percent(done.bytes_after, done.bytes_before),
        )?;
    }
    Ok(())
}
