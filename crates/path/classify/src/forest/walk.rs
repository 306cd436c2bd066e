//! The portable form: from node to node, eight packets side by side.

use super::{Columns, LANES, Split};
use crate::model::FEATURES_MAX;

/// One tree, breadth first, so that siblings are neighbours. A leaf is a split that sends every
/// value to itself, so a walk has a fixed number of steps and no branch. Padded to a power of two,
/// so that a masked index needs no check.
///
/// Eight lanes walk side by side, which keeps as many loads in flight. Per packet and tree: `depth`
/// steps of three loads that stay in L1.
#[derive(Clone, Debug)]
pub(super) struct FlatTree {
    /// By node: values up to this go left.
    at_most: Vec<u32>,
    /// By node: the feature in the high half, the left child in the low one; the right child
    /// follows it.
    next: Vec<u32>,
    /// Node number of the model file, by flat node.
    file_node: Vec<u16>,
    depth: usize,
}

/// Lanes that walk side by side: as many as fit in registers.
const GROUP: usize = 8;
const _: () = assert!(LANES.is_multiple_of(GROUP));

/// Sizes to which trees are padded.
const SMALL: usize = 64;
const MEDIUM: usize = 512;
const LARGE: usize = 65_536;

impl FlatTree {
    /// Lays out a tree, whose nodes `split_at` gives by number.
    pub(super) fn new(split_at: impl Fn(usize) -> Split) -> Self {
        let to_u16 = |value: usize| u16::try_from(value).expect("checked on load");
        let mut flat = Self {
            at_most: Vec::new(),
            next: Vec::new(),
            file_node: Vec::new(),
            depth: 0,
        };
        // (node of the file, depth), in the order of flat nodes.
        let mut queue = vec![(0_usize, 0_usize)];
        let mut node = 0;
        while node < queue.len() {
            let (at, depth) = queue[node];
            flat.depth = flat.depth.max(depth);
            let (feature, at_most, first, file_node) = match split_at(at) {
                Split::Leaf(file_node) => (0, u32::MAX, node, file_node),
                Split::At {
                    feature,
                    at_most,
                    left,
                    right,
                } => {
                    let first = queue.len();
                    queue.extend([(left, depth + 1), (right, depth + 1)]);
                    (feature, at_most, first, 0)
                }
            };
            flat.file_node.push(file_node);
            flat.at_most.push(at_most);
            flat.next
                .push(u32::from(to_u16(feature)) << 16 | u32::from(to_u16(first)));
            node += 1;
        }
        let sizes = [SMALL, MEDIUM, LARGE];
        let padded = sizes.into_iter().find(|&size| size >= flat.next.len());
        let padded = padded.expect("checked on load");
        flat.at_most.resize(padded, u32::MAX);
        flat.next.resize(padded, 0);
        flat
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// The leaves of the first `packets`.
    #[inline(always)]
    pub(super) fn leaves(&self, columns: &Columns, packets: usize, row: &mut [u16; LANES]) {
        let mut at = [0_u32; LANES];
        let at = &mut at[..packets.next_multiple_of(GROUP)];
        match self.next.len() {
            SMALL => self.walk::<SMALL>(columns, at),
            MEDIUM => self.walk::<MEDIUM>(columns, at),
            _ => self.walk::<LARGE>(columns, at),
        }
        for (leaf, &at) in row.iter_mut().zip(&at[..packets]) {
            *leaf = self.file_node[at as usize];
        }
    }

    #[inline(always)]
    fn walk<const NODES: usize>(&self, columns: &Columns, at: &mut [u32]) {
        let at_most: Option<&[u32; NODES]> = self.at_most.as_slice().try_into().ok();
        let next: Option<&[u32; NODES]> = self.next.as_slice().try_into().ok();
        let (Some(at_most), Some(next)) = (at_most, next) else {
            return;
        };
        for (group, at) in at.chunks_exact_mut(GROUP).enumerate() {
            let mut walkers = [0_u32; GROUP];
            for _ in 0..self.depth {
                for (lane, walker) in walkers.iter_mut().enumerate() {
                    let node = *walker as usize % NODES;
                    let step = next[node];
                    let column = (step >> 16) as usize % FEATURES_MAX;
                    let value = columns[column * LANES + group * GROUP + lane];
                    *walker = (step & 0xffff) + u32::from(value > at_most[node]);
                }
            }
            at.copy_from_slice(&walkers);
        }
    }
}
