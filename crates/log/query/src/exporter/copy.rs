//! A packet of a log with everything that is said of it, on its own: for another thread.

use std::borrow::Cow;

use strata_wire::{Interface, LinkType};

use super::{Judgement, JudgementKey, LoggedPacket};

/// A copy of a [`LoggedPacket`] and of the decision on it.
#[derive(Clone, Debug)]
pub struct PacketCopy {
    recording: u32,
    interface: u16,
    interface_id: u16,
    link: LinkType,
    ts_ns: u64,
    has_timestamp: bool,
    wire_len: u32,
    captured_len: u32,
    header_len: u16,
    data: Vec<u8>,
    options: Vec<u8>,
    described: Interface,
    judged: JudgementCopy,
}

#[derive(Clone, Debug)]
struct JudgementCopy {
    class: Option<String>,
    score: Option<f64>,
    granularity: String,
    reason: String,
    mode: String,
    flow_share: f64,
    key: Option<JudgementKey>,
}

impl PacketCopy {
    /// A copy of a packet.
    #[must_use]
    pub fn of(packet: &LoggedPacket<'_>) -> Self {
        let judged = packet.judged;
        Self {
            recording: packet.recording,
            interface: packet.interface,
            interface_id: packet.interface_id,
            link: packet.link,
            ts_ns: packet.ts_ns,
            has_timestamp: packet.has_timestamp,
            wire_len: packet.wire_len,
            captured_len: packet.captured_len,
            header_len: packet.header_len,
            data: packet.data.to_vec(),
            options: packet.options.to_vec(),
            described: packet.described.clone(),
            judged: JudgementCopy {
                class: judged.class().map(str::to_owned),
                score: judged.score(),
                granularity: judged.granularity().to_owned(),
                reason: judged.reason().into_owned(),
                mode: judged.mode().to_owned(),
                flow_share: judged.flow_share(),
                key: judged.key(),
            },
        }
    }

    /// The packet.
    #[must_use]
    pub fn packet(&self) -> LoggedPacket<'_> {
        LoggedPacket {
            recording: self.recording,
            interface: self.interface,
            interface_id: self.interface_id,
            link: self.link,
            ts_ns: self.ts_ns,
            has_timestamp: self.has_timestamp,
            wire_len: self.wire_len,
            captured_len: self.captured_len,
            header_len: self.header_len,
            data: &self.data,
            options: &self.options,
            described: &self.described,
            class: self.judged.class.as_deref(),
            flow_share: self.judged.flow_share,
            judged: &self.judged,
        }
    }

    /// The same, with another time of arrival.
    #[must_use]
    pub(crate) fn at(mut self, ts_ns: u64) -> Self {
        self.ts_ns = ts_ns;
        self
    }

    /// Arrival, ns since 1970; 0 without a timestamp.
    #[must_use]
    pub fn ts_ns(&self) -> u64 {
        self.ts_ns
    }

    /// Bytes of the packet that were kept.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.data.len()
    }
}

impl Judgement for JudgementCopy {
    fn class(&self) -> Option<&str> {
        self.class.as_deref()
    }

    fn score(&self) -> Option<f64> {
        self.score
    }

    fn granularity(&self) -> &str {
        &self.granularity
    }

    fn reason(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.reason)
    }

    fn mode(&self) -> &str {
        &self.mode
    }

    fn flow_share(&self) -> f64 {
        self.flow_share
    }

    fn key(&self) -> Option<JudgementKey> {
        self.key
    }
}
