//! What users keep with the server, if it has a directory for that (`--state`): questions of Ask, and
//! labels of flows, which training reads.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use strata_archive::parts::community_id_of;
use strata_wire::{AddressFamily, FlowKey};

use crate::app::App;
use crate::ask::{Language, QUESTION_BYTES_MAX};
use crate::child::{self, NoAnswer};
use crate::flow_id;
use crate::refused::Refused;
use crate::search::{Asked, quoted};
use crate::times;

/// Questions that are kept, at most, and bytes of a name.
const QUESTIONS_MAX: usize = 200;
const NAME_BYTES_MAX: usize = 120;
/// Most bytes of a file with all of them.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Most bytes of a label.
const LABEL_BYTES_MAX: usize = 64;
/// How long labelling may take: it reads the whole log, for the flow's packets before and after.
const AFTER: Duration = Duration::from_secs(300);
/// Most bytes of what the program that labels writes.
const OUTPUT_BYTES_MAX: u64 = 4 << 10;

const QUESTIONS: &str = "questions.json";
const LABELS: &str = "labels.json";

/// The directory. Each of its files is read, changed and replaced as a whole, by one at a time.
pub(crate) struct Saved {
    dir: Option<PathBuf>,
    questions: Mutex<()>,
    labels: tokio::sync::Mutex<()>,
}

/// A question that is kept (`KeptQuestion`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptQuestion {
    pub(crate) name: String,
    language: Language,
    text: String,
    /// Who kept it, and when.
    #[serde(default)]
    by: String,
    #[serde(default)]
    at: String,
}

impl Saved {
    pub(crate) fn new(dir: Option<PathBuf>) -> Self {
        Self {
            dir,
            questions: Mutex::default(),
            labels: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn keeps(&self) -> bool {
        self.dir.is_some()
    }

    fn dir(&self) -> Result<&Path, Refused> {
        let missing = || {
            let error = "nothing is kept here: start strata serve with --state DIR";
            Refused::new(StatusCode::NOT_FOUND, "not_found", error)
        };
        self.dir.as_deref().ok_or_else(missing)
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
            let error = format!("a name has from 1 to {NAME_BYTES_MAX} bytes, in one line");
            return Err(Refused::invalid("name", error));
        }
        if text.trim().is_empty() || text.len() > QUESTION_BYTES_MAX {
            let error = format!("a question has from 1 to {QUESTION_BYTES_MAX} bytes");
            return Err(Refused::invalid("text", error));
        }
        let file = self.dir()?.join(QUESTIONS);
        let _one = self
            .questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut all = read(&file)?;
        all.retain(|known| known.name != question.name);
        if all.len() >= QUESTIONS_MAX {
            let error = format!("{QUESTIONS_MAX} questions are kept: forget one first");
            return Err(Refused::invalid("name", error));
        }
        all.push(question);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        write(&file, &all)
    }

    /// Forgets a question.
    pub(crate) fn forget(&self, name: &str) -> Result<(), Refused> {
        let file = self.dir()?.join(QUESTIONS);
        let _one = self
            .questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut all = read(&file)?;
        let before = all.len();
        all.retain(|known| known.name != name);
        if all.len() == before {
            let error = format!("no question is kept by the name '{name}'");
            return Err(Refused::not_found(error));
        }
        write(&file, &all)
    }
}

fn read(file: &Path) -> Result<Vec<KeptQuestion>, Refused> {
    let wrong = |what: String| {
        let error = format!("{}: {what}: mend it or remove it", file.display());
        Refused::internal(error)
    };
    match fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Ok(about) if about.len() > FILE_BYTES_MAX => {
            return Err(wrong(String::from("too large for a file of questions")));
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

/// A label for a flow (`LabelRequest`).
#[derive(Debug, Deserialize)]
pub(crate) struct Labelling {
    pub(crate) flow: String,
    label: String,
    from: Option<String>,
    to: Option<String>,
}

impl Labelling {
    fn key(&self) -> Result<FlowKey, Refused> {
        let key = flow_id::parse(&self.flow);
        let key = key.ok_or_else(|| Refused::invalid("flow", "this is no flow"))?;
        match key.family {
            AddressFamily::Mac => {
                let error = "flows are labelled by their IP addresses, which this one has not";
                Err(Refused::invalid("flow", error))
            }
            AddressFamily::Ipv4 | AddressFamily::Ipv6 => Ok(key),
        }
    }

    fn label(&self) -> Result<&str, Refused> {
        let label = self.label.trim();
        // Zeek writes these where there is no label.
        let is_none = matches!(label, "" | "-" | "(empty)");
        if is_none || label.len() > LABEL_BYTES_MAX || label.chars().any(char::is_control) {
            let error = format!(
                "a label is a word such as scan or benign, of at most {LABEL_BYTES_MAX} bytes"
            );
            return Err(Refused::invalid("label", error));
        }
        Ok(label)
    }

    /// The words of `strata labels add` after the log. Each value is in one word, since it may begin
    /// with a dash.
    fn arguments(&self, file: &str) -> Result<Vec<String>, Refused> {
        let (key, label) = (self.key()?, self.label()?);
        let sought = Asked::between(self.from.clone(), self.to.clone()).sought()?;
        let mut words = vec![format!("--label={label}"), format!("--output={file}")];
        words.push(format!("--community-id={}", community_id_of(&key)));
        let times = [("from", sought.from_ns), ("to", sought.to_ns)];
        let times = times
            .into_iter()
            .filter_map(|(name, at)| Some(format!("--{name}={}", times::text(at?))));
        words.extend(times);
        words.extend(flow_id::filter(&key));
        Ok(words)
    }
}

/// Labels a flow in the file that training reads (`Changed`).
pub(crate) async fn label(app: &App, log: &str, asked: &Labelling) -> Result<Value, Refused> {
    let dir = app.logs.dir(log)?.display().to_string();
    let file = app.saved.dir()?.join(LABELS).display().to_string();
    let words = asked.arguments(&file)?;
    let shown: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let command = format!("strata labels add {} {}", quoted(&dir), shown.join(" "));
    let key = app.spec.key.as_ref();
    let key = key.map(|key| format!("--key={}", key.display()));
    let mut arguments: Vec<String> = ["labels", "add"].map(str::to_owned).into();
    arguments.extend(key);
    // Options first: the rest is a filter.
    let (options, filter) = words.split_at(words.len() - 1);
    arguments.extend_from_slice(options);
    arguments.extend([String::from("--"), dir]);
    arguments.extend_from_slice(filter);
    let _turn = app.work.turn().await?;
    let _one = app.saved.labels.lock().await;
    let program = &app.spec.program;
    let answered = child::run(program, arguments, (Vec::new(), OUTPUT_BYTES_MAX), AFTER).await;
    let answered = answered.map_err(|why| match why {
        NoAnswer::Start(error) => {
            let error = format!("{}: {error}", program.display());
            Refused::new(StatusCode::NOT_IMPLEMENTED, "missing_tool", error)
        }
        NoAnswer::Late(after) => {
            let after = after.as_secs();
            let error =
                format!("not labelled after {after} s, and the file is unchanged: {command}");
            Refused::new(StatusCode::GATEWAY_TIMEOUT, "timeout", error)
        }
    })?;
    let said = answered.said.trim().lines().last().unwrap_or("labelled");
    let what = said.strip_prefix("strata: ").unwrap_or(said);
    if !answered.succeeded {
        return Err(Refused::invalid("flow", what));
    }
    Ok(json!({"what": what, "command": command, "id": null, "undo": null}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labelling(flow: &str, label: &str) -> Labelling {
        Labelling {
            flow: flow.to_owned(),
            label: label.to_owned(),
            from: None,
            to: None,
        }
    }

    #[test]
    fn a_flow_is_named_to_the_program_that_labels_and_nothing_else_is() {
        let flow = "6_10.0.0.1_443_10.0.0.2_51234";
        let words = labelling(flow, " --scan ")
            .arguments("labels.json")
            .unwrap();
        assert_eq!(words[0], "--label=--scan");
        assert!(words[2].starts_with("--community-id=1:"), "{words:?}");
        let filter = words.last().unwrap();
        assert!(filter.starts_with("tcp and host 10.0.0.1"), "{filter}");
        for (flow, label) in [
            (flow, ""),
            (flow, "-"),
            (flow, "a\nb"),
            (flow, &*"x".repeat(65)),
            ("--output=/etc/passwd", "scan"),
            ("e_00:1b:21:00:00:01_0_00:1b:21:00:00:02_0", "scan"),
        ] {
            assert!(labelling(flow, label).arguments("labels.json").is_err());
        }
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
