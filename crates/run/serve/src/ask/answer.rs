//! What a program answers, as columns and rows. The types of columns are those that the program or the language says,
//! never guessed from what a value looks like: a text of digits is a text.

use std::cmp::Ordering;

use serde::Deserialize;
use serde_json::{Number, Value};
use strata_gpv::marple::ValueKind;
use strata_log_views::answers::refused::Refused;
use strata_log_views::answers::times;
use strata_log_views::work::child::Answered;

use super::{AnswerColumn, BYTES_MAX, ColumnType};
use crate::ask::shape::Shape;

/// Integers of at least this magnitude JavaScript may round.
const EXACT_END: u64 = 1 << 53;

type Row = Vec<Value>;

/// The columns and rows of an answer, in its order.
#[derive(Debug)]
pub(super) struct ReadTable {
    pub(super) columns: Vec<AnswerColumn>,
    pub(super) rows: Vec<Row>,
    pub(super) sorted_by: Option<usize>,
    pub(super) truncated: Option<String>,
}

/// The first line of `strata-sql --typed`.
#[derive(Deserialize)]
struct Head {
    columns: Vec<Declared>,
}

#[derive(Deserialize)]
struct Declared {
    name: String,
    r#type: ColumnType,
}

fn wrong(error: impl std::fmt::Display) -> Refused {
    Refused::internal(format!("the answer cannot be parsed: {error}"))
}

/// The answer of `strata-sql --typed`.
pub(super) fn of_sql(
    answered: &Answered,
    rows_max: usize,
    shape: &Shape,
) -> Result<ReadTable, Refused> {
    let is_whole = is_whole(&answered.output);
    let mut lines = whole_lines(&answered.output);
    let head: Head = serde_json::from_slice(lines.next().unwrap_or(&[])).map_err(wrong)?;
    let columns = head.columns.into_iter();
    let columns = columns.map(|column| (column.name, column.r#type)).collect();
    let mut table = Filling::new(columns, shape, (rows_max, is_whole));
    for line in lines.filter(|line| !line.starts_with(b"{")) {
        let mut row: Row = serde_json::from_slice(line).map_err(wrong)?;
        for value in &mut row {
            if value.is_array() || value.is_object() {
                *value = Value::from(value.to_string());
            }
        }
        table.add(row)?;
    }
    Ok(table.finish(answered))
}

/// The answer of `strata ask --format=csv`, in which the columns have the kinds of the question.
pub(super) fn of_marple(
    answered: &Answered,
    rows_max: usize,
    shape: &Shape,
) -> Result<ReadTable, Refused> {
    let is_whole = !answered.is_cut;
    let end = answered.output.iter().rposition(|byte| *byte == b'\n');
    let whole = end.and_then(|end| answered.output.get(..=end));
    let mut reader = csv::Reader::from_reader(whole.unwrap_or(&[]));
    let names = reader.headers().map_err(wrong)?.clone();
    let kinds = |at: usize| shape.kinds.get(at).copied();
    let columns = names.iter().enumerate().map(|(at, name)| {
        let kind = kinds(at).map_or(ColumnType::Text, |kind| match kind {
            ValueKind::Int | ValueKind::Real => ColumnType::Number,
            ValueKind::Time => ColumnType::Time,
            ValueKind::Bool => ColumnType::Bool,
            ValueKind::Address => ColumnType::Text,
        });
        (name.to_owned(), kind)
    });
    let mut table = Filling::new(columns.collect(), shape, (rows_max, is_whole));
    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(wrong)? {
        let cells = record.iter().enumerate();
        let cells = cells.map(|(at, text)| match kinds(at) {
            Some(kind) => value(kind, text),
            None => Value::from(text),
        });
        table.add(cells.collect())?;
    }
    Ok(table.finish(answered))
}

/// Whether `strata-sql --typed` has written its last line: before that, it failed or was cut off.
pub(super) fn is_whole(output: &[u8]) -> bool {
    let last = whole_lines(output).skip(1).last();
    last.is_some_and(|last| last.starts_with(b"{"))
}

/// Lines that have their end.
fn whole_lines(output: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = output.iter().rposition(|byte| *byte == b'\n');
    let whole = end.and_then(|end| output.get(..end)).unwrap_or(&[]);
    whole.split(|byte| *byte == b'\n')
}

/// A value of a kind, as `strata ask` writes it.
fn value(kind: ValueKind, text: &str) -> Value {
    match kind {
        ValueKind::Int => text.parse::<i64>().map_or(Value::Null, Value::from),
        // What JSON has no number for is null.
        ValueKind::Real => text.parse::<f64>().map_or(Value::Null, Value::from),
        ValueKind::Bool => Value::from(text == "true"),
        ValueKind::Time => {
            let ns = text.parse();
            Value::from(ns.map_or_else(|_| text.to_owned(), times::text))
        }
        ValueKind::Address => Value::from(text),
    }
}

/// Rows as they come. Where the question leaves their order open, those with the largest amounts are kept.
struct Filling<'a> {
    names: Vec<String>,
    kinds: Vec<ColumnType>,
    shape: &'a Shape,
    /// Columns of amounts, each with whether no row so far has more of it than the one before.
    measures: Vec<(usize, bool)>,
    /// By which column the rows are sorted here.
    sort: Option<usize>,
    is_whole: bool,
    rows_max: usize,
    rows: Vec<Row>,
    /// The row before the next one.
    last: Row,
    count: u64,
    /// Columns with integers that JavaScript may round.
    large: Vec<bool>,
}

impl<'a> Filling<'a> {
    fn new(
        columns: Vec<(String, ColumnType)>,
        shape: &'a Shape,
        (rows_max, is_whole): (usize, bool),
    ) -> Self {
        let (names, kinds): (Vec<String>, Vec<ColumnType>) = columns.into_iter().unzip();
        let is_measure =
            |at: &usize| kinds[*at] == ColumnType::Number && shape.is_measure(*at, &names[*at]);
        let measures: Vec<usize> = (0..names.len()).filter(is_measure).collect();
        // The largest rows of a part need not be the largest of all.
        let sorts = is_whole && !shape.is_ordered;
        Self {
            sort: measures.first().copied().filter(|_| sorts),
            measures: measures.into_iter().map(|at| (at, true)).collect(),
            large: vec![false; names.len()],
            names,
            kinds,
            shape,
            is_whole,
            rows_max,
            rows: Vec::new(),
            last: Row::new(),
            count: 0,
        }
    }

    fn add(&mut self, row: Row) -> Result<(), Refused> {
        if row.len() != self.names.len() {
            return Err(wrong("a row has another number of columns"));
        }
        self.count = self.count.saturating_add(1);
        if self.sort.is_some() {
            self.rows.push(row);
            // Twice the rows that are wanted, so that sorting takes a small part of the time.
            if self.rows.len() >= self.rows_max.saturating_mul(2) {
                self.keep_largest();
            }
            return Ok(());
        }
        for (at, falls) in &mut self.measures {
            let before = self.last.get(*at);
            let is_less = before.is_none_or(|before| amounts(before, &row[*at]).is_ge());
            *falls = *falls && is_less;
        }
        if self.rows.len() < self.rows_max {
            self.rows.push(row.clone());
        }
        self.last = row;
        Ok(())
    }

    fn keep_largest(&mut self) {
        if let Some(by) = self.sort {
            // Stable: rows with the same amount stay as they came.
            self.rows.sort_by(|a, b| amounts(&b[by], &a[by]));
        }
        self.rows.truncate(self.rows_max);
    }

    /// By which column all rows of the answer are sorted, not only those that are here.
    fn sorted_by(&self) -> Option<usize> {
        let is_amount = |at: &usize| {
            let first = self.rows.first();
            self.kinds[*at] == ColumnType::Number && first.is_some_and(|row| !row[*at].is_null())
        };
        let sorted = match (&self.shape.sort, self.sort) {
            (_, Some(by)) => Some(by),
            // The program sorts before anything is cut.
            (Some(name), None) => self.names.iter().position(|one| one == name),
            (None, None) => {
                let mut falling = self.measures.iter().filter(|(_, falls)| *falls);
                let falling = falling.find(|(at, _)| is_amount(at)).map(|(at, _)| *at);
                falling.filter(|_| self.is_whole)
            }
        };
        sorted.filter(is_amount)
    }

    /// Writes the columns with integers that JavaScript may round as text.
    fn write_large(&mut self) {
        for row in &self.rows {
            for (value, large) in row.iter().zip(&mut self.large) {
                *large = *large || value.as_number().is_some_and(is_large);
            }
        }
        for row in &mut self.rows {
            for (value, large) in row.iter_mut().zip(&self.large) {
                if *large && !value.is_null() {
                    *value = Value::from(value.to_string());
                }
            }
        }
        for (kind, large) in self.kinds.iter_mut().zip(&self.large) {
            if *large {
                *kind = ColumnType::Text;
            }
        }
    }

    fn finish(mut self, answered: &Answered) -> ReadTable {
        self.keep_largest();
        self.write_large();
        let sorted_by = self.sorted_by();
        let is_measure = |at: usize| self.measures.iter().any(|(measure, _)| *measure == at);
        let columns = self.names.iter().zip(&self.kinds).enumerate();
        let columns = columns.map(|(at, (name, kind))| AnswerColumn {
            name: name.clone(),
            r#type: *kind,
            measure: *kind == ColumnType::Number && is_measure(at),
        });
        ReadTable {
            columns: columns.collect(),
            sorted_by,
            truncated: self.truncated(answered),
            rows: self.rows,
        }
    }

    /// Why not all rows are there.
    fn truncated(&self, answered: &Answered) -> Option<String> {
        let cut = answered.is_cut.then(|| {
            format!(
                "the answer has more than {} MiB: narrow the query",
                BYTES_MAX >> 20
            )
        });
        let more = (self.count > self.rows.len() as u64).then(|| {
            format!(
                "there are more than {} rows: narrow the query, or raise the row limit",
                self.rows_max
            )
        });
        // Its last words are why it failed.
        let failed = (!answered.is_cut && !answered.succeeded).then(|| {
            let last = answered.said.lines().rfind(|line| !line.trim().is_empty());
            let last = last.unwrap_or("the program failed");
            last.trim().trim_start_matches("strata: ").to_owned()
        });
        let all: Vec<String> = [failed, cut, more].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// Amounts in order; none is the least.
fn amounts(one: &Value, other: &Value) -> Ordering {
    let whole = |value: &Value| {
        let int = value.as_i64().map(i128::from);
        int.or_else(|| value.as_u64().map(i128::from))
    };
    if let (Some(one), Some(other)) = (whole(one), whole(other)) {
        return one.cmp(&other);
    }
    let real = |value: &Value| value.as_f64().unwrap_or(f64::NEG_INFINITY);
    real(one).total_cmp(&real(other))
}

fn is_large(number: &Number) -> bool {
    let magnitude = number.as_i64().map(i64::unsigned_abs);
    let magnitude = magnitude.or_else(|| number.as_u64());
    magnitude.is_some_and(|magnitude| magnitude >= EXACT_END)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answered(output: &str) -> Answered {
        Answered {
            output: output.as_bytes().to_vec(),
            is_cut: false,
            said: String::new(),
            succeeded: true,
        }
    }

    /// An answer with these columns and rows, as `strata-sql --typed` writes it.
    fn written(columns: &[(&str, &str)], rows: &[Value]) -> String {
        let columns: Vec<Value> = columns
            .iter()
            .map(|(name, kind)| json!({"name": name, "type": kind}))
            .collect();
        let rows_of: String = rows.iter().map(|row| format!("{row}\n")).collect();
        format!(
            "{}\n{rows_of}{}\n",
            json!({"columns": columns}),
            json!({"rows": rows.len()})
        )
    }

    fn kinds(read: &ReadTable) -> Vec<ColumnType> {
        read.columns.iter().map(|column| column.r#type).collect()
    }

    #[test]
    fn types_are_those_that_the_program_says() {
        use ColumnType::{Bool, Number, Text, Time};
        let columns = [
            ("digits", "text"),
            ("hex", "text"),
            ("count", "number"),
            ("at", "time"),
            ("ok", "bool"),
            ("large", "number"),
            ("list", "text"),
            ("real", "number"),
        ];
        let rows = [
            json!([
                "007",
                "11920080003",
                1,
                "2026-01-31T13:00:00Z",
                true,
                9_007_199_254_740_993_u64,
                [1, "a"],
                1e300
            ]),
            json!(["", null, null, null, null, -3, null, null]),
        ];
        let output = written(&columns, &rows);
        let read = of_sql(&answered(&output), 10, &Shape::ordered()).unwrap();
        let expected = [Text, Text, Number, Time, Bool, Text, Text, Number];
        assert_eq!(kinds(&read), expected);
        let first = json!([
            "007",
            "11920080003",
            1,
            "2026-01-31T13:00:00Z",
            true,
            "9007199254740993",
            "[1,\"a\"]",
            1e300
        ]);
        assert_eq!(json!(read.rows[0]), first);
        let second = json!(["", null, null, null, null, "-3", null, null]);
        assert_eq!(json!(read.rows[1]), second);
        assert_eq!(read.truncated, None);
        // Without rows, too.
        let read = of_sql(&answered(&written(&columns, &[])), 10, &Shape::ordered()).unwrap();
        assert_eq!(kinds(&read)[2..4], [Number, Time]);
        assert_eq!((read.rows.len(), read.sorted_by), (0, None));
    }

    /// As of an answer of many rows: the largest of all are shown, or no order is claimed.
    #[test]
    fn rows_that_are_called_the_largest_are() {
        let mut state = 1_u64;
        let rows: Vec<Value> = (0..1_000)
            .map(|port| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                json!([port, state >> 40])
            })
            .collect();
        let mut amounts: Vec<u64> = rows.iter().map(|row| row[1].as_u64().unwrap()).collect();
        amounts.sort_unstable_by(|a, b| b.cmp(a));
        let output = written(&[("dst_port", "number"), ("count(*)", "number")], &rows);
        let shape = Shape::of_sql("select dst_port, count(*) from packets group by 1");
        for rows_max in [1, 7, 400, 1_000] {
            let read = of_sql(&answered(&output), rows_max, &shape).unwrap();
            let shown: Vec<u64> = read
                .rows
                .iter()
                .map(|row| row[1].as_u64().unwrap())
                .collect();
            assert_eq!(shown, amounts[..rows_max], "{rows_max}");
            assert_eq!(read.sorted_by, Some(1));
            assert_eq!(read.truncated.is_some(), rows_max < 1_000, "{rows_max}");
            let measures: Vec<bool> = read.columns.iter().map(|c| c.measure).collect();
            assert_eq!(measures, [false, true]);
        }
        // The rest of the rows is not known.
        let cut = Answered {
            is_cut: true,
            ..answered(&output[..output.len() / 2])
        };
        let read = of_sql(&cut, 1_000, &shape).unwrap();
        assert_eq!(
            (json!(read.rows[0]), read.sorted_by),
            (rows[0].clone(), None)
        );
        assert!(read.truncated.unwrap().contains("MiB"));
        // The first rows fall, but not all.
        let rows = [json!([9]), json!([5]), json!([7])];
        let output = written(&[("n", "number")], &rows);
        let read = of_sql(&answered(&output), 2, &Shape::ordered()).unwrap();
        assert_eq!(
            (json!(read.rows), read.sorted_by),
            (json!([[9], [5]]), None)
        );
        let output = written(&[("n", "number")], &rows[..2]);
        let read = of_sql(&answered(&output), 1, &Shape::ordered()).unwrap();
        assert_eq!(read.sorted_by, Some(0));
    }

    #[test]
    fn an_answer_that_lacks_something_says_so() {
        let output = written(&[("n", "number")], &[json!([1])]);
        let damaged = Answered {
            succeeded: false,
            said: "strata: f: the file is missing\nstrata: 1 missing file in the log\n".into(),
            ..answered(&output)
        };
        let read = of_sql(&damaged, 10, &Shape::ordered()).unwrap();
        let why = "1 missing file in the log";
        assert_eq!(read.truncated.as_deref(), Some(why));
        assert!(is_whole(output.as_bytes()));
        let end = output.rfind('{').unwrap();
        for broken in ["", &output[..end], output.lines().next().unwrap(), "{\"co"] {
            assert!(!is_whole(broken.as_bytes()), "{broken}");
        }
    }

    #[test]
    fn columns_of_marple_have_their_kinds() {
        let shape = Shape::of_marple("byte-counts-per-flow", std::iter::empty());
        let csv = "srcip,dstip,srcport,dstport,proto,bytes\n10.0.0.1,10.0.0.2,1,2,6,70\n";
        let read = of_marple(&answered(csv), 10, &shape).unwrap();
        assert_eq!(
            json!(read.rows),
            json!([["10.0.0.1", "10.0.0.2", 1, 2, 6, 70]])
        );
        let texts = kinds(&read)
            .iter()
            .filter(|kind| **kind == ColumnType::Text)
            .count();
        assert_eq!((texts, read.sorted_by), (2, Some(5)));
        assert!(value(ValueKind::Real, "inf").is_null());
        let time = value(ValueKind::Time, "1769864400123456789");
        assert_eq!(time, "2026-01-31T13:00:00.123456789Z");
    }
}
