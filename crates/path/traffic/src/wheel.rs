//! Which flow is next: a timing wheel over flows.

use crate::random::Random;

/// Ends a list of flows.
const NONE: u32 = u32::MAX;

/// The longest mean delay, in ticks: limits the slots to 64 KiB.
const DELAY_MAX: u16 = 2048;

/// A timing wheel: flows wait in the slot of the tick at which they send next.
///
/// Time has no unit here: a tick is over when every flow waiting in its slot had a turn. So a wheel
/// determines who sends more often than whom, not how often.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// First flow of each slot; a power of two.
    slots: Box<[u32]>,
    /// The next flow of the same slot, by flow.
    next: Box<[u32]>,
    /// The flows whose turn is now, in the order of `due.pop()`.
    due: Vec<u32>,
    tick: u32,
    /// Mean delay of the slowest flows, in ticks.
    delay_max: u16,
}

impl Wheel {
    /// A wheel for `flows` flows, at least one, all waiting at random places.
    pub(crate) fn new(flows: u32, random: &mut Random) -> Self {
        // About 16 flows per slot: a shorter wheel would make every flow as fast as the fastest, a
        // longer one would pass through empty slots.
        let delay_max = u16::try_from(flows / 16)
            .unwrap_or(DELAY_MAX)
            .clamp(2, DELAY_MAX);
        let slots = (u32::from(delay_max) * 8).next_power_of_two();
        let mut wheel = Self {
            slots: vec![NONE; slots as usize].into(),
            next: vec![NONE; flows as usize].into(),
            due: Vec::new(),
            tick: 0,
            delay_max,
        };
        for flow in 0..flows {
            wheel.wait(flow, random.within(1..u32::from(delay_max) + 1));
        }
        wheel
    }

    pub(crate) fn delay_max(&self) -> u16 {
        self.delay_max
    }

    /// Schedules a flow that is not waiting, at least one tick ahead and at most once around the
    /// wheel.
    #[inline]
    pub(crate) fn wait(&mut self, flow: u32, ticks: u32) {
        let slots = self.slots.len();
        let ticks = (ticks.max(1) as usize).min(slots - 1);
        let slot = (self.tick as usize + ticks) & (slots - 1);
        self.next[flow as usize] = self.slots[slot];
        self.slots[slot] = flow;
    }

    /// The next flow, and one that follows a few turns later if known, so that its memory can be
    /// prefetched. Some flow must be waiting.
    #[inline]
    pub(crate) fn turn(&mut self) -> (u32, Option<u32>) {
        loop {
            if let Some(flow) = self.due.pop() {
                let ahead = self.due.len().checked_sub(AHEAD).map(|at| self.due[at]);
                return (flow, ahead);
            }
            self.advance();
        }
    }

    fn advance(&mut self) {
        self.tick = self.tick.wrapping_add(1);
        let slot = self.tick as usize & (self.slots.len() - 1);
        let mut flow = std::mem::replace(&mut self.slots[slot], NONE);
        while flow != NONE {
            self.due.push(flow);
            flow = self.next[flow as usize];
        }
    }
}

/// Turns of lookahead.
const AHEAD: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_have_turns_in_proportion() {
        let mut random = Random::new(3);
        let mut wheel = Wheel::new(1000, &mut random);
        let mut turns = [0_u32; 1000];
        for _ in 0..200_000 {
            let (flow, _) = wheel.turn();
            turns[flow as usize] += 1;
            wheel.wait(flow, if flow < 100 { 10 } else { 40 });
        }
        let fast: u32 = turns[..100].iter().sum();
        let slow: u32 = turns[100..].iter().sum();
        // 100 flows at 1/10 against 900 at 1/40.
        let share = f64::from(fast) / f64::from(slow);
        assert!((0.43..0.46).contains(&share), "{share}");
        assert!(turns.iter().all(|&t| t > 100));
    }
}
