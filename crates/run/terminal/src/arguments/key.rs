//! The key options of commands that read a log.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use strata_archive::{ClearDisk, Identities, Recipients};
use strata_store::{Disk, Log, Sources};
use strata_wire::tunnel::Tunnels;
use tracing::warn;

use crate::arguments::disk::disk;
use crate::output::refuse;
use crate::progress::Progress;

/// How commands read a log: the secret key of an encrypted one, and ports of tunnels.
#[derive(Clone, Debug, clap::Args)]
pub struct KeyArgs {
    /// Decrypt the log with the secret key in this file.
    #[arg(long, value_name = "FILE", env = "STRATA_KEY")]
    key: Option<PathBuf>,

    /// Also decode this kind of tunnel on this UDP port, as in vxlan=8473; may be given several
    /// times. Not needed for ports that were set for the recording: the log stores them, unless a
    /// relay wrote it.
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
    pub fn look_into_tunnels(&self) -> Result<()> {
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

    /// The secret keys of the file, if one is given.
    pub fn read(&self) -> Result<Option<Identities>> {
        self.key.as_deref().map(identities).transpose()
    }

    /// The file with the key.
    pub fn file(&self) -> Option<PathBuf> {
        self.key.clone()
    }

    /// The files that are read when these logs are, each with its directory.
    pub fn sources<'a>(&self, logs: impl IntoIterator<Item = (&'a Path, &'a Log)>) -> Sources {
        let sources = Sources::default().files(&self.key);
        let logs = logs.into_iter();
        logs.fold(sources, |sources, (dir, log)| sources.log(dir, log))
    }

    /// Opens a log, decrypting what is encrypted.
    pub fn open(&self, dir: &Path) -> Result<Log> {
        self.open_on(dir, disk(dir)?)
    }

    /// As [`KeyArgs::open`], with a bar that shows how much of it is read.
    pub fn open_watched(&self, dir: &Path, progress: &Progress) -> Result<Log> {
        self.open_on(dir, progress.watch(disk(dir)?))
    }

    fn open_on(&self, dir: &Path, disk: Arc<dyn Disk>) -> Result<Log> {
        let disk = ClearDisk::new(disk, self.read()?);
        self.look_into_tunnels()?;
        let log = Log::on(Arc::new(disk))?;
        if let Err(error) = log.look_into_its_tunnels() {
            warn!(
                "{}: cannot use its tunnel ports together with those of other logs and of \
                 --tunnel-port: {error}. Packets in its tunnels may be decoded differently: read \
                 this log alone",
                dir.display()
            );
        }
        Ok(log)
    }
}

/// The secret keys in a file.
pub fn identities(file: &Path) -> Result<Identities> {
    let named = file.display().to_string();
    let content = fs::read_to_string(file);
    let content = content.with_context(|| format!("{named}: cannot read the key"))?;
    Ok(Identities::of_file(&named, &content)?)
}

/// Public keys, given as text or in files.
pub fn recipients(keys: &[String]) -> Result<Recipients> {
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
