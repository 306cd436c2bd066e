//! What a stream is, as its file says: written once, when the stream is created.

use std::time::Duration;

use strata_wire::exact;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

use crate::key::StreamKey;
use crate::layout::DescriptionBytes;
use crate::name::StreamName;
use crate::page::header::Form;
use crate::retention::Retention;
use crate::table::{Geometry, GeometryError};

/// Bytes of a stream's file that are set aside for its description, and then for its state.
pub const SECTOR: u64 = 4096;
/// Where the state is.
pub const STATE_AT: u64 = SECTOR;
/// Where the page directory is.
pub const DIRECTORY_AT: u64 = 2 * SECTOR;

const MAGIC: [u8; 8] = *b"STRASTR3";
const LEN: usize = size_of::<DescriptionBytes>();

/// What a stream is.
///
/// ```text
///   0 magic "STRASTR3"
///   8 id u64              random
///  16 key 16 bytes        random: of the tags of its records
///  32 created_ns u64      since 1970
///  40 retain_bytes u64    2^64-1: no limit
///  48 retain_ns u64       2^64-1: no limit
///  56 directory_bytes u32
///  60 table_bytes u32
///  64 page_bytes u32
///  68 form u8             of its records: 1 sealed, 2 linked
///  69 redundancy u8       addresses of a linked record
///  70 block_shift u8      blocks of linked records are 2^this; 0: none
///  71 name_len u8
///  72 name 64 bytes
/// 136 tag u64             SipHash-2-4 of bytes 0 to 135 with the key
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// Tells its pages from those of other streams.
    pub id: u64,
    /// Of the tags of its records.
    pub key: [u8; 16],
    /// When it was created, ns since 1970.
    pub created_ns: u64,
    /// How much is kept.
    pub retention: Retention,
    /// Sizes of its pages.
    pub geometry: Geometry,
    /// How its records are written.
    pub form: Form,
    /// Its name, which the file's name repeats.
    pub name: StreamName,
}

/// Why bytes are not a description.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DescriptionError {
    /// Something else, or of a later version.
    #[error(
        "it is not a stream of version 3: recreate streams that earlier development versions made"
    )]
    Magic,
    /// Cut short.
    #[error("it is only {0} bytes long: restore it from a copy")]
    Short(usize),
    /// Changed since it was written.
    #[error(
        "its first 144 bytes (its description) are damaged: restore them from a copy of this file"
    )]
    Tag,
    /// A form or name that cannot be.
    #[error(
        "its first 144 bytes (its description) have an invalid {0}: restore them from a copy of \
         this file"
    )]
    Field(&'static str),
    /// Sizes that cannot be.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
}

fn no_limit(value: Option<u64>) -> U64 {
    U64::new(value.map_or(u64::MAX, |value| value.min(u64::MAX - 1)))
}

fn limit(stored: U64) -> Option<u64> {
    (stored.get() != u64::MAX).then_some(stored.get())
}

impl Description {
    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let [form, redundancy, block_shift] = self.form.emit();
        let mut name = [0; 64];
        let text = self.name.as_str().as_bytes();
        name[..text.len()].copy_from_slice(text);
        // 584 years: longer is no limit at all.
        let age = self.retention.age.map(|age| u64::try_from(age.as_nanos()));
        let description = DescriptionBytes {
            magic: MAGIC,
            id: U64::new(self.id),
            key: self.key,
            created_ns: U64::new(self.created_ns),
            retain_bytes: no_limit(self.retention.bytes),
            retain_ns: no_limit(age.and_then(Result::ok)),
            directory_bytes: U32::new(self.geometry.directory_bytes),
            table_bytes: U32::new(self.geometry.table_bytes),
            page_bytes: U32::new(self.geometry.page_bytes),
            form,
            redundancy,
            block_shift,
            name_len: exact(text.len()),
            name,
            tag: U64::new(0),
        };
        let bytes: [u8; LEN] = zerocopy::transmute!(description);
        let mut bytes = bytes.to_vec();
        let tag = StreamKey::new(self.key).tag(&bytes[..LEN - 8]);
        bytes[LEN - 8..].copy_from_slice(&tag.to_le_bytes());
        bytes
    }

    /// The description at the start of a stream's file.
    ///
    /// # Errors
    ///
    /// If it is something else, damaged, or says what cannot be.
    pub fn parse(bytes: &[u8]) -> Result<Self, DescriptionError> {
        if bytes.get(..8).is_some_and(|magic| magic != MAGIC) {
            return Err(DescriptionError::Magic);
        }
        let (read, _) = DescriptionBytes::read_from_prefix(bytes)
            .map_err(|_| DescriptionError::Short(bytes.len()))?;
        let tag = StreamKey::new(read.key).tag(&bytes[..LEN - 8]);
        if tag != read.tag.get() {
            return Err(DescriptionError::Tag);
        }
        let geometry = Geometry {
            directory_bytes: read.directory_bytes.get(),
            table_bytes: read.table_bytes.get(),
            page_bytes: read.page_bytes.get(),
        };
        let geometry = geometry.checked()?;
        let form = [read.form, read.redundancy, read.block_shift];
        let form = Form::parse(form, geometry.page_len());
        let name = read.name.get(..usize::from(read.name_len));
        let name = name.and_then(|name| std::str::from_utf8(name).ok()?.parse().ok());
        Ok(Self {
            id: read.id.get(),
            key: read.key,
            created_ns: read.created_ns.get(),
            retention: Retention {
                bytes: limit(read.retain_bytes),
                age: limit(read.retain_ns).map(Duration::from_nanos),
            },
            geometry,
            form: form.ok_or(DescriptionError::Field("form of records"))?,
            name: name.ok_or(DescriptionError::Field("name"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Description {
        Description {
            id: 7,
            key: [3; 16],
            created_ns: 1,
            retention: Retention {
                bytes: Some(10_000_000_000),
                age: None,
            },
            geometry: Geometry::default(),
            form: Form::PAPER,
            name: "a.stream".parse().unwrap(),
        }
    }

    #[test]
    fn descriptions_are_read_back_and_changed_bits_are_noticed() {
        let bytes = description().emit();
        assert_eq!(Description::parse(&bytes), Ok(description()));
        assert_eq!(
            Description::parse(&bytes[..100]),
            Err(DescriptionError::Short(100))
        );
        assert_eq!(Description::parse(b""), Err(DescriptionError::Short(0)));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Description::parse(&changed).is_err(), "byte {at}");
        }
    }
}
