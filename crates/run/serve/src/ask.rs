//! Questions of a log, in SQL or Marple's language: asked of a program, since an answer may take any memory, and
//! DataFusion is not a part of this one.

pub(crate) mod shape;

mod answer;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strata_archive::{Kind, Table};
use strata_gpv::marple::SHIPPED;
use strata_log_views::answers::refused::Refused;
use strata_log_views::search::{options, quoted};
use strata_log_views::work::child::NoAnswer;
use utoipa::ToSchema;

use crate::access::trust::Who;
use crate::app::App;
use crate::ask::shape::Shape;
use crate::saved::{Language, QUESTION_BYTES_MAX};

/// The program for SQL.
const SQL: &str = "strata-sql";
/// Its memory.
const SQL_MEMORY: &str = "512MiB";
/// What a program says when an allocation fails; `strata-sql` may have four times its memory for sorting in all.
const NO_MEMORY: &str = "memory allocation of ";
/// How long an answer may take, its bytes and rows.
const AFTER: Duration = Duration::from_secs(60);
const BYTES_MAX: u64 = 32 << 20;
const ROWS_MAX: usize = 100_000;
const ROWS_USUAL: usize = 10_000;

/// A question.
#[derive(Debug, Deserialize)]
pub(crate) struct Question {
    language: Language,
    log: String,
    pub(crate) text: String,
    #[serde(default)]
    params: BTreeMap<String, String>,
    rows_max: Option<usize>,
}

fn sql(app: &App) -> Option<PathBuf> {
    strata_log_views::work::child::find(SQL, Some(&app.spec.program))
}

/// Whether SQL is available.
pub(crate) fn has_sql(app: &App) -> bool {
    sql(app).is_some()
}

/// The available queries and tables.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "sql": {"available": false, "problem": "strata-sql is not installed: `make sql` builds it"},
    "marple": {"available": true, "problem": null},
    "tables": [{"name": "flows", "columns": [{"name": "src", "type": "text", "what": "address of the initiator"}]}],
    "questions": [{
        "language": "marple", "name": "heavy_hitters", "what": "flows with most bytes", "text": "...", "params": [],
    }],
}))]
pub(crate) struct Askable {
    sql: Availability,
    marple: Availability,
    /// For SQL.
    tables: Vec<AskableTable>,
    /// Questions that come with Strata.
    questions: Vec<AskableQuestion>,
}

/// Whether questions in a language can be asked, and if not, why.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Availability {
    available: bool,
    #[schema(required)]
    problem: Option<String>,
}

/// A table for SQL.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AskableTable {
    name: &'static str,
    columns: Vec<AskableColumn>,
}

/// A column of a table for SQL.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AskableColumn {
    name: &'static str,
    r#type: &'static str,
    what: &'static str,
}

/// A question that comes with Strata.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AskableQuestion {
    language: Language,
    name: &'static str,
    what: &'static str,
    text: &'static str,
    params: Vec<QuestionParameter>,
}

/// A parameter of a question, with its usual value.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QuestionParameter {
    name: &'static str,
    default: &'static str,
}

pub(crate) fn askable(app: &App) -> Askable {
    let has_sql = has_sql(app);
    let missing = format!("{SQL} is neither beside strata nor in PATH: `make sql` builds it");
    let has_marple = app.spec.program.is_file();
    let tables = [Table::Packets, Table::Flows].map(|table| {
        let columns = table.specs().iter().map(|spec| {
            let kind = match spec.kind {
                Kind::Time => "time",
                Kind::Int32 | Kind::Int64 | Kind::Float => "number",
                Kind::Bool => "bool",
                Kind::Text => "text",
                Kind::Bytes => "bytes",
            };
            AskableColumn {
                name: spec.name,
                r#type: kind,
                what: spec.what,
            }
        });
        AskableTable {
            name: table.name(),
            columns: columns.collect(),
        }
    });
    let marple = SHIPPED.iter().map(|query| {
        let params = query.parameters.iter();
        let params = params.map(|&(name, default)| QuestionParameter { name, default });
        AskableQuestion {
            language: Language::Marple,
            name: query.name,
            what: query.about,
            text: query.text,
            params: params.collect(),
        }
    });
    let sqls = [
        (
            "kept-by-class",
            "kept bytes by class",
            "SELECT class, granularity, count(*) AS packets, sum(header_bytes + payload_bytes) AS kept \
             FROM packets GROUP BY class, granularity ORDER BY kept DESC",
        ),
        (
            "largest-flows",
            "the flows with most bytes",
            "SELECT src, dst, dst_port, protocol, sum(wire_bytes + reverse_wire_bytes) AS bytes FROM \
             flows GROUP BY src, dst, dst_port, protocol ORDER BY bytes DESC LIMIT 50",
        ),
    ];
    let sqls = sqls.map(|(name, what, text)| AskableQuestion {
        language: Language::Sql,
        name,
        what,
        text,
        params: Vec::new(),
    });
    Askable {
        sql: Availability {
            available: has_sql,
            problem: (!has_sql).then_some(missing),
        },
        marple: Availability {
            available: has_marple,
            problem: (!has_marple).then(|| String::from("the program strata was not found")),
        },
        tables: tables.into(),
        questions: marple.chain(sqls).collect(),
    }
}

/// The program that answers a question, and its arguments: each value in one word, since it may begin
/// with a dash.
fn command(
    app: &App,
    asked: &Question,
    (dir, shape): (&str, &Shape),
) -> Result<(PathBuf, Vec<String>), Refused> {
    let key = app.spec.key.as_ref();
    let key = key.map(|key| format!("--key={}", key.display()));
    match asked.language {
        Language::Sql => {
            let program = sql(app).ok_or_else(|| {
                let error = format!("{SQL} is not installed: `make sql` builds it");
                Refused::new(StatusCode::NOT_IMPLEMENTED, "missing_tool", error)
            })?;
            let mut arguments = vec![String::from("--typed"), String::from("--write=-")];
            arguments.push(format!("--sort-memory={SQL_MEMORY}"));
            arguments.extend(key);
            let names = &app.spec.names;
            let files = names.files().iter().map(PathBuf::as_path);
            let files = files.map(|file| format!("--names={}", file.display()));
            arguments.extend(files);
            let databases = names.databases();
            arguments.extend(databases.map(|file| format!("--mmdb={}", file.display())));
            arguments.extend([String::from("--"), dir.to_owned(), asked.text.clone()]);
            Ok((program, arguments))
        }
        Language::Marple => {
            let mut arguments = vec![String::from("ask"), String::from("--format=csv")];
            arguments.push(format!("--query={}", asked.text));
            arguments.extend(key);
            for (name, value) in &asked.params {
                arguments.push(format!("--param={name}={value}"));
            }
            arguments.extend(
                shape
                    .sort
                    .as_ref()
                    .map(|column| format!("--sort=-{column}")),
            );
            arguments.extend([String::from("--"), dir.to_owned()]);
            Ok((app.spec.program.clone(), arguments))
        }
    }
}

/// The same for a shell, for people.
fn shown(app: &App, asked: &Question, (dir, shape): (&str, &Shape)) -> String {
    let (dir, text) = (quoted(dir), quoted(&asked.text));
    match asked.language {
        Language::Sql => {
            let options = options(&app.spec.names).map(|option| format!("{option} "));
            format!("strata query {}{dir} {text}", options.collect::<String>())
        }
        Language::Marple => {
            let params = asked.params.iter();
            let params = params
                .map(|(name, value)| format!(" --param {}", quoted(&format!("{name}={value}"))));
            let sort = shape.sort.as_ref();
            let sort = sort.map(|column| format!(" --sort {}", quoted(&format!("-{column}"))));
            let params: String = params.chain(sort).collect();
            format!("strata ask {dir} {text}{params}")
        }
    }
}

/// The answer to a question.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Answer, example = json!({
    "columns": [
        {"name": "class", "type": "text", "measure": false}, {"name": "count", "type": "number", "measure": true},
    ],
    "rows": [["benign", 900], ["botnet", 100]],
    "sorted_by": 1,
    "truncated": null,
    "seconds": 0.2,
    "command": "strata query /var/log/strata/edge 'select class, count(*) from packets group by class'",
    "notes": [],
}))]
pub(crate) struct AnswerTable {
    columns: Vec<AnswerColumn>,
    rows: Vec<Vec<Value>>,
    /// The column of amounts, from 0 on, by which all rows of the answer are sorted, largest first, also those that
    /// are cut off. Groups are where the question leaves the order open; null for another order, and where the end of
    /// the answer is not known.
    #[schema(required)]
    sorted_by: Option<usize>,
    /// If not all rows are there: why, as where a file of the log is missing.
    #[schema(required)]
    truncated: Option<String>,
    seconds: f64,
    command: String,
    /// Messages of the program, in addition to its answer.
    notes: Vec<String>,
}

/// A column of an answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnswerColumn {
    name: String,
    r#type: ColumnType,
    /// Whether it holds amounts, as far as the question tells: not ports and other numbers that name something, nor
    /// what groups are made by.
    measure: bool,
}

/// What a column holds, by its type in the language of the question. A `time` is RFC 3339. Of a `number`, NaN and
/// infinite ones are null. A column with integers of 2^53 or more, which JavaScript would round, is `text`; so are
/// bytes, in hexadecimal, and lists, in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ColumnType {
    Text,
    Number,
    Time,
    Bool,
}

/// Asks, which is an access to payload.
pub(crate) async fn ask(app: &App, who: &Who, asked: &Question) -> Result<AnswerTable, Refused> {
    if asked.text.trim().is_empty() || asked.text.len() > QUESTION_BYTES_MAX {
        let error = format!("a query must be 1 to {QUESTION_BYTES_MAX} bytes long");
        return Err(Refused::invalid("text", error));
    }
    let dir = app.logs.dir(&asked.log)?.display().to_string();
    let shape = match asked.language {
        Language::Sql => Shape::of_sql(&asked.text),
        Language::Marple => {
            let params = asked.params.iter();
            Shape::of_marple(
                &asked.text,
                params.map(|(name, value)| (name.as_str(), value.as_str())),
            )
        }
    };
    let (program, arguments) = command(app, asked, (&dir, &shape))?;
    let rows_max = asked.rows_max.unwrap_or(ROWS_USUAL).clamp(1, ROWS_MAX);
    let _turn = app.work.turn().await?;
    let what = format!("asked log {}: {}", asked.log, asked.text);
    app.audit.note(&who.name, &what, "");
    let since = Instant::now();
    let answered =
        strata_log_views::work::child::run(&program, arguments, (Vec::new(), BYTES_MAX), AFTER)
            .await;
    let answered = answered.map_err(|why| match why {
        NoAnswer::Start(error) => {
            let error = format!("{}: {error}", program.display());
            Refused::new(StatusCode::NOT_IMPLEMENTED, "missing_tool", error)
        }
        NoAnswer::Late(after) => {
            let error = format!("no answer after {} s: narrow the query", after.as_secs());
            Refused::new(StatusCode::GATEWAY_TIMEOUT, "timeout", error)
        }
    })?;
    let language = asked.language;
    // What was written before an error is no answer.
    let is_answer = match language {
        Language::Sql => answered.is_cut || answer::is_whole(&answered.output),
        Language::Marple => answered.succeeded || !answered.output.is_empty(),
    };
    if !is_answer && answered.said.contains(NO_MEMORY) {
        let error = "the query needs more than 2 GiB of memory: narrow it, or shorten the values that it builds";
        return Err(Refused::invalid("text", error));
    }
    if !is_answer {
        return Err(Refused::invalid("text", answered.said.trim()));
    }
    let lines = answered.said.lines().map(str::trim);
    let notes = lines.filter(|line| !line.is_empty());
    let notes = notes.map(str::to_owned).collect();
    let command = shown(app, asked, (&dir, &shape));
    let read = tokio::task::spawn_blocking(move || match language {
        Language::Sql => answer::of_sql(&answered, rows_max, &shape),
        Language::Marple => answer::of_marple(&answered, rows_max, &shape),
    });
    let read = read
        .await
        .map_err(|error| Refused::internal(error.to_string()))??;
    Ok(AnswerTable {
        columns: read.columns,
        rows: read.rows,
        sorted_by: read.sorted_by,
        truncated: read.truncated,
        seconds: since.elapsed().as_secs_f64(),
        command,
        notes,
    })
}
