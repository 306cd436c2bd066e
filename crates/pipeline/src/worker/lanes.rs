//! The packets of a batch between the stages of a worker.

use strata_classify::LANES;
use strata_sketch::PacketFacts;
use strata_wire::{Headers, Plain};

/// The packets of a batch between the stages; sets of lanes are masks.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) facts: [PacketFacts; LANES],
    /// Bytes up to the end of the headers, or what stands for them
    /// ([`Headers::kept_header_len`]).
    pub(super) header_len: [u32; LANES],
    /// For lanes in `is_plain`.
    pub(super) plain: [Plain; LANES],
    /// For the other lanes.
    pub(super) headers: Box<[Headers; LANES]>,
    /// Passed the filter.
    pub(super) wanted: u64,
    pub(super) is_plain: u64,
    /// Has a flow, so that it can be classified.
    pub(super) dissected: u64,
    /// For lanes in `wanted`, the place among the packets that policies have seen.
    pub(super) policed: [u8; LANES],
}

impl Lanes {
    pub(super) fn new() -> Self {
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

    pub(super) fn headers(&self, lane: usize) -> Headers {
        if self.is_plain & 1 << lane != 0 {
            self.plain[lane].headers()
        } else {
            self.headers[lane]
        }
    }
}
