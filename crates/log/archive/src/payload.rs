//! Packets kept beyond their headers: pcapng in gzip members, with random access.
//!
//! Any tool can read the file. Its members (RFC 1952 §2.2) end between packets; a packet is located
//! by its member's offset in the file and its own offset in the member.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::{self, BufReader, Read, Write};
use std::rc::Rc;

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use strata_capture::{PacketRef, PcapNgWriter, WriteError};
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

/// Compresses what is written, a member at a time.
struct Members {
    output: Output,
    pending: Vec<u8>,
    /// Offset in the file of the next member.
    at: u64,
}

impl Members {
    fn end_member(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let half = Vec::with_capacity(self.pending.len() >> 1);
        let mut encoder = GzEncoder::new(half, Compression::fast());
        encoder.write_all(&self.pending)?;
        let compressed = encoder.finish()?;
        self.output.write_all(&compressed)?;
        self.at = self.at.saturating_add(compressed.len() as u64);
        self.pending.clear();
        Ok(())
    }
}

/// What [`PcapNgWriter`] writes to, readable here as well.
#[derive(Clone)]
struct Shared(Rc<RefCell<Members>>);

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
    members: Rc<RefCell<Members>>,
    writer: PcapNgWriter<Shared>,
    announced: HashSet<u16>,
    /// The file, as messages show it.
    named: String,
}

impl PayloadWriter {
    pub(crate) fn new(output: Output, named: String) -> Result<Self, ArchiveError> {
        let members = Rc::new(RefCell::new(Members {
            output,
            pending: Vec::with_capacity(const { MEMBER_BYTES + (64 << 10) }),
            at: 0,
        }));
        let writer = PcapNgWriter::new(Shared(Rc::clone(&members)), &[]);
        Ok(Self {
            members,
            writer: writer.map_err(|error| unwritten(error, &named))?,
            announced: HashSet::new(),
            named,
        })
    }

    /// Writes a packet and returns its place.
    pub(crate) fn packet(
        &mut self,
        packet: &PacketRef<'_>,
        interface: &Interface,
    ) -> Result<u64, ArchiveError> {
        let place = self.place(packet, interface);
        place.map_err(|error| unwritten(error, &self.named))
    }

    fn place(&mut self, packet: &PacketRef<'_>, interface: &Interface) -> Result<u64, WriteError> {
        if self.announced.insert(packet.interface) {
            self.writer.interface(packet.interface, interface)?;
        }
        let place = {
            let mut members = self.members.borrow_mut();
            if members.pending.len() >= MEMBER_BYTES {
                members.end_member()?;
            }
            members.at << WITHIN_BITS | members.pending.len() as u64
        };
        self.writer.packet(packet)?;
        Ok(place)
    }

    pub(crate) fn finish(self) -> Result<Sums, ArchiveError> {
        drop(self.writer);
        let members = Rc::into_inner(self.members).map(RefCell::into_inner);
        let Some(mut members) = members else {
            unreachable!("the writer that shared it is gone");
        };
        let ended = members.end_member();
        let written = ended.and_then(|()| members.output.finish());
        written.map_err(ArchiveError::io(self.named, "write"))
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
                problem: format!("there is none at byte {start} of what it holds"),
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
