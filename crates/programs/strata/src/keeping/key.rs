//! `strata key`: keys of encrypted logs, and the key options of other subcommands.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use strata_archive::{Identities, rotate};
use strata_terminal::disk::disk;
use strata_terminal::key::{identities, recipients};
use strata_terminal::output::{print_json, standard};
use strata_wire::grouped;
use tracing::info;

/// Arguments of `strata key`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata key new analysts.key                      # keep it off the machine that records
  strata compact log/ --encrypt-to age1...         # from now on, with the public key
  strata export log/ --key analysts.key -w - | wireshark -k -i -
  strata key new next.key
  strata key rotate log/ --old analysts.key --new age1...

Keys and encrypted files have the formats of age (age-encryption.org): age-keygen can make the
keys, and age can decrypt the files (docs/formats/archive.md).")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make a key pair: write the secret key to a file, print the public one.
    New {
        /// Write the secret key to this new file.
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Print the result as a JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Replace the keys of a log. Its data does not change: only the file keys in archive.json are
    /// encrypted again, all of them or none.
    Rotate {
        /// Change the log in this directory.
        #[arg(value_name = "LOG")]
        log: PathBuf,

        /// Open the log with the secret key in this file.
        #[arg(long, value_name = "FILE", env = "STRATA_KEY")]
        old: PathBuf,

        /// Encrypt to this public key (age1...) or the keys in this file; may be given several
        /// times: any one of the keys then opens the log.
        #[arg(long, value_name = "KEY", required = true)]
        new: Vec<String>,

        /// Print the result as a JSON object.
        #[arg(long)]
        json: bool,
    },
}

/// A new key as JSON.
#[derive(serde::Serialize)]
struct NewKey<'a> {
    /// The file with the secret key.
    file: String,
    public_keys: &'a [String],
}

/// The new keys of a log as JSON.
#[derive(serde::Serialize)]
struct NewKeys<'a> {
    /// Compacted parts that these keys open now.
    parts: u64,
    public_keys: &'a [String],
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::New { file, json } => {
            let identities = Identities::generate();
            let named = || format!("{}: cannot write", file.display());
            let mut options = OpenOptions::new();
            let options = options.write(true).create_new(true).mode(0o600);
            let mut written = options.open(file).with_context(named)?;
            let done = written.write_all(identities.to_file().as_bytes());
            let done = done.and_then(|()| written.sync_all());
            if done.is_err() {
                // It is no key, and would be in the way of the next attempt.
                let _ = fs::remove_file(file);
            }
            done.with_context(named)?;
            let public_keys = &identities.recipients().texts();
            if *json {
                let file = file.display().to_string();
                print_json(&NewKey { file, public_keys })?;
            } else {
                let mut out = standard();
                for key in public_keys {
                    writeln!(out, "{key}")?;
                }
            }
            info!(
                "{} holds the secret key: without it, data that is encrypted to this public key \
                 cannot be read",
                file.display()
            );
        }
        Command::Rotate {
            log,
            old,
            new,
            json,
        } => {
            let disk = disk(log)?;
            let (old, new) = (identities(old)?, recipients(new)?);
            let parts = rotate(&disk, &old, &new)?;
            let public_keys = &new.texts();
            if *json {
                return print_json(&NewKeys { parts, public_keys });
            }
            writeln!(
                standard(),
                "{} compacted parts are encrypted to {} now",
                grouped(parts),
                public_keys.join(" and ")
            )?;
        }
    }
    Ok(())
}
