//! Opening sealed datagrams: each once, and only those of now.

use std::collections::HashMap;
use std::fmt;

use ring::aead::{Aad, LessSafeKey};
use strata_auth::keys::{SALT_LEN, SealKeys};
use zerocopy::FromBytes;

use super::{HEAD_LEN, Head, MAGIC, SEALED_MORE, VERSION, cipher, identity_in, identity_of, nonce};
use crate::datagram;

/// Clocks of senders and readers may differ by this, s: what is older or newer is refused.
const AGE_MAX: u32 = 60;
/// Runs of an identity that are remembered: to several destinations, and of a sender that starts again.
const RUNS_MAX: usize = 8;
/// Identities that are remembered. Those that were silent for so long that none of their datagrams would be
/// taken again make way.
const IDENTITIES_MAX: usize = 4096;
/// How many datagrams back one may be late.
const WINDOW: u64 = 1024;
const WORDS: usize = 16;

/// Why a datagram is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SealError {
    /// The datagram is not sealed, or cut.
    #[error("not encrypted")]
    Clear,
    /// The key that the datagram names is not known.
    #[error("encrypted with a key that is not known")]
    NoKey,
    /// The datagram was not sent in this form by an owner of the key.
    #[error("forged, or damaged")]
    Forged,
    /// The datagram's time differs too much from the clock.
    #[error("sent more than {AGE_MAX} s ago, or in the future: are the clocks right?")]
    Old,
    /// The datagram was accepted before, or arrived too late to tell.
    #[error("sent again")]
    Repeated,
    /// There are too many identities.
    #[error("too many identities: no more can be remembered")]
    TooMany,
}

/// The last datagrams of a run, by their numbers.
#[derive(Debug, Default)]
struct Window {
    seen: [u64; WORDS],
    next: u64,
}

impl Window {
    fn place(number: u64) -> (usize, u64) {
        let place = usize::try_from(number % WINDOW).expect("it is below 1,024");
        (place / 64, 1 << (place % 64))
    }

    fn is_new(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        number >= self.next
            || (self.next.wrapping_sub(number) <= WINDOW && self.seen[word] & bit == 0)
    }

    fn take(&mut self, number: u64) {
        // Places of numbers that were skipped are those of old ones.
        let skipped = number.saturating_sub(self.next).min(WINDOW);
        for back in 1..=skipped {
            let (word, bit) = Self::place(number.wrapping_sub(back));
            self.seen[word] &= !bit;
        }
        let (word, bit) = Self::place(number);
        self.seen[word] |= bit;
        self.next = self.next.max(number.saturating_add(1));
    }
}

/// A run that has shown its key.
struct Run {
    key: u32,
    salt: [u8; SALT_LEN],
    cipher: LessSafeKey,
    window: Window,
    /// The latest time of its datagrams.
    latest: u32,
}

#[derive(Default)]
struct Identity {
    runs: Vec<Run>,
    /// Runs that are not remembered have nothing that is later.
    floor: u32,
}

impl Identity {
    fn latest(&self) -> u32 {
        let runs = self.runs.iter().map(|run| run.latest);
        runs.fold(self.floor, u32::max)
    }

    /// Remembers a run in the place of the one that has been silent for longest.
    fn add(&mut self, run: Run) {
        if self.runs.len() >= RUNS_MAX {
            let oldest = (0..self.runs.len()).min_by_key(|at| self.runs[*at].latest);
            let gone = self.runs.swap_remove(oldest.expect("there are several"));
            self.floor = self.floor.max(gone.latest);
        }
        self.runs.push(run);
    }
}

/// Opens sealed datagrams.
pub struct Opener {
    keys: SealKeys,
    identities: HashMap<u32, Identity>,
    opened: Vec<u8>,
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener")
    }
}

impl Opener {
    /// An opener with these keys.
    #[must_use]
    pub fn new(keys: SealKeys) -> Self {
        Self {
            keys,
            identities: HashMap::new(),
            opened: Vec::new(),
        }
    }

    /// Uses other keys from now on. Runs with a removed key are refused.
    pub fn use_keys(&mut self, keys: SealKeys) {
        for (number, identity) in &mut self.identities {
            let (good, gone): (Vec<Run>, Vec<Run>) = std::mem::take(&mut identity.runs)
                .into_iter()
                .partition(|run| keys.to_open(*number, run.key).is_some());
            let latest = gone.iter().map(|run| run.latest);
            identity.floor = latest.fold(identity.floor, u32::max);
            identity.runs = good;
        }
        self.keys = keys;
    }

    /// The datagram in a sealed one that came at this time (seconds since 1970).
    ///
    /// # Errors
    ///
    /// If it is not sealed, sealed without a known key, changed in transit, too old or from the future, or a
    /// repetition.
    pub fn open(&mut self, sealed: &[u8], now: u32) -> Result<&[u8], SealError> {
        if sealed.len() < SEALED_MORE + datagram::HEADER_LEN {
            return Err(SealError::Clear);
        }
        let (head_bytes, rest) = sealed.split_at(HEAD_LEN);
        let head = Head::read_from_bytes(head_bytes).map_err(|_| SealError::Clear)?;
        if head.magic != MAGIC || head.version != VERSION || head.reserved != 0 {
            return Err(SealError::Clear);
        }
        let (identity, number, time) = (
            identity_of(head.identity),
            head.number.get(),
            head.time.get(),
        );
        if time.abs_diff(now) > AGE_MAX {
            return Err(SealError::Old);
        }
        let mut open = |cipher: &LessSafeKey| {
            self.opened.clear();
            self.opened.extend_from_slice(rest);
            let aad = Aad::from(head_bytes);
            let opened = cipher.open_in_place(nonce(number), aad, &mut self.opened);
            let len = opened.map_err(|_| SealError::Forged)?.len();
            // A sender with the key of an identity has no other.
            match identity_in(&self.opened) == identity {
                true => Ok(len),
                false => Err(SealError::Forged),
            }
        };
        let known = self.identities.get_mut(&identity);
        let is_it = |run: &&mut Run| run.salt == head.salt && run.key == head.key.get();
        let run = known.and_then(|known| known.runs.iter_mut().find(is_it));
        if let Some(run) = run {
            if !run.window.is_new(number) {
                return Err(SealError::Repeated);
            }
            let len = open(&run.cipher)?;
            run.window.take(number);
            run.latest = run.latest.max(time);
            return Ok(&self.opened[..len]);
        }
        let key = self.keys.to_open(identity, head.key.get());
        let cipher = cipher(&key.ok_or(SealError::NoKey)?.of_run(&head.salt));
        let len = open(&cipher)?;
        let mut run = Run {
            key: head.key.get(),
            salt: head.salt,
            cipher,
            window: Window::default(),
            latest: time,
        };
        run.window.take(number);
        self.remember(identity, run, now)?;
        Ok(&self.opened[..len])
    }

    /// Remembers a run that has shown its key, if it is not one that was forgotten.
    fn remember(&mut self, identity: u32, run: Run, now: u32) -> Result<(), SealError> {
        if !self.identities.contains_key(&identity) && self.identities.len() >= IDENTITIES_MAX {
            let is_fresh =
                |_: &u32, one: &mut Identity| one.latest().saturating_add(AGE_MAX) >= now;
            self.identities.retain(is_fresh);
            if self.identities.len() >= IDENTITIES_MAX {
                return Err(SealError::TooMany);
            }
        }
        let known = self.identities.entry(identity).or_default();
        if run.latest <= known.floor {
            return Err(SealError::Repeated);
        }
        known.add(run);
        Ok(())
    }
}
