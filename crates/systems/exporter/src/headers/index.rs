//! Where a writer finds what the model knows: flows and addresses at their places, heads by themselves,
//! starts of frames by comparing.

use super::code;
use super::key::{Key, place};
use super::kind::{HEADS, Head, USUAL};
use super::model::{Model, PLACE_BITS_V6, PREFIXES, ethernet_words};

/// A flow of the datagram, and which of its directions: 0 is that of its first packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) context: u8,
    pub(super) side: usize,
}

/// In place of a head's number.
const NO_HEAD: u8 = 31;
const _: () = assert!(NO_HEAD as usize == HEADS);

const ETHERNET_PLACES: usize = PREFIXES.next_power_of_two();
/// In place of an Ethernet header's words: they overlap in two bytes, which differ here.
const NO_ETHERNET: [u64; 2] = [0, u64::MAX];

#[derive(Debug)]
pub(super) struct Index {
    /// Numbers of heads.
    heads: Box<[u8; Head::COUNT]>,
    /// Whether they are others than at the start of a datagram.
    has_learned: bool,
    /// Numbers of Ethernet headers by hash.
    prefixes: [u8; 256],
    /// These headers, as [`ethernet_words`]; what has another form, or is not known, is like none of them.
    ethernet: [[u64; 2]; ETHERNET_PLACES],
}

impl Index {
    pub(super) fn new() -> Self {
        Self {
            heads: Box::new([NO_HEAD; Head::COUNT]),
            has_learned: true,
            prefixes: [0; 256],
            ethernet: [NO_ETHERNET; ETHERNET_PLACES],
        }
    }

    /// Forgets what a model remembers, which is about to start again.
    pub(super) fn restart(&mut self, m: &Model) {
        if std::mem::take(&mut self.has_learned) {
            for &head in &m.heads {
                self.heads[usize::from(head) % Head::COUNT] = NO_HEAD;
            }
            for (number, &head) in (0..).zip(&USUAL) {
                self.heads[usize::from(head) % Head::COUNT] = number;
            }
        }
        self.ethernet[..m.prefix_count].fill(NO_ETHERNET);
    }

    /// The number of an Ethernet header; [`PREFIXES`] if it is not known, or shares a place with another.
    #[inline(always)]
    pub(super) fn find_ethernet(&self, bytes: &[u8; 14]) -> usize {
        let wanted = ethernet_words(bytes);
        let number = usize::from(self.prefixes[usize::from(place(wanted[1]))]);
        if self.ethernet[number % ETHERNET_PLACES] == wanted {
            number
        } else {
            PREFIXES
        }
    }

    /// What is before IP, which is remembered: the number that is written, [`PREFIXES`] for a new one; and
    /// the number that it has.
    #[inline(always)]
    pub(super) fn prefix(&mut self, m: &mut Model, bytes: &[u8]) -> (usize, usize) {
        if let Some(number) = m.find_prefix(bytes) {
            return (number, number);
        }
        let number = m.add_prefix(bytes);
        let known = &mut self.ethernet[number % ETHERNET_PLACES];
        *known = NO_ETHERNET;
        if let Ok(bytes) = bytes.try_into() {
            *known = ethernet_words(bytes);
            self.prefixes[usize::from(place(known[1]))] = number.to_le_bytes()[0];
        }
        (PREFIXES, number)
    }

    /// The number of a head that is known.
    #[inline(always)]
    pub(super) fn find_head(&self, head: Head) -> Option<u8> {
        let known = self.heads[usize::from(head.0) % Head::COUNT];
        (known != NO_HEAD).then_some(known)
    }

    /// The number of a head; [`HEADS`] if it is not known, but will be.
    #[inline(always)]
    pub(super) fn head(&mut self, m: &Model, head: Head) -> u8 {
        let known = self.heads[usize::from(head.0) % Head::COUNT];
        if known == NO_HEAD {
            self.learn_head(m, head);
        }
        known
    }

    #[cold]
    fn learn_head(&mut self, m: &Model, head: Head) {
        self.has_learned = true;
        let number = m.next_head();
        self.heads[usize::from(m.heads[number]) % Head::COUNT] = NO_HEAD;
        self.heads[usize::from(head.0) % Head::COUNT] = strata_wire::exact::<u8>(number);
    }
}

/// A flow that is known.
#[inline(always)]
pub(super) fn flow(m: &Model, key: &Key) -> Result<Found, u8> {
    let context = key.place();
    match m.context(context) {
        Some(known) if known.key.is(key) => Ok(Found { context, side: 0 }),
        Some(known) if known.key.is(&key.reversed()) => Ok(Found { context, side: 1 }),
        _ => Err(context),
    }
}

/// How an IPv4 address of a new flow is written, the source's (0) or the destination's; it is remembered.
#[inline(always)]
pub(super) fn address(m: &mut Model, prefix: usize, end: usize, address: u32) -> Address {
    let (place, is_known) = m.add_address(address);
    let near = &mut m.prefix_mut(prefix).near[end];
    let new = code::address(address, *near);
    near.follow(address);
    let code = if is_known { 0 } else { new };
    let value = if is_known { place.into() } else { address };
    Address {
        code,
        value: u64::from(value & code::ADDRESS_MASKS[code & 7]),
        width: code::ADDRESS[code & 7],
        bytes: 0,
    }
}

/// The same of IPv6.
#[inline(always)]
pub(super) fn address_v6(m: &mut Model, prefix: usize, end: usize, address: u128) -> Address {
    let (place, is_known) = m.add_address_v6(address);
    let near = &mut m.prefix_mut(prefix).near_v6[end];
    let differs = address ^ *near;
    let new = usize::from(differs >> 64 != 0)
        .wrapping_add(1)
        .wrapping_add(usize::from(differs >> 80 != 0));
    *near = address;
    let code = if is_known { 0 } else { new };
    Address {
        code,
        value: if is_known { place.into() } else { 0 },
        width: if is_known { PLACE_BITS_V6 } else { 0 },
        bytes: code::ADDRESS_V6[code & 7],
    }
}

/// How an address of a new flow is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    pub(super) code: usize,
    /// In bits.
    pub(super) value: u64,
    pub(super) width: u32,
    /// How many of its last ones follow, of IPv6.
    pub(super) bytes: u32,
}

impl Address {
    pub(super) const NONE: Self = Self {
        code: 0,
        value: 0,
        width: 0,
        bytes: 0,
    };
}
