//! Reading a block's records.

use strata_capture::{Interface, LinkType, Meta};

use crate::format::{
    PACKET_HEADER_LEN, PREFIX_LEN, PacketRecord, Reader, VerdictRecord, kind, packet_flag,
};

/// One record of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A packet.
    Packet(PacketRecord<'a>),
    /// The definition of a verdict.
    Verdict(u16, VerdictRecord),
    /// The definition of an interface, or what an input said about itself.
    Meta(Meta),
    /// What the packets that follow were recorded with, as JSON.
    Context(&'a [u8]),
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
    at: usize,
    seq: u64,
    options: &'a [u8],
}

impl<'a> Records<'a> {
    /// The records of `body`, whose first packet has sequence number `first_seq`.
    #[must_use]
    pub fn new(body: &'a [u8], first_seq: u64) -> Self {
        Self {
            body,
            at: 0,
            seq: first_seq,
            options: &[],
        }
    }

    fn next_record(&mut self) -> Result<Option<Record<'a>>, &'static str> {
        loop {
            let rest = &self.body[self.at..];
            if rest.is_empty() {
                return Ok(None);
            }
            let mut read = Reader { bytes: rest, at: 0 };
            let (kind, flags, reference) = (read.u8(), read.u8(), read.u16());
            let len = read.u32() as usize;
            let body = rest
                .get(PREFIX_LEN..)
                .and_then(|rest| rest.get(..len))
                .ok_or("a record reaches beyond its block")?;
            self.at += PREFIX_LEN + len;
            let mut read = Reader { bytes: body, at: 0 };
            let record = match kind {
                kind::PACKET_OPTIONS => {
                    self.options = body;
                    continue;
                }
                kind::PACKET => Record::Packet(self.packet(flags, reference, body)?),
                kind::VERDICT => {
                    let rest = body.get(4..).ok_or("a verdict is too short")?;
                    let (class, level, score) = (read.u8(), read.u8(), read.u16());
                    let leaves = rest.chunks_exact(2);
                    let leaves = leaves.map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
                    let verdict = VerdictRecord {
                        class,
                        score,
                        level,
                        leaves: leaves.collect(),
                    };
                    Record::Verdict(reference, verdict)
                }
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
                _ => return Err("a record of unknown kind"),
            };
            return Ok(Some(record));
        }
    }

    #[allow(clippy::cast_possible_truncation)]
    fn packet(
        &mut self,
        flags: u8,
        interface: u16,
        body: &'a [u8],
    ) -> Result<PacketRecord<'a>, &'static str> {
        const FIXED: usize = PACKET_HEADER_LEN - PREFIX_LEN;
        let data = body.get(FIXED..).ok_or("a packet record is too short")?;
        let mut read = Reader { bytes: body, at: 0 };
        let ts_ns = read.u64();
        // Sequence numbers only grow, by less than 2^32 from one to the next.
        let step = read.u32().wrapping_sub(self.seq as u32);
        self.seq = self
            .seq
            .checked_add(step.into())
            .ok_or("a sequence number is out of range")?;
        let (wire_len, captured_len) = (read.u32(), read.u32());
        let (verdict, header_len) = (read.u16(), read.u16());
        if data.len() > captured_len as usize {
            return Err("a packet record holds more than was captured");
        }
        let options = if flags & packet_flag::HAS_OPTIONS != 0 {
            std::mem::take(&mut self.options)
        } else {
            &[]
        };
        Ok(PacketRecord {
            ts_ns,
            seq: self.seq,
            wire_len,
            captured_len,
            header_len,
            interface,
            verdict,
            keep_code: flags & 3,
            has_timestamp: flags & packet_flag::NO_TIMESTAMP == 0,
            data,
            options,
        })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, BadRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at;
        match self.next_record() {
            Ok(record) => record.map(Ok),
            Err(problem) => {
                self.at = self.body.len();
                Some(Err(BadRecord { at, problem }))
            }
        }
    }
}
