//! What a recording sends to others: exported packets, flows, reports.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What policies export to a destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Where it is.
    pub to: String,
    /// Packets taken for it, of which headers or more are exported.
    pub packets: u64,
    /// Packets that came faster than they were taken: lost for this destination alone.
    pub lost: u64,
    /// Packets that cannot be exported: no identity is left for their interface, or VXLAN does not
    /// carry its link type, or their headers are longer than a datagram.
    pub unfit: u64,
    /// Packets cut to what the path carries in a datagram, in VXLAN.
    pub cut: u64,
    /// Datagrams sent, but for announcements: the collector has received or lost as many of them, less those
    /// of before it was started.
    pub datagrams: u64,
    /// Announcements of interfaces that were sent, in datagrams of their own.
    #[serde(default)]
    pub announcements: u64,
    /// Bytes of all these.
    pub bytes: u64,
    /// Datagrams that the network did not take: there is no listener, or the interface was full.
    pub not_sent: u64,
    /// Why not, in the last second; empty if all were sent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// Sessions of interfaces whose packets are numbered for it, the latest; none in VXLAN.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<ExportedSession>,
}

/// Packets of a session of an interface that were numbered for a destination: sent, or lost before they could be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportedSession {
    /// Of the interface.
    pub identity: u32,
    /// Numbers begin at 0 in each session.
    pub session: u32,
    /// Packets.
    pub packets: u64,
}

/// Flows that a recording sends to a collector of flows, as IPFIX or NetFlow 9.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowsStatus {
    /// The collector's address.
    pub to: String,
    /// Flows that ended, or went on for longer than the active timeout.
    pub flows: u64,
    /// Records of them: one for each direction.
    pub records: u64,
    /// Datagrams with them.
    pub datagrams: u64,
    /// Of these, datagrams that the network did not take, or whose receiver said that no one listens. Others may be
    /// lost without a sign.
    pub undelivered: u64,
    /// Packets that are in no flow, since they came faster than flows were made.
    pub lost: u64,
    /// Flows whose counts or times do not fit the protocol.
    pub unfit: u64,
    /// Flows that ended early, since there were more than 262,144 of a worker at a time.
    pub crowded_out: u64,
}

/// What a recording reports to a telemetry collector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReportStatus {
    /// The collector's address.
    pub to: String,
    /// Reports sent.
    pub reports: u64,
    /// Datagrams with them.
    pub datagrams: u64,
    /// Reports that could not be sent: there is no listener, or the interface was full.
    pub not_sent: u64,
    /// Reports that were not made, since there were too many in a second.
    pub over_limit: u64,
    /// Vectors of packets that came faster than they were looked at: their packets are in no
    /// report.
    pub vectors_lost: u64,
}
