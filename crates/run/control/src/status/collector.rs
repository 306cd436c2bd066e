//! The status of a collector of exported packets.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a collector has received, as it was counted last: at most a second ago.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CollectorStatus {
    /// Version of Strata.
    pub version: String,
    /// Process ID.
    pub pid: u32,
    /// Time since it listens.
    pub uptime_seconds: f64,
    /// The UDP address on which it listens.
    pub listen: String,
    /// Whether it accepts only datagrams that are encrypted with its key.
    pub is_encrypted: bool,
    /// The log, file or pipe to which it writes.
    pub output: String,
    /// Packets that arrived and passed the filter.
    pub packets: u64,
    /// Their bytes, as they arrived.
    pub bytes: u64,
    /// Packets that arrived in the last seconds.
    pub packets_per_second: f64,
    /// Packets that could not be written, or are still in memory.
    pub not_written: u64,
    /// Datagrams that name a sender's interfaces.
    pub announcements: u64,
    /// Datagrams that were not accepted.
    pub refused: RefusedStatus,
    /// Messages that found the socket's buffer full: each a datagram, or up to 64 that were sent as one.
    pub socket_drops: u64,
    /// Interfaces of senders.
    pub senders: Vec<SenderStatus>,
    /// Interfaces of senders that were silent, and forgotten to make room for others: they are not in `senders`.
    pub forgotten: u64,
    /// Packets that are missing of those.
    #[serde(default)]
    pub forgotten_lost: u64,
}

/// Datagrams that a collector did not accept, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefusedStatus {
    /// From senders outside `--allow`.
    pub strangers: u64,
    /// Unencrypted, encrypted with another key, or forged.
    pub forged: u64,
    /// Encrypted at a time that differs from the collector's clock by more than 60 s.
    pub old: u64,
    /// Not of this format, or damaged.
    pub unreadable: u64,
    /// Repeated, too late, or contradictory.
    pub repeated: u64,
    /// Of interfaces beyond those that are remembered.
    pub too_many: u64,
}

impl RefusedStatus {
    /// All of them, by name.
    #[must_use]
    pub fn by_name(&self) -> [(&'static str, u64); 6] {
        [
            ("strangers", self.strangers),
            ("forged", self.forged),
            ("old", self.old),
            ("unreadable", self.unreadable),
            ("repeated", self.repeated),
            ("too_many", self.too_many),
        ]
    }
}

/// What a collector has received from an interface of a sender.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SenderStatus {
    /// Address of the sender.
    pub sender: String,
    /// Identity of the interface.
    pub identity: u32,
    /// Names of host and interface; empty until they are announced.
    pub name: String,
    /// Packets that arrived.
    pub packets: u64,
    /// Their bytes, as they arrived.
    pub bytes: u64,
    /// Of the packets, those without all their bytes: of which the sender exported headers or a part.
    pub cut: u64,
    /// Packets that are missing, by their numbers.
    pub lost: u64,
    /// Packets with numbers before those of the first datagram that arrived.
    pub before: u64,
    /// Datagrams that arrived.
    pub datagrams: u64,
    /// Datagrams that are missing, by their numbers.
    pub lost_datagrams: u64,
    /// Packets that the sender's kernel dropped, as the sender has announced.
    pub dropped: u64,
    /// Runs of the sender.
    pub sessions: u64,
    /// Of these, runs that ended without a sign, as after `kill -9`.
    pub broken_off: u64,
    /// Time since its last datagram.
    pub silent_seconds: f64,
}

impl CollectorStatus {
    /// Packets that are missing, of all senders.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let lost = self.senders.iter().map(|sender| sender.lost);
        lost.fold(self.forgotten_lost, u64::saturating_add)
    }
}
