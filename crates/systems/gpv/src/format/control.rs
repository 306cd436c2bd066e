//! Control packets: what an agent sends back to a cache, so that it lets go of slots that gave nothing
//! for long (section 6.1 of the paper).
//!
//! They name ranges of slots, so that asking for a whole cache takes less than the smallest datagram that
//! the cache sends: an agent must never send more to an address than came from it, since senders can be
//! forged.

use zerocopy::{FromBytes, IntoBytes};

use super::FormatError;
use super::layout::ControlHeader;

/// "Strata, grouped packet vectors: control".
const MAGIC: [u8; 4] = *b"SGPC";
const VERSION: u8 = 2;
const HEADER_LEN: usize = size_of::<ControlHeader>();
const RANGE_LEN: usize = 8;

/// Maximum number of ranges that one packet names: it fits into Ethernet's 1,500 bytes.
pub const RANGES_MAX: usize = 175;

/// Asks a cache to let go of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushSlots<'a> {
    /// Which cache, as its datagrams say.
    pub cache: u32,
    ranges: &'a [[u8; RANGE_LEN]],
}

impl<'a> FlushSlots<'a> {
    /// Reads a control packet.
    ///
    /// # Errors
    ///
    /// With the place, if it is invalid.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let fail = |what, offset| Err(FormatError::new(what, offset, bytes.len()));
        let Ok((header, ranges)) = ControlHeader::ref_from_prefix(bytes) else {
            return fail("too short for a control packet", 0);
        };
        if header.magic != MAGIC {
            return fail("not a control packet", 0);
        }
        if header.version != VERSION || header.zero != 0 {
            return fail("a control packet of another version", 4);
        }
        let (ranges, rest) = ranges.as_chunks();
        if !rest.is_empty() || ranges.len() != usize::from(header.ranges.get()) {
            return fail(
                "a count of ranges that differs from the ranges that follow",
                6,
            );
        }
        let mut next = 0;
        for range in ranges.iter().map(first_and_slots) {
            let (first, slots) = (u64::from(range.0), u64::from(range.1));
            if first < next || slots == 0 {
                return fail(
                    "ranges of slots that are not in ascending order",
                    HEADER_LEN,
                );
            }
            next = first.saturating_add(slots);
        }
        Ok(Self {
            cache: header.cache.get(),
            ranges,
        })
    }

    /// The slots below `slots_max`, each once: those that the cache has.
    pub fn slots(&self, slots_max: u32) -> impl Iterator<Item = u32> + use<'a> {
        self.ranges.iter().flat_map(move |range| {
            let (first, slots) = first_and_slots(range);
            first..first.saturating_add(slots).min(slots_max)
        })
    }
}

fn first_and_slots(range: &[u8; RANGE_LEN]) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = *range;
    (
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    )
}

/// Writes the control packets that ask `cache` to let go of `slots`, which ascend.
pub fn flush_slots(cache: u32, slots: &[u32], mut send: impl FnMut(&[u8])) {
    let ranges: Vec<&[u32]> = slots
        .chunk_by(|slot, next| slot.checked_add(1) == Some(*next))
        .collect();
    let mut bytes = Vec::with_capacity(HEADER_LEN + RANGE_LEN * RANGES_MAX);
    for ranges in ranges.chunks(RANGES_MAX) {
        let header = ControlHeader {
            magic: MAGIC,
            version: VERSION,
            zero: 0,
            ranges: strata_wire::exact::<u16>(ranges.len()).into(),
            cache: cache.into(),
        };
        bytes.clear();
        bytes.extend_from_slice(header.as_bytes());
        for range in ranges {
            // A chunk has an element.
            bytes.extend_from_slice(&range[0].to_le_bytes());
            bytes.extend_from_slice(&strata_wire::exact::<u32>(range.len()).to_le_bytes());
        }
        send(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_asked_is_read(
            cache: u32,
            slots in prop::collection::btree_set(prop_oneof![0..3000_u32, any::<u32>()], 0..1000),
        ) {
            let slots: Vec<u32> = slots.into_iter().filter(|slot| *slot < u32::MAX).collect();
            let mut read = Vec::new();
            flush_slots(cache, &slots, |bytes| {
                assert!(bytes.len() <= 1452);
                let flush = FlushSlots::new_checked(bytes).unwrap();
                assert_eq!(flush.cache, cache);
                read.extend(flush.slots(u32::MAX));
            });
            prop_assert_eq!(read, slots);
        }

        #[test]
        fn whatever_comes_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = FlushSlots::new_checked(&bytes);
        }
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let mut packets = Vec::new();
        flush_slots(0x0102_0304, &[7, 8, 9, 0xff00], |bytes| {
            packets.push(bytes.to_vec());
        });
        let wanted = b"SGPC\x02\0\x02\0\x04\x03\x02\x01\x07\0\0\0\x03\0\0\0\0\xff\0\0\x01\0\0\0";
        assert_eq!(packets, [wanted]);
        // Slots that the cache does not have are left out, however many are requested.
        let few = FlushSlots::new_checked(wanted).unwrap().slots(9);
        assert_eq!(few.collect::<Vec<u32>>(), [7, 8]);
        for (at, value, offset) in [
            (0, b'X', 0),
            (4, 1, 4),
            (5, 1, 4),
            (6, 3, 6),
            (6, 1, 6),
            (16, 0, 12),
        ] {
            let mut damaged = wanted.to_vec();
            damaged[at] = value;
            let error = FlushSlots::new_checked(&damaged).expect_err("damaged");
            assert_eq!(error.offset, offset, "{at}");
        }
        // Two ranges that overlap.
        let mut damaged = wanted.to_vec();
        damaged[20..24].copy_from_slice(&9_u32.to_le_bytes());
        assert!(FlushSlots::new_checked(&damaged).is_err());
        assert!(FlushSlots::new_checked(&wanted[..27]).is_err());
        assert!(FlushSlots::new_checked(&wanted[..11]).is_err());
    }

    /// Asking for all of a cache costs less than its smallest datagram brings.
    #[test]
    fn a_whole_cache_is_asked_for_in_one_small_packet() {
        let slots: Vec<u32> = (0..1 << 20).collect();
        let mut packets = Vec::new();
        flush_slots(0, &slots, |bytes| packets.push(bytes.len()));
        assert_eq!(packets, [HEADER_LEN + RANGE_LEN]);
        assert!(packets[0] <= 24);
    }
}
