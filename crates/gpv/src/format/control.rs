//! Control packets: what an agent sends back to a cache, so that it lets go of slots that gave nothing
//! for long (section 6.1 of the paper).

use zerocopy::{FromBytes, IntoBytes};

use super::FormatError;
use super::layout::ControlHeader;

/// "Strata, grouped packet vectors: control".
const MAGIC: [u8; 4] = *b"SGPC";
const VERSION: u8 = 1;
const HEADER_LEN: usize = size_of::<ControlHeader>();

/// Slots that one packet names at most: it fits into Ethernet's 1,500 bytes.
pub const SLOTS_MAX: usize = 350;

/// Asks a cache to let go of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushSlots<'a> {
    /// Which cache, as its datagrams say.
    pub cache: u32,
    slots: &'a [[u8; 4]],
}

impl<'a> FlushSlots<'a> {
    /// Reads a control packet.
    ///
    /// # Errors
    ///
    /// With the place, if it is none.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let fail = |what, offset| Err(FormatError::new(what, offset, bytes.len()));
        let Ok((header, slots)) = ControlHeader::ref_from_prefix(bytes) else {
            return fail("too short for a control packet", 0);
        };
        if header.magic != MAGIC {
            return fail("no control packet", 0);
        }
        if header.version != VERSION || header.zero != 0 {
            return fail("a control packet of another version", 4);
        }
        let (slots, rest) = slots.as_chunks();
        if !rest.is_empty() || slots.len() != usize::from(header.slots.get()) {
            return fail("another number of slots than follow", 6);
        }
        Ok(Self {
            cache: header.cache.get(),
            slots,
        })
    }

    /// The slots, which the cache may not have.
    pub fn slots(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.slots.iter().map(|slot| u32::from_le_bytes(*slot))
    }
}

/// Writes the control packets that ask `cache` to let go of `slots`.
pub fn flush_slots(cache: u32, slots: &[u32], mut send: impl FnMut(&[u8])) {
    let mut bytes = Vec::with_capacity(HEADER_LEN + 4 * SLOTS_MAX);
    for slots in slots.chunks(SLOTS_MAX) {
        let header = ControlHeader {
            magic: MAGIC,
            version: VERSION,
            zero: 0,
            slots: strata_wire::exact::<u16>(slots.len()).into(),
            cache: cache.into(),
        };
        bytes.clear();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend(slots.iter().flat_map(|slot| slot.to_le_bytes()));
        send(&bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_asked_is_read(cache: u32, slots in prop::collection::vec(any::<u32>(), 0..1000)) {
            let mut read = Vec::new();
            flush_slots(cache, &slots, |bytes| {
                assert!(bytes.len() <= 1452);
                let flush = FlushSlots::new_checked(bytes).unwrap();
                assert_eq!(flush.cache, cache);
                read.extend(flush.slots());
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
        flush_slots(0x0102_0304, &[7, 0xff00], |bytes| {
            packets.push(bytes.to_vec());
        });
        let wanted = b"SGPC\x01\0\x02\0\x04\x03\x02\x01\x07\0\0\0\0\xff\0\0";
        assert_eq!(packets, [wanted]);
        for (at, value, offset) in [(0, b'X', 0), (4, 2, 4), (5, 1, 4), (6, 3, 6), (6, 1, 6)] {
            let mut damaged = wanted.to_vec();
            damaged[at] = value;
            let error = FlushSlots::new_checked(&damaged).expect_err("damaged");
            assert_eq!(error.offset, offset);
        }
        assert!(FlushSlots::new_checked(&wanted[..19]).is_err());
        assert!(FlushSlots::new_checked(&wanted[..11]).is_err());
    }
}
