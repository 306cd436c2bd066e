//! `strata eval`: how good a model is on a labelled capture.

use std::collections::HashMap;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::json;
use strata_classify::{Drift, LANES, Model};
use strata_pipeline::{Classifier, DataPath};
use strata_sketch::{
    Arithmetic, ExactTable, Feature, FlowStats, Level, PacketFacts, RangeTable, Sketch, TableSize,
};
use strata_terminal::bounded;
use strata_terminal::model::WINDOW_MS_MAX;
use strata_terminal::output::{Content, Output};
use strata_terminal::table::{Cell, ColumnSpec, Kind, Table};
use strata_training::labelled::{
    self, FLOW, FRAME, IN_FLOW, LABEL, LabelledArgs, SOURCE, Seen, TS_NS, WIRE_LEN,
};

use crate::scratch::InMemory;
use crate::train::check_report;

/// Arguments of `strata eval`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("to").required(true).multiple(true).args(["report", "decisions"]))]
#[command(after_help = "\
Example:
  strata eval -m model.json -r test.pcap --labels labels.csv --report report.html")]
pub(crate) struct Args {
    /// Evaluate the model in this file; by default, the built-in model.
    #[arg(short = 'm', long = "model", value_name = "FILE")]
    model: Option<PathBuf>,

    #[command(flatten)]
    labelled: LabelledArgs,

    /// Use a window of this many ms instead of the model's, to measure the accuracy of the flow
    /// table with more or fewer flows in a window.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=WINDOW_MS_MAX))]
    window_ms: Option<u64>,

    /// Give the flow table this much memory. The default is the size that models are trained with;
    /// the table of a recording starts with at most 128MiB.
    #[arg(long, value_name = "SIZE", default_value = "8MiB")]
    memory: String,

    /// Write an HTML page to this file, and its figures as JSON next to it. Needs the Python
    /// package, which `make python` installs.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Write the decision on each packet to this Parquet file.
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
}

/// Two layers of 2^12 to 2^22 buckets.
const MEMORY: RangeInclusive<u64> =
    TableSize::BYTES_MIN..=TableSize::fixed(TableSize::BITS_MAX).bytes_max();

const COLUMNS: [ColumnSpec; 12] = [
    FRAME,
    TS_NS,
    FLOW,
    IN_FLOW,
    ("has_bucket", Kind::Flag, "", "Whether flow trees decided."),
    WIRE_LEN,
    (
        "captured_len",
        Kind::U64,
        "bytes",
        "Bytes of the packet in the capture.",
    ),
    ("header_len", Kind::U64, "bytes", "Bytes of all headers."),
    LABEL,
    SOURCE,
    ("class", Kind::Word, "", "Class that the model gave."),
    (
        "anomaly",
        Kind::F64,
        "",
        "Mean share of the anomalous classes over the trees; at least half of the doubt.",
    ),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut loaded = strata_terminal::model::load(args.model.as_deref())?;
    if let Some(window_ms) = args.window_ms {
        loaded.model.window_ns = window_ms * 1_000_000;
    }
    let bytes = bounded::bytes(&args.memory, "--memory")?;
    let bytes = bounded::size(bytes, "--memory", &MEMORY)?;
    let size = TableSize::fixed(TableSize::within(bytes).bits_max());
    let sources = args.labelled.sources().files(&args.model);
    if let Some(report) = &args.report {
        let decisions = args.decisions.as_deref();
        let decisions = decisions.map(|file| ("--decisions", file));
        check_report(report, decisions, &sources)?;
        // A large capture takes long, and would be read for nothing.
        strata_training::python::check()?;
    }
    // It lives until the package has ended.
    let made;
    let (decisions, table) = match &args.decisions {
        Some(file) => (
            file.clone(),
            Output::create(file, Content::Binary, &sources)?,
        ),
        None => {
            made = InMemory::new("decisions.parquet")?;
            (made.path(), made.output()?)
        }
    };
    decide(&loaded.model, size, &args.labelled, table)?;
    let Some(report) = &args.report else {
        return Ok(());
    };
    let model = InMemory::of("model.json", &loaded.json)?;
    let arguments: [OsString; 6] = [
        "evaluate".into(),
        decisions.into(),
        "--model".into(),
        model.path().into(),
        "--report".into(),
        report.into(),
    ];
    strata_training::python::run(arguments.to_vec())
}

/// Runs the data plane over a capture and writes its decisions.
fn decide(model: &Model, size: TableSize, labelled: &LabelledArgs, output: Output) -> Result<()> {
    let mut plane = Plane::new(model, model.new_sketch(size)?);
    let mut errors = SketchErrors::new(model, model.new_sketch(size)?);
    let about = HashMap::from([(String::from("strata.model"), model.name.clone())]);
    let mut table = Table::create(output, &COLUMNS, about)?;
    let mut batch = Vec::with_capacity(LANES);
    let read = labelled::read(labelled, |seen| {
        errors.add(&seen.facts);
        batch.push(Pending::new(seen));
        if batch.len() == LANES {
            plane.decide(&mut batch, &mut table)?;
        }
        Ok(())
    })?;
    plane.decide(&mut batch, &mut table)?;
    let pressure = plane.classifier.pressure();
    table.about(
        "strata.summary",
        json!({
            "frames": read.frames,
            "without_flow": read.without_flow,
            "windows": pressure.windows,
            "flows_max": errors.flows_max,
            "without_bucket": pressure.without_bucket,
            "average_relative_errors": errors.averages(),
            "drift": plane.classifier.drift().map(Drift::report),
        })
        .to_string(),
    );
    table.close()
}

/// What is written about a packet in addition to the decision.
struct Pending {
    facts: PacketFacts,
    frame: u64,
    in_flow: u64,
    wire_len: u64,
    captured_len: u64,
    header_len: u64,
    label: Option<(String, String)>,
}

impl Pending {
    fn new(seen: &Seen<'_>) -> Self {
        Self {
            facts: seen.facts,
            frame: seen.frame,
            in_flow: seen.in_flow,
            wire_len: seen.wire_len,
            captured_len: seen.captured_len,
            header_len: u64::from(seen.headers.header_len),
            label: seen.label.map(|l| (l.class.clone(), l.source.clone())),
        }
    }
}

/// The classifier that `record` runs, and the names it uses.
struct Plane {
    classifier: Classifier,
    names: Vec<String>,
}

impl Plane {
    fn new(model: &Model, sketch: Sketch) -> Self {
        Self {
            classifier: Classifier::on(DataPath::best(), model, sketch),
            names: model.class_names(),
        }
    }

    fn decide(&mut self, batch: &mut Vec<Pending>, table: &mut Table) -> Result<()> {
        let facts: Vec<PacketFacts> = batch.iter().map(|packet| packet.facts).collect();
        let all = if facts.len() == LANES {
            u64::MAX
        } else {
            (1 << facts.len()) - 1
        };
        self.classifier.classify(&facts, all);
        for (packet, &id) in batch.iter().zip(self.classifier.classified()) {
            let verdict = self.classifier.verdict(id);
            let level = verdict.level.unwrap_or(Level::Packet);
            let class = usize::from(verdict.class);
            let anomaly = f64::from(verdict.anomaly) / f64::from(u16::MAX);
            let label = packet.label.as_ref();
            table.push([
                Cell::U64(packet.frame),
                Cell::U64(packet.facts.ts_ns),
                Cell::U64(packet.facts.fingerprint),
                Cell::U64(packet.in_flow),
                Cell::Flag(level == Level::Flow),
                Cell::U64(packet.wire_len),
                Cell::U64(packet.captured_len),
                Cell::U64(packet.header_len),
                Cell::Word(label.map(|(class, _)| class.as_str())),
                Cell::Word(label.map(|(_, source)| source.as_str())),
                Cell::Word(Some(&self.names[class])),
                Cell::F64(anomaly),
            ])?;
        }
        batch.clear();
        Ok(())
    }
}

/// The sketches of a model compared with exact flow tables, as in TitanLog Table V.
struct SketchErrors {
    sketch: Sketch,
    exact: ExactTable,
    averages: Option<RangeTable>,
    /// The sum of relative errors by flow feature.
    sums: Vec<(Feature, f64)>,
    packets: u64,
    flows_max: usize,
}

impl SketchErrors {
    fn new(model: &Model, sketch: Sketch) -> Self {
        let flow = |feature: &&Feature| feature.level() == Level::Flow;
        Self {
            sketch,
            exact: ExactTable::new(model.clock()),
            averages: match model.sketch_arithmetic() {
                Arithmetic::Exact => None,
                Arithmetic::Switch { delta } => Some(RangeTable::new(delta)),
            },
            sums: Feature::ALL
                .iter()
                .filter(flow)
                .map(|&f| (f, 0.0))
                .collect(),
            packets: 0,
            flows_max: 0,
        }
    }

    fn add(&mut self, facts: &PacketFacts) {
        let truth = self.exact.insert(facts);
        self.flows_max = self.flows_max.max(self.exact.flows());
        let clock = self.sketch.clock();
        let known = self.sketch.insert(facts).map(|bucket| bucket.stats());
        // A packet without a flow is in neither; one without a bucket has nothing to compare.
        let (Some(known), Some(truth)) = (known, truth) else {
            return;
        };
        self.packets += 1;
        for (feature, sum) in &mut self.sums {
            let of = |flow: &FlowStats, averages| {
                feature.decode(feature.value(facts, flow, clock, averages), clock)
            };
            let (known, truth) = (of(&known, self.averages.as_ref()), of(&truth, None));
            *sum += if truth == 0.0 {
                f64::from(u8::from(known != 0.0))
            } else {
                (known - truth).abs() / truth
            };
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn averages(&self) -> HashMap<&'static str, f64> {
        let packets = self.packets.max(1) as f64;
        let average = |(feature, sum): &(Feature, f64)| (feature.name(), sum / packets);
        self.sums.iter().map(average).collect()
    }
}
