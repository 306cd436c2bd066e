//! What needs unsafe code: memory that the kernel, another process or a NIC uses too, rings in
//! it, and system calls that rustix does not have. Everything here can be used from safe code
//! without care; the one contract that others could have to keep is that of [`DiskBlock`], and
//! the memory that blocks need is here.
//!
//! ```text
//! aligned   memory at an address fit for direct writes
//! shared    memory that another process or a NIC writes too: copied, never borrowed
//! disk      blocks in flight to a disk, kept until the kernel has let go
//! uring     io_uring(7)
//! ```
//!
//! Any crate may use it; it uses none. Outside of it, only vector instructions are unsafe.
#![deny(unsafe_code)]

mod aligned;
pub mod disk;
pub mod shared;
mod uring;

pub use aligned::{ALIGNMENT, AlignedBytes};
pub use disk::DiskBlock;
