//! Logical streams: producers append records, consumers read them from a cursor, and what a lossy
//! network or a crash takes away costs those records alone.
//!
//! The data structure is ALT's (Liu et al., "A Disaggregate Data Collecting Approach for
//! Loss-Tolerant Applications", APNet 2022, "the paper" below): a stream is a sequence of data
//! pages, a two-level page table says where they are, and a page can be read although records in it
//! never arrived.
//!
//! ```text
//! StreamName, Cursor     what users write; NamePattern, several names
//! description, state     what a stream is; how far it has come
//! table                  page table: directory, table pages, data pages
//! recovery, retention    which pages a stream has after a crash; which of them go
//! page                   PageWriter fills a page, Page is one that was read
//!   header               what a data page says of itself
//!   sealed, mark         records of ours: recognised by a keyed tag wherever they are; marks between them
//!   linked               records of the paper: found through the addresses of those before them
//!   walk, missing        one reader of both forms
//! producers              which records of each producer a stream has
//! key                    the keyed functions behind both
//! message                what clients and a server say to each other over TCP
//! nvme                   an NVMe queue pair, driven by writes and reads of memory
//! ```
//!
//! Nothing here does I/O, reads a clock or waits. `docs/formats/stream.md` has the bytes.
//!
//! Uses `wire`; `stream-run` joins it to files, locks and clocks.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

mod cursor;
pub mod description;
mod key;
mod layout;
pub mod message;
mod name;
pub mod nvme;
mod page;
mod pattern;
mod producers;
mod recovery;
mod retention;
mod state;
mod table;

pub use cursor::{Cursor, CursorError};
pub use description::{Description, DescriptionError};
pub use key::{PageKey, StreamKey, siphash24};
pub use name::{NameError, StreamName};
pub use page::header::{
    Form, LINKED_HEAD_LEN_MAX, PAGE_HEADER_LEN, PageHeader, PageHeaderError, RECORD_LEN_MAX,
    REDUNDANCY_MAX, SEALED_HEAD_LEN,
};
pub use page::mark::Origin;
pub use page::missing::Missing;
pub use page::walk::{Item, Reached, Record, Walk};
pub use page::{AppendError, Blocks, Current, Page, PageWriter};
pub use pattern::NamePattern;
pub use producers::{PRODUCERS_MAX, Producer, Producers};
pub use recovery::{INDEX_JUMP, Recovered, recovered};
pub use retention::{Held, Retention, expired};
pub use state::{Sample, State};
pub use table::{Geometry, GeometryError, TableEntry, TableUpdate, TableWriter};
