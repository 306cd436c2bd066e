//! What needs unsafe code: memory that the kernel, another process or a NIC uses too, rings in it,
//! and system calls that rustix does not have. Everything here is safe to use from safe code; the
//! only contract that others might have to keep is that of [`DiskBlock`], and the memory that
//! blocks need is here.
//!
//! ```text
//! memory/
//!   aligned    memory at an address suitable for direct writes
//!   growing    memory that grows where it is, and which another thread makes present
//!   shared     memory that another process or a NIC writes too: copied, never borrowed
//!   words      memory in a file that one process writes while others read it
//!   view       a file's bytes where the page cache has them
//!   mapping    mmap(2), for the others
//! network/
//!   interface  the kernel's knowledge of network interfaces
//!   socket     packet sockets, options, many messages with one call
//!   packet     the ring of a packet socket
//!   xdp        the frames and rings of an AF_XDP socket
//! disk       blocks being written to a disk, kept until the kernel has released them
//! uring      io_uring(7)
//! bpf        bpf(2): programs and maps
//! pci        registers of a PCI device, and addresses of memory for it
//! verbs      memory that a NIC writes, through libibverbs (with the feature of that name)
//! blocked    the answer to SIGSYS
//! interrupts the answer to SIGINT and SIGTERM
//! pause      letting time pass, where there is no state to wait for
//! ```
//!
//! Memory that the kernel hands over for a while (blocks of a ring, frames) is a slice for that
//! while: giving it back borrows the ring mutably, so no slice of it is left.
//!
//! Any crate may use this one; it uses none. Elsewhere, only vector instructions are unsafe.
#![deny(unsafe_code)]

pub mod blocked;
pub mod bpf;
pub mod disk;
pub mod interrupts;
mod memory;
mod network;
pub mod pause;
pub mod pci;
mod uring;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use memory::{shared, words};
pub use network::{interface, packet, socket, xdp};

pub use disk::DiskBlock;
pub use memory::aligned::{ALIGNMENT, AlignedBytes};
pub use memory::growing::{Beyond, Growing};
pub use memory::view::FileView;
