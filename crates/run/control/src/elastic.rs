//! The response to shortages (TitanLog §VI-B), as a pure function of readings and previous state:
//! no clock, no I/O.
//!
//! Each resource has a ladder of degradation. Above its threshold for some time it goes up a step,
//! and again while it stays above; below a lower threshold for a hold time it goes down a step. A
//! shortage that returns soon after a step down doubles the hold time, up to a limit, so a
//! permanent overload costs two changes per longest hold time, no more.
//!
//! Sensors have their own periods, and a reading counts once, at the time when it was taken: so one
//! step follows another only after the effect of the first was measured.

pub mod contention;
pub mod cpu;

use std::fmt;

use serde::Serialize;

/// The part of a budget of detail that is left while something is short.
pub const DETAIL_LEFT: f64 = 1.0 / 8.0;
/// How much more of the disk than needed is freed, as a share of it.
const REMOVE_MORE: f64 = 0.02;

/// What can run short.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(usize)]
pub enum Resource {
    /// Used share of the log's file system, or of its quota.
    DiskSpace = 0,
    /// Share of the memory blocks that wait for the disk.
    Blocks = 1,
    /// Whether the kernel dropped packets since the last look: 1, else 0.
    Ring = 2,
    /// Share of a core used by the busiest worker.
    Cpu = 3,
    /// Share of the fullest ring's memory that waits for its worker.
    RingFill = 4,
    /// The rate at which blocks arrive over the rate at which the disk writes them: the share of
    /// the time that the busiest disk has as many to write as it takes at once.
    DiskRate = 5,
    /// Share of sent RDMA messages that were lost: sent again, skipped, or missing at the relay.
    Rdma = 6,
    /// Rate of kept data over the rate allowed to the disk or the relay.
    Bandwidth = 7,
}

impl Resource {
    /// All, in numerical order.
    pub const ALL: [Self; 8] = [
        Self::DiskSpace,
        Self::Blocks,
        Self::Ring,
        Self::Cpu,
        Self::RingFill,
        Self::DiskRate,
        Self::Rdma,
        Self::Bandwidth,
    ];

    /// The name in summaries and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DiskSpace => "disk_space",
            Self::Blocks => "blocks",
            Self::Ring => "ring",
            Self::Cpu => "cpu",
            Self::RingFill => "ring_fill",
            Self::DiskRate => "disk_rate",
            Self::Rdma => "rdma",
            Self::Bandwidth => "bandwidth",
        }
    }

    /// What a user can do so that it does not run short, with names of options and of keys in `[elastic]`.
    #[must_use]
    pub fn prevention(self) -> &'static str {
        match self {
            Self::DiskSpace => {
                "free disk space, or let the recording do so: --disk-limit or remove_percent"
            }
            Self::Blocks | Self::DiskRate => {
                "keep less (--detail, --mode, a filter) or write to a faster disk"
            }
            Self::Ring | Self::RingFill => {
                "use longer rings (-B) or more CPUs (--cores), or a filter"
            }
            Self::Cpu => "use more CPUs (--cores) or a filter, or raise cpu_percent",
            Self::Rdma => "use a path to the relay that loses fewer messages",
            Self::Bandwidth => "keep less (--detail, --mode, a filter) or raise bandwidth_mbps",
        }
    }

    /// Its steps of degradation.
    fn ladder(self) -> &'static [Degradation] {
        match self {
            // Bytes are the problem: payload first.
            Self::Blocks | Self::DiskRate | Self::Rdma | Self::Bandwidth => &[
                Degradation::PARTIAL,
                Degradation::SAMPLED,
                Degradation::BOTH,
            ],
            // Packets are the problem, or everything that is written.
            Self::DiskSpace | Self::Ring | Self::Cpu | Self::RingFill => {
                &[Degradation::SAMPLED, Degradation::BOTH]
            }
        }
    }
}

/// What is given up: payload of anomalous packets, most benign packets, or both; before that, most of
/// the budget of detail, where there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Degradation {
    /// The budget of detail is lowered to [`DETAIL_LEFT`] of it.
    pub detail: bool,
    /// Payloads are cut.
    pub partial: bool,
    /// Benign packets are sampled.
    pub sampled: bool,
}

impl Degradation {
    const DETAIL: Self = Self {
        detail: true,
        partial: false,
        sampled: false,
    };
    const PARTIAL: Self = Self {
        detail: false,
        partial: true,
        sampled: false,
    };
    const SAMPLED: Self = Self {
        detail: false,
        partial: false,
        sampled: true,
    };
    const BOTH: Self = Self {
        detail: false,
        partial: true,
        sampled: true,
    };

    /// The degradation of a mode of TitanLog Table II; none for others.
    #[must_use]
    pub fn of_mode(name: &str) -> Self {
        match name {
            "log-partial" => Self::PARTIAL,
            "log-sampled" => Self::SAMPLED,
            "log-minimum" => Self::BOTH,
            _ => Self::default(),
        }
    }

    /// The mode of TitanLog Table II with this degradation; `None` for no degradation.
    #[must_use]
    pub fn mode(self) -> Option<&'static str> {
        match (self.partial, self.sampled) {
            (false, false) => None,
            (true, false) => Some("log-partial"),
            (false, true) => Some("log-sampled"),
            (true, true) => Some("log-minimum"),
        }
    }

    /// The degradation that answers both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            detail: self.detail || other.detail,
            partial: self.partial || other.partial,
            sampled: self.sampled || other.sampled,
        }
    }
}

/// When a resource is short.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Threshold {
    /// Short at or above this.
    pub raise: f64,
    /// No longer short at or below this.
    pub lower: f64,
}

/// How shortages are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct ElasticOptions {
    /// By [`Resource`].
    pub thresholds: [Threshold; Resource::ALL.len()],
    /// Share of the log's file system in use at which the least important data is deleted; `None`
    /// for never.
    pub remove_at: Option<f64>,
    /// Limit on kept data in bits per second, to the disk or the relay; `None` for no limit.
    pub bits_per_second: Option<f64>,
    /// How long a resource must be short before a step up, ns.
    pub confirm_ns: u64,
    /// How long it must not be short before a step down, initially, ns.
    pub hold_ns: u64,
    /// Upper limit of that, ns.
    pub hold_ns_max: u64,
    /// Whether there is a budget of detail: lowering it is then the first step of each resource.
    pub lowers_detail: bool,
}

impl Default for ElasticOptions {
    fn default() -> Self {
        let threshold = |raise, lower| Threshold { raise, lower };
        Self {
            thresholds: [
                threshold(0.95, 0.93),
                threshold(0.75, 0.25),
                threshold(1.0, 0.0),
                // Not answered unless asked for: a busy worker is not yet falling behind.
                threshold(f64::INFINITY, 0.0),
                threshold(0.5, 0.1),
                threshold(0.95, 0.7),
                threshold(0.01, 0.001),
                threshold(1.0, 0.75),
            ],
            remove_at: None,
            bits_per_second: None,
            confirm_ns: 300_000_000,
            hold_ns: 10_000_000_000,
            hold_ns_max: 600_000_000_000,
            lowers_detail: false,
        }
    }
}

/// A sensor's reading, and its time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reading {
    /// In the unit of its [`Resource`].
    pub value: f64,
    /// Relative to any origin.
    pub taken_ns: u64,
}

/// The latest readings, by [`Resource`]; `None` if unknown.
pub type Sensed = [Option<Reading>; Resource::ALL.len()];

/// The state of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Line {
    level: usize,
    /// When the last reading considered was taken.
    read_ns: Option<u64>,
    over_since_ns: Option<u64>,
    under_since_ns: Option<u64>,
    lowered_ns: Option<u64>,
    /// How many times the hold time was doubled.
    doublings: u32,
}

/// The state between looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElasticState {
    lines: [Line; Resource::ALL.len()],
    /// What a relay asks for: cut payloads, sampled benign packets.
    asked: [Line; 2],
    /// Whether the first step lowers the budget of detail.
    lowers_detail: bool,
}

/// A step up or down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Of this resource.
    pub resource: Resource,
    /// Up is more degradation.
    pub up: bool,
    /// The reading that led to it.
    pub sensed: Reading,
}

impl fmt::Display for Step {
    /// Why the mode changes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.resource.name();
        let percent = self.sensed.value * 100.0;
        match (self.resource, self.up) {
            (Resource::Ring, true) => f.write_str("the kernel drops packets"),
            (Resource::Ring, false) => f.write_str("the kernel drops no packets"),
            (Resource::Rdma, true) => {
                write!(f, "{percent:.1} % of the messages to the relay are lost")
            }
            (Resource::Rdma, false) => {
                write!(
                    f,
                    "only {percent:.1} % of the messages to the relay are lost"
                )
            }
            (_, true) => write!(f, "{name} is short: {percent:.0} % in use"),
            (_, false) => write!(f, "{name} is no longer short: {percent:.0} % in use"),
        }
    }
}

impl ElasticOptions {
    /// How many bytes of a log to delete on a disk of `disk_bytes` of which this share is in use,
    /// if any.
    #[must_use]
    pub fn bytes_to_remove(&self, used: f64, disk_bytes: u64) -> Option<u64> {
        let at = self.remove_at?;
        // A little more, so that not every block causes a deletion.
        let share = used - (at - REMOVE_MORE);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let bytes = (share * disk_bytes as f64) as u64;
        (used >= at).then_some(bytes)
    }
}

impl ElasticState {
    /// What all resources together require to be given up.
    #[must_use]
    pub fn degradation(&self) -> Degradation {
        let mut all = Degradation::default();
        for (resource, line) in Resource::ALL.iter().zip(&self.lines) {
            let ladder = resource.ladder();
            let level = match self.lowers_detail {
                true if line.level > 0 => {
                    all = all.and(Degradation::DETAIL);
                    line.level - 1
                }
                _ => line.level,
            };
            // A step more than there are is left over if a budget was lowered and is no more.
            if let Some(step) = level.checked_sub(1) {
                all = all.and(ladder[step.min(ladder.len() - 1)]);
            }
        }
        all.and(self.asked())
    }

    /// What is given up because a relay asks for it.
    #[must_use]
    pub fn asked(&self) -> Degradation {
        let [partial, sampled] = &self.asked;
        Degradation {
            detail: false,
            partial: partial.level > 0,
            sampled: sampled.level > 0,
        }
    }

    /// How many steps up a resource is.
    #[must_use]
    pub fn level(&self, resource: Resource) -> usize {
        self.lines[resource as usize].level
    }
}

/// The next state, and the steps that led there: at most one per resource, and none without a
/// reading newer than the last.
#[must_use]
pub fn plan(
    state: &ElasticState,
    sensed: &Sensed,
    options: &ElasticOptions,
) -> (ElasticState, Vec<Step>) {
    let mut next = state.clone();
    next.lowers_detail = options.lowers_detail;
    let mut steps = Vec::new();
    for resource in Resource::ALL {
        let Some(reading) = sensed[resource as usize] else {
            continue;
        };
        let (value, now_ns) = (reading.value, reading.taken_ns);
        let threshold = options.thresholds[resource as usize];
        let line = &mut next.lines[resource as usize];
        if line.read_ns.is_some_and(|read_ns| now_ns <= read_ns) {
            continue;
        }
        line.read_ns = Some(now_ns);
        let step = if value >= threshold.raise {
            line.under_since_ns = None;
            up(
                line,
                resource.ladder().len() + usize::from(options.lowers_detail),
                options.confirm_ns,
                options,
                now_ns,
            )
        } else if value <= threshold.lower {
            line.over_since_ns = None;
            down(line, options, now_ns)
        } else {
            (line.over_since_ns, line.under_since_ns) = (None, None);
            None
        };
        steps.extend(step.map(|up| Step {
            resource,
            up,
            sensed: reading,
        }));
    }
    (next, steps)
}

/// The next state when a relay asks for this degradation. The relay has waited before asking, so it
/// is followed at once; what it no longer asks for comes back after the hold time, as after a local
/// shortage, so that a connection that breaks and comes back changes nothing.
#[must_use]
pub fn follow(
    state: &ElasticState,
    asked: Degradation,
    options: &ElasticOptions,
    now_ns: u64,
) -> ElasticState {
    let mut next = state.clone();
    for (line, is_asked) in next.asked.iter_mut().zip([asked.partial, asked.sampled]) {
        if line.read_ns.is_some_and(|read_ns| now_ns <= read_ns) {
            continue;
        }
        line.read_ns = Some(now_ns);
        if is_asked {
            line.under_since_ns = None;
            up(line, 1, 0, options, now_ns);
        } else {
            line.over_since_ns = None;
            down(line, options, now_ns);
        }
    }
    next
}

/// A step up, if there are more of `steps` and the shortage was confirmed for long enough.
fn up(
    line: &mut Line,
    steps: usize,
    confirm_ns: u64,
    options: &ElasticOptions,
    now_ns: u64,
) -> Option<bool> {
    let since = *line.over_since_ns.get_or_insert(now_ns);
    if now_ns - since < confirm_ns || line.level >= steps {
        return None;
    }
    line.level += 1;
    line.over_since_ns = Some(now_ns);
    // Soon after a step down: that was too early, so the next one waits longer.
    let lowered = line.lowered_ns.take();
    if lowered.is_some_and(|at| now_ns - at < options.hold_ns_max) && line.doublings < 32 {
        line.doublings += 1;
    }
    Some(true)
}

fn down(line: &mut Line, options: &ElasticOptions, now_ns: u64) -> Option<bool> {
    let since = *line.under_since_ns.get_or_insert(now_ns);
    if line.level == 0 {
        if line
            .lowered_ns
            .is_some_and(|at| now_ns - at >= options.hold_ns_max)
        {
            (line.lowered_ns, line.doublings) = (None, 0);
        }
        return None;
    }
    let hold_ns = options.hold_ns.saturating_mul(1 << line.doublings);
    if now_ns - since < hold_ns.min(options.hold_ns_max) {
        return None;
    }
    line.level -= 1;
    line.lowered_ns = Some(now_ns);
    line.under_since_ns = Some(now_ns);
    Some(false)
}
