//! Questions of a log, in SQL or Marple's language: asked of a program that answers in CSV, since an
//! answer may take any memory, and DataFusion is not a part of this one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use strata_archive::{Kind, Table};
use strata_gpv::marple::SHIPPED;

use crate::app::App;
use crate::child::{self, Answered, NoAnswer};
use crate::refused::Refused;
use crate::saved::{Language, QUESTION_BYTES_MAX};
use crate::search::quoted;

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

/// Whether SQL can be asked.
pub(crate) fn has_sql(app: &App) -> bool {
    sql(app).is_some()
}

/// What can be asked (`Askable`).
pub(crate) fn askable(app: &App) -> Value {
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
            json!({"name": spec.name, "type": kind, "what": spec.what})
        });
        json!({"name": table.name(), "columns": columns.collect::<Vec<_>>()})
    });
    let marple = SHIPPED.iter().map(|query| {
        let params = query.parameters.iter();
        let params = params.map(|(name, usual)| json!({"name": name, "default": usual}));
        json!({
            "language": "marple", "name": query.name, "what": query.about, "text": query.text,
            "params": params.collect::<Vec<_>>(),
        })
    });
    let sqls = [
        (
            "kept-by-class",
            "what each class keeps",
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
    let sqls = sqls.map(|(name, what, text)| {
        json!({"language": "sql", "name": name, "what": what, "text": text, "params": []})
    });
    json!({
        "sql": {"available": has_sql, "problem": (!has_sql).then_some(missing)},
        "marple": {
            "available": has_marple,
            "problem": (!has_marple).then_some("the program strata was not found"),
        },
        "tables": tables,
        "questions": marple.chain(sqls).collect::<Vec<_>>(),
    })
}

/// The program that answers a question, and its arguments: each value in one word, since it may begin
/// with a dash.
fn command(app: &App, asked: &Question, dir: &str) -> Result<(PathBuf, Vec<String>), Refused> {
    let key = app.spec.key.as_ref();
    let key = key.map(|key| format!("--key={}", key.display()));
    match asked.language {
        Language::Sql => {
            let program = sql(app).ok_or_else(|| {
                let error = format!("{SQL} is not installed: `make sql` builds it");
                Refused::new(StatusCode::NOT_IMPLEMENTED, "missing_tool", error)
            })?;
            let mut arguments = vec![String::from("--format=csv"), String::from("--write=-")];
            arguments.push(format!("--memory={SQL_MEMORY}"));
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
            arguments.extend([String::from("--"), dir.to_owned()]);
            Ok((app.spec.program.clone(), arguments))
        }
    }
}

/// The same for a shell, for people.
fn shown(asked: &Question, dir: &str) -> String {
    let (dir, text) = (quoted(dir), quoted(&asked.text));
    match asked.language {
        Language::Sql => format!("strata query {dir} {text}"),
        Language::Marple => {
            let params = asked.params.iter();
            let params = params
                .map(|(name, value)| format!(" --param {}", quoted(&format!("{name}={value}"))));
            format!("strata ask {dir} {text}{}", params.collect::<String>())
        }
    }
}

/// Asks (`Answer`).
pub(crate) async fn ask(app: &App, asked: &Question) -> Result<Value, Refused> {
    if asked.text.trim().is_empty() || asked.text.len() > QUESTION_BYTES_MAX {
        let error = format!("a question has from 1 to {QUESTION_BYTES_MAX} bytes");
        return Err(Refused::invalid("text", error));
    }
    let dir = app.logs.dir(&asked.log)?.display().to_string();
    let (program, arguments) = command(app, asked, &dir)?;
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
            let error = format!("no answer after {} s: ask for less", after.as_secs());
            Refused::new(StatusCode::GATEWAY_TIMEOUT, "timeout", error)
        }
    })?;
    if !answered.succeeded && answered.output.is_empty() {
        return Err(Refused::invalid("text", answered.said.trim()));
    }
    let mut answer = table(&answered, rows_max)?;
    answer["seconds"] = json!(since.elapsed().as_secs_f64());
    answer["command"] = json!(shown(asked, &dir));
    let notes = answered
        .said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    answer["notes"] = json!(notes.collect::<Vec<_>>());
    Ok(answer)
}

/// An answer in CSV as columns and rows.
fn table(answered: &Answered, rows_max: usize) -> Result<Value, Refused> {
    let wrong =
        |error: csv::Error| Refused::internal(format!("the answer is not understood: {error}"));
    let mut whole = &answered.output[..];
    if answered.is_cut {
        let end = whole.iter().rposition(|byte| *byte == b'\n');
        whole = &whole[..end.map_or(0, |end| end + 1)];
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
            "the answer has more than {} MiB: ask for less",
            BYTES_MAX >> 20
        )
    });
    for record in reader.records() {
        if rows.len() == rows_max {
            truncated = Some(format!(
                "there are more than {rows_max} rows: ask for less, or for more rows"
            ));
            break;
        }
        rows.push(record.map_err(wrong)?);
    }
    let kinds: Vec<&str> = (0..names.len()).map(|at| kind(&rows, at)).collect();
    let columns = names.iter().zip(&kinds);
    let columns = columns.map(|(name, kind)| json!({"name": name, "type": kind}));
    let cells = rows.iter().map(|row| {
        let cells = kinds.iter().enumerate().map(|(at, kind)| {
            let text = row.get(at).unwrap_or("");
            match *kind {
                _ if text.is_empty() => Value::Null,
                "number" => json!(text.parse::<f64>().ok()),
                "bool" => json!(text == "true"),
                _ => json!(text),
            }
        });
        cells.collect::<Vec<_>>()
    });
    Ok(json!({
        "columns": columns.collect::<Vec<_>>(),
        "rows": cells.collect::<Vec<_>>(),
        "truncated": truncated,
    }))
}

/// What a column's values look like. Numbers that would lose digits stay text.
fn kind(rows: &[csv::StringRecord], at: usize) -> &'static str {
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
        "number"
    } else if are(|text| matches!(text, "true" | "false")) {
        "bool"
    } else if are(is_time) {
        "time"
    } else {
        "text"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_with_their_kinds_and_bounds() {
        let answered = |output: &str, is_cut| Answered {
            output: output.as_bytes().to_vec(),
            is_cut,
            said: String::new(),
            succeeded: true,
        };
        let csv = "name,count,big,at,ok\n\"a,b\",1,9007199254740993,2026-01-31T13:00:00Z,true\nx,,1,,false\n";
        let read = table(&answered(csv, false), 10).unwrap();
        let kinds: Vec<&Value> = read["columns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| &c["type"])
            .collect();
        assert_eq!(kinds, ["text", "number", "text", "time", "bool"]);
        assert_eq!(read["rows"][0][0], "a,b");
        assert_eq!(read["rows"][1][1], Value::Null);
        assert_eq!(
            table(&answered(csv, false), 1).unwrap()["rows"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        let cut = table(&answered("a,b\n1,2\n3,", true), 10).unwrap();
        assert_eq!(cut["rows"], json!([[1.0, 2.0]]));
        assert!(cut["truncated"].as_str().unwrap().contains("MiB"));
    }
}
