//! What the writer of a store counts, as JSON for `status.json`.

use std::net::SocketAddr;

use serde_json::{Map, Value, json};
use strata_dta::generations::Turning;
use strata_dta::int::mapping::IntCounters;
use strata_dta::protocol::{Refusal, Refusals};
use strata_dta::translator::{OTHERS, ReporterCounters};
use strata_dta::{RemoteCounters, Translator};
use strata_role::FeedCounts;

use super::frames::Frames;
use super::plan::Plan;
use super::sink::Done;
use super::wire::remote::Collectors;
use super::witnesses::Estimate;

/// Counters of the process itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Received {
    /// Datagrams whose sender is not on the allow-list.
    pub(super) not_allowed: u64,
    /// Datagrams that found the socket's buffer full.
    pub(super) socket_drops: u64,
    /// Negative acknowledgements sent.
    pub(super) nacks: u64,
    /// And those that the system did not send.
    pub(super) nacks_failed: u64,
    /// Datagrams, of INT too, that ended in a fault of this program.
    pub(super) failed: u64,
}

/// The reason's name for programs.
fn name(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Empty => "empty",
        Refusal::Opcode => "opcode",
        Refusal::Length => "length",
        Refusal::Count => "count",
        Refusal::KeyLen => "key-length",
        Refusal::DataLen => "data-length",
        Refusal::Redundancy => "redundancy",
        Refusal::List => "list",
        Refusal::Hop => "hop",
        Refusal::PathLen => "path-length",
        Refusal::Reporter => "reporter",
        Refusal::NotServed => "not-served",
        Refusal::Duplicate => "duplicate",
        Refusal::Fault => "fault",
    }
}

/// Those that are not 0, by reason.
fn refusals(refusals: &Refusals) -> Value {
    let reasons = Refusal::ALL.into_iter();
    let some = reasons.filter(|&reason| refusals.get(reason) > 0);
    let some = some.map(|reason| (name(reason).to_owned(), refusals.get(reason).into()));
    Value::Object(some.collect::<Map<_, _>>())
}

fn reporter(counters: &ReporterCounters) -> Value {
    json!({
        "datagrams": counters.datagrams,
        "datagrams_refused": refusals(&counters.refused_datagrams),
        "reports": counters.reports,
        "accepted": counters.accepted,
        "superseded": counters.superseded,
        "refused": refusals(&counters.refused),
        "dropped_by_rate": counters.dropped_by_rate,
        "dropped_without_room": counters.dropped_without_room,
        "dropped_without_collector": counters.dropped_without_collector,
        "nacked": counters.nacked,
        "again": counters.again,
        "missing": counters.missing,
        "jumps": counters.jumps,
    })
}

/// What is taken past the host's network stack.
fn frames(frames: &Frames) -> Value {
    let counts = frames.counts();
    json!({
        "interface": frames.interface(),
        "how": frames.how(),
        "taking": frames.is_taking(),
        "datagrams": counts.datagrams,
        "invalid": counts.invalid,
        "dropped": counts.dropped,
    })
}

/// What became of entries for a stream.
fn stream(counts: FeedCounts) -> Value {
    json!({ "written": counts.written, "lost": counts.lost })
}

/// What became of accepted reports at collectors elsewhere.
fn put_remote(one: &mut Value, counters: RemoteCounters) {
    one["confirmed"] = counters.confirmed.into();
    one["lost"] = counters.lost.into();
}

fn sum(all: &mut ReporterCounters, one: &ReporterCounters) {
    all.datagrams += one.datagrams;
    all.reports += one.reports;
    all.accepted += one.accepted;
    all.superseded += one.superseded;
    all.dropped_by_rate += one.dropped_by_rate;
    all.dropped_without_room += one.dropped_without_room;
    all.dropped_without_collector += one.dropped_without_collector;
    all.nacked += one.nacked;
    all.again += one.again;
    all.missing += one.missing;
    all.jumps += one.jumps;
    for reason in Refusal::ALL {
        all.refused.add(reason, one.refused.get(reason));
        let datagrams = one.refused_datagrams.get(reason);
        all.refused_datagrams.add(reason, datagrams);
    }
}

/// Operations for each place.
#[allow(clippy::cast_precision_loss, reason = "a load need not be exact")]
fn per(operations: u64, places: u32) -> f64 {
    operations as f64 / f64::from(places)
}

/// A reporter's name: its address, with its port if that is its own; INT's have none.
fn address(source: SocketAddr) -> String {
    if source == OTHERS {
        return "others".into();
    }
    match (source.ip().is_unspecified(), source.port()) {
        (true, _) => "int".into(),
        (false, 0) => source.ip().to_string(),
        (false, _) => source.to_string(),
    }
}

/// All of it.
pub(super) struct Snapshot<'a> {
    pub(super) running: bool,
    pub(super) now_ns: u64,
    pub(super) listen: SocketAddr,
    pub(super) frames: Option<&'a Frames>,
    /// Also how many of its datagrams ended in a fault.
    pub(super) int: Option<(SocketAddr, IntCounters, u64)>,
    pub(super) received: Received,
    pub(super) translator: &'a Translator,
    pub(super) done: Done,
    /// What was done before the youngest generation began.
    pub(super) before: Done,
    pub(super) turning: Option<&'a Turning>,
    /// Events that subscribers were given, and lost.
    pub(super) pushes: (u64, u64),
    /// Entries that a stream was given, and lost.
    pub(super) streamed: Option<FeedCounts>,
    pub(super) estimate: Estimate,
    /// How often counters became smaller, if they do.
    pub(super) rounds: Option<u64>,
    pub(super) plan: &'a Plan,
    /// Collectors elsewhere.
    pub(super) collectors: Option<&'a Collectors>,
}

impl Snapshot<'_> {
    /// All reporters together.
    pub(super) fn totals(&self) -> ReporterCounters {
        let mut all = ReporterCounters::default();
        for (_, counters) in self.translator.sources() {
            sum(&mut all, &counters);
        }
        all
    }

    /// What became of INT reports, if they are listened to.
    fn int_json(&self) -> Option<Value> {
        let (listen, counters, failed) = self.int?;
        Some(json!({
            "listen": listen.to_string(),
            "datagrams": counters.datagrams,
            "refused": counters.refused,
            "reports": counters.reports,
            "bad_stacks": counters.bad_stacks,
            "mapped": counters.mapped,
            "incomplete": counters.incomplete,
            "missing": counters.missing,
            "repeated": counters.repeated,
            "jumps": counters.jumps,
            "not_followed": counters.not_followed,
            "failed": failed,
            "summed": counters.summed,
            "above": counters.above,
            "undecided": counters.undecided,
        }))
    }

    pub(super) fn json(&self) -> String {
        let mut sources: Vec<_> = self.translator.origins().collect();
        sources.sort_by_key(|(source, _)| *source);
        let reporters = sources.iter().map(|&(source, origin)| {
            let mut one = reporter(&self.translator.counters(origin));
            one["address"] = address(source).into();
            if let Some(collectors) = self.collectors {
                put_remote(&mut one, collectors.counters(origin));
            }
            one
        });
        let mut totals = reporter(&self.totals());
        if let Some(collectors) = self.collectors {
            put_remote(&mut totals, collectors.totals());
        }
        let cache = self.translator.cache().map(|cache| cache.counters());
        let lists = self.translator.lists().map(|lists| lists.counters());
        let places = &self.plan.places;
        let all = json!({
            "running": self.running,
            "updated_ns": self.now_ns,
            "pid": std::process::id(),
            "listen": self.listen.to_string(),
            "not_allowed": self.received.not_allowed,
            "reporters_refused": self.translator.strangers(),
            "socket_drops": self.received.socket_drops,
            "af_xdp": self.frames.map(frames),
            "nacks_sent": self.received.nacks,
            "nacks_failed": self.received.nacks_failed,
            "failed": self.received.failed,
            "events": { "pushed": self.pushes.0, "lost": self.pushes.1 },
            "stream": self.streamed.map(stream),
            "totals": totals,
            "collectors": self.collectors.map(Collectors::json),
            "int": self.int_json(),
            "key_write": {
                "writes": self.done.key_write,
                "slots": places.key_write_slots,
                "load": per(self.done.key_write - self.before.key_write, places.key_write_slots),
                "sampled": self.estimate.sampled,
                "answered": self.estimate.answered,
                "changed": self.estimate.changed,
                "answers_expected": self.estimate.expected,
            },
            "postcarding": cache.map(|cache| json!({
                "writes": self.done.postcarding,
                "chunks": places.postcarding_chunks,
                "load": per(
                    self.done.postcarding - self.before.postcarding,
                    places.postcarding_chunks,
                ),
                "postcards": cache.postcards,
                "complete": cache.complete,
                "collided": cache.collided,
                "aged": cache.aged,
                "superseded": cache.superseded,
                "held": cache.held,
            })),
            "append": lists.map(|lists| json!({
                "writes": self.done.append,
                "entries": lists.entries,
                "full": lists.full,
                "aged": lists.aged,
                "held": lists.held,
            })),
            "key_increment": {
                "additions": self.done.key_increment,
                "counters": places.key_increment_counters,
                "load": per(
                    self.done.key_increment - self.before.key_increment,
                    places.key_increment_counters,
                ),
                "faded": self.rounds,
            },
            "generations": self.turning.map(|turning| json!({
                "count": self.plan.parameters.generations,
                "period_seconds": self.plan.parameters.generation_period_s,
                "clearing": turning.is_clearing(),
                "present": turning.present().iter().map(|generation| json!({
                    "number": generation.number,
                    "begun_ns": generation.begun_ns,
                })).collect::<Vec<_>>(),
            })),
            "reporters": reporters.collect::<Vec<_>>(),
        });
        format!("{all:#}\n")
    }
}
