//! What a recording does now: its counters as rates, from two answers to a request for its status.

use std::time::Instant;

use serde::Serialize;
use strata_control::{CpuStatus, ShedStatus, Status};
use strata_log_views::answers::parts::RecorderEvent;
use utoipa::ToSchema;

use super::losses::{Lost, NotKept, dropped_advice, not_kept};
use super::{DISK_SPACE, State};

/// The current state of a recording.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct RecorderTick {
    id: String,
    /// Whether it answered. If not, the other values are the last known ones, and rates are 0.
    pub(super) up: bool,
    /// Why it did not answer.
    #[schema(required)]
    pub(super) error: Option<String>,
    mode: String,
    /// The requested mode; `mode` differs during a shortage, see `events`.
    asked_mode: String,
    #[schema(required)]
    mode_seconds_left: Option<f64>,
    pub(super) packets_per_second: f64,
    pub(super) bytes_per_second: f64,
    pub(super) kept_bytes_per_second: f64,
    pub(super) classes: Vec<ClassRate>,
    /// Packets since the recording began that passed its filter and reached Strata.
    captured_packets: u64,
    pub(super) lost: Vec<Lost>,
    /// Of `captured_packets`, the packets of which nothing was to be kept.
    not_kept: Vec<NotKept>,
    resources: Vec<Resource>,
    #[schema(required)]
    cpu: Option<CpuStatus>,
    /// Payload given up while packets are lost.
    #[schema(required)]
    shed: Option<ShedStatus>,
    #[schema(required)]
    drift_fits: Option<bool>,
    /// Events since the previous tick; the first tick of a stream has none (see `/events`).
    pub(super) events: Vec<RecorderEvent>,
}

/// Packets and bytes of a class and granularity, a second.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ClassRate {
    pub(super) class: String,
    /// `full`, `partial`, `header`, `drop` or `sampled_out`.
    pub(super) granularity: String,
    pub(super) packets_per_second: f64,
    pub(super) captured_bytes_per_second: f64,
    pub(super) kept_bytes_per_second: f64,
}

/// Something that can run short.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Resource {
    name: String,
    #[schema(required)]
    used: Option<f64>,
    #[schema(required)]
    short_at: Option<f64>,
    degradation_steps: usize,
    /// For disk space, at the present rate.
    #[schema(required)]
    seconds_to_full: Option<f64>,
}

impl RecorderTick {
    /// Of a recording that never answered.
    pub(super) fn unknown(id: &str) -> Self {
        Self {
            id: id.to_owned(),
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
        }
    }
}

impl State {
    #[allow(clippy::cast_precision_loss, reason = "rates")]
    pub(super) fn tick(
        &self,
        id: &str,
        (now, status): (Instant, &Status),
        before: Option<&(Instant, Status)>,
        events: Vec<RecorderEvent>,
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
            resources: self.resources(status),
            cpu: status.cpu.clone(),
            shed: status.shed.clone(),
            drift_fits: status.drift.as_ref().and_then(|drift| drift.fits),
            events,
        }
    }

    fn resources(&self, status: &Status) -> Vec<Resource> {
        let to_full = self.seconds_to_full();
        let resources = status.resources.iter().map(|resource| Resource {
            name: resource.name.clone(),
            used: resource.used,
            short_at: resource.short_at,
            degradation_steps: resource.degradation_steps,
            seconds_to_full: match resource.name.as_str() {
                DISK_SPACE => to_full,
                _ => None,
            },
        });
        resources.collect()
    }
}
