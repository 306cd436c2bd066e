//! What users keep with the server, if it has a directory for that (`--state`): questions of Ask, and
//! labels of flows, which training reads.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use strata_log_views::answers::refused::Refused;
use strata_log_views::answers::times;
use utoipa::ToSchema;

use crate::ServeError;

/// Maximum bytes of a question.
pub(crate) const QUESTION_BYTES_MAX: usize = 16 << 10;

/// Questions that are kept, at most, and bytes of a name.
const QUESTIONS_MAX: usize = 200;
const NAME_BYTES_MAX: usize = 120;
/// Maximum bytes of a file with all of them.
const FILE_BYTES_MAX: u64 = 32 << 20;

const QUESTIONS: &str = "questions.json";
const LABELS: &str = "labels.json";
const LOCK: &str = "lock";

/// The directory. Each of its files is read, changed and replaced as a whole, by one at a time.
pub(crate) struct Saved {
    dir: Option<PathBuf>,
    questions: Mutex<()>,
    /// Held while labels are added.
    pub(crate) labelling: tokio::sync::Mutex<()>,
}

/// The languages of questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Language {
    Sql,
    Marple,
}

/// A question that is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "name": "bytes by class", "language": "sql",
    "text": "select class, sum(wire_bytes) from packets group by class", "by": "token (change)",
    "at": "2026-01-31T13:00:00.000000000Z",
}))]
pub(crate) struct KeptQuestion {
    /// At most 120 bytes.
    pub(crate) name: String,
    language: Language,
    text: String,
    /// The user who saved the query; the server sets it.
    #[serde(default)]
    by: String,
    /// When.
    #[serde(default)]
    at: String,
}

/// Takes a directory for this server alone, until the file is closed: its files are read, changed and replaced.
pub(crate) fn lock(dir: &Path) -> Result<File, ServeError> {
    let cannot = |source| ServeError::State {
        dir: dir.to_owned(),
        source,
    };
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.mode(0o600).open(dir.join(LOCK)).map_err(cannot)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ServeError::StateInUse(dir.to_owned())),
        Err(TryLockError::Error(source)) => Err(cannot(source)),
    }
}

impl Saved {
    pub(crate) fn new(dir: Option<PathBuf>) -> Self {
        Self {
            dir,
            questions: Mutex::default(),
            labelling: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn keeps(&self) -> bool {
        self.dir.is_some()
    }

    fn dir(&self) -> Result<&Path, Refused> {
        let missing = || {
            let error = "queries cannot be saved: start strata serve with --state DIR";
            Refused::new(StatusCode::NOT_FOUND, "not_found", error)
        };
        self.dir.as_deref().ok_or_else(missing)
    }

    /// The file of labels.
    pub(crate) fn labels(&self) -> Result<PathBuf, Refused> {
        Ok(self.dir()?.join(LABELS))
    }

    /// All questions, by name.
    pub(crate) fn questions(&self) -> Result<Vec<KeptQuestion>, Refused> {
        match &self.dir {
            Some(dir) => read(&dir.join(QUESTIONS)),
            None => Ok(Vec::new()),
        }
    }

    /// Keeps a question; one with the same name is replaced.
    pub(crate) fn keep(&self, who: &str, asked: KeptQuestion) -> Result<(), Refused> {
        let question = KeptQuestion {
            name: asked.name.trim().to_owned(),
            by: who.to_owned(),
            at: times::now(),
            ..asked
        };
        let KeptQuestion { name, text, .. } = &question;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            let error = format!("a name must be 1 to {NAME_BYTES_MAX} bytes long, in one line");
            return Err(Refused::invalid("name", error));
        }
        if text.trim().is_empty() || text.len() > QUESTION_BYTES_MAX {
            let error = format!("a query must be 1 to {QUESTION_BYTES_MAX} bytes long");
            return Err(Refused::invalid("text", error));
        }
        self.change(|all| {
            all.retain(|known| known.name != question.name);
            if all.len() >= QUESTIONS_MAX {
                let error = format!("{QUESTIONS_MAX} queries are saved: delete one first");
                return Err(Refused::invalid("name", error));
            }
            all.push(question);
            all.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(())
        })
    }

    /// Forgets a question.
    pub(crate) fn forget(&self, name: &str) -> Result<(), Refused> {
        self.change(|all| {
            let before = all.len();
            all.retain(|known| known.name != name);
            match all.len() == before {
                true => Err(Refused::not_found(format!(
                    "there is no saved query '{name}'"
                ))),
                false => Ok(()),
            }
        })
    }

    /// Changes the questions that are kept, one request at a time.
    fn change(
        &self,
        with: impl FnOnce(&mut Vec<KeptQuestion>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let file = self.dir()?.join(QUESTIONS);
        let _one = self
            .questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut all = read(&file)?;
        with(&mut all)?;
        write(&file, &all)
    }
}

fn read(file: &Path) -> Result<Vec<KeptQuestion>, Refused> {
    let wrong = |what: String| {
        let error = format!("{}: {what}: repair it or remove it", file.display());
        Refused::internal(error)
    };
    match fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Ok(about) if about.len() > FILE_BYTES_MAX => {
            return Err(wrong(String::from("too large for a file of queries")));
        }
        _ => {}
    }
    let json = fs::read(file).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_slice(&json).map_err(|error| wrong(error.to_string()))
}

/// Replaces the file, so that no reader and no crash finds half of it.
fn write(file: &Path, all: &[KeptQuestion]) -> Result<(), Refused> {
    let put = || -> io::Result<()> {
        let new = file.with_extension("new");
        let mut out = File::create(&new)?;
        serde_json::to_writer_pretty(&mut out, all)?;
        out.write_all(b"\n")?;
        out.sync_all()?;
        fs::rename(&new, file)
    };
    put().map_err(|error| Refused::internal(format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_of_one_server() {
        let dir = tempfile::tempdir().unwrap();
        let first = lock(dir.path()).unwrap();
        let second = lock(dir.path()).unwrap_err().to_string();
        assert!(second.contains("another server"), "{second}");
        drop(first);
        lock(dir.path()).unwrap();
        let missing = dir.path().join("none");
        assert!(matches!(lock(&missing), Err(ServeError::State { .. })));
    }

    #[test]
    fn questions_are_kept_replaced_forgotten_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let saved = || Saved::new(Some(dir.path().to_owned()));
        let question = |name: &str, text: &str| KeptQuestion {
            name: name.to_owned(),
            language: Language::Sql,
            text: text.to_owned(),
            by: String::new(),
            at: String::new(),
        };
        for n in 0..QUESTIONS_MAX {
            let kept = saved().keep("one", question(&format!("q{n}"), "SELECT 1"));
            kept.unwrap();
        }
        assert!(saved().keep("one", question("more", "x")).is_err());
        saved().keep("two", question("q7", "SELECT 2")).unwrap();
        let all = saved().questions().unwrap();
        let seventh = all.iter().find(|one| one.name == "q7").unwrap();
        assert_eq!(
            (all.len(), &*seventh.text, &*seventh.by),
            (QUESTIONS_MAX, "SELECT 2", "two")
        );
        saved().forget("q7").unwrap();
        assert!(saved().forget("q7").is_err());
        for (name, text) in [("", "x"), ("a\nb", "x"), ("a", " ")] {
            assert!(saved().keep("one", question(name, text)).is_err());
        }
        fs::write(dir.path().join(QUESTIONS), "[{").unwrap();
        let refused = saved().keep("one", question("q", "x")).unwrap_err();
        assert!(refused.error.contains(QUESTIONS), "{}", refused.error);
        assert!(Saved::new(None).forget("q").is_err());
    }
}
