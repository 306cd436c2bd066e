//! Tables as they are read, some rows and columns at a time.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::ops::Range;

use parquet::basic::Encoding;
use parquet::bloom_filter::Sbbf;
use parquet::column::page::Page;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::{ReadOptionsBuilder, SerializedFileReader};
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnDescPtr;
use strata_columnar::{checked, has_places};

use crate::ahead::{self, TableInput};
use crate::column::{Column, Values};
use crate::error::{Source, TableError};
use crate::spec::{Kind, NS_PER_MICRO, Spec, below_micros};

/// Reads a table, some rows and columns at a time.
pub struct TableReader<R: TableInput> {
    pub(crate) specs: &'static [Spec],
    /// Each column's position in the file, of a time the first of two; `None` where an earlier version did not write
    /// it.
    pub(crate) places: Vec<Option<usize>>,
    pub(crate) input: R,
    pub(crate) reader: SerializedFileReader<R>,
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
    pub fn open(input: R, named: String, specs: &'static [Spec]) -> Result<Self, TableError> {
        let wrong = |source: Source| TableError::of(&named, source);
        let options = ReadOptionsBuilder::new().with_page_index().build();
        let reader = SerializedFileReader::new_with_options(input.clone(), options);
        let reader = reader.map_err(|error| wrong(error.into()))?;
        let columns = reader.metadata().file_metadata().schema_descr().columns();
        let places = places(columns, specs).ok_or_else(|| {
            wrong("its columns are not those that this version of Strata writes".into())
        })?;
        let mut groups = reader.metadata().row_groups().iter();
        if groups.any(|group| usize::try_from(group.num_rows()).is_err()) {
            return Err(wrong("a row group has a negative number of rows".into()));
        }
        if !has_places(reader.metadata()) {
            return Err(wrong("a column has an impossible position".into()));
        }
        Ok(Self {
            specs,
            places,
            input,
            reader,
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

    /// The smallest value of an integer column in a row group; `None` if unknown or negative.
    #[must_use]
    pub fn min(&self, group: usize, column: usize) -> Option<u64> {
        let place = self.places[column]?;
        let group = self.reader.metadata().row_group(group);
        let min = match group.column(place).statistics() {
            Some(Statistics::Int64(values)) => u64::try_from(*values.min_opt()?).ok(),
            _ => None,
        };
        match self.specs[column].kind {
            Kind::Time => min?.checked_mul(NS_PER_MICRO),
            _ => min,
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
        let value = match self.specs[column].kind {
            Kind::Time => (value.cast_unsigned() / NS_PER_MICRO).cast_signed(),
            _ => value,
        };
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
    ) -> Result<bool, TableError> {
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
        may_hold().map_err(|source| TableError::of(&self.named, source))
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
    ) -> Result<bool, TableError> {
        let Some(column) = self.places[column] else {
            return Ok(true);
        };
        let chunk = self.reader.metadata().row_group(group).column(column);
        let filter = Sbbf::read_from_column_chunk(chunk, &self.input);
        let filter = filter.map_err(|error| TableError::of(&self.named, error.into()))?;
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
    ) -> Result<Vec<Column>, TableError> {
        self.will_read(group, columns, rows);
        let read = columns.iter().map(|&index| self.column(group, index, rows));
        let read: Result<_, Source> = read.collect();
        read.map_err(|source| TableError::of(&self.named, source))
    }

    /// Announces what is about to be read.
    pub(crate) fn will_read(&self, group: usize, columns: &[usize], rows: &[Range<usize>]) {
        let places = columns.iter().filter_map(|&column| {
            let first = self.places[column]?;
            Some(first..first.saturating_add(self.specs[column].file_columns()))
        });
        ahead::pages(
            self.reader.metadata(),
            group,
            places.flatten(),
            rows,
            &self.input,
        );
    }

    /// One of [`TableReader::read`].
    pub(crate) fn column(
        &self,
        group: usize,
        index: usize,
        rows: &[Range<usize>],
    ) -> Result<Column, Source> {
        let spec = &self.specs[index];
        let mut column = Column::of(spec.kind);
        let Some(place) = self.places[index] else {
            let wanted = rows.iter().map(ExactSizeIterator::len).sum();
            column.levels = vec![0; wanted];
            return Ok(column);
        };
        self.of_file((group, place), spec, rows, &mut column)?;
        if spec.kind == Kind::Time {
            let mut below = Column::of(Kind::Int32);
            let place = place.saturating_add(1);
            self.of_file((group, place), spec, rows, &mut below)?;
            join(&mut column, &below)
                .ok_or_else(|| format!("column {}: invalid times", spec.name))?;
        }
        Ok(column)
    }

    /// A column of the file.
    fn of_file(
        &self,
        (group, place): (usize, usize),
        spec: &Spec,
        rows: &[Range<usize>],
        column: &mut Column,
    ) -> Result<(), Source> {
        let group = self.reader.get_row_group(group)?;
        let of_file = self.reader.metadata().file_metadata().schema_descr();
        let of_file = of_file.column(place);
        let pages = checked(group.get_column_page_reader(place)?, &of_file);
        let reader = get_column_reader(of_file, pages);
        let levels = &mut column.levels;
        match (reader, &mut column.values) {
            (ColumnReader::Int32ColumnReader(reader), Values::Int32(values)) => {
                read_rows(reader, rows, spec, values, levels)?;
            }
            (ColumnReader::Int64ColumnReader(reader), Values::Int64(values)) => {
                read_rows(reader, rows, spec, values, levels)?;
            }
            (ColumnReader::FloatColumnReader(reader), Values::Float(values)) => {
                read_rows(reader, rows, spec, values, levels)?;
            }
            (ColumnReader::BoolColumnReader(reader), Values::Bool(values)) => {
                read_rows(reader, rows, spec, values, levels)?;
            }
            (ColumnReader::ByteArrayColumnReader(reader), Values::Bytes(values)) => {
                read_rows(reader, rows, spec, values, levels)?;
            }
            _ => return Err(format!("column {} has another type", spec.name).into()),
        }
        Ok(())
    }
}

/// Makes times of microseconds and the nanoseconds below; `None` if that gives none.
fn join(column: &mut Column, below: &Column) -> Option<()> {
    let (Values::Int64(times), Values::Int32(rest)) = (&mut column.values, &below.values) else {
        return None;
    };
    if times.len() != rest.len() || column.levels != below.levels {
        return None;
    }
    for (time, &rest) in times.iter_mut().zip(rest) {
        let rest = u64::try_from(rest)
            .ok()
            .filter(|rest| *rest < NS_PER_MICRO)?;
        let micros = u64::try_from(*time).ok()?.checked_mul(NS_PER_MICRO)?;
        *time = micros.checked_add(rest)?.cast_signed();
    }
    Some(())
}

/// The position of each column among those of a file. Columns that may be null may be missing,
/// since they were added later; unknown ones are not allowed.
fn places(columns: &[ColumnDescPtr], specs: &[Spec]) -> Option<Vec<Option<usize>>> {
    let mut left = columns.iter().enumerate().peekable();
    let place = |spec: &Spec| {
        let is_it = |(_, column): &(usize, &ColumnDescPtr)| {
            column.name() == spec.name && (column.max_def_level() == 1) == spec.optional
        };
        let Some((place, _)) = left.next_if(is_it) else {
            return spec.optional.then_some(None);
        };
        if spec.kind == Kind::Time {
            left.next_if(|(_, column)| column.name() == below_micros(spec.name))?;
        }
        Some(Some(place))
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
        let skip = range.start.checked_sub(at);
        let skip = skip.ok_or("the requested rows are not in order")?;
        let skipped = reader.skip_records(skip)?;
        let wanted = range.len();
        let mut got = 0_usize;
        while got < wanted {
            let optional = spec.optional.then_some(&mut *levels);
            let (records, _, _) =
                reader.read_records(wanted.saturating_sub(got), optional, None, values)?;
            if records == 0 {
                break;
            }
            got = got.saturating_add(records);
        }
        if skipped != skip || got != wanted {
            return Err(format!("column {} has too few rows", spec.name).into());
        }
        at = range.end;
    }
    Ok(())
}
