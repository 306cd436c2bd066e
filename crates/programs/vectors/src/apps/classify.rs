//! `strata gpv classify`: the class of each flow, by a forest that `strata gpv train` wrote.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use strata_gpv::agent::{ReassemblyOptions, Record};
use strata_gpv::application::{Application as _, Classifier, FlowRecord, Forest};
use strata_gpv::{Column as Feature, Columns, Full, Grouped as _, Key};
use strata_terminal::table::{Cell, Kind};

use super::rows::{Column, SWITCH, number, time, words};
use super::{App, AppArgs, Out, address, run};
use crate::flows::REASSEMBLY;

/// Arguments of `strata gpv classify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A row is a flow, as in `strata gpv features`: one direction of a conversation, split after a minute
and after 1,024 packets. It has the class of the flow, and the share of the forest's votes for this
class. Vectors of at most 4 switches are accepted at the same time.

Examples:
  strata gpv features -r trace.pcap --labels labels.csv -o flows.csv
  strata gpv train flows.csv -o flows.forest
  strata gpv classify vectors.gpv -m flows.forest
  strata gpv classify udp://192.0.2.10:4739 --allow 192.0.2.0/24 -m flows.forest -F json

Exit status: 0 if the rows are complete; 1 if vectors were lost (details are on standard error); 2
if the command line is invalid.")]
pub(in super::super) struct ClassifyArgs {
    #[command(flatten)]
    app: AppArgs,

    /// Classify with this forest, which `strata gpv train` wrote.
    #[arg(short = 'm', long = "model", value_name = "FILE")]
    model: PathBuf,

    /// Use this many threads: each classifies a part of the flows. The rows do not depend on the
    /// number of threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
}

/// Flows that are put together at once for each of 4 senders.
const FLOWS_BY_UDP: u32 = 2048;

const COLUMNS: [Column; 12] = [
    SWITCH,
    time("first", "the first packet"),
    words("src", "source address", 15),
    number("sport", "", "source port", 5),
    words("dst", "destination address", 15),
    number("dport", "", "destination port", 5),
    number("protocol", "", "IP protocol", 8),
    number("packets", "packets", "of the flow", 7),
    number("bytes", "B", "of these packets on the wire", 10),
    number("duration", "ns", "from the first packet to the last", 14),
    words("class", "class of the flow by the forest", 12),
    Column {
        name: "share",
        kind: Kind::F64,
        unit: "",
        description: "of the forest's votes for this class",
        width: 5,
    },
];

pub(in super::super) fn classify(args: &ClassifyArgs) -> Result<()> {
    let named = || args.model.display().to_string();
    let text = fs::read_to_string(&args.model).with_context(named)?;
    let forest = Forest::parse(&text).with_context(named)?;
    let others = [args.model.clone()];
    let reassembly = match args.app.is_udp() {
        true => ReassemblyOptions {
            flows: FLOWS_BY_UDP,
            ..REASSEMBLY
        },
        false => REASSEMBLY,
    };
    let app = Classifying { forest };
    run(
        &args.app,
        args.jobs.into(),
        &others,
        &COLUMNS,
        &app,
        reassembly,
    )
}

struct Classifying {
    forest: Forest,
}

/// Number of the class, and its share of votes.
type Found = Rc<RefCell<Vec<(usize, f32)>>>;
type Take = Box<dyn FnMut(&Key, usize, f32)>;

/// Flows of a switch: classes come several at once, in the order of the flows.
struct Flows {
    classifier: Classifier<Take>,
    found: Found,
    /// The number of the record, the flow, when it began, what its packets sum up to.
    waiting: VecDeque<(u64, Key, u64, FlowRecord)>,
}

impl Classifying {
    fn give(&self, flows: &mut Flows, out: &mut Out<'_>) -> Result<()> {
        for (class, share) in flows.found.take() {
            let flow = flows.waiting.pop_front();
            let (number, key, first_ns, flow) = flow.expect("a class for each flow");
            out.place.number = number;
            let [src, dst] = [key.source(), key.destination()];
            out.push(&[
                Cell::Text(out.switch),
                Cell::U64(first_ns),
                Cell::Text(&address(key.family(), src.address)),
                Cell::U64(src.port.into()),
                Cell::Text(&address(key.family(), dst.address)),
                Cell::U64(dst.port.into()),
                Cell::U64(key.protocol().into()),
                Cell::U64(flow.packets),
                Cell::U64(flow.bytes),
                Cell::U64(flow.duration_ns),
                Cell::Text(&self.forest.classes()[class]),
                Cell::F64(share.into()),
            ])?;
        }
        Ok(())
    }
}

impl App for Classifying {
    type State = Flows;

    fn needs(&self) -> Columns {
        Columns::of(&[Feature::Size])
    }

    fn is_of_flows(&self) -> bool {
        true
    }

    fn begin(&self, _seed: u64) -> Flows {
        let found = Found::default();
        let given = Rc::clone(&found);
        let take = move |_: &Key, class, share| given.borrow_mut().push((class, share));
        Flows {
            classifier: Classifier::new(self.forest.clone(), Box::new(take)),
            found,
            waiting: VecDeque::new(),
        }
    }

    fn take(&self, flows: &mut Flows, record: &Record<'_, Full>, out: &mut Out<'_>) -> Result<()> {
        let mut first_ns = None;
        record.for_each_run(|start_ns, tuples| {
            let first = tuples.first();
            let at = first.map(|tuple| start_ns.saturating_add(tuple.delta_ns.into()));
            first_ns = first_ns.or(at);
        });
        let first_ns = first_ns.expect("a record has packets");
        let number = out.place.number;
        let flow = (number, *record.key(), first_ns, FlowRecord::of(record));
        flows.waiting.push_back(flow);
        flows.classifier.take(0, record);
        self.give(flows, out)
    }

    fn settle(&self, flows: &mut Flows, out: &mut Out<'_>) -> Result<()> {
        flows.classifier.finish();
        self.give(flows, out)
    }

    fn finish(&self, mut flows: Flows, out: &mut Out<'_>) -> Result<Option<String>> {
        flows.classifier.finish();
        self.give(&mut flows, out)?;
        Ok(None)
    }
}
