//! Rows of `packets` as they are read.

use std::ops::Range;

use strata_tables::{Batch, FloatCells, IntCells, TableReader, TextCells};

use crate::error::ArchiveError;
use crate::files::Input;
use crate::packets::{PacketColumn, Read};

/// One row as read: the packet's fields, and what its header is rebuilt from. Texts and bytes are in the rows'
/// dictionaries.
#[derive(Debug, Default, Clone)]
pub struct Row<'a> {
    /// Arrival, ns.
    pub time: u64,
    pub(crate) late: u64,
    pub(crate) tie: i64,
    /// Its flow, within the log.
    pub flow_id: i64,
    /// Its recording.
    pub recording: u32,
    /// Its interface.
    pub interface: u16,
    pub(crate) src: Option<&'a [u8]>,
    pub(crate) dst: Option<&'a [u8]>,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) protocol: u8,
    pub(crate) tcp_flags: u16,
    /// Bytes on the wire.
    pub wire: u32,
    pub(crate) captured: Option<u32>,
    /// Bytes of headers kept, up to their end.
    pub header_len: u16,
    /// Bytes kept beyond the headers.
    pub payload_len: u32,
    /// Its class's name.
    pub class: &'a [u8],
    /// The class's share of the trees.
    pub score: Option<f32>,
    /// How much of it was kept.
    pub granularity: &'a [u8],
    /// Why.
    pub reason: &'a [u8],
    /// The share of flows captured.
    pub flow_share: f32,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) ip_id: i16,
    pub(crate) fragment: u16,
    pub(crate) flow_label: u32,
    pub(crate) next_header: Option<u8>,
    pub(crate) ip_len: Option<u16>,
    pub(crate) ip_checksum: Option<u16>,
    pub(crate) ip_options: Option<&'a [u8]>,
    pub(crate) seq: i32,
    pub(crate) ack: i32,
    pub(crate) window: u16,
    pub(crate) tsval: i32,
    pub(crate) tsecr: i32,
    pub(crate) tcp_options: Option<&'a [u8]>,
    pub(crate) checksum: Option<u16>,
    pub(crate) link_header: Option<&'a [u8]>,
    pub(crate) transport_header: Option<&'a [u8]>,
    pub(crate) header: Option<&'a [u8]>,
    pub(crate) layout: u8,
    /// Whether the capture gave a time.
    pub has_time: bool,
    /// Packet options from a pcapng input.
    pub packet_options: Option<&'a [u8]>,
    /// Its place in the payload file.
    pub payload_offset: Option<u64>,
}

impl Row<'_> {
    /// The sort key for the order of arrival, within a run.
    #[must_use]
    pub fn arrival(&self) -> (u64, i64) {
        (self.time.wrapping_add(self.late), self.tie)
    }

    /// Bytes in the capture.
    #[must_use]
    pub fn captured(&self) -> u32 {
        self.captured.unwrap_or(self.wire)
    }
}

/// Rows converted at a time: they stay in the L1 cache while the columns are gone through.
const AT_ONCE: usize = 64;

/// Some rows of a row group, by flow.
#[derive(Debug)]
pub struct PacketRows {
    batch: Batch,
}

/// The cells of a column, and where they go in a row.
enum Cells<'a> {
    Ints(
        IntCells<'a>,
        fn(&mut Row<'_>, i64) -> Result<(), std::num::TryFromIntError>,
    ),
    Floats(FloatCells<'a>, fn(&mut Row<'_>, Option<f32>)),
    Bytes(TextCells<'a>, for<'b> fn(&mut Row<'b>, &'b [u8])),
}

impl PacketRows {
    /// Reads rows of a row group of `packets`; `rows` are in ascending order and do not overlap.
    ///
    /// # Errors
    ///
    /// If the table cannot be read, or is not of this kind.
    pub fn read(
        table: &TableReader<Input>,
        group: usize,
        rows: &[Range<usize>],
    ) -> Result<Self, ArchiveError> {
        let all: Vec<usize> = (0..PacketColumn::ALL.len()).collect();
        let batch = table.batch(group, &all, rows)?;
        Ok(Self { batch })
    }

    /// How many rows there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.batch.rows()
    }

    /// The rows of the flow that a row belongs to, among those in a row before and after it.
    #[must_use]
    pub fn flow_at(&self, row: usize) -> Range<usize> {
        let flows = self.ints(PacketColumn::FlowId);
        let same = |at: &usize| flows.get(*at) == flows.get(row);
        let before = (0..row).rev().take_while(same).count();
        let after = (row..self.count()).take_while(same).count();
        row - before..row + after
    }

    /// A row's flow, within the log.
    #[must_use]
    pub fn flow_id(&self, row: usize) -> Option<i64> {
        self.ints(PacketColumn::FlowId).get(row)
    }

    /// Passes some rows, flow by flow, those of a flow in order of arrival. A row with a value that a packet cannot
    /// have is passed as the message that says so.
    ///
    /// # Errors
    ///
    /// That of `take`, which ends it.
    pub fn each<'a, E>(
        &'a self,
        rows: Range<usize>,
        mut take: impl FnMut(Result<&Row<'a>, &str>) -> Result<(), E>,
    ) -> Result<(), E> {
        let order = self.by_arrival(rows);
        let cells = self.cells();
        let mut some = Vec::with_capacity(AT_ONCE);
        let mut wrong: Vec<(usize, String)> = Vec::new();
        for places in order.chunks(AT_ONCE) {
            some.clear();
            some.resize_with(places.len(), Row::default);
            wrong.clear();
            for (name, cells) in &cells {
                fill(name, cells, places, &mut some, &mut wrong);
            }
            for (at, row) in some.iter().enumerate() {
                match wrong.iter().find(|(wrong, _)| *wrong == at) {
                    Some((_, problem)) => take(Err(problem))?,
                    None => take(Ok(row))?,
                }
            }
        }
        Ok(())
    }

    /// The places of rows, those of a flow in order of arrival: its directions are one after the other.
    fn by_arrival(&self, rows: Range<usize>) -> Vec<usize> {
        let flows = self.ints(PacketColumn::FlowId);
        let [times, late, ties] =
            [PacketColumn::Time, PacketColumn::LateNs, PacketColumn::Tie].map(|one| self.ints(one));
        let arrival = |at: &usize| {
            let time = times.get(*at)?.wrapping_add(late.get(*at)?);
            Some((time.cast_unsigned(), ties.get(*at)?))
        };
        let mut order: Vec<usize> = rows.collect();
        for flow in order.chunk_by_mut(|one, next| flows.get(*one) == flows.get(*next)) {
            if !flow.is_sorted_by_key(arrival) {
                flow.sort_by_key(arrival);
            }
        }
        order
    }

    fn ints(&self, column: PacketColumn) -> IntCells<'_> {
        self.batch.ints(column.index())
    }

    /// The columns that have values, and their names.
    fn cells(&self) -> Vec<(&'static str, Cells<'_>)> {
        let of = |column: &PacketColumn| {
            let at = column.index();
            let cells = match column.reads() {
                Read::Int(set) => {
                    let cells = self.batch.ints(at);
                    (!cells.is_empty()).then_some(Cells::Ints(cells, set))
                }
                Read::Float(set) => Some(Cells::Floats(self.batch.floats(at), set)),
                Read::Bytes(set) => self.batch.texts(at).map(|cells| Cells::Bytes(cells, set)),
            };
            cells.map(|cells| (column.spec().name, cells))
        };
        PacketColumn::ALL.iter().filter_map(of).collect()
    }
}

/// Stores the values of a column in rows, which are at these places.
fn fill<'a>(
    name: &str,
    cells: &Cells<'a>,
    places: &[usize],
    rows: &mut [Row<'a>],
    wrong: &mut Vec<(usize, String)>,
) {
    let rows = rows.iter_mut().zip(places);
    match cells {
        Cells::Ints(cells, set) => {
            for (at, (row, place)) in rows.enumerate() {
                if let Some(value) = cells.get(*place)
                    && set(row, value).is_err()
                {
                    let problem =
                        format!("column {name} has the value {value}, which no packet has");
                    wrong.push((at, problem));
                }
            }
        }
        Cells::Floats(cells, set) => {
            for (row, place) in rows {
                set(row, cells.get(*place));
            }
        }
        Cells::Bytes(cells, set) => {
            for (row, place) in rows {
                if let Some(value) = cells.bytes(*place) {
                    set(row, value);
                }
            }
        }
    }
}
