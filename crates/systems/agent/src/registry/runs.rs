//! Runs of an agent. An agent that starts again is another run, and the one before reports no more. Two runs that both
//! report have one certificate at two places: a directory was copied, or a machine cloned.
//!
//! The run that was there first is the agent. Another one takes its place once the first is gone: its connection has
//! ended, or it has not reported for [`GONE`]. A run that reports although another one has taken its place is still
//! there, and was first: it takes its place back.

use std::collections::VecDeque;

use super::rollout::SECOND;

/// An agent reports every 5 s, if it is not starting a recording.
const GONE: u64 = 7 * SECOND;
/// A copy that was not heard of for this long is no longer shown.
const SHOWN: u64 = 60 * SECOND;
/// Copies are noted at most once in this time: an agent may send any number.
const NOTED: u64 = 3600 * SECOND;
/// A run that was refused before gets the place only this time after the last report of the first, or after a start of
/// the controller, which remembers no runs: the first one, if it is still there or starts again, reports earlier.
const GRACE: u64 = 60 * SECOND;
/// Runs that are remembered after others have taken their place.
const EARLIER_MAX: usize = 8;

/// A run of an agent.
#[derive(Clone, Debug)]
struct Run {
    number: u64,
    /// The address that it reports from.
    from: String,
    /// When it last reported: ns since 1970.
    heard_ns: u64,
    /// Whether its connection has ended since then.
    has_left: bool,
}

/// The runs of an agent.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// The one that is the agent.
    own: Option<Run>,
    /// Numbers of those before, the latest last.
    earlier: VecDeque<u64>,
    /// One that reports at the same time.
    copy: Option<Run>,
    /// Whether that was noted.
    is_noted: bool,
    /// When a run that was refused before first asked for an empty place.
    asked_ns: Option<u64>,
    /// When one was last noted: ns since 1970.
    noted_ns: Option<u64>,
}

/// What a report is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reporter {
    /// The agent's.
    Agent,
    /// That of a second run, while the first reports too, from this address.
    Copy {
        /// Where the first reports from.
        other: String,
        /// Whether to note it: it was not known before.
        is_new: bool,
    },
}

impl Runs {
    /// A run reports, which was refused before or not.
    pub(super) fn reported(
        &mut self,
        (number, was_refused): (u64, bool),
        from: &str,
        now_ns: u64,
    ) -> Reporter {
        let run = Run {
            number,
            from: from.to_owned(),
            heard_ns: now_ns,
            has_left: false,
        };
        let Some(own) = &self.own else {
            let asked_ns = *self.asked_ns.get_or_insert(now_ns);
            if was_refused && now_ns.saturating_sub(asked_ns) < GRACE {
                return Reporter::Copy {
                    other: "another address".to_owned(),
                    is_new: false,
                };
            }
            self.own = Some(run);
            return Reporter::Agent;
        };
        if own.number == number {
            self.own = Some(run);
            return Reporter::Agent;
        }
        if self.earlier.contains(&number) {
            // It was first, and is still there.
            self.earlier.retain(|one| *one != number);
            self.copy = self.own.replace(run);
            self.is_noted = false;
            return Reporter::Agent;
        }
        let silent = now_ns.saturating_sub(own.heard_ns);
        let is_gone = match was_refused {
            true => silent > GRACE,
            false => own.has_left || silent > GONE,
        };
        if is_gone {
            self.earlier.push_back(own.number);
            while self.earlier.len() > EARLIER_MAX {
                self.earlier.pop_front();
            }
            self.copy = None;
            self.own = Some(run);
            return Reporter::Agent;
        }
        let other = own.from.clone();
        let known = self.copy.as_ref().map(|copy| copy.number);
        self.is_noted &= known == Some(number);
        self.copy = Some(run);
        let noted = self.noted_ns;
        let is_new =
            !self.is_noted && noted.is_none_or(|noted| now_ns.saturating_sub(noted) >= NOTED);
        if is_new {
            (self.is_noted, self.noted_ns) = (true, Some(now_ns));
        }
        Reporter::Copy { other, is_new }
    }

    /// The connection of a run has ended.
    pub(super) fn left(&mut self, number: u64) {
        for run in [&mut self.own, &mut self.copy].into_iter().flatten() {
            run.has_left |= run.number == number;
        }
    }

    /// Where two runs report from at this time; empty if there is only one.
    pub(super) fn copies(&self, now_ns: u64) -> Vec<String> {
        let is_shown = |run: &&Run| now_ns.saturating_sub(run.heard_ns) <= SHOWN;
        match (&self.own, self.copy.as_ref().filter(is_shown)) {
            (Some(own), Some(copy)) => vec![own.from.clone(), copy.from.clone()],
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: Reporter = Reporter::Agent;

    fn copy(other: &str, is_new: bool) -> Reporter {
        Reporter::Copy {
            other: other.to_owned(),
            is_new,
        }
    }

    #[test]
    fn an_agent_that_starts_again_is_no_copy() {
        let mut runs = Runs::default();
        assert_eq!(runs.reported((1, false), "a", 0), AGENT);
        assert_eq!(runs.reported((1, false), "a", 5 * SECOND), AGENT);
        // Killed: its connection ends.
        runs.left(1);
        assert_eq!(runs.reported((2, false), "a", 5 * SECOND), AGENT);
        // Its host lost power: no connection ends.
        assert_eq!(runs.reported((3, false), "a", 6 * SECOND), copy("a", true));
        assert_eq!(runs.reported((3, false), "a", 13 * SECOND), AGENT);
        assert!(runs.copies(13 * SECOND).is_empty());
    }

    #[test]
    fn the_second_of_two_runs_is_a_copy_until_the_first_is_gone() {
        let mut runs = Runs::default();
        for second in 0..10 {
            let now_ns = second * 5 * SECOND;
            assert_eq!(runs.reported((1, false), "a", now_ns), AGENT);
            assert_eq!(
                runs.reported((2, false), "b", now_ns),
                copy("a", second == 0)
            );
            assert_eq!(runs.copies(now_ns), ["a", "b"]);
        }
        // One that has left is another matter: a connection may end for reasons other than a run.
        runs.left(1);
        let now_ns = 50 * SECOND;
        assert_eq!(runs.reported((2, false), "b", now_ns), AGENT);
        assert_eq!(
            runs.reported((1, false), "a", now_ns),
            AGENT,
            "it was first"
        );
        assert_eq!(runs.reported((2, false), "b", now_ns), copy("a", false));
        assert_eq!(runs.copies(now_ns), ["a", "b"]);
        assert_eq!(runs.reported((2, false), "b", now_ns + 8 * SECOND), AGENT);
        assert!(runs.copies(now_ns + 8 * SECOND).is_empty());
    }

    #[test]
    fn a_copy_that_is_gone_is_no_longer_shown() {
        let mut runs = Runs::default();
        assert_eq!(runs.reported((1, false), "a", 0), AGENT);
        assert_eq!(runs.reported((2, false), "b", 0), copy("a", true));
        assert_eq!(runs.reported((1, false), "a", 61 * SECOND), AGENT);
        assert!(runs.copies(61 * SECOND).is_empty());
    }

    /// A copy that takes the place for a moment is noted once it is refused.
    #[test]
    fn a_copy_that_was_taken_for_the_agent_is_noted() {
        let mut runs = Runs::default();
        assert_eq!(runs.reported((1, false), "a", 0), AGENT);
        runs.left(1);
        assert_eq!(runs.reported((2, false), "b", 0), AGENT);
        assert_eq!(runs.reported((1, false), "a", 0), AGENT);
        assert_eq!(runs.reported((2, false), "b", 0), copy("a", true));
        assert_eq!(runs.reported((2, true), "b", 0), copy("a", false));
    }

    /// A copy does not take the place of an agent that starts again.
    #[test]
    fn a_run_that_was_refused_waits_for_the_first_to_start_again() {
        let mut runs = Runs::default();
        assert_eq!(runs.reported((1, false), "a", 0), AGENT);
        runs.left(1);
        assert_eq!(runs.reported((2, true), "b", 0), copy("a", true));
        assert_eq!(runs.reported((3, false), "a", SECOND), AGENT);
        runs.left(3);
        assert_eq!(runs.reported((2, true), "b", 62 * SECOND), AGENT);
    }

    /// A controller that has started again does not know who was first, but the copy does.
    #[test]
    fn a_run_that_was_refused_waits_for_the_first_after_a_start() {
        let mut runs = Runs::default();
        assert_eq!(
            runs.reported((2, true), "b", 0),
            copy("another address", false)
        );
        assert_eq!(runs.reported((1, false), "a", 30 * SECOND), AGENT);
        assert_eq!(runs.reported((2, true), "b", 31 * SECOND), copy("a", true));
        // The first is gone for good.
        let mut runs = Runs::default();
        assert_eq!(
            runs.reported((2, true), "b", 0),
            copy("another address", false)
        );
        assert_eq!(runs.reported((2, true), "b", 60 * SECOND), AGENT);
    }
}
