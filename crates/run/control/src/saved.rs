//! Policies added at run time, saved in the log's directory, so that they apply again when a
//! recording into it is restarted.
//!
//! The file [`FILE_NAME`] has a line of JSON that identifies it, and one for each change:
//!
//! ```text
//! {"strata":"policies","version":1,"first_id":6,"next_id":9}
//! {"added":{"id":8,"policy":{"match":"port 53","action":"full", ...},"who":"uid 0", ...}}
//! {"removed":7}
//! ```
//!
//! A change is one line appended, so it costs the same however many policies there are; once most
//! lines are obsolete, the whole file is replaced.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use strata_wire::{Printable, unix_ns};

use crate::config::PolicyConfig;

/// The file's name in the directory of the log.
pub const FILE_NAME: &str = "policies.jsonl";
/// A larger file was not written here.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// How many problems with individual lines are reported.
const PROBLEMS_MAX: usize = 10;
/// Obsolete lines, beyond twice the policies, after which the file is replaced.
const PAST_LINES_MAX: usize = 1000;

/// A saved policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedPolicy {
    /// Its number.
    pub id: u32,
    /// The policy itself.
    pub policy: PolicyConfig,
    /// Who added it.
    #[serde(default)]
    pub who: String,
    /// Why.
    #[serde(default)]
    pub why: String,
    /// When, in RFC 3339.
    #[serde(default)]
    pub at: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    strata: String,
    version: u32,
    first_id: u32,
    next_id: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Change<'a> {
    Added(std::borrow::Cow<'a, SavedPolicy>),
    Removed(u32),
}

/// The saved policies of a log.
#[derive(Debug)]
pub struct Saved {
    path: PathBuf,
    known: BTreeMap<u32, SavedPolicy>,
    /// The lowest number ever assigned at run time, and the next one; 0 for none.
    first_id: u32,
    next_id: u32,
    /// Lines of changes in the file.
    lines: usize,
    /// The file, once something has been appended.
    file: Option<File>,
    /// Whether the file differs from what is in memory.
    is_stale: bool,
}

impl Saved {
    /// The saved policies of the log in this directory, and what is wrong with the file. None if
    /// there is no file.
    #[must_use]
    pub fn load(dir: &Path) -> (Self, Vec<String>) {
        let mut saved = Self {
            path: dir.join(FILE_NAME),
            known: BTreeMap::new(),
            first_id: 0,
            next_id: 0,
            lines: 0,
            file: None,
            is_stale: false,
        };
        let mut text = String::new();
        let read = File::open(&saved.path)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
        let problems = match read {
            Ok(_) => saved.understand(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                saved.is_stale = true;
                Vec::new()
            }
            Err(error) => vec![saved.put_aside(&error.to_string())],
        };
        (saved, problems)
    }

    /// Parses the lines of the file; returns what is wrong.
    fn understand(&mut self, text: &str) -> Vec<String> {
        let mut lines = text.lines();
        let header = lines.next().unwrap_or("");
        let header: Header = match serde_json::from_str(header) {
            Ok(header) => header,
            Err(error) => return vec![self.put_aside(&format!("line 1: {error}"))],
        };
        if header.strata != "policies" || header.version != 1 {
            let problem = format!("unknown version {}", header.version);
            return vec![self.put_aside(&problem)];
        }
        (self.first_id, self.next_id) = (header.first_id, header.next_id);
        let mut problems = Vec::new();
        for (number, line) in (2..).zip(lines) {
            self.lines += 1;
            match serde_json::from_str::<Change<'_>>(line) {
                Ok(Change::Added(policy)) => {
                    self.number(policy.id);
                    self.known.insert(policy.id, policy.into_owned());
                }
                Ok(Change::Removed(id)) => drop(self.known.remove(&id)),
                Err(error) => {
                    // The last one may be torn, after a power failure.
                    self.is_stale = true;
                    problems.push(format!(
                        "{}: line {number} is skipped: {error}",
                        self.path.display()
                    ));
                }
            }
        }
        // Appended text must start a line.
        self.is_stale |= !text.ends_with('\n');
        if problems.len() > PROBLEMS_MAX {
            let more = problems.len() - PROBLEMS_MAX;
            problems.truncate(PROBLEMS_MAX);
            problems.push(format!("{}: {more} more lines", self.path.display()));
        }
        problems
            .iter()
            .map(|problem| Printable(problem).to_string())
            .collect()
    }

    /// Renames an unusable file, so that it is not overwritten; returns what to report.
    fn put_aside(&mut self, problem: &str) -> String {
        self.is_stale = true;
        let aside = self.path.with_extension("jsonl.invalid");
        let path = self.path.display();
        let what = match fs::rename(&self.path, &aside) {
            Ok(()) => format!("it is now {}", aside.display()),
            Err(error) => format!("it cannot be renamed: {error}"),
        };
        let text = format!(
            "{path}: {problem}: the policies that were added at run time are not in force; {what}"
        );
        Printable(&text).to_string()
    }

    /// Records that a number was assigned.
    fn number(&mut self, id: u32) {
        if self.first_id == 0 {
            self.first_id = id;
        }
        self.first_id = self.first_id.min(id);
        self.next_id = self.next_id.max(id.saturating_add(1));
    }

    /// The policies, by number.
    pub fn policies(&self) -> impl Iterator<Item = &SavedPolicy> {
        self.known.values()
    }

    /// Numbers assigned at run time; those of removed policies are not reused.
    #[must_use]
    pub fn ids(&self) -> std::ops::Range<u32> {
        self.first_id..self.next_id
    }

    /// Saves one more.
    ///
    /// # Errors
    ///
    /// If it cannot be written. The next change that can be writes it too.
    pub fn add(&mut self, id: u32, policy: &PolicyConfig, who: &str, why: &str) -> io::Result<()> {
        let policy = SavedPolicy {
            id,
            policy: policy.clone(),
            who: who.to_owned(),
            why: why.to_owned(),
            at: now().to_string(),
        };
        self.number(id);
        self.known.insert(id, policy.clone());
        self.change(&Change::Added(std::borrow::Cow::Owned(policy)))
    }

    /// Records that some were removed.
    ///
    /// # Errors
    ///
    /// As [`Saved::add`].
    pub fn remove(&mut self, ids: impl Iterator<Item = u32>) -> io::Result<()> {
        for id in ids {
            if self.known.remove(&id).is_some() {
                self.change(&Change::Removed(id))?;
            }
        }
        Ok(())
    }

    /// Saves what could not be saved before, if anything.
    ///
    /// # Errors
    ///
    /// As [`Saved::add`].
    pub fn try_again(&mut self) -> io::Result<()> {
        // If no policy was ever added, there is nothing to save.
        if self.is_stale && self.first_id > 0 {
            self.replace()?;
        }
        Ok(())
    }

    fn change(&mut self, change: &Change<'_>) -> io::Result<()> {
        if self.is_stale || self.lines > 2 * self.known.len() + PAST_LINES_MAX {
            return self.replace();
        }
        let mut line = serde_json::to_vec(change)?;
        line.push(b'\n');
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(OpenOptions::new().append(true).open(&self.path)?),
        };
        self.lines += 1;
        // A failure may have left part of a line.
        file.write_all(&line).inspect_err(|_| self.is_stale = true)
    }

    /// Writes the file anew, all or nothing.
    fn replace(&mut self) -> io::Result<()> {
        self.is_stale = true;
        self.file = None;
        let header = Header {
            strata: String::from("policies"),
            version: 1,
            first_id: self.first_id,
            next_id: self.next_id,
        };
        let mut text = serde_json::to_vec(&header)?;
        for policy in self.known.values() {
            text.push(b'\n');
            let change = Change::Added(std::borrow::Cow::Borrowed(policy));
            serde_json::to_writer(&mut text, &change)?;
        }
        text.push(b'\n');
        let new = self.path.with_extension("jsonl.new");
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o640);
        let mut file = options.open(&new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        if let Some(dir) = self.path.parent() {
            File::open(dir)?.sync_all()?;
        }
        self.lines = self.known.len();
        self.is_stale = false;
        Ok(())
    }
}

/// Now, as it is kept and shown.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::from_nanosecond(unix_ns().into());
    now.expect("64 bits of ns end before the year 9999")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn policy(filter: &str) -> PolicyConfig {
        PolicyConfig {
            matches: filter.into(),
            action: "full".into(),
            priority: 7,
            interface: Some("eth0".into()),
            protect: true,
        }
    }

    fn ids(saved: &Saved) -> Vec<u32> {
        saved.policies().map(|policy| policy.id).collect()
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let (mut saved, problems) = Saved::load(dir.path());
        assert!(problems.is_empty() && ids(&saved).is_empty());
        for id in [3, 4, 9] {
            saved
                .add(id, &policy("tcp\n"), "uid 0", "a \"test\"")
                .unwrap();
        }
        saved.remove([4, 9].into_iter()).unwrap();
        let (again, problems) = Saved::load(dir.path());
        assert_eq!((problems, ids(&again)), (Vec::new(), vec![3]));
        assert_eq!(again.ids(), 3..10, "numbers are not used again");
        assert_eq!(again.known, saved.known);
        let path = dir.path().join(FILE_NAME);
        let mode = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    }

    #[test]
    fn lines_of_the_past_do_not_pile_up() {
        let dir = tempfile::tempdir().unwrap();
        let (mut saved, _) = Saved::load(dir.path());
        for id in 1..5000 {
            saved.add(id, &policy("tcp"), "token", "").unwrap();
            saved.remove([id].into_iter()).unwrap();
        }
        let text = fs::read_to_string(dir.path().join(FILE_NAME)).unwrap();
        assert!(text.lines().count() < 1100);
        assert_eq!(Saved::load(dir.path()).0.ids(), 1..5000);
    }

    /// Whatever the file contains, loading succeeds and keeps the policies of its good lines.
    #[test]
    fn damage_is_told_and_costs_its_line_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let (mut saved, _) = Saved::load(dir.path());
        for id in 1..4 {
            saved.add(id, &policy("udp"), "token", "").unwrap();
        }
        let good = fs::read(&path).unwrap();
        for end in 0..good.len() {
            fs::write(&path, &good[..end]).unwrap();
            let (mut torn, problems) = Saved::load(dir.path());
            let whole = good[..end].iter().filter(|&&byte| byte == b'\n').count();
            assert!(torn.known.len() + 1 >= whole, "{end}");
            assert!(
                !problems.is_empty() || torn.known.len() + 1 >= whole,
                "{end}"
            );
            torn.add(9, &policy("tcp"), "token", "").unwrap();
            let (again, problems) = Saved::load(dir.path());
            assert!(problems.is_empty(), "{end}: {problems:?}");
            assert_eq!(again.known, torn.known, "{end}");
        }
        fs::write(&path, "\u{1b}[2J{}\n").unwrap();
        let (_, problems) = Saved::load(dir.path());
        assert!(
            problems[0].contains("policies.jsonl.invalid"),
            "{problems:?}"
        );
        assert!(dir.path().join("policies.jsonl.invalid").exists() && !path.exists());
    }

    #[test]
    fn a_full_disk_is_made_up_for_later() {
        let dir = tempfile::tempdir().unwrap();
        let (mut saved, _) = Saved::load(dir.path());
        let gone = dir.path().join("gone");
        saved.path = gone.join(FILE_NAME);
        assert!(saved.add(1, &policy("tcp"), "token", "").is_err());
        assert!(saved.try_again().is_err());
        fs::create_dir(&gone).unwrap();
        saved.try_again().unwrap();
        assert_eq!(ids(&Saved::load(&gone).0), [1]);
        saved.add(2, &policy("tcp"), "token", "").unwrap();
        assert_eq!(ids(&Saved::load(&gone).0), [1, 2]);
    }
}
