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

/// The kinds of queries (`Askable`).
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

/// Asks (`Answer`).
pub(crate) async fn ask(app: &App, asked: &Question) -> Result<Value, Refused> {
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
            let error = format!("no answer after {} s: narrow the question", after.as_secs());
            Refused::new(StatusCode::GATEWAY_TIMEOUT, "timeout", error)
        }
    })?;
    if !answered.succeeded && answered.output.is_empty() {
        return Err(Refused::invalid("text", answered.said.trim()));
    }
    let mut answer = table(&answered, rows_max, &shape)?;
    answer["seconds"] = json!(since.elapsed().as_secs_f64());
    answer["command"] = json!(shown(asked, &dir, &shape));
    let notes = answered
        .said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    answer["notes"] = json!(notes.collect::<Vec<_>>());
    Ok(answer)
}

/// An answer in CSV as columns and rows; where the question leaves the order open, by the first amount,
/// largest first.
fn table(answered: &Answered, rows_max: usize, shape: &Shape) -> Result<Value, Refused> {
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
            "the answer has more than {} MiB: narrow the question",
            BYTES_MAX >> 20
        )
    });
    for record in reader.records() {
        if rows.len() == rows_max {
            truncated = Some(format!(
                "there are more than {rows_max} rows: narrow the question, or raise the limit of \
                 rows"
            ));
            break;
        }
        rows.push(record.map_err(wrong)?);
    }
    let kind = |at| match shape.is_time(at) {
        true => "time",
        false => kind(&rows, at),
    };
    let kinds: Vec<&str> = (0..names.len()).map(kind).collect();
    let is_measure = |at: usize| kinds[at] == "number" && shape.is_measure(at, &names[at]);
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
    let columns = names.iter().zip(&kinds).enumerate();
    let columns = columns.map(
        |(at, (name, kind))| json!({"name": name, "type": kind, "measure": measures.contains(&at)}),
    );
    let cells = rows.iter().map(|row| {
        let cells = kinds.iter().enumerate().map(|(at, kind)| {
            let text = row.get(at).unwrap_or("");
            match *kind {
                _ if text.is_empty() => Value::Null,
                "time" if shape.is_time(at) => {
                    json!(text.parse().map_or_else(|_| text.to_owned(), times::text))
                }
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
        "sorted_by": sorted,
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
        let unknown = Shape::ordered();
        let csv = "name,count,big,at,ok\n\"a,b\",1,9007199254740993,2026-01-31T13:00:00Z,true\nx,,1,,false\n";
        let read = table(&answered(csv, false), 10, &unknown).unwrap();
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
            table(&answered(csv, false), 1, &unknown).unwrap()["rows"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        let cut = table(&answered("a,b\n1,2\n3,", true), 10, &unknown).unwrap();
        assert_eq!(cut["rows"], json!([[1.0, 2.0]]));
        assert!(cut["truncated"].as_str().unwrap().contains("MiB"));
        // The amount orders, not the port, unless the question has an order of its own.
        let csv = "dst_port,count(*)\n1,2\n9,30\n5,4\n";
        let rows = |shape: &Shape| {
            let read = table(&answered(csv, false), 10, shape).unwrap();
            (
                read["rows"].clone(),
                read["sorted_by"].clone(),
                read["columns"].clone(),
            )
        };
        let (by_amount, sorted, columns) = rows(&Shape::of_sql(
            "select dst_port, count(*) from packets group by 1",
        ));
        assert_eq!(by_amount, json!([[9.0, 30.0], [5.0, 4.0], [1.0, 2.0]]));
        assert_eq!(sorted, 1);
        assert_eq!(
            (&columns[0]["measure"], &columns[1]["measure"]),
            (&json!(false), &json!(true))
        );
        let (as_asked, sorted, _) = rows(&unknown);
        assert_eq!(as_asked, json!([[1.0, 2.0], [9.0, 30.0], [5.0, 4.0]]));
        assert_eq!(sorted, Value::Null);
    }
}
