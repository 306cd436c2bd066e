//! The files of a directory as one sequence of datagrams: what `gpv run -w` leaves there with -G or -C, by one run or
//! by several.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use strata_gpv::format::datagram::Datagram;
use strata_sys::pause::backoff;

use super::datagrams::Datagrams;
use crate::error::{At as _, Result, VectorError};
use crate::form::Form;

/// Maximum number of files of a directory.
const FILES_MAX: usize = 16_384;
/// Datagrams that are given before the caller looks whether to stop.
const AT_ONCE: usize = 1024;
/// Bytes by which files are told apart: up to the start time of the first vector, in either form.
const FIRST_LEN: usize = 32;

/// The files of a directory, one after the other. Memory: a name for each file, and a datagram.
pub(super) struct Directory {
    path: PathBuf,
    form: Form,
    is_live: bool,
    /// The files that were found, and how they begin: one of the same name that begins otherwise has replaced it.
    begun: HashMap<OsString, Vec<u8>>,
    waiting: VecDeque<PathBuf>,
    open: Option<Open>,
}

/// The file that is read.
struct Open {
    name: String,
    file: BufReader<File>,
    /// Where the datagram in `bytes` begins.
    at: u64,
    /// A datagram, or as much of it as there is.
    bytes: Vec<u8>,
}

impl Open {
    fn new(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = File::open(path).at_with(|| format!("{name}: cannot read"))?;
        Ok(Self {
            name,
            file: BufReader::new(file),
            at: 0,
            bytes: Vec::new(),
        })
    }

    /// Goes on with the datagram; whether it is whole.
    fn fill(&mut self, form: Form) -> Result<bool> {
        let header = form.header_len();
        if self.bytes.len() < header && !self.fill_to(header)? {
            return Ok(false);
        }
        let rest = form.rest_len(&self.bytes[..header]);
        self.fill_to(header.saturating_add(strata_wire::exact(rest)))
    }

    fn fill_to(&mut self, len: usize) -> Result<bool> {
        let missing = len.saturating_sub(self.bytes.len());
        let mut rest = self.file.by_ref().take(missing as u64);
        let read = rest.read_to_end(&mut self.bytes);
        let read = read.at_with(|| format!("{}: cannot read", self.name))?;
        Ok(read == missing)
    }

    /// Checks that the bytes are a datagram, as far as a reader of files can know it.
    fn check(&self, form: Form) -> Result<()> {
        let checked = match form {
            Form::Strata => Datagram::new_checked(&self.bytes).map(|_| ()),
            // The reader of vectors counts what it cannot read.
            Form::Paper | Form::PaperSeq => Ok(()),
        };
        checked.map_err(|source| VectorError::NoVectors {
            file: self.name.clone(),
            at: self.at,
            form,
            source,
        })
    }

    fn advance(&mut self) {
        self.at = self.at.saturating_add(self.bytes.len() as u64);
        self.bytes.clear();
    }
}

impl Directory {
    /// The files of this directory, and those that come if it is live.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or there are too many, or none that could be read to its end.
    pub(super) fn open(path: &Path, form: Form, is_live: bool) -> Result<Self> {
        let mut directory = Self {
            path: path.to_owned(),
            form,
            is_live,
            begun: HashMap::new(),
            waiting: VecDeque::new(),
            open: None,
        };
        directory.look()?;
        if !is_live && directory.waiting.is_empty() {
            return Err(VectorError::Refused(format!(
                "{}: no file in this directory has vectors",
                path.display()
            )));
        }
        Ok(directory)
    }

    /// Finds files that are new, in their order.
    fn look(&mut self) -> Result<()> {
        let mut found = Vec::new();
        for path in files(&self.path)? {
            let Some(name) = path.file_name() else {
                continue;
            };
            let begin = beginning(&path)?;
            if self.is_live && begin.len() < self.form.header_len() {
                // Its writer may not have written the first datagram yet.
                continue;
            }
            if self.begun.get(name) != Some(&begin) {
                found.push((Order::of(&path, self.form, &begin), path.clone()));
                self.begun.insert(name.to_owned(), begin);
            }
        }
        found.sort_unstable();
        self.waiting.extend(found.into_iter().map(|(_, path)| path));
        Ok(())
    }

    /// Gives the next datagram; false if there is none for now.
    fn step(&mut self, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<Step> {
        let Some(open) = &mut self.open else {
            let Some(path) = self.waiting.pop_front() else {
                return Ok(Step::Nothing);
            };
            self.open = Some(Open::new(&path)?);
            return Ok(Step::On);
        };
        if open.fill(self.form)? {
            open.check(self.form)?;
            let goes_on = take(&open.bytes);
            open.advance();
            return Ok(if goes_on { Step::On } else { Step::Enough });
        }
        // The end of the file, for now: its writer has begun another one, or will write more.
        if self.is_live && self.waiting.is_empty() {
            self.look()?;
            if self.waiting.is_empty() {
                return Ok(Step::Nothing);
            }
            // What it wrote until it began the other one.
            let open = self.open.as_mut().expect("it was open");
            if open.fill(self.form)? {
                open.check(self.form)?;
                let goes_on = take(&open.bytes);
                open.advance();
                return Ok(if goes_on { Step::On } else { Step::Enough });
            }
        }
        let Some(open) = self.open.take() else {
            return Ok(Step::On);
        };
        if open.at == 0 && open.bytes.is_empty() && self.form == Form::Strata {
            return Err(VectorError::Empty(open.name));
        }
        if !open.bytes.is_empty() {
            // A writer that was killed does not end those that follow it.
            if !self.is_live {
                open.check(self.form)?;
            }
            // Counted as a datagram that cannot be read.
            take(&open.bytes);
        }
        Ok(Step::On)
    }
}

/// What a step came to.
enum Step {
    On,
    Enough,
    /// There is nothing more for now.
    Nothing,
}

impl Datagrams for Directory {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn is_live(&self) -> bool {
        self.is_live
    }

    fn read(&mut self, wait: Duration, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<bool> {
        for _ in 0..AT_ONCE {
            match self.step(take)? {
                Step::On => {}
                Step::Enough => break,
                Step::Nothing if !self.is_live => return Ok(false),
                Step::Nothing => {
                    backoff(wait);
                    if self.open.is_none() {
                        self.look()?;
                    }
                    break;
                }
            }
        }
        Ok(true)
    }
}

/// The files of a directory, without those whose names begin with a dot.
pub(super) fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let named = || format!("{}: cannot read this directory", dir.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).at_with(named)? {
        let entry = entry.at_with(named)?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        // What a link points to counts.
        let is_file = fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_file());
        if is_hidden || !is_file {
            continue;
        }
        if found.len() == FILES_MAX {
            return Err(VectorError::Refused(format!(
                "{}: more than {FILES_MAX} files in this directory",
                dir.display()
            )));
        }
        found.push(entry.path());
    }
    Ok(found)
}

/// The first bytes of a file: those of a datagram's header and more, if it has as many. A file that was removed meanwhile
/// has none.
fn beginning(path: &Path) -> Result<Vec<u8>> {
    let cannot = || format!("{}: cannot read", path.display());
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.at_with(cannot)?,
    };
    let mut bytes = Vec::with_capacity(FIRST_LEN);
    file.take(FIRST_LEN as u64)
        .read_to_end(&mut bytes)
        .at_with(cannot)?;
    Ok(bytes)
}

/// The order of files: by name without the number of a rotation, then by the number of the first vector, which also
/// orders files that a rotation has overwritten; then by the number in the name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Order {
    name: OsString,
    first_seq: u64,
    number: u64,
}

impl Order {
    fn of(path: &Path, form: Form, begin: &[u8]) -> Self {
        let seq = begin.get(16..24).and_then(|bytes| bytes.first_chunk());
        let first_seq = match (form, seq) {
            (Form::Strata, Some(seq)) => u64::from_le_bytes(*seq),
            _ => 0,
        };
        // `vectors.3.gpv` follows `vectors.gpv`.
        let stem = path.file_stem().map(Path::new);
        let number = stem.and_then(Path::extension).and_then(OsStr::to_str);
        let number = number.and_then(|number| number.parse().ok());
        let name = match (number, stem.and_then(Path::file_stem)) {
            (Some(_), Some(name)) => Some(name),
            _ => stem.map(Path::as_os_str),
        };
        Self {
            name: name.map_or_else(OsString::new, OsStr::to_owned),
            first_seq,
            number: number.map_or(0, |number: u64| number.saturating_add(1)),
        }
    }
}
