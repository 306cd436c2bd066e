//! Whose addresses are: names of hosts and networks from text files, countries and autonomous systems from
//! databases in MaxMind's format.
//!
//! Source: hosts(5); the MaxMind DB file format, version 2.0.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use ipnet::IpNet;
use maxminddb::Reader;
use serde_json::Value;

/// A longer name is refused.
const NAME_BYTES_MAX: usize = 255;
/// Places of a country's code: of MaxMind and DB-IP; where that is unknown, where the network is registered; of
/// IPinfo.
const COUNTRY: [&str; 4] = [
    "/country/iso_code",
    "/registered_country/iso_code",
    "/country_code",
    "/country",
];
/// Places of the number of an autonomous system, and of its name.
const SYSTEM: [&str; 2] = ["/autonomous_system_number", "/asn"];
const SYSTEM_NAME: [&str; 2] = ["/autonomous_system_organization", "/as_name"];

/// Where names are found.
#[derive(Debug, clap::Args)]
pub(super) struct NamesArgs {
    /// Read names of hosts and networks from this file: an address or a network and its name on
    /// each line, as in /etc/hosts. An address gets the name of the smallest network that contains
    /// it. May be given several times.
    #[arg(long, value_name = "FILE")]
    names: Vec<PathBuf>,

    /// Look up countries and autonomous systems in this database in MaxMind's format (GeoLite2,
    /// DB-IP, IPinfo). May be given several times.
    #[arg(long, value_name = "FILE")]
    mmdb: Vec<PathBuf>,
}

/// What is known about addresses.
#[derive(Default)]
pub(super) struct Names {
    /// By length of the prefix.
    networks: BTreeMap<u8, HashMap<IpNet, String>>,
    databases: Vec<Database>,
}

struct Database {
    file: PathBuf,
    reader: Reader<Vec<u8>>,
}

/// What is known about an address.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) name: Option<String>,
    /// ISO 3166-1, two letters.
    pub(super) country: Option<String>,
    /// `AS15169 Google LLC`.
    pub(super) system: Option<String>,
}

impl Known {
    /// Each thing that is known, and what it is.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let parts = [
            ("name", &self.name),
            ("country", &self.country),
            ("as", &self.system),
        ];
        parts
            .into_iter()
            .filter_map(|(what, text)| Some((what, text.as_deref()?)))
    }
}

impl NamesArgs {
    /// Whether there is a file of names.
    pub(super) fn has_names(&self) -> bool {
        !self.names.is_empty()
    }

    /// Whether there is a database.
    pub(super) fn has_databases(&self) -> bool {
        !self.mmdb.is_empty()
    }

    /// Reads the files.
    ///
    /// # Errors
    ///
    /// If one cannot be read or understood; with its line, if it has lines.
    pub(super) fn read(&self) -> Result<Names> {
        let mut names = Names::default();
        for file in &self.names {
            let text = fs::read_to_string(file);
            let text = text.with_context(|| format!("{}: cannot read names", file.display()))?;
            names.add_lines(file, &text)?;
        }
        for file in &self.mmdb {
            let reader = Reader::open_readfile(file).with_context(|| {
                format!("{}: not a database in MaxMind's format", file.display())
            })?;
            names.databases.push(Database {
                file: file.clone(),
                reader,
            });
        }
        Ok(names)
    }
}

impl Names {
    fn add_lines(&mut self, file: &Path, text: &str) -> Result<()> {
        for (number, line) in (1_u64..).zip(text.lines()) {
            let place = || format!("{}:{number}", file.display());
            let mut words = line
                .split('#')
                .next()
                .into_iter()
                .flat_map(str::split_whitespace);
            let Some(first) = words.next() else {
                continue;
            };
            let network = first
                .parse::<IpNet>()
                .or_else(|_| first.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_| {
                    anyhow!("{}: {first:?} is neither an address nor a network", place())
                })?;
            let name = words
                .next()
                .with_context(|| format!("{}: {first} has no name", place()))?;
            ensure!(
                name.len() <= NAME_BYTES_MAX,
                "{}: the name is longer than {NAME_BYTES_MAX} bytes",
                place()
            );
            let same_length = self.networks.entry(network.prefix_len()).or_default();
            // The first name counts, as in /etc/hosts.
            same_length
                .entry(network.trunc())
                .or_insert_with(|| name.to_owned());
        }
        Ok(())
    }

    /// The smallest network with a name that has an address, and the name.
    fn network_of(&self, address: IpAddr) -> Option<(IpNet, &str)> {
        self.networks.iter().rev().find_map(|(&length, networks)| {
            let network = IpNet::new(address, length).ok()?.trunc();
            Some((network, networks.get(&network)?.as_str()))
        })
    }

    /// The name of an address, or of the smallest network that has it.
    pub(super) fn name(&self, address: IpAddr) -> Option<String> {
        let (network, name) = self.network_of(address)?;
        Some(match network.prefix_len() == network.max_prefix_len() {
            true => name.to_owned(),
            false => format!("{name} ({network})"),
        })
    }

    /// What the databases have of an address, where `find` looks.
    fn looked_up(
        &self,
        address: IpAddr,
        find: impl Fn(&Value) -> Option<String>,
    ) -> Result<Option<String>> {
        for database in &self.databases {
            let found = database.reader.lookup(address);
            let record = found.and_then(|found| found.decode::<Value>());
            let record = record
                .with_context(|| format!("{}: damaged at {address}", database.file.display()))?;
            if let Some(text) = record.as_ref().and_then(&find) {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// The country of an address.
    ///
    /// # Errors
    ///
    /// If a database is damaged.
    pub(super) fn country(&self, address: IpAddr) -> Result<Option<String>> {
        self.looked_up(address, |record| {
            let text = |place: &&str| record.pointer(place)?.as_str().map(str::to_owned);
            COUNTRY.iter().find_map(text)
        })
    }

    /// The autonomous system of an address.
    ///
    /// # Errors
    ///
    /// If a database is damaged.
    pub(super) fn system(&self, address: IpAddr) -> Result<Option<String>> {
        self.looked_up(address, |record| {
            let number = SYSTEM
                .iter()
                .find_map(|place| match record.pointer(place)? {
                    Value::Number(number) => Some(format!("AS{number}")),
                    Value::String(text) => Some(text.clone()),
                    _ => None,
                })?;
            let name = SYSTEM_NAME
                .iter()
                .find_map(|place| record.pointer(place)?.as_str());
            Some(name.map_or_else(|| number.clone(), |name| format!("{number} {name}")))
        })
    }

    /// All that is known about an address.
    ///
    /// # Errors
    ///
    /// If a database is damaged.
    pub(super) fn known(&self, address: IpAddr) -> Result<Known> {
        Ok(Known {
            name: self.name(address),
            country: self.country(address)?,
            system: self.system(address)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Names> {
        let mut names = Names::default();
        names.add_lines(Path::new("names"), text).map(|()| names)
    }

    #[test]
    fn the_smallest_network_and_the_first_name_count() {
        let names = names(
            "# comment\n\n10.0.0.0/8 site # all\n10.1.2.3/16 office\n10.1.0.9 web www\n\
             10.1.0.9 other\n2001:db8::/32 lab\n::1 localhost\n",
        )
        .unwrap();
        for (address, name) in [
            ("10.1.0.9", Some("web")),
            ("10.1.255.255", Some("office (10.1.0.0/16)")),
            ("10.2.0.1", Some("site (10.0.0.0/8)")),
            ("11.0.0.1", None),
            ("2001:db8:1::", Some("lab (2001:db8::/32)")),
            ("::1", Some("localhost")),
            ("::a01:9", None),
        ] {
            let found = names.name(address.parse().unwrap());
            assert_eq!(found.as_deref(), name, "{address}");
        }
    }

    #[test]
    fn lines_that_are_no_names_are_refused_with_their_place() {
        let long = format!("::1 {}", "x".repeat(256));
        for (text, why) in [
            ("::1 a\nweb 10.0.0.1", "names:2: \"web\""),
            ("10.0.0.0/33 a", "names:1: \"10.0.0.0/33\""),
            ("10.0.0.1 # web", "names:1: 10.0.0.1 has no name"),
            (&long, "names:1: the name is longer"),
        ] {
            let error = names(text).err().unwrap().to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
