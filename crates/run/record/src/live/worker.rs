//! A worker for interfaces: its thread, and its reports while it runs.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use strata_capture::live::{Live, RingCounts, Way};
use strata_classify::Drift;
use strata_control::InterfaceStatus;
use strata_pipeline::Worker;
use strata_policy::WorkerCounts;
use strata_processes::Processes;
use strata_role::RoleError;
use strata_sandbox::Role;
use strata_wire::{Counters, Summed as _};

use super::processes::Annotator;
use super::run::run_live;
use crate::error::Result;
use crate::live::sensors::Gauges;
use crate::observer::{Load, Observation};
use crate::outcome::WorkerOutcome;
use crate::setup::Setup;
use crate::setup::cpus::pin;

/// How often workers report their progress.
const SNAPSHOT_EVERY: Duration = Duration::from_millis(100);
/// And how often what is known about the traffic's distributions.
const DRIFT_EVERY: Duration = Duration::from_secs(1);

/// The reports of a running worker.
#[derive(Default)]
pub(super) struct Status {
    /// Changes with every step.
    steps: AtomicU64,
    /// It has given everything it had; closing its interfaces may take seconds more.
    is_done: AtomicBool,
    pub(super) gauges: Arc<Gauges>,
    snapshot: Mutex<Snapshot>,
}

#[derive(Default)]
struct Snapshot {
    counts: WorkerCounts,
    load: Load,
    /// What is known about the traffic's distributions, and when that was reported.
    drift: Option<(Drift, Instant)>,
    rings: Vec<(String, RingCounts)>,
    /// How interfaces are captured.
    ways: Vec<Way>,
    /// Events on interfaces, in order; taken by whatever reports them.
    events: Vec<String>,
}

impl Status {
    fn with<T>(&self, use_it: impl FnOnce(&mut Snapshot) -> T) -> T {
        use_it(&mut self.snapshot.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A running worker.
pub(super) struct Running {
    thread: JoinHandle<Result<WorkerOutcome>>,
    pub(super) status: Arc<Status>,
}

impl Running {
    /// Starts a worker, pinned to its CPU if it has one.
    pub(super) fn spawn(
        number: usize,
        mut worker: Worker,
        mut live: Live,
        core: Option<usize>,
        processes: Option<Processes>,
        setup: &Setup,
    ) -> Result<Self> {
        let status = Arc::new(Status::default());
        let (shared, stop) = (Arc::clone(&status), Arc::clone(&setup.stop));
        let waker = live.waker();
        setup.controller.steering().wakes(move || waker.wake());
        let work = move || -> Result<WorkerOutcome> {
            if let Some(core) = core {
                pin(core)?;
            }
            strata_role::sandbox::thread(Role::Worker);
            // The kernel counts what it filters for all workers together.
            let mut in_kernel = (number == 0).then(InKernel::default);
            let mut last = Instant::now();
            let mut processes = processes.map(Annotator::new);
            let annotator = processes.as_mut();
            let ran = run_live(&mut live, &mut worker, annotator, |live, worker| {
                shared.steps.fetch_add(1, Ordering::Relaxed);
                shared.gauges.note(live, worker);
                if last.elapsed() > SNAPSHOT_EVERY {
                    last = Instant::now();
                    publish(&shared, live, worker, &mut in_kernel);
                }
                if stop.load(Ordering::Relaxed) {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
            publish(&shared, &mut live, &mut worker, &mut in_kernel);
            let mut outcome = WorkerOutcome::of(&worker, ran);
            outcome.processes = processes.map(|processes| processes.counts);
            shared.is_done.store(true, Ordering::Release);
            Ok(outcome)
        };
        let thread = thread::Builder::new()
            .name(format!("strata-worker-{number}"))
            .spawn(work)
            .map_err(RoleError::thread("captures packets (a worker)"))?;
        Ok(Self { thread, status })
    }

    /// Whether nothing more comes from it.
    pub(super) fn is_finished(&self) -> bool {
        self.status.is_done.load(Ordering::Acquire) || self.thread.is_finished()
    }

    /// How many steps it has taken, and whether it has ended.
    pub(super) fn steps(&self) -> (u64, bool) {
        (
            self.status.steps.load(Ordering::Relaxed),
            self.is_finished(),
        )
    }

    /// Events on its interfaces since the last call.
    pub(super) fn take_events(&self) -> Vec<String> {
        self.status
            .with(|snapshot| std::mem::take(&mut snapshot.events))
    }

    /// Waits until it has ended.
    pub(super) fn join(self) -> Result<WorkerOutcome> {
        let joined = self.thread.join();
        joined.map_err(|_| RoleError::Panicked("a worker failed; its counters are lost"))?
    }
}

/// The kernel's counts for all workers when last added to the counters.
#[derive(Default)]
struct InKernel {
    filtered: Counters,
    sampled_out: Counters,
}

/// What the counters have gained.
fn added(before: &mut Counters, now: Counters) -> Counters {
    let earlier = std::mem::replace(before, now);
    Counters {
        packets: now.packets - earlier.packets,
        bytes: now.bytes - earlier.bytes,
    }
}

fn publish(
    status: &Status,
    live: &mut Live,
    worker: &mut Worker,
    in_kernel: &mut Option<InKernel>,
) {
    if let Some(before) = in_kernel {
        worker.count_filtered(added(&mut before.filtered, live.filtered()));
        if let Some(sampler) = live.sampler() {
            worker.count_sampled_out(added(&mut before.sampled_out, sampler.sampled_out()));
        }
    }
    let events = live.take_events();
    let (rings, ways) = (live.counts(), live.ways());
    worker.publish_hits();
    let cpu = clock_gettime(ClockId::ThreadCPUTime);
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let progress = worker.progress();
    status.with(|snapshot| {
        snapshot.counts = worker.counts();
        snapshot.load = Load {
            cpu: Duration::try_from(cpu).expect("no thread used less than no time"),
            disk_busy: Duration::from_nanos(load(&progress.disk_busy_ns)),
            ring_fill: live.ring_fill(),
            rdma_sent: load(&progress.rdma_sent),
            rdma_again: load(&progress.rdma_again),
            ring_wait: status.gauges.take_ring_wait(),
            taken: Some(Instant::now()),
        };
        snapshot.ways = ways;
        let is_due = snapshot
            .drift
            .as_ref()
            .is_none_or(|(_, at)| at.elapsed() >= DRIFT_EVERY);
        if is_due {
            let drift = worker.classifier().drift().cloned();
            snapshot.drift = drift.map(|drift| (drift, Instant::now()));
        }
        snapshot
            .events
            .extend(events.iter().map(ToString::to_string));
        if let Ok(rings) = rings {
            let dropped = rings.iter().map(|(_, ring)| ring.dropped).sum();
            status.gauges.note_dropped(dropped);
            snapshot.rings = rings;
        }
    });
}

/// The reports of all workers, combined. Distributions are added up only if there are some since those that
/// `drift_seen` is the time of: what follows from them takes longer than all the rest.
pub(super) fn noted(running: &[Running], drift_seen: &mut Option<Instant>) -> Observation {
    let mut noted = Observation::default();
    let drift_taken = |worker: &Running| {
        let at = |snapshot: &mut Snapshot| snapshot.drift.as_ref().map(|(_, at)| *at);
        worker.status.with(at)
    };
    let newest = running.iter().filter_map(drift_taken).max();
    let has_drift = newest > *drift_seen;
    *drift_seen = newest;
    for worker in running {
        worker.status.with(|snapshot| {
            noted.counts.merge(&snapshot.counts);
            noted.load.merge(&Some(snapshot.load.clone()));
            if let (true, Some((more, _))) = (has_drift, &snapshot.drift) {
                match &mut noted.drift {
                    Some(all) => all.merge(more),
                    none => *none = Some(more.clone()),
                }
            }
        });
    }
    // The tables are there from the start.
    noted.counts.pressure.get_or_insert_default();
    noted
}

/// Interfaces with what was counted of them and how they are captured.
pub(super) fn interfaces(
    running: &[Running],
    rings: &[(String, RingCounts)],
) -> Vec<InterfaceStatus> {
    let mut ways: BTreeMap<String, Way> = BTreeMap::new();
    for worker in running {
        worker.status.with(|snapshot| {
            for way in &snapshot.ways {
                let known = ways.entry(way.interface.clone());
                known.or_insert_with(|| way.clone());
            }
        });
    }
    let status = |(name, ring): &(String, RingCounts)| {
        let way = ways.get(name);
        InterfaceStatus {
            name: name.clone(),
            received: ring.received,
            dropped: ring.dropped,
            capture: way.map(|way| way.how.clone()),
            exclusive: way.map(|way| way.exclusive.to_string()),
        }
    };
    rings.iter().map(status).collect()
}

/// By interface, over all workers.
pub(super) fn rings(running: &[Running]) -> Vec<(String, RingCounts)> {
    let mut all: Vec<(String, RingCounts)> = Vec::new();
    let mut places = BTreeMap::new();
    for worker in running {
        worker.status.with(|snapshot| {
            for (name, counts) in &snapshot.rings {
                let place = *places.entry(name.clone()).or_insert(all.len());
                match all.get_mut(place) {
                    Some((_, sum)) => *sum = sum.plus(*counts),
                    None => all.push((name.clone(), *counts)),
                }
            }
        });
    }
    all
}
