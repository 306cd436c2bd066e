//! The sensors that TitanLog §VI-B reads each millisecond: workers update them, and a thread passes
//! them on to the controller.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strata_capture::Packets;
use strata_capture::live::Live;
use strata_control::{Controller, Fast};
use strata_pipeline::Worker;
use strata_role::RoleError;
use strata_sandbox::Role;

use strata_wire::{exact, unix_ns};

use crate::error::Result;

/// How often sensors are read while packets arrive.
const READ_EVERY: Duration = Duration::from_millis(1);
/// The same while none arrive and nothing waits.
const READ_IDLE_EVERY: Duration = Duration::from_millis(20);
/// No packet waits longer: clocks differ.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// When this process first called this: atomics hold times relative to it.
fn origin() -> Instant {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

fn nanos(duration: Duration) -> u64 {
    exact::<u64>(duration.as_nanos())
}

/// What a worker reports, at most once per millisecond.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// When it last did, relative to [`origin`].
    taken_ns: AtomicU64,
    /// Share of the fullest ring, as bits; meaningful once `has_ring`.
    ring_fill: AtomicU64,
    has_ring: AtomicBool,
    in_flight_bytes: AtomicU64,
    dropped: AtomicU64,
    rdma_sent: AtomicU64,
    rdma_again: AtomicU64,
    /// The longest time that a packet waited in a ring since it was last taken.
    ring_wait_ns: AtomicU64,
}

impl Gauges {
    /// Updates everything, unless that was done within the last millisecond.
    pub(crate) fn note(&self, live: &Live, worker: &Worker) {
        let now_ns = nanos(origin().elapsed());
        if now_ns.saturating_sub(self.taken_ns.load(Ordering::Relaxed)) < nanos(READ_EVERY) {
            return;
        }
        let fill = live.ring_fill();
        self.has_ring.store(fill.is_some(), Ordering::Relaxed);
        if let Some(fill) = fill {
            self.ring_fill.store(fill.to_bits(), Ordering::Relaxed);
        }
        let in_flight = worker.ledger().in_flight.bytes;
        self.in_flight_bytes.store(in_flight, Ordering::Relaxed);
        let progress = worker.progress();
        for (to, from) in [
            (&self.rdma_sent, &progress.rdma_sent),
            (&self.rdma_again, &progress.rdma_again),
        ] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let batch = live.batch();
        if !batch.is_empty() {
            let waited_ns = unix_ns().checked_sub(batch.get(0).ts_ns);
            if let Some(waited_ns) = waited_ns.filter(|&ns| ns < nanos(WAIT_MAX)) {
                self.ring_wait_ns.fetch_max(waited_ns, Ordering::Relaxed);
            }
        }
        // Last, so that a reader who sees the time sees the matching values.
        self.taken_ns.store(now_ns, Ordering::Release);
    }

    /// Stores how many packets the kernel has dropped in total.
    pub(crate) fn note_dropped(&self, dropped: u64) {
        self.dropped.store(dropped, Ordering::Relaxed);
    }

    /// The longest time that a packet waited in a ring since the last call; `None` if none came.
    pub(crate) fn take_ring_wait(&self) -> Option<Duration> {
        let waited = self.ring_wait_ns.swap(0, Ordering::Relaxed);
        (waited > 0).then(|| Duration::from_nanos(waited))
    }
}

/// Reads the gauges of all workers.
#[allow(clippy::cast_precision_loss)]
fn read(workers: &[Arc<Gauges>], blocks_bytes: u64, now: Instant) -> Fast {
    let mut fast = Fast::default();
    let (mut in_flight, mut dropped, mut rdma) = (0, 0, (0, 0));
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    for gauges in workers {
        let taken_ns = gauges.taken_ns.load(Ordering::Acquire);
        let taken = origin() + Duration::from_nanos(taken_ns);
        in_flight += load(&gauges.in_flight_bytes);
        dropped += load(&gauges.dropped);
        rdma.0 += load(&gauges.rdma_sent);
        rdma.1 += load(&gauges.rdma_again);
        let fill = f64::from_bits(load(&gauges.ring_fill));
        let has_ring = gauges.has_ring.load(Ordering::Relaxed);
        if has_ring && fast.ring_fill.is_none_or(|(most, _)| fill >= most) {
            fast.ring_fill = Some((fill, taken));
        }
    }
    // A worker that waits for blocks hands none over: its last report is still true.
    fast.blocks = (blocks_bytes > 0).then(|| (in_flight as f64 / blocks_bytes as f64, now));
    fast.dropped = Some(dropped);
    fast.rdma = (rdma.0 > 0).then_some(rdma);
    fast
}

/// The thread that reads sensors. Ends when it is dropped.
pub(crate) struct Sensors {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sensors {
    /// Starts reading what workers report.
    pub(crate) fn start(
        controller: &Arc<Controller>,
        workers: Vec<Arc<Gauges>>,
        blocks_bytes: u64,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (controller, stopped) = (Arc::clone(controller), Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("strata-sensors".into())
            .spawn(move || {
                strata_role::sandbox::thread(Role::Worker);
                watch(&controller, &workers, blocks_bytes, &stopped);
            });
        Ok(Self {
            stop,
            thread: Some(thread.map_err(RoleError::thread("watches for shortages"))?),
        })
    }
}

fn watch(controller: &Controller, workers: &[Arc<Gauges>], blocks_bytes: u64, stop: &AtomicBool) {
    let (mut last, mut in_vain) = (None, 0_u32);
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        let fast = read(workers, blocks_bytes, now);
        controller.sense(now, &fast);
        // Sensors that do not change are read less often after a while.
        let share = |reading: Option<(f64, Instant)>| reading.map(|(share, _)| share);
        let seen = (share(fast.blocks), share(fast.ring_fill), fast.rdma);
        in_vain = if last == Some(seen) { in_vain + 1 } else { 0 };
        last = Some(seen);
        thread::sleep(if in_vain < 10 {
            READ_EVERY
        } else {
            READ_IDLE_EVERY
        });
    }
}

impl Drop for Sensors {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
