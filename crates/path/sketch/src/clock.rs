//! The clock of delays: ticks of a window.

/// Time within a window, in ticks: the smallest power of two of ns for which a window holds at most
/// 2^24. 1 ns for the 10 ms of TitanLog §III-B, 4.1 us for a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    window_ns: u64,
    shift: u32,
}

impl Clock {
    /// A clock for windows of `window_ns` ns, at least 1.
    #[must_use]
    pub fn new(window_ns: u64) -> Self {
        let window_ns = window_ns.max(1);
        let mut shift = 0;
        while (window_ns - 1) >> shift >= 1 << 24 {
            shift += 1;
        }
        Self { window_ns, shift }
    }

    /// Nanoseconds per tick.
    #[must_use]
    pub fn tick_ns(self) -> u64 {
        1 << self.shift
    }

    /// The window's length in ns.
    #[must_use]
    #[inline]
    pub fn window_ns(self) -> u64 {
        self.window_ns
    }

    /// Bits of a time in ns that are less than a tick.
    #[inline]
    pub(crate) fn shift(self) -> u32 {
        self.shift
    }

    /// Start of the window that a time belongs to.
    #[inline]
    pub(crate) fn window_start(self, ts_ns: u64) -> u64 {
        ts_ns - ts_ns % self.window_ns
    }

    /// Ticks from the start of a window; before it, 0; after it, its end.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn ticks(self, window_start: u64, ts_ns: u64) -> u32 {
        (ts_ns.saturating_sub(window_start).min(self.window_ns - 1) >> self.shift) as u32
    }

    /// Whether a packet with this time starts a new window: it is after the current one, or so far
    /// before it that the capture's clock was set back.
    #[inline]
    pub(crate) fn leaves(self, window_start: u64, ts_ns: u64) -> bool {
        ts_ns.wrapping_sub(window_start) >= self.window_ns
            && (ts_ns > window_start || window_start - ts_ns > self.window_ns)
    }
}
