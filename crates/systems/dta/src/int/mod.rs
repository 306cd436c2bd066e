//! In-band Network Telemetry (INT) of the P4.org applications group, as switches export it:
//!
//! - [`report`]: Telemetry Report 1.0 and 2.x, what INT-XD and INT-MX nodes and INT-MD sinks send;
//! - [`stack`]: INT-MD 1.0 and 2.x, the metadata that packets gather on their way;
//! - [`table`]: which of it becomes which DTA report;
//! - [`mapping`]: what becomes of it, and queries that are known ahead.
//!
//! Both have a view that checks lengths once; [`Hop`] is what a node says of a packet.

pub mod mapping;
mod place;
pub mod report;
mod sequence;
pub mod stack;
pub mod table;
mod watch;

/// Why an INT datagram is not understood.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum IntError {
    /// The version of the report is neither 1 nor 2.
    #[error("unsupported Telemetry Report version {0}: 1 and 2 are supported")]
    Version(u8),
    /// The version of an INT-MD header is not that of its shim, which is 1 or 2.
    #[error("INT-MD version {0} does not match the shim before it")]
    StackVersion(u8),
    /// Version 0.5, of 2016, with another header.
    #[error(
        "Telemetry Report 0.5 is not supported: configure the switches to send version 1.0 or 2.0"
    )]
    Version05,
    /// A header, or the data that it announces, is longer than the datagram.
    #[error("truncated within {0}")]
    Truncated(&'static str),
    /// A length does not fit the bitmap of the fields.
    #[error("{0} is too short for the fields that its bitmap announces")]
    Length(&'static str),
}

/// The metadata of a node for a packet; `None` for a field that the node does not report, or does not know (all ones).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hop {
    /// The node.
    pub node: Option<u32>,
    /// The interface by which the packet came in: of level 1, or of level 2 if there is no other.
    pub ingress_interface: Option<u32>,
    /// The interface by which it went out.
    pub egress_interface: Option<u32>,
    /// Time within the node, in its unit (usually ns).
    pub hop_latency: Option<u32>,
    /// The queue.
    pub queue: Option<u8>,
    /// Its occupancy, in the node's unit (24 bits).
    pub queue_occupancy: Option<u32>,
    /// Arrival time of the packet, in the node's unit.
    pub ingress_time: Option<u64>,
    /// Departure time of the packet.
    pub egress_time: Option<u64>,
    /// Utilization of the egress port, in the node's unit.
    pub tx_utilization: Option<u32>,
    /// Occupancy of the buffer (24 bits).
    pub buffer_occupancy: Option<u32>,
    /// Why the packet was dropped.
    pub drop_reason: Option<u8>,
}

/// Words of metadata, one after the other.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*word))
    }

    fn double(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*word))
    }
}

/// Unless all bits are set: not known.
fn known32(word: u32) -> Option<u32> {
    (word != u32::MAX).then_some(word)
}

fn known64(word: u64) -> Option<u64> {
    (word != u64::MAX).then_some(word)
}

/// Two interfaces of 16 bits.
fn interfaces(word: u32) -> [Option<u32>; 2] {
    [word >> 16, word & 0xffff].map(|port| (port != 0xffff).then_some(port))
}

impl Hop {
    /// Takes from what the same node has said elsewhere of the packet what is not known here.
    fn complete(&mut self, other: &Self) {
        self.ingress_interface = self.ingress_interface.or(other.ingress_interface);
        self.egress_interface = self.egress_interface.or(other.egress_interface);
        self.hop_latency = self.hop_latency.or(other.hop_latency);
        self.queue = self.queue.or(other.queue);
        self.queue_occupancy = self.queue_occupancy.or(other.queue_occupancy);
        self.ingress_time = self.ingress_time.or(other.ingress_time);
        self.egress_time = self.egress_time.or(other.egress_time);
        self.tx_utilization = self.tx_utilization.or(other.tx_utilization);
        self.buffer_occupancy = self.buffer_occupancy.or(other.buffer_occupancy);
        self.drop_reason = self.drop_reason.or(other.drop_reason);
    }

    /// Bytes of the baseline metadata of these bits.
    fn len(bits: u16, short_times: bool) -> usize {
        let words = (0..16)
            .filter(|bit| bits & 0x8000 >> bit != 0)
            .map(|bit| match bit {
                4 | 5 if short_times => 1,
                4..=6 => 2,
                _ => 1,
            });
        words.fold(0_usize, usize::wrapping_add).wrapping_mul(4)
    }

    /// An index and an occupancy.
    fn queue(&mut self, word: u32) {
        if let Some(word) = known32(word) {
            self.queue = Some(word.to_be_bytes()[0]);
            self.queue_occupancy = Some(word & 0xff_ffff);
        }
    }

    /// Queue and reason of a drop.
    fn dropped(&mut self, word: u32) {
        let [queue, reason, ..] = word.to_be_bytes();
        self.queue = Some(queue);
        self.drop_reason = Some(reason);
    }

    fn level_2(&mut self, interfaces: [u32; 2]) {
        let [ingress, egress] = interfaces.map(known32);
        self.ingress_interface = self.ingress_interface.or(ingress);
        self.egress_interface = self.egress_interface.or(egress);
    }

    /// Reads the baseline metadata of INT 2.x, whose first is bit 15 of `bits`; `None` if they are
    /// not all there. Timestamps have 8 bytes, in INT 1.0 (`short_times`) 4. The last bit
    /// means a drop in reports, a checksum complement in stacks (`is_stack`).
    fn read(bits: u16, bytes: &[u8], short_times: bool, is_stack: bool) -> Option<Self> {
        let mut hop = Self::default();
        let mut words = Words(bytes);
        let time = |words: &mut Words<'_>| match short_times {
            true => words.word().map(|word| known32(word).map(u64::from)),
            false => words.double().map(known64),
        };
        for bit in (0..16).filter(|bit| bits & 0x8000 >> bit != 0) {
            match bit {
                0 if is_stack => hop.node = known32(words.word()?),
                1 => [hop.ingress_interface, hop.egress_interface] = interfaces(words.word()?),
                2 => hop.hop_latency = known32(words.word()?),
                3 => hop.queue(words.word()?),
                4 => hop.ingress_time = time(&mut words)?,
                5 => hop.egress_time = time(&mut words)?,
                6 => hop.level_2([words.word()?, words.word()?]),
                7 => hop.tx_utilization = known32(words.word()?),
                8 => hop.buffer_occupancy = known32(words.word()?).map(|word| word & 0xff_ffff),
                15 if !is_stack => hop.dropped(words.word()?),
                // Reserved, or a checksum complement.
                _ => {
                    words.word()?;
                }
            }
        }
        Some(hop)
    }
}
