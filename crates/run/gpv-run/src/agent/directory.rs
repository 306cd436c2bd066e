//! The files of a directory as one sequence of datagrams: what `gpv run -w` leaves there with -G or -C, by one run or
//! by several.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
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
const NAMED: &str = "files of a directory have names";

/// The datagrams in the files of a directory, one file after the other. Memory: two names for each file, and a datagram.
pub struct VectorDirectory {
    path: PathBuf,
    form: Form,
    is_live: bool,
    /// The files of the directory that were found, by name.
    known: HashMap<OsString, Known>,
    waiting: VecDeque<PathBuf>,
    open: Option<Open>,
}

/// A file that was found.
struct Known {
    /// How it begins: one of the same name that begins otherwise has replaced it.
    begin: Vec<u8>,
    /// Where reading goes on: behind the last whole datagram that was read.
    at: u64,
    /// Its length when it was left, bytes: a longer one has grown since.
    len: u64,
}

/// The file that is read.
struct Open {
    name: String,
    path: PathBuf,
    /// Its first bytes when it was opened.
    begin: Vec<u8>,
    file: BufReader<File>,
    /// Where the datagram in `bytes` begins.
    at: u64,
    /// A datagram, or as much of it as there is.
    bytes: Vec<u8>,
    /// Whether all that the file had was given when it was read last.
    is_at_end: bool,
}

impl Open {
    /// Opens a file, to go on where the one that is known under its name was left; `None` if it was removed.
    fn new(path: PathBuf, known: Option<&Known>) -> Result<Option<Self>> {
        let name = path.display().to_string();
        let cannot = || format!("{name}: cannot read");
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.at_with(cannot)?,
        };
        let begin = first_bytes(&mut file).at_with(cannot)?;
        let at = match known {
            Some(known) if is_same(&known.begin, &begin) => known.at,
            _ => 0,
        };
        file.seek(SeekFrom::Start(at)).at_with(cannot)?;
        Ok(Some(Self {
            name,
            path,
            begin,
            file: BufReader::new(file),
            at,
            bytes: Vec::new(),
            is_at_end: false,
        }))
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
        self.is_at_end = false;
    }

    /// Whether another file was not written over this one, as rotations do: bytes that were read before are of this
    /// file then. Its writer makes it empty first.
    fn is_as_opened(&self) -> Result<bool> {
        let mut bytes = [0; FIRST_LEN];
        let begin = &mut bytes[..self.begin.len()];
        match self.file.get_ref().read_exact_at(begin, 0) {
            Ok(()) => Ok(*begin == self.begin),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error).at_with(|| format!("{}: cannot read", self.name)),
        }
    }
}

impl VectorDirectory {
    /// The files of this directory, and those that come later if it is live.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or there are too many, or none that could be read to its end.
    pub fn open(path: &Path, form: Form, is_live: bool) -> Result<Self> {
        let mut directory = Self {
            path: path.to_owned(),
            form,
            is_live,
            known: HashMap::new(),
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

    /// Finds files that are new or have grown since they were left, in their order, when none waits. Forgets those that
    /// were removed.
    fn look(&mut self) -> Result<()> {
        let (mut found, mut listed) = (Vec::new(), HashSet::new());
        for path in files(&self.path)? {
            let Some(name) = path.file_name() else {
                continue;
            };
            listed.insert(name.to_owned());
            let (begin, len) = beginning(&path)?;
            if self.is_live && begin.len() < self.form.header_len() {
                // Its writer may not have written the first datagram yet.
                continue;
            }
            let is_open = self.open.as_ref().is_some_and(|open| open.path == path);
            match self.known.get(name) {
                Some(known) if is_same(&known.begin, &begin) => {
                    if is_open || len <= known.len {
                        continue;
                    }
                }
                _ => {
                    let (at, begin) = (0, begin.clone());
                    let known = Known { begin, at, len };
                    self.known.insert(name.to_owned(), known);
                }
            }
            found.push((Order::of(&path, self.form, &begin), path));
        }
        self.known.retain(|name, _| listed.contains(name));
        found.sort_unstable();
        self.waiting.extend(found.into_iter().map(|(_, path)| path));
        Ok(())
    }

    /// Opens the next file, if there is one.
    fn open_next(&mut self, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<Step> {
        let Some(path) = self.waiting.pop_front() else {
            return Ok(Step::Nothing);
        };
        let name = path.file_name().expect(NAMED).to_owned();
        let opened = Open::new(path.clone(), self.known.get(&name))?;
        let Some(open) = opened else {
            self.known.remove(&name);
            if !self.is_live {
                let removed = io::Error::from(ErrorKind::NotFound);
                return Err(removed).at_with(|| format!("{}: cannot read", path.display()));
            }
            // Counted as a datagram that cannot be read: a rotation has removed the file before it was read.
            take(&[]);
            return Ok(Step::On);
        };
        let known = Known {
            begin: open.begin.clone(),
            at: open.at,
            len: open.at,
        };
        self.known.insert(name, known);
        self.open = Some(open);
        Ok(Step::On)
    }

    /// Gives the next datagram, if there is one.
    fn step(&mut self, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<Step> {
        let Some(open) = &mut self.open else {
            return self.open_next(take);
        };
        if open.fill(self.form)? {
            if self.is_live && !open.is_as_opened()? {
                if !open.is_at_end {
                    // Counted as a datagram that cannot be read: the rest of the file was overwritten.
                    take(&[]);
                }
                self.open = None;
                return Ok(Step::On);
            }
            open.check(self.form)?;
            let goes_on = take(&open.bytes);
            open.advance();
            return Ok(if goes_on { Step::On } else { Step::Enough });
        }
        open.is_at_end = open.bytes.is_empty();
        // The end of the file, for now: its writer has begun another one, or will write more.
        if self.is_live && self.waiting.is_empty() {
            self.look()?;
            if self.waiting.is_empty() {
                return Ok(Step::Nothing);
            }
            // What it wrote until it began the other one.
            let open = self.open.as_mut().expect("it was open");
            if open.is_as_opened()? && open.fill(self.form)? && open.is_as_opened()? {
                open.check(self.form)?;
                let goes_on = take(&open.bytes);
                open.advance();
                return Ok(if goes_on { Step::On } else { Step::Enough });
            }
        }
        let Some(open) = self.open.take() else {
            return Ok(Step::On);
        };
        if self.is_live && self.leave(&open) {
            return Ok(Step::On);
        }
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

    /// Notes where the file was left, to go on there once it has grown. False if the datagram there will stay cut: the
    /// file was replaced or removed, or its writer has begun another one.
    fn leave(&mut self, open: &Open) -> bool {
        let name = open.path.file_name().expect(NAMED);
        let known = self.known.get_mut(name);
        let Some(known) = known.filter(|known| is_same(&known.begin, &open.begin)) else {
            return false;
        };
        known.at = open.at;
        known.len = open.at.saturating_add(open.bytes.len() as u64);
        let own = Order::of(&open.path, self.form, &open.begin).name;
        let mut others = self.waiting.iter().filter(|path| **path != open.path);
        open.bytes.is_empty() || !others.any(|path| Order::of(path, self.form, &[]).name == own)
    }
}

/// What a step came to.
enum Step {
    On,
    Enough,
    /// There is nothing more for now.
    Nothing,
}

impl Datagrams for VectorDirectory {
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

/// The first bytes of a file, those of a datagram's header and more, if it has as many; and its length. A file that was
/// removed meanwhile has none.
fn beginning(path: &Path) -> Result<(Vec<u8>, u64)> {
    let cannot = || format!("{}: cannot read", path.display());
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        other => other.at_with(cannot)?,
    };
    let begin = first_bytes(&mut file).at_with(cannot)?;
    Ok((begin, file.metadata().at_with(cannot)?.len()))
}

fn first_bytes(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(FIRST_LEN);
    file.by_ref()
        .take(FIRST_LEN as u64)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether two beginnings are of one file: it may have grown in between.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.starts_with(other) || other.starts_with(one)
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A datagram of the paper's form, which is told by its first byte.
    fn datagram(number: u8) -> Vec<u8> {
        let mut bytes = vec![number; Form::Paper.header_len()];
        (bytes[14], bytes[15]) = (0, 1);
        bytes.extend([number; 4]);
        bytes
    }

    fn append(path: &Path, bytes: &[u8]) {
        let mut options = File::options();
        let file = options.append(true).create(true).open(path);
        file.unwrap().write_all(bytes).unwrap();
    }

    /// The first bytes of the datagrams that there are now, and `None` for each that is cut.
    fn now(directory: &mut VectorDirectory) -> Vec<Option<u8>> {
        let mut found = Vec::new();
        for _ in 0..3 {
            let mut take = |bytes: &[u8]| {
                let is_whole = bytes.len() == datagram(0).len();
                found.push(is_whole.then(|| bytes[0]));
                true
            };
            assert!(directory.read(Duration::ZERO, &mut take).unwrap());
        }
        found
    }

    fn live(folder: &Path) -> VectorDirectory {
        VectorDirectory::open(folder, Form::Paper, true).unwrap()
    }

    #[test]
    fn files_that_grow_side_by_side_are_all_read() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["one.gpv", "two.gpv"].map(|name| folder.path().join(name));
        append(&one, &datagram(1));
        append(&two, &datagram(2));
        let mut directory = live(folder.path());
        assert_eq!(now(&mut directory), [Some(1), Some(2)]);
        append(&one, &datagram(3));
        assert_eq!(now(&mut directory), [Some(3)]);
        // A datagram is written in two parts, while the other file grows.
        let cut = datagram(4);
        append(&one, &cut[..9]);
        append(&two, &datagram(5));
        assert_eq!(now(&mut directory), [Some(5)]);
        append(&one, &cut[9..]);
        assert_eq!(now(&mut directory), [Some(4)]);
        assert_eq!(now(&mut directory), []);
    }

    #[test]
    fn the_last_datagram_of_a_rotated_file_is_counted_if_it_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let [first, next] = ["v.0.gpv", "v.1.gpv"].map(|name| folder.path().join(name));
        append(&first, &datagram(1));
        append(&first, &datagram(2)[..9]);
        let mut directory = live(folder.path());
        assert_eq!(now(&mut directory), [Some(1)]);
        append(&next, &datagram(3));
        assert_eq!(now(&mut directory), [None, Some(3)]);
        assert_eq!(now(&mut directory), []);
    }

    #[test]
    fn a_file_that_is_written_over_while_it_is_read_is_read_from_its_start() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("v.gpv");
        append(&file, &datagram(1));
        append(&file, &datagram(2));
        let mut directory = live(folder.path());
        assert_eq!(now(&mut directory), [Some(1), Some(2)]);
        // As `-W 1` does: longer than what was read.
        fs::write(&file, [3, 4, 5, 6].map(datagram).concat()).unwrap();
        assert_eq!(now(&mut directory), [3, 4, 5, 6].map(Some));
        // Before it was read to its end.
        append(&file, &datagram(7)[..9]);
        assert_eq!(now(&mut directory), []);
        fs::write(&file, [8, 9, 10, 11, 12, 13].map(datagram).concat()).unwrap();
        let found = now(&mut directory);
        assert_eq!(
            found,
            [
                None,
                Some(8),
                Some(9),
                Some(10),
                Some(11),
                Some(12),
                Some(13)
            ]
        );
        assert_eq!(now(&mut directory), []);
    }

    #[test]
    fn a_file_that_is_replaced_or_removed_while_it_waits_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["one.gpv", "two.gpv"].map(|name| folder.path().join(name));
        append(&one, &datagram(1));
        append(&two, &datagram(2));
        let mut directory = live(folder.path());
        fs::remove_file(&one).unwrap();
        fs::write(&two, datagram(3)).unwrap();
        assert_eq!(now(&mut directory), [None, Some(3)]);
        assert_eq!(now(&mut directory), []);
        assert_eq!(directory.known.len(), 1);
        // Another one of the same name.
        append(&one, &datagram(4));
        assert_eq!(now(&mut directory), [Some(4)]);
    }
}
