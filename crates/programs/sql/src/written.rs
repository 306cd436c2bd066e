//! The forms in which an answer is written.
//!
//! [`Form::Typed`] is for `strata serve`, which needs the types of columns: a line with the columns, a line for each
//! row, and a last line, without which the answer is not whole.
//!
//! ```text
//! {"columns":[{"name":"dst","type":"text"},{"name":"count(*)","type":"number"}]}
//! ["10.0.0.1",7]
//! {"rows":1}
//! ```
//!
//! Types are `text`, `number`, `time` and `bool`. A `time` is RFC 3339 in UTC. Of a `number`, NaN and infinite ones are
//! null; a decimal number of more than 15 digits is `text`, since a double would not hold it.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::json::writer::LineDelimited;
use datafusion::arrow::json::{LineDelimitedWriter, StructMode, WriterBuilder};
use datafusion::arrow::{csv, ipc, util::pretty};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::parquet::arrow::ArrowWriter;
use futures::StreamExt;
use serde_json::json;
use strata_terminal::output::{refuse, suffix};

use strata_terminal::selection::statement::Format;

/// Decimal digits that a double holds (IEEE 754, binary64).
const DOUBLE_DIGITS: u8 = 15;

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    For(Format),
    Typed,
}

impl Form {
    /// The one for a file of this name.
    pub(crate) fn of(path: &Path) -> Self {
        Self::For(match suffix(path).as_str() {
            "csv" => Format::Csv,
            "json" | "jsonl" | "ndjson" => Format::Json,
            "parquet" => Format::Parquet,
            "arrow" | "arrows" => Format::Arrow,
            _ => Format::Table,
        })
    }

    /// Whether a terminal can show it.
    pub(crate) fn is_text(self) -> bool {
        !matches!(self, Self::For(Format::Parquet | Format::Arrow))
    }

    /// Refuses columns that it cannot tell apart.
    pub(crate) fn check(self, schema: &Schema) -> Result<()> {
        if self != Self::For(Format::Json) {
            return Ok(());
        }
        let mut names = HashSet::new();
        for field in schema.fields() {
            let name = field.name();
            if !names.insert(name) {
                return Err(refuse(format!(
                    "two columns are named {name}, which an object of JSON cannot have: give one of them another \
                     name, as in SELECT p.{name}, f.{name} AS other_{name}"
                )));
            }
        }
        Ok(())
    }

    /// Writes an answer.
    ///
    /// # Errors
    ///
    /// Of the query, or of the output: as it is, also where a writer of a format keeps its text alone.
    pub(crate) async fn write(
        self,
        schema: SchemaRef,
        stream: SendableRecordBatchStream,
        output: &mut (dyn Write + Send),
    ) -> Result<()> {
        let mut watched = Watched {
            output,
            failed: None,
        };
        let written = match self {
            Self::For(format) => formatted(format, schema, stream, &mut watched).await,
            Self::Typed => typed(&schema, stream, &mut watched).await,
        };
        match (written, watched.failed) {
            (Err(_), Some(error)) => Err(error.into()),
            (written, _) => written,
        }
    }
}

/// An output, with the error that ended it.
struct Watched<'a> {
    output: &'a mut (dyn Write + Send),
    failed: Option<io::Error>,
}

impl Watched<'_> {
    fn watch<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        done.inspect_err(|error| {
            // What is interrupted is done again.
            if error.kind() != io::ErrorKind::Interrupted {
                self.failed = Some(io::Error::new(error.kind(), error.to_string()));
            }
        })
    }
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.output.write(bytes);
        self.watch(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.output.flush();
        self.watch(flushed)
    }
}

async fn formatted(
    format: Format,
    schema: SchemaRef,
    mut stream: SendableRecordBatchStream,
    output: &mut (dyn Write + Send),
) -> Result<()> {
    match format {
        Format::Table => {
            let mut batches: Vec<RecordBatch> = Vec::new();
            while let Some(batch) = stream.next().await {
                batches.push(batch?);
            }
            if batches.is_empty() {
                batches.push(RecordBatch::new_empty(schema));
            }
            writeln!(output, "{}", pretty::pretty_format_batches(&batches)?)?;
        }
        Format::Csv => {
            let mut writer = csv::Writer::new(&mut *output);
            let mut any = false;
            while let Some(batch) = stream.next().await {
                writer.write(&batch?)?;
                any = true;
            }
            if !any {
                writer.write(&RecordBatch::new_empty(schema))?;
            }
        }
        Format::Json => {
            let mut writer = LineDelimitedWriter::new(&mut *output);
            while let Some(batch) = stream.next().await {
                writer.write(&batch?)?;
            }
            writer.finish()?;
        }
        Format::Parquet => {
            let mut writer = ArrowWriter::try_new(&mut *output, schema, None)?;
            while let Some(batch) = stream.next().await {
                writer.write(&batch?)?;
            }
            writer.close()?;
        }
        Format::Arrow => {
            let mut writer = ipc::writer::StreamWriter::try_new(&mut *output, &schema)?;
            while let Some(batch) = stream.next().await {
                writer.write(&batch?)?;
            }
            writer.finish()?;
        }
    }
    output.flush()?;
    Ok(())
}

async fn typed(
    schema: &Schema,
    mut stream: SendableRecordBatchStream,
    output: &mut (dyn Write + Send),
) -> Result<()> {
    let columns = schema.fields().iter();
    let columns: Vec<_> = columns
        .map(|field| json!({"name": field.name(), "type": kind(field.data_type())}))
        .collect();
    writeln!(output, "{}", json!({"columns": columns}))?;
    let mut writer = WriterBuilder::new()
        .with_explicit_nulls(true)
        .with_struct_mode(StructMode::ListOnly)
        .build::<_, LineDelimited>(&mut *output);
    let mut rows: usize = 0;
    while let Some(batch) = stream.next().await {
        let batch = stored(&batch?)?;
        rows = rows.saturating_add(batch.num_rows());
        writer.write(&batch)?;
    }
    writer.finish()?;
    drop(writer);
    writeln!(output, "{}", json!({"rows": rows}))?;
    output.flush()?;
    Ok(())
}

/// The type of a column, for people.
fn kind(of: &DataType) -> &'static str {
    match as_stored(of) {
        DataType::Boolean => "bool",
        DataType::Timestamp(..) => "time",
        of if of.is_numeric() => "number",
        _ => "text",
    }
}

/// The type in which the values of a column are written.
fn as_stored(of: &DataType) -> DataType {
    match of {
        DataType::Timestamp(unit, _) => DataType::Timestamp(*unit, Some("UTC".into())),
        DataType::Decimal32(digits, _)
        | DataType::Decimal64(digits, _)
        | DataType::Decimal128(digits, _)
        | DataType::Decimal256(digits, _)
            if *digits > DOUBLE_DIGITS =>
        {
            DataType::Utf8
        }
        DataType::Dictionary(_, values) => as_stored(values),
        of => of.clone(),
    }
}

/// Rows with columns as they are written. Their names do not matter.
fn stored(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    if batch.num_columns() == 0 {
        return Ok(batch.clone());
    }
    let columns = batch.columns().iter();
    let columns = columns.map(|column| cast(column, &as_stored(column.data_type())));
    let columns: Vec<ArrayRef> = columns.collect::<Result<_, _>>()?;
    let fields = columns.iter().enumerate();
    let fields =
        fields.map(|(at, column)| Field::new(at.to_string(), column.data_type().clone(), true));
    let schema = Schema::new(fields.collect::<Vec<_>>());
    RecordBatch::try_new(Arc::new(schema), columns)
}
