//! `strata verify`: checks that every byte is as it was written.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use strata_archive::verify;
use strata_store::{Damage, Log};
use strata_terminal::disk::disk;
use strata_terminal::key::KeyArgs;
use strata_terminal::output::standard;
use strata_terminal::progress::{Progress, bytes_of};
use strata_terminal::text::count_of;
use strata_wire::{Printable, PrintableJson, grouped, human_bytes};
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
    damage: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let disk = disk(&args.log)?;
    let progress = Progress::up_to_bytes(bytes_of(&Log::on(Arc::clone(&disk))?));
    let log = Log::on(progress.watch(disk))?;
    let verified = verify(&log, args.key.read()?.as_ref())?;
    drop(progress);
    if args.json {
        let texts = |all: &[Damage]| all.iter().map(Damage::to_string).collect();
        let answer = Answer {
            files: verified.files,
            packets: verified.packets,
            bytes: verified.bytes,
            not_decrypted: verified.not_decrypted,
            warnings: texts(&verified.warnings),
            damage: texts(&verified.damage),
        };
        writeln!(
            standard(),
            "{}",
            PrintableJson(&serde_json::to_string(&answer)?)
        )?;
    }
    for warning in &verified.warnings {
        warn!("{}", Printable(&warning.to_string()));
    }
    for damage in &verified.damage {
        error!("{}", Printable(&damage.to_string()));
    }
    if !verified.damage.is_empty() {
        bail!(
            "{} in {}",
            count_of(verified.damage.len() as u64, "damaged place"),
            args.log.display()
        );
    }
    if args.json {
        return Ok(());
    }
    let but = match verified.warnings.len() {
        0 => String::new(),
        warnings => format!(", but for {}", count_of(warnings as u64, "warning")),
    };
    writeln!(
        standard(),
        "{} with {} packets, {}: no damage{but}",
        count_of(verified.files, "file"),
        grouped(verified.packets),
        human_bytes(verified.bytes),
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
