//! What was reported of each kind of work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_role::{Notice, Tell};
use strata_wire::{count_of, grouped};

/// A problem that lasts is reported again after this time; one that changes all the time, this
/// often.
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(3600);
const SAY_NEWS_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of damaged places that are remembered as reported.
const DAMAGE_MAX: usize = 10_000;

/// What was reported of each kind of work, so that a problem that lasts does not fill the journal.
pub(super) struct Said {
    tell: Tell,
    problems: BTreeMap<&'static str, Problem>,
    damage: Vec<String>,
}

/// A problem that lasts.
struct Problem {
    text: String,
    said: Instant,
    /// How often it failed in a row.
    failed: u64,
}

impl Said {
    pub(super) fn new(tell: Tell) -> Self {
        Self {
            tell,
            problems: BTreeMap::new(),
            damage: Vec::new(),
        }
    }

    /// What tells the user of the role.
    pub(super) fn teller(&self) -> Tell {
        Arc::clone(&self.tell)
    }

    /// Says what failed, if that is news or the last time was long ago.
    pub(super) fn problem(&mut self, work: &'static str, text: String) {
        let now = Instant::now();
        let Some(known) = self.problems.get_mut(work) else {
            (self.tell)(&Notice::warning(format!("{text}: will be tried again")));
            let problem = Problem {
                text,
                said: now,
                failed: 1,
            };
            self.problems.insert(work, problem);
            return;
        };
        known.failed += 1;
        let quiet = match known.text == text {
            true => SAY_AGAIN_AFTER,
            false => SAY_NEWS_AFTER,
        };
        if now.duration_since(known.said) < quiet {
            return;
        }
        let failed = grouped(known.failed);
        (self.tell)(&Notice::warning(format!(
            "{text}: will be tried again (failed {failed} times in a row)"
        )));
        (known.text, known.said) = (text, now);
    }

    /// Says that something works again, if it did not before.
    pub(super) fn works(&mut self, work: &'static str, text: &str) {
        if let Some(known) = self.problems.remove(work) {
            let attempts = count_of(known.failed, "failed attempt");
            (self.tell)(&Notice::info("works", format!("{text}, after {attempts}")));
        }
    }

    /// Whether it is news that a file is left as it is.
    pub(super) fn is_news(&mut self, damage: &str) -> bool {
        if self.damage.iter().any(|known| known == damage) {
            return false;
        }
        if self.damage.len() < DAMAGE_MAX {
            self.damage.push(damage.to_owned());
        }
        true
    }
}
