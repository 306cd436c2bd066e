//! Reading a log, of both tiers alike.
//!
//! - [`export`], [`MergedExport`]: packets of a log, or of several, into a capture file, in one order ([`Find`] selects them, a merge of parts
//!   and of each worker's blocks orders them);
//! - [`packets`], [`packets_until`], [`packets_while`]: the same packets, handed out one by one;
//!   [`PacketRows`] has their headers, [`packet_json`] what is said of them, [`PacketCopy`] keeps one;
//! - [`Doubles`]: takes packets away that were captured twice;
//! - [`export_flows`], [`WrittenFlows`], [`RecordWriter`]: flows as CSV, JSON, IPFIX, NetFlow 9;
//! - [`PacketTable`], [`FlowTable`]: packets and flows as Parquet;
//! - [`reasons_of`]: why packets were kept; [`Arrivals`]: when they arrived;
//! - [`search`]: which flows and packets there are, without putting packets together.
//!
//! Layers, top-down; each uses only those below it:
//!
//! ```text
//! flows            the flows of a log, from its packets
//! export           a log into a capture file
//! merge            the packets of a recording, from both tiers
//! parts            the packets of its parts
//! by_time          a merge sort in memory and on disk
//! exporter         the capture file, or another taker of packets
//! packet_row       a packet as a row
//! records reasons search arrivals  rows of the tables
//! messages         rows of flows as messages of IPFIX or NetFlow 9
//! row_writer       rows of flows and packets as Parquet
//! find decided     which rows may be wanted
//! record cells     a row of flows; values of rows, checked
//! doubles          packets that were captured twice
//! by_link          a filter, for packets of each link type
//! left_out         packets whose definitions are missing, counted
//! ```
//!
//! Above `archive` and `store`; used by the command line.
#![forbid(unsafe_code)]

mod by_link;
mod by_time;
mod export;
mod exporter;
mod flows;
mod left_out;
mod merge;
mod packet_row;
mod parts;
mod records;
mod row_writer;
mod search;

pub use by_link::ByLink;
pub use by_time::MEMORY_BYTES;
pub use export::doubles::{Doubles, DoublesCounts};
pub use export::{
    MergedExport, MergedMetadata, PacketTable, export, export_packet_table, export_within, packets,
    packets_until, packets_while,
};
pub use exporter::{
    ExportOptions, Exported, FileFormat, Judgement, JudgementKey, Kept, LoggedPacket, PacketCopy,
    TakePacket,
};
pub use flows::{
    ExportedFlows, FlowOptions, FlowTable, WrittenFlows, export_flow_table, export_flows, flows,
};
pub use merge::arrivals::Arrivals;
pub use packet_row::{PacketRows, address_text, packet_json};
pub use parts::check_keys;
pub use parts::find::Find;
pub use parts::reasons::{ReasonCount, reasons_of};
pub use records::messages::FlowProtocol;
pub use records::record::FlowRecord;
pub use records::{RecordFormat, RecordWriter, flow_records, not_formula};
pub use search::{
    FoundCounts, FoundFlow, FoundPacket, FoundPoint, FoundRun, Label, Matches, Outline, Search,
    TakeFound, outline, search,
};
