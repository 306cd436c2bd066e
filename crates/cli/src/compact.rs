//! `strata compact`: block files into Parquet and pcapng.

mod watch;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use strata_archive::{Compacted, Place, Retention, compact_until, encrypt_to};
use strata_node::log_directory;
use strata_sandbox::Owner;
use strata_store::{Disk, Log, RemovedBy};
use strata_wire::{Printable, grouped, human_bytes};
use tracing::{error, info, warn};

use crate::confined::SandboxArgs;
use crate::key;
use crate::logging::LoggingArgs;
use crate::object_tier::{self, MoveArgs};
use crate::output::{refuse, standard};
use crate::prune::{self, Pruning, RetentionArgs};
use crate::record::GroupArgs;
use crate::signals::{Interrupted, stop_on_signal};
use crate::text::{count_of, duration_ns, percent};

/// Arguments of `strata compact`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata compact log/
  strata compact log/ --encrypt-to age1...                    # a public key of `strata key new`
  strata compact log/ --watch 10s --keep 30d --max-size 2T    # alongside a recording
  duckdb -c \"SELECT * FROM 'log/flows/**/*.parquet' LIMIT 5\"  # no Strata needed

What was compacted stays readable by export, query and info. A block file that is
still being written, or that is damaged, is left as it is. Ctrl-C ends within a
second: what is complete stays compacted, and the exit status is 130.

With --watch it waits for the log if that is not there yet, and goes on after
whatever fails (a lock that somebody else holds, a full disk, a file that cannot be
read): it says so, and tries again after the next pause.")]
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
    sandbox: SandboxArgs,

    #[command(flatten)]
    pub(crate) logging: LoggingArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let owner = args.group.owner()?;
    let pause = args.watch.as_deref().map(pause).transpose()?;
    let plan = Plan {
        retention: args.retention.parse()?,
        yes: args.retention.yes,
        moving: args.moving.parse(&args.log)?,
        stop: stop_on_signal()?,
    };
    if let Some(pause) = pause {
        return watch::run(args, &owner, &plan, pause);
    }
    let disk = prepare(args, &owner)?;
    let done = compacted(&disk, &plan.stop);
    if let Ok(done) = &done {
        say_damage(done);
    }
    plan.prune(&disk)?;
    let done = done?;
    if done.interrupted {
        info!("interrupted: what is compacted stays so, the rest comes with the next run");
        return Err(Interrupted.into());
    }
    plan.move_parts(&disk)?;
    ensure!(
        done.damage.is_empty(),
        "{} left as it is because of damage",
        count_of(done.damage.len() as u64, "block file")
    );
    ensure!(
        done.unknown_models.is_empty(),
        "{} recordings whose model cannot be read were left as they are",
        done.unknown_models.len()
    );
    Ok(())
}

/// Opens the log, and changes what the command line says of it.
fn prepare(args: &Args, owner: &Owner) -> Result<Arc<dyn Disk>> {
    let disk = object_tier::disk(&args.log)?;
    if owner.group.is_some() {
        log_directory(&args.log, owner)?;
    }
    if !args.encrypt_to.is_empty() {
        let nobody = args.encrypt_to == ["none"];
        let keys: &[String] = if nobody { &[] } else { &args.encrypt_to };
        encrypt_to(&disk, &key::recipients(keys)?)?;
    }
    Ok(disk)
}

/// What to do besides compacting, until told to stop.
struct Plan {
    retention: Option<Retention>,
    /// Whether age may delete most of a log whose newest packet is old.
    yes: bool,
    moving: Option<(Place, u64)>,
    stop: Arc<AtomicBool>,
}

impl Plan {
    /// Deletes what has expired, which frees space even if compaction finds none.
    fn prune(&self, disk: &Arc<dyn Disk>) -> Result<()> {
        if self.is_stopped() {
            return Ok(());
        }
        let pruning = Pruning {
            by: RemovedBy::Compact,
            dry_run: false,
            yes: self.yes,
            always: false,
        };
        let mut retention = self.retention.iter();
        retention.try_for_each(|retention| prune::apply(disk, retention, pruning))
    }

    fn move_parts(&self, disk: &Arc<dyn Disk>) -> Result<()> {
        match &self.moving {
            Some((place, age_ns)) => object_tier::apply(disk, place, *age_ns, false, &self.stop),
            None => Ok(()),
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
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

/// Compacts, and says what came of it.
fn compacted(disk: &Arc<dyn Disk>, stop: &AtomicBool) -> Result<Compacted> {
    let started = Instant::now();
    // So that flows are those that the recording saw. Whatever else is wrong, compaction says.
    if let Ok(log) = Log::on(Arc::clone(disk))
        && let Err(error) = log.look_into_its_tunnels()
    {
        warn!("recordings of the log have different tunnels on a UDP port: {error}");
    }
    let done = compact_until(disk, stop, |_| ())?;
    report(&done, started.elapsed())?;
    Ok(done)
}

fn say_damage(done: &Compacted) {
    for damage in done.damage.iter().chain(&done.unknown_models) {
        error!("{}", Printable(&damage.to_string()));
    }
}

fn report(done: &Compacted, took: Duration) -> Result<()> {
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
