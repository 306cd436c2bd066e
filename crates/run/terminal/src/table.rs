//! Writes rows to a Parquet file.

use std::collections::HashMap;

use anyhow::Result;
use strata_columnar::arrow::{self, DataType, Field};
use strata_columnar::{Cell as Value, CellKind, Leaf, ParquetFile};

use crate::output::Output;

/// Rows buffered before they are written.
const ROWS_HELD: usize = 65_536;
/// Rows of a row group.
const GROUP_ROWS: usize = 1 << 20;

/// What a column holds.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// True or false.
    Flag,
    /// A number up to 4,294,967,295.
    U32,
    /// A number.
    U64,
    /// A number with a fraction.
    F64,
    /// A string from a small set, or null.
    Word,
    /// Any string.
    Text,
    /// A number, or null.
    Maybe,
}

/// Name, kind, unit and description of a column.
pub type ColumnSpec = (&'static str, Kind, &'static str, &'static str);

/// A table being written, row by row.
pub struct Table {
    file: ParquetFile<Output>,
    leaves: Vec<Leaf>,
    rows: usize,
}

impl Kind {
    fn is_optional(self) -> bool {
        matches!(self, Self::Word | Self::Maybe)
    }

    /// In Parquet, and in Arrow.
    fn types(self) -> (CellKind, DataType) {
        match self {
            Self::Flag => (CellKind::Bool, DataType::Bool),
            Self::U32 => (CellKind::U32, DataType::U32),
            Self::U64 | Self::Maybe => (CellKind::U64, DataType::U64),
            Self::F64 => (CellKind::Double, DataType::F64),
            Self::Word => (CellKind::Text, DataType::Dictionary),
            Self::Text => (CellKind::Text, DataType::Text),
        }
    }
}

/// One cell.
#[derive(Clone, Copy, Debug)]
pub enum Cell<'a> {
    /// Of [`Kind::Flag`].
    Flag(bool),
    /// Of [`Kind::U32`].
    U32(u32),
    /// Of [`Kind::U64`].
    U64(u64),
    /// Of [`Kind::F64`].
    F64(f64),
    /// Of [`Kind::Word`].
    Word(Option<&'a str>),
    /// Of [`Kind::Text`].
    Text(&'a str),
    /// Of [`Kind::Maybe`].
    Maybe(Option<u64>),
}

impl Table {
    /// Creates the file. Columns are `(name, kind, unit, description)`; `about` goes into the
    /// file's metadata.
    pub fn create(
        output: Output,
        columns: &[ColumnSpec],
        about: HashMap<String, String>,
    ) -> Result<Self> {
        let texts = columns.iter();
        let texts: Vec<_> = texts
            .map(|&(_, _, unit, description)| [("unit", unit), ("description", description)])
            .collect();
        let fields = columns.iter().zip(&texts);
        let fields: Vec<_> = fields
            .map(|(&(name, kind, ..), metadata)| Field {
                name,
                data_type: kind.types().1,
                nullable: kind.is_optional(),
                metadata,
            })
            .collect();
        let mut about: Vec<_> = about.into_iter().collect();
        about.sort();
        let metadata = about.iter();
        let metadata = metadata.map(|(key, value)| (key.as_str(), value.as_str()));
        let schema = arrow::in_parquet(&fields, &metadata.collect::<Vec<_>>());
        about.push(schema);
        let columns = columns.iter();
        let columns =
            columns.map(|&(name, kind, ..)| kind.types().0.column(name, kind.is_optional()));
        let columns = columns.collect::<Result<_, _>>()?;
        let (file, leaves) = ParquetFile::new(output, columns, about, GROUP_ROWS)?;
        Ok(Self {
            file,
            leaves,
            rows: 0,
        })
    }

    /// Adds a row: one cell per column, of the column's kind.
    ///
    /// # Panics
    ///
    /// If the cells do not match the columns.
    pub fn push<'a>(&mut self, cells: impl IntoIterator<Item = Cell<'a>>) -> Result<()> {
        let mut count = 0;
        for (leaf, cell) in self.leaves.iter_mut().zip(cells) {
            count += 1;
            leaf.push(match cell {
                Cell::Flag(value) => Value::Bool(value),
                Cell::U32(value) => Value::Int(value.cast_signed()),
                Cell::U64(value) | Cell::Maybe(Some(value)) => Value::Long(value.cast_signed()),
                Cell::F64(value) => Value::Double(value),
                Cell::Text(value) | Cell::Word(Some(value)) => Value::Text(value),
                Cell::Word(None) | Cell::Maybe(None) => Value::Null,
            });
        }
        assert_eq!(count, self.leaves.len(), "a cell for each column");
        self.rows += 1;
        if self.rows == ROWS_HELD {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write(&mut self.leaves, self.rows)?;
        self.rows = 0;
        Ok(())
    }

    /// Adds metadata that is known only at the end of the file.
    pub fn about(&mut self, key: &str, value: String) {
        self.file.about(key, value);
    }

    /// Writes what is buffered and closes the file.
    pub fn close(mut self) -> Result<()> {
        self.flush()?;
        self.file.finish()?.finish()
    }
}
