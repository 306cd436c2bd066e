//! Numbers for addresses, one look-up a vector.

use strata_wire::{AddressFamily, mix64};

/// An address and what it is.
pub(super) type Host = (AddressFamily, u128);

const NONE: u32 = u32::MAX;

/// Hosts by address, numbered from 0, by an index with open addressing and a keyed hash.
#[derive(Debug)]
pub(super) struct Hosts {
    index: Vec<u32>,
    hosts: Vec<Host>,
    /// Numbers of hosts that were removed.
    free: Vec<u32>,
    max: usize,
    seed: u64,
}

impl Hosts {
    /// Room for `max` hosts.
    pub(super) fn new(max: u32, seed: u64) -> Self {
        Self {
            index: vec![NONE; 1024],
            hosts: Vec::new(),
            free: Vec::new(),
            max: max.min(1 << 30) as usize,
            seed: mix64(seed ^ 0x9e37_79b9_7f4a_7c15),
        }
    }

    pub(super) fn host(&self, number: u32) -> Host {
        self.hosts[number as usize]
    }

    /// Hosts that have numbers.
    pub(super) fn len(&self) -> usize {
        self.hosts.len().wrapping_sub(self.free.len())
    }

    /// The host's number, a new one if it has none; `None` if there is no room.
    #[inline]
    pub(super) fn number(&mut self, host: Host) -> Option<u32> {
        let mut at = self.home(host);
        while self.index[at] != NONE {
            let number = self.index[at];
            if self.hosts[number as usize] == host {
                return Some(number);
            }
            at = at.wrapping_add(1) & self.index.len().wrapping_sub(1);
        }
        self.insert(at, host)
    }

    #[cold]
    fn insert(&mut self, at: usize, host: Host) -> Option<u32> {
        let number = match self.free.pop() {
            Some(number) => {
                self.hosts[number as usize] = host;
                number
            }
            None if self.hosts.len() < self.max => {
                self.hosts.push(host);
                strata_wire::exact(self.hosts.len().wrapping_sub(1))
            }
            None => return None,
        };
        self.index[at] = number;
        if self.len().wrapping_mul(2) > self.index.len() {
            let len = self.index.len().wrapping_mul(2);
            self.rebuild(len, |_| true);
        }
        Some(number)
    }

    /// Removes all hosts; memory is kept.
    pub(super) fn clear(&mut self) {
        self.index.fill(NONE);
        self.hosts.clear();
        self.free.clear();
    }

    /// Removes hosts of which `keep` says no; the others keep their numbers.
    pub(super) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        let len = self.index.len();
        self.rebuild(len, keep);
    }

    fn rebuild(&mut self, len: usize, keep: impl Fn(u32) -> bool) {
        let before = std::mem::replace(&mut self.index, vec![NONE; len]);
        for number in before.into_iter().filter(|&number| number != NONE) {
            if !keep(number) {
                self.free.push(number);
                continue;
            }
            let mut at = self.home(self.hosts[number as usize]);
            while self.index[at] != NONE {
                at = at.wrapping_add(1) & len.wrapping_sub(1);
            }
            self.index[at] = number;
        }
    }

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "the low bits are meant")]
    fn home(&self, (family, address): Host) -> usize {
        let (high, low) = ((address >> 64) as u64, address as u64);
        let hash = mix64(low ^ self.seed) ^ high.wrapping_add(family as u64);
        (mix64(hash.wrapping_add(self.seed)) as usize) & self.index.len().wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_come_back() {
        let mut hosts = Hosts::new(3000, 1);
        let host = |n: u32| (AddressFamily::Ipv4, u128::from(n));
        for n in 0..3000 {
            assert_eq!(hosts.number(host(n)), Some(n));
        }
        assert_eq!(hosts.number(host(3000)), None);
        hosts.retain(|number| number % 3 > 0);
        assert_eq!(hosts.len(), 2000);
        for n in (0..3000).filter(|n| n % 3 > 0) {
            assert_eq!(hosts.number(host(n)), Some(n));
        }
        let number = hosts.number(host(9000)).expect("there is room again");
        assert_eq!((number % 3, hosts.host(number)), (0, host(9000)));
        hosts.clear();
        assert_eq!((hosts.number(host(7)), hosts.len()), (Some(0), 1));
    }
}
