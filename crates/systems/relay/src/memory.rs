//! The relay's memory as blocks that change hands.
//!
//! A block belongs either to the responder, which writes into it, or to the writer threads, which
//! put it on disk; nothing else can touch it. So a block is never overwritten before it is safe,
//! whatever the switch sends.

use std::sync::Arc;

use strata_blocks::{RelayedHeader, SEGMENTS_AT};
use strata_rdma::{Memory, Refused};
use strata_sys::AlignedBytes;
use strata_sys::disk::{AnyBlock, OwnBlock};
use strata_sys::shared::{SharedBlock, SharedMemory};

/// Memory of one block: a page for its header, then the segments.
#[derive(Debug)]
pub struct BlockMemory(AlignedBytes);

impl BlockMemory {
    /// Zeros, with space for `block_bytes` of segments.
    fn new(block_bytes: usize) -> Self {
        Self(AlignedBytes::zeroed(SEGMENTS_AT + block_bytes))
    }

    /// The memory that holds segments.
    #[must_use]
    pub fn segments(&self) -> &[u8] {
        &self.0[SEGMENTS_AT..]
    }

    /// Puts the header before the data to be written.
    #[must_use]
    pub fn seal(mut self, header: &RelayedHeader) -> AnyBlock {
        self.0[..SEGMENTS_AT].copy_from_slice(&header_page(header));
        AnyBlock::Own(OwnBlock::new(self.0, header.stored_len(), None))
    }
}

/// A page that starts with a header.
fn header_page(header: &RelayedHeader) -> [u8; SEGMENTS_AT] {
    let mut page = [0; SEGMENTS_AT];
    let emitted = header.emit();
    page[..emitted.len()].copy_from_slice(&emitted);
    page
}

/// A block of memory also mapped by the switch, or written by a NIC: puts the header before the
/// data to be written.
#[must_use]
pub fn seal_shared(memory: &Arc<SharedMemory>, at: usize, header: &RelayedHeader) -> AnyBlock {
    memory.copy_in(at, &header_page(header));
    AnyBlock::Shared(SharedBlock::new(memory, at, header.stored_len()))
}

/// The blocks of one switch.
#[derive(Debug)]
pub struct Blocks {
    blocks: Vec<Option<BlockMemory>>,
    block_bytes: usize,
}

impl Blocks {
    /// `blocks` blocks, each with space for `block_bytes` of segments.
    #[must_use]
    pub fn new(blocks: usize, block_bytes: usize) -> Self {
        Self {
            blocks: (0..blocks)
                .map(|_| Some(BlockMemory::new(block_bytes)))
                .collect(),
            block_bytes,
        }
    }

    /// The distance from the first byte of one block to that of the next.
    #[must_use]
    pub fn stride(&self) -> usize {
        SEGMENTS_AT + self.block_bytes
    }

    /// Total size of all blocks, which are contiguous.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.stride() * self.blocks.len()) as u64
    }

    /// Takes a block away from the responder.
    pub fn take(&mut self, block: usize) -> Option<BlockMemory> {
        self.blocks.get_mut(block)?.take()
    }

    /// Gives a block back to the responder.
    pub fn give_back(&mut self, block: usize, memory: BlockMemory) {
        if let Some(place) = self.blocks.get_mut(block) {
            *place = Some(memory);
        }
    }

    /// Gives back a block that was sealed and written.
    pub fn give_back_sealed(&mut self, block: usize, sealed: AnyBlock) {
        if let AnyBlock::Own(sealed) = sealed {
            self.give_back(block, BlockMemory(sealed.into_memory()));
        }
    }

    fn place(&mut self, at: u64, len: usize) -> Result<&mut [u8], Refused> {
        let at = usize::try_from(at).map_err(|_| Refused)?;
        let (block, within) = (at / self.stride(), at % self.stride());
        let end = within.checked_add(len).ok_or(Refused)?;
        // The header's page is off limits to the switch.
        if within < SEGMENTS_AT || end > self.stride() {
            return Err(Refused);
        }
        let memory = self.blocks.get_mut(block).and_then(Option::as_mut);
        let memory = memory.ok_or(Refused)?;
        Ok(&mut memory.0[within..end])
    }
}

impl Memory for Blocks {
    #[inline]
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Refused> {
        self.place(at, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn update(&mut self, at: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, Refused> {
        let place = self.place(at, 8)?;
        let before = u64::from_ne_bytes((&*place).try_into().map_err(|_| Refused)?);
        place.copy_from_slice(&change(before).to_ne_bytes());
        Ok(before)
    }
}

#[cfg(test)]
mod tests {
    use strata_sys::DiskBlock;

    use super::*;

    #[test]
    fn a_block_that_is_away_and_header_pages_are_refused() {
        let mut blocks = Blocks::new(2, 8192);
        let stride = blocks.stride() as u64;
        let page = SEGMENTS_AT as u64;
        assert_eq!(blocks.write(page, &[1; 64]), Ok(()));
        assert_eq!(blocks.write(page - 1, &[1; 64]), Err(Refused));
        assert_eq!(blocks.write(stride - 63, &[1; 64]), Err(Refused));
        assert_eq!(blocks.write(2 * stride + page, &[1; 64]), Err(Refused));
        assert_eq!(blocks.write(u64::MAX, &[1; 64]), Err(Refused));
        let taken = blocks.take(1).unwrap();
        assert_eq!(blocks.write(stride + page, &[2; 64]), Err(Refused));
        let header = RelayedHeader {
            used: 64,
            ..RelayedHeader::default()
        };
        let sealed = taken.seal(&header);
        assert_eq!(sealed.memory().len(), 4096 + 4096);
        blocks.give_back_sealed(1, sealed);
        assert_eq!(blocks.write(stride + page, &[2; 64]), Ok(()));
        assert_eq!(
            blocks.update(stride + page, &|word| word + 1),
            Ok(0x0202_0202_0202_0202)
        );
    }
}
