//! What a recording reports about itself.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use strata_classify::DriftReport;
use strata_policy::WorkerCounts;

use super::{CollectorBoard, Controller};
use crate::status::{
    CollectorStatus, CompactionStatus, EveStatus, InterfaceStatus, LostStatus, ReceiveStatus,
};

/// Where packets come from.
#[derive(Clone, Debug, Default)]
pub struct NetworkObserved {
    /// Interfaces, with what the kernel has counted in total.
    pub interfaces: Vec<InterfaceStatus>,
    /// What was lost before it reached Strata.
    pub lost: Vec<LostStatus>,
    /// The CPUs that receive packets.
    pub receive: Vec<ReceiveStatus>,
}

/// What a recording regularly reports about itself.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// What all workers have counted.
    pub counts: WorkerCounts,
    /// Where packets come from.
    pub network: NetworkObserved,
    /// How well the model fits the traffic of the last minutes; `None` if its file does not say what
    /// it was trained on.
    pub drift: Option<DriftWindow>,
    /// Bytes of all memory blocks.
    pub blocks_bytes: u64,
    /// Share of the log's file system in use, if known.
    pub disk_used: Option<f64>,
    /// Bytes of that file system.
    pub disk_bytes: u64,
    /// Share of a core used by the busiest worker since the last report, if known.
    pub cpu_used: Option<f64>,
    /// Share of the fullest ring's memory that waits for its worker, if there are rings.
    pub ring_fill: Option<f64>,
    /// Share of the time since the last report that the busiest disk could not have taken more
    /// blocks, if known.
    pub disk_rate: Option<f64>,
    /// RDMA messages sent and lost in total, if packets go to a relay.
    pub rdma: Option<(u64, u64)>,
    /// The longest that a packet recently sampled had waited in the kernel's ring when a worker
    /// took it.
    pub ring_wait: Option<Duration>,
    /// When workers reported the above; now, unless set.
    pub workers_taken: Option<Instant>,
    /// When `cpu_used` and `disk_rate` were measured; now, unless set.
    pub load_taken: Option<Instant>,
}

/// How well the model fits the traffic of a while.
#[derive(Clone, Debug, PartialEq)]
pub struct DriftWindow {
    /// What was found.
    pub report: DriftReport,
    /// Whether it lasted long enough to act on: at the start of a recording, all flows are new.
    pub is_whole: bool,
}

/// Readings of the sensors read each millisecond; `None` where there is no such sensor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fast {
    /// Share of the memory blocks that wait for the disk, and when it was measured.
    pub blocks: Option<(f64, Instant)>,
    /// Share of the fullest ring's memory that waits for its worker, and when it was measured.
    pub ring_fill: Option<(f64, Instant)>,
    /// Packets dropped by the kernel in total.
    pub dropped: Option<u64>,
    /// RDMA messages sent and lost in total.
    pub rdma: Option<(u64, u64)>,
}

impl Controller {
    /// Publishes what was read of `--eve`.
    pub fn set_eve(&self, status: EveStatus) {
        *self.eve.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }

    /// What was read of `--eve`, if it was given.
    #[must_use]
    pub fn eve(&self) -> Option<EveStatus> {
        *self.eve.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes how far compaction is behind.
    pub fn set_compaction(&self, status: CompactionStatus) {
        let mut compaction = self
            .compaction
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *compaction = Some(status);
    }

    /// How far compaction was behind when that was found last.
    #[must_use]
    pub fn compaction(&self) -> Option<CompactionStatus> {
        *self
            .compaction
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The same controller, of a recording of what a collector receives.
    #[must_use]
    pub fn with_collector(self, collector: Option<Arc<CollectorBoard>>) -> Self {
        Self { collector, ..self }
    }

    /// What the collector has received, if the recording is of one.
    #[must_use]
    pub fn collector(&self) -> Option<CollectorStatus> {
        self.collector.as_ref().map(|board| board.status())
    }
}
