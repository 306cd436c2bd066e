//! Texts of a column as numbers of entries: those of its dictionary, as they are in its pages (Encodings.md
//! of the Parquet format, "Dictionary Encoding"). `crate::coded` writes such pages; parquet's readers would make
//! a value of each number. Files may be any: what they say is checked before memory is taken for it.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::HashMap;
use std::ops::Range;
use std::str;

use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageReader};
use parquet::file::reader::FileReader;
use strata_columnar::rle;

use crate::coded::NULL;
use crate::column::Column;
use crate::error::Source;
use crate::spec::{Kind, Spec};

/// Texts by row: 4 bytes each, and each entry once.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    /// [`NULL`] where there is none.
    codes: Vec<u32>,
    /// All entries, and at which byte each ends. Those of a column of texts are in UTF-8.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    /// The number of a row's text, if it has one.
    #[inline]
    pub(crate) fn code(&self, row: usize) -> Option<usize> {
        let code = self.codes[row];
        (code != NULL).then_some(code as usize)
    }

    /// How many entries there are.
    pub(crate) fn entries(&self) -> usize {
        self.ends.len()
    }

    /// The text with a number, of a column of texts.
    pub(crate) fn entry(&self, code: usize) -> &str {
        str::from_utf8(self.bytes(code)).expect("checked when it was added")
    }

    /// The bytes with a number.
    #[inline]
    pub(crate) fn bytes(&self, code: usize) -> &[u8] {
        let start = code.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[code]]
    }

    /// Each text of a column once.
    pub(crate) fn numbered(spec: &Spec, column: &Column) -> Result<Self, Source> {
        let mut texts = Self::default();
        let mut codes: HashMap<&[u8], u32> = HashMap::new();
        for value in column.bytes() {
            let code = match value.map(parquet::data_type::ByteArray::data) {
                None => NULL,
                Some(value) => match codes.get(value) {
                    Some(code) => *code,
                    None => {
                        let code = texts.add(spec, value)?;
                        codes.insert(value, code);
                        code
                    }
                },
            };
            texts.codes.push(code);
        }
        Ok(texts)
    }

    /// Adds an entry; returns its number.
    fn add(&mut self, spec: &Spec, entry: &[u8]) -> Result<u32, Source> {
        let code = u32::try_from(self.ends.len()).ok();
        let code = code.filter(|code| *code != NULL);
        let code = code.ok_or_else(|| wrong(spec, "has too many texts"))?;
        if spec.kind == Kind::Text && str::from_utf8(entry).is_err() {
            return Err(wrong(spec, "has a text not in UTF-8"));
        }
        self.bytes.extend_from_slice(entry);
        self.ends.push(self.bytes.len());
        Ok(code)
    }

    /// Adds the entries of a dictionary page: each after its length of 32 bits (Encodings.md, "Plain").
    fn dictionary(&mut self, spec: &Spec, page: &[u8], count: u32) -> Result<(), Source> {
        let mut rest = page;
        for _ in 0..count {
            let (len, after) = cut(spec, rest, size_of::<u32>())?;
            let len = u32::from_le_bytes(len.try_into()?);
            let (entry, after) = cut(spec, after, usize::try_from(len)?)?;
            self.add(spec, entry)?;
            rest = after;
        }
        Ok(())
    }
}

fn wrong(spec: &Spec, problem: &str) -> Source {
    format!("column {} {problem}", spec.name).into()
}

fn cut<'a>(spec: &Spec, bytes: &'a [u8], len: usize) -> Result<(&'a [u8], &'a [u8]), Source> {
    let cut = bytes.split_at_checked(len);
    cut.ok_or_else(|| wrong(spec, "has a page that ends too early"))
}

/// The texts of some rows of a column, by row group and place; `None` unless a dictionary has them all. `rows` are
/// in ascending order and do not overlap.
///
/// # Errors
///
/// If the column cannot be read, or does not have the rows that the file states.
pub(crate) fn coded(
    file: &impl FileReader,
    (group, place): (usize, usize),
    spec: &Spec,
    rows: &[Range<usize>],
) -> Result<Option<Texts>, Source> {
    let column = file
        .metadata()
        .row_group(group)
        .column(place)
        .column_descr();
    let levels = (column.max_def_level(), column.max_rep_level());
    if column.physical_type() != Type::BYTE_ARRAY || levels != (i16::from(spec.optional), 0) {
        return Ok(None);
    }
    let of_group = usize::try_from(file.metadata().row_group(group).num_rows())?;
    let mut texts = Texts::default();
    let mut wanted = rows.iter().filter(|rows| !rows.is_empty()).peekable();
    let mut ends = page_ends(file, group, place)?.into_iter();
    let mut pages = file.get_row_group(group)?.get_column_page_reader(place)?;
    match pages.get_next_page()? {
        Some(Page::DictionaryPage {
            buf, num_values, ..
        }) => texts.dictionary(spec, &buf, num_values)?,
        _ => return Ok(None),
    }
    let other_rows = || wrong(spec, "does not have the rows that the file states");
    let mut decoder = Decoder::default();
    let mut at = 0_usize;
    while let Some(first) = wanted.peek() {
        let told = ends.next();
        if let Some(end) = told
            && end <= first.start
        {
            pages.skip_next_page()?;
            at = end;
            continue;
        }
        let Some(page) = next(pages.as_mut(), spec)? else {
            return Ok(None);
        };
        let end = at.checked_add(page.count);
        let end = end.filter(|end| *end <= of_group && told.is_none_or(|told| told == *end));
        let end = end.ok_or_else(other_rows)?;
        decoder.page(spec, &page, texts.entries())?;
        while let Some(rows) = wanted.peek() {
            let here = rows.start.max(at)..rows.end.min(end);
            let here = here.start.saturating_sub(at)..here.end.saturating_sub(at);
            if let Some(codes) = decoder.codes.get(here) {
                texts.codes.extend_from_slice(codes);
            }
            if rows.end > end {
                break;
            }
            wanted.next();
        }
        at = end;
    }
    let count: usize = rows.iter().map(ExactSizeIterator::len).sum();
    if texts.codes.len() != count {
        return Err(other_rows());
    }
    Ok(Some(texts))
}

/// The row after the last one of each page, if the file's index says so.
fn page_ends(file: &impl FileReader, group: usize, place: usize) -> Result<Vec<usize>, Source> {
    let metadata = file.metadata();
    let index = metadata.offset_index().and_then(|groups| groups.get(group));
    let Some(index) = index.and_then(|columns| columns.get(place)) else {
        return Ok(Vec::new());
    };
    let starts = index.page_locations().iter().skip(1);
    let starts = starts.map(|page| page.first_row_index);
    let ends = starts.chain([metadata.row_group(group).num_rows()]);
    Ok(ends.map(usize::try_from).collect::<Result<_, _>>()?)
}

/// A page of numbers.
struct Numbers {
    bytes: bytes::Bytes,
    /// Rows.
    count: usize,
    /// Whether it begins with levels.
    has_levels: bool,
}

/// The next page; `None` if it is not of numbers, or not as all writers write them.
fn next(pages: &mut dyn PageReader, spec: &Spec) -> Result<Option<Numbers>, Source> {
    let page = pages.get_next_page()?;
    let page = page.ok_or_else(|| wrong(spec, "has too few rows"))?;
    let Page::DataPage {
        buf,
        num_values,
        encoding,
        def_level_encoding,
        ..
    } = page
    else {
        return Ok(None);
    };
    #[allow(deprecated, reason = "as older writers name it")]
    let is_coded = matches!(
        encoding,
        Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY
    );
    if !is_coded || spec.optional && def_level_encoding != Encoding::RLE {
        return Ok(None);
    }
    Ok(Some(Numbers {
        bytes: buf,
        count: usize::try_from(num_values)?,
        has_levels: spec.optional,
    }))
}

/// Makes numbers by row of pages.
#[derive(Default)]
struct Decoder {
    levels: Vec<u32>,
    packed: Vec<u32>,
    /// Of the last page.
    codes: Vec<u32>,
}

impl Decoder {
    /// Reads a page whose dictionary has this many entries.
    fn page(&mut self, spec: &Spec, page: &Numbers, entries: usize) -> Result<(), Source> {
        let mut rest = &page.bytes[..];
        let mut count = page.count;
        self.levels.clear();
        if page.has_levels {
            let (len, after) = cut(spec, rest, size_of::<u32>())?;
            let len = u32::from_le_bytes(len.try_into()?);
            let (levels, after) = cut(spec, after, usize::try_from(len)?)?;
            rle::read(levels, 1, count, &mut self.levels)
                .map_err(|error| format!("column {}: {error}", spec.name))?;
            count = self.levels.iter().filter(|level| **level == 1).count();
            rest = after;
        }
        self.packed.clear();
        if count > 0 {
            let (width, after) = cut(spec, rest, 1)?;
            rle::read(after, width[0], count, &mut self.packed)
                .map_err(|error| format!("column {}: {error}", spec.name))?;
        }
        if self.packed.iter().any(|code| *code as usize >= entries) {
            return Err(wrong(spec, "has a text that is not in its dictionary"));
        }
        if count == page.count {
            std::mem::swap(&mut self.codes, &mut self.packed);
            return Ok(());
        }
        let mut packed = self.packed.iter();
        let levels = self.levels.iter();
        let codes = levels.map(|level| match level {
            1 => *packed.next().expect("as many as there are values"),
            _ => NULL,
        });
        self.codes.clear();
        self.codes.extend(codes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;

    use strata_columnar::{Cell, CellKind, ParquetFile};

    use super::*;
    use crate::spec::Coding;
    use crate::{PAGE_ROWS, TableReader, TableWriter, Values};

    const SPEC: Spec = Spec::new("t", Kind::Text, Coding::Dictionary, "").or_null();

    proptest! {
        /// Bytes from anywhere are read, or refused.
        #[test]
        fn no_bytes_are_too_strange(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            has_levels in any::<bool>(),
            count in 0_usize..300,
        ) {
            let mut decoder = Decoder::default();
            let page = Numbers { bytes: Bytes::from(bytes.clone()), count, has_levels };
            if decoder.page(&SPEC, &page, 3).is_ok() {
                prop_assert_eq!(decoder.codes.len(), count);
                prop_assert!(decoder.codes.iter().all(|code| *code < 3 || *code == NULL));
            }
            let mut texts = Texts::default();
            if texts.dictionary(&SPEC, &bytes, 4).is_ok() {
                prop_assert_eq!(texts.entries(), 4);
                prop_assert!((0..4).all(|code| texts.entry(code).len() <= 60));
            }
        }
    }

    /// A file whose texts are in several pages, which its index lists.
    fn file() -> Vec<u8> {
        let mut writer = TableWriter::new(Vec::new(), "table", &[SPEC], &[]).unwrap();
        let fill = |_: usize, column: &mut Column| {
            let Values::Bytes(values) = &mut column.values else {
                panic!("{column:?}");
            };
            for row in 0..3 * PAGE_ROWS {
                column.levels.push(i16::from(row % 5 > 0));
                if row % 5 > 0 {
                    values.push(format!("text {}", row % 7).as_str().into());
                }
            }
        };
        writer.group(&AtomicBool::new(false), || fill).unwrap();
        writer.finish().unwrap()
    }

    /// A bit that changed is found, or changes texts alone; never is it a panic.
    #[test]
    fn a_damaged_file_is_read_or_refused() {
        let whole = file();
        let rows = [5..9, PAGE_ROWS + 1..2 * PAGE_ROWS + 9];
        let count = rows.iter().map(ExactSizeIterator::len).sum::<usize>();
        let mut refused = 0;
        let places = 0..whole.len();
        for (place, bit) in places.flat_map(|place| [0, 1, 4, 7].map(|bit| (place, bit))) {
            let mut file = whole.clone();
            file[place] ^= 1 << bit;
            let table =
                TableReader::open(Bytes::from(file), String::from("table"), const { &[SPEC] });
            let batch = table.and_then(|table| {
                table.read(0, &[0], &rows)?;
                table.batch(0, &[0], &rows)
            });
            match batch {
                Ok(batch) => {
                    let texts = batch.texts(0).unwrap();
                    assert!((0..count).all(|row| texts.get(row).is_none_or(|text| text.len() < 9)));
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 0);
    }

    /// A file with more texts than a dictionary holds, which other columns follow.
    #[test]
    fn texts_without_dictionary_are_numbered() {
        let columns = vec![CellKind::Text.column("t", true).unwrap()];
        let (mut file, mut leaves) =
            ParquetFile::new(Vec::new(), columns, Vec::new(), 1 << 20).unwrap();
        const ROWS: usize = 60_000;
        let text =
            |row: usize| (!row.is_multiple_of(5)).then(|| format!("a text of some length, {row}"));
        for row in 0..ROWS {
            let text = text(row);
            leaves[0].push(text.as_deref().map_or(Cell::Null, Cell::Text));
        }
        file.write(&mut leaves, ROWS).unwrap();
        let file = Bytes::from(file.finish().unwrap());
        let table = TableReader::open(file, String::from("table"), const { &[SPEC] }).unwrap();
        let chunk = table.reader.metadata().row_group(0).column(0);
        assert_eq!(chunk.column_type(), Type::BYTE_ARRAY);
        assert!(
            chunk
                .encodings()
                .any(|encoding| encoding == Encoding::PLAIN)
        );
        let rows = [3..9, 50_000..59_999];
        let batch = table.batch(0, &[0], &rows).unwrap();
        let texts = batch.texts(0).unwrap();
        for (at, row) in rows.into_iter().flatten().enumerate() {
            assert_eq!(texts.get(at), text(row).as_deref());
        }
    }
}
