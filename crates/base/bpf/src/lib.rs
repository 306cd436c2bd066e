//! eBPF without a compiler: programs are assembled at run time and loaded into the kernel, which
//! verifies and compiles them.
//!
//! - [`Assembler`]: turns instructions and labels into instruction words. It knows nothing of the
//!   kernel.
//! - [`Program`], [`Shared`], [`Array`], [`SocketMap`]: what bpf(2) loads and creates (in `sys`).
//!
//! Used by `filter`, which writes capture filters with the assembler, by `capture`, which loads
//! them, and by `processes`. Uses `sys` only.
//!
//! ```
//! use strata_bpf::{Assembler, Reg};
//!
//! let mut asm = Assembler::new();
//! asm.set(Reg::R0, 96);
//! asm.exit();
//! assert_eq!(asm.finish()?.len(), 2);
//! # Ok::<(), strata_bpf::TooLarge>(())
//! ```
//!
//! Source: RFC 9669 (BPF instruction set) and linux/bpf.h.
#![forbid(unsafe_code)]

mod asm;

pub use asm::{Alu, Assembler, Condition, Label, Operand, Reg, TooLarge, Width};
pub use strata_sys::bpf::{
    Array, CgroupHook, LoadError, Program, ProgramKind, Shared, SocketMap, TestRun, run_time_stats,
};
