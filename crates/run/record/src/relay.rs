//! The role of a relay: memory for switches, written to a log; and its disk: how full it is, whether
//! it keeps up, and the response to shortages.
//!
//! Shortages are answered as in a local recording: the same thresholds, the same pure plan
//! ([`elastic`](strata_control::elastic)), and the same deletion of the least important data.

pub(crate) mod stream;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use strata_control::config::Config;
use strata_control::elastic::{
    ElasticOptions, ElasticState, Reading, Resource, Sensed, Step, plan,
};
use strata_relay::protocol::Shortage;
use strata_relay::{DiskLoad, Relay, RelayOptions, Totals};
use strata_role::sandbox::{Reach, give_up, unconfined};
use strata_role::{FeedCounts, FeedSpec, Handle, Notice, Spec, Tell, warn_if_shared};
use strata_store::DiskChoice;
use strata_wire::exact;

use crate::beside::reclaim::{Growth, Limit, Reclaim};
use crate::error::{At as _, RecordError, Result};
use crate::notice::RecordNotice;
use crate::observer::disk_use;
use crate::relay::stream::RelayStreaming;
use crate::setup::log_dir::{NewDirectory, log_directory};

/// How often the relay is checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often the disk's space and load are measured.
const MEASURE_EVERY: Duration = Duration::from_millis(500);

/// A relay: memory that switches write into, and the log that it goes to.
#[derive(Debug)]
pub struct RelaySpec {
    /// Addresses, memory, block files and their owner.
    pub options: RelayOptions,
    /// The log's directory; created if need be.
    pub dir: PathBuf,
    /// How blocks go to the disk.
    pub disk: DiskChoice,
    /// The configuration file; only `[elastic]` is used.
    pub config: Option<PathBuf>,
    /// Bytes that the log is to stay below.
    pub bytes_max: Option<u64>,
    /// The stream that packets are appended to as well.
    pub to_stream: Option<Box<dyn FeedSpec>>,
    /// Whether to drop what is not needed once the relay listens.
    pub sandboxed: bool,
}

/// What a relay did.
#[derive(Clone, Debug)]
pub struct RelayOutcome {
    /// Connections of switches.
    pub connections: u64,
    /// What it wrote.
    pub totals: Totals,
    /// Packets that were appended to a stream, and those that were not.
    pub streamed: Option<FeedCounts>,
    /// Why the log can no longer be written. What was confirmed to switches is in it.
    pub failure: Option<String>,
}

impl Spec for RelaySpec {
    type Running = ();
    type Outcome = RelayOutcome;
    type Error = RecordError;
    const THREAD: &'static str = "strata-relay";

    fn start(self, stop: Arc<AtomicBool>, tell: Tell) -> Result<Handle<Self>> {
        let watched = RelayDisk::new(&self)?;
        let owner = self.options.owner.clone();
        let block_bytes = self.options.block_bytes;
        let bound = Relay::bind(self.options)?;
        let new = NewDirectory::at(&self.dir);
        let mut disk = log_directory(&self.dir, &owner)?;
        warn_if_shared(&self.dir, &tell);
        if self.sandboxed {
            let reach = Reach {
                home: Some(self.dir.clone()),
                write: self
                    .to_stream
                    .iter()
                    .flat_map(|feed| feed.writes())
                    .collect(),
                delete: bound.socket_dirs().into_iter().flatten().collect(),
                ..Reach::default()
            };
            give_up(&owner, &reach, CapabilitySet::empty(), &tell)?;
        } else {
            unconfined();
        }
        let chosen = disk.choose(self.disk);
        let chosen = chosen.at_with(|| format!("{}: --disk", self.dir.display()))?;
        tell(&RecordNotice::Disk(chosen).into());
        let feed = self.to_stream.map(|feed| feed.open(&tell)).transpose()?;
        let streaming = feed.map(|feed| RelayStreaming::start(feed, block_bytes));
        let streaming = streaming.transpose()?;
        let tap = streaming.as_ref().map(RelayStreaming::tap);
        let to_tell = Arc::clone(&tell);
        let relay = bound.start(Arc::new(disk), tap, move |event| {
            to_tell(&RecordNotice::Relay(event.to_owned()).into());
        })?;
        new.keep();
        let address = relay.address();
        let what = format!("relay on {address}, log in {}", self.dir.display());
        tell(&Notice::serving(address, what));
        let stopped = Arc::clone(&stop);
        Handle::run((), stop, move || {
            serve(relay, watched, streaming, &stopped, &tell)
        })
    }
}

/// Watches the relay until it is stopped or its log cannot be written, and ends it.
fn serve(
    relay: Relay,
    mut disk: RelayDisk,
    streaming: Option<RelayStreaming>,
    stop: &AtomicBool,
    tell: &Tell,
) -> Result<RelayOutcome> {
    while !stop.load(Ordering::Relaxed) && relay.failure().is_none() {
        thread::sleep(LOOK_EVERY);
        for event in disk.look(&relay) {
            tell(&RecordNotice::Relay(event).into());
        }
    }
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let connections = load(&relay.counters().connections);
    let failure = relay.failure();
    tell(&Notice::ending(failure.is_some()));
    let totals = relay.stop();
    let streamed = streaming.map(RelayStreaming::finish).transpose()?;
    Ok(RelayOutcome {
        connections,
        streamed,
        failure: failure.or_else(|| totals.failure.clone()),
        totals,
    })
}

/// Manages the disk of a relay.
struct RelayDisk {
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

impl RelayDisk {
    /// Reads the configuration. To be called before anything is changed.
    fn new(spec: &RelaySpec) -> Result<Self> {
        let config = match &spec.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        let rotate_bytes = spec.options.rotate_bytes;
        let limit = spec.bytes_max.map(|bytes| Limit {
            bytes,
            reserve: rotate_bytes,
            growth: Growth::Free,
        });
        if let Some(limit) = &limit {
            limit.check(rotate_bytes, 1)?;
        }
        let now = Instant::now();
        Ok(Self {
            room: Reclaim::new(&spec.dir, limit),
            dir: spec.dir.clone(),
            rotate_bytes,
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
    fn look(&mut self, relay: &Relay) -> Vec<String> {
        let now = Instant::now();
        let load = relay.disk_load();
        let mut said = Vec::new();
        if self.options.is_some() {
            self.sense(now, &load);
            said.extend(self.answer(relay));
        }
        let switches = relay.counters().connected.load(Ordering::Relaxed);
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
        if elapsed < MEASURE_EVERY {
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
            Some(mode) => format!("switches have to use mode {mode}: {why}"),
            None => format!("switches return to their own modes: {why}"),
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
}
