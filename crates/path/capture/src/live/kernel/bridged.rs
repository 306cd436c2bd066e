//! Packets that cross a bridge between two captured ports: they are captured where they come in, and not again
//! where they leave.
//!
//! The kernel remembers with a packet by which interface it came in, until a host's own stack has it. A table
//! in shared memory says of each captured port to which group of ports it belongs. A switch in user space sends
//! packets anew: of its ports, only one direction is captured, which the same table says.
//!
//! ```text
//!  31        2 1   0
//!  | group    | way |      0: no group; both directions
//! ```

use std::collections::BTreeMap;
use std::io;

use strata_bpf::{Alu, Assembler, Condition, Label, Reg, Width};

use super::indexes::Indexes;
use super::{SKB_IFINDEX, SKB_PACKET_TYPE};
use crate::live::options::Direction;

/// Of `struct __sk_buff`: where the packet came in; 0 for what this host sends.
const SKB_INGRESS_IFINDEX: i16 = 36;

/// Below the number of a group.
const WAY_BITS: u32 = 2;
const WAY_IN: u32 = 1;
const WAY_OUT: u32 = 2;

/// Which captured interfaces are ports of the same bridge, and of which only one direction is captured.
#[derive(Debug)]
pub(super) struct BridgePorts {
    /// Groups and ways.
    indexes: Indexes,
    /// The same by name: an interface that comes back has another index.
    ports: BTreeMap<String, u32>,
    has_groups: bool,
    has_ways: bool,
}

impl BridgePorts {
    /// Groups of ports and directions of interfaces, by their names. Their indexes are not known yet.
    pub(super) fn new(groups: &[Vec<String>], one_way: &[(String, Direction)]) -> io::Result<Self> {
        let mut ports: BTreeMap<String, u32> = BTreeMap::new();
        for (number, names) in (1_u32..).zip(groups) {
            let of_group = |name: &String| (name.clone(), number << WAY_BITS);
            ports.extend(names.iter().map(of_group));
        }
        for (name, direction) in one_way {
            *ports.entry(name.clone()).or_insert(0) |= match direction {
                Direction::In => WAY_IN,
                Direction::Out => WAY_OUT,
                Direction::Both => 0,
            };
        }
        Ok(Self {
            indexes: Indexes::new()?,
            has_groups: !groups.is_empty(),
            has_ways: !one_way.is_empty(),
            ports,
        })
    }

    /// From now on, what comes in by this interface is not captured again where it leaves. In the rare case
    /// that the table has no place for it, it is.
    pub(super) fn note(&self, name: &str, index: u32) {
        if let Some(&port) = self.ports.get(name) {
            let _ = self.indexes.put(index, port);
        }
    }

    /// Continues at `over` if the packet in `R6` leaves by a port of the group by which it came in, or goes
    /// the way that is not captured. Uses `R0` to `R5`.
    pub(super) fn write(&self, asm: &mut Assembler, over: Label) {
        if self.has_ways {
            self.write_ways(asm, over);
        }
        if self.has_groups {
            self.write_groups(asm, over);
        }
    }

    fn write_ways(&self, asm: &mut Assembler, over: Label) {
        let (outgoing, keep) = (asm.label(), asm.label());
        self.indexes.write(asm, SKB_IFINDEX, Reg::R5, keep);
        asm.alu64(Alu::And, Reg::R5, (1 << WAY_BITS) - 1);
        asm.load(Width::Word, Reg::R0, Reg::R6, SKB_PACKET_TYPE);
        let leaves = i32::from(libc::PACKET_OUTGOING);
        asm.jump_if(Condition::Equal, Reg::R0, leaves, outgoing);
        asm.jump_if(Condition::Equal, Reg::R5, WAY_OUT.cast_signed(), over);
        asm.jump(keep);
        asm.bind(outgoing);
        asm.jump_if(Condition::Equal, Reg::R5, WAY_IN.cast_signed(), over);
        asm.bind(keep);
    }

    fn write_groups(&self, asm: &mut Assembler, over: Label) {
        let keep = asm.label();
        asm.load(Width::Word, Reg::R0, Reg::R6, SKB_PACKET_TYPE);
        let outgoing = i32::from(libc::PACKET_OUTGOING);
        asm.jump_if(Condition::NotEqual, Reg::R0, outgoing, keep);
        self.indexes.write(asm, SKB_INGRESS_IFINDEX, Reg::R4, keep);
        asm.alu64(Alu::ShiftRight, Reg::R4, WAY_BITS.cast_signed());
        asm.jump_if(Condition::Equal, Reg::R4, 0, keep);
        self.indexes.write(asm, SKB_IFINDEX, Reg::R5, keep);
        asm.alu64(Alu::ShiftRight, Reg::R5, WAY_BITS.cast_signed());
        asm.jump_if(Condition::Equal, Reg::R4, Reg::R5, over);
        asm.bind(keep);
    }
}
