//! Rows of bits in memory, found without a check each time.
#![allow(unsafe_code)]

use std::cell::Cell;

use super::{BitRow, WIDE};

/// Rows of a table.
const ROWS: usize = 4_096;

/// Many rows of bits, for kernels whose operations are so short that checks of indexes would be a
/// twentieth of them: a place is checked when it is made, since all tables are of the same size.
/// 128 KiB.
#[derive(Clone, Debug)]
pub struct RowTable(Box<[BitRow; ROWS]>);

/// Where a row of a [`RowTable`] is, in bytes: less than 4,096 rows.
#[derive(Clone, Copy, Debug)]
pub struct RowPlace(u32);

impl RowTable {
    /// The most rows of a table.
    pub const ROWS: usize = ROWS;

    /// Rows without a bit.
    #[must_use]
    pub fn new() -> Self {
        Self(Box::new([BitRow([0; WIDE / 64]); ROWS]))
    }

    /// Rows from a number on.
    ///
    /// # Panics
    ///
    /// If the number is above [`RowTable::ROWS`].
    #[inline(always)]
    pub fn from_mut(&mut self, first: usize) -> &mut [BitRow] {
        &mut self.0[first..]
    }

    /// Rows that are written while others are read.
    #[inline(always)]
    pub fn cells(&mut self) -> RowCells<'_> {
        RowCells(Cell::from_mut(&mut self.0[..]).as_slice_of_cells())
    }
}

/// The rows of a [`RowTable`], each by itself.
#[derive(Clone, Copy, Debug)]
pub struct RowCells<'a>(&'a [Cell<BitRow>]);

impl<'a> RowCells<'a> {
    /// Rows from a number on.
    ///
    /// # Panics
    ///
    /// If the number is above [`RowTable::ROWS`].
    #[inline(always)]
    #[must_use]
    pub fn from(self, first: usize) -> &'a [Cell<BitRow>] {
        &self.0[first..]
    }

    /// A row.
    #[inline(always)]
    #[must_use]
    pub fn at(self, place: RowPlace) -> &'a Cell<BitRow> {
        // SAFETY: places are of rows that every table has.
        unsafe { &*self.0.as_ptr().byte_add(place.0 as usize) }
    }
}

impl Default for RowTable {
    fn default() -> Self {
        Self::new()
    }
}

impl RowPlace {
    /// Of the row of that number.
    ///
    /// # Panics
    ///
    /// If no table has it.
    #[must_use]
    pub fn new(row: usize) -> Self {
        assert!(row < ROWS, "row {row}");
        let bytes = u32::try_from(row * size_of::<BitRow>());
        Self(bytes.expect("less than 128 KiB"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last place and the row after it are within the table (Miri and ASan would say so).
    #[test]
    fn places_are_of_the_rows_of_their_numbers() {
        let mut table = RowTable::new();
        for row in [0, 1, 77, ROWS - 1] {
            let bits = BitRow([row as u64 + 1; 4]);
            let cells = table.cells();
            cells.at(RowPlace::new(row)).set(bits);
            assert_eq!(cells.from(row)[0].get(), bits);
            assert_eq!(table.from_mut(row)[0].0, [row as u64 + 1; 4]);
        }
    }

    #[test]
    #[should_panic(expected = "row 4096")]
    fn no_place_is_beyond_a_table() {
        let _ = RowPlace::new(ROWS);
    }
}
