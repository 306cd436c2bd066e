//! Where packets come from, and the files they are exported to.
//!
//! [`live`] captures network interfaces. [`Input`] reads capture files: one or
//! many of them, pcap or pcapng, plain, gzip, zstd, xz, bzip2 or lz4, from a path or from
//! standard input. It hands out [`Batch`]es of packets in time order with what the files say about
//! themselves ([`Meta`](strata_wire::Meta)) in between. [`PcapNgWriter`] and [`PcapWriter`] write
//! such a sequence to a file.
//!
//! Layers, top-down; each uses only those below it:
//!
//! ```text
//! input            several sources merged by time into batches
//! file             one source: sniffing, decompression, window, pcap, pcapng
//! live             network interfaces; knows nothing of input and file
//! write            the writers; they know nothing of input and file
//! walkers          headers into the cache, several at once
//! packet error     the types that all of them share
//! ```
//!
//! Used by the pipeline and by export. What capture files hold in addition to packets is in `wire`:
//! [`Interface`](strata_wire::Interface), [`Meta`](strata_wire::Meta),
//! [`pcapng`](strata_wire::pcapng).
//!
//! ```no_run
//! use strata_capture::{Input, InputOptions, Next};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let paths = ["monday.pcap".into(), "tuesday.pcapng.zst".into()];
//! let mut input = Input::open(&paths, &InputOptions::default())?;
//! loop {
//!     match input.advance()? {
//!         Next::Packets => {
//!             for packet in input.batch() {
//!                 println!("{} ns, {} bytes", packet.ts_ns, packet.data.len());
//!             }
//!         }
//!         Next::Meta(meta) => println!("{meta:?}"),
//!         Next::End => break,
//!     }
//! }
//! for warning in input.take_warnings() {
//!     println!("{warning}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Sources: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng; where files in
//! the wild disagree with them, what Wireshark 4.0 and libpcap 1.10 do.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
#![deny(missing_docs)]

mod error;
mod file;
mod input;
pub mod live;
mod packet;
mod walkers;
mod write;

pub use error::{CaptureError, Place, TIME_OUT_OF_RANGE, Warning, WarningKind};
pub use input::{Batch, BatchIter, Input, InputOptions, InputSource, Next};
pub use packet::{BATCH_MAX, PacketRef, Packets};
pub use write::{CaptureWriter, PcapNgWriter, PcapWriter, WriteError};
