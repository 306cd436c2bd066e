//! Output files of limited size or time, as tcpdump's -C, -G and -W make them.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use jiff::Zoned;

use crate::output::refuse;
use crate::record::rotate_bytes;
use crate::text;

/// When a file is followed by another.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Rotation of -w")]
pub(super) struct RotateArgs {
    /// Rotate: begin another file once one exceeds this size, in millions of bytes or with a unit
    /// (500MB, 2GiB). The name of each but the first gets a number before its extension: vectors.gpv,
    /// vectors.1.gpv, vectors.2.gpv.
    #[arg(short = 'C', long, value_name = "SIZE")]
    rotate_size: Option<String>,

    /// Rotate: begin another file once one is this many seconds old. The name needs a time as
    /// strftime(3) writes it, such as %Y%m%d-%H%M%S. What is in no file yet makes none.
    #[arg(short = 'G', long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    rotate_seconds: Option<u64>,

    /// Limit the number of files: with -C, the oldest is written over once there are N, and all names
    /// have numbers from 0; with -G, end once N files are complete.
    #[arg(short = 'W', long, value_name = "N")]
    filecount: Option<NonZeroU32>,
}

impl RotateArgs {
    /// The rotation of this file; `None` if it grows without bound.
    pub(super) fn of(&self, write: Option<&Path>) -> Result<Option<Rotation>> {
        if self.rotate_size.is_none() && self.rotate_seconds.is_none() {
            return match self.filecount {
                None => Ok(None),
                Some(_) => Err(refuse(
                    "-W: files need a limit, of size (-C) or of time (-G)",
                )),
            };
        }
        let path = match write {
            Some(path) if path.as_os_str() != "-" => path.to_owned(),
            _ => {
                return Err(refuse(
                    "-C and -G: a file that is rotated needs a name: -w FILE",
                ));
            }
        };
        let bytes_max = self.rotate_size.as_deref().map(rotate_bytes).transpose()?;
        if bytes_max == Some(0) {
            return Err(refuse("-C 0: not a size that a file can have"));
        }
        let rotation = Rotation {
            path,
            bytes_max,
            every: self.rotate_seconds.map(Duration::from_secs),
            count: self.filecount.map(NonZeroU32::get),
            began: Instant::now(),
            base: PathBuf::new(),
            number: 0,
            complete: 0,
        };
        if rotation.every.is_some() {
            if rotation.bytes_max.is_some() && rotation.count.is_some() {
                return Err(refuse("-W is for -C or for -G, not for both at once"));
            }
            // Names with times of another zone than TZ says would be wrong.
            text::zone()?;
            let (now, later) = (Zoned::now(), Zoned::now() + Duration::from_secs(40_000_000));
            if rotation.at(&now)? == rotation.at(&later)? {
                return Err(refuse(format!(
                    "-G: -w {} needs a time in its name, such as vectors-%Y%m%d-%H%M%S",
                    rotation.path.display()
                )));
            }
        }
        Ok(Some(rotation))
    }
}

/// Which file comes after which.
#[derive(Debug)]
pub(super) struct Rotation {
    path: PathBuf,
    bytes_max: Option<u64>,
    every: Option<Duration>,
    count: Option<u32>,
    /// When the file was begun.
    began: Instant,
    /// Its name without a number, and the number.
    base: PathBuf,
    number: u32,
    /// Files before it.
    complete: u32,
}

impl Rotation {
    /// The name of the first file.
    pub(super) fn first(&mut self) -> Result<PathBuf> {
        self.base = self.at(&Zoned::now())?;
        self.began = Instant::now();
        Ok(self.name())
    }

    /// Whether a file of so many bytes is complete.
    pub(super) fn is_due(&self, bytes: u64) -> bool {
        let is_large = self.bytes_max.is_some_and(|most| bytes > most);
        bytes > 0
            && (is_large
                || self
                    .every
                    .is_some_and(|every| self.began.elapsed() >= every))
    }

    /// Whether the file that is due is the last one.
    pub(super) fn is_last(&self) -> bool {
        let all = self.count.filter(|_| self.every.is_some());
        all.is_some_and(|all| self.complete + 1 >= all)
    }

    /// The name of the next file.
    pub(super) fn next(&mut self) -> Result<PathBuf> {
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
        self.count.filter(|_| self.every.is_none())
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
        if self.every.is_none() {
            return Ok(self.path.clone());
        }
        let name = self.path.display();
        let Some(text) = self.path.to_str() else {
            return Err(refuse(format!("-G: {name} is not UTF-8")));
        };
        let at = jiff::fmt::strtime::format(text, now);
        let at = at.map_err(|error| refuse(format!("-G: -w {name}: {error}")))?;
        Ok(at.into())
    }
}

/// The name with a number before its extension.
pub(super) fn numbered(path: &Path, number: &str) -> PathBuf {
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

    fn args(size: Option<&str>, seconds: Option<u64>, files: Option<u32>) -> RotateArgs {
        RotateArgs {
            rotate_size: size.map(str::to_owned),
            rotate_seconds: seconds,
            filecount: files.and_then(NonZeroU32::new),
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
        let of = |args: RotateArgs, name: &str| args.of(Some(Path::new(name))).unwrap().unwrap();
        let mut by_size = of(args(Some("2"), None, None), "d/v.gpv");
        assert_eq!(
            names(&mut by_size, 3),
            ["d/v.gpv", "d/v.1.gpv", "d/v.2.gpv"]
        );
        assert!(!by_size.is_due(2_000_000) && by_size.is_due(2_000_001));
        assert!(!by_size.is_last());
        let mut ring = of(args(Some("1KiB"), None, Some(11)), "v");
        let turn = names(&mut ring, 13);
        assert_eq!(
            (&*turn[0], &*turn[10], &*turn[11]),
            ("v.00", "v.10", "v.00")
        );
        assert!(ring.is_due(1025) && !ring.is_last());
        let mut by_time = of(args(None, Some(604_800), Some(2)), "v-%Y.gpv");
        let named = names(&mut by_time, 1).remove(0);
        assert_eq!(named, format!("v-{}.gpv", Zoned::now().year()));
        assert!(!by_time.is_due(u64::MAX) && !by_time.is_last());
        // The same year: nothing is written over.
        let second = by_time.next().unwrap().display().to_string();
        assert_eq!(second, named.replace(".gpv", ".1.gpv"));
        assert!(by_time.is_last());
    }

    #[test]
    fn what_cannot_be_rotated_is_refused() {
        let refused = |args: RotateArgs, name: Option<&str>| {
            let error = args.of(name.map(Path::new)).expect_err("refused");
            error.to_string()
        };
        assert!(refused(args(None, None, Some(3)), Some("v")).contains("-W"));
        assert!(refused(args(Some("1"), None, None), None).contains("-w FILE"));
        assert!(refused(args(Some("1"), None, None), Some("-")).contains("-w FILE"));
        assert!(refused(args(Some("0"), None, None), Some("v")).contains("-C 0"));
        assert!(refused(args(None, Some(5), None), Some("v")).contains("%Y%m%d"));
        assert!(refused(args(None, Some(5), None), Some("v%")).contains("-G"));
        let both = args(Some("1"), Some(5), Some(2));
        assert!(refused(both, Some("v%Y%m%d%H%M%S")).contains("both"));
        assert!(args(None, None, None).of(None).unwrap().is_none());
    }
}
