//! `strata prune`: retention by age, class and size.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use strata_archive::{Away, PROTECTED, PruneOptions, Pruned, Retention, prune_as, retention_class};
use strata_store::{Disk, Log, RemovedBy};
use strata_terminal::disk::disk;
use strata_terminal::logging::QuietArgs;
use strata_terminal::output::{print_json, refuse, standard};
use strata_terminal::progress::Progress;
use strata_terminal::text::{bytes, count_of, duration_ns};
use strata_wire::{Printable, grouped, human_bytes, unix_ns};
use tracing::{info, warn};

/// What to keep.
#[derive(Debug, clap::Args)]
pub(crate) struct RetentionArgs {
    /// Delete packets older than this: 12h, 30d, 8w. A file, even the newest, is deleted once its
    /// last packet is that old. Packets that a policy protects are kept for ever unless
    /// --keep-class protected:TIME sets a limit for them.
    #[arg(long, value_name = "TIME")]
    keep: Option<String>,

    /// Keep the packets of one class this long: anomalous:365d. If a packet of a flow is anomalous,
    /// packets of the flow that were compacted together with it (of one worker and one hour, at
    /// most 524,288) are kept as long as it. A compacted file is deleted once the limits of all its
    /// classes have passed, and never if one of them has no limit. May be given for several
    /// classes.
    #[arg(long, value_name = "CLASS:TIME")]
    keep_class: Vec<String>,

    /// Delete the least important data while the log is larger than this: 500G, 2T. The oldest data
    /// of classes that are not anomalous is deleted first, then the oldest data of any class. The
    /// newest file and packets that a policy protects are never deleted for space. The size
    /// includes all files in the log's directory, even those that are never deleted (manifest.json,
    /// archive.json, models, checkpoints, drift, policies.jsonl). Files that were moved elsewhere
    /// (`strata move`) are neither included nor deleted.
    #[arg(long, value_name = "SIZE")]
    max_size: Option<String>,

    /// Let --keep and --keep-class delete more than half of the log even if its newest packet is
    /// more than an hour old. By default, such a deletion is refused, because the cause may be a
    /// clock that is far ahead. Not needed while packets are recorded.
    #[arg(long)]
    pub(crate) yes: bool,
}

impl RetentionArgs {
    /// `None` if nothing is to be deleted.
    pub(crate) fn parse(&self) -> Result<Option<Retention>> {
        let mut keep_class_ns = BTreeMap::new();
        for text in &self.keep_class {
            let (class, time) = text
                .rsplit_once(':')
                .with_context(|| format!("'{text}': write CLASS:TIME, as in anomalous:365d"))?;
            keep_class_ns.insert(retention_class(class), duration_ns(time)?);
        }
        let retention = Retention {
            keep_ns: self.keep.as_deref().map(duration_ns).transpose()?,
            keep_class_ns,
            bytes_max: self.max_size.as_deref().map(bytes).transpose()?,
        };
        Ok((retention != Retention::default()).then_some(retention))
    }
}

/// Warns of classes given an age but absent from the log: data of a misspelt one would be kept for
/// ever.
fn warn_of_unknown_classes(disk: &Arc<dyn Disk>, retention: &Retention) -> Result<()> {
    let log = Log::on(Arc::clone(disk))?;
    let of_models = log.recordings().iter().flat_map(|one| &one.classes);
    let mut known: BTreeSet<String> = of_models.map(|class| retention_class(class)).collect();
    let parts = log.archive().parts.iter();
    known.extend(parts.map(|part| part.retention.clone()));
    known.insert(PROTECTED.to_owned());
    for class in retention.keep_class_ns.keys() {
        if !known.contains(class) {
            let known: Vec<String> = known.into_iter().collect();
            warn!(
                "the log has no packets of class '{}'; it has: {}",
                Printable(class),
                Printable(&known.join(", "))
            );
            break;
        }
    }
    Ok(())
}

/// Arguments of `strata prune`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata prune log/ --keep 30d --keep-class anomalous:365d
  strata prune log/ --max-size 500G --dry-run

Compacted files are deleted by hour and class. A block file holds packets of all classes, and stays
until the limit of the class that is kept longest has passed. If it holds packets that a policy
protects, these are compacted and kept, and the other packets are deleted. `strata info` counts
deleted packets by recording, class and reason. A file that is still being written stays until it is
complete: `strata record -G 3600` completes one every hour. When all packets of a recording are
deleted, its entry in manifest.json (counts, names, the capture filter, events), its model, and
statistics without packets or addresses (checkpoint, drift) remain. Policies that were added at run
time (policies.jsonl) also remain, with the addresses in them.")]
pub(crate) struct Args {
    /// Prune the log in this directory.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    #[command(flatten)]
    retention: RetentionArgs,

    /// Show what would be deleted, but delete nothing.
    #[arg(long)]
    dry_run: bool,

    /// Print the result as a JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(crate) quiet: QuietArgs,
}

/// The result as JSON.
#[derive(serde::Serialize)]
pub(crate) struct Answer {
    dry_run: bool,
    /// Whether more would go than is deleted without --yes.
    needs_yes: bool,
    parts: u64,
    block_files: u64,
    /// Block files of which only what policies protect is left. In a dry run, packets and bytes are
    /// upper bounds if there are any.
    split: u64,
    packets: u64,
    bytes: u64,
    bytes_left: u64,
    /// Those of them in files that are never deleted.
    fixed_bytes: u64,
    /// Block files that are old enough, and still being written.
    being_written: u64,
    waits_for_readers: bool,
    still_too_large: bool,
    /// Block files left as they are, because what policies protect cannot be taken out of them.
    not_split: Vec<String>,
    unknown_models: Vec<String>,
}

impl Answer {
    pub(crate) fn new(pruned: &Pruned, dry_run: bool) -> Self {
        let left = pruned.not_split.iter();
        let models = pruned.unknown_models.iter();
        Self {
            dry_run,
            needs_yes: pruned.would_take_most.is_some(),
            parts: pruned.parts,
            block_files: pruned.block_files,
            split: pruned.split,
            packets: pruned.packets,
            bytes: pruned.bytes,
            bytes_left: pruned.bytes_left,
            fixed_bytes: pruned.fixed_bytes,
            being_written: pruned.being_written,
            waits_for_readers: pruned.waits_for_readers,
            still_too_large: pruned.still_too_large,
            not_split: left
                .map(|one| format!("{}: {}", one.file, one.why))
                .collect(),
            unknown_models: models.map(ToString::to_string).collect(),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let progress = Progress::unless(args.quiet.is_quiet(), Progress::of_bytes);
    let disk = progress.watch(disk(&args.log)?);
    let retention = args.retention.parse()?;
    let Some(retention) = retention else {
        return Err(refuse(
            "no limit given: use --keep, --keep-class or --max-size",
        ));
    };
    warn_of_unknown_classes(&disk, &retention)?;
    if !args.dry_run {
        refuse_links(&args.log)?;
    }
    let options = PruneOptions {
        now_ns: unix_ns(),
        dry_run: args.dry_run,
        by: RemovedBy::Prune,
        may_take_most: args.retention.yes,
    };
    let pruned = prune_as(&disk, &retention, &options)?;
    drop(progress);
    if args.json {
        print_json(&Answer::new(&pruned, args.dry_run))?;
    } else if !args.quiet.is_quiet() {
        summary(&pruned, args.dry_run)?;
    }
    if let Some(most) = &pruned.would_take_most {
        warn!("the deletion would be refused: {most}");
    }
    for problem in &pruned.not_split {
        warn!(
            "{}: left unchanged: policies protect some of its packets, and these cannot be moved to a new file: {}",
            Printable(&problem.file),
            Printable(&problem.why)
        );
    }
    for problem in &pruned.unknown_models {
        warn!("{problem}");
    }
    if pruned.being_written > 0 {
        info!(
            "packets that are too old are in {} still being written: a later prune deletes a file \
             once it is complete and its last packet is too old (record -G SECONDS or -C MB begins \
             new ones)",
            count_of(pruned.being_written, "block file")
        );
    }
    say(&pruned, args.dry_run);
    pruned.away.iter().for_each(warn_of_away);
    Ok(())
}

/// Fails if a block file is a symbolic link: to delete it would leave its target behind, with all packets, and in
/// clear.
pub(crate) fn refuse_links(log: &Path) -> Result<()> {
    // What reads the files reports a directory that cannot be listed.
    let Ok(entries) = fs::read_dir(log.join("blocks")) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        ensure!(
            !is_link,
            "{}: this is a symbolic link: deleting it would leave its target, unencrypted and with \
             all packets: replace the link with the file itself, and try again",
            entry.path().display()
        );
    }
    Ok(())
}

/// Prints what was deleted, or would be.
fn summary(pruned: &Pruned, dry_run: bool) -> io::Result<()> {
    let upmost = if dry_run && pruned.split > 0 {
        "up to "
    } else {
        ""
    };
    writeln!(
        standard(),
        "{} {} and {}, {upmost}{} packets, {upmost}{}; {} left, {} of it in files that are never deleted",
        if dry_run { "would delete" } else { "deleted" },
        count_of(pruned.parts, "part"),
        count_of(pruned.block_files, "block file"),
        grouped(pruned.packets),
        human_bytes(pruned.bytes),
        human_bytes(pruned.bytes_left),
        human_bytes(pruned.fixed_bytes),
    )
}

/// Prints what a turn of `strata compact` has deleted, if that is anything.
pub(crate) fn summary_of_turn(pruned: &Pruned) -> io::Result<()> {
    match pruned.parts == 0 && pruned.block_files == 0 && pruned.split == 0 {
        true => Ok(()),
        false => summary(pruned, false),
    }
}

/// Warns of files that were to be deleted, and are still there.
pub(crate) fn warn_of_away(away: &Away) {
    warn!(
        "{}; the next prune or compact tries again",
        Printable(&away.to_string())
    );
}

/// Says what else became of files, or would.
pub(crate) fn say(pruned: &Pruned, dry_run: bool) {
    if pruned.split > 0 {
        info!(
            "in {}, the packets that policies protect {} compacted and kept, and the rest {} deleted",
            count_of(pruned.split, "block file"),
            if dry_run { "would be" } else { "are" },
            if dry_run { "would be" } else { "is" },
        );
    }
    if pruned.waits_for_readers && pruned.away.is_empty() {
        info!("another process is reading the log: the next prune or compact deletes the files");
    }
    if pruned.still_too_large {
        warn!(
            "the log is larger than --max-size: it still has {} in its newest file and packets \
             that policies protect, and {} in files that are never deleted (manifest.json, \
             archive.json, models, checkpoints, drift, policies.jsonl)",
            human_bytes(pruned.bytes_left.saturating_sub(pruned.fixed_bytes)),
            human_bytes(pruned.fixed_bytes),
        );
    }
}
