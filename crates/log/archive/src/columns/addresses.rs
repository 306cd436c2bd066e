//! The addresses of a run's flows as numbered texts.

use std::collections::HashMap;

use parquet::data_type::ByteArray;
use strata_tables::NULL;
use strata_wire::AddressFamily;

use crate::run::flow::address_text;
use crate::run::{Run, u32_of};

/// The texts of a run's addresses.
pub(crate) struct Addresses {
    pub(crate) entries: Vec<ByteArray>,
    /// By flow: the entries of the low and the high address.
    pub(crate) codes: Vec<[u32; 2]>,
}

impl Addresses {
    /// The texts of a flow's low and high address.
    pub(crate) fn of(&self, flow: u32) -> Option<[&ByteArray; 2]> {
        let [low, high] = *self.codes.get(flow as usize)?;
        let text = |code: u32| self.entries.get(code as usize);
        Some([text(low)?, text(high)?])
    }
}

/// The texts of the flows' addresses.
pub(crate) fn addresses(run: &Run) -> Addresses {
    let mut entries = Vec::new();
    let mut known: HashMap<(u8, u128), u32> = HashMap::new();
    let mut code = |family: AddressFamily, address: u128| {
        *known.entry((family as u8, address)).or_insert_with(|| {
            entries.push(ByteArray::from(address_text(family, address).as_str()));
            u32_of(entries.len() - 1)
        })
    };
    let codes = run.flows.iter().map(|flow| {
        let key = &flow.key;
        if !flow.has_addresses() {
            return [NULL; 2];
        }
        [key.low.address, key.high.address].map(|address| code(key.family, address))
    });
    let codes = codes.collect();
    Addresses { entries, codes }
}
