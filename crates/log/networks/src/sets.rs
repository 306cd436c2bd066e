//! The networks that a name in a filter means: `tag` by the files of names, `asn` and `country` by the databases.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

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

/// What a record of a database says of its networks, if anything.
type Of = fn(&Value) -> Option<String>;
/// That as filters ask for it; `None` if none can.
type Key = fn(&str) -> Option<String>;

/// What filters have asked for.
#[derive(Debug)]
pub(super) struct Asked {
    sets: Mutex<HashMap<(Naming, String), Arc<NetworkSet>>>,
    systems: By,
    countries: By,
}

/// What databases say of all their networks. They are walked once, when a filter first asks: one that names what they
/// lack costs no walk of its own. Memory: that of their networks as a [`NetworkSet`].
#[derive(Debug)]
struct By {
    of: Of,
    key: Key,
    said: OnceLock<Result<Vec<Said>, String>>,
}

/// What a database says.
#[derive(Debug)]
struct Said {
    by_key: HashMap<String, NetworkSet>,
    /// The networks of which those before it say something.
    before: NetworkSet,
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            sets: Mutex::default(),
            systems: By {
                of: system_of,
                key: |found| found.strip_prefix("AS").map(str::to_owned),
                said: OnceLock::new(),
            },
            countries: By {
                of: country_of,
                key: |found| Some(found.to_ascii_uppercase()),
                said: OnceLock::new(),
            },
        }
    }
}

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
        let asked = &self.asked;
        let known = || asked.sets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(set) = known().get(&key) {
            return Ok(Arc::clone(set));
        }
        let set = match naming {
            Naming::Tag => self.tagged(name)?,
            Naming::System => self.owned(naming, name, &asked.systems, name)?,
            Naming::Country => {
                let key = name.to_ascii_uppercase();
                self.owned(naming, name, &asked.countries, &key)?
            }
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

    /// The networks of which the databases say this: as [`Names::country`] and [`Names::system`], the first database
    /// that says anything of an address counts.
    fn owned(&self, naming: Naming, name: &str, by: &By, key: &str) -> Result<NetworkSet, String> {
        if self.databases.is_empty() {
            return Err(format!(
                "'{}' needs a database of networks: give --mmdb FILE, such as GeoLite2, DB-IP or IPinfo",
                naming.word()
            ));
        }
        let said = by.said.get_or_init(|| self.said(by.of, by.key));
        let said = said.as_ref().map_err(Clone::clone)?;
        let mut all = NetworkSet::default();
        for one in said {
            if let Some(networks) = one.by_key.get(key) {
                all = all.with(networks.without(&one.before));
            }
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

    /// What each database says.
    fn said(&self, of: Of, key: Key) -> Result<Vec<Said>, String> {
        let mut all = Vec::with_capacity(self.databases.len());
        let mut before = NetworkSet::default();
        for (number, database) in (1_usize..).zip(&self.databases) {
            let found = database.networks(of, key)?;
            let then = match number < self.databases.len() {
                true => before.clone().with(whole(&found)),
                false => NetworkSet::default(),
            };
            let found = found.into_iter();
            let by_key = found.filter_map(|(key, ranges)| Some((key?, ranges.into_set())));
            all.push(Said {
                by_key: by_key.collect(),
                before,
            });
            before = then;
        }
        Ok(all)
    }
}

/// All networks of a database of which it says something.
fn whole(found: &[(Option<String>, Ranges)]) -> NetworkSet {
    let mut whole = Ranges::default();
    for (_, ranges) in found {
        whole.v4.extend_from_slice(&ranges.v4);
        whole.v6.extend_from_slice(&ranges.v6);
    }
    whole.into_set()
}

impl Database {
    /// The networks of which it says something, by that. `None` is what no filter can ask for.
    fn networks(&self, of: Of, key: Key) -> Result<Vec<(Option<String>, Ranges)>, String> {
        let damaged =
            |why: &dyn std::fmt::Display| format!("{}: damaged: {why}", self.file.display());
        let metadata = self.reader.metadata();
        let is_of_v6 = metadata.ip_version == 6;
        let nodes = usize::try_from(metadata.node_count).map_err(|error| damaged(&error))?;
        let most = nodes
            .saturating_add(1)
            .saturating_mul(NETWORKS_PER_NODE_MAX);
        // Networks share records. `None` if one says nothing.
        let mut records: HashMap<usize, Option<usize>> = HashMap::new();
        let mut places: HashMap<Option<String>, usize> = HashMap::new();
        let mut found: Vec<(Option<String>, Ranges)> = Vec::new();
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
            let place = match records.get(&offset) {
                Some(known) => *known,
                None => {
                    let record = network.decode::<Value>().map_err(|error| damaged(&error))?;
                    let said = record.as_ref().and_then(of).map(|text| key(&text));
                    let place = said.map(|said| {
                        *places.entry(said).or_insert_with_key(|said| {
                            found.push((said.clone(), Ranges::default()));
                            found.len() - 1
                        })
                    });
                    records.insert(offset, place);
                    place
                }
            };
            let Some((_, ranges)) = place.and_then(|place| found.get_mut(place)) else {
                continue;
            };
            let network = network.network().map_err(|error| damaged(&error))?;
            let ends = (network.network(), network.broadcast());
            ranges.push_of_database(ends, network.prefix(), is_of_v6);
        }
        Ok(found)
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

#[cfg(test)]
mod tests {
    use maxminddb::Reader;

    use super::*;

    fn text(text: &str) -> Vec<u8> {
        let len = u8::try_from(text.len()).unwrap();
        [&[(2 << 5) | len][..], text.as_bytes()].concat()
    }

    fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let entry = |(key, value): &(&str, Vec<u8>)| [text(key), value.clone()].concat();
        let mut bytes = vec![(7 << 5) | u8::try_from(entries.len()).unwrap()];
        bytes.extend(entries.iter().flat_map(entry));
        bytes
    }

    /// A database with these records of the lower and the upper half of all IPv4 addresses.
    fn database(lower: &[u8], upper: &[u8]) -> Database {
        // A tree of one node, whose records point behind it.
        let place = 1 + 16 + u8::try_from(lower.len()).unwrap();
        let number16 = |number: u8| vec![(5 << 5) | 1, number];
        let about = map(&[
            ("binary_format_major_version", number16(2)),
            ("binary_format_minor_version", number16(0)),
            ("build_epoch", vec![1, 2, 1]),
            ("database_type", text("Example")),
            ("description", map(&[("en", text("Example"))])),
            ("ip_version", number16(4)),
            ("languages", [vec![1, 4], text("en")].concat()),
            ("node_count", vec![(6 << 5) | 1, 1]),
            ("record_size", number16(24)),
        ]);
        let bytes: [&[u8]; 6] = [
            &[0, 0, 17, 0, 0, place],
            &[0; 16],
            lower,
            upper,
            b"\xab\xcd\xefMaxMind.com",
            &about,
        ];
        Database {
            file: PathBuf::from("example.mmdb"),
            reader: Reader::from_source(bytes.concat()).unwrap(),
        }
    }

    #[test]
    fn databases_are_walked_once_also_for_names_that_they_lack() {
        let country = |code| map(&[("country_code", text(code))]);
        let system = map(&[("asn", text("AS7"))]);
        let names = Names {
            databases: vec![
                database(&country("aa"), &system),
                database(&country("BB"), &country("BB")),
            ],
            ..Names::default()
        };
        let by = &names.asked.countries;
        let lacking = names.networks(Naming::Country, "CC").unwrap_err();
        assert!(lacking.contains("no network of 'country CC'"), "{lacking}");
        let walked = by.said.get().unwrap().as_ref().unwrap().as_ptr();
        let (lower, upper) = ([1 << 24, 2 << 24], [200 << 24, u32::MAX]);
        for (naming, name, of_lower, of_upper) in [
            (Naming::Country, "AA", true, false),
            // Of the other half, the first database says no country.
            (Naming::Country, "BB", false, true),
            (Naming::System, "7", false, true),
        ] {
            let set = names.networks(naming, name).unwrap();
            for (addresses, is_in) in [(lower, of_lower), (upper, of_upper)] {
                for address in addresses {
                    assert_eq!(set.contains_v4(address), is_in, "{name}: {address:x}");
                }
            }
        }
        names.networks(Naming::Country, "CC").unwrap_err();
        let again = by.said.get().unwrap().as_ref().unwrap().as_ptr();
        assert_eq!(again, walked);
    }
}
