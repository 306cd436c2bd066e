//! Slots of a cache that have given nothing for long.

/// When each slot of one cache last gave a vector; says which to flush.
///
/// Memory: 8 bytes a slot. A flow that sends little stays in the cache until another takes its
/// slot, so agents that want timely answers request it.
#[derive(Clone, Debug)]
pub struct IdleSlots {
    last_ns: Vec<u64>,
    next: usize,
}

impl IdleSlots {
    /// The slots of a cache that began at `now_ns`.
    #[must_use]
    pub fn new(slots: u32, now_ns: u64) -> Self {
        Self {
            last_ns: vec![now_ns; slots as usize],
            next: 0,
        }
    }

    /// A vector of this slot came. Slots that the cache does not have are ignored.
    #[inline]
    pub fn gave(&mut self, slot: u32, now_ns: u64) {
        if let Some(last_ns) = self.last_ns.get_mut(slot as usize) {
            *last_ns = now_ns;
        }
    }

    /// The cache has at least `slots` slots; those that are new count as if they had given one now.
    pub fn grow(&mut self, slots: u32, now_ns: u64) {
        let slots = self.last_ns.len().max(slots as usize);
        self.last_ns.resize(slots, now_ns);
    }

    /// Slots that are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.last_ns.len()
    }

    /// Whether no slot is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.last_ns.is_empty()
    }

    /// Looks at the next `count` slots, around and around, and calls `flush` for each that gave
    /// nothing for `threshold_ns`. It then counts as if it had, so that it is not requested again
    /// at once.
    pub fn scan(
        &mut self,
        now_ns: u64,
        threshold_ns: u64,
        count: usize,
        mut flush: impl FnMut(u32),
    ) {
        for _ in 0..count.min(self.last_ns.len()) {
            let last_ns = &mut self.last_ns[self.next];
            if now_ns.saturating_sub(*last_ns) >= threshold_ns {
                *last_ns = now_ns;
                flush(strata_wire::exact(self.next));
            }
            let next = self.next.wrapping_add(1);
            self.next = if next < self.last_ns.len() { next } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_slots_are_flushed_once_a_threshold() {
        let mut idle = IdleSlots::new(4, 0);
        let due = |idle: &mut IdleSlots, now, count| {
            let mut slots = Vec::new();
            idle.scan(now, 100, count, |slot| slots.push(slot));
            slots
        };
        idle.gave(1, 50);
        idle.gave(99, 50);
        assert_eq!(due(&mut idle, 100, 3), [0, 2]);
        assert_eq!(due(&mut idle, 120, 4), [3]);
        assert_eq!(due(&mut idle, 150, 4), [1]);
        assert_eq!(due(&mut idle, 160, 4), [0_u32; 0]);
        idle.grow(6, 160);
        idle.grow(2, 160);
        assert_eq!(idle.len(), 6);
        assert_eq!(due(&mut idle, 219, 6), [0, 2]);
        assert_eq!(due(&mut idle, 260, 6), [3, 4, 5, 1]);
    }
}
