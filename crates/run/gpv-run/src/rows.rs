//! Vectors and records as rows of Parquet: a flow key, and a list with a struct for each packet.

use std::io::Write;

use parquet::errors::ParquetError;
use parquet::schema::types::TypePtr;
use strata_columnar::{Cell, CellKind, Leaf, ParquetFile, list_column};
use strata_gpv::{Column, Columns, Full, Grouped, Reason, Tuple as _};
use strata_wire::{exact, ip_addr};

use crate::columns::{COLUMN_NAMES, with_time};
use crate::error::Result;

/// Rows that are handed to the writer at once.
const ROWS_AT_ONCE: usize = 4096;
/// Maximum number of rows of a row group.
const GROUP_ROWS: usize = 1 << 20;
/// Bytes of the packets of a row group at most, about, before they are encoded: memory holds less.
const GROUP_BYTES: usize = 32 << 20;

/// Writes rows.
pub(crate) struct Rows<W: Write + Send> {
    file: ParquetFile<W>,
    columns: Columns,
    leaves: Vec<Leaf>,
    /// Rows that wait to be written together.
    waiting: usize,
    /// Packets that are not in the file, or in a row group that is not complete.
    held: usize,
    /// Rows so far.
    pub(crate) written: u64,
}

/// What a row says in addition to key and packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    /// Which cache it is from, if vectors of several were received.
    pub(crate) exporter: Option<&'a str>,
    /// Why it left the cache; `None` for records of the agent.
    pub(crate) reason: Option<Reason>,
    pub(crate) saturated: Option<bool>,
    /// What is known of its packets: other columns are null.
    pub(crate) known: Columns,
}

impl<W: Write + Send> Rows<W> {
    /// A file with these columns of packets.
    pub(crate) fn new(output: W, columns: Columns) -> Result<Self> {
        let columns = with_time(columns);
        let (file, leaves) = ParquetFile::new(output, schema(columns)?, Vec::new(), GROUP_ROWS)?;
        Ok(Self {
            file,
            columns,
            leaves,
            waiting: 0,
            held: 0,
            written: 0,
        })
    }

    /// A row. Call [`Rows::write`] now and then.
    pub(crate) fn push<G: Grouped<Full>>(&mut self, group: &G, about: About<'_>) {
        let (of_row, of_packets) = self.leaves.split_at_mut(ROW_COLUMNS.len());
        let (mut first_ns, mut last_ns) = (Cell::Null, Cell::Null);
        let mut packets = 0;
        group.for_each_run(|start_ns, tuples| {
            let times = tuples.iter().map(|tuple| start_ns + tuple.delta_ns());
            let mut times = times.map(u64::cast_signed);
            if let (Cell::Null, Some(first)) = (first_ns, times.clone().next()) {
                first_ns = Cell::Long(first);
            }
            for (column, leaf) in self.columns.iter().zip(&mut *of_packets) {
                match column {
                    Column::Time => leaf.longs(times.clone()),
                    _ if about.known.has(column) => {
                        leaf.ints(tuples.iter().map(|t| t.get(column).cast_signed()));
                    }
                    _ => leaf.missing(tuples.len()),
                }
            }
            packets += tuples.len();
            if let Some(last) = times.next_back() {
                last_ns = Cell::Long(last);
            }
        });
        of_packets.iter_mut().for_each(Leaf::end_list);
        let key = group.key();
        let ends = [key.source(), key.destination()];
        let addresses = ends.map(|end| {
            let address = ip_addr(key.family(), end.address);
            address.map(|address| address.to_string())
        });
        let number = |number: u32| Cell::Int(number.cast_signed());
        let cells = [
            text(about.exporter),
            text(addresses[0].as_deref()),
            text(addresses[1].as_deref()),
            number(ends[0].port.into()),
            number(ends[1].port.into()),
            number(key.protocol().into()),
            number(key.ingress().into()),
            number(exact(group.count())),
            first_ns,
            last_ns,
            text(about.reason.map(reason)),
            about.saturated.map_or(Cell::Null, Cell::Bool),
        ];
        for (leaf, cell) in of_row.iter_mut().zip(cells) {
            leaf.push(cell);
        }
        self.waiting += 1;
        self.held += packets;
        self.written += 1;
    }

    /// Writes rows, if there are many.
    pub(crate) fn write(&mut self) -> Result<()> {
        if self.waiting >= ROWS_AT_ONCE {
            self.write_all()?;
        }
        Ok(())
    }

    fn write_all(&mut self) -> Result<()> {
        self.file.write(&mut self.leaves, self.waiting)?;
        self.waiting = 0;
        let of_packet = size_of::<i64>() + self.columns.iter().count() * size_of::<u32>();
        if self.held * of_packet > GROUP_BYTES {
            self.file.end_group()?;
        }
        if self.file.group_rows() == 0 {
            self.held = 0;
        }
        Ok(())
    }

    /// Bytes of the file so far, about; 0 if it has no row. Rows whose row group is not complete count as
    /// 8 bytes a packet.
    pub(crate) fn bytes(&self) -> u64 {
        match self.written {
            0 => 0,
            _ => (self.file.bytes_written() + self.held * size_of::<i64>()) as u64,
        }
    }

    /// Writes what is left, and the end of the file.
    pub(crate) fn finish(mut self) -> Result<W> {
        self.write_all()?;
        Ok(self.file.finish()?)
    }
}

/// Columns of a row, whether they may be null.
const ROW_COLUMNS: [(&str, CellKind, bool); 12] = [
    ("exporter", CellKind::Text, true),
    ("src", CellKind::Text, true),
    ("dst", CellKind::Text, true),
    ("src_port", CellKind::U16, false),
    ("dst_port", CellKind::U16, false),
    ("protocol", CellKind::U8, false),
    ("interface", CellKind::U16, false),
    ("packets", CellKind::U32, false),
    ("start_ns", CellKind::Long, true),
    ("end_ns", CellKind::Long, true),
    ("reason", CellKind::Text, true),
    ("saturated", CellKind::Bool, true),
];

fn schema(columns: Columns) -> Result<Vec<TypePtr>, ParquetError> {
    let of_packets = columns.iter().map(|column| match column {
        Column::Time => CellKind::Long.column("time_ns", false),
        other => {
            let name = COLUMN_NAMES.iter().find(|(_, of)| *of == other);
            let name = name.map_or("other", |(name, _)| name);
            CellKind::U32.column(name, true)
        }
    });
    let of_packets = of_packets.collect::<Result<_, _>>()?;
    let of_rows = ROW_COLUMNS
        .iter()
        .map(|&(name, kind, optional)| kind.column(name, optional));
    of_rows.chain([list_column("tuples", of_packets)]).collect()
}

fn text(text: Option<&str>) -> Cell<'_> {
    text.map_or(Cell::Null, Cell::Text)
}

/// Why a vector left the cache.
fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Full => "full",
        Reason::Collision => "collision",
        Reason::Time => "time",
        Reason::Flushed => "flushed",
        Reason::Unknown => "unknown",
    }
}
