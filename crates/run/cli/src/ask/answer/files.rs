//! Answers for programs.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::Arc;

use anyhow::Result;
use arrow_array::builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use strata_gpv::marple::{Value, ValueKind};
use strata_query::not_formula;

use super::Answered;
use crate::output::Output;

/// Rows of a batch.
const ROWS_AT_ONCE: usize = 65_536;

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
            line.push_str("}\n");
            output.write_all(line.as_bytes())?;
        }
    }
    Ok(())
}

/// An Arrow IPC stream.
pub(super) fn arrow(output: &mut Output, answered: &Answered) -> Result<()> {
    let schema = schema(answered);
    let mut writer = StreamWriter::try_new(output, &schema)?;
    for rows in answered.answer.rows.chunks(ROWS_AT_ONCE) {
        writer.write(&batch(&schema, answered, rows)?)?;
    }
    Ok(writer.finish()?)
}

/// A Parquet file.
pub(super) fn parquet(output: &mut Output, answered: &Answered) -> Result<()> {
    let schema = schema(answered);
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(parquet::basic::ZstdLevel::default()))
        .build();
    let mut writer = ArrowWriter::try_new(output, Arc::clone(&schema), Some(properties))?;
    for rows in answered.answer.rows.chunks(ROWS_AT_ONCE) {
        writer.write(&batch(&schema, answered, rows)?)?;
    }
    writer.close()?;
    Ok(())
}

/// The columns; what was asked, and what was said about it, as metadata.
fn schema(answered: &Answered) -> Arc<Schema> {
    let fields = answered.answer.names.iter().zip(&answered.kinds);
    let fields: Vec<Field> = fields
        .map(|(name, kind)| {
            let of = match kind {
                ValueKind::Int | ValueKind::Time => DataType::Int64,
                ValueKind::Real => DataType::Float64,
                ValueKind::Bool => DataType::Boolean,
                ValueKind::Address => DataType::Utf8,
            };
            Field::new(name, of, false)
        })
        .collect();
    let mut about = HashMap::from([
        ("strata.query".to_owned(), answered.text.clone()),
        ("strata.query_name".to_owned(), answered.name.clone()),
    ]);
    if !answered.remarks.is_empty() {
        about.insert("strata.remarks".to_owned(), answered.remarks.join("\n"));
    }
    Arc::new(Schema::new(fields).with_metadata(about))
}

fn batch(schema: &Arc<Schema>, answered: &Answered, rows: &[Vec<Value>]) -> Result<RecordBatch> {
    let columns = answered.kinds.iter().enumerate();
    let columns = columns.map(|(at, kind)| {
        let values = rows.iter().map(|row| &row[at]);
        column(*kind, values)
    });
    Ok(RecordBatch::try_new(Arc::clone(schema), columns.collect())?)
}

fn column<'a>(kind: ValueKind, values: impl Iterator<Item = &'a Value>) -> ArrayRef {
    /// Values of one kind.
    macro_rules! built {
        ($builder:expr, $value:ident) => {{
            let mut builder = $builder;
            for value in values {
                if let Value::$value(value) = value {
                    builder.append_value(*value);
                }
            }
            Arc::new(builder.finish())
        }};
    }
    match kind {
        ValueKind::Int | ValueKind::Time => built!(Int64Builder::new(), Int),
        ValueKind::Real => built!(Float64Builder::new(), Real),
        ValueKind::Bool => built!(BooleanBuilder::new(), Bool),
        ValueKind::Address => {
            let mut builder = StringBuilder::new();
            for value in values {
                builder.append_value(text(value));
            }
            Arc::new(builder.finish())
        }
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Int(int) => int.to_string(),
        Value::Real(real) => real.to_string(),
        Value::Bool(bool) => bool.to_string(),
        Value::Address(address) => address.to_string(),
    }
}
