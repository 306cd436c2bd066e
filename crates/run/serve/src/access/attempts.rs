//! Failed logins: an address that fails too often has to wait, longer each time, and what it tries
//! meanwhile is not looked at.
//!
//! Those who are logged in already (a cookie) are not concerned, whatever others behind their address
//! do. A login that succeeds does not shorten the wait: a holder of one role's token could else try for
//! another's without end.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use strata_wire::clamped;

/// Failures of an address without a wait.
const FREE: u32 = 5;
/// The first wait; each one after it is twice as long.
const WAIT_MIN: Duration = Duration::from_secs(1);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Failures that are older than this are forgotten.
const FORGOTTEN: Duration = Duration::from_secs(900);
/// Addresses that are told apart; all others are one.
const ADDRESSES_MAX: usize = 1024;
/// Failures that are reported at once, and how many more with each second.
const TOLD_AT_ONCE: u32 = 20;
const TOLD_EACH_SECOND: u32 = 1;

/// Failures of one address.
#[derive(Debug)]
struct Failures {
    count: u32,
    last: Instant,
    /// Until then nothing of it is looked at.
    until: Instant,
    /// Attempts that were not looked at, since the last failure that was reported.
    unseen: u64,
}

/// The report of a failure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// The number of failures of the address.
    pub(crate) count: u32,
    /// How long it has to wait.
    pub(crate) wait: Option<Duration>,
    /// Its attempts that were not looked at before.
    pub(crate) unseen: u64,
    /// Failures, of any address, that were not reported before.
    pub(crate) untold: u64,
}

/// Failures that can still be reported: a bucket that fills with time.
#[derive(Debug)]
struct Budget {
    left: u32,
    filled: Instant,
    untold: u64,
}

#[derive(Debug, Default)]
struct State {
    /// By address; `None` is all those that have no place of their own.
    of: HashMap<Option<IpAddr>, Failures>,
    budget: Option<Budget>,
}

/// The failures of all addresses.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<State>);

/// The address that failures are counted by: of IPv6 the network, which one host can have whole.
fn counted_by(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let network = v6.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        v4 => v4,
    }
}

/// The wait after `count` failures.
fn wait_after(count: u32) -> Option<Duration> {
    let doublings = count.checked_sub(FREE)?;
    let factor = 2_u32.checked_pow(doublings);
    let wait = factor.and_then(|factor| WAIT_MIN.checked_mul(factor));
    Some(wait.map_or(WAIT_MAX, |wait| wait.min(WAIT_MAX)))
}

impl State {
    /// Under which an address is counted, or is to be.
    fn place(&mut self, address: IpAddr, now: Instant) -> Option<IpAddr> {
        let key = Some(counted_by(address));
        if self.of.len() >= ADDRESSES_MAX && !self.of.contains_key(&key) {
            self.of
                .retain(|_, one| now.duration_since(one.last) < FORGOTTEN);
            if self.of.len() >= ADDRESSES_MAX {
                return None;
            }
        }
        key
    }

    /// Whether a failure is reported, and how many were not before it.
    fn tell(&mut self, now: Instant) -> Option<u64> {
        let budget = self.budget.get_or_insert(Budget {
            left: TOLD_AT_ONCE,
            filled: now,
            untold: 0,
        });
        let seconds = now.duration_since(budget.filled).as_secs();
        if seconds > 0 {
            let more = clamped::<u32>(seconds).saturating_mul(TOLD_EACH_SECOND);
            budget.left = budget.left.saturating_add(more).min(TOLD_AT_ONCE);
            budget.filled = now;
        }
        match budget.left.checked_sub(1) {
            Some(left) => {
                budget.left = left;
                Some(std::mem::take(&mut budget.untold))
            }
            None => {
                budget.untold = budget.untold.saturating_add(1);
                None
            }
        }
    }
}

impl Attempts {
    /// Whether an attempt of this address is looked at; else how long that is not so.
    pub(crate) fn may(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = state.place(address, now);
        let Some(failures) = state.of.get_mut(&key) else {
            return Ok(());
        };
        match failures.until.checked_duration_since(now) {
            Some(wait) if !wait.is_zero() => {
                failures.unseen = failures.unseen.saturating_add(1);
                Err(wait)
            }
            _ => Ok(()),
        }
    }

    /// A failure for which no address waits: the number of failures that were not reported before it, unless this one
    /// is not reported either.
    pub(crate) fn seen(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.tell(now)
    }

    /// Counts a failure; what to tell of it, unless there is too much to tell.
    pub(crate) fn failed(&self, address: IpAddr, now: Instant) -> Option<Told> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = state.place(address, now);
        let told = state.tell(now);
        let failures = state.of.entry(key).or_insert(Failures {
            count: 0,
            last: now,
            until: now,
            unseen: 0,
        });
        if now.duration_since(failures.last) >= FORGOTTEN {
            failures.count = 0;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        let wait = wait_after(failures.count);
        // A clock of a machine does not reach its end; if it did, there would be no wait.
        failures.until = wait.and_then(|wait| now.checked_add(wait)).unwrap_or(now);
        let untold = told?;
        Some(Told {
            count: failures.count,
            wait,
            unseen: std::mem::take(&mut failures.unseen),
            untold,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn waits_grow_to_a_bound_and_are_forgotten() {
        let (attempts, who) = (Attempts::default(), address("192.0.2.1"));
        let mut now = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..14 {
            assert_eq!(attempts.may(who, now), Ok(()));
            let told = attempts.failed(who, now).unwrap();
            let wait = told.wait.map_or(0, |wait| wait.as_secs());
            waits.push(wait);
            if wait > 0 {
                let early = now + Duration::from_millis(1);
                assert!(attempts.may(who, early).is_err(), "{wait}");
                assert_eq!(attempts.may(address("192.0.2.2"), early), Ok(()));
            }
            now += Duration::from_secs(wait.max(1));
        }
        assert_eq!(waits, [0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        now += FORGOTTEN;
        assert_eq!(attempts.failed(who, now).unwrap().count, 1);
    }

    #[test]
    fn a_network_of_ipv6_is_one_and_so_is_all_that_has_no_place() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        for host in 0..FREE {
            attempts.failed(address(&format!("2001:db8::{host}")), now);
        }
        assert!(attempts.may(address("2001:db8::ffff"), now).is_err());
        assert_eq!(attempts.may(address("2001:db8:0:1::1"), now), Ok(()));
        // An address of IPv4 in IPv6 is that of IPv4.
        for _ in 0..FREE {
            attempts.failed(address("::ffff:192.0.2.9"), now);
        }
        assert!(attempts.may(address("192.0.2.9"), now).is_err());
        let many = Attempts::default();
        for n in 0..u32::try_from(ADDRESSES_MAX).unwrap() + 3 * FREE {
            let address = IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n));
            many.failed(address, now);
        }
        assert!(many.0.lock().unwrap().of.len() <= ADDRESSES_MAX + 1);
        assert!(many.may(address("198.51.100.1"), now).is_err());
        let later = now + FORGOTTEN;
        assert_eq!(many.may(address("198.51.100.1"), later), Ok(()));
    }

    #[test]
    fn a_flood_is_told_in_few_words_and_all_of_it_is_counted() {
        let (attempts, mut now) = (Attempts::default(), Instant::now());
        let (mut told, mut sum) = (0_u64, 0_u64);
        for n in 0..1000_u32 {
            let address = IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n));
            if let Some(one) = attempts.failed(address, now) {
                (told, sum) = (told + 1, sum + 1 + one.untold);
            }
        }
        assert_eq!(told, u64::from(TOLD_AT_ONCE));
        now += Duration::from_secs(1);
        let next = attempts.failed(address("192.0.2.1"), now).unwrap();
        assert_eq!(sum + next.untold, 1000);
        // Handshakes that fail are told from the same budget, and make no address wait.
        assert_eq!(attempts.seen(now), None);
        now += Duration::from_secs(1);
        assert_eq!(attempts.seen(now), Some(1));
        assert_eq!(attempts.may(address("192.0.2.1"), now), Ok(()));
    }
}
