//! Integers from tables, converted to their types.

use std::fmt;

use strata_archive::Spec;
use strata_archive::parts::IntCells;

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
        write!(f, "column {column} has the impossible value {value}")
    }
}

impl std::error::Error for WrongValue {}

/// A column of integers.
pub(crate) struct IntColumn<'a> {
    column: &'static str,
    cells: IntCells<'a>,
}

impl<'a> IntColumn<'a> {
    pub(crate) fn of(spec: &Spec, cells: IntCells<'a>) -> Self {
        Self {
            column: spec.name,
            cells,
        }
    }

    /// A row's value; `None` if it has none.
    #[inline]
    pub(crate) fn get<T: TryFrom<i64>>(&self, row: usize) -> Result<Option<T>, WrongValue> {
        let Some(value) = self.cells.get(row) else {
            return Ok(None);
        };
        let column = self.column;
        let fits = T::try_from(value);
        fits.map(Some).map_err(|_| WrongValue { column, value })
    }

    /// A row's value, in a column without nulls.
    #[inline]
    pub(crate) fn there<T: TryFrom<i64>>(&self, row: usize) -> Result<T, WrongValue> {
        let value = self.get(row)?;
        Ok(value.expect("a column without nulls has a value for every row"))
    }

    /// A row's time, ns.
    #[inline]
    pub(crate) fn time(&self, row: usize) -> Result<u64, WrongValue> {
        self.there(row).map(i64::cast_unsigned)
    }
}
