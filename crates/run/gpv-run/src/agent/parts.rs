//! A Parquet file that grows for days: what was written survives the end of the program, however that
//! comes.
//!
//! A Parquet file can be read once its footer is there, which comes last. So rows go to parts,
//! `records.part0000.parquet` and so on, each complete after a stated time; at the end they become one
//! file, without being encoded again, and only then take the place of one that was there. After a kill,
//! the parts are left.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parquet::column::writer::ColumnCloseResult;
use parquet::file::metadata::ParquetMetaDataReader;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use strata_gpv::{Columns, Full, Grouped};
use strata_role::{Notice, Tell};
use strata_store::Sources;

use crate::error::{At as _, Result, VectorError};
use crate::rotation::numbered;
use crate::rows::{About, Rows};

/// A part is complete at this size, about, even before its time.
const PART_BYTES: u64 = 64 << 20;
/// Parts at most, of one file: at one a second, those of 11 days.
const PARTS_MAX: u32 = 1_000_000;

/// A file of rows.
pub(super) struct Parts {
    /// As it was named.
    name: String,
    /// Where it is to be.
    target: PathBuf,
    every: Duration,
    /// The part that is written.
    current: Option<Part>,
    /// Those that are complete.
    complete: Vec<PathBuf>,
    complete_bytes: u64,
    next: u32,
}

/// A part that is written.
struct Part {
    rows: Rows<File>,
    /// Its name until it is complete, and from then on.
    hidden: Hidden,
    path: PathBuf,
    began: Instant,
}

impl Parts {
    /// A file of rows at this path, whose parts are complete after so long. What is there stays until the
    /// end.
    pub(super) fn create(
        path: &Path,
        sources: &Sources,
        every: Duration,
        tell: &Tell,
    ) -> Result<Self> {
        sources.check(path)?;
        let name = path.display().to_string();
        // A link stays one.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut parts = Self {
            name,
            target,
            every,
            current: None,
            complete: Vec::new(),
            complete_bytes: 0,
            next: 0,
        };
        let mut others = 0_u64;
        while parts.next < PARTS_MAX && parts.path_of(parts.next).exists() {
            parts.next += 1;
            others += 1;
        }
        if others > 0 {
            tell(&Notice::warning(format!(
                "{}: {others} complete parts of an earlier, unfinished run are next to it, and \
                 stay unchanged",
                parts.name
            )));
        }
        Ok(parts)
    }

    fn path_of(&self, number: u32) -> PathBuf {
        numbered(&self.target, &format!("part{number:04}"))
    }

    /// A name beside the file that no pattern for its parts matches.
    fn hidden(&self, of: &Path) -> PathBuf {
        let mut name = OsString::from(".");
        name.push(of.file_name().unwrap_or_else(|| self.target.as_os_str()));
        name.push(format!(".{}.unfinished", std::process::id()));
        of.with_file_name(name)
    }

    fn begin(&mut self) -> Result<&mut Part> {
        let part = match self.current.take() {
            Some(part) => part,
            None => self.part()?,
        };
        Ok(self.current.insert(part))
    }

    /// Another part.
    fn part(&mut self) -> Result<Part> {
        let path = self.path_of(self.next);
        self.next += 1;
        if self.next >= PARTS_MAX {
            return Err(VectorError::TooManyParts {
                file: self.name.clone(),
                parts: PARTS_MAX,
            });
        }
        let hidden = Hidden(self.hidden(&path));
        let file = File::create(&hidden.0).at_with(|| self.cannot(&hidden.0))?;
        Ok(Part {
            rows: Rows::new(file, Columns::ALL)?,
            hidden,
            path,
            began: Instant::now(),
        })
    }

    fn cannot(&self, path: &Path) -> String {
        match path == self.target {
            true => format!("{}: cannot write", self.name),
            false => format!("{}: cannot write {}", self.name, path.display()),
        }
    }

    /// Adds a row.
    pub(super) fn push<G: Grouped<Full>>(&mut self, group: &G, about: About<'_>) -> Result<()> {
        let part = self.begin()?;
        part.rows.push(group, about);
        part.rows.write()
    }

    /// Completes the part that is due.
    pub(super) fn keep_up(&mut self) -> Result<()> {
        let is_due = self.current.as_ref().is_some_and(|part| {
            part.rows.written > 0
                && (part.began.elapsed() >= self.every || part.rows.bytes() >= PART_BYTES)
        });
        match is_due {
            true => self.complete(),
            false => Ok(()),
        }
    }

    /// Bytes of the file so far, about.
    pub(super) fn bytes(&self) -> u64 {
        let current = self.current.as_ref().map_or(0, |part| part.rows.bytes());
        self.complete_bytes.saturating_add(current)
    }

    /// Completes the part that is written, if there is one.
    fn complete(&mut self) -> Result<()> {
        let Some(part) = self.current.take() else {
            return Ok(());
        };
        let named = self.cannot(&part.path);
        let written = part.rows.finish().and_then(|file| {
            file.sync_all()?;
            let bytes = file.metadata()?.len();
            fs::rename(&part.hidden.0, &part.path)?;
            Ok(bytes)
        });
        let bytes = written.at_with(|| named)?;
        self.complete_bytes = self.complete_bytes.saturating_add(bytes);
        self.complete.push(part.path);
        Ok(())
    }

    /// Writes what is left, and makes the parts one file, in the place of what is there.
    pub(super) fn finish(mut self) -> Result<()> {
        if self.complete.is_empty() {
            // A file without rows says which columns there are.
            self.begin()?;
        }
        self.complete()?;
        let merged = match &self.complete[..] {
            [only] => fs::rename(only, &self.target).map_err(VectorError::from),
            _ => self.merge(),
        };
        merged
            .and_then(|()| Ok(File::open(folder(&self.target))?.sync_all()?))
            .at_with(|| {
                format!(
                    "{}: cannot write: the records are in its parts, such as {}",
                    self.name,
                    self.complete[0].display()
                )
            })
    }

    fn merge(&self) -> Result<()> {
        let hidden = Hidden(self.hidden(&self.target));
        one_of(&self.complete, File::create(&hidden.0)?)?;
        fs::rename(&hidden.0, &self.target)?;
        for part in &self.complete {
            fs::remove_file(part)?;
        }
        Ok(())
    }
}

/// A file that is not needed unless it gets another name.
struct Hidden(PathBuf);

impl Drop for Hidden {
    fn drop(&mut self) {
        // Complete, it has another name by now.
        let _ = fs::remove_file(&self.0);
    }
}

/// The directory of a file.
fn folder(path: &Path) -> &Path {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Writes one file with the row groups of all, as they are.
fn one_of(parts: &[PathBuf], to: File) -> Result<()> {
    let first = ParquetMetaDataReader::new().parse_and_finish(&File::open(&parts[0])?)?;
    let first = first.file_metadata();
    let properties = WriterProperties::builder()
        .set_key_value_metadata(first.key_value_metadata().cloned())
        .build();
    let schema = first.schema_descr().root_schema_ptr();
    let mut writer = SerializedFileWriter::new(to, schema, Arc::new(properties))?;
    for path in parts {
        let file = File::open(path)?;
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&file)?;
        for group in metadata.row_groups() {
            let mut out = writer.next_row_group()?;
            for column in group.columns() {
                let rows = u64::try_from(group.num_rows());
                let rows = rows.at_with(|| "the number of rows is negative".to_owned())?;
                let bytes = u64::try_from(column.compressed_size());
                let closed = ColumnCloseResult {
                    bytes_written: bytes
                        .at_with(|| "the number of bytes is negative".to_owned())?,
                    rows_written: rows,
                    metadata: column.clone(),
                    bloom_filter: None,
                    column_index: None,
                    offset_index: None,
                };
                out.append_column(&file, closed)?;
            }
            out.close()?;
        }
    }
    let file = writer.into_inner()?;
    Ok(file.sync_all()?)
}
