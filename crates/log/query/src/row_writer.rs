//! Rows into a Parquet file that is made for somebody, rather than for a log: as any writer makes it.

use std::io::{self, Write};
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float32Array, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampNanosecondArray,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde_json::Value;
use strata_archive::{Kind, Spec};

/// Rows that are held until they are written.
const ROWS: usize = 16_384;

/// Writes rows of a table's columns.
pub(crate) struct RowWriter<W: Write + Send> {
    specs: Vec<&'static Spec>,
    schema: SchemaRef,
    /// Of the rows that are held, by column.
    held: Vec<Vec<Value>>,
    writer: ArrowWriter<W>,
    written: u64,
}

impl<W: Write + Send> RowWriter<W> {
    pub(crate) fn new(
        output: W,
        table: &str,
        specs: impl Iterator<Item = &'static Spec>,
    ) -> io::Result<Self> {
        let specs: Vec<&Spec> = specs.collect();
        let fields = specs.iter().map(|spec| {
            let kind = match spec.kind {
                Kind::Time => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
                Kind::Int32 => DataType::Int32,
                Kind::Int64 => DataType::Int64,
                Kind::Float => DataType::Float32,
                Kind::Bool => DataType::Boolean,
                Kind::Text | Kind::Bytes => DataType::Utf8,
            };
            Field::new(spec.name, kind, spec.optional)
        });
        let about = [(String::from("strata.table"), table.to_owned())];
        let schema = Schema::new(fields.collect::<Vec<_>>()).with_metadata(about.into());
        let schema = Arc::new(schema);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(ROWS * 16))
            .build();
        Ok(Self {
            held: specs.iter().map(|_| Vec::with_capacity(ROWS)).collect(),
            writer: ArrowWriter::try_new(output, Arc::clone(&schema), Some(properties))?,
            specs,
            schema,
            written: 0,
        })
    }

    pub(crate) fn row(&mut self, values: impl IntoIterator<Item = Value>) -> io::Result<()> {
        for (held, value) in self.held.iter_mut().zip(values) {
            held.push(value);
        }
        self.written += 1;
        match self.held.first().is_some_and(|held| held.len() >= ROWS) {
            true => self.write(),
            false => Ok(()),
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let columns = self.specs.iter().zip(&mut self.held);
        let columns = columns.map(|(spec, held)| {
            let array = array(spec.kind, held);
            held.clear();
            array
        });
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns.collect());
        let batch = batch.map_err(io::Error::other)?;
        self.writer.write(&batch)?;
        Ok(())
    }

    /// Ends the file; returns how many rows it has.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        self.write()?;
        self.writer.close()?;
        Ok(self.written)
    }
}

fn array(kind: Kind, values: &[Value]) -> ArrayRef {
    let ints = || values.iter().map(Value::as_i64);
    match kind {
        Kind::Time => {
            // Beyond 2262, only a crafted capture's.
            let times = values.iter().map(|value| {
                let time = value.as_i64();
                time.or_else(|| value.as_u64().map(u64::cast_signed))
            });
            let times: TimestampNanosecondArray = times.collect();
            Arc::new(times.with_timezone("UTC"))
        }
        Kind::Int32 => {
            let ints = ints().map(|value| value.and_then(|value| i32::try_from(value).ok()));
            Arc::new(ints.collect::<Int32Array>())
        }
        Kind::Int64 => Arc::new(ints().collect::<Int64Array>()),
        #[allow(clippy::cast_possible_truncation, reason = "the column's type")]
        Kind::Float => {
            let floats = values.iter().map(|value| value.as_f64().map(|v| v as f32));
            Arc::new(floats.collect::<Float32Array>())
        }
        Kind::Bool => {
            let bools = values.iter().map(Value::as_bool);
            Arc::new(bools.collect::<BooleanArray>())
        }
        Kind::Text | Kind::Bytes => {
            let texts = values.iter().map(Value::as_str);
            Arc::new(texts.collect::<StringArray>())
        }
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;
    use strata_archive::PacketColumn;

    use super::*;

    /// As the library's reader of rows has it, across batches.
    #[test]
    fn rows_come_back() {
        let columns = [
            PacketColumn::Time,
            PacketColumn::Src,
            PacketColumn::SrcPort,
            PacketColumn::Score,
        ];
        let specs = columns.iter().map(|column| column.spec());
        let mut file = Vec::new();
        let mut writer = RowWriter::new(&mut file, "packets", specs).unwrap();
        let count = ROWS + 3;
        for n in 0..count {
            let src = if n % 2 == 0 {
                Value::Null
            } else {
                n.to_string().into()
            };
            let row = [n.into(), src, (n % 65_536).into(), 0.5.into()];
            writer.row(row).unwrap();
        }
        assert_eq!(writer.finish().unwrap(), count as u64);
        let reader = SerializedFileReader::new(bytes::Bytes::from(file)).unwrap();
        let mut rows = 0;
        for (n, row) in reader.get_row_iter(None).unwrap().enumerate() {
            let row = row.unwrap();
            assert_eq!(
                row.get_string(1).ok().cloned(),
                (n % 2 == 1).then(|| n.to_string())
            );
            assert_eq!(row.get_int(2).unwrap(), i32::try_from(n % 65_536).unwrap());
            assert!((row.get_float(3).unwrap() - 0.5).abs() < f32::EPSILON);
            rows += 1;
        }
        assert_eq!(rows, count);
    }
}
