//! What a store knows, as the API of its collector and `--json` say it.

mod flows;
mod path;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::api::answer::{
    TelemetryCount, TelemetryEvents, TelemetryFlows, TelemetryGeneration, TelemetryKey,
    TelemetryList, TelemetryPath, TelemetryQueries, TelemetryRefused, TelemetryTime, TelemetryTop,
    TelemetryTopKey, TelemetryValue,
};
use crate::api::status::{TelemetryEntry, TelemetryStatus};
use strata_dta::key::Key;

use super::shown;
use super::store::{MANIFEST, telemetry_status};
use crate::store::generations::GenerationTime;
use crate::store::plan::EntryKind;
use crate::store::reader::{Counted, Found, TelemetryStore};

fn time(time: GenerationTime) -> TelemetryTime {
    TelemetryTime {
        begun_ns: time.begun_ns,
        ended_ns: time.ended_ns,
    }
}

fn value(found: &Found, of: Option<GenerationTime>) -> TelemetryValue {
    TelemetryValue {
        bytes: shown::hex(&found.data),
        number: shown::as_number(&found.data),
        agreeing: found.agreeing,
        time: of.map(time),
    }
}

fn count(counted: Counted) -> TelemetryCount {
    TelemetryCount {
        at_most: counted.at_most,
        excess_max: counted.excess_max,
        doubt: counted.doubt,
    }
}

impl TelemetryStore {
    /// The value and counts of a key; `None` if nothing is known.
    ///
    /// # Panics
    ///
    /// If the redundancy is not 1 to 4.
    pub fn answer_key(&mut self, key: &Key, redundancy: u8, agree: u8) -> Option<TelemetryKey> {
        let known = self.known(key, redundancy, agree);
        let mut values = known.iter();
        let latest = values.find_map(|known| Some(value(known.value.as_ref()?, known.time)));
        let counts: Vec<Counted> = known.iter().filter_map(|known| known.count).collect();
        if latest.is_none() && counts.is_empty() {
            return None;
        }
        let generations = known.iter().filter_map(|known| {
            Some(TelemetryGeneration {
                time: time(known.time?),
                value: known.value.as_ref().map(|found| value(found, None)),
                count: known.count.map(count),
            })
        });
        Some(TelemetryKey {
            key: shown::key(key),
            key_bytes: format!("{key:?}"),
            value: latest,
            count: (!counts.is_empty()).then(|| count(Counted::together(counts))),
            generations: generations.collect(),
        })
    }

    /// The reason why there is no answer about a key, or about the path of a flow.
    #[must_use]
    pub fn unknown(&self, key: &Key, is_path: bool) -> String {
        let said = match is_path {
            true => format!("the path of {} is not known", shown::key(key)),
            false => format!("the store has no data about {}", shown::key(key)),
        };
        match self.elsewhere(key) {
            Some((there, here)) => format!(
                "{said}: it is at collector {there} of the translator, and this is the store of \
                 collector {here}"
            ),
            None => said,
        }
    }

    /// The keys with the largest counts, and the count below which keys may be missing.
    pub fn answer_top(&mut self, number: usize) -> TelemetryTop {
        let top = self.top(number);
        let bound = self.count_bound();
        let row = |(key, count): (Key, u64)| TelemetryTopKey {
            key: shown::key(&key),
            key_bytes: format!("{key:?}"),
            count,
        };
        TelemetryTop {
            keys: top.keys.into_iter().map(row).collect(),
            excess_max: bound.excess_max,
            doubt: bound.doubt,
            missing_below: top.missing_below,
        }
    }

    /// The lists that have names.
    #[must_use]
    pub fn answer_lists(&self) -> Vec<TelemetryList> {
        let lists = self.lists().iter();
        let row = lists.map(|list| TelemetryList {
            number: list.number,
            name: list.name.clone(),
            entries: match list.entries {
                EntryKind::NodeEvent => "node-event",
                EntryKind::FlowEvent => "flow-event",
                EntryKind::Bytes => "bytes",
            }
            .to_owned(),
        });
        row.collect()
    }

    /// Finds a list by its name or its number; returns its number and the kind of its entries.
    ///
    /// # Errors
    ///
    /// If there is no such list; the text says what can be written instead.
    pub fn find_list(&self, name: &str) -> Result<(u32, EntryKind), String> {
        let number = name.parse::<u32>().ok();
        let mut lists = self.lists().iter();
        let named = lists.find(|list| list.name == name || Some(list.number) == number);
        if let Some(list) = named {
            return Ok((list.number, list.entries));
        }
        match number {
            Some(number) if number < self.lists_len() => Ok((number, EntryKind::Bytes)),
            _ => {
                let names: Vec<&str> = self.lists().iter().map(|list| &*list.name).collect();
                Err(format!(
                    "there is no list {name}: write one of {}, or a number below {}",
                    names.join(", "),
                    self.lists_len()
                ))
            }
        }
    }
}

/// A store that the API asks, in the process that has it.
#[derive(Debug)]
pub(super) struct Answers {
    dir: PathBuf,
    /// `None` until there is one, or somebody asks.
    store: Mutex<Option<TelemetryStore>>,
}

impl Answers {
    /// Of the store in this directory, as soon as there is one.
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            store: Mutex::new(None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<TelemetryStore>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store was described anew.
    pub(super) fn renew(&self) {
        self.lock().take();
    }

    fn ask<T>(&self, ask: impl FnOnce(&mut TelemetryStore) -> T) -> Result<T, TelemetryRefused> {
        let mut opened = self.lock();
        let store = match &mut *opened {
            Some(store) => store,
            none if self.dir.join(MANIFEST).exists() => {
                let store = TelemetryStore::open(&self.dir);
                none.insert(store.map_err(|error| TelemetryRefused::Store(error.chain()))?)
            }
            _ => {
                return Err(TelemetryRefused::Store(
                    "there is no store yet: it is created when a translator (`strata telemetry run \
                     --collector`) connects"
                        .to_owned(),
                ));
            }
        };
        Ok(ask(store))
    }
}

impl TelemetryQueries for Answers {
    fn key(&self, key: &str, redundancy: u8, agree: u8) -> Result<TelemetryKey, TelemetryRefused> {
        let key = key.parse::<Key>();
        let key = key.map_err(|error| TelemetryRefused::Query(error.to_string()))?;
        self.ask(|store| {
            let answer = store.answer_key(&key, redundancy, agree);
            answer.ok_or_else(|| TelemetryRefused::Unknown(store.unknown(&key, false)))
        })?
    }

    fn path(&self, flow: &str) -> Result<TelemetryPath, TelemetryRefused> {
        let key = flow.parse::<Key>();
        let key = key.map_err(|error| TelemetryRefused::Query(error.to_string()))?;
        self.ask(|store| {
            let answer = store.answer_path(&key);
            answer.ok_or_else(|| TelemetryRefused::Unknown(store.unknown(&key, true)))
        })?
    }

    fn flows(
        &self,
        of: TelemetryEvents<'_>,
        number: usize,
    ) -> Result<TelemetryFlows, TelemetryRefused> {
        self.ask(|store| {
            let answer = store.answer_flows(of, number);
            answer.map_err(TelemetryRefused::Unknown)
        })?
    }

    fn top(&self, number: usize) -> Result<TelemetryTop, TelemetryRefused> {
        self.ask(|store| store.answer_top(number))
    }

    fn lists(&self) -> Result<Vec<TelemetryList>, TelemetryRefused> {
        self.ask(|store| store.answer_lists())
    }

    fn list(&self, name: &str, last: usize) -> Result<Vec<TelemetryEntry>, TelemetryRefused> {
        let (kind, entries) = self.ask(|store| {
            let (list, kind) = store.find_list(name).map_err(TelemetryRefused::Unknown)?;
            let mut entries: VecDeque<Vec<u8>> = VecDeque::new();
            store.read_last(list, last, |bytes| {
                if entries.len() == last {
                    entries.pop_front();
                }
                entries.push_back(bytes.to_vec());
            });
            Ok((kind, entries))
        })??;
        let entries = entries.iter().map(|bytes| shown::entry(kind, bytes));
        Ok(entries.collect())
    }

    fn status(&self) -> Result<TelemetryStatus, TelemetryRefused> {
        let failed = |why: String| TelemetryRefused::Store(why);
        let text = telemetry_status(&self.dir).map_err(|error| failed(error.chain()))?;
        let text =
            text.ok_or_else(|| failed("the collector has not reported anything yet".into()))?;
        serde_json::from_str(&text).map_err(|error| failed(format!("status.json: {error}")))
    }
}
