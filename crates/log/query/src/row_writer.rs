//! Rows into a Parquet file that is made for somebody, rather than for a log: as any writer makes it.

use std::io::{self, Write};

use serde_json::Value;
use strata_archive::{Kind, NS_PER_MICRO, Spec, below_micros};
use strata_columnar::{Cell, CellKind, Leaf, ParquetFile};
use strata_wire::exact;

/// Rows that are held until they are written.
const ROWS: usize = 16_384;

/// Writes rows of a table's columns.
pub(crate) struct RowWriter<W: Write + Send> {
    specs: Vec<&'static Spec>,
    /// The rows that are held.
    leaves: Vec<Leaf>,
    held: usize,
    file: ParquetFile<W>,
    written: u64,
}

impl<W: Write + Send> RowWriter<W> {
    pub(crate) fn new(
        output: W,
        table: &str,
        specs: impl Iterator<Item = &'static Spec>,
    ) -> io::Result<Self> {
        let specs: Vec<&Spec> = specs.collect();
        let columns = specs.iter().flat_map(|spec| {
            let kind = match spec.kind {
                Kind::Time => CellKind::Time,
                Kind::Int32 => CellKind::Int,
                Kind::Int64 => CellKind::Long,
                Kind::Float => CellKind::Float,
                Kind::Bool => CellKind::Bool,
                Kind::Text | Kind::Bytes => CellKind::Text,
            };
            let below = (spec.kind == Kind::Time)
                .then(|| CellKind::Short.column(&below_micros(spec.name), spec.optional));
            [kind.column(spec.name, spec.optional)]
                .into_iter()
                .chain(below)
        });
        let about = vec![(String::from("strata.table"), table.to_owned())];
        let columns = columns.collect::<Result<_, _>>()?;
        let (file, leaves) = ParquetFile::new(output, columns, about, ROWS * 16)?;
        Ok(Self {
            specs,
            leaves,
            held: 0,
            file,
            written: 0,
        })
    }

    pub(crate) fn row(&mut self, values: impl IntoIterator<Item = Value>) -> io::Result<()> {
        let mut leaves = self.leaves.iter_mut();
        for (spec, value) in self.specs.iter().zip(values) {
            let mut leaf = || leaves.next().expect("each column has its leaves");
            let cell = cell(spec.kind, &value);
            if matches!(cell, Cell::Null) && !spec.optional {
                let problem = format!("column {}: {value} is no {}", spec.name, spec.kind);
                return Err(io::Error::other(problem));
            }
            if spec.kind != Kind::Time {
                leaf().push(cell);
                continue;
            }
            let ns = match cell {
                Cell::Long(ns) => Some(ns.cast_unsigned()),
                _ => None,
            };
            let micros = ns.map(|ns| Cell::Long((ns / NS_PER_MICRO).cast_signed()));
            let below = ns.map(|ns| Cell::Int(exact(ns % NS_PER_MICRO)));
            leaf().push(micros.unwrap_or(Cell::Null));
            leaf().push(below.unwrap_or(Cell::Null));
        }
        self.held += 1;
        self.written += 1;
        match self.held >= ROWS {
            true => self.write(),
            false => Ok(()),
        }
    }

    fn write(&mut self) -> io::Result<()> {
        self.file.write(&mut self.leaves, self.held)?;
        self.held = 0;
        Ok(())
    }

    /// Ends the file; returns how many rows it has.
    pub(crate) fn finish(mut self) -> io::Result<u64> {
        self.write()?;
        self.file.finish()?;
        Ok(self.written)
    }
}

/// A value for a column of this kind; null if it is another.
fn cell(kind: Kind, value: &Value) -> Cell<'_> {
    let cell = match kind {
        Kind::Time => {
            // Beyond 2262, only a crafted capture's.
            let time = value.as_i64();
            let time = time.or_else(|| value.as_u64().map(u64::cast_signed));
            time.map(Cell::Long)
        }
        Kind::Int32 => {
            let int = value.as_i64().and_then(|value| i32::try_from(value).ok());
            int.map(Cell::Int)
        }
        Kind::Int64 => value.as_i64().map(Cell::Long),
        #[allow(clippy::cast_possible_truncation, reason = "the column's type")]
        Kind::Float => value.as_f64().map(|value| Cell::Float(value as f32)),
        Kind::Bool => value.as_bool().map(Cell::Bool),
        Kind::Text | Kind::Bytes => value.as_str().map(Cell::Text),
    };
    cell.unwrap_or(Cell::Null)
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
            let micros = row.get_timestamp_micros(0).unwrap();
            let below = i64::from(row.get_short(1).unwrap());
            assert_eq!(micros * 1_000 + below, i64::try_from(n).unwrap());
            assert_eq!(
                row.get_string(2).ok().cloned(),
                (n % 2 == 1).then(|| n.to_string())
            );
            assert_eq!(row.get_int(3).unwrap(), i32::try_from(n % 65_536).unwrap());
            assert!((row.get_float(4).unwrap() - 0.5).abs() < f32::EPSILON);
            rows += 1;
        }
        assert_eq!(rows, count);
    }
}
