//! `strata compact`: block files into Parquet and pcapng.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use strata_archive::{ArchiveError, Compacted, encrypt_to, uncompacted};
use strata_record::{
    CompactPlan, CompactSpec, CompactStep, Compacting, NotOpen, TakeStep, compact_log,
    log_directory,
};
use strata_role::{Notice, Tell};
use strata_sandbox::Owner;
use strata_store::{Damage, Disk, Log, StoreError};
use strata_terminal::confined::SandboxArgs;
use strata_terminal::disk::disk;
use strata_terminal::log_options::GroupArgs;
use strata_terminal::logging::{self, LoggingArgs, QuietArgs};
use strata_terminal::output::{Completeness, print_json, refuse, standard};
use strata_terminal::progress::Progress;
use strata_terminal::signals::{Interrupted, stop_on_signal};
use strata_terminal::text::{at_least_1, chain, count_of, duration_ns, percent};
use strata_terminal::{key, plain};
use strata_wire::{Printable, grouped, human_bytes};
use tracing::{error, info};

use super::object_tier::{self, MoveArgs};
use super::prune::{self, RetentionArgs};

/// Arguments of `strata compact`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata compact log/
  strata compact log/ --encrypt-to age1...                    # a public key of `strata key new`
  strata compact log/ --every 10s --keep 30d --max-size 2T    # alongside a recording
  duckdb -c \"SELECT * FROM 'log/flows/**/*.parquet' LIMIT 5\"  # no Strata needed

All commands can read compacted packets. Block files that are still being written, or are damaged,
are not compacted. Ctrl-C ends the command within a second: finished files stay compacted, and the
exit status is 130.

With --every, the command waits for a log that does not exist yet, and continues after errors (a
lock held by another process, a full disk, a file that cannot be read): it reports them, and tries
again after the interval.")]
pub(crate) struct Args {
    /// Compact the log in this directory.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    /// Keep running, and compact newly completed block files at this interval, as in 10s.
    #[arg(long, value_name = "TIME")]
    every: Option<String>,

    /// Compact with this many threads. By default, one thread per core, or one with --every, so
    /// that the other cores stay free for the recording. The number does not affect the contents of
    /// the files.
    #[arg(long, value_name = "N", value_parser = at_least_1::<NonZeroUsize>)]
    jobs: Option<NonZeroUsize>,

    /// From now on, encrypt compacted files to this public key (age1...) or the keys in this file;
    /// may be given several times. The log remembers the keys; `none` turns encryption off.
    #[arg(long, value_name = "KEY")]
    encrypt_to: Vec<String>,

    #[command(flatten)]
    group: GroupArgs,

    #[command(flatten)]
    retention: RetentionArgs,

    #[command(flatten)]
    moving: MoveArgs,

    /// Print the result as a JSON object.
    #[arg(long, conflicts_with = "every")]
    json: bool,

    #[command(flatten)]
    pub(crate) quiet: QuietArgs,

    #[command(flatten)]
    sandbox: SandboxArgs,

    #[command(flatten)]
    pub(crate) logging: LoggingArgs,
}

impl Args {
    fn threads(&self) -> NonZeroUsize {
        let all = || match self.every {
            Some(_) => NonZeroUsize::MIN,
            None => available_parallelism().unwrap_or(NonZeroUsize::MIN),
        };
        self.jobs.unwrap_or_else(all)
    }

    /// What reports the work.
    fn report(&self) -> fn(CompactStep<'_>) -> io::Result<()> {
        match self.quiet.is_quiet() {
            true => say,
            false => report,
        }
    }
}

/// What was compacted, as JSON.
#[derive(serde::Serialize)]
struct Compaction {
    /// Block files that are compacted now.
    files: u64,
    packets: u64,
    bytes_before: u64,
    bytes_after: u64,
    took_seconds: f64,
    interrupted: bool,
    /// Block files that were left as they are.
    damage: Vec<String>,
    /// Recordings that were left as they are, because their models cannot be read.
    unknown_models: Vec<String>,
}

impl Compaction {
    fn new(done: &Compacted, took: Duration) -> Self {
        let texts = |all: &[Damage]| all.iter().map(Damage::to_string).collect();
        Self {
            files: done.files,
            packets: done.packets,
            bytes_before: done.bytes_before,
            bytes_after: done.bytes_after,
            took_seconds: took.as_secs_f64(),
            interrupted: done.interrupted,
            damage: texts(&done.damage),
            unknown_models: texts(&done.unknown_models),
        }
    }
}

/// The result as JSON. A step that was not asked for, or that failed, is null.
#[derive(Default, serde::Serialize)]
struct Answer {
    compacted: Option<Compaction>,
    pruned: Option<prune::Answer>,
    moved: Option<object_tier::Answer>,
    #[serde(flatten)]
    completeness: Option<Completeness>,
}

impl Answer {
    fn take(&mut self, step: CompactStep<'_>) {
        match step {
            CompactStep::Compacted(done, took) => {
                self.compacted = Some(Compaction::new(done, took));
            }
            CompactStep::Damaged(_) | CompactStep::Away(_) => (),
            CompactStep::Pruned(pruned) => self.pruned = Some(prune::Answer::new(pruned, false)),
            CompactStep::Moved(moved) => self.moved = Some(object_tier::Answer::new(moved)),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let owner = args.group.owner()?;
    let pause = args.every.as_deref().map(pause).transpose()?;
    let plan = CompactPlan {
        retention: args.retention.parse()?,
        may_take_most: args.retention.yes,
        threads: args.threads(),
        moving: args.moving.parse(&args.log)?,
    };
    let stop = stop_on_signal()?;
    if let Some(pause) = pause {
        return watch(args, &owner, CompactSpec { plan, pause }, stop);
    }
    let disk = prepare(args, &owner)?;
    let waiting = uncompacted(&Log::on(Arc::clone(&disk))?, None);
    let progress = Progress::unless(args.quiet.is_quiet(), || {
        Progress::up_to_bytes(waiting.bytes)
    });
    if !args.json {
        return once(&plan, &disk, &stop, &progress, &mut args.report());
    }
    let mut answer = Answer::default();
    let ended = once(&plan, &disk, &stop, &progress, &mut |step| {
        answer.take(step);
        say(step)
    });
    answer.completeness = Some(Completeness::of(&ended));
    print_json(&answer)?;
    ended
}

/// Compacts what is complete, then deletes and moves what is old enough.
fn once(
    plan: &CompactPlan,
    disk: &Arc<dyn Disk>,
    stop: &AtomicBool,
    progress: &Progress,
    take: &mut TakeStep<'_>,
) -> Result<()> {
    let mut take_below = |step: CompactStep<'_>| {
        progress.end();
        take(step)
    };
    let done = compact_log(
        &progress.watch(Arc::clone(disk)),
        plan.threads,
        stop,
        &tell(),
        &mut take_below,
    );
    progress.end();
    if let Ok(done) = &done {
        let damage = done.damage.iter().chain(&done.unknown_models);
        damage.for_each(|damage| say_damage(&damage.to_string()));
    }
    if !stop.load(Ordering::Relaxed) {
        plan.prune(disk, take)?;
    }
    let done = done?;
    if done.files == 0 && done.damage.is_empty() && done.unknown_models.is_empty() {
        info!("nothing to compact: all complete block files are already compacted");
    }
    if done.interrupted {
        info!("interrupted: compacted files stay compacted, and the next run compacts the rest");
        return Err(Interrupted.into());
    }
    if !plan.relocate(disk, stop, take)? {
        return Err(Interrupted.into());
    }
    ensure!(
        done.damage.is_empty(),
        "{} not compacted, because of damage",
        count_of(done.damage.len() as u64, "block file")
    );
    ensure!(
        done.unknown_models.is_empty(),
        "{} not compacted, because the model cannot be read",
        count_of(done.unknown_models.len() as u64, "recording")
    );
    Ok(())
}

/// A log that has had no manifest for this long has lost it.
const LOST_AFTER: Duration = Duration::from_secs(5);

/// Compacts every pause until told to stop.
fn watch(args: &Args, owner: &Owner, spec: CompactSpec, stop: Arc<AtomicBool>) -> Result<()> {
    let mut lost_since = None;
    let open = || {
        prepare(args, owner).map_err(|problem| {
            let may_come = match problem.downcast_ref() {
                Some(StoreError::Missing { .. }) => true,
                // A recording that failed to start takes its manifest back before its other files.
                Some(StoreError::Lost { .. }) => {
                    lost_since.get_or_insert_with(Instant::now).elapsed() < LOST_AFTER
                }
                _ => problem.downcast_ref().is_some_and(ArchiveError::is_busy),
            };
            match may_come {
                true => NotOpen::Yet(chain(&problem)),
                false => NotOpen::Ever(problem),
            }
        })
    };
    let Some(compacting) = Compacting::open(spec, open, stop, tell())? else {
        return Ok(());
    };
    // What lies in the log is known now.
    args.moving.parse(&args.log)?;
    args.sandbox.to_log(&args.log, args.moving.url())?;
    compacting.run(&mut args.report());
    Ok(())
}

/// Notices go where those of other roles go, in plain words.
fn tell() -> Tell {
    Arc::new(|notice: &Notice| {
        let mut notice = notice.clone();
        notice.text = plain::words(&notice.text);
        logging::notice(&notice);
    })
}

/// Opens the log, and changes what the command line says of it.
fn prepare(args: &Args, owner: &Owner) -> Result<Arc<dyn Disk>> {
    let disk = disk(&args.log)?;
    prune::refuse_links(&args.log)?;
    if owner.group.is_some() {
        log_directory(&args.log, owner)?;
    }
    if !args.encrypt_to.is_empty() {
        let in_clear = args.encrypt_to == ["none"];
        let keys: &[String] = if in_clear { &[] } else { &args.encrypt_to };
        encrypt_to(&disk, &key::recipients(keys)?)?;
    }
    Ok(disk)
}

/// How long to wait between two turns.
fn pause(text: &str) -> Result<Duration> {
    let pause = Duration::from_nanos(duration_ns(text)?);
    if pause.is_zero() {
        return Err(refuse("--every must be above 0, as in 10s"));
    }
    Ok(pause)
}

fn say_damage(damage: &str) {
    error!("{}", Printable(damage));
}

/// Reports what was done.
fn report(step: CompactStep<'_>) -> io::Result<()> {
    summary(step)?;
    say(step)
}

/// Says what was not done, and why.
fn say(step: CompactStep<'_>) -> io::Result<()> {
    match step {
        CompactStep::Compacted(..) => (),
        CompactStep::Damaged(damage) => say_damage(damage),
        CompactStep::Pruned(pruned) => prune::say(pruned, false),
        CompactStep::Moved(moved) => object_tier::say(moved),
        CompactStep::Away(away) => prune::warn_of_away(away),
    }
    Ok(())
}

/// Prints what was done.
fn summary(step: CompactStep<'_>) -> io::Result<()> {
    match step {
        CompactStep::Compacted(done, took) if done.files > 0 => writeln!(
            standard(),
            "{} packets of {} compacted in {:.2} s: {} -> {} ({})",
            grouped(done.packets),
            count_of(done.files, "block file"),
            took.as_secs_f64(),
            human_bytes(done.bytes_before),
            human_bytes(done.bytes_after),
            percent(done.bytes_after, done.bytes_before),
        ),
        CompactStep::Compacted(..) | CompactStep::Damaged(_) | CompactStep::Away(_) => Ok(()),
        CompactStep::Pruned(pruned) => prune::summary_of_turn(pruned),
        CompactStep::Moved(moved) if moved.parts == 0 => Ok(()),
        CompactStep::Moved(moved) => object_tier::summary(moved),
    }
}
