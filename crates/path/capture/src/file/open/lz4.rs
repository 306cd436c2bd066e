//! Decompressing lz4: the frames of the program `lz4`, block by block.
//!
//! Source: LZ4 Frame Format Description, version 1.6.4.

use std::hash::Hasher;
use std::io::{self, BufRead, ErrorKind, Read};

use lz4_flex::block::decompress_into_with_dict;
use twox_hash::XxHash32;

/// First bytes of a frame.
pub(super) const MAGIC: [u8; 4] = 0x184d_2204_u32.to_le_bytes();
/// Frames that decoders skip: the lower 4 bits of their number are the writer's.
const SKIPPABLE: u32 = 0x184d_2a50;
const SKIPPABLE_BITS: u32 = 0xffff_fff0;
/// Flags of a frame, from the bit of the dictionary on.
mod flag {
    pub(super) const DICTIONARY: u8 = 1;
    pub(super) const CONTENT_SUM: u8 = 1 << 2;
    pub(super) const CONTENT_SIZE: u8 = 1 << 3;
    pub(super) const BLOCK_SUM: u8 = 1 << 4;
    pub(super) const INDEPENDENT: u8 = 1 << 5;
    /// Version, which is 1, and a reserved bit.
    pub(super) const FIXED: u8 = 0b1100_0010;
    pub(super) const FIXED_VALUE: u8 = 0b0100_0000;
}
/// The bit of a block's size that tells that it is not compressed.
const STORED: u32 = 1 << 31;
/// How far a block refers back.
const WINDOW_BYTES: usize = 64 << 10;
const SUM_BYTES: usize = 4;

/// What comes next.
#[derive(Clone, Copy, Debug)]
enum Part {
    Magic,
    Descriptor,
    BlockSize,
    Block { len: usize, is_stored: bool },
    ContentSum,
    SkippedSize,
    Skipped { left: u64 },
}

/// A decompressor. Memory: 9 MiB, for blocks of 4 MiB, the largest ones. The library's own reader of frames takes a file
/// that ends between two blocks for whole, and cannot go on where it had to wait for more of a pipe.
pub(super) struct Lz4<R> {
    input: R,
    part: Part,
    /// The part that comes next, as far as it has come.
    taken: Vec<u8>,
    /// Of the current frame.
    flags: u8,
    block_max: usize,
    content: XxHash32,
    /// What blocks may refer to, then the decoded block.
    plain: Vec<u8>,
    /// How much of it has been given.
    given: usize,
}

impl<R> Lz4<R> {
    pub(super) fn new(input: R) -> Self {
        Self {
            input,
            part: Part::Magic,
            taken: Vec::new(),
            flags: 0,
            block_max: 0,
            content: XxHash32::with_seed(0),
            plain: Vec::new(),
            given: 0,
        }
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

impl<R: BufRead> Read for Lz4<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self
                .plain
                .get(self.given..)
                .expect("what was given is part of what was decoded");
            if !left.is_empty() || buffer.is_empty() {
                let len = left.len().min(buffer.len());
                buffer[..len].copy_from_slice(&left[..len]);
                self.given = self.given.saturating_add(len);
                return Ok(len);
            }
            if !self.advance()? {
                return Ok(0);
            }
        }
    }
}

impl<R: BufRead> Lz4<R> {
    /// Reads the next part; `false` at the end.
    fn advance(&mut self) -> io::Result<bool> {
        self.part = match self.part {
            Part::Magic => {
                if self.taken.is_empty() && self.input.fill_buf()?.is_empty() {
                    return Ok(false);
                }
                match self.number()? {
                    number if number.to_le_bytes() == MAGIC => Part::Descriptor,
                    number if number & SKIPPABLE_BITS == SKIPPABLE => Part::SkippedSize,
                    _ => return Err(damaged("other data follows its frame")),
                }
            }
            Part::Descriptor => {
                self.descriptor()?;
                Part::BlockSize
            }
            Part::BlockSize => match self.number()? {
                0 if self.has(flag::CONTENT_SUM) => Part::ContentSum,
                0 => Part::Magic,
                size => Part::Block {
                    len: self.block_len(size & !STORED)?,
                    is_stored: size & STORED != 0,
                },
            },
            Part::Block { len, is_stored } => {
                self.block(len, is_stored)?;
                Part::BlockSize
            }
            Part::ContentSum => {
                if self.number()? != self.content.finish_32() {
                    return Err(damaged("the checksum of its content differs"));
                }
                Part::Magic
            }
            Part::SkippedSize => Part::Skipped {
                left: self.number()?.into(),
            },
            Part::Skipped { left: 0 } => Part::Magic,
            Part::Skipped { left } => {
                let skipped = self.skip(left)?;
                Part::Skipped {
                    left: left.saturating_sub(skipped),
                }
            }
        };
        Ok(true)
    }

    /// Waits until a part of this length has come. Fails at the end of the input, and where a read would have to wait:
    /// the next call goes on from there.
    fn take(&mut self, len: usize) -> io::Result<()> {
        while let Some(missing) = len.checked_sub(self.taken.len()).filter(|&bytes| bytes > 0) {
            let come = self.input.fill_buf()?;
            if come.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let come = come.get(..missing).unwrap_or(come);
            self.taken.extend_from_slice(come);
            let len = come.len();
            self.input.consume(len);
        }
        Ok(())
    }

    /// A number of 4 bytes, which is the whole part.
    fn number(&mut self) -> io::Result<u32> {
        self.take(4)?;
        let number = number_at(&self.taken, 0);
        self.taken.clear();
        Ok(number)
    }

    /// Flags, sizes and their checksum.
    fn descriptor(&mut self) -> io::Result<()> {
        self.take(2)?;
        let (flags, sizes) = (self.taken[0], self.taken[1]);
        if flags & flag::FIXED != flag::FIXED_VALUE {
            return Err(damaged("its flags are not those of version 1"));
        }
        let sum_at: usize = match flags & flag::CONTENT_SIZE {
            0 => 2,
            _ => 10,
        };
        if flags & flag::DICTIONARY != 0 {
            return Err(io::Error::other(
                "its lz4 frame needs a dictionary: decompress it with `lz4 -d -D DICTIONARY`",
            ));
        }
        self.take(sum_at.saturating_add(1))?;
        let sum = XxHash32::oneshot(0, &self.taken[..sum_at]).to_le_bytes()[1];
        if self.taken[sum_at] != sum {
            return Err(damaged("the checksum of its header differs"));
        }
        self.block_max = match sizes {
            0x40 => 64 << 10,
            0x50 => 256 << 10,
            0x60 => 1 << 20,
            0x70 => 4 << 20,
            _ => return Err(damaged("its block size is unknown")),
        };
        self.taken.clear();
        self.flags = flags;
        self.content = XxHash32::with_seed(0);
        // A frame does not refer to another one.
        (self.plain, self.given) = (Vec::new(), 0);
        Ok(())
    }

    fn block_len(&self, size: u32) -> io::Result<usize> {
        let len = usize::try_from(size).ok();
        len.filter(|&len| len <= self.block_max)
            .ok_or_else(|| damaged("a block is larger than the frame's header says"))
    }

    fn block(&mut self, len: usize, is_stored: bool) -> io::Result<()> {
        let has_sum = self.has(flag::BLOCK_SUM);
        let sum_bytes = if has_sum { SUM_BYTES } else { 0 };
        self.take(len.saturating_add(sum_bytes))?;
        if has_sum && number_at(&self.taken, len) != XxHash32::oneshot(0, &self.taken[..len]) {
            return Err(damaged("the checksum of a block differs"));
        }
        let window = match self.has(flag::INDEPENDENT) {
            true => 0,
            false => self.plain.len().min(WINDOW_BYTES),
        };
        // Of what was given, the end stays.
        self.plain.drain(..self.plain.len().saturating_sub(window));
        self.given = self.plain.len();
        let data = &self.taken[..len];
        if is_stored {
            self.plain.extend_from_slice(data);
        } else {
            self.plain.resize(window.saturating_add(self.block_max), 0);
            let (before, block) = self.plain.split_at_mut(window);
            let decoded = decompress_into_with_dict(data, block, before);
            let bytes = decoded.map_err(|error| damaged(&error.to_string()));
            if bytes.is_err() {
                self.plain.truncate(window);
            }
            self.plain.truncate(window.saturating_add(bytes?));
        }
        self.content.write(&self.plain[window..]);
        self.taken.clear();
        Ok(())
    }

    fn skip(&mut self, left: u64) -> io::Result<u64> {
        let come = self.input.fill_buf()?.len();
        if come == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let skipped = usize::try_from(left).map_or(come, |left| come.min(left));
        self.input.consume(skipped);
        Ok(skipped as u64)
    }
}

/// A number in bytes that are there.
fn number_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    u32::from_le_bytes(*bytes.expect("the caller has taken them"))
}

fn damaged(what: &str) -> io::Error {
    let text = format!("its lz4 stream is damaged: {what}");
    io::Error::new(ErrorKind::InvalidData, text)
}
