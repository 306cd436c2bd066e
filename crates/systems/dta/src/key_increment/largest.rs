//! The keys with the largest counts: a sketch has counters and no keys, so a bounded table holds the
//! keys that are worth asking for.
//!
//! Each report's key is compared with one number, the floor, when its counters have been added to: a
//! key with a larger count gets a row. When no row is free, the half of the rows with the smallest
//! counts is given up, and the largest of these counts is the floor from then on. So a key without a
//! row had a count of at most the floor when it was last reported, and a row costs a constant number of
//! steps on average, whatever the order of the reports.
//!
//! This holds as long as counters only grow. When all of them are made smaller
//! ([`Largest::fade`]) while reports come in, a count may have been compared before or after
//! that, so the table keeps a second number, which may be larger than the floor: the largest count
//! that a key without a row may have ([`Largest::without_row_max`]).

use std::cmp::Reverse;

use strata_wire::exact;

use crate::key::Key;

/// Places of the index for each row: a search ends after about one.
const INDEX_FACTOR: usize = 4;
/// Maximum number of rows: their numbers have 16 bits.
const ROWS_MAX: usize = 1 << 14;

/// A key and its count.
#[derive(Clone, Copy, Debug)]
struct Row {
    key: Key,
    /// Where the first of its counters lies, in bytes.
    place: u64,
    /// The count at its latest report, made smaller since if all counters were.
    count: u64,
    /// The largest that the count may be: larger than `count` if counters were made smaller since.
    count_max: u64,
}

/// The table. Memory: about 90 bytes a row.
#[derive(Clone, Debug)]
pub struct Largest {
    rows: Vec<Option<Row>>,
    /// 1 + the number of a row, or 0, by the place of its first counter.
    index: Vec<u16>,
    /// Rows to be given out. Their keys are not in the index.
    free: Vec<u16>,
    /// A key with a larger count gets a row.
    floor: u64,
    /// See [`Largest::without_row_max`], if that is more than the floor; `None` if not known.
    more: Option<u64>,
}

/// A row of a table that is to be continued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The number of the row.
    pub row: usize,
    /// Its key.
    pub key: Key,
    /// The position of the key's first counter.
    pub place: u64,
    /// The key's count.
    pub count: u64,
}

impl Largest {
    /// An empty table.
    ///
    /// # Panics
    ///
    /// If there are fewer than 2 rows, or more than 16,384.
    #[must_use]
    pub fn new(rows: usize) -> Self {
        assert!((2..=ROWS_MAX).contains(&rows), "rows of a table");
        let mut table = Self {
            rows: vec![None; rows],
            index: vec![0; rows.saturating_mul(INDEX_FACTOR).next_power_of_two()],
            free: Vec::with_capacity(rows),
            floor: 0,
            more: Some(0),
        };
        table.clear();
        table
    }

    /// Continues a table: its rows, and the largest count that a key without a row may have, if known. Rows with an
    /// impossible number, and rows whose number or key was given before, are left out.
    ///
    /// # Panics
    ///
    /// As [`Largest::new`].
    #[must_use]
    pub fn continued(
        rows: usize,
        without_row_max: Option<u64>,
        kept: impl IntoIterator<Item = Kept>,
    ) -> Self {
        let mut table = Self::new(rows);
        table.more = without_row_max;
        for kept in kept {
            let Err(at) = table.find(kept.key.bytes(), kept.place) else {
                continue;
            };
            if let Some(row @ None) = table.rows.get_mut(kept.row) {
                *row = Some(Row {
                    key: kept.key,
                    place: kept.place,
                    count: kept.count,
                    count_max: kept.count,
                });
                table.index[at] = exact::<u16>(kept.row).saturating_add(1);
            }
        }
        let is_free = |&row: &u16| table.rows[usize::from(row)].is_none();
        table.free.retain(is_free);
        table
    }

    /// Forgets all keys: all counters are 0.
    pub fn clear(&mut self) {
        self.rows.fill(None);
        self.index.fill(0);
        self.free.clear();
        // Taken from the end.
        self.free
            .extend((0..self.rows.len()).rev().map(exact::<u16>));
        (self.floor, self.more) = (0, Some(0));
    }

    /// Keys with a count above this are to be offered.
    #[inline(always)]
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The largest count that a key without a row may have; `None` if it is not known.
    #[must_use]
    pub fn without_row_max(&self) -> Option<u64> {
        self.more.map(|more| more.max(self.floor))
    }

    /// The key of a row.
    #[must_use]
    pub fn key(&self, row: usize) -> Option<Key> {
        let row = self.rows.get(row).copied().flatten();
        row.map(|row| row.key)
    }

    /// A report of a key has made its smallest counter `count`, which is above the floor; the first of
    /// its counters lies at `place`. Returns the number of the row that the key has got, if it had none.
    ///
    /// # Panics
    ///
    /// If the key has no bytes, or more than 40.
    #[inline(never)]
    pub fn offer(&mut self, key: &[u8], place: u64, count: u64) -> Option<usize> {
        let at = match self.find(key, place) {
            Ok(row) => {
                let row = self.rows[row].as_mut().expect("a row of the index");
                (row.count, row.count_max) = (count, count);
                return None;
            }
            Err(at) => at,
        };
        let (at, row) = match self.free.pop() {
            Some(row) => (at, row),
            None => {
                self.give_up_half();
                if count <= self.floor {
                    return None;
                }
                let at = self.find(key, place).expect_err("it has no row");
                (at, self.free.pop().expect("half of the rows are free"))
            }
        };
        self.index[at] = row.saturating_add(1);
        let row = usize::from(row);
        self.rows[row] = Some(Row {
            key: Key::new(key),
            place,
            count,
            count_max: count,
        });
        Some(row)
    }

    /// Adapts the counts after every counter was reduced once, in any order and while reports arrived; `fade` returns
    /// the rest of a count.
    pub fn fade(&mut self, fade: impl Fn(u64) -> u64) {
        for row in self.rows.iter_mut().flatten() {
            // A count that was reported since the counters began to be made smaller may be right.
            if row.count_max > row.count {
                row.count_max = fade(row.count_max);
            }
            row.count = fade(row.count);
        }
        let before = self.floor;
        self.more = match self.more {
            // A key that was reported meanwhile, without getting a row, had a count up to the floor.
            Some(more) => Some(fade(more).max(before)),
            // Nothing is left of what is not known.
            None => (fade(u64::MAX) == 0).then_some(before),
        };
        self.floor = fade(before);
    }

    /// Replaces the counts of all rows' keys by those of `count`.
    pub fn recount(&mut self, mut count: impl FnMut(&Key) -> u64) {
        for row in self.rows.iter_mut().flatten() {
            row.count = count(&row.key);
            row.count_max = row.count;
        }
    }

    /// Notes that at most `added` was added for keys that were not offered.
    pub fn overlook(&mut self, added: u64) {
        let before = self.without_row_max();
        self.more = before.map(|before| before.saturating_add(added));
    }

    /// The row of a key, or else where in the index its number would be.
    #[inline(always)]
    fn find(&self, key: &[u8], place: u64) -> Result<usize, usize> {
        let mask = self.index.len().wrapping_sub(1);
        // Counters are 8 bytes apart, and places are evenly spread. The mask is below 2^17.
        #[allow(clippy::cast_possible_truncation, reason = "the low bits are used")]
        let mut at = (place >> 3) as usize & mask;
        // Most of the index is empty.
        while let Some(row) = usize::from(self.index[at]).checked_sub(1) {
            if self.rows[row].is_some_and(|row| row.key.bytes() == key) {
                return Ok(row);
            }
            at = at.wrapping_add(1) & mask;
        }
        Err(at)
    }

    /// Frees the half of the rows with the smallest counts. All rows are taken.
    #[cold]
    fn give_up_half(&mut self) {
        let mut order: Vec<u16> = (0..self.rows.len()).map(exact::<u16>).collect();
        let count = |row: &u16| self.rows[usize::from(*row)].map(|row| row.count);
        let keep = self.rows.len().div_ceil(2);
        order.select_nth_unstable_by_key(keep, |row| Reverse(count(row)));
        for row in order.split_off(keep) {
            if let Some(given_up) = self.rows[usize::from(row)].take() {
                self.floor = self.floor.max(given_up.count);
                self.more = self.more.map(|more| more.max(given_up.count_max));
            }
            self.free.push(row);
        }
        self.reindex();
    }

    fn reindex(&mut self) {
        self.index.fill(0);
        for number in 0..self.rows.len() {
            let Some(row) = self.rows[number] else {
                continue;
            };
            if let Err(at) = self.find(row.key.bytes(), row.place) {
                self.index[at] = exact::<u16>(number).saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Reports as a sketch without collisions has them.
    #[derive(Default)]
    struct Exact {
        counts: HashMap<u32, u64>,
    }

    impl Exact {
        fn report(&mut self, table: &mut Largest, key: u32, add: u64) -> Option<usize> {
            let count = self.counts.entry(key).or_default();
            *count += add;
            let is_above = *count > table.floor();
            is_above
                .then(|| table.offer(&key.to_be_bytes(), u64::from(key) * 8, *count))
                .flatten()
        }

        /// Every key that may not be missing has a row.
        fn check(&self, table: &Largest) {
            let max = table.without_row_max().unwrap();
            for (key, &count) in &self.counts {
                let found = table.find(&key.to_be_bytes(), u64::from(*key) * 8);
                assert!(found.is_ok() || count <= max, "{key}: {count}, {max}");
            }
        }
    }

    #[test]
    fn as_many_keys_as_rows_all_have_one() {
        let (mut table, mut exact) = (Largest::new(64), Exact::default());
        for n in 0..6_400 {
            exact.report(&mut table, n % 64, 1);
        }
        assert_eq!(table.without_row_max(), Some(0));
        exact.check(&table);
    }

    #[test]
    fn a_giant_in_one_report_has_a_row_among_many_keys() {
        let (mut table, mut exact) = (Largest::new(64), Exact::default());
        for n in 0..100_000 {
            exact.report(&mut table, n % 10_000, 1);
        }
        assert!(exact.report(&mut table, 1 << 20, 1_000_000_000).is_some());
        for n in 0..100_000 {
            exact.report(&mut table, n % 10_000, 1);
        }
        assert!(table.find(&(1_u32 << 20).to_be_bytes(), 8 << 20).is_ok());
        assert!(table.without_row_max() <= Some(20));
        exact.check(&table);
    }

    #[test]
    fn each_report_of_a_new_giant_costs_a_row_and_not_a_search() {
        let (mut table, mut exact) = (Largest::new(1024), Exact::default());
        for n in 0..1_000_000_u32 {
            assert!(exact.report(&mut table, n, u64::from(n) + 1).is_some());
        }
        // Twice as many rows as are kept, so half of those that had one.
        assert!(table.without_row_max() <= Some(1_000_000 - 512));
        exact.check(&table);
    }

    #[test]
    fn a_table_is_continued() {
        let (mut table, mut exact) = (Largest::new(8), Exact::default());
        for n in 0..100_u32 {
            exact.report(&mut table, n, u64::from(n) + 1);
        }
        let max = table.without_row_max();
        let kept = |row: usize| {
            let key = table.key(row)?;
            let number = u32::from_be_bytes(key.bytes().try_into().unwrap());
            Some(Kept {
                row,
                key,
                place: u64::from(number) * 8,
                count: exact.counts[&number],
            })
        };
        let kept: Vec<Kept> = (0..8).filter_map(kept).collect();
        // What is there twice, or beyond the table, is left out.
        let wrong = Kept { row: 8, ..kept[0] };
        let again = Kept { row: 7, ..kept[0] };
        let all = kept.iter().copied().chain([wrong, again]);
        let mut other = Largest::continued(8, max, all);
        exact.check(&other);
        for n in 0..100_u32 {
            exact.report(&mut other, n, 1);
        }
        exact.check(&other);
        let unknown = Largest::continued(8, None, []);
        assert_eq!(unknown.without_row_max(), None);
    }

    #[test]
    fn what_is_not_known_is_known_once_all_counters_were_set_to_0() {
        let mut table = Largest::continued(8, None, []);
        table.fade(|count| count / 2);
        assert_eq!(table.without_row_max(), None);
        table.fade(|_| 0);
        assert_eq!(table.without_row_max(), Some(0));
        table.overlook(7);
        assert_eq!(table.without_row_max(), Some(7));
    }

    proptest! {
        /// Counters that are made smaller in any order, while reports come in.
        #[test]
        fn a_key_without_a_row_has_no_larger_count_than_is_said(
            rounds in prop::collection::vec(
                (prop::collection::vec((0_u32..60, 1_u64..2_000), 0..300), any::<bool>(), 0_u32..60),
                1..6,
            ),
        ) {
            let (mut table, mut exact) = (Largest::new(16), Exact::default());
            for (reports, halves, pause) in rounds {
                let fade = |count: u64| if halves { count / 2 } else { 0 };
                // Half of the reports before the counters are made smaller, the others amid that.
                let (before, amid) = reports.split_at(reports.len() / 2);
                for &(key, add) in before {
                    exact.report(&mut table, key, add);
                    exact.check(&table);
                }
                for key in 0..60 {
                    if let Some(count) = exact.counts.get_mut(&key) {
                        *count = fade(*count);
                    }
                    if key == pause {
                        for &(key, add) in amid {
                            exact.report(&mut table, key, add);
                        }
                    }
                }
                table.fade(fade);
                exact.check(&table);
            }
        }
    }
}
