//! Packets kept beyond their headers: pcapng in zstd frames that can be sought.
//!
//! The file is a zstd stream as any tool reads it; its frames end between packets,
//! and a table at its end (zstd's seekable format, a skippable frame) says where
//! each begins. A packet is found by its offset in the uncompressed stream.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Write};
use std::rc::Rc;

use strata_capture::{Interface, PacketRef, PcapNgWriter, WriteError};

use crate::error::Source;
use crate::files::{Input, Output, Sums};

/// Uncompressed bytes of a frame.
const FRAME_BYTES: usize = 512 << 10;
const SKIPPABLE_MAGIC: u32 = 0x184D_2A5E;
const SEEKABLE_MAGIC: u32 = 0x8F92_EAB1;
/// Frames, descriptor, magic: what the table ends with.
const FOOTER_LEN: usize = 9;
/// The fixed part of an enhanced packet block.
const PACKET_HEAD: usize = 28;
/// A frame that claims to be larger is damage.
const FRAME_BYTES_MAX: u32 = 1 << 30;

/// Compresses what is written, a frame at a time.
struct Frames {
    output: Output,
    compressor: zstd::bulk::Compressor<'static>,
    pending: Vec<u8>,
    /// Compressed and uncompressed length of each.
    frames: Vec<(u32, u32)>,
    /// Uncompressed bytes of the frames that are written.
    written: u64,
}

impl Frames {
    fn end_frame(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let compressed = self.compressor.compress(&self.pending)?;
        let to_u32 = |len: usize| u32::try_from(len).map_err(io::Error::other);
        self.frames
            .push((to_u32(compressed.len())?, to_u32(self.pending.len())?));
        self.output.write_all(&compressed)?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

/// What [`PcapNgWriter`] writes to while we look at it too.
#[derive(Clone)]
struct Shared(Rc<RefCell<Frames>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().pending.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a payload file.
pub(crate) struct PayloadWriter {
    frames: Rc<RefCell<Frames>>,
    writer: PcapNgWriter<Shared>,
    announced: HashMap<u16, ()>,
}

impl PayloadWriter {
    pub(crate) fn new(output: Output) -> Result<Self, WriteError> {
        let frames = Rc::new(RefCell::new(Frames {
            output,
            compressor: zstd::bulk::Compressor::new(1).map_err(WriteError::Io)?,
            pending: Vec::with_capacity(FRAME_BYTES + (64 << 10)),
            frames: Vec::new(),
            written: 0,
        }));
        let writer = PcapNgWriter::new(Shared(Rc::clone(&frames)), &[])?;
        Ok(Self {
            frames,
            writer,
            announced: HashMap::new(),
        })
    }

    /// Writes a packet and returns where it stands in the uncompressed stream.
    pub(crate) fn packet(
        &mut self,
        packet: &PacketRef<'_>,
        interface: &Interface,
    ) -> Result<u64, WriteError> {
        if self.announced.insert(packet.interface, ()).is_none() {
            self.writer.interface(packet.interface, interface)?;
        }
        let at = {
            let mut frames = self.frames.borrow_mut();
            if frames.pending.len() >= FRAME_BYTES {
                frames.end_frame()?;
            }
            frames.written + frames.pending.len() as u64
        };
        self.writer.packet(packet)?;
        Ok(at)
    }

    pub(crate) fn finish(self) -> Result<Sums, WriteError> {
        drop(self.writer);
        let frames = Rc::into_inner(self.frames).map(RefCell::into_inner);
        let Some(mut frames) = frames else {
            unreachable!("the writer that shared it is gone");
        };
        frames.end_frame()?;
        let mut table = Vec::new();
        for (compressed, uncompressed) in &frames.frames {
            table.extend_from_slice(&compressed.to_le_bytes());
            table.extend_from_slice(&uncompressed.to_le_bytes());
        }
        let count = u32::try_from(frames.frames.len()).unwrap_or(u32::MAX);
        table.extend_from_slice(&count.to_le_bytes());
        table.push(0);
        table.extend_from_slice(&SEEKABLE_MAGIC.to_le_bytes());
        let len = u32::try_from(table.len()).unwrap_or(u32::MAX);
        let mut output = frames.output;
        output.write_all(&SKIPPABLE_MAGIC.to_le_bytes())?;
        output.write_all(&len.to_le_bytes())?;
        output.write_all(&table)?;
        Ok(output.finish()?)
    }
}

/// Reads packets of a payload file.
pub(crate) struct PayloadReader {
    input: Input,
    /// Where each frame begins: in the file, and uncompressed; the end last.
    starts: Vec<(u64, u64)>,
    decompressor: zstd::bulk::Decompressor<'static>,
    /// The frame that was read last.
    frame: Option<(usize, Vec<u8>)>,
}

impl PayloadReader {
    pub(crate) fn open(input: Input) -> Result<Self, Source> {
        const NO_TABLE: &str = "it does not end with a seek table";
        let mut footer = [0; FOOTER_LEN];
        let end = input
            .size()
            .checked_sub(FOOTER_LEN as u64)
            .ok_or(NO_TABLE)?;
        input.read_at(&mut footer, end)?;
        let word = |bytes: &[u8], at: usize| -> u32 {
            bytes
                .get(at..at + 4)
                .and_then(|b| b.try_into().ok())
                .map_or(0, u32::from_le_bytes)
        };
        if word(&footer, 5) != SEEKABLE_MAGIC || footer[4] != 0 {
            return Err(NO_TABLE.into());
        }
        let count = usize::try_from(word(&footer, 0))?;
        let start = (count as u64)
            .checked_mul(8)
            .and_then(|len| end.checked_sub(len));
        let mut table = vec![0; start.map_or(0, |_| count * 8)];
        input.read_at(&mut table, start.ok_or(NO_TABLE)?)?;
        let mut starts = vec![(0, 0)];
        let (mut file, mut stream) = (0_u64, 0_u64);
        for entry in table.chunks_exact(8) {
            file += u64::from(word(entry, 0));
            stream += u64::from(word(entry, 4));
            starts.push((file, stream));
        }
        if file > end {
            return Err("its seek table leads beyond the file".into());
        }
        Ok(Self {
            input,
            starts,
            decompressor: zstd::bulk::Decompressor::new()?,
            frame: None,
        })
    }

    /// The bytes of the packet at an offset of the uncompressed stream.
    pub(crate) fn packet(&mut self, at: u64) -> Result<&[u8], Source> {
        const NO_PACKET: &str = "no packet where one should be";
        let number = self.starts.partition_point(|(_, stream)| *stream <= at);
        let number = number.checked_sub(1).ok_or(NO_PACKET)?;
        if self.frame.as_ref().is_none_or(|(have, _)| *have != number) {
            self.frame = Some((number, self.read_frame(number)?));
        }
        let (_, frame) = self.frame.as_ref().ok_or(NO_PACKET)?;
        let start = usize::try_from(at - self.starts[number].1)?;
        let block = frame.get(start..).ok_or(NO_PACKET)?;
        let head: &[u8; PACKET_HEAD] = block.first_chunk().ok_or(NO_PACKET)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(0) != strata_capture::block_type::ENHANCED_PACKET {
            return Err(NO_PACKET.into());
        }
        let len = usize::try_from(word(20))?;
        Ok(block.get(PACKET_HEAD..PACKET_HEAD + len).ok_or(NO_PACKET)?)
    }

    fn read_frame(&mut self, number: usize) -> Result<Vec<u8>, Source> {
        const NO_FRAME: &str = "a packet lies beyond its frames";
        let (file, stream) = self.starts[number];
        let (file_end, stream_end) = *self.starts.get(number + 1).ok_or(NO_FRAME)?;
        if stream_end - stream > u64::from(FRAME_BYTES_MAX) {
            return Err("a frame claims to be larger than any is".into());
        }
        let mut compressed = vec![0; usize::try_from(file_end - file)?];
        self.input.read_at(&mut compressed, file)?;
        let len = usize::try_from(stream_end - stream)?;
        Ok(self.decompressor.decompress(&compressed, len)?)
    }
}
