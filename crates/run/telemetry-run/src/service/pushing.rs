//! Immediate reports, as JSON for those who subscribe to them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::pushes::Pushes;
use serde_json::{Value, json};
use strata_dta::key::Key;
use strata_dta::protocol::{Datagram, Report};

use crate::shown;
use crate::store::plan::{EntryKind, NamedList};

/// Reports that are looked at in a while at most, so that a flood of them costs subscribers events,
/// and not the collector its time.
const IN_A_WHILE: u32 = 1000;
const WHILE: Duration = Duration::from_millis(100);

/// How many reports may still be looked at.
#[derive(Debug)]
pub(crate) struct Budget {
    /// When the present while began, and what is left of it.
    since: Instant,
    left: u32,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            left: IN_A_WHILE,
        }
    }

    /// Whether all `count` reports of a datagram are looked at: if all were `accepted`, since of others
    /// it cannot be told which were, and if there is time.
    pub(crate) fn takes(&mut self, count: u64, accepted: u64) -> bool {
        if self.since.elapsed() >= WHILE {
            *self = Self::new();
        }
        let takes = accepted >= count && count <= u64::from(self.left);
        if takes {
            self.left -= strata_wire::exact::<u32>(count);
        }
        takes
    }
}

/// Gives immediate reports to subscribers.
#[derive(Debug)]
pub(crate) struct Pushing {
    pushes: Arc<Pushes>,
    lists: Vec<NamedList>,
    budget: Budget,
}

impl Pushing {
    pub(crate) fn new(pushes: Arc<Pushes>, lists: Vec<NamedList>) -> Self {
        Self {
            pushes,
            lists,
            budget: Budget::new(),
        }
    }

    /// The lists that have names.
    pub(crate) fn lists(&self) -> &[NamedList] {
        &self.lists
    }

    /// The lists have other names.
    pub(crate) fn rename(&mut self, lists: &[NamedList]) {
        self.lists = lists.to_vec();
    }

    /// `count` were lost on their way here.
    pub(crate) fn lose(&self, count: u64) {
        if count > 0 && self.pushes.is_watched() {
            self.pushes.lose(count);
        }
    }

    /// Whether somebody subscribes to immediate reports.
    pub(crate) fn is_watched(&self) -> bool {
        self.pushes.is_watched()
    }

    /// Those who subscribe.
    pub(crate) fn pushes(&self) -> Arc<Pushes> {
        Arc::clone(&self.pushes)
    }

    /// Events that were given to subscribers, and those that they lost.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.pushes.counts()
    }

    /// Whether somebody subscribes to immediate reports, and this datagram has such.
    #[inline(always)]
    pub(crate) fn wants(&self, datagram: &[u8]) -> bool {
        self.pushes.is_watched() && is_immediate(datagram)
    }

    /// Gives the reports of a datagram to everyone, if all of them were `accepted`. Of others it cannot
    /// be told which were.
    #[cold]
    pub(crate) fn push(
        &mut self,
        reporter: SocketAddr,
        time_ns: u64,
        datagram: &[u8],
        accepted: u64,
    ) {
        let Ok(datagram) = Datagram::new_checked(datagram) else {
            return;
        };
        if !self.budget.takes(count_of(&datagram), accepted) {
            self.lose(accepted);
            return;
        }
        let push = |report: Report<'_>| {
            let mut event = self.event(&report);
            event["time_ns"] = time_ns.into();
            event["reporter"] = match reporter.ip().is_unspecified() {
                true => "int".into(),
                false => reporter.ip().to_string().into(),
            };
            self.pushes.push(&event.to_string());
        };
        each(&datagram, push);
    }

    fn event(&self, report: &Report<'_>) -> Value {
        let keyed = |kind: &str, key: &[u8]| {
            let key = Key::new(key);
            json!({
                "kind": kind,
                "key": shown::key(&key),
                "key_bytes": format!("{key:?}"),
            })
        };
        match *report {
            Report::KeyWrite { key, data, .. } => {
                let mut event = keyed("key-write", key);
                event["bytes"] = shown::hex(data).into();
                event["number"] = shown::as_number(data).into();
                event
            }
            Report::KeyIncrement { key, counter, .. } => {
                let mut event = keyed("key-increment", key);
                event["added"] = counter.into();
                event
            }
            Report::Postcard {
                key, hop, value, ..
            } => {
                let mut event = keyed("postcard", key);
                event["hop"] = hop.into();
                event["node"] = value.into();
                event
            }
            Report::Append { list, data } => {
                let named = self.lists.iter().find(|named| named.number == list);
                let kind = named.map_or(EntryKind::Bytes, |named| named.entries);
                json!({
                    "kind": "append",
                    "list": list,
                    "name": named.map(|named| &named.name),
                    "entry": shown::entry(kind, data),
                })
            }
        }
    }
}

/// How many reports a datagram has.
pub(crate) fn count_of(datagram: &Datagram<'_>) -> u64 {
    match datagram {
        Datagram::Packed(packet) => u64::from(packet.count()),
        Datagram::Published(_) => 1,
    }
}

/// Gives the reports of a datagram to `take`.
pub(crate) fn each<'a>(datagram: &Datagram<'a>, mut take: impl FnMut(Report<'a>)) {
    match datagram {
        Datagram::Packed(packet) => packet.reports().for_each(take),
        Datagram::Published(packet) => {
            if let Ok(report) = packet.report() {
                take(report);
            }
        }
    }
}

/// Whether a datagram says that its reports are immediate.
#[cold]
pub(crate) fn is_immediate(datagram: &[u8]) -> bool {
    let flags = match Datagram::new_checked(datagram) {
        Ok(Datagram::Packed(packet)) => packet.flags(),
        Ok(Datagram::Published(packet)) => packet.flags(),
        Err(_) => return false,
    };
    flags.immediate
}
