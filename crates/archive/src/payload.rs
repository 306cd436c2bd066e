//! Packets kept beyond their headers: pcapng in gzip members that can be sought.
//!
//! The file is one that any tool reads. Its members (RFC 1952 §2.2) end between
//! packets; a packet is found by where its member begins in the file and where it
//! stands in the member.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::rc::Rc;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use strata_capture::{Interface, PacketRef, PcapNgWriter, WriteError};

use crate::error::Source;
use crate::files::{Input, Output, Sums};

/// Uncompressed bytes after which a member ends.
const MEMBER_BYTES: usize = 512 << 10;
/// A packet's place: its member's in the file, times 2 to this, plus its own in it.
const WITHIN_BITS: u32 = 20;
const _: () = assert!(MEMBER_BYTES <= 1 << WITHIN_BITS);
/// The fixed part of an enhanced packet block.
const PACKET_HEAD: usize = 28;
/// A member that is larger is damage: one packet may follow [`MEMBER_BYTES`].
const MEMBER_BYTES_MAX: u64 = 1 << 30;

/// Compresses what is written, a member at a time.
struct Members {
    output: Output,
    pending: Vec<u8>,
    /// Where the next member will begin in the file.
    at: u64,
}

impl Members {
    fn end_member(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let half = Vec::with_capacity(self.pending.len() / 2);
        let mut encoder = GzEncoder::new(half, Compression::fast());
        encoder.write_all(&self.pending)?;
        let compressed = encoder.finish()?;
        self.output.write_all(&compressed)?;
        self.at += compressed.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

/// What [`PcapNgWriter`] writes to while we look at it too.
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
}

impl PayloadWriter {
    pub(crate) fn new(output: Output) -> Result<Self, WriteError> {
        let members = Rc::new(RefCell::new(Members {
            output,
            pending: Vec::with_capacity(MEMBER_BYTES + (64 << 10)),
            at: 0,
        }));
        let writer = PcapNgWriter::new(Shared(Rc::clone(&members)), &[])?;
        Ok(Self {
            members,
            writer,
            announced: HashSet::new(),
        })
    }

    /// Writes a packet and returns its place.
    pub(crate) fn packet(
        &mut self,
        packet: &PacketRef<'_>,
        interface: &Interface,
    ) -> Result<u64, WriteError> {
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

    pub(crate) fn finish(self) -> Result<Sums, WriteError> {
        drop(self.writer);
        let members = Rc::into_inner(self.members).map(RefCell::into_inner);
        let Some(mut members) = members else {
            unreachable!("the writer that shared it is gone");
        };
        members.end_member()?;
        Ok(members.output.finish()?)
    }
}

/// Members that a reader holds: packets lie by flow and are wanted by time, so neighbours
/// come from as many members as there are large flows at a time.
const MEMBERS_HELD: usize = 32;

/// Reads packets of a payload file.
pub(crate) struct PayloadReader {
    input: Input,
    /// Members by their place in the file, the one used last in front.
    members: VecDeque<(u64, Vec<u8>)>,
}

impl PayloadReader {
    pub(crate) fn new(input: Input) -> Self {
        Self {
            input,
            members: VecDeque::new(),
        }
    }

    /// The bytes of the packet at a place.
    pub(crate) fn packet(&mut self, place: u64) -> Result<&[u8], Source> {
        const NO_PACKET: &str = "no packet where one should be";
        let at = place >> WITHIN_BITS;
        let member = self.member(at)?;
        let start = usize::try_from(place & ((1 << WITHIN_BITS) - 1))?;
        let block = member.get(start..).ok_or(NO_PACKET)?;
        let head: &[u8; PACKET_HEAD] = block.first_chunk().ok_or(NO_PACKET)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(0) != strata_capture::block_type::ENHANCED_PACKET {
            return Err(NO_PACKET.into());
        }
        let len = usize::try_from(word(20))?;
        Ok(block.get(PACKET_HEAD..PACKET_HEAD + len).ok_or(NO_PACKET)?)
    }

    /// What a member holds, which begins at this place in the file.
    fn member(&mut self, at: u64) -> Result<&[u8], Source> {
        let held = self.members.iter().position(|(have, _)| *have == at);
        let member = match held.and_then(|place| self.members.remove(place)) {
            Some(member) => member,
            None => {
                let mut bytes = match self.members.len() {
                    MEMBERS_HELD => self.members.pop_back().map_or_else(Vec::new, |last| last.1),
                    _ => Vec::with_capacity(MEMBER_BYTES + (64 << 10)),
                };
                bytes.clear();
                let reader = GzDecoder::new(self.input.at(at));
                reader.take(MEMBER_BYTES_MAX).read_to_end(&mut bytes)?;
                (at, bytes)
            }
        };
        self.members.push_front(member);
        Ok(&self.members[0].1)
    }
}
