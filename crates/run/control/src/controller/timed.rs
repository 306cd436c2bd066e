//! Modes for a limited time, and those that return after them.

use std::time::Instant;

use super::ControlError;

/// Maximum number of modes for a limited time within one another.
pub(super) const TIMED_MAX: usize = 16;

/// The modes to return to. If there are none, those in force have no limited time.
#[derive(Clone, Debug, Default)]
pub(super) struct Timed(
    /// Each ends before the one in front of it: the last are the modes in force.
    Vec<Limit>,
);

#[derive(Clone, Debug)]
struct Limit {
    until: Instant,
    /// The modes that return then.
    before: Vec<String>,
}

impl Timed {
    /// Modes that are in force until then replace others, which return with what is left of their own
    /// time. The same modes again only get another time.
    ///
    /// # Errors
    ///
    /// If there are too many; then nothing may be used of this.
    pub(super) fn begin(
        &mut self,
        modes: &[String],
        until: Instant,
        replaced: Vec<String>,
    ) -> Result<(), ControlError> {
        let again = self.0.pop_if(|_| replaced == modes);
        let mut before = again.map_or(replaced, |limit| limit.before);
        // Their time will have passed.
        while let Some(limit) = self.0.pop_if(|limit| limit.until <= until) {
            before = limit.before;
        }
        if self.0.len() >= TIMED_MAX {
            return Err(ControlError::TooManyTimed);
        }
        self.0.push(Limit { until, before });
        Ok(())
    }

    /// The modes that return now, if the time of those in force is over.
    pub(super) fn end(&mut self, now: Instant) -> Option<Vec<String>> {
        let mut returning = None;
        while let Some(limit) = self.0.pop_if(|limit| now >= limit.until) {
            returning = Some(limit.before);
        }
        returning
    }

    /// When the time of the modes in force is over.
    pub(super) fn until(&self) -> Option<Instant> {
        self.0.last().map(|limit| limit.until)
    }

    /// The names of all modes that return.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.0.iter().flat_map(|limit| &limit.before)
    }

    /// The same limits, after all of which these modes return; unchanged if there are none.
    pub(super) fn then(mut self, last: Vec<String>) -> Self {
        if let Some(limit) = self.0.first_mut() {
            limit.before = last;
        }
        self
    }
}
