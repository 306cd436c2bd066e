//! Recordings, asked for their status once a second: what they do now, and did in the last quarter of
//! an hour.

mod losses;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use strata_control::client::{Client, ClientError};
use strata_control::{Event, ShadowStatus, ShedStatus, Status};
use strata_policy::Mode;
use strata_wire::unix_ns;
use tokio::sync::broadcast;
use tokio::time::{MissedTickBehavior, interval, timeout};

use self::losses::{Losses, Lost, NotKept, dropped_advice, not_kept};
use crate::logs::Logs;
use crate::refused::Refused;
use crate::times::seconds;

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

/// A recording now (`RecorderTick`).
#[derive(Clone, Debug, Serialize)]
struct RecorderTick {
    id: String,
    up: bool,
    error: Option<String>,
    mode: String,
    asked_mode: String,
    mode_seconds_left: Option<f64>,
    packets_per_second: f64,
    bytes_per_second: f64,
    kept_bytes_per_second: f64,
    classes: Vec<ClassRate>,
    captured_packets: u64,
    lost: Vec<Lost>,
    not_kept: Vec<NotKept>,
    resources: Vec<Value>,
    cpu: Option<Value>,
    shed: Option<ShedStatus>,
    drift_fits: Option<bool>,
    events: Vec<Value>,
}

#[derive(Clone, Debug, Serialize)]
struct ClassRate {
    class: String,
    granularity: String,
    packets_per_second: f64,
    captured_bytes_per_second: f64,
    kept_bytes_per_second: f64,
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
                    state.events_json(&new)
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

    fn now(&self) -> Value {
        let state = self.lock();
        let mut tick = state.tick.clone().unwrap_or_else(|| RecorderTick {
            id: self.id.clone(),
            up: false,
            error: None,
            mode: String::new(),
            asked_mode: String::new(),
            mode_seconds_left: None,
            packets_per_second: 0.0,
            bytes_per_second: 0.0,
            kept_bytes_per_second: 0.0,
            classes: Vec::new(),
            captured_packets: 0,
            lost: Vec::new(),
            not_kept: Vec::new(),
            resources: Vec::new(),
            cpu: None,
            shed: None,
            drift_fits: None,
            events: Vec::new(),
        });
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
        json!(tick)
    }

    /// As `Recorder` in the API.
    pub(crate) fn json(&self, logs: &Logs) -> Value {
        let state = self.lock();
        let status = state.status.as_ref().map(|(_, status)| status);
        let log = status.and_then(|status| logs.id_of(&status.log));
        let modes: Vec<&str> = Mode::BUILT_IN.iter().map(|(name, ..)| *name).collect();
        json!({
            "id": self.id,
            "socket": self.socket.display().to_string(),
            "log": log,
            "up": status.is_some(),
            "error": state.error,
            "modes": modes,
            "status": status,
        })
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
    pub(crate) fn events(&self) -> Vec<Value> {
        let state = self.lock();
        let mut events = state.events_json(&state.events);
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

    /// The last quarter of an hour (`Series`).
    pub(crate) fn history(&self) -> Value {
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
            json!({
                "class": class,
                "granularity": granularity,
                "packets": of(|rate| rate.packets_per_second),
                "captured_bytes": of(|rate| rate.captured_bytes_per_second),
                "kept_bytes": of(|rate| rate.kept_bytes_per_second),
            })
        });
        json!({
            "t": state.history.iter().map(|point| point.at).collect::<Vec<_>>(),
            "step": PERIOD.as_secs_f64(),
            "series": series.collect::<Vec<_>>(),
            "lost": state.history.iter().map(|point| point.lost).collect::<Vec<_>>(),
            "events": state.events_json(&state.events),
            "covered": {
                "complete": true, "why": null, "packets": 0, "from": null, "to": null, "damaged": 0,
                "encrypted_packets": 0, "seconds": 0.0,
            },
        })
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
    fn events_json(&self, events: &[Event]) -> Vec<Value> {
        let each = events.iter().map(|event| {
            let id = event_id(event);
            let seen = self.seen.get(&id);
            let seen = seen.map(|(who, at)| json!({"who": who, "at": at}));
            json!({
                "id": id, "at": event.at, "who": event.who, "what": event.what,
                "why": event.why, "alert": event.is_alert, "acknowledged": seen,
            })
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

    #[allow(clippy::cast_precision_loss, reason = "rates")]
    fn tick(
        &self,
        id: &str,
        (now, status): (Instant, &Status),
        before: Option<&(Instant, Status)>,
        events: Vec<Value>,
    ) -> RecorderTick {
        let passed = before.map(|(then, _)| now.duration_since(*then).as_secs_f64());
        let rate = |now: u64, before: Option<u64>| match (passed, before) {
            (Some(passed), Some(before)) if passed > 0.0 => {
                now.saturating_sub(before) as f64 / passed
            }
            _ => 0.0,
        };
        let old = before.map(|(_, status)| status);
        let classes = status.classes.iter().map(|class| {
            let known = old.map(|old| {
                let mut classes = old.classes.iter();
                let known = classes.find(|one| {
                    (&one.class, &one.granularity) == (&class.class, &class.granularity)
                });
                known.map_or([0; 3], |one| {
                    [one.packets, one.captured_bytes, one.kept_bytes]
                })
            });
            let since = |at: usize, now| rate(now, known.map(|known| known[at]));
            ClassRate {
                class: class.class.clone(),
                granularity: class.granularity.clone(),
                packets_per_second: since(0, class.packets),
                captured_bytes_per_second: since(1, class.captured_bytes),
                kept_bytes_per_second: since(2, class.kept_bytes),
            }
        });
        let classes: Vec<ClassRate> = classes.collect();
        let mut lost: Vec<Lost> = status
            .lost
            .iter()
            .map(|lost| {
                let known = old.map(|old| {
                    let mut all = old.lost.iter();
                    let known =
                        all.find(|one| (&one.place, &one.counter) == (&lost.place, &lost.counter));
                    known.map_or(0, |one| one.packets)
                });
                Lost {
                    place: lost.place.clone(),
                    counter: lost.counter.clone(),
                    packets: lost.packets,
                    packets_per_second: rate(lost.packets, known),
                    first: None,
                    last: None,
                    advice: lost.advice.clone(),
                }
            })
            .collect();
        for ended in status
            .packets
            .iter()
            .filter(|one| one.result == "dropped" && one.packets > 0)
        {
            let known = old.map(|old| {
                let mut all = old.packets.iter();
                let known = all.find(|one| one.result == "dropped" && one.reason == ended.reason);
                known.map_or(0, |one| one.packets)
            });
            lost.push(Lost {
                place: String::from("strata"),
                counter: ended.reason.clone(),
                packets: ended.packets,
                packets_per_second: rate(ended.packets, known),
                first: None,
                last: None,
                advice: dropped_advice(&ended.reason),
            });
        }
        let captured = status.packets.iter().filter(|one| one.result != "filtered");
        let to_full = self.seconds_to_full();
        let resources = status.resources.iter().map(|resource| {
            let mut json = json!(resource);
            json["seconds_to_full"] = match resource.name.as_str() {
                DISK_SPACE => json!(to_full),
                _ => Value::Null,
            };
            json
        });
        RecorderTick {
            id: id.to_owned(),
            up: true,
            error: None,
            mode: status.mode.clone(),
            asked_mode: status.asked_mode.clone(),
            mode_seconds_left: status.mode_seconds_left,
            packets_per_second: status.packets_per_second,
            bytes_per_second: status.bytes_per_second,
            kept_bytes_per_second: status.logged_bytes_per_second,
            classes,
            captured_packets: captured.map(|one| one.packets).sum(),
            lost,
            not_kept: not_kept(status, old, &rate),
            resources: resources.collect(),
            cpu: status.cpu.as_ref().map(|cpu| json!(cpu)),
            shed: status.shed.clone(),
            drift_fits: status.drift.as_ref().and_then(|drift| drift.fits),
            events,
        }
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
                let recorders: Vec<Value> = recorders.iter().map(|one| one.now()).collect();
                let tick = json!({"at": seconds(unix_ns()), "recorders": recorders});
                let _ = told.send(Arc::from(tick.to_string()));
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
    (expires, connection): (Option<Instant>, Option<strata_control::api::Connection>),
) {
    let send = |text: String| {
        let sent = pieces.send(Ok(text.into()));
        async move { matches!(timeout(SILENT, sent).await, Ok(Ok(()))) }
    };
    let mut goes_on = send(String::from("retry: 2000\n\n")).await;
    while goes_on {
        if expires.is_some_and(|expires| expires <= Instant::now()) {
            send(String::from("event: login\ndata: {}\n\n")).await;
            return;
        }
        goes_on = match ticks.recv().await {
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
