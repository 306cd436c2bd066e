//! Packets that cross a bridge between two captured ports: they are captured where they come in, and not again
//! where they leave.
//!
//! The kernel remembers with a packet by which interface it came in, until a host's own stack has it. A table
//! in shared memory says of each captured port to which group of ports it belongs.

use std::collections::BTreeMap;
use std::io;

use strata_bpf::{Assembler, Condition, Label, Reg, Width};

use super::indexes::Indexes;
use super::{SKB_IFINDEX, SKB_PACKET_TYPE};

/// Of `struct __sk_buff`: where the packet came in; 0 for what this host sends.
const SKB_INGRESS_IFINDEX: i16 = 36;

/// Which captured interfaces are ports of the same bridge.
#[derive(Debug)]
pub(super) struct BridgePorts {
    /// Numbers of groups.
    indexes: Indexes,
    /// Groups by name: an interface that comes back has another index.
    groups: BTreeMap<String, u32>,
}

impl BridgePorts {
    /// Groups of ports by their names. Their indexes are not known yet.
    pub(super) fn new(groups: &[Vec<String>]) -> io::Result<Self> {
        let numbered = (1..).zip(groups);
        let named = |(number, names): (u32, &Vec<String>)| {
            let names = names.iter().cloned();
            names.map(|name| (name, number)).collect::<Vec<_>>()
        };
        Ok(Self {
            indexes: Indexes::new()?,
            groups: numbered.flat_map(named).collect(),
        })
    }

    /// From now on, what comes in by this interface is not captured again where it leaves. In the rare case
    /// that the table has no place for it, it is.
    pub(super) fn note(&self, name: &str, index: u32) {
        if let Some(&group) = self.groups.get(name) {
            let _ = self.indexes.put(index, group);
        }
    }

    /// Continues at `over` if the packet in `R6` leaves by a port of the group by which it came in. Uses `R0`
    /// to `R5`.
    pub(super) fn write(&self, asm: &mut Assembler, over: Label) {
        let keep = asm.label();
        asm.load(Width::Word, Reg::R0, Reg::R6, SKB_PACKET_TYPE);
        let outgoing = i32::from(libc::PACKET_OUTGOING);
        asm.jump_if(Condition::NotEqual, Reg::R0, outgoing, keep);
        self.indexes.write(asm, SKB_INGRESS_IFINDEX, Reg::R4, keep);
        self.indexes.write(asm, SKB_IFINDEX, Reg::R5, keep);
        asm.jump_if(Condition::Equal, Reg::R4, Reg::R5, over);
        asm.bind(keep);
    }
}
