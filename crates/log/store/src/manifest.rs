//! `manifest.json`: what recordings a log holds, and in which files.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub(crate) mod archive;
pub(crate) mod checkpoint;
pub(crate) mod drift;
pub(crate) mod flipped;
pub(crate) mod stored;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use strata_wire::tunnel::Tunnels;
use strata_wire::{Counters, CutWhere, DropReason, Ledger};

use crate::manifest::flipped::explain;
use crate::names::is_safe_name;

/// The manifest's file name within a log.
pub const MANIFEST_NAME: &str = "manifest.json";

/// The version of logs with new recordings. Those up to it are read; programs that know only
/// earlier ones refuse the log.
pub(crate) const VERSION: u32 = 2;

/// The manifest of a log. It is replaced atomically.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Always `strata-log`.
    pub format: String,
    /// 1, or 2 once a recording began whose blocks may hold compact packets.
    pub version: u32,
    /// CRC-32C of this file with eight zeros in this place, in hexadecimal.
    pub crc: String,
    /// In the order they were made.
    pub recordings: Vec<Recording>,
}

impl Default for Manifest {
    fn default() -> Self {
        Self {
            format: "strata-log".into(),
            version: VERSION,
            crc: NO_CRC.into(),
            recordings: Vec::new(),
        }
    }
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in plain English; and where, if a single byte was changed.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        Self::read(bytes).map_err(|problem| explain("strata-log", bytes, problem))
    }

    fn read(bytes: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let is_known = (1..=VERSION).contains(&manifest.version);
        if manifest.format != "strata-log" || !is_known {
            return Err(format!(
                "format '{}' version {}, but this Strata reads 'strata-log' version 1 to \
                 {VERSION}; a newer Strata may read this log",
                manifest.format, manifest.version
            ));
        }
        // Compared as bytes, so that changes without meaning are noticed too.
        if manifest.to_json() != bytes {
            return Err(DAMAGED.into());
        }
        let block_files = manifest
            .recordings
            .iter()
            .flat_map(|r| &r.files)
            .map(|f| &f.name);
        let model_files = manifest.recordings.iter().flat_map(Recording::model_files);
        for name in block_files.chain(model_files) {
            if !is_safe_name(name) {
                return Err(format!("file name '{name}' is not one that Strata writes"));
            }
        }
        Ok(manifest)
    }

    /// The manifest as JSON, with its checksum.
    ///
    /// # Panics
    ///
    /// Never: every field can be serialized.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut copy = self.clone();
        copy.crc = NO_CRC.into();
        let plain = serde_json::to_vec_pretty(&copy).expect("a manifest has only plain fields");
        copy.crc = format!("{:08x}", crc32c::crc32c(&plain));
        serde_json::to_vec_pretty(&copy).expect("a manifest has only plain fields")
    }
}

/// Placeholder for a manifest's checksum while that is computed.
pub(crate) const NO_CRC: &str = "00000000";
/// The problem of a manifest whose checksum is wrong.
pub(crate) const DAMAGED: &str = "its checksum does not match: it was damaged or edited";

/// How a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Not yet, or abruptly: its last file may have a torn tail.
    Running,
    /// Properly: the counters are closed.
    Closed,
}

/// A recording's description, for the manifest.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Program and version.
    pub program: String,
    /// Inputs, as named by the user.
    pub inputs: Vec<String>,
    /// Capture filter.
    pub filter: String,
    /// Name of the mode.
    pub mode: String,
    /// Name of the model.
    pub model: String,
    /// The model file's content, which is stored in the log.
    pub model_json: Vec<u8>,
    /// Name and content of the shadow model, if there is one: it may be promoted.
    pub shadow: Option<(String, Vec<u8>)>,
    /// Names of the classes, by index.
    pub classes: Vec<String>,
    /// Key of fingerprints.
    pub hash_seed: [u64; 2],
    /// Whether blocks may hold promotions of earlier packets.
    pub look_back: bool,
    /// Whether the inputs are captured interfaces.
    pub live: bool,
}

/// One run of `strata record`.
///
/// A manifest must serialise to the very bytes that were read. So a field added later is skipped
/// (`skip_serializing_if`) where an older log has no value for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// From 1.
    pub id: u32,
    /// How it ended.
    pub state: State,
    /// What recorded it.
    pub program: String,
    /// When it was started, ns since 1970.
    pub started_ns: u64,
    /// When it ended.
    pub ended_ns: Option<u64>,
    /// Inputs, as named by the user.
    pub inputs: Vec<String>,
    /// The capture filter; empty for none.
    pub filter: String,
    /// The mode at the start.
    pub mode: String,
    /// The model's name.
    pub model: String,
    /// The model's file within the log.
    pub model_file: String,
    /// CRC-32C of that file.
    pub model_crc: u32,
    /// Names of the classes, by index.
    pub classes: Vec<String>,
    /// Key of flow and address fingerprints.
    pub hash_seed: [u64; 2],
    /// Its block files, in order.
    pub files: Vec<BlockFile>,
    /// The counters, once closed.
    pub ledger: Option<SavedLedger>,
    /// What was unusual about the inputs.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Set if it came through a relay: chosen at random by the switch, so that it finds its
    /// recording again after losing the relay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Files deleted to make space for new ones, by worker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overwritten: Vec<Overwritten>,
    /// Whether blocks may hold promotions of earlier packets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub look_back: bool,
    /// Whether the inputs are captured interfaces: each has its own packet order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub live: bool,
    /// The tables of flows, once closed; not known of a switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_table: Option<FlowTable>,
    /// What became of payload under a budget of detail, once closed; absent without one, and of a
    /// switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<DetailKept>,
    /// The shadow model, if there is one. Where it was promoted, contexts of blocks say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowModel>,
    /// UDP ports of tunnels, by their names, that packets were looked into; empty for the usual ones,
    /// and not known of a switch.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tunnels: BTreeMap<String, Vec<u16>>,
}

/// The model in the shadow of a recording's first one, stored beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowModel {
    /// Its name.
    pub model: String,
    /// Its file within the log.
    pub model_file: String,
    /// CRC-32C of that file.
    pub model_crc: u32,
}

impl Recording {
    /// Its models' files.
    pub(crate) fn model_files(&self) -> impl Iterator<Item = &String> {
        let shadow = self.shadow.as_ref();
        std::iter::once(&self.model_file).chain(shadow.map(|shadow| &shadow.model_file))
    }

    /// A new one, without files.
    pub(crate) fn begun(id: u32, about: &About, model_file: String, started_ns: u64) -> Self {
        Self {
            id,
            state: State::Running,
            program: about.program.clone(),
            started_ns,
            ended_ns: None,
            inputs: about.inputs.clone(),
            filter: about.filter.clone(),
            mode: about.mode.clone(),
            model: about.model.clone(),
            model_file,
            model_crc: crc32c::crc32c(&about.model_json),
            classes: about.classes.clone(),
            hash_seed: about.hash_seed,
            files: Vec::new(),
            ledger: None,
            warnings: Vec::new(),
            session: None,
            overwritten: Vec::new(),
            look_back: about.look_back,
            live: about.live,
            flow_table: None,
            detail: None,
            shadow: None,
            tunnels: Tunnels::in_force().lists(),
        }
    }
}

/// The tables in which workers count the packets of each flow, at the end of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTable {
    /// Their memory.
    pub bytes: u64,
    /// Packets counted.
    pub packets: u64,
    /// Of these, those whose flow found no entry: classified by their own headers alone.
    pub without_entry: u64,
}

/// What a budget of detail decided about payload beyond headers. Packets may be lost after the decision, because the
/// disk was full or the relay was lost: their payload is counted here, but is not in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetailKept {
    /// Packets that the budget decided about.
    pub offered_packets: u64,
    /// Their payload on the wire.
    pub offered_bytes: u64,
    /// Of these, packets that got detail.
    pub given_packets: u64,
    /// The bytes to keep of them beyond headers.
    pub given_bytes: u64,
    /// Of these, packets that the mode wanted, but the budget did not give.
    pub over_budget_packets: u64,
    /// Their payload on the wire.
    pub over_budget_bytes: u64,
    /// Packets that others decided about: policies, alerts, first bytes.
    pub outside_packets: u64,
    /// The bytes to keep of them beyond headers.
    pub outside_bytes: u64,
}

/// Files of a worker that were deleted to make space for new ones.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Overwritten {
    /// The worker.
    pub worker: u16,
    /// How many files.
    pub files: u64,
    /// Packets in them.
    pub packets: u64,
    /// One more than the sequence number of the last.
    pub next_seq: u64,
}

/// One block file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockFile {
    /// Path within the log.
    pub name: String,
    /// The worker that filled it.
    pub worker: u16,
    /// Whether it is complete; the numbers below count for complete files only.
    pub sealed: bool,
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Packets.
    pub packets: u64,
}

/// Counters as packets and bytes.
pub(crate) type Pair = (u64, u64);

/// A [`Ledger`] as stored: counters of the first versions, and those that came later, each declared once.
macro_rules! saved_ledger {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            first { $($(#[$help:meta])* $field:ident,)* }
            later { $($(#[$later_help:meta])* $later:ident,)* }
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$help])* pub $field: Pair,)*
            /// Lost, by reason.
            pub dropped: Vec<(String, Pair)>,
            /// Bytes cut, by place.
            pub cut: Vec<(String, u64)>,
            $($(#[$later_help])* #[serde(default)] pub $later: Pair,)*
        }

        impl From<&Ledger> for $name {
            fn from(ledger: &Ledger) -> Self {
                // All fields of it, so that a new one cannot be forgotten here. Nothing is in flight once
                // it is stored.
                let Ledger { $($field,)* $($later,)* dropped, cut_bytes, in_flight: _ } = *ledger;
                let by_reason = DropReason::ALL.iter();
                let by_place = CutWhere::ALL.iter();
                Self {
                    $($field: pair($field),)*
                    dropped: by_reason
                        .map(|&r| (r.name().to_owned(), pair(dropped[r as usize])))
                        .collect(),
                    cut: by_place
                        .map(|&w| (w.name().to_owned(), cut_bytes[w as usize]))
                        .collect(),
                    $($later: pair($later),)*
                }
            }
        }

        impl From<&$name> for Ledger {
            fn from(accounting: &$name) -> Self {
                let mut ledger = Self {
                    $($field: counters(accounting.$field),)*
                    $($later: counters(accounting.$later),)*
                    ..Self::default()
                };
                for (name, value) in &accounting.dropped {
                    if let Some(reason) = DropReason::ALL.iter().find(|r| r.name() == name) {
                        ledger.dropped[*reason as usize] = counters(*value);
                    }
                }
                for (name, bytes) in &accounting.cut {
                    if let Some(place) = CutWhere::ALL.iter().find(|w| w.name() == name) {
                        ledger.cut_bytes[*place as usize] = *bytes;
                    }
                }
                ledger
            }
        }
    };
}

saved_ledger! {
    /// A [`Ledger`] as stored.
    #[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
    pub struct SavedLedger {
        first {
            /// See [`Ledger`]; each is packets, bytes.
            seen,
            /// Not matched by the filter.
            filtered,
            /// Dropped by policy.
            discarded,
            /// Sampled out.
            sampled_out,
            /// In the log.
            logged,
        }
        later {
            /// Part of `logged`: wanted with more bytes than the kernel had copied.
            wanted_but_cut,
            /// Part of `logged`: as headers at first, and whole later; bytes are those added.
            promoted,
            /// Part of `logged`: first bytes instead of unparsable headers; bytes are those kept.
            header_fallback,
            /// Copies of packets that were captured before. Written if there are some, as the next: the checksum
            /// of a manifest is that of all its fields, and earlier ones lack these.
            #[serde(skip_serializing_if = "is_none")]
            duplicates,
            /// In addition: may have been captured before, but could not be compared.
            #[serde(skip_serializing_if = "is_none")]
            uncompared,
            /// In addition: forwarded copies.
            mirrored,
            /// Copies that could not be forwarded.
            mirror_lost,
        }
    }
}

fn is_none(pair: &Pair) -> bool {
    *pair == (0, 0)
}

fn pair(counters: Counters) -> Pair {
    (counters.packets, counters.bytes)
}

fn counters((packets, bytes): Pair) -> Counters {
    Counters { packets, bytes }
}
