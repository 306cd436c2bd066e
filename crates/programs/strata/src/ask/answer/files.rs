//! Answers for programs.

use std::fmt::Write as _;
use std::io::Write;

use anyhow::Result;
use strata_columnar::arrow::{Array, DataType, Field, StreamWriter};
use strata_columnar::{Cell, CellKind, ParquetFile};
use strata_gpv::marple::{Value, ValueKind};
use strata_query::not_formula;
use strata_terminal::output::Output;

use super::Answered;

/// Rows of a batch.
const ROWS_AT_ONCE: usize = 65_536;
/// Rows of a row group.
const GROUP_ROWS: usize = 1 << 20;

/// With a header line. No cell begins like a formula: names are letters, values numbers.
pub(super) fn csv(output: &mut Output, answered: &Answered) -> Result<()> {
    let mut writer = csv::Writer::from_writer(output);
    let names = answered.answer.names.iter();
    writer.write_record(names.map(|name| not_formula(name).into_owned()))?;
    for row in &answered.answer.rows {
        writer.write_record(row.iter().map(text))?;
    }
    Ok(writer.flush()?)
}

/// An object per row, with the name of its query as the first member.
pub(super) fn json(output: &mut Output, answered: &[Answered]) -> Result<()> {
    json_rows(answered, |line| Ok(writeln!(output, "{line}")?))
}

/// Calls `each` with the object of each row.
pub(super) fn json_rows(
    answered: &[Answered],
    mut each: impl FnMut(&str) -> Result<()>,
) -> Result<()> {
    let mut line = String::new();
    for one in answered {
        let name = serde_json::to_string(&one.name)?;
        let keys = one.answer.names.iter().map(serde_json::to_string);
        let keys: Vec<String> = keys.collect::<Result<_, _>>()?;
        for row in &one.answer.rows {
            line.clear();
            write!(line, "{{\"query\":{name}")?;
            for (key, value) in keys.iter().zip(row) {
                match value {
                    Value::Int(_) | Value::Bool(_) => write!(line, ",{key}:{}", text(value))?,
                    Value::Real(real) => {
                        // What JSON has no number for is null.
                        let real = serde_json::Value::from(*real);
                        write!(line, ",{key}:{real}")?;
                    }
                    Value::Address(address) => write!(line, ",{key}:\"{address}\"")?,
                }
            }
            line.push('}');
            each(&line)?;
        }
    }
    Ok(())
}

/// An Arrow IPC stream.
pub(super) fn arrow(output: &mut Output, answered: &Answered) -> Result<()> {
    let fields = answered.answer.names.iter().zip(&answered.kinds);
    let fields = fields.map(|(name, kind)| Field {
        name,
        data_type: match kind {
            ValueKind::Int | ValueKind::Time => DataType::I64,
            ValueKind::Real => DataType::F64,
            ValueKind::Bool => DataType::Bool,
            ValueKind::Address => DataType::Text,
        },
        nullable: false,
        metadata: &[],
    });
    let about = about(answered);
    let about = about
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()));
    let (fields, about) = (fields.collect::<Vec<_>>(), about.collect::<Vec<_>>());
    let mut writer = StreamWriter::new(output, &fields, &about)?;
    for rows in answered.answer.rows.chunks(ROWS_AT_ONCE) {
        let columns = answered.kinds.iter().enumerate();
        let columns = columns.map(|(at, kind)| array(*kind, rows.iter().map(|row| &row[at])));
        writer.write(rows.len(), &columns.collect::<Result<Vec<_>>>()?)?;
    }
    Ok(writer.finish()?)
}

/// A column's values. Those of another kind are left out, which the writer refuses, since it counts them.
fn array<'a>(kind: ValueKind, values: impl Iterator<Item = &'a Value>) -> Result<Array> {
    /// Values of one kind.
    macro_rules! of {
        ($value:ident) => {
            values
                .filter_map(|value| match value {
                    Value::$value(value) => Some(*value),
                    _ => None,
                })
                .collect()
        };
    }
    Ok(match kind {
        ValueKind::Int | ValueKind::Time => Array::I64(of!(Int)),
        ValueKind::Real => Array::F64(of!(Real)),
        ValueKind::Bool => Array::Bool(of!(Bool)),
        ValueKind::Address => {
            let (mut texts, mut ends) = (String::new(), Vec::new());
            for value in values {
                texts.push_str(&text(value));
                ends.push(i32::try_from(texts.len())?);
            }
            Array::Text(texts, ends)
        }
    })
}

/// A Parquet file.
pub(super) fn parquet(output: &mut Output, answered: &Answered) -> Result<()> {
    let columns = answered.answer.names.iter().zip(&answered.kinds);
    let columns = columns.map(|(name, kind)| {
        let kind = match kind {
            ValueKind::Int | ValueKind::Time => CellKind::Long,
            ValueKind::Real => CellKind::Double,
            ValueKind::Bool => CellKind::Bool,
            ValueKind::Address => CellKind::Text,
        };
        kind.column(name, false)
    });
    let columns = columns.collect::<Result<_, _>>()?;
    let (mut file, mut leaves) = ParquetFile::new(output, columns, about(answered), GROUP_ROWS)?;
    for rows in answered.answer.rows.chunks(ROWS_AT_ONCE) {
        for row in rows {
            for (leaf, value) in leaves.iter_mut().zip(row) {
                match value {
                    Value::Int(value) => leaf.push(Cell::Long(*value)),
                    Value::Real(value) => leaf.push(Cell::Double(*value)),
                    Value::Bool(value) => leaf.push(Cell::Bool(*value)),
                    Value::Address(_) => leaf.push(Cell::Text(&text(value))),
                }
            }
        }
        file.write(&mut leaves, rows.len())?;
    }
    file.finish()?;
    Ok(())
}

/// The query, and the remarks on it.
fn about(answered: &Answered) -> Vec<(String, String)> {
    let mut about = vec![
        ("strata.query".to_owned(), answered.text.clone()),
        ("strata.query_name".to_owned(), answered.name.clone()),
    ];
    if !answered.remarks.is_empty() {
        about.push(("strata.remarks".to_owned(), answered.remarks.join("\n")));
    }
    about
}

fn text(value: &Value) -> String {
    match value {
        Value::Int(int) => int.to_string(),
        Value::Real(real) => real.to_string(),
        Value::Bool(bool) => bool.to_string(),
        Value::Address(address) => address.to_string(),
    }
}
