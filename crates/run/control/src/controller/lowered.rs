//! For how long a recording keeps less than it was asked to, because something is short.

use std::time::{Duration, Instant};

use crate::saved::now;
use crate::status::LoweredStatus;

/// What was lowered, and when: bounded, however often it happens.
#[derive(Debug, Default)]
pub(super) struct Lowered {
    /// Times that it was, the current one included.
    times: u64,
    /// How long in those that are over.
    over: Duration,
    /// The latest time, over or not.
    latest: Option<Latest>,
}

#[derive(Debug)]
struct Latest {
    began: Instant,
    /// When, in RFC 3339.
    at: String,
    /// How long it took; `None` while it lasts.
    took: Option<Duration>,
    /// What was asked for, what is or was kept instead, why, and what prevents it.
    from: String,
    to: String,
    why: String,
    prevent: &'static str,
}

impl Lowered {
    /// Less is kept than before: `to` instead of what was asked for, `from`. Returns since when, in RFC 3339.
    pub(super) fn lower(
        &mut self,
        at: Instant,
        (from, to): (String, String),
        why: String,
        prevent: &'static str,
    ) -> &str {
        let lasting = self.latest.take().filter(|latest| latest.took.is_none());
        let (began, since) = match lasting {
            Some(latest) => (latest.began, latest.at),
            None => {
                self.times = self.times.saturating_add(1);
                (at, now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
            }
        };
        let latest = self.latest.insert(Latest {
            began,
            at: since,
            took: None,
            from,
            to,
            why,
            prevent,
        });
        &latest.at
    }

    /// Part of what was given up is kept again.
    pub(super) fn raise(&mut self, to: String) {
        if let Some(latest) = &mut self.latest {
            latest.to = to;
        }
    }

    /// All that was asked for is kept again; how long it was not, as text.
    pub(super) fn end(&mut self, at: Instant) -> String {
        if let Some(latest) = self.latest.as_mut().filter(|latest| latest.took.is_none()) {
            let took = at.saturating_duration_since(latest.began);
            latest.took = Some(took);
            self.over = self.over.saturating_add(took);
        }
        let seconds = |took: Duration| took.as_secs_f64();
        let Some(latest) = &self.latest else {
            return String::new();
        };
        let this = latest.took.map_or(0.0, seconds);
        let all = match self.times {
            1 => String::new(),
            times => format!(", {times} times and {:.1} s in all", seconds(self.over)),
        };
        format!("less was kept since {}, for {this:.1} s{all}", latest.at)
    }

    /// For the status; none if it never happened.
    pub(super) fn status(&self, at: Instant) -> Option<LoweredStatus> {
        let latest = self.latest.as_ref()?;
        let lasts = match latest.took {
            None => at.saturating_duration_since(latest.began),
            Some(_) => Duration::ZERO,
        };
        Some(LoweredStatus {
            now: latest.took.is_none(),
            times: self.times,
            seconds: self.over.saturating_add(lasts).as_secs_f64(),
            at: latest.at.clone(),
            from: latest.from.clone(),
            to: latest.to.clone(),
            why: latest.why.clone(),
            prevent: latest.prevent.to_owned(),
        })
    }
}
