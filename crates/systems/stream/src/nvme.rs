//! An NVMe queue pair as a state machine that writes memory and reads memory, so that whatever can do both
//! drives a disk: a process that has the controller mapped, or RDMA from elsewhere (the paper, §3.1).
//!
//! ```text
//! memory      what writes are given to
//! entry       submission and completion entries, as the controller reads and writes them
//! prp         where a command's data are: pages, and lists of them
//! queue       QueuePair: entries out, doorbells, phase bits, completions in, timeouts
//! controller  registers: reset and enable, deadlines of the controller's own
//! label       whether a disk may be written
//! ```
//!
//! Numbers of fields are those of the NVM Express Base Specification 1.4 (as the paper uses it) and its
//! NVM command set. Nothing here waits, reads a clock or knows what carries its reads and writes. What
//! it writes has to arrive whole and in order: an entry that is lost while its doorbell arrives makes the
//! controller run the slot's old command, and say that this was a success. So entries and doorbells
//! go reliably even where data do not; command ids never repeat in a slot, so that it is noticed
//! all the same ([`Fault::Command`]); and queues are zeroed before they are used.
//!
//! A program that can write a submission queue can have the disk read and write any memory of its
//! host, unless an IOMMU is in between.

mod controller;
mod entry;
mod label;
mod memory;
mod prp;
mod queue;

pub use controller::{Capabilities, Enable, EnableError, Step, register};
pub use entry::{Command, Completion, ENTRY_LEN, SLOT_LEN, Status, opcode};
pub use label::{Content, Label};
pub use memory::Memory;
pub use prp::{ListPage, Page, PrpError, Prps, list_pages};
pub use queue::{Done, EventRead, Expired, Fault, Places, QueueError, QueuePair, Ring, Shadow};
