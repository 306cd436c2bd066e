//! Writing pcapng.

use std::io::Write;

use strata_wire::pcapng::block_type;
use strata_wire::pcapng::options::{self, code};
use strata_wire::{Interface, Meta};

use super::WriteError;
use crate::packet::PacketRef;

/// Writes a little-endian pcapng file of one section, timestamps in
/// nanoseconds.
///
/// Interfaces of several inputs and sections become interfaces of that section, in the order in
/// which they are announced. A packet without a timestamp is written as a simple packet block if
/// that can hold it ([`PcapNgWriter::holds_untimed`], and no options), else with the time that it
/// is given.
///
/// Does not buffer: give it a [`BufWriter`](std::io::BufWriter).
#[derive(Debug)]
pub struct PcapNgWriter<W: Write> {
    output: W,
    /// The interface's number in this file, by global id.
    numbers: Vec<Option<u32>>,
    interfaces: u32,
    /// Of interface 0.
    snaplen: u32,
    /// One block, reused.
    block: Vec<u8>,
}

impl<W: Write> PcapNgWriter<W> {
    /// Starts the file with a section header; `section_options` as in [`Meta::Section`].
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn new(output: W, section_options: &[u8]) -> Result<Self, WriteError> {
        let mut writer = Self {
            output,
            numbers: Vec::new(),
            interfaces: 0,
            snaplen: 0,
            block: Vec::with_capacity(2048),
        };
        writer.begin(block_type::SECTION);
        writer.word(0x1A2B_3C4D);
        // Version 1.0.
        writer.word(1);
        // Section length: unspecified.
        writer.block.extend_from_slice(&[0xff; 8]);
        writer.options(section_options);
        writer.end()?;
        Ok(writer)
    }

    /// Announces an interface, by its global id.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn interface(&mut self, id: u16, interface: &Interface) -> Result<(), WriteError> {
        self.begin(block_type::INTERFACE);
        self.word(u32::from(interface.link.0));
        self.word(interface.snaplen);
        let mut list = interface.options.clone();
        options::push_fixed(&mut list, code::IF_TSRESOL, [9]);
        self.options(&list);
        self.end()?;
        if self.interfaces == 0 {
            self.snaplen = interface.snaplen;
        }
        let index = usize::from(id);
        if self.numbers.len() <= index {
            self.numbers.resize(index.saturating_add(1), None);
        }
        self.numbers[index] = Some(self.interfaces);
        // Of ids of 16 bits, so far below 2^32.
        self.interfaces = self.interfaces.saturating_add(1);
        Ok(())
    }

    /// Writes a packet with its options.
    ///
    /// # Errors
    /// [`WriteError::UnknownInterface`] if its interface was not announced;
    /// [`WriteError::Io`].
    pub fn packet(&mut self, packet: &PacketRef<'_>) -> Result<(), WriteError> {
        let number = self.number(packet.interface)?;
        let len =
            u32::try_from(packet.data.len()).map_err(|_| WriteError::TooLong(packet.data.len()))?;
        if !packet.has_timestamp && packet.options.is_empty() && self.holds_untimed(packet) {
            self.begin(block_type::SIMPLE_PACKET);
            self.word(packet.wire_len);
            self.block.extend_from_slice(packet.data);
            options::pad(&mut self.block);
            return self.end();
        }
        self.begin(block_type::ENHANCED_PACKET);
        self.word(number);
        self.block
            .extend_from_slice(&packet.ts_ns.rotate_left(32).to_le_bytes());
        self.word(len);
        self.word(packet.wire_len);
        self.block.extend_from_slice(packet.data);
        options::pad(&mut self.block);
        self.options(packet.options);
        self.end()
    }

    /// Whether a block without a time can hold a packet, but for its options: one of the first interface, cut by
    /// nothing but the snapshot length.
    #[must_use]
    pub fn holds_untimed(&self, packet: &PacketRef<'_>) -> bool {
        let kept = match self.snaplen {
            0 => packet.wire_len,
            snaplen => packet.wire_len.min(snaplen),
        };
        let is_first = self
            .number(packet.interface)
            .is_ok_and(|number| number == 0);
        is_first && u32::try_from(packet.data.len()) == Ok(kept)
    }

    /// Writes what an input holds in addition to packets: an interface is announced, another block
    /// written as it is. A further section header is skipped, since the file is one section: give
    /// its options to [`new`](Self::new).
    ///
    /// # Errors
    /// [`WriteError::UnknownInterface`] for statistics about an interface that
    /// was not announced; [`WriteError::Io`].
    pub fn meta(&mut self, meta: &Meta) -> Result<(), WriteError> {
        match meta {
            Meta::Interface { id, interface } => self.interface(*id, interface),
            Meta::Section { .. } => Ok(()),
            Meta::Block {
                block_type,
                interface,
                body,
            } => self.block(*block_type, *interface, body),
        }
    }

    /// Writes a block, as in [`Meta::Block`].
    ///
    /// # Errors
    /// As [`meta`](Self::meta).
    pub fn block(
        &mut self,
        block_type: u32,
        interface: Option<u16>,
        body: &[u8],
    ) -> Result<(), WriteError> {
        self.begin(block_type);
        let mut body = body;
        if let Some(id) = interface {
            let number = self.number(id)?;
            self.word(number);
            body = body.get(4..).unwrap_or(&[]);
        }
        self.block.extend_from_slice(body);
        options::pad(&mut self.block);
        self.end()
    }

    /// The output.
    pub fn output_mut(&mut self) -> &mut W {
        &mut self.output
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn finish(mut self) -> Result<W, WriteError> {
        self.output.flush()?;
        Ok(self.output)
    }

    fn number(&self, id: u16) -> Result<u32, WriteError> {
        let found = self.numbers.get(usize::from(id)).copied().flatten();
        found.ok_or(WriteError::UnknownInterface(id))
    }

    fn begin(&mut self, block_type: u32) {
        self.block.clear();
        self.word(block_type);
        // Total length, filled in at the end.
        self.word(0);
    }

    fn word(&mut self, word: u32) {
        self.block.extend_from_slice(&word.to_le_bytes());
    }

    /// A list with its end marker, which older readers want.
    fn options(&mut self, list: &[u8]) {
        if !list.is_empty() {
            self.block.extend_from_slice(list);
            options::pad(&mut self.block);
            self.word(0);
        }
    }

    fn end(&mut self) -> Result<(), WriteError> {
        let len = self.block.len().saturating_add(4);
        let total = u32::try_from(len).map_err(|_| WriteError::TooLong(len))?;
        self.block[4..8].copy_from_slice(&total.to_le_bytes());
        self.word(total);
        self.output.write_all(&self.block)?;
        Ok(())
    }
}
