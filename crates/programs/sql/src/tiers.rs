//! A table of a log over both tiers: the Parquet files of compacted data, and rows made from block
//! files while the query runs.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use async_trait::async_trait;
use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::error::ArrowError;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::datasource::TableType;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::union::UnionExec;
use datafusion::prelude::SessionContext;
use strata_archive::{Column, NS_PER_MICRO, Narrows, Rows, Table, TakeRows, rows_of_blocks};
use strata_store::{Damage, FileKind, Log, Select};
use strata_wire::AddressFamily;
use tokio::sync::OnceCell;
use tokio::sync::mpsc::Sender;

use crate::arrays::{self, SqlColumn, arrays, schema};
use crate::files::{Files, Store};

/// Rows of a batch, at most.
const BATCH_ROWS: usize = 8_192;
/// Batches of each stream waiting for the query, at most.
const BATCHES_WAITING: usize = 64;

/// What an answer lacks: files that are missing, and damaged places of block files.
#[derive(Debug, Default)]
pub(crate) struct LeftOut(Mutex<Vec<Damage>>);

impl LeftOut {
    /// Adds a place, unless it was found before: a statement may read a table twice.
    fn add(&self, damage: Damage) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains(&damage) {
            all.push(damage);
        }
    }

    /// All that was found so far.
    pub(crate) fn take(&self) -> Vec<Damage> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One table of a log.
#[derive(Debug)]
pub(crate) struct Tiers {
    table: Table,
    schema: SchemaRef,
    files: Arc<Files>,
    /// What there is of the files; `None` inside if nothing.
    compacted: OnceCell<Option<ListingTable>>,
    blocks: Arc<Blocks>,
}

/// The block files of a log, as of when it was opened.
#[derive(Debug)]
struct Blocks {
    log: Arc<Log>,
    files: Vec<BlocksFile>,
    left_out: Arc<LeftOut>,
}

#[derive(Debug)]
struct BlocksFile {
    /// Index of its recording, and its own index there.
    recording: usize,
    file: usize,
    /// The number of the part it could become.
    number: u32,
}

impl Tiers {
    /// The tables of a log. What they lack is found as they are read.
    pub(crate) fn of(
        log: Log,
        left_out: &Arc<LeftOut>,
        context: &SessionContext,
    ) -> Result<[Self; 2]> {
        let mut files = Vec::new();
        let mut number = log.archive().next_part;
        for (recording, listed) in log.recordings().iter().enumerate() {
            for file in 0..listed.files.len() {
                files.push(BlocksFile {
                    recording,
                    file,
                    number,
                });
                number += 1;
            }
        }
        let blocks = Arc::new(Blocks {
            log: Arc::new(log),
            files,
            left_out: Arc::clone(left_out),
        });
        Ok([
            Self::new((Table::Packets, FileKind::Packets), &blocks, context)?,
            Self::new((Table::Flows, FileKind::Flows), &blocks, context)?,
        ])
    }

    fn new(
        (table, kind): (Table, FileKind),
        blocks: &Arc<Blocks>,
        context: &SessionContext,
    ) -> Result<Self> {
        let tiers = Self {
            table,
            schema: schema(table),
            files: Arc::new(Files::new(Arc::clone(&blocks.log), kind)),
            compacted: OnceCell::new(),
            blocks: Arc::clone(blocks),
        };
        let url = tiers.url().parse().context("not a URL")?;
        context.register_object_store(&url, Arc::new(Store(Arc::clone(&tiers.files))));
        Ok(tiers)
    }

    /// Where DataFusion finds its files.
    fn url(&self) -> String {
        format!("strata://{}", self.name())
    }

    /// Looks for the files that the log lists: DataFusion would take those that are missing for empty ones.
    async fn listing(&self) -> Result<Option<ListingTable>, DataFusionError> {
        let (there, missing) = self.files.look().await?;
        for damage in missing {
            self.blocks.left_out.add(damage);
        }
        if there.is_empty() {
            return Ok(None);
        }
        let url = |at: usize| format!("{}/{}", self.url(), self.files.name(at));
        let urls = there.into_iter().map(|at| ListingTableUrl::parse(url(at)));
        let options =
            ListingOptions::new(Arc::new(ParquetFormat::default())).with_file_extension(".parquet");
        let config = ListingTableConfig::new_with_multi_paths(urls.collect::<Result<_, _>>()?)
            .with_listing_options(options)
            .with_schema(Arc::clone(&self.schema));
        ListingTable::try_new(config).map(Some)
    }

    /// Its name in SQL.
    pub(crate) fn name(&self) -> &'static str {
        self.table.name()
    }

    /// Rows of the block files in this many streams; `None` without block files.
    fn not_compacted(
        &self,
        columns: Vec<usize>,
        filters: &[Expr],
        streams: usize,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>, DataFusionError> {
        let files = self.blocks.files.len();
        if files == 0 {
            return Ok(None);
        }
        let schema = Arc::new(self.schema.project(&columns)?);
        let all = arrays::columns(self.table);
        let wanted: Vec<SqlColumn> = columns.iter().map(|&column| all[column]).collect();
        let mut specs: Vec<usize> = wanted.iter().map(|column| column.spec).collect();
        specs.sort_unstable();
        specs.dedup();
        let wanted = Arc::new(wanted);
        let rows = Arc::new(Rows {
            table: self.table,
            columns: specs,
            select: select(self.table, filters),
        });
        let each = files.div_ceil(streams.max(1));
        let streams = (0..files).step_by(each).map(|first| {
            let stream = Stream {
                blocks: Arc::clone(&self.blocks),
                files: (first..(first + each).min(files)).collect(),
                rows: Arc::clone(&rows),
                wanted: Arc::clone(&wanted),
                schema: Arc::clone(&schema),
            };
            Arc::new(stream) as Arc<dyn PartitionStream>
        });
        let streams = streams.collect();
        let plan = StreamingTableExec::try_new(schema, streams, None, [], false, None)?;
        Ok(Some(Arc::new(plan)))
    }
}

#[async_trait]
impl TableProvider for Tiers {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    /// Filters select the row groups, pages and blocks to read; results are filtered again.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>, DataFusionError> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        let all = || (0..self.schema.fields().len()).collect();
        let columns: Vec<usize> = projection.cloned().unwrap_or_else(all);
        let mut plans: Vec<Arc<dyn ExecutionPlan>> = Vec::new();
        let compacted = self.compacted.get_or_try_init(|| self.listing()).await?;
        if let Some(compacted) = compacted {
            plans.push(
                compacted
                    .scan(state, Some(&columns), filters, limit)
                    .await?,
            );
        }
        let streams = state.config().target_partitions();
        plans.extend(self.not_compacted(columns.clone(), filters, streams)?);
        if plans.is_empty() {
            let schema = Arc::new(self.schema.project(&columns)?);
            plans.push(Arc::new(EmptyExec::new(schema)));
        }
        UnionExec::try_new(plans)
    }
}

/// The rows of some block files, one file after the other.
#[derive(Debug)]
struct Stream {
    blocks: Arc<Blocks>,
    files: Vec<usize>,
    rows: Arc<Rows>,
    wanted: Arc<Vec<SqlColumn>>,
    schema: SchemaRef,
}

impl PartitionStream for Stream {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut builder =
            RecordBatchReceiverStream::builder(Arc::clone(&self.schema), BATCHES_WAITING);
        let (blocks, rows) = (Arc::clone(&self.blocks), Arc::clone(&self.rows));
        let mut output = Output {
            sender: builder.tx(),
            rows: Arc::clone(&rows),
            wanted: Arc::clone(&self.wanted),
            schema: Arc::clone(&self.schema),
            left_out: Arc::clone(&blocks.left_out),
            open: true,
        };
        let files = self.files.clone();
        builder.spawn_blocking(move || {
            for file in files {
                let BlocksFile {
                    recording,
                    file,
                    number,
                } = blocks.files[file];
                let recording = &blocks.log.recordings()[recording];
                let file = &recording.files[file];
                let read = rows_of_blocks(&blocks.log, recording, file, number, &rows, &mut output);
                read.map_err(|error| DataFusionError::External(Box::new(error)))?;
                if !output.open {
                    break;
                }
            }
            Ok(())
        });
        builder.build()
    }
}

/// Where rows go.
struct Output {
    sender: Sender<Result<RecordBatch, DataFusionError>>,
    rows: Arc<Rows>,
    wanted: Arc<Vec<SqlColumn>>,
    schema: SchemaRef,
    left_out: Arc<LeftOut>,
    /// Whether the query wants more.
    open: bool,
}

impl Output {
    fn batch(&self, columns: Vec<Column>, count: usize) -> Result<RecordBatch, ArrowError> {
        let rows = &self.rows;
        let arrays = arrays(rows.table, &self.wanted, &rows.columns, columns)?;
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)
    }
}

impl TakeRows for Output {
    fn rows(&mut self, columns: Vec<Column>, count: usize) -> bool {
        let batch = match self.batch(columns, count) {
            Ok(batch) => batch,
            Err(error) => {
                let error = DataFusionError::ArrowError(Box::new(error), None);
                // Without a receiver, no reader waits for it.
                let _ = self.sender.blocking_send(Err(error));
                self.open = false;
                return false;
            }
        };
        for start in (0..count).step_by(BATCH_ROWS) {
            let rows = BATCH_ROWS.min(count - start);
            let sent = self.sender.blocking_send(Ok(batch.slice(start, rows)));
            self.open &= sent.is_ok();
            if !self.open {
                break;
            }
        }
        self.open
    }

    fn damage(&mut self, damage: Damage) {
        self.left_out.add(damage);
    }
}

/// The blocks that may hold rows accepted by all of these filters.
fn select(table: Table, filters: &[Expr]) -> Select {
    let mut select = Select::default();
    for filter in filters {
        narrow(table, filter, &mut select);
    }
    select
}

fn narrow(table: Table, filter: &Expr, select: &mut Select) {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = filter else {
        return;
    };
    if *op == Operator::And {
        narrow(table, left, select);
        narrow(table, right, select);
        return;
    }
    let (column, operator, value) = match (left.as_ref(), right.as_ref()) {
        (Expr::Column(column), Expr::Literal(value, _)) => (column, *op, value),
        (Expr::Literal(value, _), Expr::Column(column)) => match op.swap() {
            Some(swapped) => (column, swapped, value),
            None => return,
        },
        _ => return,
    };
    match table.column(&column.name).and_then(|spec| spec.narrows) {
        Some(Narrows::Time) => of_time(operator, value, select),
        Some(Narrows::Address) if operator == Operator::Eq => of_address(value, select),
        Some(Narrows::Address) | None => {}
    }
}

fn of_time(operator: Operator, value: &ScalarValue, select: &mut Select) {
    let ScalarValue::TimestampMicrosecond(Some(micros), _) = value else {
        return;
    };
    // No packet is from before 1970.
    let at = micros.max(&0).cast_unsigned().saturating_mul(NS_PER_MICRO);
    let from = match operator {
        Operator::Eq | Operator::GtEq => Some(at),
        Operator::Gt if *micros >= 0 => Some(at.saturating_add(NS_PER_MICRO)),
        _ => None,
    };
    let to = match operator {
        Operator::Eq | Operator::LtEq => Some(at.saturating_add(NS_PER_MICRO)),
        Operator::Lt => Some(at),
        _ => None,
    };
    select.from_ns = select.from_ns.max(from);
    select.to_ns = match (select.to_ns, to) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
}

fn of_address(value: &ScalarValue, select: &mut Select) {
    let text = value.try_as_str().flatten();
    let address = text.and_then(|text| text.parse::<IpAddr>().ok());
    let entry = address.map(|address| match address {
        IpAddr::V4(v4) => (AddressFamily::Ipv4, v4.to_bits().into()),
        IpAddr::V6(v6) => (AddressFamily::Ipv6, v6.to_bits()),
    });
    select.addresses.extend(entry.map(|entry| vec![entry]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::logical_expr::{col, lit};

    #[test]
    fn filters_narrow_what_is_read() {
        let at = |micros| {
            lit(ScalarValue::TimestampMicrosecond(
                Some(micros),
                Some("UTC".into()),
            ))
        };
        let filters = [
            col("time").gt_eq(at(5)).and(col("time").lt(at(9))),
            at(7).gt_eq(col("time")),
            col("src").eq(lit("10.0.0.1")),
            col("dst").eq(lit("no address")),
            col("dst_port").eq(lit(80)),
            col("src").eq(lit("::1")).or(col("dst").eq(lit("::1"))),
        ];
        let found = select(Table::Packets, &filters);
        assert_eq!((found.from_ns, found.to_ns), (Some(5_000), Some(8_000)));
        assert_eq!(found.addresses, [[(AddressFamily::Ipv4, 0x0a00_0001)]]);
    }
}
