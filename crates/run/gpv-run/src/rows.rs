//! Vectors and records as rows of Parquet: a flow key, and a list with a struct for each packet.

use std::io::Write;
use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Int64Builder, StringBuilder, UInt32Builder};
use arrow_array::types::{ArrowPrimitiveType, Int64Type, UInt8Type, UInt16Type, UInt32Type};
use arrow_array::{ArrayRef, ListArray, PrimitiveArray, RecordBatch, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use strata_gpv::{Column, Columns, Full, Grouped, Reason, Tuple as _};
use strata_wire::{exact, ip_addr};

use crate::columns::{COLUMN_NAMES, with_time};
use crate::error::Result;

/// Rows that are handed to the writer at once.
const ROWS_AT_ONCE: usize = 4096;
/// Bytes of a row group at most, about, before it is written: what memory holds.
const GROUP_BYTES: usize = 16 << 20;

/// Writes rows.
pub(crate) struct Rows<W: Write + Send> {
    writer: ArrowWriter<W>,
    columns: Columns,
    schema: Arc<Schema>,
    exporter: StringBuilder,
    addresses: [StringBuilder; 2],
    ports: [Vec<u16>; 2],
    protocol: Vec<u8>,
    interface: Vec<u16>,
    packets: Vec<u32>,
    start_ns: Int64Builder,
    end_ns: Int64Builder,
    reason: StringBuilder,
    saturated: BooleanBuilder,
    /// Where the list of each row ends.
    ends: Vec<i32>,
    time_ns: Vec<i64>,
    values: Vec<(Column, UInt32Builder)>,
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
        let schema = schema(columns);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .build();
        let values = columns.iter().filter(|column| *column != Column::Time);
        Ok(Self {
            writer: ArrowWriter::try_new(output, Arc::clone(&schema), Some(properties))?,
            columns,
            schema,
            exporter: StringBuilder::new(),
            addresses: Default::default(),
            ports: Default::default(),
            protocol: Vec::new(),
            interface: Vec::new(),
            packets: Vec::new(),
            start_ns: Int64Builder::new(),
            end_ns: Int64Builder::new(),
            reason: StringBuilder::new(),
            saturated: BooleanBuilder::new(),
            ends: Vec::new(),
            time_ns: Vec::new(),
            values: values.map(|of| (of, UInt32Builder::new())).collect(),
            written: 0,
        })
    }

    /// A row. Call [`Rows::write`] now and then.
    pub(crate) fn push<G: Grouped<Full>>(&mut self, group: &G, about: About<'_>) {
        let key = group.key();
        self.exporter.append_option(about.exporter);
        let ends = [key.source(), key.destination()];
        for (index, end) in ends.into_iter().enumerate() {
            let address = ip_addr(key.family(), end.address).map(|address| address.to_string());
            self.addresses[index].append_option(address);
            self.ports[index].push(end.port);
        }
        self.protocol.push(key.protocol());
        self.interface.push(key.ingress());
        self.packets.push(exact(group.count()));
        let first = self.time_ns.len();
        group.for_each_run(|start_ns, tuples| {
            let times = tuples.iter().map(|tuple| start_ns + tuple.delta_ns());
            self.time_ns.extend(times.map(u64::cast_signed));
            for (column, values) in &mut self.values {
                match about.known.has(*column) {
                    true => tuples
                        .iter()
                        .for_each(|t| values.append_value(t.get(*column))),
                    false => values.append_nulls(tuples.len()),
                }
            }
        });
        let times = &self.time_ns[first..];
        self.start_ns.append_option(times.first().copied());
        self.end_ns.append_option(times.last().copied());
        self.reason.append_option(about.reason.map(reason));
        self.saturated.append_option(about.saturated);
        self.ends.push(exact(self.time_ns.len()));
        self.written += 1;
    }

    /// Writes rows, if there are many.
    pub(crate) fn write(&mut self) -> Result<()> {
        if self.ends.len() >= ROWS_AT_ONCE {
            self.write_all()?;
        }
        Ok(())
    }

    fn write_all(&mut self) -> Result<()> {
        let batch = self.take()?;
        self.writer.write(&batch)?;
        if self.writer.memory_size() > GROUP_BYTES {
            self.writer.flush()?;
        }
        Ok(())
    }

    /// Bytes of the file so far, about; 0 if it has no row. Rows that wait to be written together
    /// count as 8 bytes a packet.
    pub(crate) fn bytes(&self) -> u64 {
        let given = self.writer.bytes_written() + self.writer.in_progress_size();
        match self.written {
            0 => 0,
            _ => (given + self.time_ns.len() * size_of::<i64>()) as u64,
        }
    }

    /// Writes what is left, and the end of the file.
    pub(crate) fn finish(mut self) -> Result<W> {
        self.write_all()?;
        Ok(self.writer.into_inner()?)
    }

    fn take(&mut self) -> Result<RecordBatch> {
        let mut columns: Vec<ArrayRef> = vec![Arc::new(self.exporter.finish())];
        let [source, destination] = &mut self.addresses;
        columns.push(Arc::new(source.finish()));
        columns.push(Arc::new(destination.finish()));
        let [source, destination] = &mut self.ports;
        columns.push(numbers::<UInt16Type>(source));
        columns.push(numbers::<UInt16Type>(destination));
        columns.push(numbers::<UInt8Type>(&mut self.protocol));
        columns.push(numbers::<UInt16Type>(&mut self.interface));
        columns.push(numbers::<UInt32Type>(&mut self.packets));
        columns.push(Arc::new(self.start_ns.finish()));
        columns.push(Arc::new(self.end_ns.finish()));
        columns.push(Arc::new(self.reason.finish()));
        columns.push(Arc::new(self.saturated.finish()));
        let mut of_tuples = vec![numbers::<Int64Type>(&mut self.time_ns)];
        for (_, values) in &mut self.values {
            of_tuples.push(Arc::new(values.finish()));
        }
        let fields = tuple_fields(self.columns);
        let tuples = StructArray::try_new(fields.clone(), of_tuples, None)?;
        let mut offsets = vec![0_i32];
        offsets.append(&mut self.ends);
        let item = Arc::new(Field::new("item", DataType::Struct(fields), false));
        let offsets = OffsetBuffer::new(offsets.into());
        columns.push(Arc::new(ListArray::try_new(
            item,
            offsets,
            Arc::new(tuples),
            None,
        )?));
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

fn numbers<T: ArrowPrimitiveType>(values: &mut Vec<T::Native>) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_iter_values(values.drain(..)))
}

fn tuple_fields(columns: Columns) -> Fields {
    let fields = columns.iter().map(|column| match column {
        Column::Time => Field::new("time_ns", DataType::Int64, false),
        other => {
            let name = COLUMN_NAMES.iter().find(|(_, of)| *of == other);
            let name = name.map_or("other", |(name, _)| name);
            Field::new(name, DataType::UInt32, true)
        }
    });
    fields.collect()
}

fn schema(columns: Columns) -> Arc<Schema> {
    let list = Field::new("item", DataType::Struct(tuple_fields(columns)), false);
    let fields = [
        ("exporter", DataType::Utf8, true),
        ("src", DataType::Utf8, true),
        ("dst", DataType::Utf8, true),
        ("src_port", DataType::UInt16, false),
        ("dst_port", DataType::UInt16, false),
        ("protocol", DataType::UInt8, false),
        ("interface", DataType::UInt16, false),
        ("packets", DataType::UInt32, false),
        ("start_ns", DataType::Int64, true),
        ("end_ns", DataType::Int64, true),
        ("reason", DataType::Utf8, true),
        ("saturated", DataType::Boolean, true),
        ("tuples", DataType::List(Arc::new(list)), false),
    ];
    let fields = fields.map(|(name, of, is_nullable)| Field::new(name, of, is_nullable));
    Arc::new(Schema::new(fields.to_vec()))
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
