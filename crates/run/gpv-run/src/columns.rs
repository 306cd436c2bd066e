//! Columns of packets, as users and files name them.

use strata_gpv::{Column, Columns};

/// Columns by the names that users write.
pub const COLUMN_NAMES: [(&str, Column); 11] = [
    ("time", Column::Time),
    ("size", Column::Size),
    ("high_queue", Column::HighQueue),
    ("tcp_seq", Column::TcpSeq),
    ("tcp_ack", Column::TcpAck),
    ("tcp_flags", Column::TcpFlags),
    ("tcp_window", Column::TcpWindow),
    ("queue_depth", Column::QueueDepth),
    ("ecn", Column::Ecn),
    ("payload_len", Column::PayloadLen),
    ("class", Column::Class),
];

/// The columns that a capture has for a packet.
pub const CAPTURED_COLUMNS: Columns = Columns::of(&[
    Column::Time,
    Column::Size,
    Column::TcpSeq,
    Column::TcpAck,
    Column::TcpFlags,
    Column::TcpWindow,
    Column::Ecn,
    Column::PayloadLen,
]);

/// These columns, and times.
#[must_use]
pub fn with_time(columns: Columns) -> Columns {
    Columns(columns.0 | Columns::of(&[Column::Time]).0)
}
