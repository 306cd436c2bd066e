//! Packets that policies export while they are recorded.

use std::fmt::Debug;

use strata_capture::PacketRef;
use strata_rules::Export;
use strata_wire::Interface;

/// What a policy exports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PolicyExport {
    /// Number of the policy; 0 is the default.
    pub policy: u32,
    /// What of its packets, and where to.
    pub export: Export,
}

/// A packet that is exported.
#[derive(Clone, Copy, Debug)]
pub struct ExportedPacket<'a> {
    /// The packet.
    pub packet: PacketRef<'a>,
    /// Bytes up to the end of its headers.
    pub header_len: u32,
    /// Number of its class, or [`NO_CLASS`](crate::NO_CLASS).
    pub class: u8,
    /// How many packets it stands for, where only a share of flows is captured.
    pub one_in: u32,
}

/// Takes what policies export. What is recorded does not depend on it.
pub trait Exports: Debug + Send {
    /// An interface, before its first packet, or again when its description changes.
    fn interface(&mut self, id: u16, interface: &Interface);

    /// Takes a packet, without waiting.
    fn take(&mut self, packet: &ExportedPacket<'_>, exports: &[PolicyExport]);

    /// A batch is over, or none has come for a while: called after each batch, and ten times a
    /// second when none come.
    fn batch_done(&mut self);

    /// No more packets come.
    fn finish(&mut self);
}
