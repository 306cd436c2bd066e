//! `strata move`: compacted files to an object store or another disk, and back.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use strata_archive::{Moved, Place, relocate_until};
use strata_store::{Log, damage_texts};
use strata_terminal::disk::disk;
use strata_terminal::logging::QuietArgs;
use strata_terminal::output::{Completeness, print_json, refuse, standard};
use strata_terminal::progress::Progress;
use strata_terminal::signals::{Interrupted, stop_on_signal};
use strata_terminal::text::duration_ns;
use strata_wire::{Printable, count_of, grouped, human_bytes, unix_ns};
use tracing::{error, info, warn};

use super::prune;

/// What `strata compact` moves after compacting.
#[derive(Debug, clap::Args)]
pub(crate) struct MoveArgs {
    /// After compacting, move compacted files to this URL, as `strata move` does.
    #[arg(long, value_name = "URL")]
    move_to: Option<String>,

    /// Move only packets older than this: 12h, 7d.
    #[arg(long, value_name = "TIME", requires = "move_to")]
    move_after: Option<String>,
}

impl MoveArgs {
    /// Where files go.
    pub(crate) fn url(&self) -> Option<&str> {
        self.move_to.as_deref()
    }

    /// Where files of `log` go, and their minimum age in ns.
    pub(crate) fn parse(&self, log: &Path) -> Result<Option<(Place, u64)>> {
        let Some(url) = &self.move_to else {
            return Ok(None);
        };
        let place = place(url, log)?;
        Ok(Some((place, age(self.move_after.as_deref())?)))
    }
}

/// The place at a URL, for files of `log`; nothing within the log is one.
fn place(url: &str, log: &Path) -> Result<Place> {
    let place = Place::elsewhere(url).map_err(refuse)?;
    let Some(dir) = url.strip_prefix("file://") else {
        return Ok(place);
    };
    let exists = Path::new(dir).ancestors().find(|above| above.exists());
    let (dir, log) = (exists.map(Path::canonicalize), log.canonicalize());
    if let (Some(Ok(dir)), Ok(log)) = (dir, log)
        && dir.starts_with(&log)
    {
        return Err(refuse(format!(
            "{url}: this directory is inside the log {}; name one outside it",
            log.display()
        )));
    }
    Ok(place)
}

fn age(text: Option<&str>) -> Result<u64> {
    text.map_or(Ok(0), duration_ns)
}

/// Arguments of `strata move`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata move log/ s3://traffic/sensor-7 --older-than 7d
  strata move log/ file:///mnt/archive/sensor-7
  strata move log/ --back
  strata compact log/ --every 10s --move-to s3://traffic/sensor-7 --move-after 7d

All commands, such as export, query, verify and prune, can also read the files of a log in an object
store. The store and the credentials are taken from the usual environment variables:
AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN.")]
pub(crate) struct Args {
    /// Move files of the log in this directory.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    /// Move to s3://BUCKET/PREFIX or file:///DIRECTORY. Each log needs a URL of its own.
    #[arg(value_name = "URL", required_unless_present = "back")]
    url: Option<String>,

    /// Move back into the log's directory.
    #[arg(long, conflicts_with = "url")]
    back: bool,

    /// Move only packets older than this: 12h, 7d.
    #[arg(long, value_name = "TIME")]
    older_than: Option<String>,

    /// Print the result as a JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(crate) quiet: QuietArgs,
}

/// What was moved, as JSON.
#[derive(serde::Serialize)]
pub(crate) struct Answer {
    parts: u64,
    packets: u64,
    bytes: u64,
    /// Old files are still there, because another process reads the log or a tier is away.
    waits_for_readers: bool,
    interrupted: bool,
    /// Parts that were left where they are.
    damage: Vec<String>,
}

impl Answer {
    pub(crate) fn new(moved: &Moved) -> Self {
        Self {
            parts: moved.parts,
            packets: moved.packets,
            bytes: moved.bytes,
            waits_for_readers: moved.waits_for_readers,
            interrupted: moved.interrupted,
            damage: damage_texts(&moved.damage),
        }
    }
}

/// The result as JSON.
#[derive(serde::Serialize)]
struct Whole {
    #[serde(flatten)]
    moved: Answer,
    #[serde(flatten)]
    completeness: Completeness,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let place = match &args.url {
        Some(url) => place(url, &args.log)?,
        None => Place::Log,
    };
    let age_ns = age(args.older_than.as_deref())?;
    let disk = disk(&args.log)?;
    let stop = stop_on_signal()?;
    let until_ns = unix_ns().saturating_sub(age_ns);
    let is_compacted = !Log::on(Arc::clone(&disk))?.archive().parts.is_empty();
    let progress = Progress::unless(args.quiet.is_quiet(), Progress::of_bytes);
    let disk = progress.watch(disk);
    let moved = relocate_until(&disk, &place, until_ns, &stop, |_| ())?;
    drop(progress);
    let ended = match moved.damage.len() {
        0 if moved.interrupted => Err(Interrupted.into()),
        0 => Ok(()),
        parts => {
            let parts = count_of(parts as u64, "part");
            Err(anyhow!("{parts} not moved because of damage (see above)"))
        }
    };
    if args.json {
        print_json(&Whole {
            moved: Answer::new(&moved),
            completeness: Completeness::of(&ended),
        })?;
    } else if !args.quiet.is_quiet() {
        summary(&moved)?;
    }
    say(&moved);
    if !is_compacted {
        warn!(
            "nothing in this log is compacted yet, and only compacted files are moved: first run `strata compact {}`",
            Printable(&args.log.display().to_string())
        );
    }
    moved.away.iter().for_each(prune::warn_of_away);
    ended
}

/// Prints what was moved.
pub(crate) fn summary(moved: &Moved) -> io::Result<()> {
    writeln!(
        standard(),
        "moved {} parts, {} packets, {}",
        grouped(moved.parts),
        grouped(moved.packets),
        human_bytes(moved.bytes),
    )
}

/// Says what was not moved, and why.
pub(crate) fn say(moved: &Moved) {
    if moved.waits_for_readers && moved.away.is_empty() {
        info!(
            "another process is reading the log: the next move, prune or compact deletes the old files"
        );
    }
    for damage in &moved.damage {
        error!("{damage}");
    }
    if moved.damage.is_empty() && moved.interrupted {
        info!(
            "interrupted: files that were already moved stay in their new location; the others are \
             unchanged"
        );
    }
}
