//! How shortages are answered, as the configuration says it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::elastic::{ElasticOptions, Resource, Threshold};

/// How shortages are answered. A step of degradation is a mode that keeps less.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ElasticConfig {
    /// Whether modes change by themselves when something is short.
    pub enabled: bool,
    /// Share of the file system in use at which the disk is short, in percent.
    pub disk_space_percent: f64,
    /// Share of the memory blocks that wait for the disk at which its rate is short, in percent.
    pub blocks_percent: f64,
    /// Share of a ring's memory that waits for its worker at which packets per second are short,
    /// in percent.
    pub ring_percent: f64,
    /// Share of the time that the disk has as many blocks to write as it takes at once, at which
    /// its rate is short, in percent.
    pub disk_rate_percent: f64,
    /// RDMA packets sent again, of those sent, at which the way to the relay is short, in percent.
    pub rdma_again_percent: f64,
    /// What is kept may take so many megabits per second to the disk or the relay;
    /// without it, any number.
    pub bandwidth_mbps: Option<f64>,
    /// CPU use of the busiest worker at which CPU is short, in percent of a core. Without it, CPU
    /// is short only where it makes the kernel drop packets.
    pub cpu_percent: Option<f64>,
    /// CPU that the process may use, its programs in the kernel included, in percent of a core. It
    /// is kept by capturing a share of flows only. Without it, as much as it takes.
    pub cpu_budget_percent: Option<f64>,
    /// Share of the file system in use at which the least important data of the log is deleted,
    /// in percent: whole files of classes that are not anomalous first, of these the oldest;
    /// never the newest files, and never what a policy protects. Without it, nothing is deleted.
    pub remove_percent: Option<f64>,
    /// How long something is short before it is answered, in seconds.
    pub confirm_seconds: f64,
    /// How long it is no longer short before the answer is taken back, in seconds, at first; it
    /// doubles when the shortage comes back.
    pub hold_seconds: f64,
    /// How long that is at most, in seconds.
    pub hold_seconds_max: f64,
}

impl Default for ElasticConfig {
    fn default() -> Self {
        let options = ElasticOptions::default();
        let percent =
            |resource: Resource| (options.thresholds[resource as usize].raise * 100.0).round();
        Self {
            enabled: true,
            disk_space_percent: percent(Resource::DiskSpace),
            blocks_percent: percent(Resource::Blocks),
            ring_percent: percent(Resource::RingFill),
            disk_rate_percent: percent(Resource::DiskRate),
            rdma_again_percent: percent(Resource::Rdma),
            bandwidth_mbps: None,
            cpu_percent: None,
            cpu_budget_percent: None,
            remove_percent: None,
            confirm_seconds: seconds(options.confirm_ns),
            hold_seconds: seconds(options.hold_ns),
            hold_seconds_max: seconds(options.hold_ns_max),
        }
    }
}

#[allow(clippy::cast_precision_loss)]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// CPU that may be asked for, in percent of a core: more cores than Linux knows.
pub const CPU_PERCENT_MAX: f64 = 100.0 * 8192.0;
/// The longest time, 366 days.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;
/// The largest rate, a petabit per second.
const MBPS_MAX: f64 = 1e9;
/// The largest share. Above 100 a resource is never short, which turns its sensor off.
const PERCENT_MAX: f64 = 1000.0;

impl ElasticConfig {
    /// The first number that is out of its bounds: its key and what is wrong with it.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let share = 0.0..=PERCENT_MAX;
        let time = 0.0..=SECONDS_MAX;
        for (key, value, range) in [
            (
                "disk_space_percent",
                Some(self.disk_space_percent),
                share.clone(),
            ),
            ("blocks_percent", Some(self.blocks_percent), share.clone()),
            ("ring_percent", Some(self.ring_percent), share.clone()),
            (
                "disk_rate_percent",
                Some(self.disk_rate_percent),
                share.clone(),
            ),
            (
                "rdma_again_percent",
                Some(self.rdma_again_percent),
                share.clone(),
            ),
            ("cpu_percent", self.cpu_percent, share),
            ("bandwidth_mbps", self.bandwidth_mbps, 1e-6..=MBPS_MAX),
            (
                "cpu_budget_percent",
                self.cpu_budget_percent,
                1e-3..=CPU_PERCENT_MAX,
            ),
            ("remove_percent", self.remove_percent, 1.0..=100.0),
            ("confirm_seconds", Some(self.confirm_seconds), time.clone()),
            ("hold_seconds", Some(self.hold_seconds), time.clone()),
            ("hold_seconds_max", Some(self.hold_seconds_max), time),
        ] {
            // What is not a number is in no range.
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                let (low, high) = range.into_inner();
                return Err((key, format!("{value} is not from {low} to {high}")));
            }
        }
        Ok(())
    }

    /// The same for the plan. The lower thresholds keep their distance from the upper ones.
    #[must_use]
    pub fn options(&self) -> ElasticOptions {
        let mut options = ElasticOptions::default();
        for (resource, percent) in [
            (Resource::DiskSpace, Some(self.disk_space_percent)),
            (Resource::Blocks, Some(self.blocks_percent)),
            (Resource::Cpu, self.cpu_percent),
            (Resource::RingFill, Some(self.ring_percent)),
            (Resource::DiskRate, Some(self.disk_rate_percent)),
            (Resource::Rdma, Some(self.rdma_again_percent)),
        ] {
            let Some(percent) = percent else { continue };
            let Threshold { raise, lower } = &mut options.thresholds[resource as usize];
            let distance = if raise.is_finite() {
                *lower / *raise
            } else {
                0.75
            };
            *raise = percent / 100.0;
            *lower = *raise * distance;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let ns = |seconds: f64| (seconds.max(0.0) * 1e9) as u64;
        options.remove_at = self.remove_percent.map(|percent| percent / 100.0);
        options.bits_per_second = self.bandwidth_mbps.map(|mbps| mbps * 1e6);
        options.confirm_ns = ns(self.confirm_seconds);
        options.hold_ns = ns(self.hold_seconds);
        options.hold_ns_max = ns(self.hold_seconds_max.max(self.hold_seconds));
        options
    }
}
