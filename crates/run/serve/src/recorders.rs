//! Recordings, asked for their status once a second: what they do now, and did in the last quarter of
//! an hour.

mod losses;
mod tick;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use strata_control::client::{Client, ClientError};
use strata_control::{Event, ShadowStatus, Status};
use strata_log_views::answers::parts::{Acknowledged, Covered, RecorderEvent};
use strata_log_views::answers::refused::Refused;
use strata_log_views::answers::times::seconds;
use strata_log_views::logs::Logs;
use strata_log_views::search::series::{ClassSeries, Series};
use strata_policy::Mode;
use strata_wire::unix_ns;
use tokio::sync::broadcast;
use tokio::time::{MissedTickBehavior, interval, timeout};
use utoipa::ToSchema;

use self::losses::Losses;
use self::tick::{ClassRate, RecorderTick};

/// How often recordings are queried.
const PERIOD: Duration = Duration::from_secs(1);
/// Points of the history.
const POINTS_MAX: usize = 900;
/// Ticks that wait for a browser; one that is slower misses some.
const TICKS: usize = 4;
/// Acknowledged events that are remembered.
const SEEN_MAX: usize = 1000;
/// The resource that is a disk's space.
const DISK_SPACE: &str = "disk_space";
/// How long the free space is looked at to tell when the disk is full.
const DISK_SPAN: Duration = Duration::from_secs(300);

/// A recording.
pub(crate) struct Recorder {
    pub(crate) id: String,
    pub(crate) socket: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    status: Option<(Instant, Status)>,
    error: Option<String>,
    events: Vec<Event>,
    /// As of the last answer.
    tick: Option<RecorderTick>,
    history: VecDeque<Point>,
    /// Share of the disk that was used, for when it will be full.
    disk: VecDeque<(Instant, f64)>,
    /// Events that somebody has seen: who, when.
    seen: HashMap<String, (String, String)>,
    /// When losses were seen to grow, by place and counter.
    losses: Losses,
}

/// What happened in a second.
#[derive(Clone, Debug)]
struct Point {
    at: f64,
    classes: Vec<ClassRate>,
    lost: f64,
}

/// The current state of recordings.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "at": 1_769_864_700.5,
    "recorders": [{
        "id": "0",
        "up": true,
        "error": null,
        "mode": "default",
        "asked_mode": "default",
        "mode_seconds_left": null,
        "packets_per_second": 120_934.1,
        "bytes_per_second": 91_234_567.0,
        "kept_bytes_per_second": 8_123_456.0,
        "classes": [
            {
                "class": "benign", "granularity": "header", "packets_per_second": 118_000.0,
                "captured_bytes_per_second": 90_000_000.0, "kept_bytes_per_second": 7_000_000.0,
            },
            {
                "class": "botnet", "granularity": "full", "packets_per_second": 934.1,
                "captured_bytes_per_second": 1_234_567.0, "kept_bytes_per_second": 1_123_456.0,
            },
        ],
        "captured_packets": 4000,
        "lost": [{
            "place": "kernel", "counter": "eth0 ring", "packets": 12, "packets_per_second": 0.0,
            "first": "2026-01-31T13:04:00.000000000Z", "last": "2026-01-31T13:04:09.000000000Z",
            "advice": "the ring was full; it has 512 KiB: try -B 2048",
        }],
        "not_kept": [{
            "how": "sampled_out", "packets": 1000, "bytes": 760_000, "packets_per_second": 100.0,
            "uncompared_packets": 0,
        }],
        "resources": [{
            "name": "disk_space", "used": 0.71, "short_at": 0.95, "degradation_steps": 0, "seconds_to_full": 86400,
        }],
        "cpu": null,
        "shed": null,
        "drift_fits": true,
        "events": [{
            "id": "17", "at": "2026-01-31T13:05:00.120000000Z", "who": "uid 0", "what": "mode log-all for 600 s",
            "why": "incident 7", "alert": false, "acknowledged": null,
        }],
    }],
}))]
pub(crate) struct Tick {
    /// Seconds since 1970.
    at: f64,
    recorders: Vec<RecorderTick>,
}

/// A recorder, with its full status where it answers.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Recorder, example = json!({
    "id": "0",
    "socket": "/run/strata/record-4711/control.sock",
    "log": "0",
    "up": true,
    "error": null,
    "modes": ["default", "log-all", "log-partial", "log-sampled", "log-minimum"],
    "status": {
        "version": "0.9.0",
        "pid": 4711,
        "log": "/var/log/strata/edge",
        "uptime_seconds": 3605.1,
        "mode": "default",
        "asked_mode": "default",
        "mode_seconds_left": null,
        "default": "classify",
        "policies": 1,
        "packets_per_second": 120_934.1,
        "bytes_per_second": 91_234_567.0,
        "logged_bytes_per_second": 8_123_456.0,
        "packets": [
            {"result": "logged", "reason": "", "packets": 1000, "bytes": 120_000},
            {"result": "dropped", "reason": "no_block", "packets": 0, "bytes": 0},
        ],
        "classes": [
            {"class": "benign", "granularity": "header", "packets": 900, "captured_bytes": 700_000, "kept_bytes": 54000},
        ],
        "of_logged": [],
        "mirrored": [],
        "interfaces": [{"name": "eth0", "received": 1000, "dropped": 12, "capture": "AF_PACKET", "exclusive": null}],
        "lost": [{"place": "kernel", "counter": "tp_drops", "packets": 12, "advice": "larger ring: --buffer-size"}],
        "flow_table": null,
        "receive": [],
        "resources": [{"name": "disk_space", "used": 0.71, "short_at": 0.95, "degradation_steps": 0}],
        "cpu": null,
        "changes": {"count": 1, "seconds_sum": 0.001, "median_ms": 1.0, "p99_ms": 1.0},
        "ring_wait_ms": 0.4,
        "detail": {
            "asked": "10%", "budget": "10%",
            "payload": [
                {"result": "offered", "reason": "", "packets": 500, "bytes": 500_000},
                {"result": "given", "reason": "", "packets": 50, "bytes": 50000},
            ],
        },
        "shadow": null,
        "drift": {
            "samples": 2000, "score_index": 0.04, "bound": 0.25, "fits": true,
            "features": [{"name": "ip.length", "index": 0.02}],
        },
        "vectors": {"attached": 0, "datagrams_sent": 0, "datagrams_lost": 0, "installed": 0},
        "reports": null,
        "exports": [],
    },
}))]
pub(crate) struct RecorderSummary {
    id: String,
    socket: String,
    #[schema(required)]
    log: Option<String>,
    up: bool,
    #[schema(required)]
    error: Option<String>,
    /// Modes that can be requested.
    modes: Vec<&'static str>,
    /// As `/api/v1/status` of the recorder (its openapi.json): packets, classes, of_logged, interfaces, lost,
    /// flow_table, receive, resources, cpu, changes, ring_wait_ms, detail, shadow, drift, vectors, exports.
    #[schema(required, value_type = Option<HashMap<String, serde_json::Value>>)]
    status: Option<Status>,
}

impl Recorder {
    pub(crate) fn new(id: usize, socket: &Path) -> Self {
        Self {
            id: id.to_string(),
            socket: socket.to_owned(),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn client(&self) -> Result<Client, Refused> {
        Ok(Client::new(Some(&self.socket))?)
    }

    /// Asks it; may take as long as it takes to answer.
    fn ask(&self) {
        let answer = Client::new(Some(&self.socket)).and_then(|client| {
            let status = client.status()?;
            Ok((status, client.events()?))
        });
        self.take(answer);
    }

    fn take(&self, answer: Result<(Status, Vec<Event>), ClientError>) {
        let mut state = self.lock();
        match answer {
            Ok((status, events)) => {
                let now = Instant::now();
                let before = state.status.take();
                // Another process starts counting anew.
                let before = before.filter(|(_, before)| before.pid == status.pid);
                let new = news(&state.events, &events);
                let is_first = state.events.is_empty() && state.tick.is_none();
                state.note_disk(now, &status);
                let told = if is_first {
                    Vec::new()
                } else {
                    state.events_told(&new)
                };
                let mut tick = state.tick(&self.id, (now, &status), before.as_ref(), told);
                state.losses.note(&mut tick.lost, before.is_some());
                let lost = tick.lost.iter().map(|lost| lost.packets_per_second).sum();
                if before.is_some() {
                    state.history.push_back(Point {
                        at: seconds(unix_ns()),
                        classes: tick.classes.clone(),
                        lost,
                    });
                }
                while state.history.len() > POINTS_MAX {
                    state.history.pop_front();
                }
                state.tick = Some(tick);
                state.events = events;
                state.status = Some((now, status));
                state.error = None;
            }
            Err(error) => {
                state.error = Some(error.to_string());
                if let Some(tick) = &mut state.tick {
                    (tick.packets_per_second, tick.bytes_per_second) = (0.0, 0.0);
                    tick.kept_bytes_per_second = 0.0;
                    tick.classes.clear();
                    tick.events.clear();
                    tick.lost
                        .iter_mut()
                        .for_each(|lost| lost.packets_per_second = 0.0);
                }
                state.status = None;
            }
        }
    }

    fn now(&self) -> RecorderTick {
        let state = self.lock();
        let tick = state.tick.clone();
        let mut tick = tick.unwrap_or_else(|| RecorderTick::unknown(&self.id));
        tick.up = state.status.is_some();
        tick.error = match tick.up {
            true => None,
            false => Some(
                state
                    .error
                    .clone()
                    .unwrap_or_else(|| String::from("not asked yet")),
            ),
        };
        tick
    }

    pub(crate) fn summary(&self, logs: &Logs) -> RecorderSummary {
        let state = self.lock();
        let status = state.status.as_ref().map(|(_, status)| status);
        let log = status.and_then(|status| logs.id_of(&status.log));
        RecorderSummary {
            id: self.id.clone(),
            socket: self.socket.display().to_string(),
            log,
            up: status.is_some(),
            error: state.error.clone(),
            modes: Mode::BUILT_IN.iter().map(|(name, ..)| *name).collect(),
            status: status.cloned(),
        }
    }

    /// The directory of its log, as it says.
    pub(crate) fn log(&self) -> Option<String> {
        let state = self.lock();
        state.status.as_ref().map(|(_, status)| status.log.clone())
    }

    /// What the shadow model of its recording would have kept, if it records to this log.
    pub(crate) fn shadow(&self, log: &str, logs: &Logs) -> Option<ShadowStatus> {
        let state = self.lock();
        let (_, status) = state.status.as_ref()?;
        let is_its = logs.id_of(&status.log).as_deref() == Some(log);
        status.shadow.clone().filter(|_| is_its)
    }

    /// Newest first.
    pub(crate) fn events(&self) -> Vec<RecorderEvent> {
        let state = self.lock();
        let mut events = state.events_told(&state.events);
        events.reverse();
        events
    }

    /// Marks an event as seen; false if there is no such event.
    pub(crate) fn acknowledge(&self, id: &str, who: &str, at: &str) -> bool {
        let mut state = self.lock();
        if !state.events.iter().any(|event| event_id(event) == id) {
            return false;
        }
        if state.seen.len() >= SEEN_MAX {
            let there: Vec<String> = state.events.iter().map(event_id).collect();
            state.seen.retain(|id, _| there.contains(id));
        }
        state
            .seen
            .insert(id.to_owned(), (who.to_owned(), at.to_owned()));
        true
    }

    /// The last quarter of an hour.
    pub(crate) fn history(&self) -> Series {
        let state = self.lock();
        let mut names: Vec<(&str, &str)> = Vec::new();
        for rate in state.history.iter().flat_map(|point| &point.classes) {
            let name = (rate.class.as_str(), rate.granularity.as_str());
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let series = names.into_iter().map(|(class, granularity)| {
            let of = |value: fn(&ClassRate) -> f64| -> Vec<f64> {
                let points = state.history.iter().map(|point| {
                    let mut rates = point.classes.iter();
                    let rate =
                        rates.find(|rate| rate.class == class && rate.granularity == granularity);
                    rate.map_or(0.0, value)
                });
                points.collect()
            };
            ClassSeries {
                class: class.to_owned(),
                granularity: granularity.to_owned(),
                packets: of(|rate| rate.packets_per_second),
                captured_bytes: of(|rate| rate.captured_bytes_per_second),
                kept_bytes: of(|rate| rate.kept_bytes_per_second),
            }
        });
        Series {
            t: state.history.iter().map(|point| point.at).collect(),
            step: PERIOD.as_secs_f64(),
            series: series.collect(),
            lost: Some(state.history.iter().map(|point| point.lost).collect()),
            events: state.events_told(&state.events),
            covered: Covered {
                complete: true,
                why: None,
                remark: None,
                packets: 0,
                from: None,
                to: None,
                damaged: 0,
                encrypted_packets: 0,
                seconds: 0.0,
            },
        }
    }
}

/// Events that were not there before. Old ones leave the list, so the last known one is looked for.
fn news(before: &[Event], now: &[Event]) -> Vec<Event> {
    let Some(last) = before.last() else {
        return now.to_vec();
    };
    let id = event_id(last);
    let known = now.iter().rposition(|event| event_id(event) == id);
    let after = known.map_or(now, |known| &now[known..][1..]);
    after.to_vec()
}

/// An event in a URL: its time and what it says.
fn event_id(event: &Event) -> String {
    let text = format!("{}\0{}\0{}", event.at, event.who, event.what);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

impl State {
    fn events_told(&self, events: &[Event]) -> Vec<RecorderEvent> {
        let each = events.iter().map(|event| {
            let id = event_id(event);
            let seen = self.seen.get(&id);
            let acknowledged = seen.map(|(who, at)| Acknowledged {
                who: who.clone(),
                at: at.clone(),
            });
            RecorderEvent {
                id,
                at: event.at.clone(),
                who: event.who.clone(),
                what: event.what.clone(),
                why: event.why.clone(),
                alert: event.is_alert,
                acknowledged,
            }
        });
        each.collect()
    }

    fn note_disk(&mut self, now: Instant, status: &Status) {
        let disk = status.resources.iter().find(|one| one.name == DISK_SPACE);
        if let Some(used) = disk.and_then(|disk| disk.used) {
            self.disk.push_back((now, used));
        }
        while self
            .disk
            .front()
            .is_some_and(|(at, _)| now.duration_since(*at) > DISK_SPAN)
        {
            self.disk.pop_front();
        }
    }

    /// When the disk is full, if it goes on filling as in the last minutes.
    fn seconds_to_full(&self) -> Option<f64> {
        let ((first, before), (last, now)) = (self.disk.front()?, self.disk.back()?);
        let passed = last.duration_since(*first).as_secs_f64();
        let rate = (now - before) / passed;
        (passed >= 10.0 && rate > 0.0).then(|| (1.0 - now) / rate)
    }
}

/// Asks all recordings once a second, for ever. Each waits for its own answer alone.
pub(crate) fn watch(recorders: &[Arc<Recorder>], told: Ticks) {
    for recorder in recorders {
        let recorder = Arc::clone(recorder);
        tokio::spawn(async move {
            let mut ticks = interval(PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let asked = Arc::clone(&recorder);
                let _ = tokio::task::spawn_blocking(move || asked.ask()).await;
            }
        });
    }
    let recorders = recorders.to_vec();
    tokio::spawn(async move {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if told.receiver_count() > 0 {
                let tick = Tick {
                    at: seconds(unix_ns()),
                    recorders: recorders.iter().map(|one| one.now()).collect(),
                };
                let tick = serde_json::to_string(&tick).expect("a tick is JSON");
                let _ = told.send(Arc::from(tick));
            }
        }
    });
}

/// Ticks for those who listen.
pub(crate) type Ticks = broadcast::Sender<Arc<str>>;

pub(crate) fn ticks() -> Ticks {
    broadcast::channel(TICKS).0
}

/// How long a listener that reads nothing is kept.
const SILENT: Duration = Duration::from_secs(30);

/// Sends ticks to a listener, until it goes or its login ends.
pub(crate) async fn feed(
    mut ticks: broadcast::Receiver<Arc<str>>,
    pieces: tokio::sync::mpsc::Sender<std::io::Result<hyper::body::Bytes>>,
    (may_listen, connection): (impl Fn() -> bool, Option<strata_control::api::Connection>),
) {
    let send = |text: String| {
        let sent = pieces.send(Ok(text.into()));
        async move { matches!(timeout(SILENT, sent).await, Ok(Ok(()))) }
    };
    let mut goes_on = send(String::from("retry: 2000\n\n")).await;
    while goes_on {
        let tick = ticks.recv().await;
        // Logins end meanwhile, also by logout.
        if !may_listen() {
            send(String::from("event: login\ndata: {}\n\n")).await;
            return;
        }
        goes_on = match tick {
            Ok(tick) => send(format!("event: tick\ndata: {tick}\n\n")).await,
            Err(broadcast::error::RecvError::Lagged(_)) => true,
            Err(broadcast::error::RecvError::Closed) => return,
        };
    }
    // It may be gone, or read nothing.
    if let Some(connection) = connection {
        connection.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(n: usize) -> Event {
        Event {
            at: format!("2026-01-31T13:00:{n:02}Z"),
            who: String::from("strata"),
            what: format!("event {n}"),
            why: String::new(),
            is_alert: true,
        }
    }

    #[tokio::test]
    async fn a_listener_who_logs_out_hears_no_more() {
        let ticks = ticks();
        let (pieces, mut heard) = tokio::sync::mpsc::channel(8);
        let is_in = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let asked = Arc::clone(&is_in);
        let may_listen = move || asked.load(std::sync::atomic::Ordering::Relaxed);
        let feeding = tokio::spawn(feed(ticks.subscribe(), pieces, (may_listen, None)));
        let mut next = async || {
            let piece: Option<std::io::Result<hyper::body::Bytes>> = heard.recv().await;
            piece.map(|piece| String::from_utf8(piece.unwrap().to_vec()).unwrap())
        };
        assert!(next().await.unwrap().starts_with("retry:"));
        ticks.send(Arc::from("1")).unwrap();
        assert!(next().await.unwrap().starts_with("event: tick\ndata: 1"));
        is_in.store(false, std::sync::atomic::Ordering::Relaxed);
        ticks.send(Arc::from("2")).unwrap();
        assert!(next().await.unwrap().starts_with("event: login"));
        assert_eq!(next().await, None);
        feeding.await.unwrap();
    }

    #[test]
    fn events_are_told_once_also_when_old_ones_have_left_the_list() {
        let all: Vec<Event> = (0..20).map(event).collect();
        assert_eq!(news(&[], &all[..3]).len(), 3);
        assert_eq!(news(&all[..3], &all[..3]).len(), 0);
        let new = news(&all[..3], &all[2..6]);
        assert_eq!(
            new.iter().map(event_id).collect::<Vec<_>>(),
            all[3..6].iter().map(event_id).collect::<Vec<_>>()
        );
        // All known ones have left: whatever is there is new.
        assert_eq!(news(&all[..3], &all[10..12]).len(), 2);
    }
}
