//! How the configuration specifies the response to shortages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::elastic::{ElasticOptions, Resource, Threshold};

/// Response to shortages. A step of degradation is a mode that keeps less.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ElasticConfig {
    /// Change modes automatically when a resource is short.
    pub enabled: bool,
    /// Disk space is short when this share of the file system is in use, in percent.
    pub disk_space_percent: f64,
    /// Share of the memory blocks that wait for the disk, in percent, from which the disk counts as too slow.
    pub blocks_percent: f64,
    /// Share of a ring's memory that waits for its worker, in percent, from which packets count as arriving too fast.
    pub ring_percent: f64,
    /// The disk counts as too slow when the queue of blocks being written to it is full for this
    /// share of the time, in percent.
    pub disk_rate_percent: f64,
    /// The path to the relay counts as overloaded when this share of the sent RDMA messages is
    /// lost, in percent: the messages that are sent again, skipped (--on-loss skip), or missing at
    /// a relay that does not acknowledge (--service uc).
    pub rdma_again_percent: f64,
    /// Limit on kept data sent to the disk or the relay, in megabits per second; without it, no
    /// limit.
    pub bandwidth_mbps: Option<f64>,
    /// CPU is short when the busiest worker uses this much, in percent of a core. Without it, CPU
    /// is short only when it makes the kernel drop packets.
    pub cpu_percent: Option<f64>,
    /// CPU budget of the process, including its eBPF programs in the kernel, in percent of a core;
    /// to stay within the budget, the recording captures only a share of the flows. Without it, no
    /// limit.
    pub cpu_budget_percent: Option<f64>,
    /// Delete the least important data of the log when this share of the file system is in use, in
    /// percent: first whole files of classes that are not anomalous, beginning with the oldest;
    /// never the newest files, and never packets that a policy protects. Without it, nothing is
    /// deleted.
    pub remove_percent: Option<f64>,
    /// Time for which a resource must be short before Strata steps down to a mode that keeps less,
    /// in seconds.
    pub confirm_seconds: f64,
    /// Time, in seconds, for which a shortage must be over before a step is undone; it doubles when
    /// the shortage returns.
    pub hold_seconds: f64,
    /// Upper limit of `hold_seconds` as it doubles, in seconds.
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

/// Largest CPU value, in percent of a core: more cores than Linux supports.
pub const CPU_PERCENT_MAX: f64 = 100.0 * 8192.0;
/// The longest time, 366 days.
const SECONDS_MAX: f64 = 366.0 * 86_400.0;
/// The largest rate, a petabit per second.
const MBPS_MAX: f64 = 1e9;
/// The largest share. Above 100 a resource is never short, which disables its sensor.
const PERCENT_MAX: f64 = 1000.0;

impl ElasticConfig {
    /// The first number out of bounds: its key and what is wrong with it.
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
            // NaN is in no range.
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                let (low, high) = range.into_inner();
                return Err((key, format!("{value} is not from {low} to {high}")));
            }
        }
        Ok(())
    }

    /// Keys with shares above 100 percent, and these: they are never reached, so a shortage is not noticed.
    #[must_use]
    pub fn never_short(&self) -> Vec<(&'static str, f64)> {
        let shares = [
            ("disk_space_percent", Some(self.disk_space_percent)),
            ("blocks_percent", Some(self.blocks_percent)),
            ("ring_percent", Some(self.ring_percent)),
            ("disk_rate_percent", Some(self.disk_rate_percent)),
            ("rdma_again_percent", Some(self.rdma_again_percent)),
            ("cpu_percent", self.cpu_percent),
        ];
        let given = shares
            .into_iter()
            .filter_map(|(key, share)| Some((key, share?)));
        given
            .filter(|&(_, share)| self.enabled && share > 100.0)
            .collect()
    }

    /// The same for the plan. The lower thresholds keep their distance to the upper ones.
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
