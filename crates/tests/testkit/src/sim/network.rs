//! A network.

use super::{MS, Rng};

/// The state of the network for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// Packets lost, per million.
    pub loss: u64,
    /// Packets duplicated, per million.
    pub duplication: u64,
    /// Packets delayed, and so overtaken by later ones, per million.
    pub reordering: u64,
    /// Minimum delay, ns.
    pub delay: u64,
    /// Additional random delay at most, ns.
    pub jitter: u64,
    /// Nothing gets through before this time.
    pub cut_until: u64,
}

impl Default for Weather {
    /// A machine in the same rack: nothing is lost.
    fn default() -> Self {
        Self {
            loss: 0,
            duplication: 0,
            reordering: 0,
            delay: MS / 10,
            jitter: MS / 20,
            cut_until: 0,
        }
    }
}

/// When the copies of a packet arrive: none if it is lost.
pub type Datagrams = [Option<u64>; 2];

impl Weather {
    /// When bytes of a stream that are sent now arrive: no byte is lost, but an outage delays them.
    pub fn stream(&self, rng: &mut Rng, now: u64) -> u64 {
        now.max(self.cut_until) + self.delay + rng.below(self.jitter + 1)
    }

    /// When a packet that is sent now arrives.
    pub fn datagram(&self, rng: &mut Rng, now: u64) -> Datagrams {
        if now < self.cut_until || rng.chance(self.loss) {
            return [None; 2];
        }
        let late = match rng.chance(self.reordering) {
            true => rng.below(20 * (self.delay + self.jitter) + 1),
            false => 0,
        };
        let first = now + self.delay + late;
        let again = rng
            .chance(self.duplication)
            .then(|| first + rng.below(10 * (self.delay + self.jitter) + 1));
        [Some(first), again]
    }
}
