//! Whether a directory of streams is whole.

use strata_stream::{Cursor, StreamName};

use crate::dir::StreamDir;
use crate::error::Result;
use crate::stream::reader::Unread;

/// What a stream has, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct StreamCheck {
    /// The stream.
    pub name: StreamName,
    /// Records that can be read.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// What cannot be read.
    pub unread: Unread,
    /// What is wrong, in words.
    pub problems: Vec<String>,
}

/// Reads every record of every stream.
///
/// # Errors
///
/// If the directory cannot be read. What is wrong with a stream is a problem of that stream.
pub fn check_streams(dir: &StreamDir) -> Result<Vec<StreamCheck>> {
    let names = dir.names()?;
    Ok(names.into_iter().map(|name| check(dir, name)).collect())
}

fn check(dir: &StreamDir, name: StreamName) -> StreamCheck {
    let mut check = StreamCheck {
        name,
        records: 0,
        bytes: 0,
        unread: Unread::default(),
        problems: Vec::new(),
    };
    if let Err(error) = read_all(dir, &mut check) {
        check.problems.push(error.to_string());
    }
    check
}

fn read_all(dir: &StreamDir, check: &mut StreamCheck) -> Result<()> {
    let mut reader = dir.read(&check.name)?;
    reader.seek(Cursor::START, None);
    let (mut records, mut bytes, mut after) = (0, 0, None);
    let mut twice = None;
    reader.read::<crate::StreamError>(u64::MAX, |entry| {
        records += 1;
        bytes += entry.payload.len() as u64;
        if entry.seq.is_some() && entry.seq <= after {
            twice = twice.or(entry.seq);
        }
        after = entry.seq;
        Ok(true)
    })?;
    (check.records, check.bytes, check.unread) = (records, bytes, reader.unread());
    if let Some(seq) = twice {
        check
            .problems
            .push(format!("record {seq} follows one with a higher number"));
    }
    check.problems.extend(reader.unreadable_pages()?);
    // A stream without pages there misses nothing.
    let gone = reader.pages_gone()?;
    if gone > 0 {
        check.problems.push(format!(
            "{gone} of its pages are on missing stripes: {}",
            reader.gone_stripes().join(", ")
        ));
    }
    Ok(())
}
