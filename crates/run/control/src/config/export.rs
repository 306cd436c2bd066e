//! Where a recording may export packets to, and as whom.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strata_auth::keys::{ParseKeysError, SealKeys};
use strata_exporter::{Channel, Destination};
use strata_rules::{Action, DestinationName};
use strata_sandbox::{SecretError, read_secret};
use strata_wire::Keep;

/// Maximum number of destinations: each has a socket and, for each interface, buffers.
const DESTINATIONS_MAX: usize = 64;
/// The largest identity: it is a VXLAN network identifier.
const IDENTITY_MAX: u32 = (1 << 24) - 1;

/// Times of packets that are exported, ns since 1970, unless the configuration bounds them.
pub(crate) const ALWAYS: Range<u64> = 0..u64::MAX;

/// Export of headers and packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExportConfig {
    /// The only permitted destinations, by the names that policies use: `udp://HOST:PORT` for a
    /// `strata collector`, or `vxlan://HOST` for a VXLAN decapsulator (packets only, not headers;
    /// with `?cut` at the end of the URL, packets that are too long for the path are cut instead of
    /// sent in fragments). `key_file` encrypts the datagrams to `udp://` destinations; VXLAN is
    /// never encrypted.
    pub destinations: BTreeMap<String, String>,
    /// Identity of the first captured interface, 1 to 16777215; the other interfaces have the
    /// following numbers. Give each host its own range. In VXLAN, the identity is the VNI.
    pub identity: Option<u32>,
    /// Identities of individual interfaces, by name, instead of the numbers from `identity`.
    pub identities: BTreeMap<String, u32>,
    /// Descriptions, for collectors, of the other ends of interfaces, by the interface's name: a
    /// virtual machine, a container.
    pub behind: BTreeMap<String, String>,
    /// Export only packets captured from this time on, in ns since 1970. With it, a recording that
    /// takes over from another one begins where the other ends.
    pub from: Option<u64>,
    /// Name of this host for collectors. By default, its host name.
    pub host: Option<String>,
    /// File with a key of 64 hexadecimal digits, which only its owner may read (mode 0600):
    /// datagrams to `udp://` destinations are encrypted and authenticated with it. Collectors have
    /// the same key (`strata collector --key-file`). Read again when the configuration is reloaded.
    pub key_file: Option<PathBuf>,
    /// Addresses of destinations whose hosts are names, as in `analyser = "192.0.2.7:4740"`, if
    /// another program looks up the names, as an agent does for its recording. Read again when the
    /// configuration is reloaded. If this table is given, even empty, an unreachable destination is
    /// not an error: it is tried again every second, and datagrams that are not sent are counted.
    /// Cannot be combined with a log (-o), which would contain the packets sent to a new address.
    pub addresses: Option<BTreeMap<String, SocketAddr>>,
}

/// A destination with its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedDestination {
    /// The name that policies use.
    pub name: DestinationName,
    /// Where it is.
    pub destination: Destination,
    /// Its address, if given.
    pub address: Option<SocketAddr>,
}

/// [`ExportConfig`], checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportPlan {
    /// At least one, at most 64.
    pub destinations: Vec<NamedDestination>,
    /// Whether it is an error at the start that one of them cannot be reached. If not, no name is looked
    /// up.
    pub must_reach: bool,
    /// Of the first interface.
    pub identity: u32,
    /// Of individual interfaces.
    pub identities: BTreeMap<String, u32>,
    /// What is at the other end of individual interfaces.
    pub behind: BTreeMap<String, String>,
    /// The host's name, if it is not to be its own.
    pub host: Option<String>,
    /// With which datagrams to collectors are encrypted; in clear without any.
    pub keys: Option<SealKeys>,
    /// Only packets from this time on are exported, ns since 1970.
    pub from: u64,
}

/// A key, and what is wrong with it.
type Problem = (String, String);

impl ExportConfig {
    /// `None` if there are no destinations.
    pub(super) fn plan(&self) -> Result<Option<ExportPlan>, Problem> {
        let mut known = BTreeMap::new();
        for (name, &identity) in &self.identities {
            let key = || format!("identities.{name}");
            checked(identity).map_err(|problem| (key(), problem))?;
            if let Some(other) = known.insert(identity, name) {
                let problem = format!("{identity} is the identity of {other} already");
                return Err((key(), problem));
            }
        }
        let mut destinations = Vec::new();
        for (name, text) in &self.destinations {
            let wrong = |problem: String| (format!("destinations.{name}"), problem);
            let named = name
                .parse()
                .map_err(|error: strata_rules::ParseExportError| wrong(error.to_string()))?;
            let destination: Destination =
                text.parse()
                    .map_err(|error: strata_exporter::ParseDestinationError| {
                        wrong(error.to_string())
                    })?;
            let said = self.addresses.as_ref().and_then(|all| all.get(name));
            let literal = destination.host.parse::<IpAddr>().ok();
            let literal = literal.map(|host| SocketAddr::new(host, destination.port));
            destinations.push(NamedDestination {
                name: named,
                destination,
                address: said.copied().or(literal),
            });
        }
        let named = self.addresses.iter().flat_map(BTreeMap::keys);
        if let Some(name) = named
            .into_iter()
            .find(|name| !self.destinations.contains_key(*name))
        {
            let problem = String::from("no destination has this name");
            return Err((format!("addresses.{name}"), problem));
        }
        if let Some(identity) = self.identity {
            checked(identity).map_err(|problem| ("identity".into(), problem))?;
        }
        if destinations.is_empty() {
            return Ok(None);
        }
        if destinations.len() > DESTINATIONS_MAX {
            let problem = format!(
                "{} destinations; at most {DESTINATIONS_MAX} are allowed",
                destinations.len()
            );
            return Err(("destinations".into(), problem));
        }
        let identity = self.identity.ok_or_else(|| {
            let problem = "is missing: give this host the first number, from 1 to 16777215, of \
            its own range, by which collectors identify its interfaces";
            ("identity".into(), problem.into())
        })?;
        let keys = self.key_file.as_deref().map(read_keys).transpose();
        let keys = keys.map_err(|error| ("key_file".to_owned(), error.to_string()))?;
        Ok(Some(ExportPlan {
            keys,
            must_reach: self.addresses.is_none(),
            from: self.from.unwrap_or(ALWAYS.start),
            destinations,
            identity,
            identities: self.identities.clone(),
            behind: self.behind.clone(),
            host: self.host.clone(),
        }))
    }
}

/// Why keys in a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read, or others can read it.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Its contents are wrong.
    #[error("{}: {source}", file.display())]
    Keys {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        source: ParseKeysError,
    },
}

/// The keys in a file that only its owner can read.
///
/// # Errors
///
/// If they cannot be used.
pub fn read_keys(file: &Path) -> Result<SealKeys, KeyFileError> {
    let text = read_secret(file)?;
    SealKeys::parse(&text).map_err(|source| KeyFileError::Keys {
        file: file.to_owned(),
        source,
    })
}

fn checked(identity: u32) -> Result<(), String> {
    match identity {
        1..=IDENTITY_MAX => Ok(()),
        _ => Err(format!(
            "{identity} is not a number from 1 to {IDENTITY_MAX}"
        )),
    }
}

impl ExportPlan {
    /// The identity of the interface with this number in the recording and this name; `None` if no
    /// number is left for it, or another interface has it by its name.
    #[must_use]
    pub fn identity_of(&self, number: u16, name: Option<&str>) -> Option<u32> {
        if let Some(&identity) = name.and_then(|name| self.identities.get(name)) {
            return Some(identity);
        }
        let identity = self.identity + u32::from(number);
        let is_taken = self.identities.values().any(|&other| other == identity);
        (identity <= IDENTITY_MAX && !is_taken).then_some(identity)
    }

    /// What is wrong with an action: it names no destination, or one that cannot carry it.
    pub(crate) fn problem(plan: Option<&Self>, action: Action) -> Option<String> {
        let Action::Export(export) = action else {
            return None;
        };
        let destinations = plan.map_or(&[][..], |plan| &plan.destinations);
        let found = destinations.iter().find(|known| known.name == export.to);
        match found {
            None => Some(format!(
                "'{action}': the configuration has no destination {}: add it under \
                 [export.destinations], which is read at the start of a recording",
                export.to
            )),
            Some(known)
                if export.keep == Keep::Header && known.destination.channel == Channel::Vxlan =>
            {
                Some(format!(
                    "'{action}': VXLAN carries packets, not compressed headers: write 'payload -> {}', \
                     or name a udp:// destination",
                    export.to
                ))
            }
            Some(_) => None,
        }
    }
}
