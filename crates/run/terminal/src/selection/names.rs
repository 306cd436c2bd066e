//! Files of names: the options of all commands that read logs.

use std::path::PathBuf;

use anyhow::Result;
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
}

impl NameFiles {
    /// The files, which no output may replace.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.names.iter().chain(&self.mmdb)
    }

    /// The first of these options that is given.
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
    /// If one cannot be read or understood; with its line, if it has lines.
    pub fn read(&self) -> Result<Names> {
        Ok(Names::read(&self.names, &self.mmdb)?)
    }
}
