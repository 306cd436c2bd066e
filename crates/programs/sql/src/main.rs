//! `strata-sql`: SQL over a log, run by `strata query` and by `strata serve`.
//!
//! The tables `packets` and `flows` are the log's own Parquet files (`files`), and rows from block files, made while
//! the query runs (`tiers`). Functions say whose addresses are (`owners`).
#![forbid(unsafe_code)]

mod arrays;
mod files;
mod owners;
mod tiers;
mod written;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use clap::{CommandFactory as _, Parser};
use datafusion::common::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use rustix::process::{Resource, getrlimit, setrlimit};
use strata_archive::{ArchiveError, ClearDisk};
use strata_store::{Log, Sources};
use strata_terminal::logging::LoggingArgs;
use strata_terminal::output::{Content, Output};
use strata_terminal::program::{self, Program};
use strata_terminal::selection::statement::{EXAMPLES, EXIT_STATUS, Line};
use strata_terminal::{disk, key, selection, text};
use strata_wire::{Printable, clamped};

use files::Unreadable;
use owners::Unknown;
use tiers::{LeftOut, Tiers};
use written::Form;

/// Query a log with SQL. Its tables are `packets`, one row per logged packet, and `flows`.
#[derive(Debug, Parser)]
#[command(
    name = "strata query",
    bin_name = "strata query",
    version,
    max_term_width = 100,
    after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}")
)]
struct Args {
    /// Write rows with the types of their columns, for `strata serve` (see `written`).
    #[arg(long, hide = true, conflicts_with_all = ["format", "json"])]
    typed: bool,

    #[command(flatten)]
    line: Line,
}

impl Program for Args {
    fn is_long_running(&self) -> bool {
        false
    }

    fn logging(&self) -> Option<&LoggingArgs> {
        None
    }

    fn run(&self) -> Result<()> {
        if self.typed {
            bound_memory(self.line.memory)?;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().build();
        let runtime = runtime.context("cannot start threads for the query")?;
        let answered = runtime.block_on(answer(self));
        answered.map_err(plainly)
    }
}

fn main() -> ExitCode {
    program::main::<Args>(Args::command())
}

/// Memory of a query from the operator's page, in units of its --sort-memory. The batches that an expression makes are
/// not of the memory for sorting.
const TYPED_MEMORY_FACTOR: u64 = 4;

/// Bounds the data of this process, threads' stacks included: a query of someone else must not take the memory of the
/// recorder beside it. An allocation beyond the bound fails, which ends this process.
fn bound_memory(sort_bytes: u64) -> Result<()> {
    let bytes = sort_bytes.saturating_mul(TYPED_MEMORY_FACTOR);
    let mut limit = getrlimit(Resource::Data);
    let lower = |known: Option<u64>| Some(known.map_or(bytes, |known| known.min(bytes)));
    (limit.current, limit.maximum) = (lower(limit.current), lower(limit.maximum));
    setrlimit(Resource::Data, limit).context("cannot bound the memory of the query")
}

async fn answer(args: &Args) -> Result<()> {
    let line = &args.line;
    let mut config = SessionConfig::new().with_information_schema(true);
    config.options_mut().execution.parquet.pushdown_filters = true;
    config.options_mut().execution.parquet.reorder_filters = true;
    let mut runtime = RuntimeEnvBuilder::new().with_memory_limit(clamped(line.memory), 1.0);
    // Temporary files are not encrypted, and stay if this program is killed, as `strata serve` does.
    if args.typed || line.key.is_some() {
        let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
        runtime = runtime.with_disk_manager_builder(disk);
    }
    let context = SessionContext::new_with_config_rt(config, runtime.build_arc()?);
    let log = open(line)?;
    for function in owners::functions(&Arc::new(line.names.read()?)) {
        context.register_udf(function);
    }
    let sources = Sources::default()
        .files(&line.key)
        .files(&line.names.files()?)
        .log(&line.log, &log);
    let losses = log.losses()?;
    let left_out = Arc::new(LeftOut::default());
    for table in Tiers::of(log, &left_out, &context)? {
        context.register_table(table.name(), Arc::new(table))?;
    }
    let frame = context.sql_with_options(&line.sql, only_reading()).await?;
    let schema = Arc::new(frame.schema().as_arrow().clone());
    let form = match (args.typed, line.format()) {
        (true, _) => Form::Typed,
        (false, Some(format)) => Form::For(format),
        (false, None) => Form::of(&line.write),
    };
    form.check(&schema)?;
    let stream = frame.execute_stream().await?;
    let content = match form.is_text() {
        true => Content::Text,
        false => Content::Binary,
    };
    let mut output = Output::create(&line.write, content, &sources)?;
    form.write(schema, stream, &mut output).await?;
    output.finish()?;
    for what in losses.texts(text::time) {
        text::warn(&format!(
            "{} {what}; the tables lack them (see `strata info`)",
            Printable(&line.log.display().to_string()),
        ));
    }
    selection::report(&left_out.take(), 0)
}

/// Statements may come from someone other than the user who runs this program (the operator's page):
/// they neither write files, nor name files to read, nor raise limits.
fn only_reading() -> SQLOptions {
    SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false)
}

fn open(line: &Line) -> Result<Log> {
    let below = disk::disk(&line.log)?;
    let identities = line.key.as_deref().map(|file: &Path| key::identities(file));
    let disk = ClearDisk::new(below, identities.transpose()?);
    Ok(Log::on(Arc::new(disk))?)
}

/// An error in the user's words. DataFusion says what happened behind what it was doing, and names settings that are
/// not those of this program.
fn plainly(error: anyhow::Error) -> anyhow::Error {
    for cause in error.chain() {
        if cause.is::<Unreadable>() || cause.is::<Unknown>() || cause.is::<ArchiveError>() {
            return anyhow!("{cause}");
        }
        let shared = cause.downcast_ref::<Arc<DataFusionError>>();
        let of = cause.downcast_ref().or(shared.map(Arc::as_ref));
        let Some(DataFusionError::ResourcesExhausted(said)) = of else {
            continue;
        };
        if said.contains("max_temp_directory_size") {
            return anyhow!("the temporary files of the query are too large: narrow the query");
        }
        return anyhow!(
            "the query needs more memory than --sort-memory allows: raise it, or narrow the query"
        );
    }
    error
}
