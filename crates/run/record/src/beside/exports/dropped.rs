//! What the kernel drops of an interface while this recording exports: its ring was full. Collectors are
//! informed, since these packets have no numbers.

use std::collections::BTreeMap;

/// Of one interface, as the kernel counts.
#[derive(Debug, Default)]
struct Counts {
    /// Before the first packet that could be exported.
    before: u64,
    now: u64,
}

/// By name of the interface.
#[derive(Debug, Default)]
pub(super) struct Dropped(BTreeMap<String, Counts>);

impl Dropped {
    /// What the kernel has counted; `is_exporting` unless exports begin later.
    pub(super) fn look(&mut self, counts: Vec<(String, u64)>, is_exporting: bool) {
        for (name, now) in counts {
            let known = self.0.entry(name).or_default();
            known.now = now;
            if !is_exporting {
                known.before = now;
            }
        }
    }

    /// The interface begins to count anew.
    pub(super) fn begin(&mut self, name: &str) {
        if let Some(known) = self.0.get_mut(name) {
            known.before = known.now;
        }
    }

    /// The packets since then; 0 for an interface before the first look at it.
    pub(super) fn of(&self, name: &str) -> u64 {
        let known = self.0.get(name);
        known.map_or(0, |known| known.now.saturating_sub(known.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_dropped_before_is_not_counted() {
        let counts = |eth0, eth1| vec![("eth0".to_owned(), eth0), ("eth1".to_owned(), eth1)];
        let mut dropped = Dropped::default();
        dropped.look(counts(7, 0), false);
        assert_eq!((dropped.of("eth0"), dropped.of("other")), (0, 0));
        dropped.look(counts(9, 4), true);
        assert_eq!((dropped.of("eth0"), dropped.of("eth1")), (2, 4));
        dropped.begin("eth0");
        dropped.look(counts(10, 5), true);
        assert_eq!((dropped.of("eth0"), dropped.of("eth1")), (1, 5));
    }
}
