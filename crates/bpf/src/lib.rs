//! eBPF without a compiler: programs are assembled at run time and handed to the
//! kernel, which proves them safe and makes machine code of them.
//!
//! - [`Assembler`]: instructions and labels to a list of instruction words. It knows
//!   nothing of the kernel.
//! - [`Program`], [`Shared`], [`Array`], [`SocketMap`]: what bpf(2) loads and makes.
//!
//! Used by `filter`, which writes capture filters with the assembler, and by
//! `capture`, which loads them. Uses nothing of Strata.
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
#![deny(unsafe_code)]

mod asm;
mod kernel;

pub use asm::{Alu, Assembler, Condition, Label, Operand, Reg, TooLarge, Width};
pub use kernel::{
    Array, LoadError, Program, ProgramKind, Shared, SocketMap, TestRun, run_time_stats,
};
