//! `strata verify`: checks that every byte is as it was written.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use strata_archive::verify;
use strata_store::{Log, Losses, damage_counts, damage_texts};
use strata_terminal::disk::disk;
use strata_terminal::key::KeyArgs;
use strata_terminal::logging::QuietArgs;
use strata_terminal::output::{Completeness, print_json, standard};
use strata_terminal::progress::{Progress, bytes_of};
use strata_terminal::text::{count_of, time};
use strata_wire::{Printable, grouped, human_bytes};
use tracing::{error, warn};

/// Arguments of `strata verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Check the log in this directory.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    #[command(flatten)]
    key: KeyArgs,

    /// Print the result as a JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(crate) quiet: QuietArgs,
}

/// The result as JSON.
#[derive(serde::Serialize)]
struct Answer {
    files: u64,
    packets: u64,
    bytes: u64,
    /// Encrypted files of which only the stored bytes were checked.
    not_decrypted: u64,
    warnings: Vec<String>,
    /// Packets that the log is known to lack although it should have them.
    lost_packets: u64,
    damage: Vec<String>,
    #[serde(flatten)]
    completeness: Completeness,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let disk = disk(&args.log)?;
    let bytes = bytes_of(&Log::on(Arc::clone(&disk))?);
    let progress = Progress::unless(args.quiet.is_quiet(), || Progress::up_to_bytes(bytes));
    let log = Log::on(progress.watch(disk))?;
    // Packets of blocks that are damaged count as lost below.
    let others = Losses {
        lost: 0,
        ..log.losses()?
    };
    let verified = verify(&log, args.key.read()?.as_ref())?;
    drop(progress);
    let ended = match damage_counts(&verified.damage) {
        None => Ok(()),
        Some(counts) => Err(anyhow!("{counts} in {}", args.log.display())),
    };
    let others_packets = others.packets();
    let others = others.texts(time).into_iter();
    let others: Vec<String> = others
        .map(|what| format!("the log {what} (see `strata info`)"))
        .collect();
    let lost = verified.lost.iter().map(|lost| lost_text(*lost));
    let lost = lost.chain(others.iter().cloned());
    if args.json {
        let packets = verified.lost.iter().map(|(_, packets)| *packets);
        print_json(&Answer {
            files: verified.files,
            packets: verified.packets,
            bytes: verified.bytes,
            not_decrypted: verified.not_decrypted,
            warnings: [damage_texts(&verified.warnings), others.clone()].concat(),
            lost_packets: packets.fold(others_packets, u64::saturating_add),
            damage: damage_texts(&verified.damage),
            completeness: Completeness::of(&ended),
        })?;
    }
    for warning in &verified.warnings {
        warn!("{}", Printable(&warning.to_string()));
    }
    for text in damage_texts(&verified.damage) {
        error!("{}", Printable(&text));
    }
    if args.json || args.quiet.is_quiet() || ended.is_err() {
        lost.for_each(|lost| warn!("{lost}"));
        return ended;
    }
    let but = match verified.warnings.len() {
        0 => String::new(),
        warnings => format!(", but for {}", count_of(warnings as u64, "warning")),
    };
    writeln!(
        standard(),
        "{} with {} packets, {}: no damage{but}{}",
        count_of(verified.files, "file"),
        grouped(verified.packets),
        human_bytes(verified.bytes),
        lost.map(|lost| format!("; {lost}")).collect::<String>(),
    )?;
    if verified.not_decrypted > 0 {
        writeln!(
            standard(),
            "{} of them are encrypted: with --key, their contents are checked too",
            grouped(verified.not_decrypted),
        )?;
    }
    Ok(())
}

/// What is said of packets of a recording that never were in a file.
fn lost_text((recording, packets): (u32, u64)) -> String {
    format!(
        "recording {recording} lost {} before they were in a file (see `strata info`)",
        count_of(packets, "packet")
    )
}
