//! The networks that a name in a filter means: `tag` by the files of names, `asn` and `country` by the databases.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;
use maxminddb::WithinOptions;
use serde_json::Value;
use strata_filter::{Naming, NetworkNames, NetworkSet};
use strata_wire::Printable;

use super::{Database, Names, country_of, system_of};

/// The most networks of a whole database for each node of its tree, since the tree of IPv4 may be in several
/// places of that of IPv6. One with more is damaged.
const NETWORKS_PER_NODE_MAX: usize = 16;
/// The addresses of IPv6 that a database has the records of IPv4 at.
const V4_IN_V6_BITS: u8 = 96;

/// What filters have asked for.
#[derive(Debug, Default)]
pub(super) struct Asked(Mutex<HashMap<(Naming, String), Arc<NetworkSet>>>);

/// Networks in any order.
#[derive(Default)]
struct Ranges {
    v4: Vec<[u32; 2]>,
    v6: Vec<[u128; 2]>,
}

impl Ranges {
    fn push(&mut self, first: IpAddr, last: IpAddr) {
        match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                self.v4.push([first.to_bits(), last.to_bits()]);
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                self.v6.push([first.to_bits(), last.to_bits()]);
            }
            _ => unreachable!("both ends of a network are of one version"),
        }
    }

    /// Adds a network of a database, for addresses of both versions that lead to it.
    fn push_of_database(&mut self, (first, last): (IpAddr, IpAddr), prefix: u8, is_of_v6: bool) {
        self.push(first, last);
        match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) if is_of_v6 => {
                self.v6
                    .push([first.to_bits().into(), last.to_bits().into()]);
            }
            (IpAddr::V6(first), _) if first.is_unspecified() && prefix <= V4_IN_V6_BITS => {
                self.v4.push([0, u32::MAX]);
            }
            _ => {}
        }
    }

    fn into_set(self) -> NetworkSet {
        NetworkSet::new(self.v4, self.v6)
    }
}

impl NetworkNames for Names {
    fn networks(&self, naming: Naming, name: &str) -> Result<Arc<NetworkSet>, String> {
        let key = (naming, name.to_owned());
        let known = || self.asked.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(set) = known().get(&key) {
            return Ok(Arc::clone(set));
        }
        let set = match naming {
            Naming::Tag => self.tagged(name)?,
            Naming::System => self.owned(naming, name, system_of, |found| {
                found.strip_prefix("AS") == Some(name)
            })?,
            Naming::Country => self.owned(naming, name, country_of, |found| {
                found.eq_ignore_ascii_case(name)
            })?,
        };
        let set = Arc::new(set);
        known().insert(key, Arc::clone(&set));
        Ok(set)
    }
}

impl Names {
    /// The networks and addresses that have a name in a file, those within them included that have another.
    fn tagged(&self, name: &str) -> Result<NetworkSet, String> {
        if self.files.is_empty() {
            return Err(format!(
                "'tag' needs names of networks: give --names FILE, with lines such as '10.0.0.0/8 {}'",
                Printable(name)
            ));
        }
        let Some(networks) = self.tags.get(name) else {
            return Err(format!(
                "no network has the name '{}' in {}{}",
                Printable(name),
                listed(self.files.iter().map(PathBuf::as_path)),
                self.similar(name)
            ));
        };
        let mut ranges = Ranges::default();
        for network in networks {
            ranges.push(network.network(), network.broadcast());
        }
        Ok(ranges.into_set())
    }

    /// A name that may have been meant.
    fn similar(&self, name: &str) -> String {
        let is_alike = |known: &&String| known.eq_ignore_ascii_case(name) || known.contains(name);
        match self.tags.keys().filter(is_alike).min() {
            Some(known) => format!("; there is '{}'", Printable(known)),
            None => String::new(),
        }
    }

    /// The networks of which the databases say something wanted: as [`Names::country`] and [`Names::system`], the
    /// first database that says anything of an address counts.
    fn owned(
        &self,
        naming: Naming,
        name: &str,
        of: fn(&Value) -> Option<String>,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<NetworkSet, String> {
        if self.databases.is_empty() {
            return Err(format!(
                "'{}' needs a database of networks: give --mmdb FILE, such as GeoLite2, DB-IP or IPinfo",
                naming.word()
            ));
        }
        let (mut all, mut told) = (NetworkSet::default(), NetworkSet::default());
        for database in &self.databases {
            let [wanted, others] = database.networks(of, &is_wanted)?;
            all = all.with(wanted.without(&told));
            told = told.with(wanted).with(others);
        }
        match all.is_empty() {
            true => Err(format!(
                "no network of '{} {name}' is in {}",
                naming.word(),
                listed(self.databases())
            )),
            false => Ok(all),
        }
    }
}

impl Database {
    /// The networks of which it says something wanted, and those of which it says something else.
    fn networks(
        &self,
        of: fn(&Value) -> Option<String>,
        is_wanted: &impl Fn(&str) -> bool,
    ) -> Result<[NetworkSet; 2], String> {
        let damaged =
            |why: &dyn std::fmt::Display| format!("{}: damaged: {why}", self.file.display());
        let metadata = self.reader.metadata();
        let is_of_v6 = metadata.ip_version == 6;
        let nodes = usize::try_from(metadata.node_count).map_err(|error| damaged(&error))?;
        let most = nodes
            .saturating_add(1)
            .saturating_mul(NETWORKS_PER_NODE_MAX);
        // Networks share records. `None` if one says nothing.
        let mut records: HashMap<usize, Option<bool>> = HashMap::new();
        let mut found = [Ranges::default(), Ranges::default()];
        let all = WithinOptions::default().include_aliased_networks();
        let networks = self.reader.networks(all).map_err(|error| damaged(&error))?;
        for (number, network) in networks.enumerate() {
            if number >= most {
                return Err(damaged(&"more networks than its tree has"));
            }
            let network = network.map_err(|error| damaged(&error))?;
            let Some(offset) = network.offset() else {
                continue;
            };
            let is_wanted = match records.get(&offset) {
                Some(known) => *known,
                None => {
                    let record = network.decode::<Value>().map_err(|error| damaged(&error))?;
                    let said = record.as_ref().and_then(of).map(|text| is_wanted(&text));
                    records.insert(offset, said);
                    said
                }
            };
            let Some(is_wanted) = is_wanted else {
                continue;
            };
            let network = network.network().map_err(|error| damaged(&error))?;
            let ends = (network.network(), network.broadcast());
            found[usize::from(!is_wanted)].push_of_database(ends, network.prefix(), is_of_v6);
        }
        Ok(found.map(Ranges::into_set))
    }
}

fn listed<'a>(files: impl Iterator<Item = &'a Path>) -> String {
    let files = files.map(|file| Printable(&file.display().to_string()).to_string());
    files.collect::<Vec<_>>().join(", ")
}

/// What a line of a file of names adds: every name on it is one of the network.
pub(super) fn tag<'a>(
    tags: &mut BTreeMap<String, Vec<IpNet>>,
    network: IpNet,
    names: impl Iterator<Item = &'a str>,
) {
    for name in names {
        tags.entry(name.to_owned()).or_default().push(network);
    }
}
