//! A network.

use super::{MS, Rng};

/// What the network is like for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// Packets that are lost, of a million.
    pub loss: u64,
    /// Packets that come twice, of a million.
    pub duplication: u64,
    /// Packets that are late, and so come after later ones, of a million.
    pub reordering: u64,
    /// How long it takes at least, ns.
    pub delay: u64,
    /// And how much longer it may take, ns.
    pub jitter: u64,
    /// Nothing gets through before this time.
    pub cut_until: u64,
}

impl Default for Weather {
    /// A machine in the same room: nothing is lost.
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

/// When copies of a packet arrive: none if it is lost.
pub type Datagrams = [Option<u64>; 2];

impl Weather {
    /// When bytes of a stream arrive that are sent now: nothing of them is lost, but what is cut
    /// off waits.
    pub fn stream(&self, rng: &mut Rng, now: u64) -> u64 {
        now.max(self.cut_until) + self.delay + rng.below(self.jitter + 1)
    }

    /// When a packet arrives that is sent now.
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
