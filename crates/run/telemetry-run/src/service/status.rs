//! What the writer of a store counts, for `status.json`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::api::status::{
    AppendStatus, EventStatus, FrameStatus, GenerationsStatus, IntStatus, KeyIncrementStatus,
    KeyWriteStatus, PostcardingStatus, ProcessStatus, ReporterStatus, RunStatus, StreamStatus,
};
use strata_dta::generations::{Generation, Turning};
use strata_dta::int::mapping::IntCounters;
use strata_dta::protocol::{Refusal, Refusals};
use strata_dta::translator::{OTHERS, ReporterCounters};
use strata_dta::{RemoteCounters, Translator};
use strata_role::FeedCounts;
use strata_wire::Summed as _;

use crate::service::frames::Frames;
use crate::service::wire::remote::Collectors;
use crate::store::counted::counted;
use crate::store::generations::generations_status;
use crate::store::plan::Plan;
use crate::store::sink::Done;
use crate::store::witnesses::Estimate;

/// The reporter of what INT becomes; no datagram comes from this address.
pub(crate) const FROM_INT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Counters of the process itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    /// Datagrams whose sender is not on the allow-list.
    pub(crate) not_allowed: u64,
    /// Datagrams dropped because the socket's buffer was full.
    pub(crate) socket_drops: u64,
    /// Negative acknowledgements sent.
    pub(crate) nacks: u64,
    /// And those that the system did not send.
    pub(crate) nacks_failed: u64,
    /// Datagrams, of INT too, that ended in a fault of this program.
    pub(crate) failed: u64,
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
        Refusal::Increment => "increment",
        Refusal::Redundancy => "redundancy",
        Refusal::List => "list",
        Refusal::Hop => "hop",
        Refusal::Value => "value",
        Refusal::Reporter => "reporter",
        Refusal::NotServed => "not-served",
        Refusal::Duplicate => "duplicate",
        Refusal::Fault => "fault",
    }
}

/// Those that are not 0, by reason.
fn refusals(refusals: &Refusals) -> BTreeMap<String, u64> {
    let reasons = Refusal::ALL.into_iter();
    let some = reasons.filter(|&reason| refusals.get(reason) > 0);
    some.map(|reason| (name(reason).to_owned(), refusals.get(reason)))
        .collect()
}

fn reporter(counters: &ReporterCounters) -> ReporterStatus {
    counted! {
        counters => ReporterStatus {
            datagrams,
            reports,
            accepted,
            superseded,
            dropped_by_rate,
            dropped_without_room,
            dropped_without_collector,
            nacked,
            again,
            missing,
            jumps,
        }
        address: None,
        datagrams_refused: refusals(&counters.refused_datagrams),
        refused: refusals(&counters.refused),
        confirmed: None,
        lost: None,
    }
}

/// What is taken past the host's network stack.
fn frames(frames: &Frames) -> FrameStatus {
    let counts = frames.counts();
    counted! {
        counts => FrameStatus {
            datagrams,
            invalid,
            dropped,
        }
        interface: Some(frames.interface().to_owned()),
        how: Some(frames.how().to_owned()),
        taking: Some(frames.is_taking()),
    }
}

/// What became of accepted reports at collectors elsewhere.
fn put_remote(one: &mut ReporterStatus, counters: RemoteCounters) {
    one.confirmed = Some(counters.confirmed);
    one.lost = Some(counters.lost);
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
    match source.port() {
        _ if source == FROM_INT => ReporterStatus::INT.into(),
        0 => source.ip().to_string(),
        _ => source.to_string(),
    }
}

/// All of it.
pub(crate) struct Snapshot<'a> {
    pub(crate) running: bool,
    pub(crate) now_ns: u64,
    pub(crate) listen: SocketAddr,
    pub(crate) frames: Option<&'a Frames>,
    /// Also how many of its datagrams ended in a fault.
    pub(crate) int: Option<(SocketAddr, IntCounters, u64)>,
    pub(crate) received: Received,
    pub(crate) translator: &'a Translator,
    pub(crate) done: Done,
    /// What was done before the youngest generation began.
    pub(crate) before: Done,
    pub(crate) turning: Option<&'a Turning>,
    /// Events that subscribers were given, and lost.
    pub(crate) pushes: (u64, u64),
    /// Entries that a stream was given, and lost.
    pub(crate) streamed: Option<FeedCounts>,
    pub(crate) estimate: Estimate,
    /// How often counters became smaller, if they do.
    pub(crate) rounds: Option<u64>,
    pub(crate) plan: &'a Plan,
    /// Collectors elsewhere.
    pub(crate) collectors: Option<&'a Collectors>,
}

impl Snapshot<'_> {
    /// All reporters together, without what INT becomes: its datagrams are made here, and not sent by a reporter.
    fn totals(&self) -> ReporterStatus {
        let (mut all, mut remote) = (ReporterCounters::default(), RemoteCounters::default());
        for (source, origin) in self.translator.origins() {
            if source == FROM_INT {
                continue;
            }
            all.merge(&self.translator.counters(origin));
            if let Some(collectors) = self.collectors {
                let of_reporter = collectors.counters(origin);
                remote.confirmed = remote.confirmed.saturating_add(of_reporter.confirmed);
                remote.lost = remote.lost.saturating_add(of_reporter.lost);
            }
        }
        let mut totals = reporter(&all);
        if self.collectors.is_some() {
            put_remote(&mut totals, remote);
        }
        totals
    }

    fn process(&self) -> ProcessStatus {
        let (pushed, lost) = self.pushes;
        ProcessStatus {
            running: Some(self.running),
            killed: None,
            updated_ns: Some(self.now_ns),
            pid: Some(std::process::id()),
            listen: Some(self.listen.to_string()),
            events: EventStatus {
                pushed: Some(pushed),
                lost: Some(lost),
                invalid: None,
            },
        }
    }

    /// What became of INT reports, if they are listened to.
    fn int(&self) -> Option<IntStatus> {
        let (listen, counters, failed) = self.int?;
        Some(counted! {
            counters => IntStatus {
                datagrams,
                refused,
                reports,
                bad_stacks,
                unmarked_stacks,
                mapped,
                incomplete,
                missing,
                repeated,
                jumps,
                not_followed,
                summed,
                above,
                undecided,
            }
            listen: Some(listen.to_string()),
            failed: Some(failed),
        })
    }

    fn reporters(&self) -> Vec<ReporterStatus> {
        let mut sources: Vec<_> = self.translator.origins().collect();
        sources.sort_by_key(|(source, _)| *source);
        let reporter = |(source, origin)| {
            let mut one = reporter(&self.translator.counters(origin));
            one.address = Some(address(source));
            if source == FROM_INT {
                // The service makes them itself.
                one.datagrams = None;
            }
            if let Some(collectors) = self.collectors {
                put_remote(&mut one, collectors.counters(origin));
            }
            one
        };
        sources.into_iter().map(reporter).collect()
    }

    fn key_write(&self) -> KeyWriteStatus {
        let (writes, slots) = (self.done.key_write, self.plan.places.key_write_slots);
        let estimate = &self.estimate;
        counted! {
            estimate => KeyWriteStatus {
                sampled,
                answered,
                changed,
            }
            writes: Some(writes),
            slots: Some(slots),
            load: Some(per(writes - self.before.key_write, slots)),
            answers_expected: Some(estimate.expected),
        }
    }

    fn postcarding(&self) -> Option<PostcardingStatus> {
        let cache = self.translator.cache()?.counters();
        let (writes, chunks) = (self.done.postcarding, self.plan.places.postcarding_chunks);
        Some(counted! {
            cache => PostcardingStatus {
                postcards,
                complete,
                collided,
                aged,
                superseded,
                held,
            }
            writes: Some(writes),
            chunks: Some(chunks),
            load: Some(per(writes - self.before.postcarding, chunks)),
        })
    }

    fn append(&self) -> Option<AppendStatus> {
        let lists = self.translator.lists()?.counters();
        Some(counted! {
            lists => AppendStatus {
                entries,
                full,
                aged,
                held,
            }
            writes: Some(self.done.append),
        })
    }

    fn key_increment(&self) -> KeyIncrementStatus {
        let additions = self.done.key_increment;
        let counters = self.plan.places.key_increment_counters;
        KeyIncrementStatus {
            additions: Some(additions),
            counters: Some(counters),
            load: Some(per(additions - self.before.key_increment, counters)),
            faded: self.rounds,
        }
    }

    fn generations(&self) -> Option<GenerationsStatus> {
        if let Some(turning) = self.turning {
            let clearing = turning.is_clearing();
            return Some(generations_status(self.plan, turning.present(), clearing));
        }
        let turns = self.collectors?.turns()?;
        let present: Vec<Generation> = turns.youngest().into_iter().collect();
        Some(generations_status(self.plan, &present, turns.is_turning()))
    }

    pub(crate) fn status(&self) -> RunStatus {
        let received = &self.received;
        counted! {
            received => RunStatus {
                not_allowed,
                socket_drops,
                nacks_failed,
                failed,
            }
            nacks_sent: Some(received.nacks),
            process: self.process(),
            reporters_refused: Some(self.translator.strangers()),
            af_xdp: self.frames.map(frames),
            stream: self.streamed.map(|counts| {
                counted! {
                    counts => StreamStatus {
                        written,
                        lost,
                    }
                }
            }),
            totals: self.totals(),
            collectors: self.collectors.map(Collectors::status),
            int: self.int(),
            key_write: self.key_write(),
            postcarding: self.postcarding(),
            append: self.append(),
            key_increment: self.key_increment(),
            generations: self.generations(),
            reporters: self.reporters(),
        }
    }
}
