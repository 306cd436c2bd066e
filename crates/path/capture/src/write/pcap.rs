//! Writing nanosecond pcap.

use std::io::Write;

use strata_wire::pcapng::options::{self, code};
use strata_wire::{Interface, LinkType};

use super::WriteError;
use crate::packet::PacketRef;

/// Magic number of pcap with nanoseconds (draft-ietf-opsawg-pcap, section 4).
const MAGIC_NS: u32 = 0xa1b2_3c4d;
/// The snapshot length unless an interface has a larger one.
const SNAPLEN: u32 = 262_144;

/// Writes a little-endian pcap file with nanosecond timestamps, for tools that
/// do not read pcapng. Comments, interfaces' names and several link types are
/// lost; a packet without a timestamp gets 1970-01-01.
///
/// Does not buffer: give it a [`BufWriter`](std::io::BufWriter).
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    output: W,
    link: Option<LinkType>,
    /// Whether packets of an interface may be written, by global id.
    known: Vec<Known>,
}

/// What is known of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    Announced,
    /// Its times need an offset ([`Interface::options`]).
    Shifted,
}

impl<W: Write> PcapWriter<W> {
    /// A writer that has not written anything yet.
    pub fn new(output: W) -> Self {
        Self {
            output,
            link: None,
            known: Vec::new(),
        }
    }

    /// Announces an interface, by its global id. The first one writes the file
    /// header.
    ///
    /// # Errors
    /// [`WriteError::SecondLinkType`] if its link type is not that of the first;
    /// the file stays usable. [`WriteError::Io`].
    pub fn interface(&mut self, id: u16, interface: &Interface) -> Result<(), WriteError> {
        match self.link {
            None => self.header(interface)?,
            Some(first) if first != interface.link => {
                return Err(WriteError::SecondLinkType {
                    first,
                    second: interface.link,
                });
            }
            Some(_) => {}
        }
        let id = usize::from(id);
        if self.known.len() <= id {
            self.known.resize(id.saturating_add(1), Known::Nothing);
        }
        self.known[id] = match options::find(&interface.options, code::IF_TSOFFSET) {
            Some(_) => Known::Shifted,
            None => Known::Announced,
        };
        Ok(())
    }

    fn header(&mut self, interface: &Interface) -> Result<(), WriteError> {
        let mut link = u32::from(interface.link.0);
        if let Some(bits) = interface.fcs_bits() {
            // Flag, then the length in units of 16 bits.
            link |= 1 << 26 | u32::from(bits / 16) << 28;
        }
        let mut header = [0; 24];
        header[..4].copy_from_slice(&MAGIC_NS.to_le_bytes());
        header[4..6].copy_from_slice(&2u16.to_le_bytes());
        header[6..8].copy_from_slice(&4u16.to_le_bytes());
        // Readers cut packets to this length, and later interfaces may need more.
        let snaplen = interface.snaplen.max(SNAPLEN);
        header[16..20].copy_from_slice(&snaplen.to_le_bytes());
        header[20..].copy_from_slice(&link.to_le_bytes());
        self.output.write_all(&header)?;
        self.link = Some(interface.link);
        Ok(())
    }

    /// Writes a packet.
    ///
    /// # Errors
    /// [`WriteError::UnknownInterface`] if its interface was not announced or
    /// refused; [`WriteError::TooLate`] beyond the year 2106, [`WriteError::ShiftedTimes`] beyond 2554
    /// or before 1970; [`WriteError::Io`].
    pub fn packet(&mut self, packet: &PacketRef<'_>) -> Result<(), WriteError> {
        match self.known.get(usize::from(packet.interface)) {
            Some(Known::Announced) => {}
            Some(Known::Shifted) => return Err(WriteError::ShiftedTimes(packet.interface)),
            None | Some(Known::Nothing) => {
                return Err(WriteError::UnknownInterface(packet.interface));
            }
        }
        let len =
            u32::try_from(packet.data.len()).map_err(|_| WriteError::TooLong(packet.data.len()))?;
        let seconds = packet.ts_ns / 1_000_000_000;
        let whole = u32::try_from(seconds).map_err(|_| WriteError::TooLate { seconds })?;
        let ns = (packet.ts_ns % 1_000_000_000) as u32;
        let mut header = [0; 16];
        header[..4].copy_from_slice(&whole.to_le_bytes());
        header[4..8].copy_from_slice(&ns.to_le_bytes());
        header[8..12].copy_from_slice(&len.to_le_bytes());
        header[12..].copy_from_slice(&packet.wire_len.to_le_bytes());
        self.output.write_all(&header)?;
        self.output.write_all(packet.data)?;
        Ok(())
    }

    /// Flushes and returns the output. Without any interface the file is an empty Ethernet capture.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn finish(mut self) -> Result<W, WriteError> {
        if self.link.is_none() {
            self.header(&Interface::new(LinkType::ETHERNET, SNAPLEN))?;
        }
        self.output.flush()?;
        Ok(self.output)
    }
}
