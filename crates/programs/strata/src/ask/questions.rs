//! The queries of a command, and what they need.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use strata_gpv::marple::{Program, QueryError, SHIPPED, Shipped, ValueKind, compile, shipped};
use strata_gpv::{Column, Columns};
use strata_terminal::output::refuse;

use super::Args;

/// Maximum number of queries of one run: each costs its instructions for every packet.
const QUERIES_MAX: usize = 64;
/// Bytes of a query's file at most; no query is longer.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// A query and where it is from.
#[derive(Debug)]
struct Question {
    /// Its name in answers: that of a shipped query or of a file, else `q` and a number.
    name: String,
    text: String,
    shipped: Option<&'static Shipped>,
}

/// The queries of a run, not compiled yet.
#[derive(Debug)]
pub(super) struct Questions {
    all: Vec<Question>,
    params: Vec<(String, String)>,
    limits: strata_gpv::marple::Limits,
    instructions_max: usize,
}

/// A query that was compiled.
#[derive(Debug)]
pub(super) struct Compiled {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) program: Program,
    pub(super) limits: strata_gpv::marple::Limits,
    /// Values of its parameters.
    pub(super) params: Vec<(String, String)>,
}

/// What an answer looks like.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Of the query.
    pub(super) name: String,
    /// Names of the columns, and what they hold.
    pub(super) columns: Vec<String>,
    pub(super) kinds: Vec<ValueKind>,
    /// Whether a row is a packet; else it is a group.
    pub(super) is_of_packets: bool,
}

/// A field that the packets of a source do not have, and why.
pub(super) struct Lack {
    pub(super) column: Column,
    pub(super) why: &'static str,
}

/// Whether a word looks like a query rather than a file.
pub(super) fn is_query(word: &str) -> bool {
    shipped(word).is_some() || is_text(word)
}

/// Whether a word is a query's text rather than its name.
fn is_text(word: &str) -> bool {
    word.contains(['=', '(', '\n']) || word.trim().is_empty()
}

/// The shipped query of this name.
pub(super) fn named(word: &str) -> Option<&'static Shipped> {
    shipped(word)
}

/// The error for a name that no query has.
pub(super) fn unknown(word: &str) -> anyhow::Error {
    let words: Vec<&str> = word.split('-').collect();
    let like: Vec<&str> = SHIPPED
        .iter()
        .map(|shipped| shipped.name)
        .filter(|name| name.split('-').any(|part| words.contains(&part)))
        .collect();
    let like = match like.is_empty() {
        true => String::from(":"),
        false => format!("; is it one of {}?", like.join(", ")),
    };
    refuse(format!(
        "no query has the name '{word}'{like} `strata ask --list` lists all; the text of a query looks \
         like 'R = filter(T, proto == TCP);'"
    ))
}

impl Questions {
    pub(super) fn new(args: &Args, query: Option<&str>) -> Result<Self> {
        let mut all: Vec<Question> = Vec::new();
        for word in query
            .into_iter()
            .chain(args.queries.iter().map(String::as_str))
        {
            all.push(match (shipped(word), is_text(word)) {
                (Some(shipped), _) => Question {
                    name: shipped.name.to_owned(),
                    text: shipped.text.to_owned(),
                    shipped: Some(shipped),
                },
                (None, true) => Question {
                    name: format!("q{}", all.len() + 1),
                    text: word.to_owned(),
                    shipped: None,
                },
                (None, false) => return Err(unknown(word)),
            });
        }
        for path in &args.files {
            let stem = path
                .file_stem()
                .map_or("query".into(), |stem| stem.to_string_lossy());
            all.push(Question {
                name: stem.into_owned(),
                text: read(path)?,
                shipped: None,
            });
        }
        if all.len() > QUERIES_MAX {
            return Err(refuse(format!(
                "{} queries: at most {QUERIES_MAX} run at once",
                all.len()
            )));
        }
        for at in 1..all.len() {
            let name = all[at].name.clone();
            let same = all[..at].iter().filter(|other| other.name == name).count();
            if same > 0 {
                all[at].name = format!("{name}-{}", same + 1);
            }
        }
        let params = args.params.iter().map(|param| {
            let split = param.split_once('=').filter(|(name, _)| !name.is_empty());
            let (name, value) = split.ok_or_else(|| {
                refuse(format!(
                    "--param {param}: write NAME=VALUE, such as gap=5ms"
                ))
            })?;
            Ok((name.to_owned(), value.to_owned()))
        });
        let params: Vec<(String, String)> = params.collect::<Result<_>>()?;
        for (at, (name, _)) in params.iter().enumerate() {
            if params[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(refuse(format!(
                    "--param {name} is given twice: a parameter has one value, in all queries of a run"
                )));
            }
        }
        Ok(Self {
            all,
            params,
            limits: args.bounds.limits()?,
            instructions_max: usize::from(args.bounds.instructions_max),
        })
    }

    /// The queries' programs.
    pub(super) fn compiled(self) -> Result<Vec<Compiled>> {
        let unused = self.params.iter().find(|(name, _)| {
            let has = |question: &Question| match question.shipped {
                Some(shipped) => shipped.parameters.iter().any(|(known, _)| known == name),
                None => question.text.contains(&format!("${name}")),
            };
            !self.all.iter().any(has)
        });
        if let Some((name, _)) = unused {
            let known = self.all.iter().filter_map(|question| question.shipped);
            let known = known.flat_map(|shipped| shipped.parameters);
            let known: Vec<&str> = known.map(|(name, _)| *name).collect();
            let known = match known.is_empty() {
                true => String::from("none"),
                false => known.join(", "),
            };
            return Err(refuse(format!(
                "--param {name}: no query of this run has this parameter; known parameters: {known}"
            )));
        }
        let params = &self.params;
        let compiled = self.all.into_iter().map(|question| {
            let given = params
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()));
            let given: Vec<(&str, &str)> = match question.shipped {
                None => given.collect(),
                Some(shipped) => {
                    let is_its = |(name, _): &(&str, &str)| {
                        shipped.parameters.iter().any(|(known, _)| known == name)
                    };
                    let given: Vec<_> = given.filter(is_its).collect();
                    shipped.with(&given).map_err(refuse)?
                }
            };
            let has = |name: &str| question.text.contains(&format!("${name}"));
            let known = given.iter().filter(|(name, _)| has(name));
            let params = known.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let params = params.collect();
            let program = compile(&question.text, &given);
            let program = program.map_err(|error| wrong(&question.name, &error))?;
            let instructions = program.instructions();
            if instructions > self.instructions_max {
                return Err(refuse(format!(
                    "{}: {instructions} instructions per packet; --instructions-max allows {}",
                    question.name, self.instructions_max
                )));
            }
            Ok(Compiled {
                name: question.name,
                text: question.text,
                program,
                limits: self.limits,
                params,
            })
        });
        compiled.collect()
    }
}

/// The text in a file.
fn read(path: &Path) -> Result<String> {
    let named = || format!("{}: cannot read the query", path.display());
    let file = File::open(path).with_context(named)?;
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.with_context(named)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let path = path.display();
        return Err(refuse(format!(
            "{path}: a query may be at most {FILE_BYTES_MAX} bytes long"
        )));
    }
    Ok(text)
}

fn wrong(name: &str, error: &QueryError) -> anyhow::Error {
    refuse(format!("{name}, {error}"))
}

/// Refuses queries that need what packets of this source do not have.
pub(super) fn check<'a>(
    queries: impl IntoIterator<Item = (&'a str, &'a str, &'a Program)>,
    lacks: &[Lack],
) -> Result<()> {
    let lacking: Vec<Column> = lacks.iter().map(|lack| lack.column).collect();
    let carried = Columns(Columns::ALL.0 & !Columns::of(&lacking).0);
    for (name, text, program) in queries {
        let Err(unanswerable) = program.check(carried) else {
            continue;
        };
        let field = unanswerable.fields()[0];
        let lack = lacks
            .iter()
            .find(|lack| lack.column == unanswerable.missing[0]);
        let why = lack.map_or("packets lack it", |lack| lack.why);
        let message = format!("{field} is not available here: {why}");
        let error = QueryError::new(text, place(text, field), message);
        return Err(wrong(name, &error));
    }
    Ok(())
}

/// Where a query's text has this word.
fn place(text: &str, word: &str) -> usize {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let found = text.match_indices(word).find(|(at, _)| {
        let line_at = text[..*at].rfind('\n').map_or(0, |end| end + 1);
        let after = &text[at + word.len()..];
        !text[..*at].ends_with(is_name)
            && !after.starts_with(is_name)
            && !text[line_at..*at].contains('#')
    });
    found.map_or(0, |(at, _)| at)
}
