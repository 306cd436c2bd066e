//! `strata key`: keys of encrypted logs, and the key options of other subcommands.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use strata_archive::{ClearDisk, Identities, Recipients, rotate};
use strata_store::{Log, Sources};
use strata_wire::grouped;
use strata_wire::tunnel::Tunnels;
use tracing::{info, warn};

use crate::object_tier;
use crate::output::{refuse, standard};

/// How commands read a log: the secret key of an encrypted one, and ports of tunnels.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct KeyArgs {
    /// Decrypt the log with the secret key in this file.
    #[arg(long, value_name = "FILE", env = "STRATA_KEY")]
    key: Option<PathBuf>,

    /// Look for a tunnel in datagrams of this UDP port too, as in vxlan=8473; may be given several
    /// times. The ports that a log was recorded with are known from it, unless a relay wrote it.
    #[arg(
        long,
        value_name = "NAME=PORT",
        env = "STRATA_TUNNEL_PORT",
        value_delimiter = ','
    )]
    tunnel_port: Vec<String>,
}

impl KeyArgs {
    /// Lets this process look into the tunnels of these ports.
    pub(crate) fn look_into_tunnels(&self) -> Result<()> {
        if self.tunnel_port.is_empty() {
            return Ok(());
        }
        let mut texts = self.tunnel_port.iter();
        let table = texts.try_fold(Tunnels::default(), |table, text| table.and_text(text));
        let table = table.map_err(|error| refuse(format!("--tunnel-port: {error}")))?;
        table
            .extend_in_force()
            .map_err(|error| refuse(format!("--tunnel-port: {error}")))
    }

    pub(crate) fn read(&self) -> Result<Option<Identities>> {
        self.key.as_deref().map(identities).transpose()
    }

    /// The file with the key.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        self.key.clone()
    }

    /// The files that are read when the log in `dir` is.
    pub(crate) fn sources(&self, dir: &Path, log: &Log) -> Sources {
        Sources::default().files(&self.key).log(dir, log)
    }

    /// Opens a log, decrypting what is encrypted.
    pub(crate) fn open(&self, dir: &Path) -> Result<Log> {
        let disk = ClearDisk::new(object_tier::disk(dir)?, self.read()?);
        self.look_into_tunnels()?;
        let log = Log::on(Arc::new(disk))?;
        if let Err(error) = log.look_into_its_tunnels() {
            warn!(
                "{}: was recorded with other tunnel ports than those in use here: {error}",
                dir.display()
            );
        }
        Ok(log)
    }
}

fn identities(file: &Path) -> Result<Identities> {
    let named = file.display().to_string();
    let content = fs::read_to_string(file);
    let content = content.with_context(|| format!("{named}: cannot read the key"))?;
    Ok(Identities::of_file(&named, &content)?)
}

/// Public keys, given as text or in files.
pub(crate) fn recipients(keys: &[String]) -> Result<Recipients> {
    let mut all = Recipients::default();
    for key in keys {
        let these = if key.starts_with("age1") {
            Recipients::parse([key.as_str()])?
        } else {
            let content = fs::read_to_string(key);
            let content = content.with_context(|| {
                format!("{key}: cannot read it as a file, and it is not a public key (age1...)")
            })?;
            Recipients::of_file(key, &content)?
        };
        all = all.and(these);
    }
    Ok(all)
}

/// Arguments of `strata key`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata key new analysts.key                      # keep it off the machine that records
  strata compact log/ --encrypt-to age1...         # from now on, with the public key
  strata export log/ --key analysts.key -w - | wireshark -k -i -
  strata key new next.key
  strata key rotate log/ --old analysts.key --new age1...

Keys and files are those of age (age-encryption.org), so age-keygen makes them and age opens
them too.")]
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
    },
    /// Replace the keys of a log. Its data is unchanged: only the file keys in archive.json are
    /// encrypted again, either all of them or none.
    Rotate {
        /// Change the log in this directory.
        #[arg(value_name = "LOG")]
        log: PathBuf,

        /// Open the log with the secret key in this file.
        #[arg(long, value_name = "FILE", env = "STRATA_KEY")]
        old: PathBuf,

        /// Encrypt to this public key (age1...) or the keys in this file; may be given several
        /// times: any one of them then opens the log.
        #[arg(long, value_name = "KEY", required = true)]
        new: Vec<String>,
    },
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut out = standard();
    match &args.command {
        Command::New { file } => {
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
            for key in identities.recipients().texts() {
                writeln!(out, "{key}")?;
            }
            info!(
                "{} holds the secret key: without it nothing encrypted to this public \
                 key can be read again",
                file.display()
            );
        }
        Command::Rotate { log, old, new } => {
            let disk = object_tier::disk(log)?;
            let (old, new) = (identities(old)?, recipients(new)?);
            let parts = rotate(&disk, &old, &new)?;
            writeln!(
                out,
                "{} compacted parts are encrypted to {} now",
                grouped(parts),
                new.texts().join(" and ")
            )?;
        }
    }
    Ok(())
}
