//! Questions of a log, in SQL or Marple's language: asked of a program that answers in CSV, since an
//! answer may take any memory, and DataFusion is not a part of this one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strata_archive::{Kind, Table};
use strata_gpv::marple::SHIPPED;
use utoipa::ToSchema;

use crate::app::App;
use crate::child::{self, Answered, NoAnswer};
use crate::refused::Refused;
use crate::saved::{Language, QUESTION_BYTES_MAX};
use crate::search::quoted;
use crate::shape::Shape;
use crate::times;

/// The program for SQL.
const SQL: &str = "strata-sql";
/// Its memory.
const SQL_MEMORY: &str = "512MiB";
/// How long an answer may take, its bytes and rows.
const AFTER: Duration = Duration::from_secs(60);
const BYTES_MAX: u64 = 32 << 20;
const ROWS_MAX: usize = 100_000;
const ROWS_USUAL: usize = 10_000;
/// Integers below this JavaScript keeps exact; larger ones may have been rounded to it.
const EXACT_END: f64 = 9_007_199_254_740_992.0;

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
    child::find(SQL, Some(&app.spec.program))
}

/// Whether SQL is available.
pub(crate) fn has_sql(app: &App) -> bool {
    sql(app).is_some()
}

/// The available questions and tables.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "sql": {"available": false, "problem": "strata-sql is not installed: make sql"},
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
    let missing = format!("{SQL} is neither beside strata nor in the path: `make sql` builds it");
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
            let mut arguments = vec![String::from("--format=csv"), String::from("--write=-")];
            arguments.push(format!("--sort-memory={SQL_MEMORY}"));
            arguments.extend(key);
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
fn shown(asked: &Question, dir: &str, shape: &Shape) -> String {
    let (dir, text) = (quoted(dir), quoted(&asked.text));
    match asked.language {
        Language::Sql => format!("strata query {dir} {text}"),
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
    /// The column of amounts, from 0 on, by which the rows are sorted, largest first. Groups are where the question
    /// leaves the order open; null for another order.
    #[schema(required)]
    sorted_by: Option<usize>,
    /// If not all rows are there: why.
    #[schema(required)]
    truncated: Option<String>,
    seconds: f64,
    command: String,
    /// What the program said beside its answer.
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

/// What values of a column look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ColumnType {
    Text,
    Number,
    Time,
    Bool,
}

/// Asks.
pub(crate) async fn ask(app: &App, asked: &Question) -> Result<AnswerTable, Refused> {
    if asked.text.trim().is_empty() || asked.text.len() > QUESTION_BYTES_MAX {
        let error = format!("a question has from 1 to {QUESTION_BYTES_MAX} bytes");
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
    let since = Instant::now();
    let answered = child::run(&program, arguments, (Vec::new(), BYTES_MAX), AFTER).await;
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
    if !answered.succeeded && answered.output.is_empty() {
        return Err(Refused::invalid("text", answered.said.trim()));
    }
    let read = table(&answered, rows_max, &shape)?;
    let notes = answered
        .said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    Ok(AnswerTable {
        columns: read.columns,
        rows: read.rows,
        sorted_by: read.sorted_by,
        truncated: read.truncated,
        seconds: since.elapsed().as_secs_f64(),
        command: shown(asked, &dir, &shape),
        notes: notes.map(str::to_owned).collect(),
    })
}

/// The columns and rows of an answer, in its order.
struct ReadTable {
    columns: Vec<AnswerColumn>,
    rows: Vec<Vec<Value>>,
    sorted_by: Option<usize>,
    truncated: Option<String>,
}

/// An answer in CSV as columns and rows; where the question leaves the order open, by the first amount,
/// largest first.
fn table(answered: &Answered, rows_max: usize, shape: &Shape) -> Result<ReadTable, Refused> {
    let wrong =
        |error: csv::Error| Refused::internal(format!("the answer cannot be parsed: {error}"));
    let mut whole = &answered.output[..];
    if answered.is_cut {
        let end = whole.iter().rposition(|byte| *byte == b'\n');
        whole = match end {
            Some(end) => &whole[..=end],
            None => &[],
        };
    }
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(whole);
    let names: Vec<String> = reader
        .headers()
        .map_err(wrong)?
        .iter()
        .map(str::to_owned)
        .collect();
    let mut rows: Vec<csv::StringRecord> = Vec::new();
    let mut truncated = answered.is_cut.then(|| {
        format!(
            "the answer has more than {} MiB: narrow the query",
            BYTES_MAX >> 20
        )
    });
    for record in reader.records() {
        if rows.len() == rows_max {
            truncated = Some(format!(
                "there are more than {rows_max} rows: narrow the query, or raise the limit of \
                 rows"
            ));
            break;
        }
        rows.push(record.map_err(wrong)?);
    }
    let kind = |at| match shape.is_time(at) {
        true => ColumnType::Time,
        false => kind(&rows, at),
    };
    let kinds: Vec<ColumnType> = (0..names.len()).map(kind).collect();
    let is_measure =
        |at: usize| kinds[at] == ColumnType::Number && shape.is_measure(at, &names[at]);
    let measures: Vec<usize> = (0..names.len()).filter(|at| is_measure(*at)).collect();
    let number = |row: &csv::StringRecord, at| {
        let text = row.get(at).unwrap_or("");
        text.parse::<f64>().ok()
    };
    if !shape.is_ordered
        && let Some(&first) = measures.first()
    {
        // Stable: rows with the same amount stay as they came.
        rows.sort_by(|a, b| {
            let amount = |row| number(row, first).unwrap_or(f64::NEG_INFINITY);
            amount(b).total_cmp(&amount(a))
        });
    }
    let falls = |at: &usize| {
        let pairs = rows.windows(2);
        pairs
            .map(|two| (number(&two[0], *at), number(&two[1], *at)))
            .all(|(a, b)| a >= b)
    };
    let sorted = measures.iter().copied().find(falls);
    let columns = names.into_iter().zip(&kinds).enumerate();
    let columns = columns.map(|(at, (name, kind))| AnswerColumn {
        name,
        r#type: *kind,
        measure: measures.contains(&at),
    });
    let cells = rows.iter().map(|row| {
        let cells = kinds.iter().enumerate().map(|(at, kind)| {
            let text = row.get(at).unwrap_or("");
            match *kind {
                _ if text.is_empty() => Value::Null,
                ColumnType::Time if shape.is_time(at) => {
                    let ns = text.parse();
                    Value::from(ns.map_or_else(|_| text.to_owned(), times::text))
                }
                ColumnType::Number => Value::from(text.parse::<f64>().ok()),
                ColumnType::Bool => Value::from(text == "true"),
                ColumnType::Time | ColumnType::Text => Value::from(text),
            }
        });
        cells.collect()
    });
    Ok(ReadTable {
        columns: columns.collect(),
        rows: cells.collect(),
        sorted_by: sorted,
        truncated,
    })
}

/// What a column's values look like. Numbers that would lose digits stay text.
fn kind(rows: &[csv::StringRecord], at: usize) -> ColumnType {
    let values = rows
        .iter()
        .filter_map(|row| row.get(at))
        .filter(|text| !text.is_empty());
    let are = |is: fn(&str) -> bool| values.clone().all(is) && values.clone().next().is_some();
    let is_number = |text: &str| {
        let number = text.parse::<f64>().ok();
        number.is_some_and(|number| number.is_finite() && number.abs() < EXACT_END)
    };
    let is_time = |text: &str| text.len() >= 19 && text.parse::<jiff::Timestamp>().is_ok();
    if are(is_number) {
        ColumnType::Number
    } else if are(|text| matches!(text, "true" | "false")) {
        ColumnType::Bool
    } else if are(is_time) {
        ColumnType::Time
    } else {
        ColumnType::Text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_are_read_with_their_kinds_and_bounds() {
        let answered = |output: &str, is_cut| Answered {
            output: output.as_bytes().to_vec(),
            is_cut,
            said: String::new(),
            succeeded: true,
        };
        let unknown = Shape::ordered();
        let csv = "name,count,big,at,ok\n\"a,b\",1,9007199254740993,2026-01-31T13:00:00Z,true\nx,,1,,false\n";
        let read = table(&answered(csv, false), 10, &unknown).unwrap();
        let kinds: Vec<Value> = read.columns.iter().map(|c| json!(c.r#type)).collect();
        assert_eq!(kinds, ["text", "number", "text", "time", "bool"]);
        assert_eq!(read.rows[0][0], "a,b");
        assert_eq!(read.rows[1][1], Value::Null);
        let first = table(&answered(csv, false), 1, &unknown).unwrap();
        assert_eq!(first.rows.len(), 1);
        let cut = table(&answered("a,b\n1,2\n3,", true), 10, &unknown).unwrap();
        assert_eq!(json!(cut.rows), json!([[1.0, 2.0]]));
        assert!(cut.truncated.unwrap().contains("MiB"));
        // The amount orders, not the port, unless the question has an order of its own.
        let csv = "dst_port,count(*)\n1,2\n9,30\n5,4\n";
        let rows = |shape: &Shape| {
            let read = table(&answered(csv, false), 10, shape).unwrap();
            let measures: Vec<bool> = read.columns.iter().map(|c| c.measure).collect();
            (json!(read.rows), read.sorted_by, measures)
        };
        let (by_amount, sorted, measures) = rows(&Shape::of_sql(
            "select dst_port, count(*) from packets group by 1",
        ));
        assert_eq!(by_amount, json!([[9.0, 30.0], [5.0, 4.0], [1.0, 2.0]]));
        assert_eq!(sorted, Some(1));
        assert_eq!(measures, [false, true]);
        let (as_asked, sorted, _) = rows(&unknown);
        assert_eq!(as_asked, json!([[1.0, 2.0], [9.0, 30.0], [5.0, 4.0]]));
        assert_eq!(sorted, None);
    }
}
