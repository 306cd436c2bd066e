//! The prefixes of one address field, as a binary trie.

use strata_wire::exact;

/// A binary trie of prefixes of addresses of a fixed number of bits.
#[derive(Clone, Debug)]
pub(crate) struct Trie {
    bits: u32,
    /// Children by next bit, 0 for none, and whether a prefix ends here. The first is the
    /// root.
    nodes: Vec<([u32; 2], bool)>,
}

/// What a trie says of an address.
pub(crate) struct Found {
    /// Bit n is set if a prefix of n bits holds the address; 129 bits, of which the
    /// lowest, of the empty prefix, is always set.
    lengths: [u128; 2],
    /// Bits of the address that were looked at.
    pub(crate) looked_at: u32,
}

impl Found {
    pub(crate) fn has(&self, length: u32) -> bool {
        length == 0 || self.lengths[(length / 128) as usize] & 1 << (length % 128) != 0
    }
}

impl Trie {
    pub(crate) fn new(bits: u32) -> Self {
        Self {
            bits,
            nodes: vec![([0; 2], false)],
        }
    }

    pub(crate) fn insert(&mut self, value: u128, length: u32) {
        let mut node = 0;
        for depth in 0..length {
            let bit = (value >> (self.bits - 1 - depth) & 1) as usize;
            if self.nodes[node].0[bit] == 0 {
                let new = exact::<u32>(self.nodes.len());
                self.nodes[node].0[bit] = new;
                self.nodes.push(([0; 2], false));
            }
            node = self.nodes[node].0[bit] as usize;
        }
        self.nodes[node].1 = true;
    }

    pub(crate) fn find(&self, value: u128) -> Found {
        let mut found = Found {
            lengths: [1, 0],
            looked_at: 0,
        };
        let mut node = 0;
        for depth in 0..=self.bits {
            if self.nodes[node].1 {
                found.lengths[(depth / 128) as usize] |= 1 << (depth % 128);
            }
            if depth == self.bits || self.nodes[node].0 == [0; 2] {
                break;
            }
            found.looked_at = depth + 1;
            let bit = (value >> (self.bits - 1 - depth) & 1) as usize;
            match self.nodes[node].0[bit] {
                0 => break,
                next => node = next as usize,
            }
        }
        found
    }
}
