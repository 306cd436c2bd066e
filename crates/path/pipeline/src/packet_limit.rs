//! How many packets may still be taken, by all workers together.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number of packets that workers share: tcpdump's `-c`.
#[derive(Debug)]
pub struct PacketLimit {
    left: AtomicU64,
    /// Drawn, but neither used nor given back.
    drawn: AtomicU64,
}

impl PacketLimit {
    /// A limit of this many packets.
    #[must_use]
    pub fn new(packets: u64) -> Self {
        Self {
            left: AtomicU64::new(packets),
            drawn: AtomicU64::new(0),
        }
    }

    /// Whether the last packet has been taken.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        // In this order: a draw gives back what is left before it stops counting as drawn.
        self.drawn.load(Ordering::SeqCst) == 0 && self.left.load(Ordering::SeqCst) == 0
    }

    /// Draws `most` packets, or as many as are left.
    pub(crate) fn draw(&self, most: u64) -> u64 {
        self.drawn.fetch_add(1, Ordering::SeqCst);
        let draw = |left: u64| Some(left.saturating_sub(most));
        let left = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, draw);
        left.expect("every update is made").min(most)
    }

    /// Ends a draw of which this many packets were not used.
    pub(crate) fn give_back(&self, unused: u64) {
        self.left.fetch_add(unused, Ordering::SeqCst);
        self.drawn.fetch_sub(1, Ordering::SeqCst);
    }
}
