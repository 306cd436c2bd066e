//! The flows and addresses that a block notes for its summary.

use std::mem;

use strata_wire::dissect::may_hide_addresses;
use strata_wire::wide::{Kernel, Lanes, Simd};
use strata_wire::{AddressFamily, FlowHasher, FlowKey, Headers, mix64};

use super::{BYTES_PER_OTHER, BlockBuilder, NOTES_PER_OTHER, RECENT};
use crate::filter::{Distinct, Filter};
use crate::format::FLAG_HIDES_ADDRESSES;

impl BlockBuilder {
    /// Whether this flow was noted recently, so that it and its addresses need not be noted again.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    fn recorded_recently(&mut self, flow: u64) -> bool {
        let slot = &mut self.recent[flow as usize % RECENT];
        // What earlier fillings have left there has other salts: it equals by chance alone, as
        // fingerprints do.
        let salted = flow.wrapping_add(self.salt);
        mem::replace(slot, salted) == salted
    }

    /// Notes a fingerprint for the summary.
    #[inline]
    pub fn note(&mut self, fingerprint: u64) {
        if self.fingerprints.len() < NOTES_PER_OTHER * self.block_bytes / BYTES_PER_OTHER {
            self.fingerprints.push(fingerprint);
        } else {
            self.notes_full = true;
        }
    }

    /// Notes the fingerprint of a flow and the IPv4 addresses of its ends, unless they were noted
    /// recently: without a branch, as it could not be predicted.
    #[inline(always)]
    pub fn note_plain(&mut self, fingerprint: u64, ends: [u32; 2]) {
        let noted = self.recorded_recently(fingerprint);
        match self.plain.get_mut(self.plain_len) {
            Some(note) => {
                *note = (fingerprint, ends);
                self.plain_len += usize::from(!noted);
            }
            None => self.notes_full = true,
        }
    }

    /// The same for several packets, of which each column has as many.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    pub fn note_plain_run(&mut self, flows: &[u64], sources: &[u32], destinations: &[u32]) {
        let ends = sources.iter().zip(destinations);
        let packets = flows.iter().zip(ends);
        let room = &mut self.plain[self.plain_len..];
        if room.len() < flows.len() {
            packets.for_each(|(&flow, (&from, &to))| self.note_plain(flow, [from, to]));
            return;
        }
        let mut noted = 0;
        for (&flow, (&source, &destination)) in packets {
            let slot = &mut self.recent[flow as usize % RECENT];
            let salted = flow.wrapping_add(self.salt);
            room[noted] = (flow, [source, destination]);
            noted += usize::from(mem::replace(slot, salted) != salted);
        }
        self.plain_len += noted;
    }

    /// Notes the flows and addresses of a packet's headers; `fingerprint` is that of its key.
    #[inline(never)]
    pub fn note_headers(&mut self, headers: &Headers, fingerprint: u64, hasher: &FlowHasher) {
        if may_hide_addresses(headers) || headers.key.is_none() {
            self.header.flags |= FLAG_HIDES_ADDRESSES;
        }
        let Some(key) = &headers.key else {
            return;
        };
        let outer = headers.outer.map(|key| (key, hasher.flow(&key)));
        let identity = fingerprint ^ outer.map_or(0, |(_, flow)| mix64(flow));
        if self.recorded_recently(identity) {
            return;
        }
        let mut note_flow = |key: &FlowKey, flow: u64| {
            self.note(flow);
            for end in [key.low, key.high] {
                self.note(hasher.address(key.family, end.address));
            }
        };
        note_flow(key, fingerprint);
        if let Some((key, flow)) = outer {
            note_flow(&key, flow);
        }
    }

    /// The filter of all flows and addresses noted, which is what the recent ones were for.
    pub(super) fn filter(&mut self, hasher: &FlowHasher) -> Filter {
        self.next_salt();
        let fill = Fill {
            plain: &self.plain[..self.plain_len],
            others: &self.fingerprints,
            addresses: &mut self.addresses,
            recent: &mut self.recent,
            // In the high half, so that only an address found before equals it, but for chance.
            tag: u64::from(self.generation) << 32,
            hasher,
        };
        match Simd::best() {
            Some(simd) => simd.run(fill),
            None => fill.filter(),
        }
    }

    /// Forgets what was noted recently, without touching it.
    pub(super) fn next_salt(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.salt = mix64(self.generation.into());
    }
}

/// Makes a filter of what a block has noted.
struct Fill<'a> {
    plain: &'a [(u64, [u32; 2])],
    others: &'a [u64],
    addresses: &'a mut [u32],
    recent: &'a mut [u64; RECENT],
    tag: u64,
    hasher: &'a FlowHasher,
}

impl Fill<'_> {
    #[inline(always)]
    fn filter(self) -> Filter {
        let mut distinct = Distinct::among(self.plain.len() + self.others.len());
        let mut addresses = 0;
        for &(flow, ends) in self.plain {
            distinct.add(flow);
            for end in ends {
                self.addresses[addresses] = end;
                addresses += usize::from(is_new(self.recent, self.tag, end));
            }
        }
        self.others.iter().for_each(|&key| distinct.add(key));
        let mut filter = Filter::for_keys(distinct.count() + addresses);
        for &(flow, _) in self.plain {
            filter.insert(flow);
        }
        for &key in self.others {
            filter.insert(key);
        }
        for &address in &self.addresses[..addresses] {
            let address = u128::from(address);
            filter.insert(self.hasher.address(AddressFamily::Ipv4, address));
        }
        filter
    }
}

/// Whether an address was not found recently.
#[inline(always)]
fn is_new(recent: &mut [u64; RECENT], tag: u64, address: u32) -> bool {
    const BITS: u32 = RECENT.trailing_zeros();
    let slot = address.wrapping_mul(0x9e37_79b1) >> (u32::BITS - BITS);
    let entry = tag | u64::from(address);
    mem::replace(&mut recent[slot as usize % RECENT], entry) != entry
}

impl Kernel for Fill<'_> {
    type Output = Filter;

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) -> Filter {
        self.filter()
    }
}
