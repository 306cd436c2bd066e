//! The status of a recording, as it is shown.

use std::time::Instant;

use super::Controller;
use crate::elastic::Resource;
use crate::status::{
    ChangeStatus, DriftStatus, FlowTableStatus, LoweredStatus, ResourceStatus, ShadowStatus,
    ShedStatus, Status, VectorStatus, classes, mirrored, of_logged, results,
};

/// Features named of those that differ most from training.
const FEATURES: usize = 3;

impl Controller {
    /// The mode in force; of several, their names with `+` between.
    #[must_use]
    pub fn mode(&self) -> String {
        self.lock().active().join("+")
    }

    /// The mode that was asked for, which is not in force while something runs short.
    #[must_use]
    pub fn asked_mode(&self) -> String {
        self.lock().asked.modes.join("+")
    }

    /// What shortages have lowered; none if they never did.
    #[must_use]
    pub fn lowered(&self) -> Option<LoweredStatus> {
        self.lock().lowered.status(Instant::now())
    }

    /// Payload that was given up; none if it never was looked at.
    #[must_use]
    pub fn shed(&self) -> Option<ShedStatus> {
        self.lock().shed.clone()
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> Status {
        let inner = self.lock();
        let resources = Resource::ALL.map(|resource| ResourceStatus {
            name: resource.name().to_owned(),
            used: inner.value(resource),
            short_at: inner
                .asked
                .elastic
                .as_ref()
                .map(|o| o.thresholds[resource as usize].raise),
            degradation_steps: inner.state.level(resource),
        });
        let delays = self.steering.delays();
        let ms = |share| {
            delays
                .quantile(share)
                .map(|delay| delay.as_secs_f64() * 1e3)
        };
        let now = Instant::now();
        let (counts, network) = (&inner.observed.counts, &inner.observed.network);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            log: self.log.clone(),
            uptime_seconds: now.duration_since(self.started).as_secs_f64(),
            mode: inner.active().join("+"),
            asked_mode: inner.asked.modes.join("+"),
            mode_seconds_left: inner
                .asked
                .timed
                .until()
                .map(|until| until.saturating_duration_since(now).as_secs_f64()),
            default: inner.asked.default.to_string(),
            policies: inner.policies.set.len(),
            packets_per_second: inner.rate.packets_per_second,
            bytes_per_second: inner.rate.bytes_per_second,
            logged_bytes_per_second: inner.rate.logged_bytes_per_second,
            packets: results(&counts.ledger),
            flow_table: counts.pressure.as_ref().map(FlowTableStatus::from),
            interfaces: network.interfaces.clone(),
            lost: network.lost.clone(),
            receive: network.receive.clone(),
            classes: classes(&counts.kept, &self.model.class_names()),
            detail: inner.detail_status(),
            drift: inner
                .observed
                .drift
                .as_ref()
                .map(|drift| DriftStatus::of(&drift.report, FEATURES)),
            shadow: counts.shadow.as_ref().map(|counts| ShadowStatus {
                models: self.models(&inner),
                ..ShadowStatus::of(counts, &self.model.class_names())
            }),
            of_logged: of_logged(&counts.ledger),
            uncompared_packets: counts.ledger.uncompared.packets,
            mirrored: mirrored(&counts.ledger),
            resources: resources.to_vec(),
            cpu: inner.cpu.clone(),
            shed: inner.shed.clone(),
            lowered: inner.lowered.status(now),
            vectors: VectorStatus {
                installed: self.queries.count(),
                ..self.subscribers.status()
            },
            reports: self.reports(),
            flows: self.flows(),
            exports: self.exports(),
            eve: self.eve(),
            compaction: self.compaction(),
            collector: self.collector(),
            changes: ChangeStatus {
                count: delays.count(),
                seconds_sum: delays.sum().as_secs_f64(),
                median_ms: ms(0.5),
                p99_ms: ms(0.99),
            },
            ring_wait_ms: inner
                .observed
                .ring_wait
                .map(|wait| wait.as_secs_f64() * 1e3),
        }
    }
}
