//! What payload is to come, where it can be read beforehand.

use super::ranks::{Order, Ranks, Seen};

/// The payload of captures that will be recorded: how much comes where in the order in which detail is
/// given.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    pub(super) ranks: Ranks,
    pub(super) payload: f64,
    /// From the earliest packet to the latest.
    pub(super) seconds: f64,
}

/// Surveys packets, in the order in which they will be recorded.
#[derive(Debug)]
pub struct Surveyor {
    order: Order,
    seen: Seen,
    payload: u64,
    times_ns: Option<[u64; 2]>,
}

impl Default for Surveyor {
    fn default() -> Self {
        Self {
            order: Order::new(),
            seen: Seen::new(),
            payload: 0,
            times_ns: None,
        }
    }
}

impl Surveyor {
    /// Takes in a packet: its time, the fingerprint of its flow (0 if it has none), and its payload in
    /// bytes on the wire.
    pub fn packet(&mut self, ts_ns: u64, fingerprint: u64, payload: u32) {
        let [first, last] = self.times_ns.unwrap_or([ts_ns; 2]);
        self.times_ns = Some([first.min(ts_ns), last.max(ts_ns)]);
        if payload > 0 {
            self.order.at(ts_ns);
            let rank = self.order.rank(fingerprint, payload);
            self.seen.add(rank, payload);
            self.payload += u64::from(payload);
        }
    }

    /// What was found.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn end(self) -> Survey {
        let seconds = match self.times_ns {
            Some([first, last]) => (last - first) as f64 / 1e9,
            None => 0.0,
        };
        Survey {
            ranks: Ranks::from(&self.seen),
            payload: self.payload as f64,
            seconds,
        }
    }
}
