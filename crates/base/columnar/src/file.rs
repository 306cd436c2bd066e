//! Parquet files that are made for others, rather than for a log: any columns, also within lists, as any
//! writer makes them (LogicalTypes.md and "Nested Encoding" of the Parquet format). What is written waits as
//! encoded pages until its row group is complete.

use std::fmt;
use std::io::Write;
use std::iter::repeat_n;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel};
use parquet::column::page::{CompressedPage, PageWriteSpec, PageWriter};
use parquet::column::writer::{ColumnWriter, ColumnWriterImpl, get_column_writer};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnDescriptor, Type, TypePtr};

use crate::pages::Pages;

/// The type of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    /// True or false.
    Bool,
    /// 8 bits, unsigned.
    U8,
    /// 16 bits, unsigned.
    U16,
    /// 32 bits, unsigned.
    U32,
    /// 64 bits, unsigned.
    U64,
    /// 32 bits, signed.
    Int,
    /// 64 bits, signed.
    Long,
    /// Microseconds since 1970, UTC.
    Time,
    /// 16 bits, signed.
    Short,
    /// 32 bits.
    Float,
    /// 64 bits.
    Double,
    /// UTF-8.
    Text,
    /// Bytes.
    Bytes,
}

impl CellKind {
    /// A column with this name, whose values may be missing if it is `optional`.
    ///
    /// # Errors
    ///
    /// Never: a name may be any text.
    pub fn column(self, name: &str, optional: bool) -> Result<TypePtr> {
        let unsigned = |bits| Some(LogicalType::integer(bits, false));
        let (physical, logical) = match self {
            Self::Bool => (Physical::BOOLEAN, None),
            Self::U8 => (Physical::INT32, unsigned(8)),
            Self::U16 => (Physical::INT32, unsigned(16)),
            Self::U32 => (Physical::INT32, unsigned(32)),
            Self::U64 => (Physical::INT64, unsigned(64)),
            Self::Int => (Physical::INT32, None),
            Self::Long => (Physical::INT64, None),
            Self::Time => (
                Physical::INT64,
                Some(LogicalType::timestamp(true, TimeUnit::MICROS)),
            ),
            Self::Short => (Physical::INT32, Some(LogicalType::integer(16, true))),
            Self::Float => (Physical::FLOAT, None),
            Self::Double => (Physical::DOUBLE, None),
            Self::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Self::Bytes => (Physical::BYTE_ARRAY, None),
        };
        let repetition = match optional {
            true => Repetition::OPTIONAL,
            false => Repetition::REQUIRED,
        };
        let column = Type::primitive_type_builder(name, physical)
            .with_logical_type(logical)
            .with_repetition(repetition);
        Ok(Arc::new(column.build()?))
    }
}

/// A column of lists, whose items have these columns (LogicalTypes.md, "Lists", with the names that Arrow
/// gives). Neither lists nor items are missing.
///
/// # Errors
///
/// Never: a name may be any text.
pub fn list_column(name: &str, columns: Vec<TypePtr>) -> Result<TypePtr> {
    let group = |name, fields, repetition| {
        Type::group_type_builder(name)
            .with_fields(fields)
            .with_repetition(repetition)
    };
    let item = group("item", columns, Repetition::REQUIRED).build()?;
    let list = group("list", vec![Arc::new(item)], Repetition::REPEATED).build()?;
    let column = group(name, vec![Arc::new(list)], Repetition::REQUIRED);
    let column = column.with_logical_type(Some(LogicalType::List));
    Ok(Arc::new(column.build()?))
}

/// One value.
#[derive(Clone, Copy, Debug)]
pub enum Cell<'a> {
    /// None, in a column whose values may be missing.
    Null,
    /// Of a [`CellKind::Bool`].
    Bool(bool),
    /// Of at most 32 bits, with those of an unsigned one.
    Int(i32),
    /// Of 64 bits, with those of an unsigned one.
    Long(i64),
    /// Of a [`CellKind::Float`].
    Float(f32),
    /// Of a [`CellKind::Double`].
    Double(f64),
    /// Of a [`CellKind::Text`].
    Text(&'a str),
    /// Of a [`CellKind::Bytes`].
    Bytes(&'a [u8]),
}

/// Values of a column, those that are not missing.
#[derive(Debug)]
enum Cells {
    Bool(Vec<bool>),
    Int(Vec<i32>),
    Long(Vec<i64>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    /// Texts or bytes, one after the other, and where each ends.
    Bytes(Vec<u8>, Vec<usize>),
}

/// Values of a column that are not yet written: as they are, with 2 bytes each for whether they may be missing,
/// and 2 for being in a list.
#[derive(Debug)]
pub struct Leaf {
    cells: Cells,
    /// The definition level of a value that is there; 0 for a column that always has one.
    highest: i16,
    /// The definition level of a value that is missing, if it may be.
    null: Option<i16>,
    /// Whether rows have lists of values.
    is_list: bool,
    levels: Vec<i16>,
    /// Repetition levels, of a column within a list.
    repeats: Vec<i16>,
}

impl Leaf {
    fn of(column: &ColumnDescriptor) -> Result<Self> {
        let cells = match column.physical_type() {
            Physical::BOOLEAN => Cells::Bool(Vec::new()),
            Physical::INT32 => Cells::Int(Vec::new()),
            Physical::INT64 => Cells::Long(Vec::new()),
            Physical::FLOAT => Cells::Float(Vec::new()),
            Physical::DOUBLE => Cells::Double(Vec::new()),
            Physical::BYTE_ARRAY => Cells::Bytes(Vec::new(), Vec::new()),
            other => return Err(wrong(format!("column {}: is of {other}", column.path()))),
        };
        let highest = column.max_def_level();
        let is_optional = column.self_type().get_basic_info().repetition() == Repetition::OPTIONAL;
        Ok(Self {
            cells,
            highest,
            null: is_optional.then(|| highest - 1),
            is_list: column.max_rep_level() > 0,
            levels: Vec::new(),
            repeats: Vec::new(),
        })
    }

    /// Adds a row's value; in a list, an item, as [`Leaf::ints`] does.
    ///
    /// # Panics
    ///
    /// If its type is not that of the column, or if it is missing where it must not be: the caller knows the column.
    pub fn push(&mut self, cell: Cell<'_>) {
        match (&mut self.cells, cell) {
            (_, Cell::Null) => return self.missing(1),
            (Cells::Bool(values), Cell::Bool(value)) => values.push(value),
            (Cells::Int(values), Cell::Int(value)) => values.push(value),
            (Cells::Long(values), Cell::Long(value)) => values.push(value),
            (Cells::Float(values), Cell::Float(value)) => values.push(value),
            (Cells::Double(values), Cell::Double(value)) => values.push(value),
            (Cells::Bytes(bytes, ends), Cell::Text(value)) => {
                bytes.extend_from_slice(value.as_bytes());
                ends.push(bytes.len());
            }
            (Cells::Bytes(bytes, ends), Cell::Bytes(value)) => {
                bytes.extend_from_slice(value);
                ends.push(bytes.len());
            }
            (cells, cell) => panic!("{cell:?} among {cells:?}"),
        }
        self.there(1);
    }

    /// Adds items of a row's list, until [`Leaf::end_list`]; they are in a column of 32 bits.
    ///
    /// # Panics
    ///
    /// As [`Leaf::push`].
    pub fn ints(&mut self, values: impl Iterator<Item = i32>) {
        let Cells::Int(cells) = &mut self.cells else {
            panic!("a column of other values");
        };
        let before = cells.len();
        cells.extend(values);
        let added = cells.len() - before;
        self.there(added);
    }

    /// As [`Leaf::ints`], in a column of 64 bits.
    ///
    /// # Panics
    ///
    /// As [`Leaf::push`].
    pub fn longs(&mut self, values: impl Iterator<Item = i64>) {
        let Cells::Long(cells) = &mut self.cells else {
            panic!("a column of other values");
        };
        let before = cells.len();
        cells.extend(values);
        let added = cells.len() - before;
        self.there(added);
    }

    /// Notes that values were added.
    fn there(&mut self, count: usize) {
        if self.highest > 0 {
            self.levels.extend(repeat_n(self.highest, count));
        }
    }

    /// Adds items, or rows, that have no value.
    ///
    /// # Panics
    ///
    /// As [`Leaf::push`].
    pub fn missing(&mut self, count: usize) {
        let null = self.null.expect("a column whose values may be missing");
        self.levels.extend(repeat_n(null, count));
    }

    /// Ends the list of a row: the items since the last one are its.
    ///
    /// # Panics
    ///
    /// If the column is not in a list.
    pub fn end_list(&mut self) {
        assert!(self.is_list, "a column outside lists");
        let first = self.repeats.len();
        if self.levels.len() == first {
            self.levels.push(0);
        }
        self.repeats.resize(self.levels.len(), 1);
        self.repeats[first] = 0;
    }

    fn clear(&mut self) {
        match &mut self.cells {
            Cells::Bool(values) => values.clear(),
            Cells::Int(values) => values.clear(),
            Cells::Long(values) => values.clear(),
            Cells::Float(values) => values.clear(),
            Cells::Double(values) => values.clear(),
            Cells::Bytes(bytes, ends) => {
                bytes.clear();
                ends.clear();
            }
        }
        self.levels.clear();
        self.repeats.clear();
    }
}

/// A file that is being written, with pages compressed by Zstandard, each with a CRC-32. Memory holds what
/// [`Leaf`] says, and the row group that is not complete, as it will be written.
pub struct ParquetFile<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    /// Of the row group that is not complete.
    chunks: Vec<Chunk>,
    rows: usize,
    rows_max: usize,
}

impl<W: Write + Send> fmt::Debug for ParquetFile<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParquetFile")
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

impl<W: Write + Send> ParquetFile<W> {
    /// Begins a file with these columns and metadata, whose row groups end with the [`ParquetFile::write`] that
    /// gives them `rows_max` rows; returns what its values are put into, in the order of the columns: for a
    /// list, each column of its items.
    ///
    /// # Errors
    ///
    /// If nothing can be written.
    pub fn new(
        output: W,
        columns: Vec<TypePtr>,
        about: Vec<(String, String)>,
        rows_max: usize,
    ) -> Result<(Self, Vec<Leaf>)> {
        let schema = Type::group_type_builder("schema").with_fields(columns);
        let about = about.into_iter();
        let about = about.map(|(key, value)| KeyValue::new(key, value));
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_key_value_metadata(Some(about.collect()))
            .build();
        let schema = Arc::new(schema.build()?);
        let writer = SerializedFileWriter::new(output, schema, Arc::new(properties))?;
        let columns = writer.schema_descr().columns();
        let leaves: Result<_> = columns.iter().map(|column| Leaf::of(column)).collect();
        let file = Self {
            chunks: Vec::new(),
            rows: 0,
            rows_max,
            writer,
        };
        Ok((file, leaves?))
    }

    /// Writes rows and clears them.
    ///
    /// # Errors
    ///
    /// If nothing can be written. If a column has another number of rows, at the end of the row group at the
    /// latest.
    pub fn write(&mut self, leaves: &mut [Leaf], rows: usize) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        if self.chunks.is_empty() {
            let columns = self.writer.schema_descr().columns().iter();
            let properties = self.writer.properties();
            let chunks = columns.map(|column| {
                let pages = SharedPages::default();
                let to = Box::new(pages.clone());
                let writer = get_column_writer(Arc::clone(column), Arc::clone(properties), to);
                Chunk { writer, pages }
            });
            self.chunks = chunks.collect();
        }
        for (chunk, leaf) in self.chunks.iter_mut().zip(leaves) {
            chunk.write(leaf)?;
            leaf.clear();
        }
        self.rows += rows;
        match self.rows >= self.rows_max {
            true => self.end_group(),
            false => Ok(()),
        }
    }

    /// Rows of the row group that is not complete.
    #[must_use]
    pub fn group_rows(&self) -> usize {
        self.rows
    }

    /// Completes a row group, if it has rows.
    ///
    /// # Errors
    ///
    /// As [`ParquetFile::write`].
    pub fn end_group(&mut self) -> Result<()> {
        if self.chunks.is_empty() {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        for chunk in self.chunks.drain(..) {
            let close = chunk.writer.close()?;
            let bytes = std::mem::take(&mut *chunk.pages.bytes());
            group.append_column(&Bytes::from(bytes), close)?;
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }

    /// Bytes of complete row groups.
    #[must_use]
    pub fn bytes_written(&self) -> usize {
        self.writer.bytes_written()
    }

    /// Adds to the metadata, after what is there.
    pub fn about(&mut self, key: &str, value: String) {
        let about = KeyValue::new(key.to_owned(), value);
        self.writer.append_key_value_metadata(about);
    }

    /// Writes the last row group and the end of the file; returns what it was written to.
    ///
    /// # Errors
    ///
    /// As [`ParquetFile::write`].
    pub fn finish(mut self) -> Result<W> {
        self.end_group()?;
        self.writer.into_inner()
    }
}

/// A column of the row group that is not complete.
struct Chunk {
    writer: ColumnWriter<'static>,
    pages: SharedPages,
}

impl Chunk {
    fn write(&mut self, leaf: &mut Leaf) -> Result<()> {
        let levels = (leaf.highest > 0).then_some(&leaf.levels[..]);
        let repeats = leaf.is_list.then_some(&leaf.repeats[..]);
        let at = (levels, repeats);
        match (&mut self.writer, &mut leaf.cells) {
            (ColumnWriter::BoolColumnWriter(to), Cells::Bool(values)) => write(to, values, at),
            (ColumnWriter::Int32ColumnWriter(to), Cells::Int(values)) => write(to, values, at),
            (ColumnWriter::Int64ColumnWriter(to), Cells::Long(values)) => write(to, values, at),
            (ColumnWriter::FloatColumnWriter(to), Cells::Float(values)) => write(to, values, at),
            (ColumnWriter::DoubleColumnWriter(to), Cells::Double(values)) => write(to, values, at),
            (ColumnWriter::ByteArrayColumnWriter(to), Cells::Bytes(bytes, ends)) => {
                // All share one buffer.
                let all = Bytes::from(std::mem::take(bytes));
                let starts = std::iter::once(0).chain(ends.iter().copied());
                let ranges = starts.zip(&*ends);
                let texts = ranges.map(|(start, end)| ByteArray::from(all.slice(start..*end)));
                write(to, &texts.collect::<Vec<_>>(), at)
            }
            (_, cells) => Err(wrong(format!(
                "a column whose type is not that of {cells:?}"
            ))),
        }
    }
}

type Levels<'a> = (Option<&'a [i16]>, Option<&'a [i16]>);

fn write<T: DataType>(
    writer: &mut ColumnWriterImpl<'static, T>,
    values: &[T::T],
    (levels, repeats): Levels<'_>,
) -> Result<()> {
    writer.write_batch(values, levels, repeats)?;
    Ok(())
}

fn wrong(problem: String) -> ParquetError {
    ParquetError::General(problem)
}

/// The pages of a column, which its writer keeps until it is closed.
#[derive(Clone, Default)]
struct SharedPages(Arc<Mutex<Vec<u8>>>);

impl SharedPages {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageWriter for SharedPages {
    fn write_page(&mut self, page: CompressedPage) -> Result<PageWriteSpec> {
        Pages(&mut self.bytes()).write_page(page)
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
