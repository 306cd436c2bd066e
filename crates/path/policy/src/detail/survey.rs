//! What payload is to come, where it can be read beforehand.

use super::CHUNK;
use super::ranks::{Order, Ranks, Seen};

/// The payload of captures that will be recorded: how much comes where in the order in which detail is
/// given.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    pub(super) ranks: Ranks,
    pub(super) payload: f64,
    pub(super) course: Course,
    /// From the earliest packet to the latest.
    pub(super) seconds: f64,
}

/// Surveys packets, in the order in which they will be recorded.
#[derive(Debug)]
pub struct Surveyor {
    order: Order,
    seen: Seen,
    payload: u64,
    course: Course,
    times_ns: Option<[u64; 2]>,
}

/// Maximum number of places of a [`Course`].
const COURSE_MAX: usize = 1_024;

/// The payload so far, noted every few packets.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Course {
    /// Packets from one place to the next.
    step: u64,
    /// At the places, the first of which is before all packets.
    payload: Vec<u64>,
    packets: u64,
}

impl Default for Course {
    fn default() -> Self {
        Self {
            step: 1,
            payload: vec![0],
            packets: 0,
        }
    }
}

impl Course {
    /// Takes in a packet; `payload` is the sum with it.
    fn add(&mut self, payload: u64) {
        self.packets += 1;
        if self.packets.is_multiple_of(self.step) {
            self.payload.push(payload);
            if self.payload.len() > COURSE_MAX {
                // Every other place stays; the last is at an even number of steps.
                let kept = self.payload.iter().copied().step_by(2);
                self.payload = kept.collect();
                self.step *= 2;
            }
        }
    }

    /// The payload of the first `packets`, as far as is known: at the place before.
    pub(super) fn payload_of(&self, packets: u64) -> u64 {
        let place = usize::try_from(packets / self.step);
        let known = place.ok().and_then(|place| self.payload.get(place));
        *known.unwrap_or(&self.payload[self.payload.len() - 1])
    }
}

impl Default for Surveyor {
    fn default() -> Self {
        Self {
            order: Order::new(),
            seen: Seen::new(),
            payload: 0,
            course: Course::default(),
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
        // As often as the controller: times that jump to and fro cost no more.
        if self.course.packets.is_multiple_of(CHUNK as u64) {
            self.order.at(ts_ns);
        }
        let rank = self.order.rank(fingerprint, payload);
        self.seen.add(rank, payload);
        self.payload += u64::from(payload);
        self.course.add(self.payload);
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
            course: self.course,
            seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_is_known_to_within_a_step_however_long_it_is() {
        for packets in [0_u64, 1, 1_000, 1_023, 1_024, 5_000, 1_000_000] {
            let mut course = Course::default();
            (1..=packets).for_each(|number| course.add(number * 10));
            assert!(course.payload.len() <= COURSE_MAX);
            let step = packets.div_ceil(COURSE_MAX as u64 / 2).max(1);
            for asked in [0, 1, packets / 3, packets] {
                let asked = asked.min(packets);
                let (found, exact) = (course.payload_of(asked), asked * 10);
                assert!(
                    found <= exact && exact - found <= 20 * step,
                    "{packets}: {found} of {exact}"
                );
            }
            assert!(course.payload_of(u64::MAX) <= packets * 10);
        }
    }
}
