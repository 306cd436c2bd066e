//! What passes from stage to stage: the packets, and in columns what was found out about them.

use strata_capture::{PacketRef, Packets};
use strata_classify::VerdictId;
use strata_wire::wide::{GROUP, GROUPS, PacketColumns, Simd, WIDE};
use strata_wire::{FlowKey, Headers, Plain, prefetch};

use crate::classifier::Classifier;
use crate::demand::DECIDER_BITS;
use crate::policing::Policing;
use crate::reasons::DeciderId;

/// All places of a part of a batch.
pub(crate) const EVERY_PLACE: [u8; WIDE] = {
    let mut places = [0; WIDE];
    let mut place = 0;
    while place < WIDE {
        #[allow(clippy::cast_possible_truncation, reason = "below 256")]
        let number = place as u8;
        places[place] = number;
        place += 1;
    }
    places
};

/// Asks the CPU to fetch a cache line of an upcoming packet.
#[inline(always)]
pub(crate) fn fetch(batch: &(impl Packets + ?Sized), index: usize, line: usize) {
    if index < batch.len() {
        prefetch(batch.get(index).data, line * 64);
    }
}

/// Packets that pass through the stages together: those of a part of a batch that the capture
/// filter has chosen.
pub(crate) struct Chosen<'a, P: ?Sized> {
    pub(crate) batch: &'a P,
    /// Where the part begins in the batch.
    pub(crate) start: usize,
    /// The packets' places in the part, in order.
    pub(crate) places: &'a [u8],
}

impl<P: ?Sized> Clone for Chosen<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: ?Sized> Copy for Chosen<'_, P> {}

impl<'a, P: Packets + ?Sized> Chosen<'a, P> {
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.places.len()
    }

    /// Where a packet is in the batch.
    #[inline(always)]
    pub(crate) fn index(self, at: usize) -> usize {
        self.start + usize::from(self.places[at])
    }

    #[inline(always)]
    pub(crate) fn get(self, at: usize) -> PacketRef<'a> {
        self.batch.get(self.index(at))
    }
}

/// What stages before have found out about packets, besides what is in columns.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) classifier: &'a Classifier,
    /// `None` without policies.
    pub(crate) policing: Option<&'a Policing>,
}

/// Up to 256 packets in columns. Each stage reads those of the stages before it and fills its own; sets
/// of packets are masks of 16.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) simd: Simd,
    /// Packets that have passed so far.
    pub(crate) passed: u64,

    /// Parse: headers, keys and fingerprints.
    pub(crate) columns: PacketColumns,
    /// Bytes up to the end of the headers, or what stands for them
    /// ([`Headers::kept_header_len`]).
    pub(crate) header_end: [u32; WIDE],
    /// Where those are that are not plain, and their headers.
    pub(crate) others: Vec<(usize, Headers)>,

    /// Police: those that no policy discards.
    pub(crate) wanted: [u16; GROUPS],

    /// Class: the numbers of verdicts; once it is known what is kept, those of verdicts and who
    /// decided.
    pub(crate) verdicts: [VerdictId; WIDE],
    /// The former, where the kernel cuts packets.
    pub(crate) classified: [VerdictId; WIDE],

    /// Budget: payload on the wire, and steps of scores.
    pub(crate) payload: [u32; WIDE],
    pub(crate) steps: [u32; WIDE],
    /// Those about which it has decided, and those of them that get detail, if that does not say yet
    /// what is kept.
    pub(crate) offered: [u16; GROUPS],
    pub(crate) given: [u16; GROUPS],

    /// Triggers: those whose flows ask for them by themselves.
    pub(crate) asked: [u16; GROUPS],

    /// Keep: what is demanded, see [`Kept::kind`](crate::demand::Kept::kind).
    pub(crate) demands: [u32; WIDE],
    /// See [`PacketRun::kinds`](strata_blocks::PacketRun::kinds).
    pub(crate) kinds: [u32; WIDE],
    pub(crate) kept_len: [u32; WIDE],
    /// Bytes after the headers that are wanted, also of packets that came without them.
    pub(crate) wanted_payload: [u32; WIDE],
    /// Those that are recorded.
    pub(crate) recorded: [u16; GROUPS],
}

impl Batch {
    pub(crate) fn new(simd: Simd) -> Self {
        Self {
            simd,
            passed: 0,
            columns: PacketColumns::default(),
            header_end: [0; WIDE],
            others: Vec::with_capacity(WIDE),
            wanted: [0; GROUPS],
            verdicts: [0; WIDE],
            classified: [0; WIDE],
            payload: [0; WIDE],
            steps: [0; WIDE],
            offered: [0; GROUPS],
            given: [0; GROUPS],
            asked: [0; GROUPS],
            demands: [0; WIDE],
            kinds: [0; WIDE],
            kept_len: [0; WIDE],
            wanted_payload: [0; WIDE],
            recorded: [0; GROUPS],
        }
    }

    /// The headers of a plain packet.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "columns of small numbers")]
    pub(crate) fn plain(&self, at: usize) -> Plain {
        let network_len = 34;
        let columns = &self.columns;
        Plain {
            source: columns.source[at],
            destination: columns.destination[at],
            source_port: columns.source_port[at] as u16,
            destination_port: columns.destination_port[at] as u16,
            tcp_window: columns.tcp_window[at] as u16,
            transport_len: (columns.header_len[at] - network_len) as u8,
            protocol: columns.protocol[at] as u8,
            tcp_flags: columns.tcp_flags[at] as u8,
            tos: columns.tos[at] as u8,
            ttl: columns.ttl[at] as u8,
        }
    }

    /// The headers of a packet that is not plain.
    pub(crate) fn other(&self, at: usize) -> &Headers {
        let place = self.others.binary_search_by_key(&at, |(other, _)| *other);
        &self.others[place.expect("a packet is plain or among the others")].1
    }

    #[inline(always)]
    pub(crate) fn is_plain(&self, at: usize) -> bool {
        is_in(&self.columns.plain, at)
    }

    /// The packets of a group that are not plain, while all are wanted.
    #[inline(always)]
    pub(crate) fn others_of(&self, group: usize) -> u16 {
        !self.columns.plain[group] & self.wanted[group]
    }

    /// `None` for a packet without a flow.
    pub(crate) fn key(&self, at: usize) -> Option<FlowKey> {
        if self.is_plain(at) {
            self.plain(at).headers().key
        } else {
            self.other(at).key
        }
    }

    pub(crate) fn flow_key(&self, at: usize) -> FlowKey {
        self.key(at).unwrap_or(FlowKey::NONE)
    }

    pub(crate) fn wire_bytes(&self, at: usize) -> u64 {
        let wire_len = self.columns.wire_len[at];
        u64::from(wire_len.max(self.columns.captured_len[at]))
    }

    /// Who decided about a packet, as far as classes and policies say.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "16 bits are left")]
    pub(crate) fn decider(&self, at: usize) -> DeciderId {
        (self.demands[at] >> DECIDER_BITS) as DeciderId
    }

    /// How much is kept of a packet beyond its headers.
    #[inline(always)]
    pub(crate) fn payload_kept(&self, at: usize) -> u32 {
        self.kept_len[at].saturating_sub(self.header_end[at])
    }
}

/// Whether a packet of a batch is in a set.
#[inline(always)]
pub(crate) fn is_in(set: &[u16; GROUPS], at: usize) -> bool {
    set[at / GROUP] >> (at % GROUP) & 1 != 0
}
