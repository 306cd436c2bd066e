//! Destinations by UDP, also in a file that is changed while vectors are sent.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::Read as _;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use strata_gpv::export::FlowRule;
use strata_role::{Notice, Tell};

use crate::error::{At as _, Result, VectorError};

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Maximum bytes of the file.
const LIST_BYTES_MAX: u64 = 64 << 10;

/// The address that vectors are sent to, and the rule that chooses them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The target as the user wrote it.
    pub name: String,
    /// Its address.
    pub address: SocketAddr,
    /// The rule that chooses the flows for it.
    pub rule: FlowRule,
}

/// The targets that a file lists, or what is wrong with it.
pub type ParseTargets = fn(&str) -> std::result::Result<Vec<Target>, String>;

/// Destinations that a file lists: those that are added to it, or removed from it, while vectors are sent are added and
/// removed.
pub struct TargetList {
    path: PathBuf,
    parse: ParseTargets,
    /// What the file was when it was read.
    seen: Option<Seen>,
    looked: Instant,
}

/// What tells a file from what it was before, or from one that has replaced it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Seen {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            bytes: metadata.len(),
            changed: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl fmt::Debug for TargetList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetList")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl TargetList {
    /// The list in this file, in the form that `parse` reads.
    #[must_use]
    pub fn new(path: &Path, parse: ParseTargets) -> Self {
        Self {
            path: path.to_owned(),
            parse,
            seen: None,
            looked: Instant::now(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The targets in the file.
    ///
    /// # Errors
    ///
    /// If it cannot be read, is too long, or has an invalid line.
    pub(super) fn read(&mut self) -> Result<Vec<Target>> {
        let name = self.path.display();
        let file = File::open(&self.path).at_with(|| format!("{name}: cannot read"))?;
        let metadata = file.metadata()?;
        // Also of a file that is wrong: it is reported once.
        self.seen = Some(Seen::of(&metadata));
        let mut text = String::new();
        let read = file.take(LIST_BYTES_MAX + 1).read_to_string(&mut text);
        let read = read.at_with(|| format!("{name}: cannot read"))?;
        if read as u64 > LIST_BYTES_MAX {
            return Err(VectorError::Refused(format!(
                "{name}: longer than {LIST_BYTES_MAX} bytes"
            )));
        }
        (self.parse)(&text).map_err(|problem| VectorError::Refused(format!("{name}: {problem}")))
    }

    /// The targets, if the file was changed since it was read. One that is invalid is reported once.
    pub(super) fn changed(&mut self, tell: &Tell) -> Option<Vec<Target>> {
        if self.looked.elapsed() < LOOK_EVERY {
            return None;
        }
        self.looked = Instant::now();
        let seen = fs::metadata(&self.path)
            .ok()
            .map(|metadata| Seen::of(&metadata));
        if seen == self.seen {
            return None;
        }
        self.seen = seen;
        match self.read() {
            Ok(targets) => Some(targets),
            Err(error) => {
                tell(&Notice::warning(format!(
                    "{error}: vectors go to the same addresses as before"
                )));
                None
            }
        }
    }
}
