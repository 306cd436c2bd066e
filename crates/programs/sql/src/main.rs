//! `strata-sql`: SQL over a log, run by `strata query`.
//!
//! The tables `packets` and `flows` are the log's own Parquet files, and rows from block files,
//! made while the query runs (`tiers`).
#![forbid(unsafe_code)]

#[path = "../../crates/programs/strata/src/reading/query/args.rs"]
mod args;
mod arrays;
mod files;
mod tiers;

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Parser;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::temporal_conversions::timestamp_ns_to_datetime;
use datafusion::arrow::{csv, ipc, json, util::pretty};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;
use strata_archive::{ClearDisk, Identities};
use strata_objects::ObjectDisk;
use strata_store::{Log, OutputError, RealDisk, Sources};
use strata_wire::Printable;

use args::{EXAMPLES, Format, Line};
use tiers::Tiers;

/// Query a log with SQL. Its tables are `packets`, one row per logged packet, and `flows`.
#[derive(Debug, Parser)]
#[command(
    name = "strata query",
    version,
    max_term_width = 100,
    after_help = EXAMPLES
)]
struct Args {
    #[command(flatten)]
    line: Line,
}

impl Format {
    /// The format for a file of this name.
    fn of(path: &Path) -> Self {
        let ending = path.extension().unwrap_or_default();
        match ending.to_string_lossy().to_ascii_lowercase().as_str() {
            "csv" => Self::Csv,
            "json" | "jsonl" | "ndjson" => Self::Json,
            "parquet" => Self::Parquet,
            "arrow" | "arrows" => Self::Arrow,
            _ => Self::Table,
        }
    }

    fn is_binary(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }
}

/// The command line is valid but cannot be carried out: the program exits with 2, as for an invalid
/// option.
#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

fn main() -> ExitCode {
    let Args { line } = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().build();
    let result = runtime
        .context("cannot start threads")
        .and_then(|runtime| runtime.block_on(run(&line)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("strata: {error:#}");
            if error.is::<Refused>() {
                return ExitCode::from(2);
            }
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let of = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(of))
}

async fn run(args: &Line) -> Result<()> {
    let mut config = SessionConfig::new().with_information_schema(true);
    config.options_mut().execution.parquet.pushdown_filters = true;
    config.options_mut().execution.parquet.reorder_filters = true;
    let memory = usize::try_from(args.memory).unwrap_or(usize::MAX);
    let runtime = RuntimeEnvBuilder::new().with_memory_limit(memory, 1.0);
    let context = SessionContext::new_with_config_rt(config, runtime.build_arc()?);
    let log = open(args)?;
    let sources = Sources::default().files(&args.key).log(&args.log, &log);
    let losses = log.losses()?;
    for table in Tiers::of(log, &context)? {
        context.register_table(table.name(), Arc::new(table))?;
    }
    let frame = context.sql_with_options(&args.sql, only_reading()).await?;
    let schema = Arc::new(frame.schema().as_arrow().clone());
    let stream = frame.execute_stream().await?;
    let format = args.format().unwrap_or_else(|| Format::of(&args.write));
    let output = output(&args.write, format, &sources)?;
    write(format, schema, stream, output).await?;
    for what in losses.texts(utc) {
        eprintln!(
            "strata: warning: {} {what}; the tables lack them (see `strata info`)",
            Printable(&args.log.display().to_string()),
        );
    }
    Ok(())
}

/// A time in ns since 1970.
fn utc(ts_ns: u64) -> String {
    let time = i64::try_from(ts_ns).ok();
    match time.and_then(timestamp_ns_to_datetime) {
        Some(time) => format!("{time} UTC"),
        None => format!("{ts_ns} ns after 1970"),
    }
}

/// Statements may come from someone other than the user who runs this program (the operator's page):
/// they neither write files, nor name files to read, nor raise limits.
fn only_reading() -> SQLOptions {
    SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false)
}

fn output(path: &Path, format: Format, sources: &Sources) -> Result<Box<dyn Write + Send>> {
    let for_a_terminal = || {
        let what = "this format is not text, and would go to a terminal: write to a file with -w";
        Refused(what.to_owned())
    };
    if path.as_os_str() == "-" {
        if format.is_binary() && io::stdout().is_terminal() {
            bail!(for_a_terminal());
        }
        return Ok(Box::new(BufWriter::new(io::stdout())));
    }
    let file: File = sources.create(path).map_err(|error| match error {
        OutputError::Cannot { .. } => anyhow::Error::from(error),
        OutputError::IsInput { .. } | OutputError::InLog { .. } | OutputError::OfLog { .. } => {
            Refused(error.to_string()).into()
        }
    })?;
    if format.is_binary() && file.is_terminal() {
        bail!(for_a_terminal());
    }
    Ok(Box::new(BufWriter::new(file)))
}

fn open(args: &Line) -> Result<Log> {
    // If there is no log, this says what is missing.
    drop(Log::open(&args.log)?);
    let named = |file: &Path| file.display().to_string();
    let identities = args.key.as_deref().map(|file| -> Result<Identities> {
        let content = std::fs::read_to_string(file);
        let content = content.with_context(|| format!("{}: cannot read the key", named(file)))?;
        Ok(Identities::of_file(&named(file), &content)?)
    });
    let own = RealDisk::at(&std::path::absolute(&args.log)?);
    let disk = ObjectDisk::new(Arc::new(own));
    let disk = ClearDisk::new(Arc::new(disk), identities.transpose()?);
    Ok(Log::on(Arc::new(disk))?)
}

async fn write(
    format: Format,
    schema: SchemaRef,
    mut stream: SendableRecordBatchStream,
    mut output: Box<dyn Write + Send>,
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
            let mut writer = csv::Writer::new(&mut output);
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
            let mut writer = json::LineDelimitedWriter::new(&mut output);
            while let Some(batch) = stream.next().await {
                writer.write(&batch?)?;
            }
            writer.finish()?;
        }
        Format::Parquet => {
            let mut writer = ArrowWriter::try_new(&mut output, schema, None)?;
            while let Some(batch) = stream.next().await {
                writer.write(&batch?)?;
            }
            writer.close()?;
        }
        Format::Arrow => {
            let mut writer = ipc::writer::StreamWriter::try_new(&mut output, &schema)?;
            while let Some(batch) = stream.next().await {
                writer.write(&batch?)?;
            }
            writer.finish()?;
        }
    }
    output.flush()?;
    Ok(())
}
