//! The two-level page table of a stream (paper §3.3): a directory of table pages, each of which says
//! where data pages are. Page N of a stream has the Nth entry, and the table is a ring: an entry
//! also says in which round it was written, so an old one is not taken for a new one.
//!
//! ```text
//! directory   entry u64: 1 + number of the table page; 0: none
//! table page  entry u64: bits 0-31 1 + number of the data page, 0: none; bits 32-63 round
//! ```

use strata_wire::exact;

/// The sizes of directory, table pages and data pages, as in "4KiB-4KiB-4MiB".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes of the directory.
    pub directory_bytes: u32,
    /// Bytes of a table page.
    pub table_bytes: u32,
    /// Bytes of a data page.
    pub page_bytes: u32,
}

/// Why sizes cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{what} of {bytes} bytes: it must be a power of two from {min} to {max} bytes, as in \
     4KiB-4KiB-4MiB"
)]
pub struct GeometryError {
    what: &'static str,
    bytes: u32,
    min: u32,
    max: u32,
}

impl Default for Geometry {
    fn default() -> Self {
        Self::PAPER
    }
}

const ENTRY_LEN: u32 = 8;

/// How often a number holds another, which is not 0, and the rest.
fn divided(number: u64, by: u64) -> (u64, u64) {
    let parts = number.checked_div(by).zip(number.checked_rem(by));
    parts.expect("tables have entries")
}

impl Geometry {
    /// That of the paper's evaluation (§5).
    pub const PAPER: Self = Self {
        directory_bytes: 4 << 10,
        table_bytes: 4 << 10,
        page_bytes: 4 << 20,
    };

    /// Checks the sizes.
    ///
    /// # Errors
    ///
    /// If one is not a power of two within its bounds.
    pub fn checked(self) -> Result<Self, GeometryError> {
        let sizes = [
            ("a page directory", self.directory_bytes, 64, 1 << 16),
            ("a page table", self.table_bytes, 64, 1 << 16),
            ("a data page", self.page_bytes, 1 << 16, 1 << 26),
        ];
        for (what, bytes, min, max) in sizes {
            if !bytes.is_power_of_two() || !(min..=max).contains(&bytes) {
                return Err(GeometryError {
                    what,
                    bytes,
                    min,
                    max,
                });
            }
        }
        Ok(self)
    }

    fn table_entries(self) -> u64 {
        (self.table_bytes / ENTRY_LEN).into()
    }

    /// Entries of the directory.
    #[must_use]
    pub fn directory_entries(self) -> u64 {
        (self.directory_bytes / ENTRY_LEN).into()
    }

    /// Data pages of a stream at most.
    #[must_use]
    pub fn pages_max(self) -> u64 {
        self.directory_entries().wrapping_mul(self.table_entries())
    }

    /// The data page's bytes as a length.
    #[must_use]
    pub fn page_len(self) -> usize {
        exact(self.page_bytes)
    }

    /// Where a page's entry is: in which round, directory entry and table entry.
    #[must_use]
    pub fn entry(self, index: u64) -> TableEntry {
        let (round, within) = divided(index, self.pages_max());
        let (directory, table) = divided(within, self.table_entries());
        TableEntry {
            round,
            directory: exact(directory),
            table: exact(table),
        }
    }
}

/// The place of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableEntry {
    /// How often the table has gone round before.
    pub round: u64,
    /// The entry of the directory.
    pub directory: u32,
    /// The entry of the table page.
    pub table: u32,
}

impl TableEntry {
    /// The entry of a data page.
    #[must_use]
    pub fn of_page(self, page: u32) -> u64 {
        (u64::from(page) + 1) | ((self.round & 0xffff_ffff) << 32)
    }

    /// The data page of an entry that was read from there; `None` if it is of another round.
    #[must_use]
    pub fn page(self, entry: u64) -> Option<u32> {
        let is_this_round = entry >> 32 == self.round & 0xffff_ffff;
        let page = u32::try_from(entry & 0xffff_ffff).ok()?.checked_sub(1)?;
        is_this_round.then_some(page)
    }
}

/// What to write when a stream gets another page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableUpdate {
    /// Of the directory: offset in bytes, and entry; it names a table page that is all zeros.
    pub directory: Option<(u32, u64)>,
    /// Of the table page of this number: offset in bytes, and entry.
    pub table: (u32, u32, u64),
}

/// What an appender has to know of the page table: one entry of the directory, whatever the size of
/// the stream (paper §3.3). Where it goes on in the table page follows from the page's number.
#[derive(Clone, Copy, Debug)]
pub struct TableWriter {
    geometry: Geometry,
    /// The current entry of the directory, and the table page that it names.
    current: Option<(u32, u32)>,
    /// Table pages so far.
    tables: u32,
}

impl TableWriter {
    /// Of a table with this many table pages, for a page whose directory entry is looked up.
    #[must_use]
    pub fn new(geometry: Geometry, tables: u32) -> Self {
        Self {
            geometry,
            current: None,
            tables,
        }
    }

    /// Table pages so far.
    #[must_use]
    pub fn tables(&self) -> u32 {
        self.tables
    }

    /// Page `index` of the stream is data page `page`. `look_up` reads an entry of the directory,
    /// once for each table page.
    ///
    /// # Errors
    ///
    /// That of `look_up`.
    pub fn put<E>(
        &mut self,
        index: u64,
        page: u32,
        look_up: impl FnOnce(u32) -> Result<u64, E>,
    ) -> Result<TableUpdate, E> {
        let entry = self.geometry.entry(index);
        let (table, directory) = match self.current {
            Some((directory, table)) if directory == entry.directory => (table, None),
            _ => {
                let there = look_up(entry.directory.wrapping_mul(ENTRY_LEN))?;
                match u32::try_from(there)
                    .ok()
                    .and_then(|there| there.checked_sub(1))
                {
                    Some(table) if table < self.tables => (table, None),
                    _ => {
                        let table = self.tables;
                        self.tables = self.tables.wrapping_add(1);
                        let named = u64::from(table) + 1;
                        (
                            table,
                            Some((entry.directory.wrapping_mul(ENTRY_LEN), named)),
                        )
                    }
                }
            }
        };
        self.current = Some((entry.directory, table));
        Ok(TableUpdate {
            directory,
            table: (
                table,
                entry.table.wrapping_mul(ENTRY_LEN),
                entry.of_page(page),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_powers_of_two_within_bounds() {
        assert_eq!(Geometry::default().checked(), Ok(Geometry::default()));
        assert_eq!(Geometry::default().pages_max(), 512 * 512);
        let odd = Geometry {
            page_bytes: 5 << 20,
            ..Geometry::default()
        };
        assert!(
            odd.checked()
                .unwrap_err()
                .to_string()
                .contains("a data page of 5242880")
        );
    }

    proptest! {
        /// Pages are found by their numbers, and those that the ring has overwritten are not.
        #[test]
        fn a_table_finds_the_last_pages(steps in prop::collection::vec((1_u64..40, 0_u32..1000), 1..300)) {
            let geometry = Geometry { directory_bytes: 64, table_bytes: 64, page_bytes: 1 << 16 };
            let (mut directory, mut tables) = ([0_u64; 8], vec![]);
            let mut writer = TableWriter::new(geometry, 0);
            let (mut naive, mut index) = (BTreeMap::new(), 0);
            for (step, page) in steps {
                index += step;
                let looked = |at: u32| Ok::<u64, Infallible>(directory[at as usize / 8]);
                let update = writer.put(index, page, looked).unwrap();
                if let Some((at, entry)) = update.directory {
                    directory[at as usize / 8] = entry;
                    tables.push([0_u64; 8]);
                }
                let (table, at, entry) = update.table;
                tables[table as usize][at as usize / 8] = entry;
                naive.insert(index, page);
                naive.retain(|&old, _| old % 64 != index % 64 || old == index);
                for old in 0..=index {
                    let entry = geometry.entry(old);
                    let table = directory[entry.directory as usize].checked_sub(1);
                    let found = table.and_then(|table| {
                        entry.page(tables[usize::try_from(table).unwrap()][entry.table as usize])
                    });
                    prop_assert_eq!(found, naive.get(&old).copied(), "page {}", old);
                }
            }
            prop_assert!(writer.tables() <= 8);
        }
    }
}
