//! A recording of an agent: its interfaces, its configuration file and what its options say.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Serialize;
use strata_rules::Action;
use strata_wire::Keep;

use crate::message::AssignedPolicy;

/// Bytes of a packet of which headers are exported: more than headers have, unless somebody makes them long on
/// purpose.
const HEADERS_BYTES: u32 = 512;
/// Recordings capture no more by themselves.
const PACKET_BYTES: u32 = 262_144;

/// A recording to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Interfaces to capture, at least one.
    pub interfaces: Vec<String>,
    /// Its configuration file.
    pub config: String,
    /// File with the keys that the configuration names, if exports are encrypted.
    pub keys: Option<String>,
    /// Bytes of each packet that policies need.
    pub snaplen: u32,
    /// Interfaces that are ports of a bridge, those of each together: what goes from one to another is captured
    /// where it comes in only.
    pub bridge_ports: Vec<Vec<String>>,
    /// Ports of switches, of which only what comes in is captured.
    pub in_only: Vec<String>,
    /// Interfaces of switches themselves, of which only what goes out is captured.
    pub out_only: Vec<String>,
    /// What users should know of the interfaces.
    pub notes: Vec<String>,
    /// Why no recording can follow it, if that is known.
    pub problem: Option<String>,
    /// Identities of the interfaces.
    pub(crate) identities: BTreeMap<String, u32>,
    pub(crate) is_encrypted: bool,
}

impl Plan {
    /// The configuration file of a recording that exports only what is captured from this time on, ns since
    /// 1970.
    ///
    /// # Panics
    ///
    /// If it is later than 2262.
    #[must_use]
    pub fn config_from(&self, from: u64) -> String {
        let parsed = self.config.parse::<toml::Table>();
        let mut config = parsed.expect("it was written as TOML");
        if let Some(toml::Value::Table(export)) = config.get_mut("export") {
            let from = i64::try_from(from).expect("a time before 2262");
            export.insert(String::from("from"), from.into());
        }
        config.to_string()
    }

    /// Whether a recording of this plan can follow the other: what else there is, is decided at its start.
    pub(crate) fn fits(&self, other: &Self) -> bool {
        self.identities == other.identities
            && self.is_encrypted == other.is_encrypted
            && self.bridge_ports == other.bridge_ports
            && self.in_only == other.in_only
            && self.out_only == other.out_only
            && self.snaplen >= other.snaplen
    }

    /// Whether an interface has another identity in the other plan, or none.
    pub(crate) fn contradicts(&self, other: &Self) -> bool {
        let mut own = self.identities.iter();
        let mut theirs: Vec<u32> = other.identities.values().copied().collect();
        theirs.sort_unstable();
        own.any(|(name, number)| match other.identities.get(name) {
            Some(now) => now != number,
            None => theirs.binary_search(number).is_ok(),
        })
    }
}

/// Bytes of a packet that an action needs.
pub(crate) fn snaplen(action: &str) -> u32 {
    let Ok(action) = action.parse::<Action>() else {
        // The recording will say what is wrong with it.
        return PACKET_BYTES;
    };
    match action {
        Action::Export(export) => match export.keep {
            Keep::Header | Keep::Nothing => HEADERS_BYTES,
            Keep::Partial(bytes) => HEADERS_BYTES.saturating_add(bytes).min(PACKET_BYTES),
            Keep::Full => PACKET_BYTES,
        },
        _ => HEADERS_BYTES,
    }
}

/// The destination of an action, if there is one.
pub(crate) fn destination(action: &str) -> Option<String> {
    match action.parse() {
        Ok(Action::Export(export)) => Some(export.to.to_string()),
        // The recording will say what is wrong with it.
        Ok(_) | Err(_) => None,
    }
}

/// A recording's configuration file.
#[derive(Serialize)]
pub(crate) struct Config<'a> {
    pub(crate) default: &'a str,
    pub(crate) policy: Vec<&'a AssignedPolicy>,
    pub(crate) export: Export<'a>,
}

#[derive(Serialize)]
pub(crate) struct Export<'a> {
    pub(crate) host: &'a str,
    pub(crate) identity: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_file: Option<&'a str>,
    pub(crate) identities: &'a BTreeMap<String, u32>,
    pub(crate) behind: BTreeMap<&'a str, &'a str>,
    pub(crate) destinations: &'a BTreeMap<String, String>,
    /// Present even if empty: a destination that cannot be reached does not stop the others.
    pub(crate) addresses: &'a BTreeMap<String, SocketAddr>,
}
