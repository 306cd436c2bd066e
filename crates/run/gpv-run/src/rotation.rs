//! Output files of limited size or time, as tcpdump's -C, -G and -W make them.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Zoned;

use crate::error::{Result, VectorError};

/// The conditions for beginning a new file.
#[derive(Clone, Copy, Debug, Default)]
pub struct RotationSpec {
    /// A new file begins once the current one has more bytes than this.
    pub bytes_max: Option<u64>,
    /// A new file begins once the current one is this old. The name then has a time, as strftime(3) writes it.
    pub every: Option<Duration>,
    /// The number of files. If files are limited by time, writing ends with the last one; if only by size, files are
    /// overwritten in turn.
    pub files: Option<NonZeroU32>,
}

/// Which file comes after which.
#[derive(Debug)]
pub(crate) struct Rotation {
    path: PathBuf,
    spec: RotationSpec,
    /// When the file was begun.
    began: Instant,
    /// Its name without a number, and the number.
    base: PathBuf,
    number: u32,
    /// Files before it.
    complete: u32,
}

impl Rotation {
    /// Of files with this name, and what the spec adds to it. Times are local ones (TZ).
    ///
    /// Fails if files of limited time would all have the same name.
    pub(crate) fn new(path: &Path, spec: RotationSpec) -> Result<Self> {
        let rotation = Self {
            path: path.to_owned(),
            spec,
            began: Instant::now(),
            base: PathBuf::new(),
            number: 0,
            complete: 0,
        };
        if spec.every.is_some() {
            let (now, later) = (Zoned::now(), Zoned::now() + Duration::from_secs(40_000_000));
            if rotation.at(&now)? == rotation.at(&later)? {
                return Err(VectorError::Refused(format!(
                    "-G: -w {} needs a time in its name, such as vectors-%Y%m%d-%H%M%S",
                    path.display()
                )));
            }
        }
        Ok(rotation)
    }

    /// The name of the first file.
    pub(crate) fn first(&mut self) -> Result<PathBuf> {
        self.base = self.at(&Zoned::now())?;
        self.began = Instant::now();
        Ok(self.name())
    }

    /// Whether a file of `bytes` bytes is complete.
    pub(crate) fn is_due(&self, bytes: u64) -> bool {
        let is_large = self.spec.bytes_max.is_some_and(|most| bytes > most);
        bytes > 0
            && (is_large
                || self
                    .spec
                    .every
                    .is_some_and(|every| self.began.elapsed() >= every))
    }

    /// Whether the file that is due is the last one.
    pub(crate) fn is_last(&self) -> bool {
        let all = self.spec.files.filter(|_| self.spec.every.is_some());
        all.is_some_and(|all| self.complete + 1 >= all.get())
    }

    /// The name of the next file.
    pub(crate) fn next(&mut self) -> Result<PathBuf> {
        let base = self.at(&Zoned::now())?;
        // Where a name tells no seconds, two files may have the same: the second gets a number.
        let number = match base == self.base {
            true => self.number + 1,
            false => 0,
        };
        self.number = match self.ring() {
            Some(files) => number % files,
            None => number,
        };
        self.complete = self.complete.saturating_add(1);
        self.base = base;
        self.began = Instant::now();
        Ok(self.name())
    }

    /// Files that are written over in turn.
    fn ring(&self) -> Option<u32> {
        let files = self.spec.files.filter(|_| self.spec.every.is_none());
        files.map(NonZeroU32::get)
    }

    fn name(&self) -> PathBuf {
        let digits = self.ring().map(|files| (files - 1).to_string().len());
        match (digits, self.number) {
            (None, 0) => self.base.clone(),
            (digits, number) => {
                let digits = digits.unwrap_or(1);
                numbered(&self.base, &format!("{number:0digits$}"))
            }
        }
    }

    /// The name without a number, at a time.
    fn at(&self, now: &Zoned) -> Result<PathBuf> {
        if self.spec.every.is_none() {
            return Ok(self.path.clone());
        }
        let name = self.path.display();
        let Some(text) = self.path.to_str() else {
            return Err(VectorError::Refused(format!("-G: {name} is not UTF-8")));
        };
        let at = jiff::fmt::strtime::format(text, now);
        let at = at.map_err(|error| VectorError::Refused(format!("-G: -w {name}: {error}")))?;
        Ok(at.into())
    }
}

/// The name with a number before its extension.
pub(crate) fn numbered(path: &Path, number: &str) -> PathBuf {
    let mut name = path.file_stem().map_or_else(OsString::new, OsString::from);
    name.push(".");
    name.push(number);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(bytes_max: Option<u64>, seconds: Option<u64>, files: Option<u32>) -> RotationSpec {
        RotationSpec {
            bytes_max,
            every: seconds.map(Duration::from_secs),
            files: files.and_then(NonZeroU32::new),
        }
    }

    fn names(rotation: &mut Rotation, count: usize) -> Vec<String> {
        let first = rotation.first().unwrap();
        let rest = (1..count).map(|_| rotation.next().unwrap());
        let all: Vec<PathBuf> = std::iter::once(first).chain(rest).collect();
        all.iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn files_are_named_in_turn() {
        let of = |spec: RotationSpec, name: &str| Rotation::new(Path::new(name), spec).unwrap();
        let mut by_size = of(spec(Some(2_000_000), None, None), "d/v.gpv");
        assert_eq!(
            names(&mut by_size, 3),
            ["d/v.gpv", "d/v.1.gpv", "d/v.2.gpv"]
        );
        assert!(!by_size.is_due(2_000_000) && by_size.is_due(2_000_001));
        assert!(!by_size.is_last());
        let mut ring = of(spec(Some(1024), None, Some(11)), "v");
        let turn = names(&mut ring, 13);
        assert_eq!(
            (&*turn[0], &*turn[10], &*turn[11]),
            ("v.00", "v.10", "v.00")
        );
        assert!(ring.is_due(1025) && !ring.is_last());
        let mut by_time = of(spec(None, Some(604_800), Some(2)), "v-%Y.gpv");
        let named = names(&mut by_time, 1).remove(0);
        assert_eq!(named, format!("v-{}.gpv", Zoned::now().year()));
        assert!(!by_time.is_due(u64::MAX) && !by_time.is_last());
        // The same year: nothing is written over.
        let second = by_time.next().unwrap().display().to_string();
        assert_eq!(second, named.replace(".gpv", ".1.gpv"));
        assert!(by_time.is_last());
    }

    #[test]
    fn files_of_limited_time_need_one_in_their_name() {
        let refused = |name: &str| {
            let rotation = Rotation::new(Path::new(name), spec(None, Some(5), None));
            let error = rotation.expect_err("refused");
            assert!(matches!(error, VectorError::Refused(_)), "{error:?}");
            error.to_string()
        };
        assert!(refused("v").contains("%Y%m%d"));
        assert!(refused("v%").contains("-G"));
    }
}
