//! Immediate reports, as JSON for those who subscribe to them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use strata_control::telemetry::Pushes;
use strata_dta::key::Key;
use strata_dta::protocol::{Datagram, Report};

use super::plan::{EntryKind, NamedList};
use super::shown;

/// Reports that are looked at in a while at most, so that a flood of them costs subscribers events,
/// and not the collector its time.
const IN_A_WHILE: u32 = 1000;
const WHILE: Duration = Duration::from_millis(100);

/// Gives immediate reports to subscribers.
#[derive(Debug)]
pub(super) struct Pushing {
    pushes: Arc<Pushes>,
    lists: Vec<NamedList>,
    /// When the present while began, and what is left of it.
    since: Instant,
    left: u32,
}

impl Pushing {
    pub(super) fn new(pushes: Arc<Pushes>, lists: Vec<NamedList>) -> Self {
        Self {
            pushes,
            lists,
            since: Instant::now(),
            left: IN_A_WHILE,
        }
    }

    /// The lists that have names.
    pub(super) fn lists(&self) -> &[NamedList] {
        &self.lists
    }

    /// Those who subscribe.
    pub(super) fn pushes(&self) -> Arc<Pushes> {
        Arc::clone(&self.pushes)
    }

    /// Events that were given to subscribers, and those that they lost.
    pub(super) fn counts(&self) -> (u64, u64) {
        self.pushes.counts()
    }

    /// Whether somebody subscribes to immediate reports, and this datagram has such.
    #[inline(always)]
    pub(super) fn wants(&self, datagram: &[u8]) -> bool {
        self.pushes.is_watched() && is_immediate(datagram)
    }

    /// Gives the reports of a datagram to everyone, if all of them were `accepted`. Of others it cannot
    /// be told which were.
    #[cold]
    pub(super) fn push(
        &mut self,
        reporter: SocketAddr,
        time_ns: u64,
        datagram: &[u8],
        accepted: u64,
    ) {
        let Ok(datagram) = Datagram::new_checked(datagram) else {
            return;
        };
        if self.since.elapsed() >= WHILE {
            (self.since, self.left) = (Instant::now(), IN_A_WHILE);
        }
        let count = match datagram {
            Datagram::Packed(packet) => u64::from(packet.count()),
            Datagram::Published(_) => 1,
        };
        if accepted < count || count > u64::from(self.left) {
            if accepted > 0 {
                self.pushes.lose(accepted);
            }
            return;
        }
        self.left -= strata_wire::exact::<u32>(count);
        let push = |report: Report<'_>| {
            let mut event = self.event(&report);
            event["time_ns"] = time_ns.into();
            event["reporter"] = match reporter.ip().is_unspecified() {
                true => "int".into(),
                false => reporter.ip().to_string().into(),
            };
            self.pushes.push(&event.to_string());
        };
        match datagram {
            Datagram::Packed(packet) => packet.reports().for_each(push),
            Datagram::Published(packet) => {
                if let Ok(report) = packet.report() {
                    push(report);
                }
            }
        }
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

/// Whether a datagram says that its reports are immediate.
#[cold]
fn is_immediate(datagram: &[u8]) -> bool {
    let flags = match Datagram::new_checked(datagram) {
        Ok(Datagram::Packed(packet)) => packet.flags(),
        Ok(Datagram::Published(packet)) => packet.flags(),
        Err(_) => return false,
    };
    flags.immediate
}
