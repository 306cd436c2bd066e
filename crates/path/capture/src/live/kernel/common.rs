//! A socket that all interfaces of this network namespace share: its program admits packets of some of them,
//! its members, and counts those of each.
//!
//! The kernel says only how many packets a socket has dropped. What a program has admitted of a member and is
//! not in the ring was dropped: so its packets are counted where nothing else can reject them any more.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "columns and CPUs, a few thousand"
)]

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use strata_bpf::{Alu, Assembler, Label, Program, Reg, Shared};
use strata_wire::{LinkType, exact};

use super::indexes::Indexes;
use super::{CPU, Kernel, Purpose, SKB_IFINDEX};

/// CPUs whose counters are apart; others share them.
const CPUS: usize = 64;

/// What a socket for many interfaces has: one for each worker.
#[derive(Debug)]
pub(in crate::live) struct Common {
    /// Numbers of its members, shared by all workers.
    pub(in crate::live) indexes: Arc<Indexes>,
    pub(super) program: Arc<Program>,
    admitted: Admitted,
}

/// Packets that were admitted, by member: a row for each CPU.
#[derive(Debug)]
struct Admitted {
    shared: Shared,
    /// A power of two.
    columns: usize,
}

impl Admitted {
    fn new(members: usize) -> std::io::Result<Self> {
        let columns = members.next_power_of_two().max(8);
        Ok(Self {
            shared: Shared::new(CPUS * columns)?,
            columns,
        })
    }

    /// Counts a packet of the member in `R9`, which it overwrites as it does `R0` to `R5`.
    fn write(&self, asm: &mut Assembler) {
        let row_bytes = exact::<i32>((self.columns * 8).ilog2());
        asm.call(CPU);
        asm.alu64(Alu::And, Reg::R0, exact::<i32>(CPUS - 1));
        asm.alu64(Alu::ShiftLeft, Reg::R0, row_bytes);
        asm.alu64(Alu::And, Reg::R9, exact::<i32>(self.columns - 1));
        asm.alu64(Alu::ShiftLeft, Reg::R9, 3);
        asm.shared_address(Reg::R1, self.shared.number(), 0);
        asm.alu64(Alu::Add, Reg::R1, Reg::R0);
        asm.alu64(Alu::Add, Reg::R1, Reg::R9);
        asm.set(Reg::R2, 1);
        asm.atomic_add(Reg::R1, 0, Reg::R2);
    }
}

impl Common {
    /// Adds to `sums`, one for each member, the packets that were admitted so far, also those dropped since.
    pub(in crate::live) fn add_admitted(&self, sums: &mut [u64]) {
        let rows = self.admitted.shared.words();
        for row in rows.chunks_exact(self.admitted.columns) {
            for (sum, word) in sums.iter_mut().zip(row) {
                *sum = sum.saturating_add(word.load(Relaxed));
            }
        }
    }
}

/// What the program of a common socket needs besides that of a socket of one interface.
pub(super) struct Admits<'a> {
    indexes: &'a Indexes,
    admitted: &'a Admitted,
}

impl Admits<'_> {
    /// Continues at `none` unless the packet in `R6` is a member's. Before anything else: most packets may be
    /// those of interfaces that are not captured.
    pub(super) fn write_first(&self, asm: &mut Assembler, none: Label) {
        self.indexes.write(asm, SKB_IFINDEX, Reg::R9, none);
    }

    /// Once nothing can reject the packet any more. Its length stays in `R7`.
    pub(super) fn write_last(&self, asm: &mut Assembler, none: Label) {
        // The filter has used all registers. A member that was removed meanwhile has no packets.
        self.indexes.write(asm, SKB_IFINDEX, Reg::R9, none);
        self.admitted.write(asm);
    }
}

impl Kernel {
    /// What sockets of each worker need to share many interfaces with Ethernet headers, or why the kernel
    /// refuses it. It has no members yet.
    pub(in crate::live) fn common(&self, members: usize) -> Result<Vec<Common>, String> {
        let shared = self.shared.as_ref().ok_or("eBPF is not permitted")?;
        let say = |error: std::io::Error| error.to_string();
        let indexes = Arc::new(Indexes::new().map_err(say)?);
        let one = |worker| {
            let admitted = Admitted::new(members).map_err(say)?;
            let admits = Admits {
                indexes: &indexes,
                admitted: &admitted,
            };
            let link = LinkType::ETHERNET;
            let program = self.loaded(Purpose::Common { worker }, "strata_filter", || {
                self.assemble(link, None, Some(&admits), shared)
            })?;
            Ok(Common {
                indexes: Arc::clone(&indexes),
                program,
                admitted,
            })
        };
        (0..self.workers.max(1)).map(one).collect()
    }
}
