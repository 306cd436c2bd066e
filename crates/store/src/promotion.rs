//! Packets that were logged as headers and promoted later: their whole bytes are in separate
//! records, after the packets' records. A reader of the log sees each packet once, whole, where its
//! header was.
//!
//! ```text
//!  0 kind 9 | granularity before u8 | class u8 | flags u8 | length u32
//!  8 seq u64                of the packet, of the same worker
//! 16 kept_len u32           bytes of it that its own record holds
//! 20 wire_len u32
//! 24 verdict u16            if flag bit 0; defined in this block: says what triggered it
//! 26 every byte that was captured
//! ```

use std::collections::{BTreeMap, BTreeSet};

use strata_wire::Keep;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

use crate::blocks::Block;
use crate::disk::Disk;
use crate::error::{StoreError, io_error};
use crate::format::{FLAG_PROMOTES, HEADER_LEN, PACKET_HEADER_LEN, PREFIX_LEN, kind, record_len};
use crate::layout::{Prefix, PromotionBytes};
use crate::records::{RawPacket, RawRecord, Records};
use crate::summary::ClassCount;

/// Bytes of a promotion before the packet's bytes, at most.
pub const PROMOTION_HEADER_LEN: usize = 26;
/// The same without a verdict, as older versions wrote it.
const WITHOUT_VERDICT_LEN: usize = size_of::<PromotionBytes>();
/// Flag: a verdict replaces the packet's.
const HAS_VERDICT: u8 = 1;

/// A packet that was logged in part and is now written whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promotion<'a> {
    /// Its sequence number.
    pub seq: u64,
    /// Its verdict's class.
    pub class: u8,
    /// How much of it was kept; see [`Keep::code`].
    pub keep_code: u8,
    /// Bytes in its own record.
    pub kept_len: u32,
    /// Bytes on the wire.
    pub wire_len: u32,
    /// The verdict that replaces the packet's, defined in the promotion's block.
    pub verdict: Option<u16>,
    /// Every byte that was captured.
    pub data: &'a [u8],
}

impl<'a> Promotion<'a> {
    /// The header, and its length in bytes.
    pub(crate) fn emit_header(&self) -> ([u8; PROMOTION_HEADER_LEN], usize) {
        let len = match self.verdict {
            Some(_) => PROMOTION_HEADER_LEN,
            None => WITHOUT_VERDICT_LEN,
        };
        let flags = self.verdict.map_or(0, |_| HAS_VERDICT);
        let head = PromotionBytes {
            prefix: Prefix {
                kind: kind::PROMOTION,
                flags: self.keep_code,
                reference: u16::from_le_bytes([self.class, flags]).into(),
                len: record_len(len - PREFIX_LEN + self.data.len()).into(),
            },
            seq: self.seq.into(),
            kept_len: self.kept_len.into(),
            wire_len: self.wire_len.into(),
        };
        let mut out = [0; PROMOTION_HEADER_LEN];
        out[..WITHOUT_VERDICT_LEN].copy_from_slice(head.as_bytes());
        if let Some(verdict) = self.verdict {
            out[WITHOUT_VERDICT_LEN..].copy_from_slice(&verdict.to_le_bytes());
        }
        (out, len)
    }

    /// The promotions among a block's records, each with the offset of its bytes.
    fn all(body: &'a [u8]) -> impl Iterator<Item = (usize, Self)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            loop {
                let rest = body.get(at..)?;
                let (prefix, _) = Prefix::ref_from_prefix(rest).ok()?;
                let len = PREFIX_LEN.checked_add(prefix.len.get() as usize)?;
                let record = rest.get(..len)?;
                let start = at;
                at += record.len();
                if prefix.kind != kind::PROMOTION {
                    continue;
                }
                let (head, data) = PromotionBytes::ref_from_prefix(record).ok()?;
                let [class, flags] = prefix.reference.get().to_le_bytes();
                let (verdict, data) = if flags & HAS_VERDICT != 0 {
                    let (verdict, data) = U16::read_from_prefix(data).ok()?;
                    (Some(verdict.get()), data)
                } else {
                    (None, data)
                };
                let promotion = Self {
                    seq: head.seq.get(),
                    class,
                    keep_code: prefix.flags & 3,
                    kept_len: head.kept_len.get(),
                    wire_len: head.wire_len.get(),
                    verdict,
                    data,
                };
                return Some((start + record.len() - data.len(), promotion));
            }
        })
    }
}

/// Location of the whole bytes of a packet.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Index into the files.
    file: usize,
    at: u64,
    len: u32,
    kept_len: u32,
    wire_len: u32,
    class: u8,
    keep_code: u8,
    verdict: Option<u16>,
}

/// The promotions of a recording. Memory: some 60 bytes each, plus the definitions of what
/// triggered them.
#[derive(Debug, Default)]
pub(crate) struct Promotions {
    files: Vec<String>,
    /// The records that define verdicts of promotions, by worker and number.
    verdicts: BTreeMap<(u16, u16), Vec<u8>>,
    /// By worker and sequence number.
    places: BTreeMap<(u16, u64), Place>,
}

impl Promotions {
    /// Adds those in a block of a file.
    pub(crate) fn add(&mut self, file: &str, block: &Block) {
        if self.files.last().is_none_or(|last| last != file) {
            self.files.push(file.to_owned());
        }
        for (at, promotion) in Promotion::all(block.body()) {
            let place = Place {
                file: self.files.len() - 1,
                at: block.offset + (HEADER_LEN + at) as u64,
                len: record_len(promotion.data.len()),
                kept_len: promotion.kept_len,
                wire_len: promotion.wire_len,
                class: promotion.class,
                keep_code: promotion.keep_code,
                verdict: promotion.verdict,
            };
            self.places
                .insert((block.header.worker, promotion.seq), place);
        }
        self.add_verdicts(block);
    }

    /// Adds the definitions of the verdicts of a block's promotions.
    fn add_verdicts(&mut self, block: &Block) {
        let worker = block.header.worker;
        let wanted: BTreeSet<u16> = Promotion::all(block.body())
            .filter_map(|(_, promotion)| promotion.verdict)
            .filter(|id| !self.verdicts.contains_key(&(worker, *id)))
            .collect();
        if wanted.is_empty() {
            return;
        }
        let mut records = Records::new(block.body(), block.header.first_seq);
        while let Some(Ok(record)) = records.next_raw() {
            if let RawRecord::Other {
                verdict: Some((id, _)),
                bytes,
                ..
            } = record
                && wanted.contains(&id)
            {
                self.verdicts.insert((worker, id), bytes.to_vec());
            }
        }
    }

    /// Completes the promoted packets of a block, and removes promotions. In a block without
    /// records, the counts are corrected.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub(crate) fn apply(&self, disk: &dyn Disk, block: &mut Block) -> Result<(), StoreError> {
        let worker = block.header.worker;
        let first = block.header.first_seq;
        // A crafted block's sequence numbers may run backwards.
        let of_block = self
            .places
            .range((worker, first)..(worker, block.header.next_seq.max(first)));
        let mut whole: BTreeMap<u64, Whole> = BTreeMap::new();
        let mut opened = None;
        for (&(_, seq), place) in of_block {
            count(&mut block.summary.counts, place);
            let more = u64::from(place.len.saturating_sub(place.kept_len));
            block.header.logged_bytes = block.header.logged_bytes.saturating_add(more);
            if block.body().is_empty() {
                continue;
            }
            let name = &self.files[place.file];
            let fail = |action| io_error(disk.display(name), action);
            let file = match &opened {
                Some((index, file)) if *index == place.file => file,
                _ => {
                    let file = disk.open(name, false).map_err(fail("open"))?;
                    &opened.insert((place.file, file)).1
                }
            };
            let mut data = vec![0; place.len as usize];
            let read = file.read_at(&mut data, place.at).map_err(fail("read"))?;
            if read == data.len() {
                let verdict = place.verdict;
                whole.insert(seq, Whole { data, verdict });
            }
        }
        if !whole.is_empty() || block.header.flags & FLAG_PROMOTES != 0 {
            let body = self.rewritten(block, &whole);
            block.header.body_len = record_len(body.len());
            block.replace_body(body);
        }
        block.header.flags &= !FLAG_PROMOTES;
        Ok(())
    }
}

/// Moves a packet from one granularity to the other.
fn count(counts: &mut Vec<ClassCount>, place: &Place) {
    let full = Keep::Full.code();
    let of = |keep_code: u8| {
        move |count: &ClassCount| count.class == place.class && count.keep_code == keep_code
    };
    let wire_bytes = u64::from(place.wire_len.max(place.len));
    let Some(before) = counts.iter_mut().find(|count| of(place.keep_code)(count)) else {
        return;
    };
    before.packets = before.packets.saturating_sub(1);
    before.wire_bytes = before.wire_bytes.saturating_sub(wire_bytes);
    before.logged_bytes = before.logged_bytes.saturating_sub(place.kept_len.into());
    counts.retain(|count| count.packets > 0);
    let index = counts.iter().position(of(full)).unwrap_or_else(|| {
        counts.push(ClassCount {
            class: place.class,
            keep_code: full,
            ..ClassCount::default()
        });
        counts.len() - 1
    });
    let after = &mut counts[index];
    after.packets = after.packets.saturating_add(1);
    after.wire_bytes = after.wire_bytes.saturating_add(wire_bytes);
    after.logged_bytes = after.logged_bytes.saturating_add(place.len.into());
}

/// A promoted packet.
struct Whole {
    data: Vec<u8>,
    verdict: Option<u16>,
}

impl Promotions {
    /// The records of a block with these packets whole, and without promotions. The reasons for
    /// keeping them whole are defined before the first packet that refers to them.
    fn rewritten(&self, block: &Block, whole: &BTreeMap<u64, Whole>) -> Vec<u8> {
        let more: usize = whole.values().map(|whole| whole.data.len()).sum();
        let mut body = Vec::with_capacity(block.body().len() + more);
        let mut defined = BTreeSet::new();
        let mut records = Records::new(block.body(), block.header.first_seq);
        while let Some(record) = records.next_raw() {
            match record {
                Ok(RawRecord::Packet(raw)) => match whole.get(&raw.packet.seq) {
                    Some(whole) => {
                        let known = whole.verdict.and_then(|id| {
                            let definition = self.verdicts.get(&(block.header.worker, id))?;
                            Some((id, definition))
                        });
                        if let Some((id, definition)) = known
                            && defined.insert(id)
                        {
                            body.extend_from_slice(definition);
                        }
                        push_whole(&mut body, &raw, &whole.data, known.map(|(id, _)| id));
                    }
                    None => body.extend_from_slice(raw.bytes),
                },
                Ok(RawRecord::Other { bytes, .. }) => body.extend_from_slice(bytes),
                // Copied unchanged, so that whoever reads it gets the error.
                Err(bad) => {
                    body.extend_from_slice(&block.body()[bad.at..]);
                    break;
                }
            }
        }
        body
    }
}

/// Appends a packet's record with all its bytes.
fn push_whole(body: &mut Vec<u8>, raw: &RawPacket<'_>, data: &[u8], verdict: Option<u16>) {
    let start = body.len();
    let before = raw.bytes.len() - raw.packet.data.len();
    body.extend_from_slice(&raw.bytes[..before]);
    let at = start + before - PACKET_HEADER_LEN;
    let len = PACKET_HEADER_LEN - PREFIX_LEN + data.len();
    body[at + 1] = raw.flags & !3 | Keep::Full.code();
    body[at + 4..at + 8].copy_from_slice(&record_len(len).to_le_bytes());
    if let Some(verdict) = verdict {
        body[at + 28..at + 30].copy_from_slice(&verdict.to_le_bytes());
    }
    body.extend_from_slice(data);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockHeader, SimDisk, Summary};

    #[test]
    fn a_block_whose_numbers_run_backwards_has_no_promotions() {
        let mut promotions = Promotions::default();
        let place = Place {
            file: 0,
            at: 0,
            len: 60,
            kept_len: 40,
            wire_len: 60,
            class: 0,
            keep_code: 1,
            verdict: None,
        };
        promotions.places.insert((0, 5), place);
        let header = BlockHeader {
            first_seq: 9,
            next_seq: 3,
            ..BlockHeader::default()
        };
        let mut block = Block {
            header,
            summary: Summary::default(),
            file: String::new(),
            offset: 0,
            ends: (0, 0),
            incomplete: 0,
            damaged_segments: Vec::new(),
            body: Vec::new().into(),
        };
        promotions
            .apply(&SimDisk::new(), &mut block)
            .expect("no file is read");
        assert_eq!(block.header, header);
    }
}
