//! How many records are missing.

/// How many records are not there, of those that were appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// This number.
    Exact(u64),
    /// At least `min` and at most `max`.
    Between {
        /// As many as other records name, or as it takes to make them unnameable.
        min: u64,
        /// As many as have room.
        max: u64,
    },
}

impl Missing {
    /// At least, and at most.
    #[must_use]
    pub fn bounds(self) -> (u64, u64) {
        match self {
            Self::Exact(number) => (number, number),
            Self::Between { min, max } => (min, max),
        }
    }
}
