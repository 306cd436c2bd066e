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
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::{BTreeMap, BTreeSet};

use strata_wire::KeepKind;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

use crate::compact::stored_len;
use crate::format::{PREFIX_LEN, PacketRecord, kind, record_len};
use crate::layout::{Prefix, PromotionBytes};
use crate::records::{RawRecord, Records};

/// Maximum bytes of a promotion before the packet's bytes.
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
        let (len, after_prefix) = match self.verdict {
            Some(_) => (PROMOTION_HEADER_LEN, PROMOTION_HEADER_LEN - PREFIX_LEN),
            None => (WITHOUT_VERDICT_LEN, WITHOUT_VERDICT_LEN - PREFIX_LEN),
        };
        let flags = self.verdict.map_or(0, |_| HAS_VERDICT);
        let head = PromotionBytes {
            prefix: Prefix {
                kind: kind::PROMOTION,
                flags: self.keep.code(),
                reference: u16::from_le_bytes([self.class, flags]).into(),
                len: record_len(after_prefix.saturating_add(self.data.len())).into(),
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
                let record = rest.get(..stored_len(rest)?)?;
                at = at.saturating_add(record.len());
                if record.first() != Some(&kind::PROMOTION) {
                    continue;
                }
                let (head, data) = PromotionBytes::ref_from_prefix(record).ok()?;
                let prefix = &head.prefix;
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
                // The data end with the record, which ends at `at`.
                return Some((at.saturating_sub(data.len()), promotion));
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

/// The records of a block with these packets, by sequence number, whole, and without promotions; all
/// packets in full records.
/// The reasons for keeping them whole are defined before the first packet that refers to them.
#[must_use]
pub fn complete(records: &[u8], first_seq: u64, whole: &BTreeMap<u64, Whole<'_>>) -> Vec<u8> {
    let more: usize = whole.values().map(|whole| whole.data.len()).sum();
    let mut body = Vec::with_capacity(records.len().saturating_add(more));
    let mut defined = BTreeSet::new();
    let mut walk = Records::new(records, first_seq);
    while let Some(record) = walk.next_raw() {
        match record {
            Ok(RawRecord::Packet(packet)) => match whole.get(&packet.seq) {
                Some(whole) => {
                    if let Some((id, definition)) = whole.verdict
                        && defined.insert(id)
                    {
                        body.extend_from_slice(definition);
                    }
                    let verdict = whole.verdict.map_or(packet.verdict, |(id, _)| id);
                    let packet = PacketRecord {
                        keep: KeepKind::Full,
                        verdict,
                        data: &whole.data,
                        ..packet
                    };
                    packet.emit(&mut body);
                }
                None => packet.emit(&mut body),
            },
            Ok(RawRecord::Other { bytes, .. }) => body.extend_from_slice(bytes),
            // Copied unchanged, so that its reader gets the error.
            Err(bad) => {
                body.extend_from_slice(&records[bad.at..]);
                break;
            }
        }
    }
    body
}
