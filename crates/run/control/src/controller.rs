//! What users ask of a running recording, and what it does by itself: modes, policies, events.

pub mod alerts;

mod board;
mod events;
mod exports;
mod inner;
mod lowered;
mod models;
mod observed;
mod policies;
mod settings;
mod shortage;
mod shown;
mod timed;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strata_classify::Model;
use strata_policy::{BudgetError, DetailBudget, ModeError, Steering};
use strata_rules::PolicyError;
use strata_wire::Counters;

pub use board::CollectorBoard;
pub use events::Event;
use events::Events;
pub use exports::ExportTimes;
use inner::{Asked, Inner, Rate, Sampling, Ways};
use lowered::Lowered;
pub use observed::{DriftWindow, Fast, NetworkObserved, Observed};
pub use policies::MATCH_BYTES_MAX;
pub use settings::Settings;
use timed::{TIMED_MAX, Timed};

use crate::elastic::{Degradation, ElasticState, Resource, Sensed};
use crate::queries::vectors::Subscribers;
use crate::queries::{Queries, QueryRefused, QueryStatus};
use crate::request::QueryRequest;
use crate::saved::Saved;
use crate::status::{
    CompactionStatus, CpuStatus, EveStatus, ExportStatus, FlowsStatus, ReportStatus, ShedStatus,
};

/// How long all flows must be captured before that is reported: the share changes often.
const ALL_CAPTURED: Duration = Duration::from_secs(10);

/// Longest time for a timed mode: 365 days.
pub const MODE_PERIOD_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Maximum bytes of the reason in a request.
pub const WHY_BYTES_MAX: usize = 1 << 10;
/// Maximum number of modes active together, and maximum bytes of their names.
const MODES_MAX: usize = 16;
const MODES_BYTES_MAX: usize = 1 << 10;

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A mode is unusable.
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// A policy is unusable.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A budget of detail is unusable.
    #[error("detail: {0}")]
    Detail(#[from] BudgetError),
    /// There is no policy with that number.
    #[error("no policy {0}: `strata policy list` lists the policies")]
    NoSuchPolicy(u32),
    /// The time for a mode is zero or too long.
    #[error("seconds must be above 0 and at most 31536000 (365 days), not {0}")]
    Period(f64),
    /// A text is too long.
    #[error("{field}: {bytes} bytes; at most {most} are allowed")]
    TooLong {
        /// The field of the request.
        field: &'static str,
        /// Its bytes.
        bytes: usize,
        /// The most allowed.
        most: usize,
    },
    /// Too many modes are named.
    #[error("mode: {0} modes at once; at most {MODES_MAX} are allowed")]
    TooManyModes(usize),
    /// Too many modes for a limited time are within one another.
    #[error(
        "{TIMED_MAX} temporary modes are active, which is the maximum: set a mode without a time"
    )]
    TooManyTimed,
    /// No mode is named.
    #[error("no mode given")]
    NoMode,
    /// New files are started by the relay.
    #[error("the log is at a relay, which rotates its files itself (strata relay -C)")]
    NoFiles,
    /// There is nothing to promote.
    #[error("no shadow model to promote: start with `strata record --shadow FILE`")]
    NoShadow,
    /// Who reads the log could not tell which model has decided.
    #[error(
        "the log is at a relay, which has no copy of the shadow model: restart the recording with that model as -m"
    )]
    ShadowNotStored,
    /// There is no interface for the copies.
    #[error(
        "a policy mirrors packets, but there is no interface for copies: start with `strata \
         record --mirror-to INTERFACE`"
    )]
    NoMirror,
    /// A policy exports to where it may not.
    #[error("{0}")]
    NoDestination(String),
    /// A time from or until which packets are exported came too soon.
    #[error(
        "{field}: {time} ns since 1970 is in the past, or less than 0.1 s ahead: give a later \
    time"
    )]
    Past {
        /// The field of the request.
        field: &'static str,
        /// The time.
        time: u64,
    },
    /// There is no log to keep packets in.
    #[error(
        "{0}: this recording has no log and only exports: start it with -o DIR to keep packets"
    )]
    NoLog(String),
}

/// Controls one recording. All changes go through it, one after another.
#[derive(Debug)]
pub struct Controller {
    model: Arc<Model>,
    /// The name of the shadow model, if there is one.
    shadow: Option<String>,
    log: String,
    steering: Arc<Steering>,
    started: Instant,
    inner: Arc<Mutex<Inner>>,
    /// Whether policies are being compiled anew.
    merging: Arc<AtomicBool>,
    /// Whether new files were requested, and whether that is possible.
    rotate: AtomicBool,
    can_rotate: bool,
    subscribers: Arc<Subscribers>,
    queries: Arc<Queries>,
    /// As the reporter published it last.
    reports: Mutex<Option<ReportStatus>>,
    /// Flows for a collector of flows.
    flows: Mutex<Option<FlowsStatus>>,
    /// As the exporter published it last.
    exports: Mutex<Vec<ExportStatus>>,
    /// As found last.
    eve: Mutex<Option<EveStatus>>,
    compaction: Mutex<Option<CompactionStatus>>,
    /// The collector whose packets are recorded.
    collector: Option<Arc<CollectorBoard>>,
    export_times: Arc<ExportTimes>,
}

impl Controller {
    /// A controller of a recording with this model; policies added to it are not saved.
    ///
    /// # Errors
    ///
    /// If modes or policies are unusable.
    pub fn new(model: Model, settings: Settings) -> Result<Self, ControlError> {
        Self::with_saved(model, settings, None)
    }

    /// A controller that continues with the saved policies, and saves those that are added.
    ///
    /// # Errors
    ///
    /// If modes or policies of the configuration are unusable.
    pub fn with_saved(
        model: Model,
        settings: Settings,
        saved: Option<Saved>,
    ) -> Result<Self, ControlError> {
        let (log, can_rotate) = (settings.log.clone(), settings.can_rotate);
        let ways = Ways {
            can_mirror: settings.can_mirror,
            export: settings.export.clone(),
            only_exports: settings.only_exports,
        };
        let times = settings.export_times();
        let (mut asked, configured) = settings.into_asked();
        asked.check(&model)?;
        asked.settle(&model);
        ways.check(asked.default)?;
        configured
            .iter()
            .try_for_each(|policy| ways.check(policy.action))?;
        let first = policies::first(configured, saved.as_ref(), &ways)?;
        let now = Instant::now();
        let mut inner = Inner {
            asked,
            policies: first.policies,
            retired: None,
            saved: None,
            save_at: None,
            save_told: false,
            ways,
            state: ElasticState::default(),
            relay: BTreeMap::new(),
            relay_why: String::new(),
            cpu: None,
            shed: None,
            lowered: Lowered::default(),
            sampling: Sampling::No,
            sensed: Sensed::default(),
            observed: Observed::default(),
            rdma: (0, 0),
            rdma_since: now,
            started: now,
            dropped: (0, None),
            rate: Rate {
                since: now,
                seen: Counters::default(),
                logged_bytes: 0,
                packets_per_second: 0.0,
                bytes_per_second: 0.0,
                logged_bytes_per_second: 0.0,
            },
            full_disk: None,
            events: Events::default(),
        };
        let steering = Steering::new(inner.plan(&model)?);
        inner.save_in(saved, first.configured, first.events);
        let subscribers = Arc::default();
        Ok(Self {
            model: Arc::new(model),
            shadow: None,
            log,
            steering,
            started: now,
            inner: Arc::new(Mutex::new(inner)),
            merging: Arc::default(),
            rotate: AtomicBool::new(false),
            can_rotate,
            queries: Queries::new(&subscribers),
            subscribers,
            reports: Mutex::default(),
            flows: Mutex::default(),
            exports: Mutex::default(),
            eve: Mutex::default(),
            compaction: Mutex::default(),
            collector: None,
            export_times: ExportTimes::new(times),
        })
    }

    /// Those who get vectors of what is recorded.
    #[must_use]
    pub fn subscribers(&self) -> &Arc<Subscribers> {
        &self.subscribers
    }

    /// The queries that are installed.
    #[must_use]
    pub fn queries(&self) -> &Arc<Queries> {
        &self.queries
    }

    /// Installs a query ([`Queries::install`]), and says so in the events.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub fn install_query(
        &self,
        request: &QueryRequest,
        who: &str,
    ) -> Result<QueryStatus, QueryRefused> {
        if request.report.is_some() && self.reports().is_none() {
            return Err(QueryRefused::NoCollector);
        }
        let installed = self.queries.install(request)?;
        let what = format!("query {} installed", installed.name);
        self.lock().events.note(who, what, &request.why);
        Ok(installed)
    }

    /// Removes a query ([`Queries::remove`]), and says so in the events.
    ///
    /// # Errors
    ///
    /// If there is no query of this name.
    pub fn remove_query(&self, name: &str, who: &str) -> Result<(), QueryRefused> {
        self.queries.remove(name)?;
        let what = format!("query {name} removed");
        self.lock().events.note(who, what, "");
        Ok(())
    }

    /// Where workers find their instructions.
    #[must_use]
    pub fn steering(&self) -> &Arc<Steering> {
        &self.steering
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adopts new settings with the current policies; or changes nothing.
    fn go_over(
        &self,
        inner: &mut Inner,
        mut next: Asked,
        requested: Instant,
        event: (&str, String, &str),
    ) -> Result<(), ControlError> {
        next.check(&self.model)?;
        next.settle(&self.model);
        let plan = next.plan(&self.model, &inner.policies.set, inner.state.degradation())?;
        // Nothing can be refused from here on.
        inner.asked = next;
        self.steering.publish(plan, requested);
        let (who, what, why) = event;
        inner.events.note(who, what, why);
        Ok(())
    }

    /// Publishes the current plan. The settings were checked when adopted, so this cannot fail; if
    /// it does all the same, it is reported, and workers continue as before.
    fn publish(&self, inner: &mut Inner, requested: Instant) {
        match inner.plan(&self.model) {
            Ok(plan) => self.steering.publish(plan, requested),
            Err(error) => {
                let what = format!("the mode cannot change: {error}");
                inner.events.alert(what, "");
            }
        }
    }

    /// Switches to other modes; for a limited time if `period` is given, then back to those in force
    /// now, for what is left of their own time. Without `period`, none return.
    ///
    /// # Errors
    ///
    /// If a mode is unusable: then nothing changes.
    pub fn set_modes(
        &self,
        modes: &[String],
        period: Option<Duration>,
        who: &str,
        why: &str,
    ) -> Result<(), ControlError> {
        let requested = Instant::now();
        bounded("why", why, WHY_BYTES_MAX)?;
        let bytes: usize = modes.iter().map(String::len).sum();
        if modes.len() > MODES_MAX {
            return Err(ControlError::TooManyModes(modes.len()));
        }
        if bytes > MODES_BYTES_MAX {
            let (field, most) = ("mode", MODES_BYTES_MAX);
            return Err(ControlError::TooLong { field, bytes, most });
        }
        let until = match period {
            None => None,
            Some(period) if period.is_zero() || period > MODE_PERIOD_MAX => {
                return Err(ControlError::Period(period.as_secs_f64()));
            }
            Some(period) => Some(requested + period),
        };
        if modes.is_empty() {
            return Err(ControlError::NoMode);
        }
        let mut inner = self.lock();
        if inner.ways.only_exports {
            return Err(ControlError::NoLog(format!("mode {}", modes.join("+"))));
        }
        let mut next = inner.asked.clone();
        let replaced = std::mem::replace(&mut next.modes, modes.to_vec());
        match until {
            Some(until) => next.timed.begin(modes, until, replaced)?,
            None => next.timed = Timed::default(),
        }
        let mut what = format!("mode {}", modes.join("+"));
        if let Some(period) = period {
            what += &format!(" for {} s", period.as_secs());
        }
        self.go_over(&mut inner, next, requested, (who, what, why))
    }

    /// Switches to another budget of detail, or to `none`.
    ///
    /// # Errors
    ///
    /// If the text is no budget: then nothing changes.
    pub fn set_detail(&self, text: &str, who: &str, why: &str) -> Result<(), ControlError> {
        let requested = Instant::now();
        bounded("why", why, WHY_BYTES_MAX)?;
        bounded("detail", text, WHY_BYTES_MAX)?;
        let budget = DetailBudget::parse(text)?;
        let mut inner = self.lock();
        let mut next = inner.asked.clone();
        next.detail = budget;
        let what = format!("detail {}", DetailBudget::text(budget));
        self.go_over(&mut inner, next, requested, (who, what, why))
    }

    /// Checks the recording: ends timed modes and answers shortages.
    pub fn tick(&self, now: Instant, observed: Observed) {
        let mut inner = self.lock();
        inner.observe(now, observed);
        inner.save_again(now);
        let (mut changed, mut requested) = (false, now);
        if let Some(returning) = inner.asked.timed.end(now) {
            let mut what = format!("mode {}", returning.join("+"));
            if let Some(until) = inner.asked.timed.until() {
                what += &format!(" for {} s more", until.duration_since(now).as_secs());
            }
            inner.asked.modes = returning;
            inner
                .events
                .note("timer", what, "the time of the previous mode is over");
            changed = true;
        }
        changed |= inner.judge_drift(&self.model);
        if changed {
            inner.asked.settle(&self.model);
        }
        let answered = self.answer(&mut inner, now);
        if let Some(taken) = answered {
            changed = true;
            requested = taken;
        }
        if changed {
            self.publish(&mut inner, requested);
        }
    }

    /// Answers shortages by the sensors that are read more often than `tick` is called.
    pub fn sense(&self, now: Instant, fast: &Fast) {
        let mut inner = self.lock();
        inner.sense(now, fast);
        if let Some(taken) = self.answer(&mut inner, now) {
            self.publish(&mut inner, taken);
        }
    }

    /// Accepts what the relay asks a worker's link to give up; nothing, once it asks for nothing
    /// any more or is gone. It is answered like shortages here.
    pub fn note_relay(&self, link: u16, asked: Degradation, why: &str) {
        let mut inner = self.lock();
        if asked == Degradation::default() {
            inner.relay.remove(&link);
        } else {
            inner.relay.insert(link, asked);
            why.clone_into(&mut inner.relay_why);
        }
    }

    /// How many bytes of the log to delete to free disk space, if any.
    #[must_use]
    pub fn bytes_to_remove(&self) -> Option<u64> {
        let inner = self.lock();
        let used = inner.value(Resource::DiskSpace)?;
        let options = inner.asked.elastic.as_ref()?;
        options.bytes_to_remove(used, inner.observed.disk_bytes)
    }

    /// Cores that the process may use; `None` for no limit.
    #[must_use]
    pub fn cpu_budget(&self) -> Option<f64> {
        self.lock().asked.cpu_budget
    }

    /// Stores what payload is given up.
    pub fn note_shed(&self, shed: ShedStatus) {
        self.lock().shed = Some(shed);
    }

    /// Stores the state of the CPU budget; `None` without one.
    pub fn note_cpu(&self, now: Instant, cpu: Option<CpuStatus>) {
        let mut inner = self.lock();
        let is_sampled = cpu.as_ref().is_some_and(|cpu| cpu.flow_share < 1.0);
        inner.sampling = match (inner.sampling, is_sampled) {
            (Sampling::No, true) => {
                let budget = cpu.as_ref().map_or(0.0, |cpu| cpu.budget) * 100.0;
                let why = format!("the CPU budget of {budget:.0} % is used up");
                inner.events.alert(String::from("flows are sampled"), &why);
                Sampling::Yes
            }
            (Sampling::Yes, false) => Sampling::Ending(now),
            (Sampling::Ending(_), true) => Sampling::Yes,
            (Sampling::Ending(since), false) if now.duration_since(since) >= ALL_CAPTURED => {
                let why = "the CPU budget allows it";
                inner
                    .events
                    .alert(String::from("all flows are captured"), why);
                Sampling::No
            }
            (same, _) => same,
        };
        inner.cpu = cpu;
    }

    /// Requests new files of the log.
    ///
    /// # Errors
    ///
    /// If the log is not on this machine.
    pub fn rotate(&self, who: &str) -> Result<(), ControlError> {
        if !self.can_rotate {
            return Err(ControlError::NoFiles);
        }
        self.rotate.store(true, Ordering::Relaxed);
        let what = String::from("new files begin");
        self.lock().events.note(who, what, "");
        Ok(())
    }

    /// Whether new files were requested since the last call.
    #[must_use]
    pub fn take_rotate(&self) -> bool {
        self.rotate.swap(false, Ordering::Relaxed)
    }

    /// Records an event that was not requested.
    pub fn report(&self, what: String) {
        self.lock().events.alert(what, "");
    }

    /// New events since the last call.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        self.lock().events.take_events()
    }

    /// The latest events, oldest first, with those of its collector.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let mut events = self.lock().events.latest();
        if let Some(collector) = &self.collector {
            events.extend(collector.events());
            events.sort_by_key(|event| event.at.parse::<jiff::Timestamp>().ok());
        }
        events
    }
}

/// Refuses a text in a request that is too long.
fn bounded(field: &'static str, text: &str, most: usize) -> Result<(), ControlError> {
    let bytes = text.len();
    if bytes > most {
        return Err(ControlError::TooLong { field, bytes, most });
    }
    Ok(())
}
