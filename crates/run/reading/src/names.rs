//! Whose addresses are: names of hosts and networks from text files and from recorded DNS answers, countries and
//! autonomous systems from databases in MaxMind's format.
//!
//! Source: hosts(5); the MaxMind DB file format, version 2.0.

mod answers;
mod networks;
mod owners;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use ipnet::IpNet;
use maxminddb::Reader;
use serde_json::Value;
use strata_filter::Filter;
use strata_query::{Find, Kept, PacketRows};
use strata_terminal::selection::{Logs, damage_counts};
use strata_terminal::text;
use strata_wire::dissect::protocol;
use tracing::{info, warn};

use crate::line::{Known, Line};
use answers::Answers;
pub(crate) use owners::Owners;

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

/// The ports of servers of DNS, and of multicast DNS.
const DNS_PORTS: [u16; 2] = [53, 5353];
/// Addresses that are remembered.
const ADDRESSES_MAX: usize = 1 << 17;

/// Files in which names are found.
#[derive(Debug, clap::Args)]
pub struct NameFiles {
    /// Read names of hosts and networks from this file: an address or a network and its name on
    /// each line, as in /etc/hosts. An address gets the name of the smallest network that contains
    /// it. In filters, 'tag NAME' selects the networks with this name. May be given several times.
    #[arg(long, value_name = "FILE")]
    names: Vec<PathBuf>,

    /// Look up countries and autonomous systems in this database in MaxMind's format (GeoLite2,
    /// DB-IP, IPinfo). In filters, 'country CODE' and 'asn NUMBER' select their networks. May be
    /// given several times.
    #[arg(long, value_name = "FILE")]
    mmdb: Vec<PathBuf>,
}

/// Where names are found.
#[derive(Debug, clap::Args)]
pub(crate) struct NamesArgs {
    #[command(flatten)]
    files: NameFiles,

    /// Take host names from the DNS answers in these logs whose payload was kept, including answers
    /// before --from: the name looked up last, and the number of other names. A name that --names
    /// gives to the address itself takes precedence. The logs are read twice, the first time
    /// without the filter.
    #[arg(long)]
    dns_names: bool,
}

/// What is known about addresses.
#[derive(Default)]
pub struct Names {
    /// By length of the prefix.
    networks: BTreeMap<u8, HashMap<IpNet, String>>,
    /// By name, of which a network may have several.
    tags: HashMap<String, Vec<IpNet>>,
    /// The files that these are from.
    files: Vec<String>,
    asked: networks::Asked,
    answers: Answers,
    databases: Vec<Database>,
}

struct Database {
    file: PathBuf,
    reader: Reader<Vec<u8>>,
}

impl NameFiles {
    /// The files, which no output may replace.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.names.iter().chain(&self.mmdb)
    }

    /// Reads the files.
    ///
    /// # Errors
    ///
    /// If one cannot be read or understood; with its line, if it has lines.
    pub fn read(&self) -> Result<Names> {
        let mut names = Names::default();
        for file in &self.names {
            let text = fs::read_to_string(file);
            let text = text.with_context(|| format!("{}: cannot read names", file.display()))?;
            names.add_lines(file, &text)?;
            names.files.push(file.display().to_string());
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

impl NamesArgs {
    /// Whether there is a file of names.
    pub(crate) fn has_names(&self) -> bool {
        !self.files.names.is_empty()
    }

    /// Whether anything is to be known.
    pub(crate) fn is_any(&self) -> bool {
        self.has_names() || self.has_databases() || self.dns_names
    }

    /// Whether there is a database.
    pub(crate) fn has_databases(&self) -> bool {
        !self.files.mmdb.is_empty()
    }

    /// Reads the files.
    ///
    /// # Errors
    ///
    /// If one cannot be read or understood; with its line, if it has lines.
    pub(crate) fn read(&self) -> Result<Names> {
        self.files.read()
    }

    /// Reads the DNS answers of the logs, if they are wanted; those before `find` too.
    ///
    /// # Errors
    ///
    /// If a log cannot be read.
    pub(crate) fn read_answers(
        &self,
        names: &mut Names,
        logs: &Logs,
        find: &Find<'_>,
    ) -> Result<()> {
        if !self.dns_names {
            return Ok(());
        }
        // No filter finds ports within tunnels and behind tags.
        let until = Find {
            from_ns: None,
            to_ns: find.to_ns,
            filter: None,
        };
        let answers = &mut names.answers;
        let mut rows: Vec<PacketRows> = (0..logs.len()).map(|_| PacketRows::default()).collect();
        let read = logs.each(&until, &Kept::default(), |log, packet| {
            let headers = rows[log].headers(packet);
            let (is_udp, is_tcp) = headers.key.map_or((false, false), |key| {
                let protocol = key.protocol;
                (protocol == protocol::UDP, protocol == protocol::TCP)
            });
            let is_answer = DNS_PORTS.contains(&headers.endpoints().0.port);
            if !is_answer || !(is_udp || is_tcp) {
                return Ok(ControlFlow::Continue(()));
            }
            let line = Line::of(packet, &headers);
            // Over TCP, the length of a message comes first (RFC 1035 §4.2.2).
            let message = line.payload().get(if is_tcp { 2.. } else { 0.. });
            if let Some(message) = message {
                answers.message(message);
            }
            Ok(ControlFlow::Continue(()))
        });
        let read = read.context("--dns-names")?;
        answers.say(damage_counts(&read.damage));
        Ok(())
    }
}

impl Answers {
    /// Says how far the names can be trusted.
    fn say(&self, damage: Option<String>) {
        let hosts = text::count_of(self.addresses() as u64, "host");
        let answers = text::count_of(self.messages, "DNS answer");
        match self.cut {
            0 => info!("names of {hosts} from {answers}"),
            cut => info!(
                "names of {hosts} from {answers}, {cut} of them incomplete: their payload was not kept whole"
            ),
        }
        if self.beyond > 0 {
            warn!(
                "{} of DNS answers left out: names take at most 128 MiB of memory; with an earlier --to, fewer \
                 answers are read",
                text::count_of(self.beyond, "name")
            );
        }
        if let Some(counts) = damage {
            warn!("--dns-names: {counts} in the log: names may be missing");
        }
    }
}

impl Names {
    /// A filter of trailing arguments, in which these names may be; `None` without any.
    ///
    /// # Errors
    ///
    /// If it is no filter, or a name in it is unknown.
    pub fn filter(&self, words: &[String]) -> Result<Option<Filter>> {
        text::filter_with(words, self)
    }

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
            networks::tag(
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
    pub(crate) fn network(&self, address: IpAddr) -> Option<String> {
        let (network, name) = self.network_of(address)?;
        Some(match is_host(network) {
            true => name.to_owned(),
            false => format!("{name} ({network})"),
        })
    }

    /// The name of an address: from a file, from DNS answers, or else of its network.
    pub(crate) fn name(&self, address: IpAddr) -> Option<String> {
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
    ) -> Result<Option<String>> {
        for database in &self.databases {
            if address.is_ipv6() && database.reader.metadata().ip_version == 4 {
                continue;
            }
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
    pub(crate) fn country(&self, address: IpAddr) -> Result<Option<String>> {
        self.looked_up(address, country_of)
    }

    /// The autonomous system of an address.
    ///
    /// # Errors
    ///
    /// If a database is damaged.
    pub(crate) fn system(&self, address: IpAddr) -> Result<Option<String>> {
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
    pub(crate) fn known(&self, address: IpAddr) -> Result<Known> {
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

/// Something of each address that was looked up: most packets are of few addresses.
pub(crate) struct ByAddress<T>(HashMap<IpAddr, T>);

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
    pub(crate) fn of(&mut self, address: IpAddr, find: impl FnOnce() -> Result<T>) -> Result<T> {
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
