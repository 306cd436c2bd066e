//! `archive.json`: what compaction made of block files, and which of those are gone.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use serde::{Deserialize, Serialize};

use strata_blocks::ClassCount;

use crate::manifest::flipped::explain;
use crate::manifest::{DAMAGED, MANIFEST_NAME, NO_CRC};
use crate::names::{COMPACTION_NAME, LOCK_NAME, READERS_NAME, is_file_name, is_remote};

/// The archive manifest's file name within a log.
pub const ARCHIVE_NAME: &str = "archive.json";

/// Where files of a part are written before they are listed.
pub const STAGING: &str = "staging";

/// Names of everything Strata creates in a log's directory.
pub const LOG_ENTRIES: [&str; 17] = [
    MANIFEST_NAME,
    "manifest.json.new",
    ARCHIVE_NAME,
    "archive.json.new",
    LOCK_NAME,
    READERS_NAME,
    COMPACTION_NAME,
    "blocks",
    "models",
    "drift",
    // Policies that were added at run time (`control`, `saved`).
    "policies.jsonl",
    STAGING,
    FileKind::Packets.dir(),
    FileKind::Flows.dir(),
    FileKind::Payload.dir(),
    FileKind::Meta.dir(),
    FileKind::Sums.dir(),
];

/// The manifest of compacted data. It is replaced atomically, and decides for each block file
/// whether its packets are read from it or from the parts: a block file listed in [`Archive::gone`]
/// is no longer read, even if it still exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Archive {
    /// Always `strata-archive`.
    pub format: String,
    /// Always 1.
    pub version: u32,
    /// CRC-32C of this file with eight zeros in this place, in hexadecimal.
    pub crc: String,
    /// Grows with each change.
    pub generation: u64,
    /// The number of the next part.
    pub next_part: u32,
    /// What was compacted, in the order it was compacted.
    pub parts: Vec<Part>,
    /// Block files that are no longer part of the log.
    pub gone: Vec<Gone>,
    /// Files of parts that are no longer part of the log, to be deleted once no process reads the
    /// log.
    pub deleted: Vec<String>,
    /// Public keys to which newly compacted data is encrypted; if empty, it is not encrypted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub encrypt_to: Vec<String>,
    /// What was deleted so far, added up. Logs of older versions do not say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<Removed>,
}

/// Why packets were deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RemovedFor {
    /// They were older than they are kept (`--keep`, `--keep-class`).
    Age,
    /// The log was larger than it may be (`--max-size`).
    Size,
    /// A recording made room on the disk, or in its log (`remove_percent`, `--disk-limit`).
    Room,
}

impl RemovedFor {
    /// In words, after "deleted".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Age => "by age",
            Self::Size => "to keep the size (--max-size)",
            Self::Room => "to make room on the disk",
        }
    }
}

/// What deleted packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RemovedBy {
    /// `strata prune`, by hand or by a timer.
    Prune,
    /// `strata compact` with retention.
    Compact,
    /// The recording, or the relay, that writes the log.
    Record,
}

impl RemovedBy {
    /// The command.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Prune => "prune",
            Self::Compact => "compact",
            Self::Record => "record",
        }
    }
}

/// What was deleted of a recording for one reason: all deletions so far, added up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// The recording.
    pub recording: u32,
    /// Why.
    #[serde(rename = "for")]
    pub reason: RemovedFor,
    /// By what.
    pub by: RemovedBy,
    /// Packets and bytes by class and granularity. Packets of damaged blocks, which cannot be
    /// counted, are not among them.
    pub counts: Vec<ClassCount>,
}

/// The compacted packets of one recording, hour and retention class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// From 1.
    pub id: u32,
    /// The recording.
    pub recording: u32,
    /// The hour in which its first packet arrived, `2026-01-31T13`, UTC.
    pub hour: String,
    /// The retention class.
    pub retention: String,
    /// Earliest arrival, ns.
    pub ts_min_ns: u64,
    /// Latest arrival, ns.
    pub ts_max_ns: u64,
    /// Packets.
    pub packets: u64,
    /// Flows.
    pub flows: u64,
    /// Packets and bytes by class and granularity.
    pub counts: Vec<ClassCount>,
    /// The key of its encrypted files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<WrappedKey>,
    /// Its files.
    pub files: Vec<PartFile>,
}

/// A part's secret key, which only the holder of one of the recipients' keys can read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedKey {
    /// Public keys of the recipients.
    pub to: Vec<String>,
    /// The secret key, encrypted to them: an age file in its text form.
    pub wrapped: String,
}

impl Part {
    /// Bytes of all its files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes = self.files.iter().map(|file| file.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Whether its files are stored outside the log's directory.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.files.iter().any(|file| is_remote(&file.name))
    }

    /// Its file of one kind.
    #[must_use]
    pub fn file(&self, kind: FileKind) -> Option<&PartFile> {
        self.files.iter().find(|file| file.kind == kind)
    }
}

/// What a file of a part holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// Parquet, one row per packet.
    Packets,
    /// Parquet, one row per flow.
    Flows,
    /// Packets kept beyond their headers: pcapng in gzip members.
    Payload,
    /// A block file of the inputs' metadata.
    Meta,
    /// Checksums of the other files.
    Sums,
}

impl FileKind {
    /// The directory of such files, which is also the table's name in SQL.
    #[must_use]
    pub const fn dir(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Flows => "flows",
            Self::Payload => "payload",
            Self::Meta => "meta",
            Self::Sums => "sums",
        }
    }

    /// The suffix of such files' names.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::Packets | Self::Flows => "parquet",
            Self::Payload => "pcapng.gz",
            Self::Meta => "strata",
            Self::Sums => "crc",
        }
    }
}

/// One file of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFile {
    /// What it holds.
    pub kind: FileKind,
    /// Its name within the log, or its URL if it is stored elsewhere.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32C of the whole file.
    pub crc: u32,
}

/// The suffix of encrypted files.
pub const ENCRYPTED: &str = ".age";

impl PartFile {
    /// Whether it is encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.name.ends_with(ENCRYPTED)
    }
}

/// A block file whose packets are in parts, or were deleted by age or size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    /// Its name within the log.
    pub name: String,
    /// Its recording.
    pub recording: u32,
    /// The worker that filled it.
    pub worker: u16,
    /// Packets it held.
    pub packets: u64,
    /// Sequence number of its first packet.
    pub first_seq: u64,
    /// One more than the last.
    pub next_seq: u64,
    /// How many of its packets end where a part was lost between switch and relay.
    #[serde(default)]
    pub incomplete: u64,
}

impl Default for Archive {
    fn default() -> Self {
        Self {
            format: "strata-archive".into(),
            version: 1,
            crc: NO_CRC.into(),
            generation: 0,
            next_part: 1,
            parts: Vec::new(),
            gone: Vec::new(),
            deleted: Vec::new(),
            encrypt_to: Vec::new(),
            removed: Vec::new(),
        }
    }
}

impl Archive {
    /// Reads a manifest.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in plain English; and where, if a single byte was changed.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        Self::read(bytes).map_err(|problem| explain("strata-archive", bytes, problem))
    }

    fn read(bytes: &[u8]) -> Result<Self, String> {
        let archive: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if archive.format != "strata-archive" || archive.version != 1 {
            return Err(format!(
                "format '{}' version {}, but this Strata reads 'strata-archive' version 1",
                archive.format, archive.version
            ));
        }
        // Compared as bytes, so that changes without meaning are noticed too.
        if archive.to_json() != bytes {
            return Err(DAMAGED.into());
        }
        let names = archive.parts.iter().flat_map(|part| &part.files);
        let names = names.map(|file| &file.name);
        let gone = archive.gone.iter().map(|gone| &gone.name);
        for name in names.chain(gone).chain(&archive.deleted) {
            if !is_file_name(name) {
                return Err(format!("file name '{name}' is not one that Strata writes"));
            }
        }
        Ok(archive)
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
        let plain = serde_json::to_vec_pretty(&copy).expect("it has only plain fields");
        copy.crc = format!("{:08x}", crc32c::crc32c(&plain));
        serde_json::to_vec_pretty(&copy).expect("it has only plain fields")
    }

    /// Notes that packets of a recording were deleted.
    pub fn note_removed(
        &mut self,
        recording: u32,
        (reason, by): (RemovedFor, RemovedBy),
        counts: &[ClassCount],
    ) {
        let mut noted = self.removed.iter();
        let is = |one: &Removed| (one.recording, one.reason, one.by) == (recording, reason, by);
        let place = noted.position(is).unwrap_or_else(|| {
            let place = self.removed.len();
            self.removed.push(Removed {
                recording,
                reason,
                by,
                counts: Vec::new(),
            });
            place
        });
        add_counts(&mut self.removed[place].counts, counts);
    }

    /// Whether a block file is no longer part of the log.
    #[must_use]
    pub fn is_gone(&self, name: &str) -> bool {
        self.gone.iter().any(|gone| gone.name == name)
    }
}

/// Adds packets and bytes by class and granularity. Sums of what a file says, so they stay at the
/// most there is instead of wrapping.
pub fn add_counts(sums: &mut Vec<ClassCount>, counts: &[ClassCount]) {
    for count in counts {
        let is = |sum: &&mut ClassCount| (sum.class, sum.keep) == (count.class, count.keep);
        match sums.iter_mut().find(is) {
            Some(sum) => {
                sum.packets = sum.packets.saturating_add(count.packets);
                sum.wire_bytes = sum.wire_bytes.saturating_add(count.wire_bytes);
                sum.logged_bytes = sum.logged_bytes.saturating_add(count.logged_bytes);
            }
            None if count.packets > 0 => sums.push(*count),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletions_add_up_by_recording_reason_and_class() {
        let count = |class, packets| ClassCount {
            class,
            packets,
            wire_bytes: 100 * packets,
            logged_bytes: 10 * packets,
            ..ClassCount::default()
        };
        let by_age = (RemovedFor::Age, RemovedBy::Prune);
        let mut archive = Archive::default();
        archive.note_removed(1, by_age, &[count(0, 1), count(1, 2)]);
        archive.note_removed(1, (RemovedFor::Room, RemovedBy::Record), &[count(0, 4)]);
        archive.note_removed(1, by_age, &[count(1, 8), count(2, 0)]);
        archive.note_removed(2, by_age, &[count(1, 16)]);
        let packets: Vec<Vec<u64>> = archive
            .removed
            .iter()
            .map(|removed| removed.counts.iter().map(|count| count.packets).collect())
            .collect();
        assert_eq!(packets, [vec![1, 10], vec![4], vec![16]]);
        let back = Archive::from_json(&archive.to_json()).unwrap();
        assert_eq!(back.removed, archive.removed);
        // As an older version wrote it.
        let old = Archive::default().to_json();
        assert!(!String::from_utf8(old).unwrap().contains("removed"));
    }

    #[test]
    fn every_flipped_bit_of_the_manifest_is_noticed() {
        let archive = Archive {
            generation: 7,
            gone: vec![Gone {
                name: "blocks/r0001-w00-000000.strata".into(),
                recording: 1,
                worker: 0,
                packets: 2,
                first_seq: 3,
                next_seq: 5,
                incomplete: 2,
            }],
            ..Archive::default()
        };
        let bytes = archive.to_json();
        let back = Archive::from_json(&bytes).unwrap();
        assert_eq!(back.gone, archive.gone);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Archive::from_json(&flipped).is_err(), "bit {bit}");
        }
    }
}
