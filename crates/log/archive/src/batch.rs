//! Columns as Arrow reads them: texts stay numbers of dictionary entries, so whoever looks at millions
//! of rows compares numbers. Elsewhere, [`Column`](crate::table::Column) is simpler.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int32Type, Int64Type, TimestampNanosecondType};
use arrow_array::{Array, ArrayRef, DictionaryArray, StringArray};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Schema};
use arrow_select::concat::concat_batches;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection,
};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::FileReader;

use crate::ahead::{self, TableInput};
use crate::error::{ArchiveError, Source};
use crate::table::TableReader;

/// Some columns of some rows of a row group, in the order in which they were asked for.
#[derive(Debug)]
pub struct Batch {
    /// `None` for a column that an earlier version did not write.
    columns: Vec<Option<ArrayRef>>,
    rows: usize,
}

impl Batch {
    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// A column of integers or times.
    ///
    /// # Panics
    ///
    /// If the column is of another kind: the caller knows which it is.
    #[must_use]
    pub fn ints(&self, column: usize) -> IntCells<'_> {
        let Some(array) = &self.columns[column] else {
            return IntCells {
                values: IntValues::Missing,
                nulls: None,
            };
        };
        let values = match array.data_type() {
            DataType::Int32 => IntValues::Short(array.as_primitive::<Int32Type>().values()),
            DataType::Int64 => IntValues::Long(array.as_primitive::<Int64Type>().values()),
            _ => IntValues::Long(array.as_primitive::<TimestampNanosecondType>().values()),
        };
        let nulls = array.nulls();
        IntCells { values, nulls }
    }

    /// A column of floats.
    ///
    /// # Panics
    ///
    /// As [`Batch::ints`].
    #[must_use]
    pub fn floats(&self, column: usize) -> FloatCells<'_> {
        let array = self.columns[column].as_ref();
        let array = array.map(|array| array.as_primitive::<Float32Type>());
        FloatCells {
            values: array.map(|array| &array.values()[..]),
            nulls: array.and_then(Array::nulls),
        }
    }

    /// The boolean of a row, if it has one.
    ///
    /// # Panics
    ///
    /// As [`Batch::ints`].
    #[must_use]
    pub fn bool(&self, column: usize, row: usize) -> Option<bool> {
        let array = self.columns[column].as_ref()?.as_boolean();
        array.is_valid(row).then(|| array.value(row))
    }

    /// A column of texts; `None` if an earlier version did not write it.
    ///
    /// # Panics
    ///
    /// As [`Batch::ints`].
    #[must_use]
    pub fn texts(&self, column: usize) -> Option<TextCells<'_>> {
        let array = self.columns[column].as_ref()?.as_dictionary::<Int32Type>();
        let entries = array.values().as_string();
        Some(TextCells { array, entries })
    }
}

/// Integers by row.
#[derive(Clone, Copy, Debug)]
pub struct IntCells<'a> {
    values: IntValues<'a>,
    nulls: Option<&'a NullBuffer>,
}

#[derive(Clone, Copy, Debug)]
enum IntValues<'a> {
    Short(&'a [i32]),
    Long(&'a [i64]),
    Missing,
}

impl IntCells<'_> {
    /// A row's integer, if it has one.
    #[inline]
    #[must_use]
    pub fn get(&self, row: usize) -> Option<i64> {
        if self.nulls.is_some_and(|nulls| nulls.is_null(row)) {
            return None;
        }
        match self.values {
            IntValues::Short(values) => Some(values[row].into()),
            IntValues::Long(values) => Some(values[row]),
            IntValues::Missing => None,
        }
    }
}

/// Floats by row.
#[derive(Clone, Copy, Debug)]
pub struct FloatCells<'a> {
    /// `None` for a column that an earlier version did not write.
    values: Option<&'a [f32]>,
    nulls: Option<&'a NullBuffer>,
}

impl FloatCells<'_> {
    /// A row's float, if it has one.
    #[inline]
    #[must_use]
    pub fn get(&self, row: usize) -> Option<f32> {
        if self.nulls.is_some_and(|nulls| nulls.is_null(row)) {
            return None;
        }
        self.values.map(|values| values[row])
    }
}

/// Texts by row, as numbers of entries.
#[derive(Clone, Copy, Debug)]
pub struct TextCells<'a> {
    array: &'a DictionaryArray<Int32Type>,
    entries: &'a StringArray,
}

impl<'a> TextCells<'a> {
    /// The number of a row's text, if it has one.
    #[inline]
    #[must_use]
    pub fn code(&self, row: usize) -> Option<usize> {
        self.array.key(row)
    }

    /// How many entries there are: more than the numbers of these rows, perhaps.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// The text with a number.
    #[must_use]
    pub fn entry(&self, code: usize) -> &'a str {
        self.entries.value(code)
    }

    /// A row's text, if it has one.
    #[must_use]
    pub fn get(&self, row: usize) -> Option<&'a str> {
        self.code(row).map(|code| self.entry(code))
    }
}

impl<R: TableInput> TableReader<R> {
    /// As [`TableReader::read`], with texts as numbers.
    ///
    /// # Errors
    ///
    /// If the table cannot be read, or is not of this kind.
    pub fn batch(
        &self,
        group: usize,
        columns: &[usize],
        rows: &[Range<usize>],
    ) -> Result<Batch, ArchiveError> {
        let places: Vec<Option<usize>> = columns.iter().map(|&of| self.places[of]).collect();
        let metadata = self.reader.metadata();
        ahead::pages(
            metadata,
            group,
            places.iter().flatten().copied(),
            rows,
            &self.input,
        );
        let batch = || -> Result<Batch, Source> {
            let how = match self.arrow.get() {
                Some(how) => how.clone(),
                None => {
                    let how = how_to_read(&Arc::new(metadata.clone()))?;
                    self.arrow.get_or_init(|| how).clone()
                }
            };
            read_columns(self.input.clone(), how, group, &places, rows)
        };
        batch().map_err(|source| ArchiveError::table(&self.named, source))
    }
}

/// How Arrow is to read a table.
fn how_to_read(metadata: &Arc<ParquetMetaData>) -> Result<ArrowReaderMetadata, Source> {
    let options = || ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let plain = ArrowReaderMetadata::try_new(Arc::clone(metadata), options())?;
    let fields = plain.schema().fields().iter().map(|field| {
        let kind = match field.data_type() {
            DataType::Utf8 => {
                DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
            }
            other => other.clone(),
        };
        Field::new(field.name(), kind, field.is_nullable())
    });
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let coded = options().with_schema(schema);
    Ok(ArrowReaderMetadata::try_new(Arc::clone(metadata), coded)?)
}

/// Reads columns, by their places in the file, of some rows of a row group.
fn read_columns<R: TableInput>(
    input: R,
    how: ArrowReaderMetadata,
    group: usize,
    places: &[Option<usize>],
    rows: &[Range<usize>],
) -> Result<Batch, Source> {
    let of_group = usize::try_from(how.metadata().row_group(group).num_rows())?;
    let wanted: usize = rows.iter().map(ExactSizeIterator::len).sum();
    let mut read: Vec<usize> = places.iter().flatten().copied().collect();
    read.sort_unstable();
    let mask = ProjectionMask::roots(how.parquet_schema(), read.iter().copied());
    let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(input, how);
    let mut builder = builder
        .with_row_groups(vec![group])
        .with_projection(mask)
        .with_batch_size(wanted.max(1));
    if wanted < of_group {
        let ranges = rows.iter().cloned();
        builder =
            builder.with_row_selection(RowSelection::from_consecutive_ranges(ranges, of_group));
    }
    let reader = builder.build()?;
    let schema = arrow_array::RecordBatchReader::schema(&reader);
    let mut batches: Vec<_> = reader.collect::<Result<_, _>>()?;
    let batch = match batches.len() {
        1 => batches.remove(0),
        _ => concat_batches(&schema, &batches)?,
    };
    if batch.num_rows() != wanted {
        return Err("columns have too few rows".into());
    }
    let columns = places.iter().map(|place| {
        let at = place.and_then(|place| read.binary_search(&place).ok());
        at.map(|at| Arc::clone(batch.column(at)))
    });
    Ok(Batch {
        columns: columns.collect(),
        rows: wanted,
    })
}
