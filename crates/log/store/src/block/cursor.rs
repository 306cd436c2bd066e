//! A position among the records of a block, which it owns: a merge of several blocks can switch
//! between them without decoding a record twice.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use strata_blocks::{BadRecord, Head, Record, RecordPlace, Records};

use crate::block::Block;

/// The records of a block, one after another.
#[derive(Debug)]
pub struct Cursor {
    block: Block,
    place: RecordPlace,
}

impl Cursor {
    /// Positioned before the first record of a block.
    #[must_use]
    pub fn new(block: Block) -> Self {
        Self {
            place: RecordPlace::first(block.header.first_seq),
            block,
        }
    }

    /// The next record, and its block.
    ///
    /// # Errors
    ///
    /// What is wrong with the record; no record follows.
    pub fn advance(&mut self) -> Option<(&Block, Result<Record<'_>, BadRecord>)> {
        let mut records = Records::at(self.block.body(), std::mem::take(&mut self.place));
        let next = records.next();
        self.place = records.into_place();
        next.map(|record| (&self.block, record))
    }

    /// What [`Cursor::advance`] will return, without decoding it; `None` at the end.
    #[must_use]
    pub fn peek(&self) -> Option<Head> {
        self.place.peek(self.block.body())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use strata_blocks::{BlockHeader, PACKET_HEADER_LEN, Summary};

    use super::*;

    fn block(body: Vec<u8>) -> Block {
        Block {
            header: BlockHeader::default(),
            summary: Summary::default(),
            file: String::from("a file"),
            offset: 0,
            ends: (0, 0),
            incomplete: 0,
            undefined: 0,
            damaged_segments: Vec::new(),
            body: body.into(),
        }
    }

    /// A record of a known kind, or of an unknown one.
    fn record() -> impl Strategy<Value = Vec<u8>> {
        let len = 0..2 * PACKET_HEADER_LEN;
        (
            0..13_u8,
            0..32_u8,
            any::<u16>(),
            prop::collection::vec(any::<u8>(), len),
        )
            .prop_map(|(kind, flags, reference, content)| {
                let mut record = vec![kind, flags];
                record.extend_from_slice(&reference.to_le_bytes());
                let len = u32::try_from(content.len()).unwrap();
                record.extend_from_slice(&len.to_le_bytes());
                record.extend_from_slice(&content);
                record
            })
    }

    /// A block that ends with a time that is too short is damaged, not at its end.
    #[test]
    fn a_time_that_is_too_short_is_announced() {
        let mut cursor = Cursor::new(block(vec![11, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(cursor.peek(), Some(Head::Other));
        assert!(matches!(cursor.advance(), Some((_, Err(_)))));
    }

    proptest! {
        /// A cursor returns what an iterator over the same bytes does, and announces it correctly,
        /// for torn bodies too.
        #[test]
        fn a_cursor_goes_where_the_iterator_goes(
            records in prop::collection::vec(record(), 0..12),
            torn in 0..8_usize,
        ) {
            let mut body = records.concat();
            body.truncate(body.len().saturating_sub(torn));
            let naive = block(body.clone());
            let mut cursor = Cursor::new(block(body));
            for expected in naive.records() {
                let head = cursor.peek();
                prop_assert_eq!(cursor.advance().map(|(_, record)| record), Some(expected.clone()));
                if let Ok(Record::Packet(packet)) = expected {
                    let (ts_ns, interface) = (packet.ts_ns, packet.interface);
                    prop_assert_eq!(head, Some(Head::Packet { ts_ns, interface }));
                }
                prop_assert!(head.is_some());
            }
            prop_assert_eq!(cursor.peek(), None);
            prop_assert!(cursor.advance().is_none());
        }
    }
}
