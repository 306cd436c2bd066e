//! What of a worker's packets is in the log when its switch connects again.
//!
//! A switch knows how far the relay has confirmed, and the log may have more: blocks whose confirmation was
//! lost with the connection, or with the relay's process, and what was salvaged of a block that was being
//! filled. A relay that was killed may have left one block whole and an earlier one not, since several
//! threads write. A switch that has kept its packets sends again from the first that is missing on: what
//! comes after that one is then taken back, or it would be there twice.

use strata_blocks::{
    ALIGNMENT, BlockCounters, BlockHeader, Definitions, HEADER_LEN, RelayedHeader, SEGMENTS_AT,
    whole_packets,
};

use crate::disk::{Disk, DiskFile};
use crate::error::{StoreError, io_error};
use crate::manifest::BlockFile;
use crate::manifest::checkpoint::{Checkpoint, checkpoint_name};
use crate::manifest::stored::read_all;

/// What the log has of a worker's packets from a number on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StoredSince {
    /// One more than the number of the last one; the number asked about, without one.
    pub next_seq: u64,
    /// Those that are there whole.
    pub counters: BlockCounters,
}

/// A worker's blocks in a log.
pub(super) struct Stored<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) recording: u32,
    pub(super) worker: u16,
    pub(super) hash_seed: [u64; 2],
    /// Its files, in order.
    pub(super) files: &'a [BlockFile],
    /// The number of blocks that may be unconfirmed.
    pub(super) blocks_max: usize,
}

/// A block, or what of it remains.
struct Found {
    file: String,
    offset: u64,
    header: RelayedHeader,
}

/// The header of either kind of block.
enum Header {
    Relayed(RelayedHeader),
    Definitions(BlockHeader),
}

/// Is given a file, and a header in it with its offset.
type Each<'a> = dyn FnMut(&dyn DiskFile, u64, Header) -> Result<(), StoreError> + 'a;

impl Stored<'_> {
    /// What the log has from packet `from` on.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub(super) fn since(&self, from: u64) -> Result<StoredSince, StoreError> {
        let mut stored = StoredSince {
            next_seq: from,
            ..StoredSince::default()
        };
        self.each(&self.candidates(from)?, |block, segments, known| {
            stored.next_seq = stored.next_seq.max(block.header.next_seq);
            whole_packets(&block.header, segments, |packet| {
                if packet.seq >= from && known.has_interface(packet.interface) {
                    stored.counters.count(packet);
                    stored.next_seq = stored.next_seq.max(packet.seq.saturating_add(1));
                }
                true
            });
        })?;
        Ok(stored)
    }

    /// As [`Stored::since`], for a switch that sends again what is missing: what the log has without a gap.
    /// The rest is taken back. What a checkpoint says is durable never is; if there is a gap before that,
    /// it stays.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or written.
    pub(super) fn until_gap(&self, from: u64) -> Result<StoredSince, StoreError> {
        let (mut next, mut counters) = (from, BlockCounters::default());
        let (mut has_gap, mut limited) = (false, Vec::new());
        self.each(&self.candidates(from)?, |block, segments, known| {
            let mut kept = 0;
            let in_part = whole_packets(&block.header, segments, |packet| {
                let is_next = packet.seq == next && known.has_interface(packet.interface);
                match packet.seq < from {
                    true => kept += 1,
                    false if has_gap || !is_next => {
                        has_gap = true;
                        return false;
                    }
                    false => {
                        counters.count(packet);
                        next = next.saturating_add(1);
                        kept += 1;
                    }
                }
                true
            });
            has_gap |= in_part || (!block.header.salvaged && block.header.next_seq > next);
            if has_gap {
                let next_seq = next.max(block.header.first_seq);
                limited.push(Found {
                    file: block.file.clone(),
                    offset: block.offset,
                    header: RelayedHeader {
                        salvaged: false,
                        next_seq,
                        packets: kept,
                        segments: 0,
                        ..block.header
                    },
                });
            }
        })?;
        let durable = self.durable_seq()?;
        if limited.iter().any(|block| block.header.first_seq < durable) {
            return self.since(from);
        }
        for block in &limited {
            let named = self.disk.display(&block.file);
            let mut file = self
                .disk
                .open(&block.file, true)
                .map_err(io_error(named.clone(), "open"))?;
            file.write_at(&block.header.emit(), block.offset)
                .map_err(io_error(named.clone(), "write"))?;
            file.sync().map_err(io_error(named, "sync"))?;
        }
        Ok(StoredSince {
            next_seq: next,
            counters,
        })
    }

    /// Every packet before this one is on disk, says the last checkpoint.
    fn durable_seq(&self) -> Result<u64, StoreError> {
        let name = checkpoint_name(self.recording, self.worker);
        if !self.disk.exists(&name) {
            return Ok(0);
        }
        let content = read_all(self.disk, &name);
        let content = content.map_err(io_error(self.disk.display(&name), "read"))?;
        Ok(Checkpoint::latest(&content).map_or(0, |last| last.durable_seq))
    }

    /// The blocks that may have packets from `from` on, in order: the last of them, as many as may be
    /// unconfirmed, whatever a switch asks about.
    fn candidates(&self, from: u64) -> Result<Vec<Found>, StoreError> {
        let mut all = Vec::new();
        for entry in self.files.iter().rev() {
            // One that was compacted or deleted is closed, and was confirmed before.
            if all.len() >= self.blocks_max || !self.disk.exists(&entry.name) {
                break;
            }
            let (mut of_file, mut reaches_back) = (Vec::new(), false);
            self.walk(&entry.name, &mut |_, offset, header| {
                if let Header::Relayed(header) = header {
                    reaches_back |= header.first_seq <= from && !header.salvaged;
                    if header.next_seq > from || header.salvaged {
                        let file = entry.name.clone();
                        of_file.push(Found {
                            file,
                            offset,
                            header,
                        });
                    }
                }
                Ok(())
            })?;
            of_file.append(&mut all);
            all = of_file;
            if reaches_back {
                break;
            }
        }
        let excess = all.len().saturating_sub(self.blocks_max);
        all.drain(..excess);
        Ok(all)
    }

    /// Reads these blocks, one at a time, with what their packets refer to.
    fn each(
        &self,
        found: &[Found],
        mut take: impl FnMut(&Found, &[u8], &Definitions),
    ) -> Result<(), StoreError> {
        for of_file in found.chunk_by(|one, next| one.file == next.file) {
            let Some(Found { file: name, .. }) = of_file.first() else {
                continue;
            };
            let mut known = Definitions::default();
            let mut wanted = of_file.iter().peekable();
            self.walk(name, &mut |file, offset, header| {
                match header {
                    Header::Definitions(header) => {
                        known.read(&self.body(name, file, &header, offset)?);
                    }
                    Header::Relayed(header) => {
                        if let Some(found) = wanted.next_if(|found| found.offset == offset) {
                            take(found, &self.segments(name, file, &header, offset)?, &known);
                        }
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Calls `each` with the headers in a file, from its start.
    fn walk(&self, name: &str, each: &mut Each<'_>) -> Result<(), StoreError> {
        let named = || self.disk.display(name);
        let opened = self.disk.open(name, false);
        let file = opened.map_err(io_error(named(), "open"))?;
        let size = file.size().map_err(io_error(named(), "open"))?;
        let identity = (self.recording, self.hash_seed);
        let mut offset = 0_u64;
        while offset < size {
            let mut bytes = [0; HEADER_LEN];
            let read = file.read_at(&mut bytes, offset);
            read.map_err(io_error(named(), "read"))?;
            let len = if let Some(header) = RelayedHeader::parse(&bytes)
                && (header.recording, header.hash_seed) == identity
            {
                each(file.as_ref(), offset, Header::Relayed(header))?;
                header.stored_len()
            } else if let Ok(header) = BlockHeader::parse(&bytes)
                && (header.recording, header.hash_seed) == identity
            {
                let len = header.stored_len();
                each(file.as_ref(), offset, Header::Definitions(header))?;
                len
            } else {
                ALIGNMENT
            };
            offset = offset.saturating_add(len as u64);
        }
        Ok(())
    }

    /// The segments of a block. A block that was not written to its end has none: readers pass over it.
    fn segments(
        &self,
        name: &str,
        file: &dyn DiskFile,
        header: &RelayedHeader,
        offset: u64,
    ) -> Result<Vec<u8>, StoreError> {
        let size = file.size();
        let size = size.map_err(io_error(self.disk.display(name), "open"))?;
        if offset.saturating_add(header.stored_len() as u64) > size {
            return Ok(Vec::new());
        }
        let mut segments = vec![0; header.used as usize];
        let read = file.read_at(&mut segments, offset.saturating_add(SEGMENTS_AT as u64));
        read.map_err(io_error(self.disk.display(name), "read"))?;
        Ok(segments)
    }

    /// The records of a block of definitions; none if they are damaged.
    fn body(
        &self,
        name: &str,
        file: &dyn DiskFile,
        header: &BlockHeader,
        offset: u64,
    ) -> Result<Vec<u8>, StoreError> {
        let mut body = vec![0; header.body_len as usize];
        let read = file.read_at(&mut body, offset.saturating_add(HEADER_LEN as u64));
        let read = read.map_err(io_error(self.disk.display(name), "read"))?;
        if read < body.len() || crc32c::crc32c(&body) != header.body_crc {
            body.clear();
        }
        Ok(body)
    }
}
