//! `strata gpv features`, `strata gpv train`: the traffic classifier (section 6.2 of the *Flow
//! paper), measured by the same code that classifies.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use strata_gpv::agent::{Reassembly, ReassemblyOptions, Record};
use strata_gpv::application::{FLOW_FEATURES, FlowRecord, flow_features};
use strata_gpv::{Cache, Full, Grouped as _, Key, Packet, Parameters, Vector};
use strata_store::Sources;
use strata_terminal::output::{self, Content, Output};
use strata_terminal::text;
use strata_training::labelled::{self, LabelledArgs};
use strata_training::python;
use strata_wire::{AddressFamily, Headers, clamped};
use tracing::info;

/// What a flow of the classifier is: flows of more packets, or longer, are several. 28 KB each.
pub(super) const REASSEMBLY: ReassemblyOptions = ReassemblyOptions {
    flows: 8192,
    tuples_max: 1024,
    interval_ns: 60_000_000_000,
};
/// Maximum number of flows of a file: labels and rows of all are kept until the end.
const ROWS_MAX: usize = 4_000_000;

/// Arguments of `strata gpv features`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  strata gpv features -r trace.pcap --labels labels.csv -o flows.csv

A flow is one direction of a conversation, split after a minute and after 1,024 packets. The class
of a flow is that of its first packet with a label.")]
pub(super) struct FeaturesArgs {
    #[command(flatten)]
    labelled: LabelledArgs,

    /// Write CSV to this file; - is standard output.
    #[arg(short = 'o', long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

/// Arguments of `strata gpv train`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata gpv train train-flows.csv --test test-flows.csv -o flows.forest
  strata gpv train flows.csv --class-column source

Prints the F1 of each class (the harmonic mean of precision and recall) and the mean recall, for
three sets of features: those of NetFlow records (duration, bytes, packets), of a compiled Marple
query (also mean and largest size), and of grouped packet vectors. The figures are measured on the
files of --test, or else by five-fold cross-validation.

Needs the Python package, which `make python` installs.")]
pub(super) struct TrainArgs {
    /// Train on these files written by `strata gpv features`.
    #[arg(value_name = "FLOWS", required = true)]
    flows: Vec<PathBuf>,

    /// Write the forest to this file.
    #[arg(short = 'o', long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Test on this file instead of by cross-validation; may be given several times.
    #[arg(long, value_name = "FLOWS")]
    test: Vec<PathBuf>,

    /// Take this column as the class of a flow.
    #[arg(long = "class-column", value_name = "COLUMN", default_value = "label", value_parser = ["label", "source"])]
    by: String,

    /// Seed the run, to repeat it exactly.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u32,

    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn train(args: &TrainArgs) -> Result<()> {
    let sources = Sources::default().files(&args.flows).files(&args.test);
    let mut line: Vec<OsString> = vec!["flows".into()];
    let mut path = |name: &str, path: &PathBuf| {
        let mut word = OsString::from(format!("--{name}="));
        word.push(path);
        line.push(word);
    };
    if let Some(output) = &args.output {
        output::check(output, &sources)?;
        path("output", output);
    }
    args.test.iter().for_each(|test| path("test", test));
    line.push(format!("--class-column={}", args.by).into());
    line.push(format!("--seed={}", args.seed).into());
    line.extend(args.json.then(|| "--json".into()));
    line.push("--".into());
    line.extend(args.flows.iter().map(OsString::from));
    python::run(line)
}

/// What the classifier needs of a packet: whose it is, when it came, how long it was.
fn packet(headers: &Headers, ts_ns: u64, size: u32) -> Option<Packet> {
    let flow = headers.key?;
    let (source, destination) = headers.endpoints();
    (flow.family != AddressFamily::Mac).then(|| Packet {
        key: Key::new(flow.family, flow.protocol, source, destination, 0),
        ts_ns,
        size,
        ..Packet::default()
    })
}

/// Label and source of a flow, those of its first packet that has them.
type Said = HashMap<Key, (String, String)>;

pub(super) fn features(args: &FeaturesArgs) -> Result<()> {
    let output = Output::create(&args.output, Content::Text, &args.labelled.sources())?;
    let mut table = csv::Writer::from_writer(output);
    let leading = [
        "label",
        "source",
        "protocol",
        "packets",
        "bytes",
        "duration_us",
        "size_max",
    ];
    table.write_record(leading.iter().chain(&FLOW_FEATURES))?;
    let mut cache = Cache::<Full>::new(Parameters::PAPER, 1)?;
    let mut agent = Reassembly::<Full>::new(REASSEMBLY, 1);
    let mut said = Said::new();
    let mut rows: Vec<(Key, Vec<String>)> = Vec::new();
    let mut too_many = 0_u64;
    let mut take = |record: &Record<'_, Full>| match rows.len() < ROWS_MAX {
        true => rows.push((*record.key(), row(record))),
        false => too_many += 1,
    };
    let mut without_ip = 0_u64;
    let read = labelled::read(&args.labelled, |seen| {
        let size = clamped(seen.wire_len);
        let Some(packet) = packet(seen.headers, seen.facts.ts_ns, size) else {
            without_ip += 1;
            return Ok(());
        };
        if let Some(label) = seen.label
            && said.len() < ROWS_MAX
        {
            said.entry(packet.key)
                .or_insert_with(|| (label.class.clone(), label.source.clone()));
        }
        cache.push(&[packet], &mut |vector: &Vector<'_, Full>| {
            agent.take(vector, &mut take);
        });
        Ok(())
    })?;
    cache.flush(&mut |vector: &Vector<'_, Full>| agent.take(vector, &mut take));
    agent.flush(&mut take);
    let written = rows.len() as u64;
    for (key, row) in rows {
        let said = said.get(&key);
        let (label, source) = said.map_or(("", ""), |(l, s)| (l.as_str(), s.as_str()));
        let leading = [label, source];
        table.write_record(leading.into_iter().chain(row.iter().map(String::as_str)))?;
    }
    let without = read.without_flow + without_ip;
    if without > 0 {
        info!(
            "skipped {}: no IP header",
            text::count_of(without, "packet")
        );
    }
    if too_many > 0 {
        text::warn(&format!(
            "skipped {}: only the first {written} are written: read fewer or shorter captures (-r)",
            text::count_of(too_many, "flow")
        ));
    }
    let output = table
        .into_inner()
        .map_err(csv::IntoInnerError::into_error)?;
    output.finish()?;
    info!("{} written", text::count_of(written, "flow"));
    Ok(())
}

fn row(record: &Record<'_, Full>) -> Vec<String> {
    let flow = FlowRecord::of(record);
    let mut row = vec![
        record.key().protocol().to_string(),
        flow.packets.to_string(),
        flow.bytes.to_string(),
        (flow.duration_ns / 1000).to_string(),
        flow.size_max.to_string(),
    ];
    row.extend(flow_features(record).iter().map(ToString::to_string));
    row
}
