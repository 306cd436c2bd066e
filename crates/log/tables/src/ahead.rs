//! What a table is about to read, announced to the disk: a search reads many small pieces, and a
//! disk has them sooner if it is asked for all than one after another.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::ops::Range;

use bytes::Bytes;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::ChunkReader;

/// At most this number of bytes is announced at once. A reader of more reads in order, which the system
/// notices by itself.
const AHEAD_BYTES: u64 = 16 << 20;

/// The file of a table.
pub trait TableInput: ChunkReader + Clone + 'static {
    /// These bytes will be read soon.
    fn will_read(&self, bytes: Range<u64>);
}

impl TableInput for Bytes {
    fn will_read(&self, _: Range<u64>) {}
}

/// Announces the Bloom filters of a column of all row groups, as far as they are not too many.
pub(crate) fn filters(metadata: &ParquetMetaData, column: usize, input: &impl TableInput) {
    let groups = metadata.row_groups().iter();
    let filters = groups.filter_map(|group| filter(group.column(column)));
    let mut left = AHEAD_BYTES;
    for filter in filters {
        let Some(rest) = left.checked_sub(filter.end.saturating_sub(filter.start)) else {
            return;
        };
        left = rest;
        input.will_read(filter);
    }
}

fn filter(chunk: &ColumnChunkMetaData) -> Option<Range<u64>> {
    let (at, len) = (chunk.bloom_filter_offset()?, chunk.bloom_filter_length()?);
    range(at, len.into())
}

/// Announces the pages of columns of a row group that hold these rows, which are in ascending order.
pub(crate) fn pages(
    metadata: &ParquetMetaData,
    group: usize,
    columns: impl Iterator<Item = usize>,
    rows: &[Range<usize>],
    input: &impl TableInput,
) {
    let mut wanted = Vec::new();
    for column in columns {
        add_pages(metadata, group, column, rows, &mut wanted);
    }
    let lens = wanted
        .iter()
        .map(|range| range.end.saturating_sub(range.start));
    let bytes = lens.fold(0, u64::saturating_add);
    if bytes <= AHEAD_BYTES {
        wanted.into_iter().for_each(|range| input.will_read(range));
    }
}

fn add_pages(
    metadata: &ParquetMetaData,
    group: usize,
    column: usize,
    rows: &[Range<usize>],
    wanted: &mut Vec<Range<u64>>,
) {
    let index = metadata.offset_index().and_then(|groups| groups.get(group));
    let Some(index) = index.and_then(|columns| columns.get(column)) else {
        return;
    };
    let group = metadata.row_group(group);
    let pages = index.page_locations();
    let dictionary = group.column(column).dictionary_page_offset();
    if let (Some(at), Some(first)) = (dictionary, pages.first()) {
        wanted.extend(range(at, first.offset.saturating_sub(at)));
    }
    let following = pages.iter().skip(1).map(Some).chain([None]);
    for (page, next) in pages.iter().zip(following) {
        let next = next.map(|next| next.first_row_index);
        let end = next.unwrap_or_else(|| group.num_rows());
        let (Ok(start), Ok(end)) = (usize::try_from(page.first_row_index), usize::try_from(end))
        else {
            return;
        };
        let after = rows.partition_point(|rows| rows.end <= start);
        if rows.get(after).is_none_or(|rows| rows.start >= end) {
            continue;
        }
        let Some(bytes) = range(page.offset, page.compressed_page_size.into()) else {
            return;
        };
        match wanted.last_mut() {
            Some(last) if last.end == bytes.start => last.end = bytes.end,
            _ => wanted.push(bytes),
        }
    }
}

/// `None` for what no file has: a read there gets the error.
fn range(at: i64, len: i64) -> Option<Range<u64>> {
    let (at, len) = (u64::try_from(at).ok()?, u64::try_from(len).ok()?);
    Some(at..at.checked_add(len)?)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Cursor, Read};
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Mutex};

    use parquet::errors::Result;
    use parquet::file::reader::Length;

    use super::*;
    use crate::spec::{Coding, Kind, Spec};
    use crate::{TableReader, TableWriter, Values};

    /// A file that remembers what was announced, and what was read.
    #[derive(Clone)]
    struct Watched {
        bytes: Bytes,
        announced: Arc<Mutex<Vec<Range<u64>>>>,
        read: Arc<Mutex<Vec<Range<u64>>>>,
    }

    impl Length for Watched {
        fn len(&self) -> u64 {
            self.bytes.len() as u64
        }
    }

    impl ChunkReader for Watched {
        type T = Box<dyn Read + Send>;

        fn get_read(&self, start: u64) -> Result<Self::T> {
            let from = usize::try_from(start)?;
            Ok(Box::new(Cursor::new(self.bytes.slice(from..))))
        }

        fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
            let end = start + length as u64;
            self.read.lock().unwrap().push(start..end);
            let (start, end) = (usize::try_from(start)?, usize::try_from(end)?);
            if end > self.bytes.len() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            Ok(self.bytes.slice(start..end))
        }
    }

    impl TableInput for Watched {
        fn will_read(&self, bytes: Range<u64>) {
            self.announced.lock().unwrap().push(bytes);
        }
    }

    const SPECS: [Spec; 3] = [
        Spec::new("a", Kind::Int64, Coding::Plain, ""),
        Spec::new("b", Kind::Int32, Coding::Plain, "").or_null(),
        Spec::new("c", Kind::Int64, Coding::Plain, ""),
    ];
    const WRITTEN: [Spec; 2] = [SPECS[0], SPECS[2]];
    const ROWS: i64 = 100_000;

    fn table() -> (TableReader<Watched>, Watched) {
        let mut writer = TableWriter::new(Vec::new(), "table", &WRITTEN, &[]).unwrap();
        for group in 0..2 {
            let fill = |_, column: &mut crate::column::Column| match &mut column.values {
                Values::Int64(values) => {
                    values.extend((0..ROWS).map(|n| (n * 7_919 + group) ^ (n << 20)));
                }
                other => panic!("{other:?}"),
            };
            writer.group(&AtomicBool::new(false), || fill).unwrap();
        }
        let file = Watched {
            bytes: Bytes::from(writer.finish().unwrap()),
            announced: Arc::default(),
            read: Arc::default(),
        };
        // A column that older files lack is not announced.
        let table = TableReader::open(file.clone(), String::from("table"), &SPECS).unwrap();
        (table, file)
    }

    #[test]
    fn what_is_read_was_announced_and_little_else() {
        let rows = usize::try_from(ROWS).unwrap();
        let (table, file) = table();
        let (first, last, all) = (0..1, rows - 1..rows, 0..rows);
        let one = std::slice::from_ref;
        let wanted: [&[Range<usize>]; 5] = [
            one(&first),
            one(&last),
            &[8_191..8_193, 50_000..50_001],
            &[0..1, 30_000..70_000, 99_000..99_001],
            one(&all),
        ];
        for rows in wanted {
            for group in 0..2 {
                file.announced.lock().unwrap().clear();
                file.read.lock().unwrap().clear();
                table.read(group, &[0, 1, 2], rows).unwrap();
                let announced = file.announced.lock().unwrap().clone();
                let read = file.read.lock().unwrap().clone();
                assert!(!read.is_empty());
                for page in &read {
                    let is_in = |a: &Range<u64>| a.start <= page.start && page.end <= a.end;
                    assert!(announced.iter().any(is_in), "{page:?}: {announced:?}");
                }
                let sum = |all: &[Range<u64>]| all.iter().map(|r| r.end - r.start).sum::<u64>();
                assert_eq!(sum(&announced), sum(&read), "{rows:?}");
            }
        }
    }

    #[test]
    fn offsets_that_no_file_has_are_not_announced() {
        assert_eq!(range(5, 7), Some(5..12));
        assert_eq!(range(-1, 7), None);
        assert_eq!(range(5, -7), None);
    }
}
