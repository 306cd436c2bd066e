//! Dictionary columns of values that are already numbered.
//!
//! The parquet crate numbers the values of such a column itself: it hashes each and looks it up,
//! which took most of the time of compaction. Here a run's values come with numbers that cost
//! nothing (a flow's addresses, a verdict's texts) or a look-up in a small table, and only the
//! pages are made, as specified by the Parquet format (Encodings.md: RLE_DICTIONARY). Tests check
//! the result with the parquet crate's reader.

use std::collections::HashMap;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, PageType, Type};
use parquet::column::page::{CompressedPage, Page, PageWriteSpec, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::ByteArray;
use parquet::file::metadata::{ColumnChunkMetaData, OffsetIndexBuilder};
use parquet::file::statistics::{Statistics, ValueStatistics};
use parquet::schema::types::ColumnDescPtr;
use strata_columnar::{Pages, rle};
use zstd::bulk::Compressor;

use crate::error::Source;

/// The number for a missing value.
pub const NULL: u32 = u32::MAX;

/// One column of some rows, as numbers of dictionary entries.
#[derive(Debug, PartialEq)]
pub struct Coded {
    /// By row; [`NULL`] where there is no value.
    pub codes: Vec<u32>,
    /// The values that the numbers stand for. Those of [`IntCodes`] are in order of first use; others
    /// may be equal, and some may be unused.
    pub entries: Entries,
}

impl Default for Coded {
    fn default() -> Self {
        Self {
            codes: Vec::new(),
            entries: Entries::Int(Vec::new()),
        }
    }
}

/// Values of a dictionary.
#[derive(Debug, PartialEq)]
pub enum Entries {
    /// For an INT32 or INT64 column.
    Int(Vec<i64>),
    /// For a FLOAT column.
    Float(Vec<f32>),
    /// For a BYTE_ARRAY column.
    Bytes(Vec<ByteArray>),
}

/// Numbers integers in order of first use.
pub struct IntCodes {
    /// Codes of values below its length.
    small: Vec<u32>,
    large: HashMap<i64, u32>,
    entries: Vec<i64>,
}

impl Default for IntCodes {
    fn default() -> Self {
        Self {
            small: vec![NULL; 1 << 16],
            large: HashMap::new(),
            entries: Vec::new(),
        }
    }
}

impl IntCodes {
    #[inline]
    /// The number of a value, which is new or was given one.
    pub fn code(&mut self, value: i64) -> u32 {
        let next = u32::try_from(self.entries.len()).unwrap_or(NULL);
        let small = usize::try_from(value).ok();
        let code = match small.and_then(|at| self.small.get_mut(at)) {
            Some(code) => code,
            None => self.large.entry(value).or_insert(NULL),
        };
        if *code == NULL {
            *code = next;
            self.entries.push(value);
        }
        *code
    }

    /// Returns the entries and starts over.
    pub fn take(&mut self) -> Vec<i64> {
        let entries = std::mem::take(&mut self.entries);
        for value in &entries {
            let at = usize::try_from(*value).ok();
            if let Some(code) = at.and_then(|at| self.small.get_mut(at)) {
                *code = NULL;
            }
        }
        self.large.clear();
        entries
    }
}

/// Which rows of a chunk have a value.
#[derive(Clone, Copy)]
enum Present {
    All,
    Some,
    None,
}

/// How a chunk's data pages are laid out.
#[derive(Clone, Copy)]
struct Form {
    /// Bits of a value's number.
    width: u8,
    /// Whether the column may lack values.
    is_optional: bool,
    values: Present,
}

impl Form {
    /// For a chunk with this many distinct values, and this many rows without one.
    fn of(column: &ColumnDescPtr, used: usize, nulls: u64) -> Result<Self, Source> {
        let width = 32 - u32::try_from(used.saturating_sub(1))?.leading_zeros();
        Ok(Self {
            width: u8::try_from(width)?,
            is_optional: column.max_def_level() == 1,
            values: match (nulls, used) {
                (0, _) => Present::All,
                (_, 0) => Present::None,
                _ => Present::Some,
            },
        })
    }
}

/// Bytes of a chunk's pages.
#[derive(Default)]
struct Sizes {
    compressed: usize,
    uncompressed: usize,
}

impl Sizes {
    fn add(&mut self, page: &PageWriteSpec) {
        self.compressed += page.compressed_size;
        self.uncompressed += page.uncompressed_size;
    }
}

/// Writes column chunks.
pub(crate) struct ChunkWriter {
    zstd: Compressor<'static>,
    page: Vec<u8>,
    /// By entry, its number in the file.
    numbers: Vec<u32>,
    /// Of a page, which rows have a value, and their numbers.
    levels: Vec<u32>,
    there: Vec<u32>,
}

impl ChunkWriter {
    pub(crate) fn new(zstd_level: i32) -> Result<Self, Source> {
        Ok(Self {
            zstd: Compressor::new(zstd_level)?,
            page: Vec::new(),
            numbers: Vec::new(),
            levels: Vec::new(),
            there: Vec::new(),
        })
    }

    /// The bytes of a column chunk with pages of this many rows, and its metadata.
    pub(crate) fn chunk(
        &mut self,
        column: &ColumnDescPtr,
        coded: &mut Coded,
        page_rows: usize,
    ) -> Result<(Bytes, ColumnCloseResult), Source> {
        let (used, nulls) = self.renumber(coded);
        let codes = &coded.codes;
        let form = Form::of(column, used.len(), nulls)?;
        let mut sink = Vec::with_capacity(64 << 10);
        let mut pages = Pages(&mut sink);
        let mut sizes = Sizes::default();
        let dictionary = self.dictionary_page(&coded.entries, &used, column.physical_type())?;
        let dictionary = pages.write_page(dictionary)?;
        sizes.add(&dictionary);
        let mut offsets = OffsetIndexBuilder::new();
        let mut data_page_offset = None;
        for codes in codes.chunks(page_rows) {
            let spec = pages.write_page(self.data_page(codes, form)?)?;
            debug_assert_eq!(spec.page_type, PageType::DATA_PAGE);
            sizes.add(&spec);
            data_page_offset.get_or_insert(spec.offset);
            offsets.append_row_count(i64::try_from(codes.len())?);
            offsets.append_offset_and_size(
                i64::try_from(spec.offset)?,
                i32::try_from(spec.compressed_size)?,
            );
        }
        let metadata = ColumnChunkMetaData::builder(column.clone())
            .set_compression(Compression::ZSTD(Default::default()))
            .set_encodings(vec![
                Encoding::PLAIN,
                Encoding::RLE,
                Encoding::RLE_DICTIONARY,
            ])
            .set_num_values(i64::try_from(codes.len())?)
            .set_total_compressed_size(i64::try_from(sizes.compressed)?)
            .set_total_uncompressed_size(i64::try_from(sizes.uncompressed)?)
            .set_dictionary_page_offset(Some(i64::try_from(dictionary.offset)?))
            .set_data_page_offset(i64::try_from(
                data_page_offset.ok_or("a column without a page")?,
            )?)
            .set_statistics(statistics(column, &coded.entries, &used, nulls))
            .build()?;
        let bytes = Bytes::from(sink);
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: codes.len() as u64,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: Some(offsets.build()),
        };
        Ok((bytes, close))
    }

    /// The values in use.
    fn dictionary_page(
        &mut self,
        entries: &Entries,
        used: &[u32],
        kind: Type,
    ) -> Result<CompressedPage, Source> {
        self.page.clear();
        plain(entries, used, kind, &mut self.page)?;
        let page = Page::DictionaryPage {
            buf: self.zstd.compress(&self.page)?.into(),
            num_values: u32::try_from(used.len())?,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        Ok(CompressedPage::new(page, self.page.len()))
    }

    /// Numbers of values, row by row; before them which rows have one, if that is a question.
    fn data_page(&mut self, codes: &[u32], form: Form) -> Result<CompressedPage, Source> {
        self.page.clear();
        if form.is_optional {
            self.page.extend_from_slice(&[0; 4]);
            match form.values {
                Present::All => rle::repeated(1, codes.len(), 1, &mut self.page),
                Present::None => rle::repeated(0, codes.len(), 1, &mut self.page),
                Present::Some => {
                    let levels = codes.iter().map(|code| u32::from(*code != NULL));
                    self.levels.clear();
                    self.levels.extend(levels);
                    rle::write(&self.levels, 1, &mut self.page);
                }
            }
            let len = u32::try_from(self.page.len() - 4)?;
            self.page[..4].copy_from_slice(&len.to_le_bytes());
        }
        self.page.push(form.width);
        if let Present::All = form.values {
            rle::write(codes, form.width, &mut self.page);
        } else {
            let there = codes.iter().copied().filter(|code| *code != NULL);
            self.there.clear();
            self.there.extend(there);
            rle::write(&self.there, form.width, &mut self.page);
        }
        let page = Page::DataPage {
            buf: self.zstd.compress(&self.page)?.into(),
            num_values: u32::try_from(codes.len())?,
            encoding: Encoding::RLE_DICTIONARY,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        Ok(CompressedPage::new(page, self.page.len()))
    }

    /// Numbers the used entries in order of first use, each value once, and replaces the codes by
    /// these numbers. Returns the entry of each number, and how many rows have no value.
    fn renumber(&mut self, coded: &mut Coded) -> (Vec<u32>, u64) {
        match &coded.entries {
            Entries::Int(entries) => {
                // `IntCodes` has numbered them so.
                let used = (0..NULL).take(entries.len()).collect();
                (used, nulls(&coded.codes))
            }
            Entries::Float(entries) => {
                let mut known: HashMap<u32, u32> = HashMap::new();
                self.renumber_by(&mut coded.codes, entries.len(), |at, next| {
                    *known.entry(entries[at].to_bits()).or_insert(next)
                })
            }
            Entries::Bytes(entries) => {
                let mut known: HashMap<&[u8], u32> = HashMap::new();
                self.renumber_by(&mut coded.codes, entries.len(), |at, next| {
                    *known.entry(entries[at].data()).or_insert(next)
                })
            }
        }
    }

    /// As [`ChunkWriter::renumber`], with the number of an entry's value, or the next one if it has
    /// none yet, from `number`.
    fn renumber_by(
        &mut self,
        codes: &mut [u32],
        entries: usize,
        mut number: impl FnMut(usize, u32) -> u32,
    ) -> (Vec<u32>, u64) {
        self.numbers.clear();
        self.numbers.resize(entries, NULL);
        let mut used = Vec::new();
        let mut nulls = 0;
        // Rows of a flow follow each other, and have the same value in most columns.
        let mut last = (NULL, NULL);
        for code in codes {
            if *code == last.0 {
                nulls += u64::from(*code == NULL);
                *code = last.1;
                continue;
            }
            last = (*code, NULL);
            if *code == NULL {
                nulls += 1;
                continue;
            }
            let known = &mut self.numbers[*code as usize];
            if *known == NULL {
                let next = u32::try_from(used.len()).unwrap_or(NULL);
                *known = number(*code as usize, next);
                if *known == next {
                    used.push(*code);
                }
            }
            last.1 = *known;
            *code = *known;
        }
        (used, nulls)
    }
}

/// How many rows have no value.
fn nulls(codes: &[u32]) -> u64 {
    // Sums of 32 bits that cannot overflow: the compiler makes vectors of them.
    let chunks = codes.chunks(1 << 16);
    let count = |codes: &[u32]| {
        let ones = codes.iter().map(|code| u32::from(*code == NULL));
        ones.fold(0_u32, u32::wrapping_add)
    };
    chunks.map(|codes| u64::from(count(codes))).sum()
}

/// The values in PLAIN encoding.
fn plain(entries: &Entries, used: &[u32], kind: Type, out: &mut Vec<u8>) -> Result<(), Source> {
    for at in used {
        let at = *at as usize;
        match entries {
            Entries::Int(entries) if kind == Type::INT32 => {
                out.extend_from_slice(&i32::try_from(entries[at])?.to_le_bytes());
            }
            Entries::Int(entries) => out.extend_from_slice(&entries[at].to_le_bytes()),
            Entries::Float(entries) => out.extend_from_slice(&entries[at].to_le_bytes()),
            Entries::Bytes(entries) => {
                let bytes = entries[at].data();
                out.extend_from_slice(&u32::try_from(bytes.len())?.to_le_bytes());
                out.extend_from_slice(bytes);
            }
        }
    }
    Ok(())
}

fn statistics(column: &ColumnDescPtr, entries: &Entries, used: &[u32], nulls: u64) -> Statistics {
    fn range<'a, T: PartialOrd + Clone + 'a>(
        entries: &'a [T],
        used: &[u32],
        nulls: u64,
    ) -> ValueStatistics<T> {
        let mut range: Option<(&T, &T)> = None;
        for at in used {
            let value = &entries[*at as usize];
            let (min, max) = range.unwrap_or((value, value));
            range = Some((
                if value < min { value } else { min },
                if value > max { value } else { max },
            ));
        }
        let (min, max) = range.map(|(min, max)| (min.clone(), max.clone())).unzip();
        ValueStatistics::new(min, max, None, Some(nulls), false)
    }
    match entries {
        Entries::Int(entries) if column.physical_type() == Type::INT32 => {
            // Values that do not fit were refused above.
            let narrow = |value: &i64| i32::try_from(*value).expect("it was refused");
            let entries: Vec<i32> = entries.iter().map(narrow).collect();
            Statistics::Int32(range(&entries, used, nulls))
        }
        Entries::Int(entries) => Statistics::Int64(range(entries, used, nulls)),
        Entries::Float(entries) => Statistics::Float(range(entries, used, nulls)),
        Entries::Bytes(entries) => {
            // Nobody searches bytes that are not text by range.
            let used = if column.logical_type_ref().is_some() {
                used
            } else {
                &[]
            };
            Statistics::ByteArray(range(entries, used, nulls))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Coding, Kind, Spec};
    use crate::{Column, TableReader, TableWriter, Values};
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;

    const COLUMNS: &[Spec] = &[
        Spec::new("int", Kind::Int32, Coding::Codes, ""),
        Spec::new("maybe", Kind::Int64, Coding::Codes, "").or_null(),
        Spec::new("text", Kind::Text, Coding::Codes, "").or_null(),
        Spec::new("float", Kind::Float, Coding::Codes, "").or_null(),
    ];

    fn file(rows: &[(u32, Option<i64>, Option<u32>)]) -> Vec<u8> {
        let texts: Vec<ByteArray> = (0..300)
            .map(|n| ByteArray::from((n % 200).to_string().as_str()))
            .collect();
        let floats: Vec<f32> = (0..300_u16).map(|n| f32::from(n % 100)).collect();
        let mut table = TableWriter::new(Vec::new(), "t", COLUMNS, &[]).unwrap();
        for rows in rows.chunks(20_000) {
            table
                .group(&AtomicBool::new(false), || {
                    let mut ints = IntCodes::default();
                    let (texts, floats) = (&texts, &floats);
                    move |index, column: &mut Column| {
                        let Values::Coded(coded) = &mut column.values else {
                            panic!("a column for writing");
                        };
                        let code = |row: &(u32, Option<i64>, Option<u32>)| match index {
                            0 => ints.code(row.0.into()),
                            1 => row.1.map_or(NULL, |value| ints.code(value)),
                            _ => row.2.unwrap_or(NULL),
                        };
                        coded.codes.extend(rows.iter().map(code));
                        coded.entries = match index {
                            0 | 1 => Entries::Int(ints.take()),
                            2 => Entries::Bytes(texts.clone()),
                            _ => Entries::Float(floats.clone()),
                        };
                    }
                })
                .unwrap();
        }
        table.finish().unwrap()
    }

    fn check(rows: &[(u32, Option<i64>, Option<u32>)]) {
        let bytes = Bytes::from(file(rows));
        let table = TableReader::open(bytes, String::from("t"), COLUMNS).unwrap();
        let mut rest = rows;
        for (group, count) in table.groups().into_iter().enumerate() {
            let (here, after) = rest.split_at(count);
            rest = after;
            // Pages are skipped too: the offset index has their positions.
            for range in [0..count, count / 2..count, count * 9 / 10..count] {
                let columns = table
                    .read(group, &[0, 1, 2, 3], std::slice::from_ref(&range))
                    .unwrap();
                let same = |column: &Column, expected: Vec<Option<i64>>| {
                    assert!(column.ints().eq(expected));
                };
                let rows = &here[range];
                same(
                    &columns[0],
                    rows.iter().map(|row| Some(row.0.into())).collect(),
                );
                same(&columns[1], rows.iter().map(|row| row.1).collect());
                let texts = columns[2].bytes();
                assert!(rows.iter().zip(texts).all(|(row, text)| {
                    let text = text.map(|text| text.as_utf8().unwrap().to_owned());
                    text == row.2.map(|n| (n % 200).to_string())
                }));
                let floats = columns[3].floats();
                assert!(rows.iter().zip(floats).all(|(row, float)| {
                    float == row.2.map(|n| f32::from(u8::try_from(n % 100).unwrap()))
                }));
            }
        }
        assert!(rest.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// The parquet crate reads back what was written: runs of any length between values of any
        /// width.
        #[test]
        fn chunks_are_read_back(
            runs in prop::collection::vec(
                (any::<u16>(), prop::option::of(-3_i64..1 << 40), prop::option::of(0_u32..300),
                 prop::sample::select(vec![1_usize, 1, 1, 2, 7, 8, 9, 15, 16, 17, 100, 9_000])), 1..120),
        ) {
            let rows: Vec<_> = runs
                .into_iter()
                .flat_map(|(int, maybe, text, times)| {
                    std::iter::repeat_n((u32::from(int), maybe, text), times)
                })
                .collect();
            check(&rows);
        }
    }

    #[test]
    fn one_value_and_none_at_all_are_read_back() {
        check(&vec![(7, None, None); 30_000]);
        check(&[(7, Some(-1), Some(0)); 3]);
        let every: Vec<_> = (0..70_000)
            .map(|n| (n, Some(n.into()), Some(n % 300)))
            .collect();
        check(&every);
    }
}
