//! The workers' reports, combined for the controller.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::statvfs;
use strata_classify::Drift;
use strata_control::{Controller, NetworkObserved, Observed};
use strata_policy::WorkerCounts;
use strata_role::{RoleError, Tell};
use strata_wire::{Ledger, largest, summed};

use crate::beside::drift::DriftWatch;
use crate::beside::reclaim::Reclaim;
use crate::error::Result;
use crate::notice::RecordNotice;
use crate::spec::DestinationSpec;

/// How often a recording of files updates its status.
const TICK: Duration = Duration::from_millis(50);
/// The interval over which CPU and disk use is measured.
const BUSY_INTERVAL: Duration = Duration::from_millis(500);

/// Combines the reports about a recording.
pub(crate) struct Observer {
    /// The log's directory, if it is on this machine.
    output: Option<PathBuf>,
    latest: Mutex<Latest>,
    /// Bytes of capture files read so far, and to be read if that is known.
    read_bytes: Arc<AtomicU64>,
    bytes_to_read: OnceLock<u64>,
}

/// The workers' reports, combined per input, and what is known of the host.
#[derive(Default)]
pub(crate) struct Observation {
    /// What all workers have counted.
    pub(crate) counts: WorkerCounts,
    /// How busy they are; `None` for files.
    pub(crate) load: Option<Load>,
    /// What is known about the traffic's distributions, if it was reported again.
    pub(crate) drift: Option<Drift>,
    /// Where packets come from.
    pub(crate) network: NetworkObserved,
}

summed! {
    /// How busy a worker is, or the busiest of several.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Load {
        /// CPU time of its thread so far.
        pub(crate) cpu: Duration = largest,
        /// How long its disk could not have taken more blocks, in total.
        pub(crate) disk_busy: Duration = largest,
        /// Share of the fullest ring that waits for its worker.
        pub(crate) ring_fill: Option<f64> = largest,
        /// RDMA packets sent in total.
        pub(crate) rdma_sent: u64,
        /// And of these, those that were sent again.
        pub(crate) rdma_again: u64,
        /// The longest time that a packet recently waited in a ring.
        pub(crate) ring_wait: Option<Duration> = largest,
        /// When this was measured: as old as the oldest report.
        pub(crate) taken: Option<Instant> = oldest,
    }
}

fn oldest(all: &mut Option<Instant>, more: &Option<Instant>) {
    *all = all.iter().chain(more).min().copied();
}

struct Latest {
    observed: Observed,
    drift: DriftWatch,
    /// CPU time of the busiest worker, how long the busiest disk was busy, and when this was
    /// measured.
    busy: (Duration, Duration, Instant),
}

impl Observer {
    pub(crate) fn new(destination: &DestinationSpec, workers: u16) -> Arc<Self> {
        let blocks = destination.blocks_bytes() * usize::from(workers);
        Arc::new(Self {
            output: destination.dir().map(Path::to_owned),
            latest: Mutex::new(Latest {
                observed: Observed {
                    blocks_bytes: blocks as u64,
                    ..Observed::default()
                },
                drift: DriftWatch::default(),
                busy: (Duration::ZERO, Duration::ZERO, Instant::now()),
            }),
            read_bytes: Arc::default(),
            bytes_to_read: OnceLock::new(),
        })
    }

    /// Counts bytes of capture files that are read.
    pub(crate) fn read_bytes(&self) -> &Arc<AtomicU64> {
        &self.read_bytes
    }

    /// From now on it is known how many bytes are to be read. The first call decides.
    pub(crate) fn will_read(&self, bytes: u64) {
        self.bytes_to_read.get_or_init(|| bytes);
    }

    /// Bytes of capture files that were read, and of how many, if that is known.
    pub(crate) fn read(&self) -> Option<(u64, u64)> {
        let all = *self.bytes_to_read.get()?;
        Some((self.read_bytes.load(Ordering::Relaxed).min(all), all))
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Latest) -> T) -> T {
        use_it(&mut self.latest.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes of all memory blocks.
    pub(crate) fn blocks_bytes(&self) -> u64 {
        self.with(|latest| latest.observed.blocks_bytes)
    }

    /// Stores the workers' reports.
    pub(crate) fn note(&self, noted: Observation) {
        self.with(|latest| {
            let observed = &mut latest.observed;
            observed.counts = noted.counts;
            observed.network = noted.network;
            if let Some(drift) = &noted.drift {
                observed.drift = Some(latest.drift.look(drift, Instant::now()));
            }
            let Some(load) = noted.load else {
                return;
            };
            observed.ring_fill = load.ring_fill;
            observed.ring_wait = load.ring_wait;
            observed.workers_taken = load.taken;
            observed.rdma = (load.rdma_sent > 0).then_some((load.rdma_sent, load.rdma_again));
            let (cpu_before, disk_busy_before, since) = latest.busy;
            let elapsed = since.elapsed();
            if elapsed >= BUSY_INTERVAL {
                let share = |now: Duration, before: Duration| {
                    Some(now.saturating_sub(before).as_secs_f64() / elapsed.as_secs_f64())
                };
                observed.cpu_used = share(load.cpu, cpu_before);
                observed.disk_rate = share(load.disk_busy, disk_busy_before);
                let now = Instant::now();
                observed.load_taken = Some(now);
                latest.busy = (load.cpu, load.disk_busy, now);
            }
        });
    }

    /// The counts of workers and interfaces: ledger, and per interface the packets received and
    /// dropped.
    pub(crate) fn counted(&self) -> (Ledger, Vec<(String, u64, u64)>) {
        self.with(|latest| {
            let interfaces = latest.observed.network.interfaces.iter();
            let rings = interfaces.map(|one| (one.name.clone(), one.received, one.dropped));
            (latest.observed.counts.ledger, rings.collect())
        })
    }

    /// The latest reports, and how full the disk is now.
    pub(crate) fn take(&self) -> Observed {
        let mut observed = self.with(|latest| latest.observed.clone());
        (observed.disk_bytes, observed.disk_used) = match self.output.as_deref().map(disk_use) {
            Some((bytes, used)) => (bytes, used),
            None => (0, None),
        };
        observed
    }
}

/// Size in bytes of a directory's file system, 0 if unknown, and the share of it in use.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn disk_use(dir: &Path) -> (u64, Option<f64>) {
    let Ok(fs) = statvfs(dir) else {
        return (0, None);
    };
    // As in df: space reserved for root does not count.
    let used = fs.f_blocks.checked_sub(fs.f_bfree).and_then(|used| {
        let all = used + fs.f_bavail;
        (all > 0).then(|| used as f64 / all as f64)
    });
    (fs.f_blocks.saturating_mul(fs.f_frsize), used)
}

/// Checks a recording of files, and the size of its log, from time to time. Ends when it is dropped.
pub(crate) struct Ticker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(crate) fn start(
        controller: &Arc<Controller>,
        observer: &Arc<Observer>,
        mut room: Option<Reclaim>,
        tell: &Tell,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (controller, observer) = (Arc::clone(controller), Arc::clone(observer));
        let tell = Arc::clone(tell);
        let stopped = Arc::clone(&stop);
        let work = move || {
            while !stopped.load(Ordering::Relaxed) {
                thread::park_timeout(TICK);
                let look = |room: &mut Reclaim| room.look(controller.bytes_to_remove());
                let made = room.as_mut().and_then(look);
                made.into_iter().for_each(|what| controller.report(what));
                tick(&controller, &observer, &tell);
            }
        };
        let thread = thread::Builder::new()
            .name("strata-control".into())
            .spawn(work);
        Ok(Self {
            stop,
            thread: Some(thread.map_err(RoleError::Thread)?),
        })
    }
}

fn tick(controller: &Controller, observer: &Observer, tell: &Tell) {
    controller.tick(Instant::now(), observer.take());
    for event in controller.take_events() {
        tell(&RecordNotice::Event(event).into());
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
