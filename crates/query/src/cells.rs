//! Integers from tables, converted to their types.

use std::fmt;

use strata_archive::Spec;
use strata_archive::parts::Column;

/// Stands for a missing port or protocol, as in [`strata_filter::FlowFacts`] and IPFIX.
pub(crate) const NO_PORT: u16 = 0;
pub(crate) const NO_PROTOCOL: u8 = 0;

/// A value that its column cannot have.
#[derive(Debug)]
pub(crate) struct WrongValue {
    pub(crate) column: &'static str,
    pub(crate) value: i64,
}

impl fmt::Display for WrongValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { column, value } = self;
        write!(f, "column {column} has the value {value}, which cannot be")
    }
}

impl std::error::Error for WrongValue {}

/// The integers of a column, row by row.
pub(crate) struct Ints<'a> {
    column: &'static str,
    values: Box<dyn Iterator<Item = Option<i64>> + 'a>,
}

impl<'a> Ints<'a> {
    pub(crate) fn of(spec: &Spec, column: &'a Column) -> Self {
        Self {
            column: spec.name,
            values: column.ints(),
        }
    }

    /// The next row's value; `None` if it has none.
    pub(crate) fn next<T: TryFrom<i64>>(&mut self) -> Result<Option<T>, WrongValue> {
        let Some(value) = self.values.next().flatten() else {
            return Ok(None);
        };
        let column = self.column;
        T::try_from(value)
            .map(Some)
            .map_err(|_| WrongValue { column, value })
    }

    /// The next row's value, in a column without nulls.
    pub(crate) fn next_there<T: TryFrom<i64>>(&mut self) -> Result<T, WrongValue> {
        let value = self.next()?;
        Ok(value.expect("a column without nulls has a value for every row"))
    }

    /// The next row's time, ns.
    pub(crate) fn next_time(&mut self) -> Result<u64, WrongValue> {
        self.next_there().map(i64::cast_unsigned)
    }
}
