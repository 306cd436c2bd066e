//! What a telemetry store holds and where: from a few parameters, the same at writers and readers.
//! The file `telemetry.json` of a store says it for other programs too.

mod layout;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use strata_dta::KeyHasher;
use strata_dta::append::{Append, BATCH_MAX};
use strata_dta::generations::{GENERATIONS_MAX, Generations};
use strata_dta::key_increment::KeyIncrement;
use strata_dta::key_write::KeyWrite;
use strata_dta::postcarding::{Dictionary, HOPS_MAX, Postcarding, Values};
use strata_dta::protocol::DATA_LEN_MAX;
use strata_role::{Result, RoleError, require};
use strata_sys::words::Words;
use strata_wire::exact;

pub(crate) use self::layout::Parameters;
pub use self::layout::TelemetryLayout;
use crate::store::share::Share;

/// What the manifest says of itself.
const FORMAT: &str = "strata-telemetry";
/// Version of the layout.
const VERSION: u32 = 3;
/// Bits of a checksum, and of a slot of a path.
pub(crate) const BITS: u32 = 32;
/// Bytes of the table of keys that were added to often, at the front of the memory.
pub(crate) const CANDIDATES_BYTES: usize = 64 * 1024;
/// Bytes of the dictionary of large values of hops, after it.
const DICTIONARY_BYTES: usize = 64 * 1024;
/// Bytes of the table of generations, after both.
const GENERATIONS_BYTES: usize = 4096;
/// Period of a generation, in seconds.
const PERIOD_S: std::ops::RangeInclusive<u64> = 1..=366 * 24 * 3600;
/// Memory in all.
const MEMORY_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 36;
/// Largest value that queries try without having been told it.
const VALUE_MAX: u32 = (1 << 24) - 1;

/// The kind of a list's entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryKind {
    /// Events of a node, of 18 bytes, and of the flow that had it, of 31 or 55.
    NodeEvent,
    /// Events of a flow, of 18 bytes, or 42 of IPv6.
    FlowEvent,
    /// Anything.
    Bytes,
}

/// A list that has a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedList {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// The kind of its entries.
    pub entries: EntryKind,
}

/// Where everything lies, in bytes from the front of the memory. It follows from the parameters,
/// and is written down for other programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Places {
    pub(crate) candidates_at: u64,
    pub(crate) dictionary_at: u64,
    pub(crate) dictionary_words: u32,
    pub(crate) key_write_at: u64,
    pub(crate) key_write_slots: u32,
    pub(crate) key_write_slot_bytes: u64,
    pub(crate) postcarding_at: u64,
    pub(crate) postcarding_chunks: u32,
    pub(crate) postcarding_chunk_bytes: u64,
    pub(crate) append_at: u64,
    pub(crate) append_slots: u32,
    pub(crate) append_slot_bytes: u64,
    pub(crate) key_increment_at: u64,
    pub(crate) key_increment_counters: u32,
    /// Values, paths and counters above are those of the first generation, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) generations: Option<GenerationPlaces>,
    pub(crate) bytes: u64,
}

/// Where generations lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GenerationPlaces {
    /// Their table.
    pub(crate) table_at: u64,
    /// Bytes from a store of one of them to the same store of the next.
    pub(crate) stride: u64,
}

/// `telemetry.json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    format: String,
    version: u32,
    /// The two halves of the hasher's seed, in hexadecimal digits.
    seed: [String; 2],
    pub(crate) parameters: Parameters,
    pub(crate) places: Places,
    pub(crate) lists: Vec<NamedList>,
    /// Of a store that a translator elsewhere writes: its part of all keys and lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) share: Option<Share>,
}

/// What every version of `telemetry.json` says.
#[derive(Deserialize)]
struct Named {
    format: String,
    version: u32,
}

/// A store as both sides see it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) hasher: KeyHasher,
    pub(crate) key_write: KeyWrite,
    pub(crate) postcarding: Postcarding,
    pub(crate) append: Append,
    pub(crate) key_increment: KeyIncrement,
    pub(crate) dictionary: Dictionary,
    pub(crate) parameters: Parameters,
    pub(crate) places: Places,
}

impl Manifest {
    pub(crate) fn new(
        seed: [u64; 2],
        parameters: Parameters,
        lists: Vec<NamedList>,
    ) -> Result<Self> {
        let plan = Plan::new(seed, parameters)?;
        Ok(Self {
            format: FORMAT.into(),
            version: VERSION,
            seed: seed.map(|half| format!("{half:016x}")),
            parameters,
            places: plan.places,
            lists,
            share: None,
        })
    }

    /// What follows from it.
    pub(crate) fn plan(&self) -> Result<Plan> {
        let half = |text: &String| u64::from_str_radix(text, 16);
        let seed = match (half(&self.seed[0]), half(&self.seed[1])) {
            (Ok(first), Ok(second)) => [first, second],
            _ => return Err(damaged("its seed is not a number")),
        };
        Plan::new(seed, self.parameters)
    }

    /// The same store, whose lists have these names, as that of a collector.
    pub(crate) fn of_collector(&self, lists: Vec<NamedList>, share: Share) -> Self {
        Self {
            lists,
            share: Some(share),
            ..self.clone()
        }
    }

    /// Whether it describes the same store, whatever its lists are called and wherever it is.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        (&self.seed, self.parameters) == (&other.seed, other.parameters)
    }

    /// As text.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("a description is plain data")
    }

    /// Reads it, and what follows from it.
    pub(crate) fn parse(text: &str) -> Result<(Self, Plan)> {
        let named: Named = serde_json::from_str(text).map_err(|e| damaged(&e.to_string()))?;
        if named.format != FORMAT {
            return Err(damaged(&format!("its format is not {FORMAT}")));
        }
        let version = named.version;
        require(version == VERSION, || {
            format!(
                "its version is {version}, and this program knows only version {VERSION}: begin \
                 another store, or query this one with the program that wrote it"
            )
        })?;
        let manifest: Self = serde_json::from_str(text).map_err(|e| damaged(&e.to_string()))?;
        if manifest.share.is_some_and(|share| !share.is_possible()) {
            return Err(damaged("its share names a collector that does not exist"));
        }
        let plan = manifest.plan()?;
        if plan.places != manifest.places {
            return Err(damaged("its places do not follow from its parameters"));
        }
        Ok((manifest, plan))
    }
}

fn damaged(why: &str) -> RoleError {
    RoleError::Refused(format!(
        "not the description of a telemetry store, or damaged: {why}"
    ))
}

/// As many pieces as fit into a share, as a number of 32 bits.
fn pieces(share: u64, piece: usize) -> u32 {
    exact::<u32>((share / piece as u64).min(u64::from(u32::MAX)))
}

impl Plan {
    /// A quarter of the memory for each primitive, after the tables of candidates, large values and
    /// generations.
    /// Of the quarters of values, paths and counters, each generation has the same share.
    pub(crate) fn new(seed: [u64; 2], parameters: Parameters) -> Result<Self> {
        check(&parameters)?;
        let p = parameters;
        let hasher = KeyHasher::new(seed);
        let has_generations = p.generations > 1;
        let tables = (CANDIDATES_BYTES + DICTIONARY_BYTES) as u64;
        let front = match has_generations {
            true => tables + GENERATIONS_BYTES as u64,
            false => tables,
        };
        let quarter = (p.memory_bytes - front) / 4 / 64 * 64;
        let at = |n: u64| front + n * quarter;
        let share = quarter / u64::from(p.generations) / 64 * 64;
        let generations = has_generations.then_some(GenerationPlaces {
            table_at: tables,
            stride: share,
        });

        let one = KeyWrite::new(0, 1, p.data_bytes, BITS);
        let slots = pieces(share, one.slot_len());
        let key_write = KeyWrite::new(at(0), slots, p.data_bytes, BITS);

        let one = Postcarding::new(0, 1, p.hops, BITS, p.redundancy, hasher);
        let chunks = pieces(share, one.chunk_len());
        let dictionary = Dictionary {
            at: CANDIDATES_BYTES as u64,
            len: pieces(DICTIONARY_BYTES as u64, 8),
            above: p.value_max,
        };
        let postcarding = Postcarding::new(at(1), chunks, p.hops, BITS, p.redundancy, hasher)
            .with_dictionary(dictionary);

        let one = Append::new(0, 1, 2, p.batch, p.entry_bytes);
        let batches = pieces(quarter / u64::from(p.lists), one.slot_len());
        require(batches >= 2, || {
            format!(
                "--lists {}: a quarter of the memory is too small for two batches of {} bytes per \
                 list: give fewer --lists, or more --store-memory",
                p.lists,
                one.slot_len()
            )
        })?;
        let append = Append::new(at(2), p.lists, batches, p.batch, p.entry_bytes);

        let counters = pieces(share, 8);
        let key_increment = KeyIncrement::new(at(3), counters, p.redundancy);
        let places = Places {
            candidates_at: 0,
            dictionary_at: dictionary.at,
            dictionary_words: dictionary.len,
            key_write_at: at(0),
            key_write_slots: slots,
            key_write_slot_bytes: key_write.slot_len() as u64,
            postcarding_at: at(1),
            postcarding_chunks: chunks,
            postcarding_chunk_bytes: postcarding.chunk_len() as u64,
            append_at: at(2),
            append_slots: batches,
            append_slot_bytes: append.slot_len() as u64,
            key_increment_at: at(3),
            key_increment_counters: counters,
            generations,
            bytes: at(4),
        };
        Ok(Self {
            hasher,
            key_write,
            postcarding,
            append,
            key_increment,
            dictionary,
            parameters,
            places,
        })
    }

    /// Its generations, if it has several.
    pub(crate) fn generations(&self) -> Option<Generations> {
        let count = self.parameters.generations;
        let places = self.places.generations?;
        Some(Generations::new(places.table_at, count, places.stride))
    }

    /// What is cleared of a generation: the stores of the first one.
    pub(crate) fn regions(&self) -> Vec<Range<u64>> {
        let places = &self.places;
        let regions = [
            (places.key_write_at, self.key_write.memory_len()),
            (places.postcarding_at, self.postcarding.memory_len()),
            (places.key_increment_at, self.key_increment.memory_len()),
        ];
        regions.map(|(at, len)| at..at + len).to_vec()
    }

    /// How long a generation fills.
    pub(crate) fn period_ns(&self) -> u64 {
        self.parameters.generation_period_s * 1_000_000_000
    }

    /// The inverse table, without the dictionary: all values that hops may report.
    pub(crate) fn values(&self) -> Values {
        Values::new(&self.postcarding, 0..=self.parameters.value_max)
    }

    /// Values in the dictionary of a memory, from the `first`th on.
    pub(crate) fn written_values<'a>(
        &'a self,
        words: &'a Words,
        first: u32,
    ) -> impl Iterator<Item = u32> + 'a {
        let places = (first..self.dictionary.len).map(|n| self.dictionary.place(n));
        places.map_while(|at| Dictionary::value(words.word(exact(at))))
    }
}

fn check(p: &Parameters) -> Result<()> {
    let inside = |name: &str, given: u64, from: u64, to: u64| {
        require((from..=to).contains(&given), || {
            format!("{name} {given}: give a number from {from} to {to}")
        })
    };
    require(MEMORY_BYTES.contains(&p.memory_bytes), || {
        format!("--store-memory {}: give 1MiB to 64GiB", p.memory_bytes)
    })?;
    inside("--data-bytes", p.data_bytes as u64, 1, DATA_LEN_MAX as u64)?;
    // See Postcarding::new.
    inside("--hops", u64::from(p.hops), 2, HOPS_MAX as u64)?;
    inside(
        "--value-max",
        u64::from(p.value_max),
        1,
        u64::from(VALUE_MAX),
    )?;
    inside("--lists", u64::from(p.lists), 1, 1 << 20)?;
    inside("--batch", p.batch as u64, 1, BATCH_MAX as u64)?;
    inside(
        "--entry-bytes",
        p.entry_bytes as u64,
        1,
        DATA_LEN_MAX as u64,
    )?;
    inside("--redundancy", u64::from(p.redundancy), 1, 4)?;
    inside(
        "--generations",
        u64::from(p.generations),
        1,
        u64::from(GENERATIONS_MAX),
    )?;
    let period = p.generation_period_s;
    let is_period = match p.generations {
        1 => period == 0,
        _ => PERIOD_S.contains(&period),
    };
    require(is_period, || {
        format!("--generation-period {period} s: give 1s to 366d, with --generations 2 to 4 only")
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_says_where_everything_is_and_is_believed_only_if_that_follows() {
        let lists = vec![NamedList {
            number: 1,
            name: "drops".into(),
            entries: EntryKind::NodeEvent,
        }];
        let manifest = Manifest::new([1, u64::MAX], Parameters::default(), lists).unwrap();
        let text = serde_json::to_string(&manifest).unwrap();
        let (read, plan) = Manifest::parse(&text).unwrap();
        assert_eq!(read, manifest);
        assert!(plan.places.bytes <= 1 << 30);
        let stores = [
            (plan.places.key_write_at, plan.key_write.memory_len()),
            (plan.places.postcarding_at, plan.postcarding.memory_len()),
            (plan.places.append_at, plan.append.memory_len()),
            (
                plan.places.key_increment_at,
                plan.key_increment.memory_len(),
            ),
            (plan.places.bytes, 0),
        ];
        for pair in stores.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        assert!(!text.contains("share"), "of a store that is written here");
        let share = Share::new(1, 2);
        let shared = manifest.of_collector(manifest.lists.clone(), share);
        let (read, _) = Manifest::parse(&shared.text()).unwrap();
        assert!(read.share == Some(share) && read.is_of(&manifest) && read != manifest);
        for (from, to) in [
            ("\"hops\":5", "\"hops\":8"),
            ("\"hops\":5", "\"hops\":0"),
            ("\"memory_bytes\":1073741824", "\"memory_bytes\":99"),
            ("\"version\":3", "\"version\":2"),
            ("\"version\":3", "\"version\":4"),
            ("\"generations\":1", "\"generations\":2"),
            ("strata-telemetry", "something"),
            ("ffffffffffffffff", "x"),
            ("\"lists\":64", "\"lists\":4294967295"),
            (
                "\"lists\":[",
                "\"share\":{\"collector\":2,\"of\":2},\"lists\":[",
            ),
            (
                "\"lists\":[",
                "\"share\":{\"collector\":0,\"of\":65},\"lists\":[",
            ),
        ] {
            assert!(text.contains(from), "{from}");
            assert!(Manifest::parse(&text.replace(from, to)).is_err(), "{from}");
        }
    }

    #[test]
    fn generations_share_the_quarters() {
        let layout = TelemetryLayout {
            generations: Some(3),
            ..TelemetryLayout::default()
        };
        let manifest = Manifest::new([1, 2], layout.decided(), Vec::new()).unwrap();
        let text = serde_json::to_string(&manifest).unwrap();
        assert!(text.contains("\"generation_period_s\":3600"));
        let (_, plan) = Manifest::parse(&text).unwrap();
        let places = plan.places;
        let stride = places.generations.unwrap().stride;
        let stores = [
            (
                places.key_write_at,
                plan.key_write.memory_len(),
                places.postcarding_at,
            ),
            (
                places.postcarding_at,
                plan.postcarding.memory_len(),
                places.append_at,
            ),
            (
                places.key_increment_at,
                plan.key_increment.memory_len(),
                places.bytes,
            ),
        ];
        for (at, len, end) in stores {
            assert!(len <= stride && at + 2 * stride + len <= end, "{places:?}");
            assert!(len * 10 > stride * 9, "little is wasted: {places:?}");
        }
        for (from, to) in [
            ("\"generations\":3", "\"generations\":5"),
            ("\"generations\":3", "\"generations\":1"),
            ("\"generations\":3", "\"generations\":0"),
            ("\"generation_period_s\":3600", "\"generation_period_s\":0"),
        ] {
            assert!(text.contains(from), "{from}");
            assert!(Manifest::parse(&text.replace(from, to)).is_err(), "{from}");
        }
    }

    #[test]
    fn every_size_of_memory_that_is_allowed_has_a_plan_or_a_reason() {
        for memory_bytes in [1 << 20, (1 << 20) + 1, 3 << 20, 1 << 36] {
            for data_bytes in [1, 4, 5, 28, 64] {
                let parameters = Parameters {
                    memory_bytes,
                    data_bytes,
                    ..Parameters::default()
                };
                let plan = Plan::new([1, 2], parameters).unwrap();
                assert!(plan.places.bytes <= memory_bytes);
                assert!(plan.places.key_write_slot_bytes.is_multiple_of(8));
            }
        }
    }
}
