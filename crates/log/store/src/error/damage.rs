//! Places of a log that cannot be read, and how a command reports them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;

use strata_wire::count_of;

use crate::names::{is_remote, tier_of};

/// Bytes of a file that differ from what was written, or a file that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// Bytes from its start.
    pub offset: u64,
    /// What is wrong.
    pub problem: String,
    /// Set if the whole file is missing, or its tier is away.
    pub missing: Option<MissingFile>,
}

/// What a missing file held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingFile {
    /// The part that it belongs to; `None` for a file of a recording.
    pub part: Option<u32>,
    /// Packets of the part, or of the file.
    pub packets: u64,
}

impl Damage {
    /// Reports a missing file of a part; `file` is its name in messages.
    #[must_use]
    pub fn missing(file: String, part: u32, packets: u64) -> Self {
        let or = match is_remote(&file) && file.starts_with("file://") {
            true => ", or its disk is not mounted",
            false => "",
        };
        let packets_text = count_of(packets, "packet");
        Self {
            problem: format!("the file is missing{or}; its part has {packets_text}"),
            file,
            offset: 0,
            missing: Some(MissingFile {
                part: Some(part),
                packets,
            }),
        }
    }

    /// The tier, if the whole file is missing there.
    fn tier(&self) -> Option<&str> {
        self.missing.and_then(|_| tier_of(&self.file))
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            offset,
            problem,
            missing,
        } = self;
        match missing {
            Some(_) => write!(f, "{file}: {problem}"),
            None => write!(
                f,
                "{file}: damaged at offset {offset}: {problem}; packets of other blocks are still readable"
            ),
        }
    }
}

impl std::error::Error for Damage {}

/// The missing files of one tier.
#[derive(Default)]
struct Tier<'a> {
    files: BTreeSet<&'a str>,
    /// Packets by part.
    parts: BTreeMap<u32, u64>,
}

impl Tier<'_> {
    fn text(&self, url: &str) -> String {
        let files = count_of(self.files.len() as u64, "file");
        let sum = |sum: u64, packets: &u64| sum.saturating_add(*packets);
        let packets = count_of(self.parts.values().fold(0, sum), "packet");
        let parts = count_of(self.parts.len() as u64, "part");
        let have = if self.parts.len() == 1 { "has" } else { "have" };
        let (or, advice) = match url.starts_with("file://") {
            true => (
                ", or the disk is not mounted",
                "mount it, or restore the files",
            ),
            false => ("", "restore them"),
        };
        format!("{url}: {files} missing{or}: {advice}; {parts} {have} {packets} there")
    }
}

/// Messages for these places, each once, in this order. If several files of a tier are missing, a single
/// message counts them: the tier is probably away.
#[must_use]
pub fn damage_texts(damage: &[Damage]) -> Vec<String> {
    let mut tiers: BTreeMap<&str, Tier<'_>> = BTreeMap::new();
    for place in damage {
        if let (Some(url), Some(missing)) = (place.tier(), place.missing) {
            let tier = tiers.entry(url).or_default();
            tier.files.insert(&place.file);
            tier.parts
                .extend(missing.part.map(|part| (part, missing.packets)));
        }
    }
    let text = |place: &Damage| {
        let tier = place
            .tier()
            .and_then(|url| Some((url, tiers.get(url)?)))
            .filter(|(_, tier)| tier.files.len() > 1);
        tier.map_or_else(|| place.to_string(), |(url, tier)| tier.text(url))
    };
    let mut said = HashSet::new();
    let texts = damage.iter().map(text);
    texts.filter(|text| said.insert(text.clone())).collect()
}

/// The number of damaged places and of missing files, as in `2 damaged places and 10 missing files`; `None`
/// without any.
#[must_use]
pub fn damage_counts(damage: &[Damage]) -> Option<String> {
    let missing: BTreeSet<&str> = damage
        .iter()
        .filter(|place| place.missing.is_some())
        .map(|place| place.file.as_str())
        .collect();
    let places = damage.iter().filter(|place| place.missing.is_none());
    let counts = [
        (places.count(), "damaged place"),
        (missing.len(), "missing file"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts
        .map(|(count, thing)| count_of(count as u64, thing))
        .collect();
    (!counts.is_empty()).then(|| counts.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_of_a_tier_are_one_message() {
        let away = |name: &str, part, packets| {
            Damage::missing(format!("file:///mnt/away/{name}"), part, packets)
        };
        let damaged = Damage {
            file: "log/blocks/a.strata".into(),
            offset: 7,
            problem: "bad".into(),
            missing: None,
        };
        let here = Damage::missing("log/meta/00000003.strata".into(), 3, 1);
        let damage = [
            away(
                "packets/hour=1/retention=benign/00000001.parquet",
                1,
                17_065,
            ),
            away("meta/00000001.strata", 1, 17_065),
            damaged.clone(),
            away("meta/00000002.strata", 2, 50_625),
            away("meta/00000002.strata", 2, 50_625),
            here,
        ];
        assert_eq!(
            damage_texts(&damage),
            [
                "file:///mnt/away: 3 files missing, or the disk is not mounted: mount it, or restore the files; \
                 2 parts have 67,690 packets there",
                "log/blocks/a.strata: damaged at offset 7: bad; packets of other blocks are still readable",
                "log/meta/00000003.strata: the file is missing; its part has 1 packet",
            ]
        );
        assert_eq!(
            damage_counts(&damage).as_deref(),
            Some("1 damaged place and 4 missing files")
        );
        // A single file is named, whether its tier is there or not.
        let alone = damage_texts(&damage[1..2]);
        assert_eq!(
            alone,
            [
                "file:///mnt/away/meta/00000001.strata: the file is missing, or its disk is not mounted; its part \
              has 17,065 packets"
            ]
        );
        let object = Damage::missing("s3://traffic/a/meta/00000001.strata".into(), 1, 2);
        assert!(!object.to_string().contains("mounted"), "{object}");
        assert_eq!(
            damage_counts(&[damaged]).as_deref(),
            Some("1 damaged place")
        );
        assert_eq!(damage_counts(&[]), None);
    }
}
