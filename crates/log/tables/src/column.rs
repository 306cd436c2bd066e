//! Parquet tables: columns in, columns out.

use parquet::data_type::ByteArray;

use crate::coded::{Coded, Entries, NULL};
use crate::spec::Kind;

/// Values of one column, without nulls.
#[derive(Debug, PartialEq)]
pub enum Values {
    /// 32 bits, signed.
    Int32(Vec<i32>),
    /// 64 bits, signed, and times.
    Int64(Vec<i64>),
    /// 32 bits.
    Float(Vec<f32>),
    /// True or false.
    Bool(Vec<bool>),
    /// Texts and bytes.
    Bytes(Vec<ByteArray>),
    /// For writing only, including nulls.
    Coded(Coded),
}

/// One column of some rows.
#[derive(Debug, PartialEq)]
pub struct Column {
    /// The values, without nulls unless they are numbered.
    pub values: Values,
    /// Per row 1 or 0: whether it has a value. Empty for a column without nulls.
    pub levels: Vec<i16>,
}

impl Column {
    /// One without rows.
    #[must_use]
    pub fn of(kind: Kind) -> Self {
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

    /// Removes the rows, and keeps the memory.
    pub fn clear(&mut self) {
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

    /// Moves each value to its row, so that any value stands where there is none; texts stay.
    pub fn spread(&mut self) {
        let levels = &self.levels;
        match &mut self.values {
            Values::Int32(values) => spread(values, levels),
            Values::Int64(values) => spread(values, levels),
            Values::Float(values) => spread(values, levels),
            Values::Bool(values) => spread(values, levels),
            Values::Bytes(_) | Values::Coded(_) => {}
        }
    }

    /// Whether it has rows, but no value in any.
    pub(crate) fn has_no_values(&self) -> bool {
        let empty = match &self.values {
            Values::Int32(values) => values.is_empty(),
            Values::Int64(values) => values.is_empty(),
            Values::Float(values) => values.is_empty(),
            Values::Bytes(values) => values.is_empty(),
            Values::Bool(_) | Values::Coded(_) => false,
        };
        empty && !self.levels.is_empty()
    }

    /// The values of a column that has numbered ones, of this kind, and the number of each row's; `None` for
    /// null. Otherwise the column itself.
    #[must_use]
    pub fn numbered(self, kind: Kind) -> (Self, Option<impl Iterator<Item = Option<u32>>>) {
        let Values::Coded(Coded { codes, entries }) = self.values else {
            return (self, None);
        };
        let mut column = Self::of(kind);
        match entries {
            // Without values, only the column's kind tells the type.
            Entries::Int(entries) if entries.is_empty() => {}
            Entries::Int(entries) => column.values = Values::Int64(entries),
            Entries::Float(entries) => column.values = Values::Float(entries),
            Entries::Bytes(entries) => column.values = Values::Bytes(entries),
        }
        let codes = codes.into_iter();
        (
            column,
            Some(codes.map(|code| (code != NULL).then_some(code))),
        )
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

fn spread<T: Copy + Default>(values: &mut Vec<T>, levels: &[i16]) {
    let mut left = values.len();
    if left == levels.len() || levels.is_empty() {
        return;
    }
    values.resize(levels.len(), T::default());
    for (row, level) in levels.iter().enumerate().rev() {
        if *level == 1 {
            left = left.checked_sub(1).expect("a value for each level");
            values[row] = values[left];
        }
    }
}

/// Rows of a page: the least that is read of a column when looking for a flow.
pub const PAGE_ROWS: usize = 8_192;

#[cfg(test)]
mod tests {
    use crate::{TableReader, TableWriter};
    use std::ops::Range;
    use std::sync::atomic::AtomicBool;

    use bytes::Bytes;
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    use parquet::record::RowAccessor as _;

    use super::*;
    use crate::spec::{Coding, Spec};

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
        writer.group(&AtomicBool::new(false), || fill).unwrap();
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
        assert_eq!(table.min(0, 2), Some(11));
        assert_eq!(table.min(0, 1), None);
        for other in [&[A][..], &[A, B], &[C, A], &[A, C, A]] {
            assert!(open(other).is_err());
        }
    }

    const T: Spec = Spec::new("t", Kind::Text, Coding::Dictionary, "").or_null();
    const D: Spec = Spec::new("d", Kind::Time, Coding::Delta, "");
    const F: Spec = Spec::new("f", Kind::Float, Coding::Plain, "").or_null();

    /// As engines without nanoseconds read it: the parquet crate's reader of rows.
    #[test]
    fn a_time_is_microseconds_and_the_nanoseconds_below() {
        let times = [0, 999, 1_000, 1_700_000_000_123_456_789, u64::MAX];
        let mut writer = TableWriter::new(Vec::new(), "table", &[A, D], &[]).unwrap();
        let fill = |_, column: &mut Column| match &mut column.values {
            Values::Int64(values) => values.extend(times.map(u64::cast_signed)),
            other => panic!("{other:?}"),
        };
        writer.group(&AtomicBool::new(false), || fill).unwrap();
        let file = Bytes::from(writer.finish().unwrap());
        let rows = SerializedFileReader::new(file.clone()).unwrap();
        for (row, time) in rows.get_row_iter(None).unwrap().zip(times) {
            let row = row.unwrap();
            let micros = row.get_timestamp_micros(1).unwrap().cast_unsigned();
            assert_eq!(micros, time / 1_000);
            assert_eq!(
                u64::try_from(row.get_short(2).unwrap()).unwrap(),
                time % 1_000
            );
        }
        let table = TableReader::open(file, String::from("table"), &[A, D]).unwrap();
        let column = table.read(0, &[1], &[0..2, 3..5]).unwrap().remove(0);
        let read: Vec<u64> = column.ints().flatten().map(i64::cast_unsigned).collect();
        assert_eq!(read, [times[0], times[1], times[3], times[4]]);
        assert_eq!(table.min(0, 1), Some(0));
        assert!(
            times
                .iter()
                .all(|time| table.may_be(0, 1, time.cast_signed()))
        );
    }

    /// What a batch has is what column readers read, over many pages.
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
        writer.group(&AtomicBool::new(false), || fill).unwrap();
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
