//! Packets kept beyond their headers: pcapng in gzip members, with random access.
//!
//! Any tool can read the file. Its members (RFC 1952 §2.2) end between packets; a packet is located
//! by its member's offset in the file and its own offset in the member.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::HashSet;
use std::io::{self, BufReader, Read, Write};
use std::num::NonZeroUsize;

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use strata_capture::{PacketRef, PcapNgWriter, WriteError};
use strata_tables::in_parallel;
use strata_wire::Interface;

use crate::error::ArchiveError;
use crate::files::{Input, InputAt, Output, Sums};

/// Uncompressed bytes after which a member ends.
const MEMBER_BYTES: usize = 512 << 10;
/// A packet's place: its member's offset in the file << this, plus its own in the member.
const WITHIN_BITS: u32 = 20;
const _: () = assert!(MEMBER_BYTES <= 1 << WITHIN_BITS);
/// The fixed part of an enhanced packet block.
const PACKET_HEAD: usize = 28;
/// A larger member is damaged: one packet may follow [`MEMBER_BYTES`].
const MEMBER_BYTES_MAX: u64 = 1 << 30;

/// Members of which each thread compresses this many at a time.
const MEMBERS_AHEAD: usize = 4;

/// Collects what is written in members, and compresses these.
struct Members {
    output: Output,
    /// Members that are complete, not yet compressed.
    full: Vec<Vec<u8>>,
    pending: Vec<u8>,
    /// Offset in the file of the first member that is not compressed.
    at: u64,
    /// Offsets in the file of the members since the last [`PayloadWriter::settle`].
    starts: Vec<u64>,
}

impl Members {
    fn end_member(&mut self) {
        let next = Vec::with_capacity(const { MEMBER_BYTES + (64 << 10) });
        let full = std::mem::replace(&mut self.pending, next);
        self.full.push(full);
    }

    /// Compresses and writes the members that are complete.
    fn write_full(&mut self, threads: NonZeroUsize) -> io::Result<()> {
        for compressed in in_parallel(threads, &self.full, |member| compress(member)) {
            let compressed = compressed?;
            self.starts.push(self.at);
            self.output.write_all(&compressed)?;
            self.at = self.at.saturating_add(compressed.len() as u64);
        }
        self.full.clear();
        Ok(())
    }
}

fn compress(member: &[u8]) -> io::Result<Vec<u8>> {
    let half = Vec::with_capacity(member.len() >> 1);
    let mut encoder = GzEncoder::new(half, Compression::fast());
    encoder.write_all(member)?;
    encoder.finish()
}

/// What [`PcapNgWriter`] writes to.
impl Write for Members {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where a packet is: in which member since the last [`PayloadWriter::settle`], and where in that.
#[derive(Clone, Copy)]
pub(crate) struct Unsettled {
    member: usize,
    within: usize,
}

/// The offsets in the file of the members that packets are in.
pub(crate) struct Settled(Vec<u64>);

impl Settled {
    /// The packet's place, as [`PayloadReader::packet`] takes it.
    pub(crate) fn place(&self, packet: Unsettled) -> Option<u64> {
        let start = self.0.get(packet.member)?;
        Some(start << WITHIN_BITS | packet.within as u64)
    }
}

/// Writes a payload file.
pub(crate) struct PayloadWriter {
    writer: PcapNgWriter<Members>,
    announced: HashSet<u16>,
    threads: NonZeroUsize,
    /// The file, as messages show it.
    named: String,
}

impl PayloadWriter {
    /// Starts the file; this many threads compress.
    pub(crate) fn new(
        output: Output,
        named: String,
        threads: NonZeroUsize,
    ) -> Result<Self, ArchiveError> {
        let members = Members {
            output,
            full: Vec::new(),
            pending: Vec::with_capacity(const { MEMBER_BYTES + (64 << 10) }),
            at: 0,
            starts: Vec::new(),
        };
        let writer = PcapNgWriter::new(members, &[]);
        Ok(Self {
            writer: writer.map_err(|error| unwritten(error, &named))?,
            announced: HashSet::new(),
            threads,
            named,
        })
    }

    /// Writes a packet and returns where it is.
    pub(crate) fn packet(
        &mut self,
        packet: &PacketRef<'_>,
        interface: &Interface,
    ) -> Result<Unsettled, ArchiveError> {
        let written = self.write(packet, interface);
        written.map_err(|error| unwritten(error, &self.named))
    }

    fn write(
        &mut self,
        packet: &PacketRef<'_>,
        interface: &Interface,
    ) -> Result<Unsettled, WriteError> {
        if self.announced.insert(packet.interface) {
            self.writer.interface(packet.interface, interface)?;
        }
        let members = self.writer.output_mut();
        if members.pending.len() >= MEMBER_BYTES {
            members.end_member();
            if members.full.len() >= self.threads.get().saturating_mul(MEMBERS_AHEAD) {
                members.write_full(self.threads)?;
            }
        }
        let unsettled = Unsettled {
            member: members.starts.len().saturating_add(members.full.len()),
            within: members.pending.len(),
        };
        self.writer.packet(packet)?;
        Ok(unsettled)
    }

    /// Writes the members that are complete, and returns where the packets since the last time are.
    pub(crate) fn settle(&mut self) -> Result<Settled, ArchiveError> {
        let members = self.writer.output_mut();
        let written = members.write_full(self.threads);
        written.map_err(ArchiveError::io(self.named.clone(), "write"))?;
        // The member in progress begins behind them.
        members.starts.push(members.at);
        Ok(Settled(std::mem::take(&mut members.starts)))
    }

    pub(crate) fn finish(self) -> Result<Sums, ArchiveError> {
        let Self {
            writer,
            threads,
            named,
            ..
        } = self;
        let mut members = writer.finish().map_err(|error| unwritten(error, &named))?;
        if !members.pending.is_empty() {
            members.end_member();
        }
        let ended = members.write_full(threads);
        let written = ended.and_then(|()| members.output.finish());
        written.map_err(ArchiveError::io(named, "write"))
    }
}

/// Says which file an error is about.
fn unwritten(error: WriteError, named: &str) -> ArchiveError {
    match error {
        WriteError::Io(source) => ArchiveError::io(named.to_owned(), "write")(source),
        other => other.into(),
    }
}

/// Bytes read at a time: about a member, and no more than a piece of an encrypted file or object.
const READ_BYTES: usize = 256 << 10;

/// Reads packets of a payload file. It holds one member: reading packets in stored order, which is
/// that of the table's flows, decompresses each member once.
#[derive(Debug)]
pub struct PayloadReader {
    input: BufReader<InputAt>,
    /// Offset in the file of the member held.
    at: Option<u64>,
    member: Vec<u8>,
    unreadable: Vec<Unreadable>,
}

/// A member that cannot be read.
#[derive(Debug)]
pub struct Unreadable {
    /// Its offset.
    pub at: u64,
    /// Why.
    pub problem: String,
    /// How many of its packets were wanted.
    pub packets: u64,
}

impl PayloadReader {
    /// Reads a payload file.
    #[must_use]
    pub fn new(input: &Input) -> Self {
        Self {
            input: BufReader::with_capacity(READ_BYTES, input.at(0)),
            at: None,
            member: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    /// The bytes of the packet at a place. If they cannot be read, `None`, and
    /// [`take_unreadable`](Self::take_unreadable) says why.
    pub fn packet(&mut self, place: u64) -> Option<&[u8]> {
        let at = place >> WITHIN_BITS;
        let start = usize::try_from(place & const { (1 << WITHIN_BITS) - 1 }).ok()?;
        if self.at != Some(at) {
            if let Some(last) = self.unreadable.last_mut().filter(|last| last.at == at) {
                last.packets = last.packets.saturating_add(1);
                return None;
            }
            self.at = None;
            if let Err(error) = self.read(at) {
                self.unreadable.push(Unreadable {
                    at,
                    problem: error.to_string(),
                    packets: 1,
                });
                return None;
            }
            self.at = Some(at);
        }
        let found = packet_at(&self.member, start);
        if found.is_none() {
            self.unreadable.push(Unreadable {
                at,
                problem: format!("no packet begins at byte {start} of the uncompressed member"),
                packets: 1,
            });
        }
        found
    }

    /// Members that could not be read so far, each listed once.
    pub fn take_unreadable(&mut self) -> Vec<Unreadable> {
        std::mem::take(&mut self.unreadable)
    }

    /// Reads the member at this offset in the file.
    fn read(&mut self, at: u64) -> io::Result<()> {
        let ahead = self.input.buffer().len() as u64;
        if self.input.get_ref().position().checked_sub(ahead) != Some(at) {
            let input = self.input.get_ref().input().at(at);
            self.input = BufReader::with_capacity(READ_BYTES, input);
        }
        self.member.clear();
        let reader = GzDecoder::new(&mut self.input);
        let read = reader
            .take(MEMBER_BYTES_MAX)
            .read_to_end(&mut self.member)?;
        if read as u64 == MEMBER_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it has no end"));
        }
        Ok(())
    }
}

/// The bytes of the packet whose block starts at an offset in a member.
fn packet_at(member: &[u8], start: usize) -> Option<&[u8]> {
    let (head, rest) = member.get(start..)?.split_first_chunk::<PACKET_HEAD>()?;
    let word = |at: usize| Some(u32::from_le_bytes(*head.get(at..)?.first_chunk()?));
    if word(0)? != strata_wire::pcapng::block_type::ENHANCED_PACKET {
        return None;
    }
    rest.get(..usize::try_from(word(20)?).ok()?)
}
