//! Where a command writes: the requested file, or standard output.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, StdoutLock, Write, stdout};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context, Result};
use flate2::write::GzEncoder;
use serde::Serialize;
use strata_store::{OutputError, Sources};
use strata_wire::{Printable, PrintableJson};

use crate::text;

/// The command line cannot be executed as given: the program exits with 2, as for an invalid
/// option.
#[derive(Debug)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// An error for a command line that cannot be executed as given.
pub fn refuse(problem: impl Into<String>) -> anyhow::Error {
    Refused(problem.into()).into()
}

/// Standard output, with errors that name it.
pub struct Standard(StdoutLock<'static>);

/// Locks standard output. `print!` would panic where this returns an error.
pub fn standard() -> Standard {
    Standard(stdout().lock())
}

impl Write for Standard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(|error| named(STANDARD, &error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(|error| named(STANDARD, &error))
    }
}

const STANDARD: &str = "standard output";

/// The error of a write, with the name of what is written. Its kind stays: the caller may react to
/// a closed pipe or a full disk.
fn named(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: cannot write: {error}"))
}

/// Prints the result of a command as JSON, on one line.
pub fn print_json(answer: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string(answer)?;
    writeln!(standard(), "{}", PrintableJson(&json))?;
    Ok(())
}

/// Whether a result covers everything that the command was asked for: fields of its JSON.
#[derive(Debug, Serialize)]
pub struct Completeness {
    complete: bool,
    /// Why not, as on standard error; null if it is complete.
    problem: Option<String>,
}

impl Completeness {
    /// That of a command that ends like this, after it has a result.
    #[must_use]
    pub fn of(ended: &Result<()>) -> Self {
        let problem = ended.as_ref().err().map(text::chain);
        Self {
            complete: problem.is_none(),
            problem,
        }
    }

    /// The same, without these packets, which the filter could not test.
    #[must_use]
    pub fn without_untested(self, untested: u64) -> Self {
        self.unless(text::untested(untested))
    }

    /// The same, unless there is this problem, which a warning says.
    #[must_use]
    pub fn unless(self, problem: Option<String>) -> Self {
        let problem = self.problem.or(problem);
        Self {
            complete: problem.is_none(),
            problem,
        }
    }
}

/// What kind of data is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Lines of text.
    Text,
    /// Not for a terminal.
    Binary,
}

/// The suffix of a file name in lower case, ignoring a compression suffix: `pcap` for `x.PCAP.gz`.
/// Empty without one.
pub fn suffix(path: &Path) -> String {
    let ending = |path: &Path| {
        let ending = path.extension().unwrap_or(OsStr::new(""));
        ending.to_string_lossy().to_ascii_lowercase()
    };
    let last = ending(path);
    match (last.as_str(), path.file_stem()) {
        ("gz" | "zst", Some(stem)) => ending(Path::new(stem)),
        _ => last,
    }
}

/// Fails early if a file that is written only after much work could not be.
pub fn check(path: &Path, sources: &Sources) -> Result<()> {
    sources.check(path).map_err(refused)
}

/// Refuses outputs of one command that are the same file, under any name; each is an option and its file.
pub fn distinct(outputs: &[(&str, &Path)]) -> Result<()> {
    for (at, (option, path)) in outputs.iter().enumerate() {
        let before = outputs[..at].iter().find(|(_, it)| is_same_file(it, path));
        if let Some((before, _)) = before {
            return Err(refuse(format!(
                "{option} {}: this is also the file of {before}: name another one",
                path.display()
            )));
        }
    }
    Ok(())
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    // Where a new file would be.
    let place = |path: &Path| {
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
        Some(folder.join(path.file_name()?))
    };
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => {
            one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino())
        }
        (Err(_), Err(_)) => place(one).is_some_and(|it| Some(it) == place(other)),
        _ => false,
    }
}

/// Large, so that a file grows with few calls.
const BUFFER_BYTES: usize = 1 << 20;

/// A file being written, compressed if its name ends in .gz or .zst. Dropped unfinished, it is
/// deleted: half a file would pass for a whole one. A file that is replaced stays until then.
pub struct Output {
    writer: BufWriter<Sink>,
    /// As the user named it.
    name: String,
    /// After the writer, which flushes when it is dropped.
    unfinished: Unfinished,
}

enum Sink {
    Plain(File),
    Gzip(GzEncoder<File>),
    Zstd(zstd::Encoder<'static, File>),
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.write(bytes),
            Self::Gzip(encoder) => encoder.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            Self::Gzip(encoder) => encoder.flush(),
            Self::Zstd(encoder) => encoder.flush(),
        }
    }
}

impl Sink {
    /// Writes the trailer of a compressed file.
    fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Gzip(encoder) => encoder.finish().map(drop),
            Self::Zstd(encoder) => encoder.finish().map(drop),
        }
    }
}

impl Output {
    /// Opens `path`, or standard output for `-`: replaces an existing file, but never one that the
    /// command reads, nor a file of a log.
    pub fn create(path: &Path, content: Content, sources: &Sources) -> Result<Self> {
        let is_stdout = path.as_os_str() == "-";
        let name = match is_stdout {
            true => String::from(STANDARD),
            false => path.display().to_string(),
        };
        let named = || format!("{name}: cannot write");
        let (file, unfinished) = if is_stdout {
            let file = stdout().as_fd().try_clone_to_owned();
            (File::from(file.with_context(named)?), None)
        } else {
            let (file, is_new) = sources.open(path).map_err(refused)?;
            begin(file, is_new, path).with_context(named)?
        };
        if content == Content::Binary && file.is_terminal() {
            return Err(Refused(format!(
                "{name} is a terminal, and the output is not text: write it to a file, or pipe it \
                 into another program"
            ))
            .into());
        }
        let unfinished = Unfinished::new(unfinished)?;
        let sink = match path.extension().and_then(|ending| ending.to_str()) {
            Some(ending) if ending.eq_ignore_ascii_case("gz") => {
                Sink::Gzip(GzEncoder::new(file, flate2::Compression::default()))
            }
            Some(ending) if ending.eq_ignore_ascii_case("zst") => {
                let encoder = zstd::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL);
                Sink::Zstd(encoder.with_context(named)?)
            }
            _ => Sink::Plain(file),
        };
        Ok(Self {
            writer: BufWriter::with_capacity(BUFFER_BYTES, sink),
            name,
            unfinished,
        })
    }

    /// Writes to an open file, uncompressed; `name` is its name in messages. The file stays even if this is dropped
    /// unfinished.
    #[must_use]
    pub fn of_file(file: File, name: String) -> Self {
        Self {
            writer: BufWriter::with_capacity(BUFFER_BYTES, Sink::Plain(file)),
            name,
            unfinished: Unfinished(None),
        }
    }

    /// Flushes, and keeps the file.
    pub fn finish(self) -> Result<()> {
        let Self {
            writer,
            name,
            mut unfinished,
        } = self;
        let sink = writer.into_inner().map_err(io::IntoInnerError::into_error);
        let done = sink.and_then(Sink::finish);
        let kept = done.and_then(|()| unfinished.keep());
        kept.map_err(|error| named(&name, &error))?;
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.writer.write(bytes);
        written.map_err(|error| named(&self.name, &error))
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.writer.flush();
        flushed.map_err(|error| named(&self.name, &error))
    }
}

/// A file as it is written.
struct Part {
    path: PathBuf,
    /// What it replaces once it is whole.
    replaces: Option<PathBuf>,
}

/// Where to write what is to be at `path`, which was opened as `file`. A file that has something is
/// not touched: what is written lies beside it until it is whole, where that directory allows it.
fn begin(file: File, is_new: bool, path: &Path) -> io::Result<(File, Option<Part>)> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok((file, None));
    }
    let target = fs::canonicalize(path)?;
    if !is_new
        && metadata.len() > 0
        && let Ok((beside, path)) = beside(&target, &metadata)
    {
        let replaces = Some(target);
        return Ok((beside, Some(Part { path, replaces })));
    }
    file.set_len(0)?;
    let (path, replaces) = (target, None);
    Ok((file, Some(Part { path, replaces })))
}

/// A new file in the directory of `target`, for the same readers.
fn beside(target: &Path, metadata: &fs::Metadata) -> io::Result<(File, PathBuf)> {
    let mut name = OsString::from(".");
    name.push(target.file_name().ok_or(ErrorKind::InvalidInput)?);
    name.push(format!(".{}.part", std::process::id()));
    let path = target.with_file_name(name);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let file = options.open(&path)?;
    // A user who may write a file need not be its owner, nor able to give it away.
    let _ = fchown(&file, Some(metadata.uid()), Some(metadata.gid()));
    let same = file.set_permissions(metadata.permissions());
    if let Err(error) = same {
        fs::remove_file(&path)?;
        return Err(error);
    }
    Ok((file, path))
}

/// A file that is deleted when this is dropped, or when a signal ends the program.
struct Unfinished(Option<Part>);

/// The files to delete if a signal ends the program. A handful at most.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

impl Unfinished {
    fn new(part: Option<Part>) -> Result<Self> {
        static WATCHED: OnceLock<()> = OnceLock::new();
        if let Some(part) = &part {
            unfinished().push(part.path.clone());
            if WATCHED.set(()).is_ok() {
                crate::signals::before_ending(delete_unfinished)?;
            }
        }
        Ok(Self(part))
    }

    /// Keeps the file, in the place of what it replaces.
    fn keep(&mut self) -> io::Result<()> {
        if let Some(part) = self.0.as_ref()
            && let Some(target) = &part.replaces
        {
            fs::rename(&part.path, target)?;
        }
        self.forget();
        Ok(())
    }

    /// Leaves the file where it is, if it is anywhere.
    fn forget(&mut self) -> Option<Part> {
        let part = self.0.take()?;
        unfinished().retain(|other| *other != part.path);
        Some(part)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(part) = self.forget() {
            // Whatever gave up reports why.
            let _ = fs::remove_file(part.path);
        }
    }
}

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn delete_unfinished() {
    for path in unfinished().drain(..) {
        if fs::remove_file(&path).is_ok() {
            let name = path.display().to_string();
            tracing::warn!("interrupted: removed the unfinished {}", Printable(&name));
        }
    }
}

/// An error for a file that is not written.
pub fn refused(error: OutputError) -> anyhow::Error {
    match error {
        OutputError::Cannot { .. } => error.into(),
        OutputError::IsInput { .. } | OutputError::InLog { .. } | OutputError::OfLog { .. } => {
            Refused(error.to_string()).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_suffix_is_that_of_what_is_compressed() {
        for (name, expected) in [
            ("x.pcap", "pcap"),
            ("x.PCAP.GZ", "pcap"),
            ("dir.csv/x.json.zst", "json"),
            ("x.gz", ""),
            ("x", ""),
            ("-", ""),
            (".pcap", ""),
        ] {
            assert_eq!(suffix(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn what_was_there_stays_until_what_replaces_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("old"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&file, &link).unwrap();
        let files = || fs::read_dir(dir.path()).unwrap().count();
        let begin = |path: &Path| Output::create(path, Content::Binary, &Sources::default());

        let mut given_up = begin(&link).unwrap();
        given_up.write_all(b"half of").unwrap();
        given_up.flush().unwrap();
        drop(given_up);
        assert_eq!((fs::read(&file).unwrap(), files()), (b"old".to_vec(), 2));

        let mut whole = begin(&link).unwrap();
        whole.write_all(b"all of the new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"old");
        whole.finish().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"all of the new");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert!(mode & 0o777 == 0o640 && fs::symlink_metadata(&link).unwrap().is_symlink());

        let new = dir.path().join("new");
        drop(begin(&new).unwrap());
        assert!(!new.exists() && files() == 2);
    }
}
