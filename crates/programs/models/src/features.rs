//! `strata features`: what the classifier sees, packet by packet.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use serde_json::json;
use strata_classify::{Buckets, Model, ModelArithmetic};
use strata_query::not_formula;
use strata_sketch::{
    Arithmetic, BITS_DEFAULT, Clock, ExactTable, Feature, FlowStats, RangeTable, Sketch, TableSize,
};
use strata_terminal::model::WINDOW_MS_MAX;
use strata_terminal::output::{Content, Output, suffix};
use strata_terminal::table::{Cell, ColumnSpec, Kind, Table};
use strata_terminal::text;
use strata_training::labelled::{
    self, FLOW, FRAME, IN_FLOW, LABEL, LabelledArgs, Read, SOURCE, Seen, TS_NS, WIRE_LEN,
};
use tracing::info;

/// Arguments of `strata features`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata features -r trace.pcap --labels labels.csv -o snapshots.parquet
  strata features -r monday.pcap --labels conn.log.labeled -o monday.parquet
  strata features -r trace.pcap --window-ms 10 | head")]
pub(crate) struct Args {
    #[command(flatten)]
    labelled: LabelledArgs,

    /// Write to this file: Parquet if its name ends in .parquet, else CSV; - is CSV on standard
    /// output.
    #[arg(short = 'o', long = "output", value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Set the window of the flow table, in ms; models trained on these features use the same
    /// window. By default, that of the built-in model.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=WINDOW_MS_MAX))]
    window_ms: Option<u64>,

    /// Compute averages as a programmable switch does, with this relative error at most, from
    /// 0.0001 to 0.5.
    #[arg(long, value_name = "DELTA")]
    switch: Option<f64>,

    /// Let flows that hash to the same bucket share it.
    #[arg(long)]
    shared_buckets: bool,

    /// Count every flow, instead of only those with a bucket in the flow table, for comparison.
    #[arg(long, conflicts_with_all = ["switch", "shared_buckets"])]
    exact: bool,
}

/// Where flow features come from.
enum Flows {
    Sketch(Box<Sketch>),
    Exact(ExactTable),
}

impl Flows {
    fn insert(&mut self, seen: &Seen<'_>) -> Option<FlowStats> {
        match self {
            Self::Sketch(sketch) => sketch.insert(&seen.facts).map(|bucket| bucket.stats()),
            Self::Exact(table) => table.insert(&seen.facts),
        }
    }
}

/// Columns before the features.
const LEADING: [ColumnSpec; 8] = [
    FRAME,
    TS_NS,
    FLOW,
    IN_FLOW,
    (
        "has_bucket",
        Kind::Flag,
        "",
        "Whether the flow has a bucket; without, flow features are 0.",
    ),
    WIRE_LEN,
    LABEL,
    SOURCE,
];

/// Writes snapshots of labelled captures and logs as Parquet, with the built-in model's window.
pub(crate) fn snapshots(labelled: LabelledArgs, parquet: Output) -> Result<()> {
    let args = Args {
        labelled,
        output: PathBuf::new(),
        window_ms: None,
        switch: None,
        shared_buckets: false,
        exact: false,
    };
    write(&args, Some(parquet))
}

pub(crate) fn run(args: &Args) -> Result<()> {
    write(args, None)
}

/// Writes to `parquet`, or to what the arguments name.
fn write(args: &Args, parquet: Option<Output>) -> Result<()> {
    let built_in = strata_terminal::model::load(None)?.model;
    let window_ms = args.window_ms.unwrap_or(built_in.window_ns / 1_000_000);
    // A model with these settings, so that one place checks and builds sketches.
    let like = Model {
        window_ns: window_ms.saturating_mul(1_000_000),
        arithmetic: match args.switch {
            None => ModelArithmetic::Exact,
            Some(delta) if (0.0001..=0.5).contains(&delta) => ModelArithmetic::Switch { delta },
            Some(delta) => bail!("--switch {delta} is not between 0.0001 and 0.5"),
        },
        buckets: if args.shared_buckets {
            Buckets::Shared
        } else {
            Buckets::Voting
        },
        ..built_in
    };
    let clock = like.clock();
    let averages = match like.sketch_arithmetic() {
        Arithmetic::Exact => None,
        Arithmetic::Switch { delta } => Some(RangeTable::new(delta)),
    };
    let mut flows = if args.exact {
        Flows::Exact(ExactTable::new(clock))
    } else {
        Flows::Sketch(Box::new(like.new_sketch(TableSize::fixed(BITS_DEFAULT))?))
    };
    let mut output = Snapshots::create(args, parquet, &like)?;
    // As the column has_bucket says: without a bucket, flow features are 0.
    let without_bucket = FlowStats::default();
    let read = labelled::read(&args.labelled, |seen| {
        let flow = flows.insert(seen);
        let known = flow.as_ref().unwrap_or(&without_bucket);
        let values = Feature::ALL.iter().map(|&feature| {
            let value = feature.value(&seen.facts, known, clock, averages.as_ref());
            cell(feature, value, clock)
        });
        output.push(leading(seen, flow.is_some()).into_iter().chain(values))
    })?;
    if read.without_flow > 0 {
        info!(
            "skipped {}: not part of a flow",
            text::count_of(read.without_flow, "packet")
        );
    }
    output.close(&read)
}

fn leading<'a>(seen: &Seen<'a>, has_bucket: bool) -> [Cell<'a>; 8] {
    [
        Cell::U64(seen.frame),
        Cell::U64(seen.facts.ts_ns),
        Cell::U64(seen.facts.fingerprint),
        Cell::U64(seen.in_flow),
        Cell::Flag(has_bucket),
        Cell::U64(seen.wire_len),
        Cell::Word(seen.label.map(|label| label.class.as_str())),
        Cell::Word(seen.label.map(|label| label.source.as_str())),
    ]
}

/// Integers stay integers.
fn kind(feature: Feature) -> Kind {
    match feature {
        Feature::SizeAvg | Feature::SizeVar | Feature::IpdVar => Kind::F64,
        _ if feature.unit() == "ns" => Kind::F64,
        _ => Kind::U32,
    }
}

fn cell(feature: Feature, value: u32, clock: Clock) -> Cell<'static> {
    match kind(feature) {
        Kind::U32 => Cell::U32(value),
        _ => Cell::F64(feature.decode(value, clock)),
    }
}

enum Snapshots {
    Parquet(Box<Table>),
    Csv(Box<csv::Writer<Output>>),
}

impl Snapshots {
    fn create(args: &Args, parquet: Option<Output>, like: &Model) -> Result<Self> {
        let features = Feature::ALL.iter();
        let features = features.map(|f| (f.name(), kind(*f), f.unit(), f.description()));
        let columns: Vec<_> = LEADING.into_iter().chain(features).collect();
        let is_parquet = parquet.is_some() || suffix(&args.output) == "parquet";
        let content = match is_parquet {
            true => Content::Binary,
            false => Content::Text,
        };
        let output = match parquet {
            Some(output) => output,
            None => Output::create(&args.output, content, &args.labelled.sources())?,
        };
        if is_parquet {
            // The settings a model needs to see the same features.
            let about = [
                ("strata.window_ns", like.window_ns.to_string()),
                (
                    "strata.arithmetic",
                    serde_json::to_string(&like.arithmetic)?,
                ),
                ("strata.buckets", serde_json::to_string(&like.buckets)?),
            ];
            let about: HashMap<_, _> = about
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect();
            let table = Table::create(output, &columns, about)?;
            return Ok(Self::Parquet(Box::new(table)));
        }
        let mut writer = csv::Writer::from_writer(output);
        writer.write_record(columns.iter().map(|(name, ..)| name))?;
        Ok(Self::Csv(Box::new(writer)))
    }

    fn push<'a>(&mut self, cells: impl Iterator<Item = Cell<'a>>) -> Result<()> {
        let writer = match self {
            Self::Parquet(table) => return table.push(cells),
            Self::Csv(writer) => writer,
        };
        let mut number = String::new();
        for cell in cells {
            number.clear();
            match cell {
                Cell::Flag(value) => write!(number, "{}", u8::from(value))?,
                Cell::U32(value) => write!(number, "{value}")?,
                Cell::U64(value) => write!(number, "{value}")?,
                Cell::F64(value) => write!(number, "{value}")?,
                Cell::Maybe(Some(value)) => write!(number, "{value}")?,
                Cell::Maybe(None) => {}
                Cell::Text(value) | Cell::Word(Some(value)) => {
                    writer.write_field(not_formula(value).as_bytes())?;
                    continue;
                }
                Cell::Word(None) => {
                    writer.write_field("")?;
                    continue;
                }
            }
            writer.write_field(&number)?;
        }
        Ok(writer.write_record(None::<&[u8]>)?)
    }

    fn close(self, read: &Read) -> Result<()> {
        match self {
            Self::Parquet(mut table) => {
                let counts = json!({
                    "frames": read.frames,
                    "without_flow": read.without_flow,
                    "of_logs": read.of_logs,
                    "labelled": read.usage.map(|usage| usage.labelled),
                    "unlabelled": read.usage.map(|usage| usage.unlabelled),
                    "repeated": read.usage.map(|usage| usage.repeated),
                    "entries": read.usage.map(|usage| usage.entries),
                    "unmatched": read.usage.map(|usage| usage.unmatched),
                    "near_alert": read.usage.map(|usage| usage.near_alert),
                    "without_label": read.usage.map(|usage| usage.without_label),
                });
                table.about("strata.labels", counts.to_string());
                table.close()
            }
            Self::Csv(writer) => {
                let output = writer.into_inner();
                output.map_err(csv::IntoInnerError::into_error)?.finish()
            }
        }
    }
}
