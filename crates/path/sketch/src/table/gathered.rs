//! Blocks of features for a forest.

use strata_wire::wide::GROUP;

use crate::feature::Feature;

/// Packets whose features are evaluated together.
pub const BLOCK: usize = 64;
/// Columns that a block has.
const COLUMNS: usize = 64;
/// No column has the feature, since no one asks for it.
pub(super) const NOWHERE: u8 = u8::MAX;

/// The columns of a block: `block[column * BLOCK + place]`.
pub type Block = [u32; COLUMNS * BLOCK];

/// Features of packets, gathered into full blocks: what a forest asks for, and no more.
#[derive(Clone, Debug)]
pub struct Gathered {
    /// By feature: its column.
    pub(super) columns: [u8; Feature::ALL.len()],
    /// The one being filled, and the one after it.
    pub(super) blocks: [Box<Block>; 2],
    /// For the packets of both: their places in the batch.
    pub(super) lanes: [u8; BLOCK + GROUP],
    /// Packets put into both so far.
    pub(super) count: usize,
}

impl Gathered {
    /// Empty blocks with these features in these columns.
    ///
    /// # Panics
    ///
    /// If a column is not below 64.
    #[must_use]
    pub fn new(features: impl IntoIterator<Item = (usize, Feature)>) -> Self {
        let mut columns = [NOWHERE; Feature::ALL.len()];
        for (column, feature) in features {
            assert!(column < COLUMNS, "a block has {COLUMNS} columns");
            columns[feature as usize] = column.to_le_bytes()[0];
        }
        let block = || Box::new([0; COLUMNS * BLOCK]);
        Self {
            columns,
            blocks: [block(), block()],
            lanes: [0; BLOCK + GROUP],
            count: 0,
        }
    }

    /// Whether the first block is full.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count >= BLOCK
    }

    /// The first block, and its packets' places in the batch.
    #[inline]
    #[must_use]
    pub fn block(&self) -> (&Block, &[u8]) {
        (&self.blocks[0], &self.lanes[..self.count.min(BLOCK)])
    }

    /// Empties the first block and continues with the other one.
    #[inline]
    pub fn advance(&mut self) {
        self.blocks.swap(0, 1);
        self.lanes.copy_within(BLOCK.., 0);
        self.count = self.count.saturating_sub(BLOCK);
    }
}
