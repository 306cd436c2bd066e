//! Rows with declared columns, written as they come.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::Result;
use strata_query::not_formula;
use strata_role::Feed;
use strata_store::Sources;
use strata_terminal::output::{Content, Output, suffix};
use strata_terminal::table::{Cell, Kind, Table};
use strata_terminal::text;
use strata_wire::grouped;

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// Aligned columns.
    Table,
    /// With a header line.
    Csv,
    /// One object per line.
    Json,
    /// A Parquet file.
    Parquet,
}

impl Format {
    /// The one that was asked for, or that of the file's name.
    pub(super) fn of(asked: Option<Self>, path: &Path) -> Self {
        asked.unwrap_or_else(|| match suffix(path).as_str() {
            "csv" => Self::Csv,
            "json" | "jsonl" | "ndjson" => Self::Json,
            "parquet" => Self::Parquet,
            _ => Self::Table,
        })
    }
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Of a number; `TIME` for a point in time.
    pub(super) unit: &'static str,
    pub(super) description: &'static str,
    /// Characters in a table, at least.
    pub(super) width: usize,
}

/// The unit of a point in time.
const TIME: &str = "ns since 1970";

/// The switch that sent the vectors, the first column of every application.
pub(super) const SWITCH: Column = words(
    "switch",
    "number of the switch, behind its address and # if vectors came by UDP",
    6,
);

/// A column of numbers.
pub(super) const fn number(
    name: &'static str,
    unit: &'static str,
    description: &'static str,
    width: usize,
) -> Column {
    Column {
        name,
        kind: Kind::U64,
        unit,
        description,
        width,
    }
}

/// A column of points in time.
pub(super) const fn time(name: &'static str, description: &'static str) -> Column {
    number(name, TIME, description, 29)
}

/// A column of text.
pub(super) const fn words(name: &'static str, description: &'static str, width: usize) -> Column {
    Column {
        name,
        kind: Kind::Text,
        unit: "",
        description,
        width,
    }
}

/// Rows that are written.
pub(super) struct Rows {
    to: To,
    columns: Vec<Column>,
    count: u64,
    line: String,
}

enum To {
    Table(Output),
    Csv(Box<csv::Writer<Output>>),
    Json(Output),
    Parquet(Box<Table>),
    /// JSON objects, each a record.
    Stream(Box<dyn Feed>),
}

/// What was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// Rows, including lost ones.
    pub(super) rows: u64,
    /// Rows for which the stream had no room.
    pub(super) lost: u64,
}

impl Rows {
    /// Appends each row to a stream.
    pub(super) fn to_stream(feed: Box<dyn Feed>, columns: &[Column]) -> Self {
        Self {
            to: To::Stream(feed),
            columns: columns.to_vec(),
            count: 0,
            line: String::new(),
        }
    }

    /// Creates the file, or takes standard output for `-`.
    pub(super) fn create(
        path: &Path,
        format: Format,
        sources: &Sources,
        columns: &[Column],
    ) -> Result<Self> {
        let content = match format {
            Format::Table | Format::Csv | Format::Json => Content::Text,
            Format::Parquet => Content::Binary,
        };
        let output = Output::create(path, content, sources)?;
        let mut rows = Self {
            to: match format {
                Format::Table => To::Table(output),
                Format::Csv => To::Csv(Box::new(csv::Writer::from_writer(output))),
                Format::Json => To::Json(output),
                Format::Parquet => {
                    let specs = columns.iter();
                    let specs: Vec<_> = specs
                        .map(|column| (column.name, column.kind, column.unit, column.description))
                        .collect();
                    To::Parquet(Box::new(Table::create(output, &specs, HashMap::new())?))
                }
            },
            columns: columns.to_vec(),
            count: 0,
            line: String::new(),
        };
        let names = columns.iter().map(|column| column.name);
        match &mut rows.to {
            To::Table(output) => {
                for (column, name) in columns.iter().zip(names) {
                    pad(&mut rows.line, column, name);
                }
                writeln!(output, "{}", rows.line.trim_end())?;
            }
            To::Csv(writer) => writer.write_record(names)?,
            To::Json(_) | To::Parquet(_) | To::Stream(_) => {}
        }
        Ok(rows)
    }

    /// Writes a row: one cell per column, of the column's kind.
    pub(super) fn write(&mut self, cells: &[Cell<'_>]) -> Result<()> {
        assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.count = self.count.saturating_add(1);
        let columns = self.columns.iter().zip(cells);
        match &mut self.to {
            To::Table(output) => {
                self.line.clear();
                for (column, cell) in columns {
                    pad(&mut self.line, column, &shown(column, cell));
                }
                writeln!(output, "{}", self.line.trim_end())?;
            }
            To::Csv(writer) => writer.write_record(cells.iter().map(|cell| match cell {
                Cell::Text(text) | Cell::Word(Some(text)) => not_formula(text).into_owned(),
                number => plain(number),
            }))?,
            To::Json(output) => {
                object(&mut self.line, columns)?;
                writeln!(output, "{}", self.line)?;
            }
            To::Stream(feed) => {
                object(&mut self.line, columns)?;
                feed.put(self.line.as_bytes())?;
            }
            To::Parquet(table) => table.push(cells.iter().copied())?,
        }
        Ok(())
    }

    /// Shows the rows so far where lines are followed as they come.
    pub(super) fn show(&mut self) -> Result<()> {
        match &mut self.to {
            To::Table(output) | To::Json(output) => output.flush()?,
            To::Csv(writer) => writer.flush()?,
            To::Parquet(_) | To::Stream(_) => {}
        }
        Ok(())
    }

    /// Completes the file, or the stream's pages.
    pub(super) fn finish(self) -> Result<Written> {
        let mut lost = 0;
        match self.to {
            To::Table(output) | To::Json(output) => output.finish()?,
            To::Csv(writer) => {
                let output = writer.into_inner();
                output.map_err(csv::IntoInnerError::into_error)?.finish()?;
            }
            To::Parquet(table) => table.close()?,
            To::Stream(feed) => lost = feed.finish()?.lost,
        }
        Ok(Written {
            rows: self.count,
            lost,
        })
    }
}

/// Makes `line` a JSON object of these cells.
fn object<'a>(
    line: &mut String,
    cells: impl Iterator<Item = (&'a Column, &'a Cell<'a>)>,
) -> Result<()> {
    line.clear();
    for (column, cell) in cells {
        let first = if line.is_empty() { '{' } else { ',' };
        write!(line, "{first}\"{}\":{}", column.name, json(cell)?)?;
    }
    line.push('}');
    Ok(())
}

/// Adds a cell of a table: numbers on the right, words on the left.
fn pad(line: &mut String, column: &Column, cell: &str) {
    if !line.is_empty() {
        line.push_str("  ");
    }
    let width = column.width.max(column.name.len());
    let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
    match column.kind {
        _ if column.unit == TIME => {
            line.push_str(cell);
            line.push_str(&padding);
        }
        Kind::U32 | Kind::U64 | Kind::F64 | Kind::Maybe => {
            line.push_str(&padding);
            line.push_str(cell);
        }
        Kind::Flag | Kind::Word | Kind::Text => {
            line.push_str(cell);
            line.push_str(&padding);
        }
    }
}

/// A cell for people.
fn shown(column: &Column, cell: &Cell<'_>) -> String {
    match *cell {
        Cell::U64(ns) if column.unit == TIME => {
            let time = text::time(ns);
            // Without the zone, which is the same in each row.
            time.rsplit_once(' ')
                .map_or(time.clone(), |(time, _)| time.to_owned())
        }
        Cell::U32(number) if !column.unit.is_empty() => grouped(number.into()),
        Cell::U64(number) | Cell::Maybe(Some(number)) => grouped(number),
        Cell::F64(real) => format!("{real:.3}"),
        ref other => plain(other),
    }
}

/// A cell for programs.
fn plain(cell: &Cell<'_>) -> String {
    match *cell {
        Cell::Flag(flag) => flag.to_string(),
        Cell::U32(number) => number.to_string(),
        Cell::U64(number) | Cell::Maybe(Some(number)) => number.to_string(),
        Cell::F64(real) => real.to_string(),
        Cell::Text(text) | Cell::Word(Some(text)) => text.to_owned(),
        Cell::Word(None) | Cell::Maybe(None) => String::new(),
    }
}

fn json(cell: &Cell<'_>) -> Result<String> {
    Ok(match cell {
        Cell::Text(text) => serde_json::to_string(text)?,
        Cell::Word(word) => serde_json::to_string(word)?,
        Cell::Maybe(number) => serde_json::to_string(number)?,
        // What JSON has no number for is null.
        Cell::F64(real) => serde_json::to_string(real)?,
        other => plain(other),
    })
}
