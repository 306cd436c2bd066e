//! Up to 64 packets that pass through the stages one by one: the reference for batches in columns.

use strata_capture::PacketRef;
use strata_classify::{LANES, VerdictId};
use strata_sketch::PacketFacts;
use strata_wire::{FlowKey, Headers, Plain, exact};

use crate::tap::TappedHeaders;

/// The packets between the stages; sets of lanes are masks.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) facts: [PacketFacts; LANES],
    /// Bytes up to the end of the headers, or what stands for them
    /// ([`Headers::kept_header_len`]).
    pub(crate) header_len: [u32; LANES],
    /// For lanes in `is_plain`.
    pub(crate) plain: [Plain; LANES],
    /// For the other lanes.
    pub(crate) headers: Box<[Headers; LANES]>,
    /// Passed the filter.
    pub(crate) wanted: u64,
    pub(crate) is_plain: u64,
    /// Has a flow, so that it can be classified.
    pub(crate) dissected: u64,
    /// For lanes in `wanted`, the place among the packets that policies have seen.
    pub(crate) policed: [u8; LANES],
}

impl Lanes {
    pub(crate) fn new() -> Self {
        Self {
            facts: [PacketFacts::default(); LANES],
            header_len: [0; LANES],
            plain: [Plain::default(); LANES],
            headers: Box::new([Headers::default(); LANES]),
            wanted: 0,
            is_plain: 0,
            dissected: 0,
            policed: [0; LANES],
        }
    }

    /// Starts with no packets.
    pub(crate) fn clear(&mut self) {
        self.wanted = 0;
        self.is_plain = 0;
        self.dissected = 0;
    }

    #[inline(always)]
    pub(crate) fn headers(&self, lane: usize) -> TappedHeaders<'_> {
        if self.is_plain & 1 << lane != 0 {
            TappedHeaders::Plain(&self.plain[lane])
        } else {
            TappedHeaders::Other(&self.headers[lane])
        }
    }

    /// `None` for a packet without a flow.
    pub(crate) fn key(&self, lane: usize) -> Option<FlowKey> {
        match self.headers(lane) {
            TappedHeaders::Plain(plain) => plain.headers().key,
            TappedHeaders::Other(headers) => headers.key,
        }
    }
}

/// One of them, with its verdict.
#[derive(Clone, Copy)]
pub(crate) struct Lane<'a> {
    pub(crate) lanes: &'a Lanes,
    pub(crate) lane: usize,
    pub(crate) packet: &'a PacketRef<'a>,
    pub(crate) verdict: VerdictId,
    /// That of the verdict.
    pub(crate) class: u8,
}

impl Lane<'_> {
    /// Its place among the packets that policies have seen.
    #[inline(always)]
    pub(crate) fn place(&self) -> u8 {
        self.lanes.policed[self.lane]
    }

    #[inline(always)]
    pub(crate) fn has_flow(&self) -> bool {
        self.lanes.dissected & 1 << self.lane != 0
    }

    /// Means nothing without a flow.
    #[inline(always)]
    pub(crate) fn fingerprint(&self) -> u64 {
        self.lanes.facts[self.lane].fingerprint
    }

    #[inline(always)]
    pub(crate) fn header_len(&self) -> u32 {
        self.lanes.header_len[self.lane]
    }

    #[inline(always)]
    pub(crate) fn captured_len(&self) -> u32 {
        exact::<u32>(self.packet.data.len())
    }

    pub(crate) fn flow_key(&self) -> FlowKey {
        self.lanes.key(self.lane).unwrap_or(FlowKey::NONE)
    }
}
