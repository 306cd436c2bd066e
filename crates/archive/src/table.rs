//! Parquet tables: columns in, columns out.

use std::io::Write;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::bloom_filter::Sbbf;
use parquet::column::page::Page;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::column::writer::{
    ColumnCloseResult, ColumnWriter as Writer, ColumnWriterImpl, get_column_writer,
};
use parquet::data_type::{ByteArray, DataType};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::{ReadOptionsBuilder, SerializedFileReader};
use parquet::file::statistics::Statistics;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnDescPtr, ColumnPath};

use crate::ahead::{self, TableInput};
use crate::coded::{ChunkWriter, Coded, Entries, NULL};
use crate::error::{ArchiveError, Source};
use crate::pages::Pages;
use crate::spec::{Coding, Kind, Spec};

/// Values of one column, without nulls.
#[derive(Debug)]
pub(crate) enum Values {
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float(Vec<f32>),
    Bool(Vec<bool>),
    Bytes(Vec<ByteArray>),
    /// For writing only, including nulls.
    Coded(Coded),
}

/// One column of some rows.
#[derive(Debug)]
pub struct Column {
    pub(crate) values: Values,
    /// Per row 1 or 0: whether it has a value. Empty for a column without nulls.
    pub(crate) levels: Vec<i16>,
}

impl Column {
    pub(crate) fn of(kind: Kind) -> Self {
        let values = match kind {
            Kind::Time | Kind::Int64 => Values::Int64(Vec::new()),
            Kind::Int32 => Values::Int32(Vec::new()),
            Kind::Float => Values::Float(Vec::new()),
            Kind::Bool => Values::Bool(Vec::new()),
            Kind::Text | Kind::Bytes => Values::Bytes(Vec::new()),
        };
        Self {
            values,
            levels: Vec::new(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.levels.clear();
        match &mut self.values {
            Values::Int32(values) => values.clear(),
            Values::Int64(values) => values.clear(),
            Values::Float(values) => values.clear(),
            Values::Bool(values) => values.clear(),
            Values::Bytes(values) => values.clear(),
            Values::Coded(values) => values.codes.clear(),
        }
    }

    /// Whether it has rows, but no value in any.
    fn has_no_values(&self) -> bool {
        let empty = match &self.values {
            Values::Int32(values) => values.is_empty(),
            Values::Int64(values) => values.is_empty(),
            Values::Float(values) => values.is_empty(),
            Values::Bytes(values) => values.is_empty(),
            Values::Bool(_) | Values::Coded(_) => false,
        };
        empty && !self.levels.is_empty()
    }

    /// Integers by row; `None` for null.
    ///
    /// # Panics
    ///
    /// If the column is of another kind: the caller knows which it is.
    pub fn ints(&self) -> Box<dyn Iterator<Item = Option<i64>> + '_> {
        match &self.values {
            Values::Int32(values) => self.by_row(values.iter().map(|v| i64::from(*v))),
            Values::Int64(values) => self.by_row(values.iter().copied()),
            Values::Bool(values) => self.by_row(values.iter().map(|v| i64::from(*v))),
            Values::Float(_) | Values::Bytes(_) | Values::Coded(_) => {
                panic!("not a column of integers")
            }
        }
    }

    /// Floats by row.
    ///
    /// # Panics
    ///
    /// As [`Column::ints`].
    pub fn floats(&self) -> Box<dyn Iterator<Item = Option<f32>> + '_> {
        match &self.values {
            Values::Float(values) => self.by_row(values.iter().copied()),
            _ => panic!("not a column of floats"),
        }
    }

    /// Texts or bytes by row.
    ///
    /// # Panics
    ///
    /// As [`Column::ints`].
    pub fn bytes(&self) -> Box<dyn Iterator<Item = Option<&ByteArray>> + '_> {
        match &self.values {
            Values::Bytes(values) => self.by_row(values.iter()),
            _ => panic!("not a column of bytes"),
        }
    }

    fn by_row<'a, T: 'a>(
        &'a self,
        mut values: impl Iterator<Item = T> + 'a,
    ) -> Box<dyn Iterator<Item = Option<T>> + 'a> {
        if self.levels.is_empty() {
            return Box::new(values.map(Some));
        }
        let levels = self.levels.iter();
        Box::new(levels.map(move |level| if *level == 1 { values.next() } else { None }))
    }
}

/// Writes a table.
pub(crate) struct TableWriter<W: Write + Send> {
    specs: &'static [Spec],
    columns: Vec<ColumnDescPtr>,
    properties: WriterPropertiesPtr,
    writer: SerializedFileWriter<W>,
    chunks: ChunkWriter,
    /// One buffer for all columns of the same type.
    scratch: Vec<(Scratch, Column)>,
}

/// Columns with the same key share their buffer.
type Scratch = (Kind, bool);

fn scratch_of(spec: &Spec) -> Scratch {
    (spec.kind, spec.coding == Coding::Codes)
}

const ZSTD_LEVEL: i32 = 1;

/// Rows of a page: the least that is read of a column when looking for a flow.
pub const PAGE_ROWS: usize = 8_192;
/// Share of absent values that a Bloom filter lets pass.
const FILTER_FALSE_SHARE: f64 = 0.01;
/// Distinct values that a Bloom filter has space for while it is filled; it is folded afterwards.
const FILTER_VALUES: u64 = 1 << 18;
/// Size of a dictionary above which the rest of a column is written without it.
const DICTIONARY_BYTES_MAX: usize = 16 << 20;

impl<W: Write + Send> TableWriter<W> {
    /// Starts a table; `about` goes into the file's metadata.
    pub(crate) fn new(
        output: W,
        name: &str,
        specs: &'static [Spec],
        about: &[(&str, String)],
    ) -> Result<Self, Source> {
        let schema = Arc::new(parse_message_type(&schema(name, specs))?);
        let about = about
            .iter()
            .map(|(key, value)| KeyValue::new((*key).to_owned(), value.clone()));
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
            .set_created_by(concat!("strata ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_dictionary_page_size_limit(DICTIONARY_BYTES_MAX)
            .set_data_page_row_count_limit(PAGE_ROWS)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_key_value_metadata(Some(about.collect()));
        for spec in specs {
            let path = ColumnPath::from(spec.name);
            let dictionary = spec.coding == Coding::Dictionary && spec.kind != Kind::Bool;
            properties = properties.set_column_dictionary_enabled(path.clone(), dictionary);
            let encoding = match (spec.coding, spec.kind) {
                (Coding::Delta, Kind::Time | Kind::Int32 | Kind::Int64) => {
                    Encoding::DELTA_BINARY_PACKED
                }
                (Coding::Delta | Coding::Dictionary | Coding::Codes, Kind::Text | Kind::Bytes) => {
                    Encoding::DELTA_BYTE_ARRAY
                }
                (_, Kind::Bool) => Encoding::PLAIN,
                (Coding::Dictionary | Coding::Codes, Kind::Time | Kind::Int32 | Kind::Int64) => {
                    Encoding::DELTA_BINARY_PACKED
                }
                _ => Encoding::PLAIN,
            };
            if spec.filtered {
                properties = properties
                    .set_column_bloom_filter_fpp(path.clone(), FILTER_FALSE_SHARE)
                    .set_column_bloom_filter_max_ndv(path.clone(), FILTER_VALUES);
            }
            properties = properties.set_column_encoding(path, encoding);
        }
        let properties = Arc::new(properties.build());
        let writer = SerializedFileWriter::new(output, schema, Arc::clone(&properties))?;
        Ok(Self {
            specs,
            properties,
            columns: writer.schema_descr().columns().to_vec(),
            writer,
            chunks: ChunkWriter::new(ZSTD_LEVEL)?,
            scratch: Vec::new(),
        })
    }

    /// Writes one row group; `fill` fills each column by its number.
    pub(crate) fn group(&mut self, mut fill: impl FnMut(usize, &mut Column)) -> Result<(), Source> {
        let mut group = self.writer.next_row_group()?;
        for (index, spec) in self.specs.iter().enumerate() {
            let key = scratch_of(spec);
            let place = self.scratch.iter().position(|(of, _)| *of == key);
            let place = place.unwrap_or_else(|| {
                let mut column = Column::of(spec.kind);
                if spec.coding == Coding::Codes {
                    column.values = Values::Coded(Coded::default());
                }
                self.scratch.push((key, column));
                self.scratch.len() - 1
            });
            let column = &mut self.scratch[place].1;
            column.clear();
            fill(index, column);
            if let Values::Coded(coded) = &mut column.values {
                let chunk = self.chunks.chunk(&self.columns[index], coded, PAGE_ROWS);
                let (bytes, close) = chunk?;
                group.append_column(&bytes, close)?;
                continue;
            }
            if column.has_no_values() {
                // Without any values, dictionary codes take only a few bytes.
                let mut none = Coded {
                    codes: vec![NULL; column.levels.len()],
                    ..Coded::default()
                };
                if matches!(column.values, Values::Float(_)) {
                    none.entries = Entries::Float(Vec::new());
                } else if matches!(column.values, Values::Bytes(_)) {
                    none.entries = Entries::Bytes(Vec::new());
                }
                let chunk = self
                    .chunks
                    .chunk(&self.columns[index], &mut none, PAGE_ROWS);
                let (bytes, close) = chunk?;
                group.append_column(&bytes, close)?;
                continue;
            }
            let levels = spec.optional.then_some(column.levels.as_slice());
            let mut bytes = Vec::with_capacity(64 << 10);
            let pages = Box::new(Pages(&mut bytes));
            let descriptor = Arc::clone(&self.columns[index]);
            let writer = get_column_writer(descriptor, Arc::clone(&self.properties), pages);
            let close = match (&column.values, writer) {
                (Values::Int32(values), Writer::Int32ColumnWriter(to)) => write(to, values, levels),
                (Values::Int64(values), Writer::Int64ColumnWriter(to)) => write(to, values, levels),
                (Values::Float(values), Writer::FloatColumnWriter(to)) => write(to, values, levels),
                (Values::Bool(values), Writer::BoolColumnWriter(to)) => write(to, values, levels),
                (Values::Bytes(values), Writer::ByteArrayColumnWriter(to)) => {
                    write(to, values, levels)
                }
                _ => Err(format!("column {} has another type", spec.name).into()),
            }?;
            group.append_column(&Bytes::from(bytes), close)?;
        }
        group.close()?;
        Ok(())
    }

    /// Ends the file.
    pub(crate) fn finish(self) -> Result<W, Source> {
        Ok(self.writer.into_inner()?)
    }
}

fn write<T: DataType>(
    mut writer: ColumnWriterImpl<'_, T>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<ColumnCloseResult, Source> {
    writer.write_batch(values, levels, None)?;
    Ok(writer.close()?)
}

fn schema(name: &str, specs: &[Spec]) -> String {
    let mut text = format!("message {name} {{");
    for spec in specs {
        let repetition = if spec.optional {
            "OPTIONAL"
        } else {
            "REQUIRED"
        };
        let kind = match spec.kind {
            Kind::Time => ("INT64", " (TIMESTAMP(NANOS,true))"),
            Kind::Int32 => ("INT32", ""),
            Kind::Int64 => ("INT64", ""),
            Kind::Float => ("FLOAT", ""),
            Kind::Bool => ("BOOLEAN", ""),
            Kind::Text => ("BYTE_ARRAY", " (STRING)"),
            Kind::Bytes => ("BYTE_ARRAY", ""),
        };
        text += &format!("{repetition} {} {}{};", kind.0, spec.name, kind.1);
    }
    text.push('}');
    text
}

/// Reads a table, some rows and columns at a time.
pub struct TableReader<R: TableInput> {
    specs: &'static [Spec],
    /// Each column's position in the file; `None` where an earlier version did not write it.
    pub(crate) places: Vec<Option<usize>>,
    pub(crate) input: R,
    pub(crate) reader: SerializedFileReader<R>,
    /// Its metadata, for Arrow.
    pub(crate) arrow: OnceLock<ArrowReaderMetadata>,
    pub(crate) named: String,
}

impl<R: TableInput> std::fmt::Debug for TableReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableReader")
            .field("named", &self.named)
            .finish_non_exhaustive()
    }
}

impl<R: TableInput> TableReader<R> {
    /// Opens the table `named`, checking that it has the expected columns.
    ///
    /// # Errors
    ///
    /// If the table cannot be read, or is not of this kind.
    pub fn open(input: R, named: String, specs: &'static [Spec]) -> Result<Self, ArchiveError> {
        let wrong = |source: Source| ArchiveError::table(&named, source);
        let options = ReadOptionsBuilder::new().with_page_index().build();
        let reader = SerializedFileReader::new_with_options(input.clone(), options);
        let reader = reader.map_err(|error| wrong(error.into()))?;
        let columns = reader.metadata().file_metadata().schema_descr().columns();
        let places = places(columns, specs).ok_or_else(|| {
            wrong("its columns are not those that this version of Strata writes".into())
        })?;
        let mut groups = reader.metadata().row_groups().iter();
        if groups.any(|group| usize::try_from(group.num_rows()).is_err()) {
            return Err(wrong("a row group has fewer rows than none".into()));
        }
        Ok(Self {
            specs,
            places,
            input,
            reader,
            arrow: OnceLock::new(),
            named,
        })
    }

    /// Rows of each row group.
    ///
    /// # Panics
    ///
    /// Never: their counts are checked when the table is opened.
    #[must_use]
    pub fn groups(&self) -> Vec<usize> {
        let groups = self.reader.metadata().row_groups().iter();
        groups
            .map(|group| usize::try_from(group.num_rows()).expect("checked when it was opened"))
            .collect()
    }

    /// The smallest value of an integer column in a row group; 0 if unknown or negative.
    #[must_use]
    pub fn min(&self, group: usize, column: usize) -> u64 {
        let Some(column) = self.places[column] else {
            return 0;
        };
        let group = self.reader.metadata().row_group(group);
        match group.column(column).statistics() {
            Some(Statistics::Int64(values)) => {
                let min = values.min_opt().copied();
                min.map_or(0, |min| min.max(0).cast_unsigned())
            }
            _ => 0,
        }
    }

    /// Whether a boolean column may be true in some row of a group, as far as is known.
    #[must_use]
    pub fn may_be_true(&self, group: usize, column: usize) -> bool {
        let Some(column) = self.places[column] else {
            return true;
        };
        let group = self.reader.metadata().row_group(group);
        match group.column(column).statistics() {
            Some(Statistics::Boolean(values)) => values.max_opt() != Some(&false),
            _ => true,
        }
    }

    /// Whether an integer column may have a value in a row group, as far as is known.
    #[must_use]
    pub fn may_be(&self, group: usize, column: usize, value: i64) -> bool {
        let Some(column) = self.places[column] else {
            return true;
        };
        let group = self.reader.metadata().row_group(group);
        let bounds = match group.column(column).statistics() {
            Some(Statistics::Int32(of)) => of
                .min_opt()
                .zip(of.max_opt())
                .map(|(min, max)| (i64::from(*min), i64::from(*max))),
            Some(Statistics::Int64(of)) => of.min_opt().zip(of.max_opt()).map(|(a, b)| (*a, *b)),
            _ => None,
        };
        bounds.is_none_or(|(min, max)| (min..=max).contains(&value))
    }

    /// Whether a text column may hold one of these in a group, according to its dictionary, which
    /// is all that is read.
    ///
    /// # Errors
    ///
    /// If the table cannot be read, or is not of this kind.
    pub fn may_hold(
        &self,
        group: usize,
        column: usize,
        texts: &[String],
    ) -> Result<bool, ArchiveError> {
        let Some(column) = self.places[column] else {
            return Ok(true);
        };
        let may_hold = || -> Result<bool, Source> {
            let group = self.reader.get_row_group(group)?;
            let mut encodings = group.metadata().column(column).encodings();
            // If the dictionary grew too large, other values are stored outside it.
            if encodings.any(|encoding| encoding == Encoding::DELTA_BYTE_ARRAY) {
                return Ok(true);
            }
            let mut pages = group.get_column_page_reader(column)?;
            let Some(Page::DictionaryPage { buf, .. }) = pages.get_next_page()? else {
                return Ok(true);
            };
            let mut rest = &buf[..];
            while let Some((len, after)) = rest.split_first_chunk() {
                let len = usize::try_from(u32::from_le_bytes(*len))?;
                let entry = after.get(..len).ok_or("a dictionary that ends too early")?;
                if texts.iter().any(|text| text.as_bytes() == entry) {
                    return Ok(true);
                }
                rest = &after[len..];
            }
            Ok(false)
        };
        may_hold().map_err(|source| ArchiveError::table(&self.named, source))
    }

    /// Prepares for asking the Bloom filter of a column in every group.
    pub fn will_ask_filters(&self, column: usize) {
        if let Some(column) = self.places[column] {
            ahead::filters(self.reader.metadata(), column, &self.input);
        }
    }

    /// Whether a text column may hold one of these in a group, according to its Bloom filter.
    ///
    /// # Errors
    ///
    /// If the table cannot be read, or is not of this kind.
    pub fn filter_may_hold(
        &self,
        group: usize,
        column: usize,
        texts: &[String],
    ) -> Result<bool, ArchiveError> {
        let Some(column) = self.places[column] else {
            return Ok(true);
        };
        let chunk = self.reader.metadata().row_group(group).column(column);
        let filter = Sbbf::read_from_column_chunk(chunk, &self.input);
        let filter = filter.map_err(|error| ArchiveError::table(&self.named, error.into()))?;
        Ok(filter.is_none_or(|filter| texts.iter().any(|text| filter.check(text.as_str()))))
    }

    /// A value from the file's metadata.
    #[must_use]
    pub fn about(&self, key: &str) -> Option<&str> {
        let all = self
            .reader
            .metadata()
            .file_metadata()
            .key_value_metadata()?;
        let found = all.iter().find(|pair| pair.key == key)?;
        found.value.as_deref()
    }

    /// Some columns of some rows of a row group; `rows` are in ascending order and do not overlap.
    ///
    /// # Errors
    ///
    /// If the table cannot be read, or is not of this kind.
    pub fn read(
        &self,
        group: usize,
        columns: &[usize],
        rows: &[Range<usize>],
    ) -> Result<Vec<Column>, ArchiveError> {
        let places = columns.iter().filter_map(|&column| self.places[column]);
        ahead::pages(self.reader.metadata(), group, places, rows, &self.input);
        let read = || -> Result<Vec<Column>, Source> {
            let group = self.reader.get_row_group(group)?;
            let mut out = Vec::with_capacity(columns.len());
            for &index in columns {
                let spec = &self.specs[index];
                let mut column = Column::of(spec.kind);
                let Some(place) = self.places[index] else {
                    let wanted = rows.iter().map(ExactSizeIterator::len).sum();
                    column.levels = vec![0; wanted];
                    out.push(column);
                    continue;
                };
                let reader = group.get_column_reader(place)?;
                match (reader, &mut column.values) {
                    (ColumnReader::Int32ColumnReader(reader), Values::Int32(values)) => {
                        read_rows(reader, rows, spec, values, &mut column.levels)?;
                    }
                    (ColumnReader::Int64ColumnReader(reader), Values::Int64(values)) => {
                        read_rows(reader, rows, spec, values, &mut column.levels)?;
                    }
                    (ColumnReader::FloatColumnReader(reader), Values::Float(values)) => {
                        read_rows(reader, rows, spec, values, &mut column.levels)?;
                    }
                    (ColumnReader::BoolColumnReader(reader), Values::Bool(values)) => {
                        read_rows(reader, rows, spec, values, &mut column.levels)?;
                    }
                    (ColumnReader::ByteArrayColumnReader(reader), Values::Bytes(values)) => {
                        read_rows(reader, rows, spec, values, &mut column.levels)?;
                    }
                    _ => return Err(format!("column {} has another type", spec.name).into()),
                }
                out.push(column);
            }
            Ok(out)
        };
        read().map_err(|source| ArchiveError::table(&self.named, source))
    }
}

/// The position of each column among those of a file. Columns that may be null may be missing,
/// since they were added later; unknown ones are not allowed.
fn places(columns: &[ColumnDescPtr], specs: &[Spec]) -> Option<Vec<Option<usize>>> {
    let mut left = columns.iter().enumerate().peekable();
    let place = |spec: &Spec| {
        let is_it = |(_, column): &(usize, &ColumnDescPtr)| {
            column.name() == spec.name && (column.max_def_level() == 1) == spec.optional
        };
        match left.next_if(is_it) {
            Some((place, _)) => Some(Some(place)),
            None => spec.optional.then_some(None),
        }
    };
    let places: Option<Vec<Option<usize>>> = specs.iter().map(place).collect();
    places.filter(|_| left.peek().is_none())
}

fn read_rows<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    rows: &[Range<usize>],
    spec: &Spec,
    values: &mut Vec<T::T>,
    levels: &mut Vec<i16>,
) -> Result<(), Source> {
    let mut at = 0;
    for range in rows {
        let skipped = reader.skip_records(range.start - at)?;
        let wanted = range.len();
        let mut got = 0;
        while got < wanted {
            let optional = spec.optional.then_some(&mut *levels);
            let (records, _, _) = reader.read_records(wanted - got, optional, None, values)?;
            if records == 0 {
                break;
            }
            got += records;
        }
        if skipped != range.start - at || got != wanted {
            return Err(format!("column {} has too few rows", spec.name).into());
        }
        at = range.end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const A: Spec = Spec::new("a", Kind::Int64, Coding::Plain, "");
    const B: Spec = Spec::new("b", Kind::Int32, Coding::Plain, "").or_null();
    const C: Spec = Spec::new("c", Kind::Int64, Coding::Plain, "");

    #[test]
    fn a_column_that_may_be_null_may_be_missing() {
        let mut writer = TableWriter::new(Vec::new(), "table", &[A, C], &[]).unwrap();
        let fill = |index, column: &mut Column| match &mut column.values {
            Values::Int64(values) => values.extend([1, 2, 3].map(|n| n + 10 * index as i64)),
            other => panic!("{other:?}"),
        };
        writer.group(fill).unwrap();
        let file = Bytes::from(writer.finish().unwrap());
        let open = |specs| TableReader::open(file.clone(), String::from("table"), specs);
        let table = open(&[A, B, C]).unwrap();
        let columns = table.read(0, &[0, 1, 2], &[0..1, 2..3]).unwrap();
        let ints = columns.iter().map(|column| column.ints().collect());
        let ints: Vec<Vec<Option<i64>>> = ints.collect();
        assert_eq!(
            ints,
            [
                vec![Some(1), Some(3)],
                vec![None, None],
                vec![Some(11), Some(13)]
            ]
        );
        assert_eq!(table.min(0, 2), 11);
        for other in [&[A][..], &[A, B], &[C, A], &[A, C, A]] {
            assert!(open(other).is_err());
        }
    }

    const T: Spec = Spec::new("t", Kind::Text, Coding::Dictionary, "").or_null();
    const D: Spec = Spec::new("d", Kind::Time, Coding::Delta, "");
    const F: Spec = Spec::new("f", Kind::Float, Coding::Plain, "").or_null();

    /// What Arrow reads is what column readers read, over many pages.
    #[test]
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "small"
    )]
    fn a_batch_has_what_columns_have() {
        const ROWS: i64 = 20_000;
        let mut writer = TableWriter::new(Vec::new(), "table", &[D, T, B, F], &[]).unwrap();
        let fill = |index: usize, column: &mut Column| {
            for row in 0..ROWS {
                let is_there = index == 0 || (row + index as i64) % 3 > 0;
                if index > 0 {
                    column.levels.push(i16::from(is_there));
                }
                match &mut column.values {
                    _ if !is_there => {}
                    Values::Int64(values) => values.push(row * 1_000),
                    Values::Int32(values) => values.push(row as i32 % 7),
                    Values::Float(values) => values.push(row as f32 / 2.0),
                    Values::Bytes(values) => {
                        values.push(ByteArray::from(format!("text {}", row % 11).as_str()));
                    }
                    other => panic!("{other:?}"),
                }
            }
        };
        writer.group(fill).unwrap();
        let file = Bytes::from(writer.finish().unwrap());
        let specs = const { &[D, A.or_null(), T, B, F] };
        let table = TableReader::open(file, String::from("table"), specs).unwrap();
        let all = [0, 1, 2, 3, 4];
        #[allow(clippy::single_range_in_vec_init, reason = "ranges of rows")]
        let some: [Vec<Range<usize>>; 4] = [
            vec![0..20_000],
            vec![0..1, 5..9_000, 19_999..20_000],
            vec![8_191..8_193],
            vec![],
        ];
        for rows in some {
            let columns = table.read(0, &all, &rows).unwrap();
            let batch = table.batch(0, &all, &rows).unwrap();
            let count = rows.iter().map(ExactSizeIterator::len).sum();
            assert_eq!(batch.rows(), count);
            for at in [0, 1, 3] {
                let ints = (0..count).map(|row| batch.ints(at).get(row));
                assert!(ints.eq(columns[at].ints()), "{rows:?}");
            }
            let texts = batch.texts(2).unwrap();
            let texts = (0..count).map(|row| texts.get(row).map(str::as_bytes));
            assert!(texts.eq(columns[2].bytes().map(|text| text.map(ByteArray::data))));
            assert!(
                (0..count)
                    .map(|row| batch.floats(4).get(row))
                    .eq(columns[4].floats())
            );
        }
        let may_be = |value| table.may_be(0, 3, value);
        assert_eq!([-1, 0, 6, 7].map(may_be), [false, true, true, false]);
    }
}
