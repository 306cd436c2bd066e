//! Writes rows to a Parquet file.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Result;
use arrow_array::builder::{
    BooleanBuilder, Float64Builder, StringBuilder, StringDictionaryBuilder, UInt32Builder,
    UInt64Builder,
};
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use crate::output::Output;

/// Rows buffered before they are written.
const ROWS_HELD: usize = 65_536;

/// What a column holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Flag,
    U32,
    U64,
    F64,
    /// A string from a small set, or null.
    Word,
    /// Any string.
    Text,
    /// A number, or null.
    Maybe,
}

/// Name, kind, unit and description of a column.
pub(crate) type ColumnSpec = (&'static str, Kind, &'static str, &'static str);

/// A table being written, row by row.
pub(crate) struct Table {
    writer: ArrowWriter<Output>,
    schema: Arc<Schema>,
    columns: Vec<Column>,
    rows: usize,
}

enum Column {
    Flag(BooleanBuilder),
    U32(UInt32Builder),
    U64(UInt64Builder),
    F64(Float64Builder),
    Word(StringDictionaryBuilder<Int32Type>),
    Text(StringBuilder),
    Maybe(UInt64Builder),
}

impl Column {
    fn new(kind: Kind) -> (Self, DataType) {
        let word = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        match kind {
            Kind::Flag => (Self::Flag(BooleanBuilder::new()), DataType::Boolean),
            Kind::U32 => (Self::U32(UInt32Builder::new()), DataType::UInt32),
            Kind::U64 => (Self::U64(UInt64Builder::new()), DataType::UInt64),
            Kind::F64 => (Self::F64(Float64Builder::new()), DataType::Float64),
            Kind::Word => (Self::Word(StringDictionaryBuilder::new()), word),
            Kind::Text => (Self::Text(StringBuilder::new()), DataType::Utf8),
            Kind::Maybe => (Self::Maybe(UInt64Builder::new()), DataType::UInt64),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Flag(builder) => Arc::new(builder.finish()),
            Self::U32(builder) => Arc::new(builder.finish()),
            Self::U64(builder) => Arc::new(builder.finish()),
            Self::F64(builder) => Arc::new(builder.finish()),
            Self::Word(builder) => Arc::new(builder.finish()),
            Self::Text(builder) => Arc::new(builder.finish()),
            Self::Maybe(builder) => Arc::new(builder.finish()),
        }
    }
}

/// One cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cell<'a> {
    Flag(bool),
    U32(u32),
    U64(u64),
    F64(f64),
    Word(Option<&'a str>),
    Text(&'a str),
    Maybe(Option<u64>),
}

impl Table {
    /// Creates the file. Columns are `(name, kind, unit, description)`; `about` goes into the
    /// file's metadata.
    pub(crate) fn create(
        output: Output,
        columns: &[ColumnSpec],
        about: HashMap<String, String>,
    ) -> Result<Self> {
        let mut fields = Vec::new();
        let mut builders = Vec::new();
        for &(name, kind, unit, description) in columns {
            let (builder, data_type) = Column::new(kind);
            let texts = [("unit", unit), ("description", description)];
            let texts = texts.map(|(key, text)| (key.to_owned(), text.to_owned()));
            let nullable = matches!(kind, Kind::Word | Kind::Maybe);
            fields.push(Field::new(name, data_type, nullable).with_metadata(texts.into()));
            builders.push(builder);
        }
        let schema = Arc::new(Schema::new(fields).with_metadata(about));
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(parquet::basic::ZstdLevel::default()))
            .build();
        let writer = ArrowWriter::try_new(output, Arc::clone(&schema), Some(properties))?;
        Ok(Self {
            writer,
            schema,
            columns: builders,
            rows: 0,
        })
    }

    /// Adds a row: one cell per column, of the column's kind.
    ///
    /// # Panics
    ///
    /// If the cells do not match the columns.
    pub(crate) fn push<'a>(&mut self, cells: impl IntoIterator<Item = Cell<'a>>) -> Result<()> {
        let mut count = 0;
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            count += 1;
            match (column, cell) {
                (Column::Flag(builder), Cell::Flag(value)) => builder.append_value(value),
                (Column::U32(builder), Cell::U32(value)) => builder.append_value(value),
                (Column::U64(builder), Cell::U64(value)) => builder.append_value(value),
                (Column::F64(builder), Cell::F64(value)) => builder.append_value(value),
                (Column::Word(builder), Cell::Word(value)) => builder.append_option(value),
                (Column::Text(builder), Cell::Text(value)) => builder.append_value(value),
                (Column::Maybe(builder), Cell::Maybe(value)) => builder.append_option(value),
                (_, cell) => panic!("cell {count} is {cell:?}"),
            }
        }
        assert_eq!(count, self.columns.len(), "a cell for each column");
        self.rows += 1;
        if self.rows == ROWS_HELD {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let arrays = self.columns.iter_mut().map(Column::finish).collect();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), arrays)?;
        self.writer.write(&batch)?;
        self.rows = 0;
        Ok(())
    }

    /// Adds metadata that is known only at the end of the file.
    pub(crate) fn about(&mut self, key: &str, value: String) {
        self.writer
            .append_key_value_metadata(KeyValue::new(key.to_owned(), value));
    }

    /// Writes what is buffered and closes the file.
    pub(crate) fn close(mut self) -> Result<()> {
        self.flush()?;
        self.writer.into_inner()?.finish()
    }
}
