//! Packets that cross a bridge between two captured ports: they are captured where they come in, and not again
//! where they leave.
//!
//! The kernel remembers with a packet by which interface it came in, until a host's own stack has it. A table
//! in shared memory says of each captured port to which group of ports it belongs:
//!
//! ```text
//!  63       32 31      0
//!  | index    | group  |      one word, at the place of the lower bits of the index; 0: none
//! ```
//!
//! Two captured ports whose indexes have the same lower bits share a place, which the later one takes: packets
//! of the other one are captured twice then.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering::Relaxed;

use strata_bpf::{Alu, Assembler, Condition, Label, Reg, Shared, Width};
use strata_wire::exact;

use super::{SKB_IFINDEX, SKB_PACKET_TYPE};

/// Of `struct __sk_buff`: where the packet came in; 0 for what this host sends.
const SKB_INGRESS_IFINDEX: i16 = 36;
/// Words of the table: 512 KiB.
const PLACES: usize = 1 << 16;

/// Which captured interfaces are ports of the same bridge.
#[derive(Debug)]
pub(super) struct BridgePorts {
    shared: Shared,
    /// Groups by name: an interface that comes back has another index.
    groups: BTreeMap<String, u32>,
}

impl BridgePorts {
    /// Groups of ports by their names. None is known by its index yet.
    pub(super) fn new(groups: &[Vec<String>]) -> io::Result<Self> {
        let numbered = (1..).zip(groups);
        let named = |(number, names): (u32, &Vec<String>)| {
            let names = names.iter().cloned();
            names.map(|name| (name, number)).collect::<Vec<_>>()
        };
        Ok(Self {
            shared: Shared::new(PLACES)?,
            groups: numbered.flat_map(named).collect(),
        })
    }

    /// From now on, what comes in by this interface is not captured again where it leaves.
    pub(super) fn note(&self, name: &str, index: u32) {
        if let Some(&group) = self.groups.get(name) {
            let word = u64::from(index) << 32 | u64::from(group);
            self.shared.words()[index as usize % PLACES].store(word, Relaxed);
        }
    }

    /// Continues at `over` if the packet in `R6` leaves by a port of the group by which it came in. Uses `R0`
    /// to `R5`.
    pub(super) fn write(&self, asm: &mut Assembler, over: Label) {
        let keep = asm.label();
        asm.load(Width::Word, Reg::R0, Reg::R6, SKB_PACKET_TYPE);
        let outgoing = i32::from(libc::PACKET_OUTGOING);
        asm.jump_if(Condition::NotEqual, Reg::R0, outgoing, keep);
        // An empty place belongs to what came in nowhere, but no group is 0.
        self.write_group(asm, SKB_INGRESS_IFINDEX, Reg::R4, keep);
        self.write_group(asm, SKB_IFINDEX, Reg::R5, keep);
        asm.jump_if(Condition::Equal, Reg::R4, Reg::R5, over);
        asm.bind(keep);
    }

    /// `group` = that of the interface in this field of the packet, or continues at `none`. Uses `R0` to `R3`.
    fn write_group(&self, asm: &mut Assembler, field: i16, group: Reg, none: Label) {
        asm.load(Width::Word, Reg::R3, Reg::R6, field);
        asm.set(Reg::R1, Reg::R3);
        asm.alu64(Alu::And, Reg::R1, exact::<i32>(PLACES - 1));
        asm.alu64(Alu::ShiftLeft, Reg::R1, 3);
        asm.shared_address(Reg::R2, self.shared.number(), 0);
        asm.alu64(Alu::Add, Reg::R2, Reg::R1);
        asm.load(Width::Double, Reg::R0, Reg::R2, 0);
        asm.set(group, Reg::R0);
        asm.alu64(Alu::ShiftRight, Reg::R0, 32);
        asm.jump_if(Condition::NotEqual, Reg::R0, Reg::R3, none);
        asm.alu64(Alu::ShiftLeft, group, 32);
        asm.alu64(Alu::ShiftRight, group, 32);
    }
}
