//! The flows and addresses that a block notes for its summary.

use std::mem;

use strata_wire::dissect::may_hide_addresses;
use strata_wire::{AddressFamily, FlowHasher, FlowKey, Headers, mix64};

use super::{BYTES_PER_NOTE, BlockBuilder, RECENT};
use crate::format::FLAG_HIDES_ADDRESSES;

/// Flows and addresses remembered while a block is sealed, when there is more time: 64 KiB.
const NOTED: usize = 1 << 13;

impl BlockBuilder {
    /// Whether this flow was noted recently, so that it and its addresses need not be noted again.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    fn recorded_recently(&mut self, flow: u64) -> bool {
        let slot = &mut self.recent[flow as usize % RECENT];
        mem::replace(slot, flow) == flow
    }

    /// Notes a fingerprint for the summary.
    #[inline]
    pub fn note(&mut self, fingerprint: u64) {
        if self.fingerprints.len() < 6 * self.block_bytes / BYTES_PER_NOTE {
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

    /// Adds the fingerprints of the plain flows and their addresses.
    pub(super) fn add_plain_fingerprints(&mut self, hasher: &FlowHasher) {
        // A flow seen before adds nothing new, nor does an address shared with another flow.
        let mut noted = vec![0_u64; NOTED];
        #[allow(clippy::cast_possible_truncation)]
        let mut is_new = |key: u64| {
            let slot = mix64(key) as usize % NOTED;
            mem::replace(&mut noted[slot], key) != key
        };
        for &(flow, ends) in &self.plain[..self.plain_len] {
            if !is_new(flow) {
                continue;
            }
            self.fingerprints.push(flow);
            for end in ends {
                // Above all addresses, so that none equals 0, an empty slot.
                if is_new(1 << 32 | u64::from(end)) {
                    let address = hasher.address(AddressFamily::Ipv4, u128::from(end));
                    self.fingerprints.push(address);
                }
            }
        }
    }
}
