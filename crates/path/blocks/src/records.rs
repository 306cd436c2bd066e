//! Reading a block's records.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::ops::Range;

use strata_wire::{Decider, FlowShare, Interface, KeepKind, LinkType, Meta};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use crate::compact::{self, stored_len};
use crate::format::{
    PREFIX_LEN, PacketRecord, Reader, Trees, VERDICT_DECIDED, VerdictRecord, kind, packet_flag,
};
use crate::layout::{PacketBytes, Prefix};

/// One record of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A packet.
    Packet(PacketRecord<'a>),
    /// The definition of a verdict.
    Verdict(u16, VerdictRecord),
    /// The definition of an interface, or other metadata of an input.
    Meta(Meta),
    /// What the following packets were recorded with, as JSON.
    Context(&'a [u8]),
    /// The share of flows that the following packets belong to; all, without this record.
    FlowShare(FlowShare),
}

/// What is wrong with a record, and where in the block's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// Bytes from the start of the body.
    pub at: usize,
    /// What is wrong.
    pub problem: &'static str,
}

/// The records of a block's body, in order.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    body: &'a [u8],
    place: RecordPlace,
}

/// A position between two records of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordPlace {
    at: usize,
    /// That of the last packet, or initially of the first one.
    seq: u64,
    /// Whether a packet was read.
    is_begun: bool,
    /// What times of compact packets count from.
    time: Option<u64>,
    /// Where the options of the next packet are.
    options: Range<usize>,
}

impl RecordPlace {
    /// Before the first record of a body whose first packet has this sequence number.
    #[must_use]
    pub fn first(seq: u64) -> Self {
        Self {
            seq,
            ..Self::default()
        }
    }

    /// What the next record of this body is, without decoding it; `None` at the end.
    #[must_use]
    pub fn peek(&self, body: &[u8]) -> Option<Head> {
        let (mut at, mut time) = (self.at, self.time);
        loop {
            let rest = body.get(at..).filter(|rest| !rest.is_empty())?;
            let record = stored_len(rest).map(|len| &rest[..len]);
            match (rest[0], record) {
                (kind::PACKET_OPTIONS | kind::PROMOTION, Some(record)) => {
                    at = at.saturating_add(record.len());
                }
                (kind::TIME, Some(record)) => match compact::time_of(record) {
                    None => return Some(Head::Other),
                    read => {
                        time = read;
                        at = at.saturating_add(record.len());
                    }
                },
                (kind::COMPACT, Some(record)) => {
                    return Some(compact_head(record, time).unwrap_or(Head::Other));
                }
                (kind::PACKET, _) => return Some(full_head(rest).unwrap_or(Head::Other)),
                _ => return Some(Head::Other),
            }
        }
    }
}

fn full_head(rest: &[u8]) -> Option<Head> {
    let (prefix, content) = Prefix::ref_from_prefix(rest).ok()?;
    let (ts_ns, _) = U64::ref_from_prefix(content).ok()?;
    Some(Head::Packet {
        ts_ns: ts_ns.get(),
        interface: prefix.reference.get(),
    })
}

fn compact_head(record: &[u8], time: Option<u64>) -> Option<Head> {
    let head = compact::parse(record)?.head;
    Some(Head::Packet {
        ts_ns: time?.checked_add(head.time.get().into())?,
        interface: head.interface.into(),
    })
}

/// What a record is, as far as its first bytes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A packet.
    Packet {
        /// Its arrival, ns.
        ts_ns: u64,
        /// Its interface.
        interface: u16,
    },
    /// Anything else: a definition, metadata of an input, or damage.
    Other,
}

impl<'a> Records<'a> {
    /// The records of `body`, whose first packet has sequence number `first_seq`.
    #[must_use]
    pub fn new(body: &'a [u8], first_seq: u64) -> Self {
        Self::at(body, RecordPlace::first(first_seq))
    }

    /// The records of one packet, known to have this sequence number and arrival: what its segments
    /// hold. A compact record has neither.
    #[must_use]
    pub fn of_packet(bytes: &'a [u8], seq: u64, ts_ns: u64) -> Self {
        let mut place = RecordPlace::first(seq);
        if let Some(head) = compact::head(bytes) {
            place.time = ts_ns.checked_sub(head.time.get().into());
        }
        Self::at(bytes, place)
    }

    /// The records of a body from a position on.
    #[must_use]
    pub fn at(body: &'a [u8], place: RecordPlace) -> Self {
        Self { body, place }
    }

    /// The current position.
    #[must_use]
    pub fn into_place(self) -> RecordPlace {
        self.place
    }

    fn next_record(&mut self) -> Result<Option<Record<'a>>, &'static str> {
        loop {
            let rest = &self.body[self.place.at..];
            if rest.is_empty() {
                return Ok(None);
            }
            if rest[0] == kind::COMPACT {
                return self.compact_packet(rest).map(Record::Packet).map(Some);
            }
            let split = Prefix::ref_from_prefix(rest).ok();
            let (prefix, after) = split.ok_or("a record reaches beyond its block")?;
            let (flags, reference) = (prefix.flags, prefix.reference.get());
            let len = prefix.len.get() as usize;
            let body = after
                .get(..len)
                .ok_or("a record reaches beyond its block")?;
            // Both are within the body, so are their sums.
            let record_len = PREFIX_LEN.saturating_add(len);
            let body_at = self.place.at.saturating_add(PREFIX_LEN);
            self.place.at = self.place.at.saturating_add(record_len);
            let mut read = Reader { bytes: body, at: 0 };
            let record = match prefix.kind {
                kind::PACKET_OPTIONS => {
                    self.place.options = body_at..self.place.at;
                    continue;
                }
                kind::PACKET => Record::Packet(self.packet(&rest[..record_len])?),
                kind::VERDICT => Record::Verdict(reference, verdict(flags, body)?),
                kind::INTERFACE => {
                    let options = body.get(8..).ok_or("an interface is too short")?;
                    let (link, _, snaplen) = (read.u16(), read.u16(), read.u32());
                    let mut interface = Interface::new(LinkType(link), snaplen);
                    interface.options = options.to_vec();
                    Record::Meta(Meta::Interface {
                        id: reference,
                        interface,
                    })
                }
                kind::SECTION => Record::Meta(Meta::Section {
                    options: body.to_vec(),
                }),
                kind::PCAPNG_BLOCK => {
                    let rest = body.get(4..).ok_or("a pcapng block is too short")?;
                    Record::Meta(Meta::Block {
                        block_type: read.u32(),
                        interface: (flags & 1 != 0).then_some(reference),
                        body: rest.to_vec(),
                    })
                }
                kind::CONTEXT => Record::Context(body),
                kind::FLOW_SHARE => {
                    let bytes = body.first_chunk().ok_or("a share is too short")?;
                    Record::FlowShare(FlowShare(u32::from_le_bytes(*bytes)))
                }
                kind::TIME => {
                    let time = compact::time_of(&rest[..record_len]);
                    self.place.time = Some(time.ok_or("a time is too short")?);
                    continue;
                }
                // Not a packet of its own.
                kind::PROMOTION => continue,
                _ => return Err("a record of unknown kind"),
            };
            return Ok(Some(record));
        }
    }

    /// The options of a packet with these flags.
    fn options(&mut self, flags: u8) -> &'a [u8] {
        if flags & packet_flag::HAS_OPTIONS != 0 {
            &self.body[std::mem::take(&mut self.place.options)]
        } else {
            &[]
        }
    }

    fn compact_packet(&mut self, rest: &'a [u8]) -> Result<PacketRecord<'a>, &'static str> {
        let parsed = compact::parse(rest).ok_or("a record reaches beyond its block")?;
        let head = parsed.head;
        let time = self
            .place
            .time
            .ok_or("a compact packet without a time before it")?;
        let ts_ns = time.checked_add(head.time.get().into());
        let ts_ns = ts_ns.ok_or("the time of a packet is out of range")?;
        let captured_len = head.captured_len.get();
        if parsed.data.len() > usize::from(captured_len) {
            return Err("a packet record holds more than was captured");
        }
        let step = u64::from(self.place.is_begun);
        self.place.seq = self.place.seq.checked_add(step).ok_or(OUT_OF_RANGE)?;
        self.place.is_begun = true;
        self.place.at = self.place.at.saturating_add(parsed.len);
        Ok(PacketRecord {
            ts_ns,
            seq: self.place.seq,
            wire_len: parsed.wire_len.into(),
            captured_len: captured_len.into(),
            header_len: head.header_len.into(),
            interface: head.interface.into(),
            verdict: head.verdict.get(),
            keep: KeepKind::of_flags(head.flags),
            has_timestamp: true,
            data: parsed.data,
            options: self.options(head.flags),
        })
    }

    #[allow(clippy::cast_possible_truncation)]
    fn packet(&mut self, record: &'a [u8]) -> Result<PacketRecord<'a>, &'static str> {
        let split = PacketBytes::ref_from_prefix(record).ok();
        let (head, data) = split.ok_or("a packet record is too short")?;
        let flags = head.prefix.flags;
        // Sequence numbers only grow, each by less than 2^32.
        let step = head.seq.get().wrapping_sub(self.place.seq as u32);
        self.place.seq = self
            .place
            .seq
            .checked_add(step.into())
            .ok_or(OUT_OF_RANGE)?;
        self.place.is_begun = true;
        let captured_len = head.captured_len.get();
        if data.len() > captured_len as usize {
            return Err("a packet record holds more than was captured");
        }
        let options = self.options(flags);
        Ok(PacketRecord {
            ts_ns: head.ts_ns.get(),
            seq: self.place.seq,
            wire_len: head.wire_len.get(),
            captured_len,
            header_len: head.header_len.get(),
            interface: head.prefix.reference.get(),
            verdict: head.verdict.get(),
            keep: KeepKind::of_flags(flags),
            has_timestamp: flags & packet_flag::NO_TIMESTAMP == 0,
            data,
            options,
        })
    }
}

/// More packets than a worker numbers.
const OUT_OF_RANGE: &str = "a sequence number is out of range";

fn verdict(flags: u8, body: &[u8]) -> Result<VerdictRecord, &'static str> {
    const SHORT: &str = "a verdict is too short";
    let mut read = Reader { bytes: body, at: 0 };
    let mut rest = body.get(4..).ok_or(SHORT)?;
    let (class, level, score) = (read.u8(), read.u8(), read.u16());
    let mut decider = Decider::Class;
    if flags & VERDICT_DECIDED != 0 {
        let (len, after) = rest.split_first_chunk().ok_or(SHORT)?;
        let len = usize::from(u16::from_le_bytes(*len));
        let (bytes, leaves) = after.split_at_checked(len).ok_or(SHORT)?;
        decider = Decider::parse(bytes)?;
        rest = leaves;
    }
    let leaves = rest.chunks_exact(2);
    let leaves = leaves.map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    Ok(VerdictRecord {
        class,
        score,
        trees: Trees::of_code(level).ok_or("the trees of a verdict are of unknown kind")?,
        leaves: leaves.collect(),
        decider,
    })
}

/// A compact packet in its stored form, without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactPacket<'a> {
    /// Arrival, ns since 1970.
    pub ts_ns: u64,
    /// The worker's sequence number.
    pub seq: u64,
    /// Bytes on the wire.
    pub wire_len: u16,
    /// Bytes in the capture.
    pub captured_len: u16,
    /// Bytes kept.
    pub kept_len: u16,
    /// Verdict, by the number of its definition.
    pub verdict: u16,
    /// The record's flags.
    pub flags: u8,
    /// The record.
    pub bytes: &'a [u8],
}

/// A packet, or another record in its stored form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawRecord<'a> {
    /// A packet, in whatever form it is stored.
    Packet(PacketRecord<'a>),
    /// Anything else: verdict, interface, context, metadata of an input.
    Other {
        /// The verdict's number and class, if it defines one.
        verdict: Option<(u16, u8)>,
        /// What distinguishes it from others of its kind: kind and reference, if a later one
        /// replaces it; `None` for those that accumulate.
        replaces: Option<(u8, u16)>,
        /// The record.
        bytes: &'a [u8],
    },
}

impl<'a> Records<'a> {
    /// The position of the next record.
    #[must_use]
    pub fn place(&self) -> &RecordPlace {
        &self.place
    }

    /// The next record, if it is a compact packet without options: as
    /// [`next_raw`](Records::next_raw), several times as fast. The record is not passed over
    /// ([`Records::pass`]). `None` says nothing about what comes next.
    #[inline]
    #[must_use]
    pub fn compact(&mut self) -> Option<CompactPacket<'a>> {
        let mut rest = self.body.get(self.place.at..)?;
        if matches!(rest.first(), Some(&(kind::TIME | kind::PROMOTION))) {
            self.pass_over();
            rest = self.body.get(self.place.at..)?;
        }
        if *rest.first()? != kind::COMPACT {
            return None;
        }
        let parsed = compact::parse(rest)?;
        let head = parsed.head;
        let ts_ns = self.place.time?.checked_add(head.time.get().into())?;
        let captured_len = head.captured_len.get();
        let kept_len = u16::try_from(parsed.data.len()).ok()?;
        let seq = self.place.seq.checked_add(self.place.is_begun.into())?;
        if head.flags & packet_flag::HAS_OPTIONS != 0 || kept_len > captured_len {
            return None;
        }
        Some(CompactPacket {
            ts_ns,
            seq,
            wire_len: parsed.wire_len,
            captured_len,
            kept_len,
            verdict: head.verdict.get(),
            flags: head.flags,
            bytes: &rest[..parsed.len],
        })
    }

    /// Passes over a packet that [`Records::compact`] has just returned.
    #[inline]
    pub fn pass(&mut self, packet: &CompactPacket<'_>) {
        self.place.at = self.place.at.saturating_add(packet.bytes.len());
        self.place.seq = packet.seq;
        self.place.is_begun = true;
    }

    /// Passes over promotions and times, so that the next record is another one. Decoding it will
    /// tell if anything is wrong.
    #[inline(never)]
    fn pass_over(&mut self) {
        while let Some(rest) = self.body.get(self.place.at..)
            && let Some(&kind) = rest.first()
            && matches!(kind, kind::PROMOTION | kind::TIME)
            && let Some(len) = stored_len(rest)
        {
            if kind == kind::TIME {
                let Some(time) = compact::time_of(&rest[..len]) else {
                    return;
                };
                self.place.time = Some(time);
            }
            self.place.at = self.place.at.saturating_add(len);
        }
    }

    /// The next record, in its stored form unless it is a packet; promotions are skipped.
    ///
    /// # Errors
    ///
    /// What is wrong with the record; no record follows.
    pub fn next_raw(&mut self) -> Option<Result<RawRecord<'a>, BadRecord>> {
        self.pass_over();
        let start = self.place.at;
        match self.next()? {
            Err(bad) => Some(Err(bad)),
            Ok(Record::Packet(packet)) => Some(Ok(RawRecord::Packet(packet))),
            Ok(record) => {
                let bytes = &self.body[start..self.place.at];
                let reference = u16::from_le_bytes([bytes[2], bytes[3]]);
                let verdict = match &record {
                    Record::Verdict(id, verdict) => Some((*id, verdict.class)),
                    _ => None,
                };
                let replaces = matches!(
                    bytes[0],
                    kind::VERDICT | kind::INTERFACE | kind::CONTEXT | kind::FLOW_SHARE
                )
                .then_some((bytes[0], reference));
                Some(Ok(RawRecord::Other {
                    verdict,
                    replaces,
                    bytes,
                }))
            }
        }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, BadRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.place.at;
        match self.next_record() {
            Ok(record) => record.map(Ok),
            Err(problem) => {
                self.place.at = self.body.len();
                Some(Err(BadRecord { at, problem }))
            }
        }
    }
}
