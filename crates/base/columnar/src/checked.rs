//! Files and their pages, checked before parquet's readers see them: these panic at places before the start of a
//! file, at numbers without a dictionary, at levels or pages of version 2 that are cut short, and at wrong lengths
//! in plain pages of texts or bytes (Encodings.md of the Parquet format, "Plain").
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::schema::types::ColumnDescriptor;

use crate::rle;

/// The pages of a column outside lists, from a file that may be any, without those of version 2. A page that would
/// be a panic is an error.
#[must_use]
pub fn checked(pages: Box<dyn PageReader>, column: &ColumnDescriptor) -> Box<dyn PageReader> {
    Box::new(Checked {
        pages,
        has_levels: column.max_def_level() > 0,
        is_sized: column.physical_type() == Type::BYTE_ARRAY,
        has_dictionary: false,
    })
}

/// Whether columns and pages are at places of a file, and the rows of pages follow each other, in row groups whose
/// numbers of rows are not negative: parquet's readers take that for granted.
#[must_use]
pub fn has_places(metadata: &ParquetMetaData) -> bool {
    let mut chunks = metadata
        .row_groups()
        .iter()
        .flat_map(RowGroupMetaData::columns);
    let chunks = chunks.all(|chunk| {
        let dictionary = chunk.dictionary_page_offset();
        let places = [chunk.data_page_offset(), chunk.compressed_size()];
        places.into_iter().chain(dictionary).all(|at| at >= 0)
    });
    let index = metadata.offset_index().into_iter().flatten();
    let mut index = metadata.row_groups().iter().zip(index);
    let pages = index.all(|(group, columns)| {
        columns.iter().all(|column| {
            let pages = column.page_locations();
            let rows = || pages.iter().map(|page| page.first_row_index);
            rows().is_sorted()
                && rows().next().is_none_or(|first| first == 0)
                && rows()
                    .next_back()
                    .is_none_or(|last| last <= group.num_rows())
                && pages
                    .iter()
                    .all(|page| page.offset >= 0 && page.compressed_page_size >= 0)
        })
    });
    chunks && pages
}

struct Checked {
    pages: Box<dyn PageReader>,
    /// Whether values may be missing.
    has_levels: bool,
    /// Whether values have their lengths before them.
    is_sized: bool,
    /// Whether the dictionary has come.
    has_dictionary: bool,
}

impl Checked {
    fn check(&mut self, page: &Page) -> Result<()> {
        match page {
            Page::DictionaryPage {
                buf, num_values, ..
            } => {
                self.has_dictionary = true;
                match self.is_sized {
                    true => plain(buf, usize::try_from(*num_values)?),
                    false => Ok(()),
                }
            }
            Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding,
                ..
            } => {
                let levels = self.has_levels.then_some(*def_level_encoding);
                self.data(buf, usize::try_from(*num_values)?, *encoding, levels)
            }
            Page::DataPageV2 { .. } => Err(wrong("a page of version 2")),
        }
    }

    /// A page with this encoding of values, and of levels, if it has any.
    fn data(
        &self,
        page: &[u8],
        count: usize,
        encoding: Encoding,
        levels: Option<Encoding>,
    ) -> Result<()> {
        #[allow(deprecated, reason = "as older writers name it")]
        let is_coded = matches!(
            encoding,
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY
        );
        if is_coded && !self.has_dictionary {
            return Err(wrong("a page whose dictionary is missing"));
        }
        let (levels, values) = match levels {
            None => (None, page),
            Some(Encoding::RLE) => {
                let (levels, values) = sized(page)?;
                (Some(levels), values)
            }
            Some(_) => return Err(wrong("a page with other levels")),
        };
        if !self.is_sized || encoding != Encoding::PLAIN {
            return Ok(());
        }
        let Some(levels) = levels else {
            return plain(values, count);
        };
        let mut there = Vec::new();
        rle::read(levels, 1, count, &mut there)?;
        plain(values, there.iter().filter(|level| **level == 1).count())
    }
}

impl PageReader for Checked {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.check(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

impl Iterator for Checked {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// Checks that there are as many values, each after its length.
fn plain(bytes: &[u8], count: usize) -> Result<()> {
    let mut rest = bytes;
    for _ in 0..count {
        rest = sized(rest)?.1;
    }
    Ok(())
}

/// As many bytes as the 4 before them say, and what comes after.
fn sized(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let split = bytes.split_first_chunk().and_then(|(len, after)| {
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        after.split_at_checked(len)
    });
    split.ok_or_else(|| wrong("a page that ends too early"))
}

fn wrong(problem: &str) -> ParquetError {
    ParquetError::General(problem.to_owned())
}
