//! A capture file in one of the two formats.

use std::io::Write;

use strata_wire::Interface;

use super::{PcapNgWriter, PcapWriter, WriteError};
use crate::PacketRef;

/// Writes a capture file in one of the two formats, chosen at run time.
#[derive(Debug)]
pub enum CaptureWriter<W: Write> {
    /// pcap.
    Pcap(PcapWriter<W>),
    /// pcapng.
    Pcapng(PcapNgWriter<W>),
}

impl<W: Write> CaptureWriter<W> {
    /// A file with nothing but what is written to it.
    pub fn pcap(output: W) -> Self {
        Self::Pcap(PcapWriter::new(output))
    }

    /// A file with nothing but what is written to it.
    ///
    /// # Errors
    ///
    /// [`WriteError::Io`].
    pub fn pcapng(output: W) -> Result<Self, WriteError> {
        Ok(Self::Pcapng(PcapNgWriter::new(output, &[])?))
    }

    /// Describes an interface, before its packets.
    ///
    /// # Errors
    ///
    /// Those of the format's writer.
    pub fn interface(&mut self, id: u16, interface: &Interface) -> Result<(), WriteError> {
        match self {
            Self::Pcap(writer) => writer.interface(id, interface),
            Self::Pcapng(writer) => writer.interface(id, interface),
        }
    }

    /// Writes a packet.
    ///
    /// # Errors
    ///
    /// Those of the format's writer.
    #[inline]
    pub fn packet(&mut self, packet: &PacketRef<'_>) -> Result<(), WriteError> {
        match self {
            Self::Pcap(writer) => writer.packet(packet),
            Self::Pcapng(writer) => writer.packet(packet),
        }
    }

    /// Ends the file; returns the output.
    ///
    /// # Errors
    ///
    /// [`WriteError::Io`].
    pub fn finish(self) -> Result<W, WriteError> {
        match self {
            Self::Pcap(writer) => writer.finish(),
            Self::Pcapng(writer) => writer.finish(),
        }
    }
}
