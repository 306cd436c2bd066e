//! `strata-sql`: SQL over a log, which `strata query` runs.
//!
//! The tables `packets` and `flows` are the log's own Parquet files. What is still in
//! block files is compacted for the query, into a directory that goes with it, so
//! that it is seen too.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::{csv, ipc, json, util::pretty};
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;
use strata_archive::{name_of, snapshot};
use strata_store::{FileKind, Log, RealDisk};

/// Asks a log in SQL. Its tables are `packets`, one row per logged packet, and `flows`.
#[derive(Debug, Parser)]
#[command(
    name = "strata query",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  strata query log/ \"SELECT dst, count(*), sum(wire_bytes) FROM packets
      WHERE class = 'anomalous' GROUP BY dst ORDER BY 2 DESC LIMIT 20\"
  strata query log/ \"SELECT * FROM flows WHERE tls_server_name LIKE '%.example'\" --format csv
  strata query log/ \"DESCRIBE packets\""
)]
struct Args {
    /// Directory of the log.
    #[arg(value_name = "LOG")]
    log: PathBuf,

    /// One statement; DataFusion's dialect, which is close to PostgreSQL's.
    #[arg(value_name = "SQL")]
    sql: String,

    /// How to write the result.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// File to write; - is standard output.
    #[arg(short = 'w', long = "write", value_name = "FILE", default_value = "-")]
    write: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// With a header line.
    Csv,
    /// One object per line.
    Json,
    /// A Parquet file.
    Parquet,
    /// An Arrow IPC stream.
    Arrow,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().build();
    let result = runtime
        .context("cannot start threads")
        .and_then(|runtime| runtime.block_on(run(&args)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("strata: {error:#}");
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

async fn run(args: &Args) -> Result<()> {
    let log = Log::open(&args.log)?;
    let root = std::path::absolute(&args.log)?;
    let (scratch, mut files) = not_compacted(&log)?;
    for part in &log.archive().parts {
        for file in &part.files {
            let path = root.join(name_of(log.disk().as_ref(), part, file));
            files.push((file.kind, path));
        }
    }
    let mut config = SessionConfig::new().with_information_schema(true);
    config.options_mut().execution.parquet.pushdown_filters = true;
    config.options_mut().execution.parquet.reorder_filters = true;
    let context = SessionContext::new_with_config(config);
    for (name, kind) in [("packets", FileKind::Packets), ("flows", FileKind::Flows)] {
        let of_kind = files.iter().filter(|(have, _)| *have == kind);
        let paths: Vec<&Path> = of_kind.map(|(_, path)| path.as_path()).collect();
        if paths.is_empty() {
            bail!("{}: the log holds no packets yet", args.log.display());
        }
        register(&context, name, &paths).await?;
    }
    let frame = context.sql(&args.sql).await?;
    let schema = Arc::new(frame.schema().as_arrow().clone());
    let stream = frame.execute_stream().await?;
    let output: Box<dyn Write + Send> = if args.write.as_os_str() == "-" {
        let binary = matches!(args.format, Format::Parquet | Format::Arrow);
        if binary && io::stdout().is_terminal() {
            bail!("this format is not for the screen: name a file with -w");
        }
        Box::new(BufWriter::new(io::stdout()))
    } else {
        let named = || format!("{}: cannot write", args.write.display());
        Box::new(BufWriter::new(
            File::create(&args.write).with_context(named)?,
        ))
    };
    write(args.format, schema, stream, output).await?;
    // Nothing reads its files any more.
    drop(scratch);
    Ok(())
}

type Files = Vec<(FileKind, PathBuf)>;

/// What is still in block files, as tables in a directory of their own.
fn not_compacted(log: &Log) -> Result<(Option<tempfile::TempDir>, Files)> {
    if log.recordings().iter().all(|r| r.files.is_empty()) {
        return Ok((None, Files::new()));
    }
    let scratch = tempfile::tempdir().context("cannot make a temporary directory")?;
    let (parts, damage) = snapshot(log, &RealDisk::at(scratch.path()))?;
    for problem in damage {
        eprintln!("strata: warning: left out: {problem}");
    }
    let files = parts.into_iter().flat_map(|part| part.files);
    let files = files.map(|file| (file.kind, scratch.path().join(file.name)));
    let files = files.collect();
    Ok((Some(scratch), files))
}

async fn register(context: &SessionContext, name: &str, paths: &[&Path]) -> Result<()> {
    let urls: Result<Vec<ListingTableUrl>, _> = paths
        .iter()
        .map(|path| ListingTableUrl::parse(path.to_string_lossy()))
        .collect();
    let options =
        ListingOptions::new(Arc::new(ParquetFormat::default())).with_file_extension(".parquet");
    let config = ListingTableConfig::new_with_multi_paths(urls?)
        .with_listing_options(options)
        .infer_schema(&context.state())
        .await?;
    context.register_table(name, Arc::new(ListingTable::try_new(config)?))?;
    Ok(())
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
