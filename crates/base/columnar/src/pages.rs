//! Pages with checksums: the CRC-32 in the Parquet format's `PageHeader.crc`, which the parquet
//! crate checks when reading but does not write. Other readers check it on request too.

use parquet::basic::{Encoding, PageType};
use parquet::column::page::{CompressedPage, Page, PageWriteSpec, PageWriter};
use parquet::errors::{ParquetError, Result};

/// Writes the pages of a column chunk, each after its header.
#[derive(Debug)]
pub struct Pages<'a>(pub &'a mut Vec<u8>);

impl PageWriter for Pages<'_> {
    fn write_page(&mut self, page: CompressedPage) -> Result<PageWriteSpec> {
        let start = self.0.len();
        header(&page, self.0)?;
        let header_len = self.0.len() - start;
        self.0.extend_from_slice(page.data());
        let mut spec = PageWriteSpec::new();
        spec.page_type = page.page_type();
        spec.uncompressed_size = page.uncompressed_size() + header_len;
        spec.compressed_size = page.compressed_size() + header_len;
        spec.num_values = page.num_values();
        spec.offset = start as u64;
        spec.bytes_written = (self.0.len() - start) as u64;
        Ok(spec)
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

/// `PageHeader` of parquet.thrift, without statistics, in Thrift's compact protocol.
fn header(page: &CompressedPage, out: &mut Vec<u8>) -> Result<()> {
    let size = |bytes: usize| {
        let size = i32::try_from(bytes);
        size.map_err(|_| ParquetError::General(format!("a page of {bytes} bytes")))
    };
    let values = size(page.num_values() as usize)?;
    let mut write = Struct { out, last: 0 };
    write.int(1, page.page_type() as i32);
    write.int(2, size(page.uncompressed_size())?);
    write.int(3, size(page.compressed_size())?);
    write.int(4, crc32fast::hash(page.data()).cast_signed());
    match page.compressed_page() {
        Page::DataPage {
            encoding,
            def_level_encoding,
            rep_level_encoding,
            ..
        } => {
            let mut data = write.inner(5);
            data.int(1, values);
            data.int(2, number(*encoding)?);
            data.int(3, number(*def_level_encoding)?);
            data.int(4, number(*rep_level_encoding)?);
            data.end();
        }
        Page::DictionaryPage {
            encoding,
            is_sorted,
            ..
        } => {
            let mut dictionary = write.inner(7);
            dictionary.int(1, values);
            dictionary.int(2, number(*encoding)?);
            dictionary.bool(3, *is_sorted);
            dictionary.end();
        }
        Page::DataPageV2 { .. } => {
            let problem = "pages of version 2 cannot be written";
            return Err(ParquetError::General(problem.into()));
        }
    }
    write.end();
    Ok(())
}

const _: () = assert!(PageType::DATA_PAGE as i32 == 0 && PageType::DICTIONARY_PAGE as i32 == 2);

/// The number of an encoding in parquet.thrift.
fn number(encoding: Encoding) -> Result<i32> {
    Ok(match encoding {
        Encoding::PLAIN => 0,
        Encoding::RLE => 3,
        Encoding::DELTA_BINARY_PACKED => 5,
        Encoding::DELTA_LENGTH_BYTE_ARRAY => 6,
        Encoding::DELTA_BYTE_ARRAY => 7,
        Encoding::RLE_DICTIONARY => 8,
        other => {
            let problem = format!("encoding {other} cannot be written");
            return Err(ParquetError::General(problem));
        }
    })
}

/// A struct of Thrift's compact protocol, with fields in ascending order.
struct Struct<'a> {
    out: &'a mut Vec<u8>,
    /// The number of the last field.
    last: u8,
}

impl Struct<'_> {
    fn field(&mut self, number: u8, kind: u8) {
        self.out.push((number - self.last) << 4 | kind);
        self.last = number;
    }

    fn int(&mut self, number: u8, value: i32) {
        self.field(number, 5);
        let mut zigzag = (value << 1 ^ value >> 31).cast_unsigned();
        while zigzag >= 0x80 {
            self.out.push(zigzag.to_le_bytes()[0] | 0x80);
            zigzag >>= 7;
        }
        self.out.push(zigzag.to_le_bytes()[0]);
    }

    fn bool(&mut self, number: u8, value: bool) {
        self.field(number, if value { 1 } else { 2 });
    }

    fn inner(&mut self, number: u8) -> Struct<'_> {
        self.field(number, 12);
        Struct {
            out: &mut *self.out,
            last: 0,
        }
    }

    fn end(self) {
        self.out.push(0);
    }
}
