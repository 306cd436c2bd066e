//! What a controller knows of its recording, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_classify::Model;
use strata_pipeline::{Mode, ModeConfig, ModeError, Plan};
use strata_rules::{Action, Base, PolicySet};
use strata_wire::Tally;

use super::events::Events;
use super::{ControlError, Observed};
use crate::elastic::{ElasticOptions, ElasticState, Relief, Resource, Sensed};
use crate::saved::Saved;
use crate::status::CpuStatus;

/// For how long the kernel is said to drop packets after it was seen to: longer than
/// workers take to say so again.
const DROPS_LAST: Duration = Duration::from_millis(500);
/// Over how long rates are taken.
const RATE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) own_modes: BTreeMap<String, ModeConfig>,
    /// What was asked for last.
    pub(super) modes: Vec<String>,
    /// When the mode falls back, and to what.
    pub(super) timed: Option<(Instant, Vec<String>)>,
    pub(super) policies: PolicySet,
    /// What was searched before `policies` were last made ready anew.
    pub(super) retired: Option<Base>,
    /// Numbers of those that were added at run time.
    pub(super) at_run_time: BTreeSet<u32>,
    /// Where these are saved; `None` if they are not.
    pub(super) saved: Option<Saved>,
    /// When saving is tried again, and whether it was told that it failed.
    pub(super) save_at: Option<Instant>,
    pub(super) save_told: bool,
    /// The policies before a change that is not yet published.
    pub(super) replaced: Option<PolicySet>,
    pub(super) default: Action,
    pub(super) can_mirror: bool,
    pub(super) next_id: u32,
    pub(super) elastic: Option<ElasticOptions>,
    pub(super) state: ElasticState,
    pub(super) cpu_budget: Option<f64>,
    pub(super) cpu: Option<CpuStatus>,
    /// Since when all flows are captured again, once it was said that they are not.
    pub(super) sampling: Sampling,
    pub(super) sensed: Sensed,
    pub(super) observed: Observed,
    /// RDMA packets sent and sent again, when rates were last taken.
    pub(super) rdma: (u64, u64),
    /// Packets that the kernel has dropped, and when it was last seen to.
    pub(super) dropped: (u64, Option<Instant>),
    pub(super) rate: Rate,
    pub(super) events: Events,
}

/// Whether flows are sampled to keep the CPU budget, as far as it was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sampling {
    No,
    Yes,
    /// No longer, since then.
    Ending(Instant),
}

#[derive(Debug)]
pub(super) struct Rate {
    pub(super) since: Instant,
    pub(super) seen: Tally,
    pub(super) logged_bytes: u64,
    pub(super) packets_per_second: f64,
    pub(super) bytes_per_second: f64,
    pub(super) logged_bytes_per_second: f64,
}

impl Inner {
    /// The modes at work: those asked for, or where something is short the one that relieves it
    /// and keeps no more than these.
    pub(super) fn active(&self) -> Vec<String> {
        let relief = self.state.relief();
        if relief == Relief::default() {
            return self.modes.clone();
        }
        let asked = self.modes.iter().map(|name| Relief::of_mode(name));
        // Several modes are joined demands, so they give up only what all do.
        let asked = asked.reduce(|a, b| Relief {
            partial: a.partial && b.partial,
            sampled: a.sampled && b.sampled,
        });
        let all = relief.and(asked.unwrap_or_default());
        all.mode()
            .map_or_else(|| self.modes.clone(), |name| vec![name.to_owned()])
    }

    pub(super) fn plan(&self, model: &Model) -> Result<Plan, ControlError> {
        let active = self.active();
        let modes: Result<Vec<Mode>, ModeError> = active
            .iter()
            .map(|name| Mode::by_name(name, &self.own_modes))
            .collect();
        let ready = self.policies.ready(self.default);
        Ok(Plan::new(model, &modes?)?.with_policies(Arc::new(ready)))
    }

    #[allow(clippy::cast_precision_loss)]
    pub(super) fn observe(&mut self, now: Instant, observed: Observed) {
        let dropped: u64 = observed.rings.iter().map(|ring| ring.2).sum();
        let in_flight = observed.ledger.in_flight.bytes as f64;
        let blocks = observed.blocks_bytes as f64;
        self.sensed[Resource::DiskSpace as usize] = observed.disk_used;
        self.sensed[Resource::Blocks as usize] = (blocks > 0.0).then(|| in_flight / blocks);
        if dropped > self.dropped.0 {
            self.dropped = (dropped, Some(now));
        }
        let drops = self
            .dropped
            .1
            .is_some_and(|at| now.duration_since(at) < DROPS_LAST);
        self.sensed[Resource::Ring as usize] =
            (!observed.rings.is_empty()).then(|| f64::from(u8::from(drops)));
        self.sensed[Resource::Cpu as usize] = observed.cpu_used;
        self.sensed[Resource::RingFill as usize] = observed.ring_fill;
        self.sensed[Resource::DiskRate as usize] = observed.disk_rate;
        let elapsed = now.duration_since(self.rate.since);
        if elapsed >= RATE_INTERVAL {
            let (seconds, ledger) = (elapsed.as_secs_f64(), &observed.ledger);
            let logged_bytes = ledger.logged.bytes + ledger.in_flight.bytes;
            let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            self.rate = Rate {
                since: now,
                seen: ledger.seen,
                logged_bytes,
                packets_per_second: per_second(ledger.seen.packets, self.rate.seen.packets),
                bytes_per_second: per_second(ledger.seen.bytes, self.rate.seen.bytes),
                logged_bytes_per_second: per_second(logged_bytes, self.rate.logged_bytes),
            };
            if let Some((sent, again)) = observed.rdma {
                let (sent_before, again_before) = self.rdma;
                let sent_now = sent.saturating_sub(sent_before).max(1);
                let share = again.saturating_sub(again_before) as f64 / sent_now as f64;
                self.sensed[Resource::Rdma as usize] = Some(share);
                self.rdma = (sent, again);
            }
            let limit = self.elastic.as_ref().and_then(|o| o.bits_per_second);
            self.sensed[Resource::Bandwidth as usize] =
                limit.map(|limit| self.rate.logged_bytes_per_second * 8.0 / limit);
        }
        self.observed = observed;
    }
}
