//! A relay's disk: how full it is, whether it keeps up, and the response to shortages.
//!
//! Shortages are answered as in a local recording: the same thresholds, the same pure plan
//! ([`elastic`](strata_control::elastic)), and the same deletion of the least important data.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use strata_control::config::Config;
use strata_control::elastic::{
    ElasticOptions, ElasticState, Reading, Resource, Sensed, Step, plan,
};
use strata_relay::protocol::Shortage;
use strata_relay::{DiskLoad, Relay};
use strata_wire::exact;

use crate::observer::disk_use;
use crate::reclaim::{Limit, Reclaim};

/// How often the disk's space and load are checked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How a relay's disk is kept from filling.
#[derive(Clone, Debug, Default)]
pub struct RelayDiskSpec {
    /// The log's directory.
    pub dir: PathBuf,
    /// The configuration file; only `[elastic]` is used.
    pub config: Option<PathBuf>,
    /// Bytes that the log is to stay below.
    pub bytes_max: Option<u64>,
    /// Most bytes of a block file.
    pub rotate_bytes: u64,
}

/// Manages the disk of a relay.
pub struct RelayDisk {
    dir: PathBuf,
    rotate_bytes: u64,
    /// How shortages are answered; `None` if not at all.
    options: Option<ElasticOptions>,
    room: Reclaim,
    state: ElasticState,
    sensed: Sensed,
    started: Instant,
    looked: Instant,
    busy: Duration,
    disk_bytes: u64,
}

impl std::fmt::Debug for RelayDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayDisk")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl RelayDisk {
    /// Reads the files that the spec names. To be called before anything is changed.
    ///
    /// # Errors
    ///
    /// If the configuration is unusable, or the limit cannot be kept.
    pub fn new(spec: RelayDiskSpec) -> Result<Self> {
        let config = match &spec.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        let limit = spec.bytes_max.map(|bytes| Limit {
            bytes,
            reserve: spec.rotate_bytes,
        });
        if let Some(limit) = &limit {
            limit.check(spec.rotate_bytes, 1)?;
        }
        let now = Instant::now();
        Ok(Self {
            room: Reclaim::new(&spec.dir, limit),
            dir: spec.dir,
            rotate_bytes: spec.rotate_bytes,
            options: config.elastic.enabled.then(|| config.elastic.options()),
            state: ElasticState::default(),
            sensed: Sensed::default(),
            started: now,
            looked: now,
            busy: Duration::ZERO,
            disk_bytes: 0,
        })
    }

    /// Checks the disk once, and responds; returns what to report.
    pub fn look(&mut self, relay: &Relay) -> Vec<String> {
        let now = Instant::now();
        let load = relay.disk_load();
        let mut said = Vec::new();
        if self.options.is_some() {
            self.sense(now, &load);
            said.extend(self.answer(relay));
        }
        let switches = relay
            .counters()
            .connected
            .load(std::sync::atomic::Ordering::Relaxed);
        self.room
            .set_reserve(self.rotate_bytes.saturating_mul(switches.max(1)));
        let to_remove = self.bytes_to_remove();
        said.extend(self.room.look(to_remove));
        said
    }

    fn read(&mut self, resource: Resource, value: Option<f64>, now: Instant) {
        let taken_ns = exact::<u64>((now - self.started).as_nanos());
        self.sensed[resource as usize] = value.map(|value| Reading { value, taken_ns });
    }

    #[allow(clippy::cast_precision_loss)]
    fn sense(&mut self, now: Instant, load: &DiskLoad) {
        // Without a switch no blocks wait.
        let blocks = load.waiting as f64 / load.blocks.max(1) as f64;
        self.read(Resource::Blocks, Some(blocks), now);
        let elapsed = now - self.looked;
        if elapsed < LOOK_EVERY {
            return;
        }
        let busy = load.busy.saturating_sub(self.busy).as_secs_f64();
        let rate = busy / (elapsed.as_secs_f64() * load.writers as f64);
        (self.looked, self.busy) = (now, load.busy);
        self.read(Resource::DiskRate, Some(rate), now);
        let (bytes, used) = disk_use(&self.dir);
        self.disk_bytes = bytes;
        self.read(Resource::DiskSpace, used, now);
    }

    /// Answers shortages: asks switches to keep less, or as much as before; returns what to report.
    fn answer(&mut self, relay: &Relay) -> Option<String> {
        let options = self.options.as_ref()?;
        let (state, steps) = plan(&self.state, &self.sensed, options);
        let before = self.state.degradation();
        self.state = state;
        let degradation = self.state.degradation();
        if degradation == before {
            return None;
        }
        let why: Vec<String> = steps.iter().map(Step::to_string).collect();
        let why = why.join("; ");
        let what = match degradation.mode() {
            Some(mode) => format!("switches are asked for mode {mode}: {why}"),
            None => format!("switches are asked for their own modes again: {why}"),
        };
        relay.ask(Shortage {
            partial: degradation.partial,
            sampled: degradation.sampled,
            why,
        });
        Some(what)
    }

    fn bytes_to_remove(&self) -> Option<u64> {
        let used = self.sensed[Resource::DiskSpace as usize]?.value;
        self.options
            .as_ref()?
            .bytes_to_remove(used, self.disk_bytes)
    }

    /// The log's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}
