//! The answer to a shortage: less is kept than was asked for, until it is over.

use std::time::{Duration, Instant};

use strata_wire::exact;

use super::Controller;
use super::inner::Inner;
use crate::elastic::{Degradation, ElasticOptions, Step, follow, plan};

/// What prevents that a relay asks for less.
const RELAY_PREVENTION: &str = "give the relay a faster disk or more space, or keep less";

impl Controller {
    /// Answers shortages; if the mode changes, returns when the reading that led to it was taken.
    pub(super) fn answer(&self, inner: &mut Inner, now: Instant) -> Option<Instant> {
        let options = &inner.asked.elastic()?;
        let before = inner.state.clone();
        let (state, steps) = plan(&before, &inner.sensed, options);
        let since = now.saturating_duration_since(inner.started);
        let now_ns = exact::<u64>(since.as_nanos());
        inner.state = follow(&state, inner.asked_by_relay(), options, now_ns);
        let (degradation, was) = (inner.state.degradation(), before.degradation());
        if degradation == was {
            return None;
        }
        let mut why: Vec<String> = steps.iter().map(Step::to_string).collect();
        let (asked, asked_before) = (inner.state.asked(), before.asked());
        if asked != asked_before {
            why.push(if asked == asked.and(asked_before) {
                format!("requested by the relay: {}", inner.relay_why)
            } else {
                String::from("the relay no longer requests less")
            });
        }
        let why = why.join("; ");
        let from = inner.described_at(&self.model, Degradation::default());
        let to = inner.described(&self.model);
        let (what, why) = if degradation == Degradation::default() {
            let took = inner.lowered.end(now);
            (format!("{to} again: {took}"), why)
        } else if degradation == degradation.and(was) {
            let mut up = steps.iter().filter(|step| step.up);
            let prevent = up
                .next()
                .map_or(RELAY_PREVENTION, |step| step.resource.prevention());
            let what = format!("{to} instead of {from}");
            let at = inner.lowered.lower(now, (from, to), why.clone(), prevent);
            (what, format!("{why}; {}", until(options, at, prevent)))
        } else {
            let what = format!("{to}, still instead of {from}");
            inner.lowered.raise(to);
            (what, why)
        };
        inner.events.alert(what, &why);
        let first = steps.iter().map(|step| step.sensed.taken_ns).min();
        Some(first.map_or(now, |first| inner.started + Duration::from_nanos(first)))
    }
}

/// Since when and for how long less is kept, and what prevents it.
fn until(options: &ElasticOptions, at: &str, prevent: &str) -> String {
    let hold = Duration::from_nanos(options.hold_ns).as_secs_f64();
    format!(
        "since {at}; each step is undone {hold} s or more after the shortage; to prevent it: {prevent}; to lose \
         packets instead, set enabled = false in [elastic]"
    )
}
