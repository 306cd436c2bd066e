//! Whose addresses are: names of hosts and networks from text files and from recorded DNS answers, countries and
//! autonomous systems from databases in MaxMind's format; and the networks that a name means in a filter.
//!
//! ```text
//! lib       files of names and databases: what is known about an address
//! sets      the networks of a name, for filters
//! answers   names in DNS answers
//! ```
//!
//! Nothing of this is in a log: addresses are looked up when they are shown. Used by the commands that read logs, by
//! SQL and by the operator's page.
//!
//! Source: hosts(5); the MaxMind DB file format, version 2.0.
#![forbid(unsafe_code)]

mod answers;
mod sets;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use maxminddb::{MaxMindDbError, Reader};
use serde_json::Value;
use strata_wire::Printable;

pub use answers::Answers;

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

/// Addresses that are remembered.
const ADDRESSES_MAX: usize = 1 << 17;

/// Why names cannot be read or looked up.
#[derive(Debug, thiserror::Error)]
pub enum NamesError {
    /// A file of names cannot be read.
    #[error("{}: cannot read names", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line of it is none.
    #[error("{}:{number}: {why}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1 on.
        number: u64,
        /// What is wrong.
        why: String,
    },
    /// A file is no database.
    #[error("{}: not a database in MaxMind's format", file.display())]
    Database {
        /// The file.
        file: PathBuf,
        /// Why.
        source: MaxMindDbError,
    },
    /// A database is damaged where an address is looked up.
    #[error("{}: damaged at {address}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The address.
        address: IpAddr,
        /// Why.
        source: MaxMindDbError,
    },
}

/// What is known about an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Of the host, or of its network.
    pub name: Option<String>,
    /// ISO 3166-1, two letters.
    pub country: Option<String>,
    /// `AS15169 Google LLC`.
    pub system: Option<String>,
}

impl Known {
    /// Each thing that is known, and what it is.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, &str)> {
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

/// What is known about addresses.
#[derive(Default)]
pub struct Names {
    /// By length of the prefix.
    networks: BTreeMap<u8, HashMap<IpNet, String>>,
    /// By name, of which a network may have several.
    tags: BTreeMap<String, Vec<IpNet>>,
    /// The files that these are from.
    files: Vec<PathBuf>,
    asked: sets::Asked,
    answers: Answers,
    databases: Vec<Database>,
}

struct Database {
    file: PathBuf,
    reader: Reader<Vec<u8>>,
}

/// Names of thousands of networks help no reader.
impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let databases = self.databases.iter().map(|database| &database.file);
        f.debug_struct("Names")
            .field("files", &self.files)
            .field("databases", &databases.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Names {
    /// Reads files of names, lines as in hosts(5) where a network may stand for an address, and databases in MaxMind's
    /// format. All of both is held in memory.
    ///
    /// # Errors
    ///
    /// If one cannot be read or understood; with its line, if it has lines.
    pub fn read(files: &[PathBuf], databases: &[PathBuf]) -> Result<Self, NamesError> {
        let mut names = Self::default();
        for file in files {
            let text = fs::read_to_string(file).map_err(|source| NamesError::Read {
                file: file.clone(),
                source,
            })?;
            names.add_lines(file, &text)?;
            names.files.push(file.clone());
        }
        for file in databases {
            let reader = Reader::open_readfile(file).map_err(|source| NamesError::Database {
                file: file.clone(),
                source,
            })?;
            names.databases.push(Database {
                file: file.clone(),
                reader,
            });
        }
        Ok(names)
    }

    /// The names in DNS answers, to which messages can be added.
    pub fn answers_mut(&mut self) -> &mut Answers {
        &mut self.answers
    }

    /// The files of names.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The files of the databases.
    pub fn databases(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.databases
            .iter()
            .map(|database| database.file.as_path())
    }

    /// Whether there is no file of names and no database.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.databases.is_empty()
    }

    /// The names that networks and addresses have in files, those from `first` on, in order.
    pub fn tags_from(&self, first: &str) -> impl Iterator<Item = &str> {
        let tags = self
            .tags
            .range::<str, _>((Bound::Included(first), Bound::Unbounded));
        tags.map(|(name, _)| name.as_str())
    }

    fn add_lines(&mut self, file: &Path, text: &str) -> Result<(), NamesError> {
        for (number, line) in (1_u64..).zip(text.lines()) {
            let wrong = |why| NamesError::Line {
                file: file.to_owned(),
                number,
                why,
            };
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
                .map_err(|_| wrong(format!("{first:?} is neither an address nor a network")))?;
            let name = words
                .next()
                .ok_or_else(|| wrong(format!("{} has no name", Printable(first))))?;
            if name.len() > NAME_BYTES_MAX {
                return Err(wrong(format!(
                    "the name is longer than {NAME_BYTES_MAX} bytes"
                )));
            }
            sets::tag(
                &mut self.tags,
                network.trunc(),
                std::iter::once(name).chain(words),
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

    /// The name of the smallest network that has an address: of the address alone, perhaps.
    #[must_use]
    pub fn network(&self, address: IpAddr) -> Option<String> {
        let (network, name) = self.network_of(address)?;
        Some(match is_host(network) {
            true => name.to_owned(),
            false => format!("{name} ({network})"),
        })
    }

    /// The name of an address: from a file, from DNS answers, or else of its network.
    #[must_use]
    pub fn name(&self, address: IpAddr) -> Option<String> {
        match self.network_of(address) {
            Some((network, name)) if is_host(network) => Some(name.to_owned()),
            _ => match self.answers.name(address) {
                Some(asked) => Some(asked.to_string()),
                None => self.network(address),
            },
        }
    }

    /// What the databases have of an address, where `find` looks.
    fn looked_up(
        &self,
        address: IpAddr,
        find: impl Fn(&Value) -> Option<String>,
    ) -> Result<Option<String>, NamesError> {
        for database in &self.databases {
            if address.is_ipv6() && database.reader.metadata().ip_version == 4 {
                continue;
            }
            let found = database.reader.lookup(address);
            let record = found.and_then(|found| found.decode::<Value>());
            let record = record.map_err(|source| NamesError::Damaged {
                file: database.file.clone(),
                address,
                source,
            })?;
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
    pub fn country(&self, address: IpAddr) -> Result<Option<String>, NamesError> {
        self.looked_up(address, country_of)
    }

    /// The autonomous system of an address.
    ///
    /// # Errors
    ///
    /// If a database is damaged.
    pub fn system(&self, address: IpAddr) -> Result<Option<String>, NamesError> {
        self.looked_up(address, |record| {
            let number = system_of(record)?;
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
    pub fn known(&self, address: IpAddr) -> Result<Known, NamesError> {
        Ok(Known {
            name: self.name(address),
            country: self.country(address)?,
            system: self.system(address)?,
        })
    }
}

/// The country that a record of a database names.
fn country_of(record: &Value) -> Option<String> {
    let text = |place: &&str| record.pointer(place)?.as_str().map(str::to_owned);
    COUNTRY.iter().find_map(text)
}

/// The autonomous system that a record of a database names: `AS` and its number.
fn system_of(record: &Value) -> Option<String> {
    let number = |place: &&str| match record.pointer(place)? {
        Value::Number(number) => Some(format!("AS{number}")),
        Value::String(text) => Some(text.clone()),
        _ => None,
    };
    SYSTEM.iter().find_map(number)
}

fn is_host(network: IpNet) -> bool {
    network.prefix_len() == network.max_prefix_len()
}

/// Something of each address that was looked up: most packets are of few addresses. At most 131,072 are remembered.
#[derive(Debug)]
pub struct ByAddress<T>(HashMap<IpAddr, T>);

impl<T> Default for ByAddress<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Clone> ByAddress<T> {
    /// What is remembered of an address, or found now.
    ///
    /// # Errors
    ///
    /// Those of `find`.
    pub fn of<E>(&mut self, address: IpAddr, find: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        if let Some(known) = self.0.get(&address) {
            return Ok(known.clone());
        }
        if self.0.len() >= ADDRESSES_MAX {
            self.0.clear();
        }
        let found = find()?;
        self.0.insert(address, found.clone());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Names, NamesError> {
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
