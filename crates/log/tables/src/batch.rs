//! Columns as searches and exports look at them: values by row, and texts as numbers of dictionary entries, so
//! that millions of rows are compared as numbers. Elsewhere, [`Column`] is simpler.

use std::ops::Range;

use crate::ahead::TableInput;
use crate::column::{Column, Values};
use crate::error::{Source, TableError};
use crate::reader::TableReader;
use crate::spec::Kind;
use crate::texts::{self, Texts};

/// Some columns of some rows of a row group, in the order in which they were asked for.
#[derive(Debug)]
pub struct Batch {
    columns: Vec<BatchColumn>,
    rows: usize,
}

#[derive(Debug)]
enum BatchColumn {
    /// No row has a value, or an earlier version did not write it.
    Missing,
    /// Each value is at its row; where there is none, any.
    Values(Column),
    Texts(Texts),
}

impl Batch {
    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// A column of integers, times or booleans, of which true is 1.
    ///
    /// # Panics
    ///
    /// If the column is of another kind: the caller knows which it is.
    #[must_use]
    pub fn ints(&self, column: usize) -> IntCells<'_> {
        let (values, levels) = match &self.columns[column] {
            BatchColumn::Missing => (IntValues::Missing, &[][..]),
            BatchColumn::Values(Column {
                values: Values::Int32(values),
                levels,
            }) => (IntValues::Short(values), &levels[..]),
            BatchColumn::Values(Column {
                values: Values::Int64(values),
                levels,
            }) => (IntValues::Long(values), &levels[..]),
            BatchColumn::Values(Column {
                values: Values::Bool(values),
                levels,
            }) => (IntValues::Bool(values), &levels[..]),
            other => panic!("not a column of integers: {other:?}"),
        };
        IntCells { values, levels }
    }

    /// A column of floats.
    ///
    /// # Panics
    ///
    /// As [`Batch::ints`].
    #[must_use]
    pub fn floats(&self, column: usize) -> FloatCells<'_> {
        let (values, levels) = match &self.columns[column] {
            BatchColumn::Missing => (None, &[][..]),
            BatchColumn::Values(Column {
                values: Values::Float(values),
                levels,
            }) => (Some(&values[..]), &levels[..]),
            other => panic!("not a column of floats: {other:?}"),
        };
        FloatCells { values, levels }
    }

    /// The boolean of a row, if it has one.
    ///
    /// # Panics
    ///
    /// As [`Batch::ints`].
    #[must_use]
    pub fn bool(&self, column: usize, row: usize) -> Option<bool> {
        match &self.columns[column] {
            BatchColumn::Missing => None,
            BatchColumn::Values(Column {
                values: Values::Bool(values),
                levels,
            }) => is_there(levels, row).then(|| values[row]),
            other => panic!("not a column of booleans: {other:?}"),
        }
    }

    /// A column of texts or bytes; `None` if an earlier version did not write it.
    ///
    /// # Panics
    ///
    /// As [`Batch::ints`].
    #[must_use]
    pub fn texts(&self, column: usize) -> Option<TextCells<'_>> {
        match &self.columns[column] {
            BatchColumn::Missing => None,
            BatchColumn::Texts(texts) => Some(TextCells(texts)),
            other @ BatchColumn::Values(_) => panic!("not a column of texts: {other:?}"),
        }
    }
}

/// Whether a row has a value.
#[inline]
fn is_there(levels: &[i16], row: usize) -> bool {
    levels.get(row).is_none_or(|level| *level == 1)
}

/// Integers by row.
#[derive(Clone, Copy, Debug)]
pub struct IntCells<'a> {
    values: IntValues<'a>,
    levels: &'a [i16],
}

#[derive(Clone, Copy, Debug)]
enum IntValues<'a> {
    Short(&'a [i32]),
    Long(&'a [i64]),
    Bool(&'a [bool]),
    Missing,
}

impl IntCells<'_> {
    /// Whether no row has a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self.values, IntValues::Missing)
    }

    /// A row's integer, if it has one.
    #[inline]
    #[must_use]
    pub fn get(&self, row: usize) -> Option<i64> {
        if !is_there(self.levels, row) {
            return None;
        }
        match self.values {
            IntValues::Short(values) => Some(values[row].into()),
            IntValues::Long(values) => Some(values[row]),
            IntValues::Bool(values) => Some(values[row].into()),
            IntValues::Missing => None,
        }
    }
}

/// Floats by row.
#[derive(Clone, Copy, Debug)]
pub struct FloatCells<'a> {
    /// `None` for a column that an earlier version did not write.
    values: Option<&'a [f32]>,
    levels: &'a [i16],
}

impl FloatCells<'_> {
    /// A row's float, if it has one.
    #[inline]
    #[must_use]
    pub fn get(&self, row: usize) -> Option<f32> {
        if !is_there(self.levels, row) {
            return None;
        }
        self.values.map(|values| values[row])
    }
}

/// Texts by row, as numbers of entries.
#[derive(Clone, Copy, Debug)]
pub struct TextCells<'a>(&'a Texts);

impl<'a> TextCells<'a> {
    /// The number of a row's text, if it has one.
    #[inline]
    #[must_use]
    pub fn code(&self, row: usize) -> Option<usize> {
        self.0.code(row)
    }

    /// How many entries there are: more than the numbers of these rows, perhaps.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.0.entries()
    }

    /// The text with a number.
    ///
    /// # Panics
    ///
    /// If it is a column of bytes that are no text: the caller knows which it is.
    #[must_use]
    pub fn entry(&self, code: usize) -> &'a str {
        self.0.entry(code)
    }

    /// A row's text as bytes, or bytes, if it has any.
    #[inline]
    #[must_use]
    pub fn bytes(&self, row: usize) -> Option<&'a [u8]> {
        self.code(row).map(|code| self.0.bytes(code))
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
    ) -> Result<Batch, TableError> {
        self.will_read(group, columns, rows);
        let one = |&index: &usize| -> Result<BatchColumn, Source> {
            let spec = &self.specs[index];
            let Some(place) = self.places[index] else {
                return Ok(BatchColumn::Missing);
            };
            if matches!(spec.kind, Kind::Text | Kind::Bytes) {
                let coded = texts::coded(&self.reader, (group, place), spec, rows)?;
                if let Some(texts) = coded {
                    return Ok(BatchColumn::Texts(texts));
                }
                let column = self.column(group, index, rows)?;
                return Ok(BatchColumn::Texts(Texts::numbered(spec, &column)?));
            }
            let mut column = self.column(group, index, rows)?;
            if column.has_no_values() {
                return Ok(BatchColumn::Missing);
            }
            column.spread();
            Ok(BatchColumn::Values(column))
        };
        let columns: Result<_, Source> = columns.iter().map(one).collect();
        Ok(Batch {
            columns: columns.map_err(|source| TableError::of(&self.named, source))?,
            rows: rows.iter().map(ExactSizeIterator::len).sum(),
        })
    }
}
