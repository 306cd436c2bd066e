//! Files of names: the options of all commands that read logs.

use std::path::PathBuf;

use anyhow::Result;
use strata_control::config::{Config, NamesConfig};
use strata_networks::Names;

/// Files in which names are found.
#[derive(Debug, clap::Args)]
pub struct NameFiles {
    /// Read names of hosts and networks from this file: each line has an address or a network and
    /// its name, as in /etc/hosts. An address gets the name of the smallest network that contains
    /// it. In filters, 'tag NAME' matches addresses of the networks with this name. May be given
    /// several times.
    #[arg(long, value_name = "FILE")]
    pub names: Vec<PathBuf>,

    /// Look up countries and autonomous systems in this database in MaxMind's format (GeoLite2,
    /// DB-IP, IPinfo). In filters, 'country CODE' and 'asn NUMBER' match addresses of their
    /// networks. May be given several times.
    #[arg(long, value_name = "FILE")]
    pub mmdb: Vec<PathBuf>,

    /// Use the files that [names] in this configuration file (TOML) lists, unless --names or --mmdb
    /// gives others of their kind.
    #[arg(long, value_name = "FILE", env = "STRATA_CONFIG")]
    pub config: Option<PathBuf>,
}

impl NameFiles {
    /// The files of names, and the configuration file if it was read: no output may replace them.
    ///
    /// # Errors
    ///
    /// If the configuration file cannot be read or understood.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let found = self.found()?;
        let files = found.files.into_iter().chain(found.mmdb);
        Ok(files.chain(self.config.clone()).collect())
    }

    /// The files of the options, or else of the configuration file.
    fn found(&self) -> Result<NamesConfig> {
        let is_needed = self.names.is_empty() || self.mmdb.is_empty();
        let mut found = match &self.config {
            Some(path) if is_needed => Config::read(path)?.names,
            _ => NamesConfig::default(),
        };
        if !self.names.is_empty() {
            found.files.clone_from(&self.names);
        }
        if !self.mmdb.is_empty() {
            found.mmdb.clone_from(&self.mmdb);
        }
        Ok(found)
    }

    /// The first of --names and --mmdb that is given.
    #[must_use]
    pub fn option(&self) -> Option<&'static str> {
        match (self.names.is_empty(), self.mmdb.is_empty()) {
            (false, _) => Some("--names"),
            (true, false) => Some("--mmdb"),
            (true, true) => None,
        }
    }

    /// Reads the files.
    ///
    /// # Errors
    ///
    /// If one, or the configuration file, cannot be read or understood; with its line, if it has lines.
    pub fn read(&self) -> Result<Names> {
        let found = self.found()?;
        Ok(Names::read(&found.files, &found.mmdb)?)
    }
}
