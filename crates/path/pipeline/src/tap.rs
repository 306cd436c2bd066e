//! Packets shown to others while they are recorded.

use std::fmt::Debug;

use strata_capture::PacketRef;
use strata_wire::{Headers, Interface, Plain};

/// The class of packets that were not classified, since a policy discarded them before.
pub const NO_CLASS: u8 = u8::MAX;

/// Is shown packets that passed the filter, with what the worker found out about them. What is
/// recorded does not depend on it.
pub trait Tap: Debug + Send {
    /// An interface, before its first packet, or again when its description changes.
    fn interface(&mut self, _id: u16, _interface: &Interface) {}

    /// Whether packets are wanted. Called before each batch, and ten times a second when none come:
    /// here is where those who want them come and go.
    fn is_wanted(&mut self) -> bool;

    /// Takes a packet, without waiting.
    fn take(&mut self, packet: &Tapped<'_>);

    /// No more packets come.
    fn finish(&mut self);
}

/// A packet that is shown.
#[derive(Clone, Copy, Debug)]
pub struct Tapped<'a> {
    /// The packet.
    pub packet: PacketRef<'a>,
    /// Its headers.
    pub headers: TappedHeaders<'a>,
    /// Bytes up to the end of its headers.
    pub header_len: u32,
    /// Number of its class, or [`NO_CLASS`].
    pub class: u8,
}

/// The headers of a packet, as the worker read them.
#[derive(Clone, Copy, Debug)]
pub enum TappedHeaders<'a> {
    /// The common case.
    Plain(&'a Plain),
    /// All others.
    Other(&'a Headers),
}
