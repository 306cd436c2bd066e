//! What a controller knows about its recording, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_classify::{DRIFTED, Model};
use strata_policy::{DetailBudget, Mode, ModeConfig, ModeError, Plan};
use strata_rules::{Action, Base, PolicySet};
use strata_wire::{Counters, DropReason, Keep, Ledger, exact};

use super::events::Events;
use super::lowered::Lowered;
use super::timed::Timed;
use super::{ControlError, DriftWindow, Fast, Observed};
use crate::config::{ExportPlan, OnDrift};
use crate::elastic::{
    DETAIL_LEFT, Degradation, ElasticOptions, ElasticState, Reading, Resource, Sensed,
};
use crate::saved::Saved;
use crate::status::{CpuStatus, DetailStatus, ShedStatus, detailed};

/// How long the kernel counts as dropping packets after it was seen to do so: longer than workers
/// take to report again.
const DROPS_LAST: Duration = Duration::from_millis(500);
/// A disk that was full has room again once nothing was dropped for this long: longer than a writer
/// waits before it tries again.
const FULL_DISK_LASTS: Duration = Duration::from_secs(10);
/// The interval over which rates are measured.
const RATE_INTERVAL: Duration = Duration::from_secs(1);
/// The interval over which the share of resent RDMA packets is measured, while there are some.
const RDMA_INTERVAL: Duration = Duration::from_millis(100);

/// Settings of a recording, from its configuration and from users. Never changed in part: a new
/// value is made, checked, and replaces it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) own_modes: BTreeMap<String, ModeConfig>,
    /// The modes last requested.
    pub(super) modes: Vec<String>,
    /// When they end, and what returns then.
    pub(super) timed: Timed,
    /// The action for packets that no policy matches.
    pub(super) default: Action,
    /// How shortages are answered; `None` if not at all.
    pub(super) elastic: Option<ElasticOptions>,
    /// Cores that the process may use; `None` for no limit.
    pub(super) cpu_budget: Option<f64>,
    /// The budget of detail; `None` for none.
    pub(super) detail: Option<DetailBudget>,
    /// What to do while the model does not fit.
    pub(super) on_drift: OnDrift,
    /// Whether it does not, as last found.
    pub(super) is_drifted: bool,
    /// The name of the shadow model, if it was promoted.
    pub(super) promoted: Option<String>,
    /// Whether a shortage lowers the budget of detail first: there is one, and it decides something in
    /// these modes.
    pub(super) lowers_detail: bool,
    /// Whether a full disk ends the recording.
    pub(super) ends_when_full: bool,
}

impl Asked {
    /// The budget of detail, which a model that does not fit may need.
    fn detail(&self) -> Option<DetailBudget> {
        let needs_one = self.is_drifted && self.on_drift == OnDrift::Budget;
        let needed = needs_one.then_some(DetailBudget::OF_BUILT_IN_MODEL);
        self.detail.or(needed)
    }

    /// The budget of detail at work, which is lower during a shortage.
    pub(super) fn detail_left(&self, degradation: Degradation) -> Option<DetailBudget> {
        match degradation.detail {
            true => self.detail().map(|budget| budget.part(DETAIL_LEFT)),
            false => self.detail(),
        }
    }

    /// The modes to keep to if nothing is short.
    fn modes(&self) -> Vec<String> {
        match self.is_drifted && self.on_drift == OnDrift::Keep {
            true => vec![String::from("log-all")],
            false => self.modes.clone(),
        }
    }

    /// How shortages are answered.
    pub(super) fn elastic(&self) -> Option<ElasticOptions> {
        let options = self.elastic.clone()?;
        Some(ElasticOptions {
            lowers_detail: self.lowers_detail,
            ..options
        })
    }

    /// Works out what follows from a change.
    pub(super) fn settle(&mut self, model: &Model) {
        let plan = self.plan_of(model, &self.modes(), self.detail());
        self.lowers_detail = plan.is_ok_and(|plan| plan.detail().is_some());
    }

    /// What these modes, without policies, mean for a model.
    fn plan_of(
        &self,
        model: &Model,
        modes: &[String],
        detail: Option<DetailBudget>,
    ) -> Result<Plan, ModeError> {
        let modes: Result<Vec<Mode>, ModeError> = modes
            .iter()
            .map(|name| Mode::by_name(name, &self.own_modes))
            .collect();
        Ok(Plan::new(model, &modes?)?.with_detail(detail))
    }

    /// Checks every mode that it names. Not all of them are active: some are only while nothing is
    /// short, or once a time is over, when it is too late to refuse them.
    pub(super) fn check(&self, model: &Model) -> Result<(), ModeError> {
        for name in self.own_modes.keys() {
            Mode::by_name(name, &self.own_modes)?;
        }
        for name in self.modes.iter().chain(self.timed.names()) {
            Mode::by_name(name, &self.own_modes)?.granularities(model)?;
        }
        Ok(())
    }

    /// The active modes: those requested, or during a shortage the one that answers it and keeps no
    /// more than these.
    fn active(&self, degradation: Degradation) -> Vec<String> {
        let modes = self.modes();
        if degradation == Degradation::default() {
            return modes;
        }
        let asked = modes.iter().map(|name| Degradation::of_mode(name));
        // Several modes keep what any of them demands, so they give up only what all do.
        let asked = asked.reduce(|a, b| Degradation {
            detail: false,
            partial: a.partial && b.partial,
            sampled: a.sampled && b.sampled,
        });
        let all = asked.map_or(degradation, |asked| degradation.and(asked));
        all.mode().map_or(modes, |name| vec![name.to_owned()])
    }

    /// What workers are to do.
    pub(super) fn plan(
        &self,
        model: &Model,
        policies: &PolicySet,
        degradation: Degradation,
    ) -> Result<Plan, ModeError> {
        let (active, detail) = (self.active(degradation), self.detail_left(degradation));
        let plan = self.plan_of(model, &active, detail)?;
        let plan = match &self.promoted {
            Some(shadow) => plan.of_shadow(shadow),
            None => plan,
        };
        let ready = policies.ready(self.default);
        Ok(plan.with_policies(Arc::new(ready)))
    }
}

/// Where policies may send packets on to, as the recording was started.
#[derive(Debug)]
pub(super) struct Ways {
    /// Whether there is an interface for copies.
    pub(super) can_mirror: bool,
    /// Where headers and packets may be exported to.
    pub(super) export: Option<ExportPlan>,
    /// Whether there is no log.
    pub(super) only_exports: bool,
}

impl Ways {
    /// Refuses an action that sends packets to where they may not go.
    pub(super) fn check(&self, action: Action) -> Result<(), ControlError> {
        if action == Action::Mirror && !self.can_mirror {
            return Err(ControlError::NoMirror);
        }
        if let Action::Keep(kept) = action
            && self.only_exports
            && kept.keep != Keep::Nothing
        {
            return Err(ControlError::NoLog(format!("'{action}'")));
        }
        match ExportPlan::problem(self.export.as_ref(), action) {
            Some(problem) => Err(ControlError::NoDestination(problem)),
            None => Ok(()),
        }
    }
}

/// Policies and their numbers.
#[derive(Debug, Default)]
pub(super) struct Registry {
    pub(super) set: PolicySet,
    /// Numbers of those added at run time.
    pub(super) at_run_time: BTreeSet<u32>,
    pub(super) next_id: u32,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) asked: Asked,
    pub(super) policies: Registry,
    /// The search structures before `policies` were last compiled anew.
    pub(super) retired: Option<Base>,
    /// Where policies added at run time are saved; `None` if they are not.
    pub(super) saved: Option<Saved>,
    /// When to try saving again, and whether the failure was reported.
    pub(super) save_at: Option<Instant>,
    pub(super) save_told: bool,
    pub(super) ways: Ways,
    pub(super) state: ElasticState,
    /// What the relay asks of each worker's link, and its last reason.
    pub(super) relay: BTreeMap<u16, Degradation>,
    pub(super) relay_why: String,
    pub(super) cpu: Option<CpuStatus>,
    pub(super) shed: Option<ShedStatus>,
    /// What shortages have lowered.
    pub(super) lowered: Lowered,
    /// Since when all flows are captured again, once it was reported that they are not.
    pub(super) sampling: Sampling,
    pub(super) sensed: Sensed,
    pub(super) observed: Observed,
    /// RDMA packets sent and resent when rates were last measured.
    pub(super) rdma: (u64, u64),
    /// And when that was.
    pub(super) rdma_since: Instant,
    /// The origin of the times of readings.
    pub(super) started: Instant,
    /// Packets dropped by the kernel, and when it was last seen to drop some.
    pub(super) dropped: (u64, Option<Instant>),
    pub(super) rate: Rate,
    /// Since when nothing more was dropped on a full disk, once it was reported that packets are.
    pub(super) full_disk: Option<Instant>,
    pub(super) events: Events,
}

/// Whether flows are sampled to keep the CPU budget, as last reported.
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
    pub(super) seen: Counters,
    pub(super) logged_bytes: u64,
    pub(super) packets_per_second: f64,
    pub(super) bytes_per_second: f64,
    pub(super) logged_bytes_per_second: f64,
}

impl Inner {
    /// The active modes.
    pub(super) fn active(&self) -> Vec<String> {
        self.asked.active(self.state.degradation())
    }

    /// Finds out whether the model still fits the traffic, and says so if that has changed; whether
    /// workers have to do something else.
    pub(super) fn judge_drift(&mut self, model: &Model) -> bool {
        let before = self.asked.is_drifted;
        let window = self
            .observed
            .drift
            .as_ref()
            .filter(|window| window.is_whole);
        let Some(DriftWindow { report, .. }) = window else {
            return false;
        };
        let Some(is_drifted) = report.still_drifted(before) else {
            return false;
        };
        if is_drifted == before {
            return false;
        }
        let mut why = format!("drift index {:.2} (limit {DRIFTED})", report.scores);
        if let Some((name, index)) = report.features.first().filter(|_| is_drifted) {
            why += &format!("; feature that differs most from training: {name} {index:.1}");
        }
        self.asked.is_drifted = is_drifted;
        let mut what = String::from(match is_drifted {
            true => "the model no longer fits the traffic",
            false => "the model fits the traffic again",
        });
        let acts = self.asked.on_drift != OnDrift::Warn;
        if acts {
            what += &format!(": {}", self.described(model));
        }
        self.events.alert(what, &why);
        acts
    }

    /// Reports when packets begin to be dropped on a full disk, and when they no longer are.
    fn note_full_disk(&mut self, now: Instant, ledger: &Ledger) {
        let of = |ledger: &Ledger| ledger.dropped[DropReason::DiskFull as usize];
        let (dropped, before) = (of(ledger), of(&self.observed.counts.ledger));
        if dropped.packets > before.packets {
            if self.full_disk.replace(now).is_none() {
                let (what, why) = match self.asked.ends_when_full {
                    true => ("the recording ends", "--when-full stop"),
                    false => (
                        "packets are dropped until there is free space again",
                        "--when-full drop",
                    ),
                };
                self.events.alert(format!("the disk is full: {what}"), why);
            }
        } else if let Some(since) = self.full_disk
            && now.saturating_duration_since(since) >= FULL_DISK_LASTS
        {
            self.full_disk = None;
            let what = format!(
                "the disk has free space again: {} packets were dropped so far",
                dropped.packets
            );
            self.events.alert(what, "");
        }
    }

    /// The budget of detail and what became of it, if there is or was one.
    pub(super) fn detail_status(&self) -> Option<DetailStatus> {
        let at_work = self.asked.detail_left(self.state.degradation());
        if at_work.is_none() && self.observed.counts.detail.is_none() {
            return None;
        }
        Some(DetailStatus {
            asked: DetailBudget::text(self.asked.detail),
            budget: DetailBudget::text(at_work),
            payload: self
                .observed
                .counts
                .detail
                .as_ref()
                .map_or_else(Vec::new, detailed),
        })
    }

    /// The active modes and the budget of detail, if it decides anything in them, for events.
    pub(super) fn described(&self, model: &Model) -> String {
        self.described_at(model, self.state.degradation())
    }

    /// The same for another degradation: for none, what was asked for.
    pub(super) fn described_at(&self, model: &Model, degradation: Degradation) -> String {
        let modes = format!("mode {}", self.asked.active(degradation).join("+"));
        let plan = self.asked.plan(model, &self.policies.set, degradation).ok();
        match plan.as_ref().and_then(Plan::detail) {
            None => modes,
            Some(detail) => format!("{modes}, detail {}", detail.budget),
        }
    }

    /// The current instructions to workers.
    pub(super) fn plan(&self, model: &Model) -> Result<Plan, ModeError> {
        let degradation = self.state.degradation();
        self.asked.plan(model, &self.policies.set, degradation)
    }

    /// What the relay asks of any link.
    pub(super) fn asked_by_relay(&self) -> Degradation {
        let asked = self.relay.values().copied();
        asked.fold(Degradation::default(), Degradation::and)
    }

    /// Stores a reading; one older than the current reading is ignored.
    pub(super) fn read(&mut self, resource: Resource, value: Option<f64>, taken: Instant) {
        let since = taken.saturating_duration_since(self.started);
        let taken_ns = exact::<u64>(since.as_nanos());
        let slot = &mut self.sensed[resource as usize];
        match value {
            None => *slot = None,
            Some(_) if slot.is_some_and(|known| taken_ns <= known.taken_ns) => {}
            Some(value) => *slot = Some(Reading { value, taken_ns }),
        }
    }

    /// The latest reading.
    pub(super) fn value(&self, resource: Resource) -> Option<f64> {
        self.sensed[resource as usize].map(|reading| reading.value)
    }

    /// Stores how many packets the kernel has dropped in total.
    pub(super) fn read_drops(&mut self, dropped: u64, taken: Instant) {
        if dropped > self.dropped.0 {
            self.dropped = (dropped, Some(taken));
        }
        let since = self.dropped.1;
        let drops = since.is_some_and(|at| taken.saturating_duration_since(at) < DROPS_LAST);
        let value = f64::from(u8::from(drops));
        self.read(Resource::Ring, Some(value), taken);
    }

    /// Stores how many RDMA messages were sent in total, each time they were, and how many of them were lost:
    /// sent again, skipped, or missed by a relay that does not acknowledge them. The reading is the share of
    /// those sent since the last one. Of messages that were sent before, the loss may only show now: it is
    /// at most all.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn read_rdma(&mut self, (sent, again): (u64, u64), taken: Instant) {
        let (sent_before, again_before) = self.rdma;
        let since = (
            sent.checked_sub(sent_before),
            again.checked_sub(again_before),
        );
        let (Some(sent_now), Some(lost_now)) = since else {
            // Two threads report, one of them more often: this report is older than the last.
            return;
        };
        let elapsed = taken.saturating_duration_since(self.rdma_since);
        let is_due = elapsed >= RDMA_INTERVAL && lost_now > 0;
        // What was lost is compared with what was sent since: without that, there is nothing to say yet.
        if (is_due || elapsed >= RATE_INTERVAL) && (sent_now > 0 || lost_now == 0) {
            let share = lost_now as f64 / sent_now.max(1) as f64;
            self.read(Resource::Rdma, Some(share.min(1.0)), taken);
            (self.rdma, self.rdma_since) = ((sent, again), taken);
        }
    }

    /// Stores the readings of fast sensors.
    pub(super) fn sense(&mut self, taken: Instant, fast: &Fast) {
        for (resource, share) in [
            (Resource::Blocks, fast.blocks),
            (Resource::RingFill, fast.ring_fill),
        ] {
            if let Some((share, taken)) = share {
                self.read(resource, Some(share), taken);
            }
        }
        if let Some(dropped) = fast.dropped {
            self.read_drops(dropped, taken);
        }
        if let Some(rdma) = fast.rdma {
            self.read_rdma(rdma, taken);
        }
    }

    #[allow(clippy::cast_precision_loss)]
    pub(super) fn observe(&mut self, now: Instant, observed: Observed) {
        self.note_full_disk(now, &observed.counts.ledger);
        let of_workers = observed.workers_taken.unwrap_or(now);
        let of_load = observed.load_taken.unwrap_or(now);
        let interfaces = &observed.network.interfaces;
        let dropped: u64 = interfaces.iter().map(|one| one.dropped).sum();
        let in_flight = observed.counts.ledger.in_flight.bytes as f64;
        let blocks = observed.blocks_bytes as f64;
        let blocks = (blocks > 0.0).then(|| in_flight / blocks);
        self.read(Resource::DiskSpace, observed.disk_used, now);
        self.read(Resource::Blocks, blocks, of_workers);
        if !interfaces.is_empty() {
            self.read_drops(dropped, of_workers);
        }
        self.read(Resource::Cpu, observed.cpu_used, of_load);
        self.read(Resource::RingFill, observed.ring_fill, of_workers);
        self.read(Resource::DiskRate, observed.disk_rate, of_load);
        if let Some(rdma) = observed.rdma {
            self.read_rdma(rdma, now);
        }
        let elapsed = now.saturating_duration_since(self.rate.since);
        if elapsed >= RATE_INTERVAL {
            let (seconds, ledger) = (elapsed.as_secs_f64(), &observed.counts.ledger);
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
            let limit = self.asked.elastic.as_ref().and_then(|o| o.bits_per_second);
            let used = limit.map(|limit| self.rate.logged_bytes_per_second * 8.0 / limit);
            self.read(Resource::Bandwidth, used, now);
        }
        self.observed = observed;
    }
}
