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

use strata_wire::KeepKind;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

use crate::format::{PACKET_HEADER_LEN, PREFIX_LEN, kind, record_len};
use crate::layout::{Prefix, PromotionBytes};
use crate::records::{RawPacket, RawRecord, Records};

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
    /// How much of it was kept.
    pub keep: KeepKind,
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
                flags: self.keep.code(),
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
    pub fn all(body: &'a [u8]) -> impl Iterator<Item = (usize, Self)> {
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
                    keep: KeepKind::of_flags(prefix.flags),
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

/// A promoted packet.
#[derive(Clone, Debug)]
pub struct Whole<'a> {
    /// Every byte that was captured.
    pub data: Vec<u8>,
    /// The number and the definition, as a record, of the verdict that replaces the packet's.
    pub verdict: Option<(u16, &'a [u8])>,
}

/// The records of a block with these packets, by sequence number, whole, and without promotions.
/// The reasons for keeping them whole are defined before the first packet that refers to them.
#[must_use]
pub fn complete(records: &[u8], first_seq: u64, whole: &BTreeMap<u64, Whole<'_>>) -> Vec<u8> {
    let more: usize = whole.values().map(|whole| whole.data.len()).sum();
    let mut body = Vec::with_capacity(records.len() + more);
    let mut defined = BTreeSet::new();
    let mut walk = Records::new(records, first_seq);
    while let Some(record) = walk.next_raw() {
        match record {
            Ok(RawRecord::Packet(raw)) => match whole.get(&raw.packet.seq) {
                Some(whole) => {
                    if let Some((id, definition)) = whole.verdict
                        && defined.insert(id)
                    {
                        body.extend_from_slice(definition);
                    }
                    push_whole(&mut body, &raw, whole);
                }
                None => body.extend_from_slice(raw.bytes),
            },
            Ok(RawRecord::Other { bytes, .. }) => body.extend_from_slice(bytes),
            // Copied unchanged, so that whoever reads it gets the error.
            Err(bad) => {
                body.extend_from_slice(&records[bad.at..]);
                break;
            }
        }
    }
    body
}

/// Appends a packet's record with all its bytes.
fn push_whole(body: &mut Vec<u8>, raw: &RawPacket<'_>, whole: &Whole<'_>) {
    let start = body.len();
    let before = raw.bytes.len() - raw.packet.data.len();
    body.extend_from_slice(&raw.bytes[..before]);
    let at = start + before - PACKET_HEADER_LEN;
    let len = PACKET_HEADER_LEN - PREFIX_LEN + whole.data.len();
    body[at + 1] = raw.flags & !3 | KeepKind::Full.code();
    body[at + 4..at + 8].copy_from_slice(&record_len(len).to_le_bytes());
    if let Some((verdict, _)) = whole.verdict {
        body[at + 28..at + 30].copy_from_slice(&verdict.to_le_bytes());
    }
    body.extend_from_slice(&whole.data);
}
