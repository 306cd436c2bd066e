//! Files of names: the options of all commands that read logs.

use std::env;
use std::path::PathBuf;

use anyhow::Result;
use strata_control::config::{ConfigError, NamesConfig};
use strata_networks::Names;
use tracing::warn;

/// Names the configuration file for all commands.
const CONFIG: &str = "STRATA_CONFIG";

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

    /// Use the files that 'names' in this configuration file (TOML) lists, unless --names or --mmdb
    /// gives others of their kind.
    #[arg(long, value_name = "FILE", env = CONFIG)]
    pub config: Option<PathBuf>,
}

impl NameFiles {
    /// The files of names, and the configuration file if it was read: no output may replace them.
    ///
    /// # Errors
    ///
    /// If the configuration file cannot be read or understood, unless the environment names it.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let mut config = self.config.clone();
        let found = self.found(|_| config = None)?;
        let files = found.files.into_iter().chain(found.mmdb);
        Ok(files.chain(config).collect())
    }

    /// The files of the options, or else of the configuration file. The environment may name a file for `strata record`
    /// which this user cannot read: `warned` hears of it.
    fn found(&self, warned: impl FnOnce(ConfigError)) -> Result<NamesConfig> {
        let is_needed = self.names.is_empty() || self.mmdb.is_empty();
        let read = self.config.as_deref().filter(|_| is_needed);
        let mut found = match read.map(NamesConfig::read).transpose() {
            Ok(Some(found)) => found,
            Ok(None) => NamesConfig::default(),
            Err(problem) if self.is_of_environment() => {
                warned(problem);
                NamesConfig::default()
            }
            Err(problem) => return Err(problem.into()),
        };
        if !self.names.is_empty() {
            found.files.clone_from(&self.names);
        }
        if !self.mmdb.is_empty() {
            found.mmdb.clone_from(&self.mmdb);
        }
        Ok(found)
    }

    fn is_of_environment(&self) -> bool {
        let config = self.config.as_ref().map(|path| path.as_os_str());
        config.is_some_and(|path| env::var_os(CONFIG).is_some_and(|named| named == path))
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
    /// If one, or the configuration file, cannot be read or understood; with its line, if it has lines. If the environment
    /// names the configuration file, this is a warning.
    pub fn read(&self) -> Result<Names> {
        let found = self.found(|problem| warn!("{CONFIG}: {problem}; its [names] are not used"))?;
        Ok(Names::read(&found.files, &found.mmdb)?)
    }
}
