//! How fast a log is searched: `cargo run --release -p strata-query --example search_speed -- LOG [FILTER]`.
//! Three times, since the first may read from the disk.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it prints what it measures"
)]

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use strata_filter::Filter;
use strata_query::{
    ByLink, Find, FoundCounts, FoundFlow, FoundPoint, FoundRun, Label, Matches, Search, TakeFound,
    search,
};
use strata_store::Log;
use strata_wire::{FlowKey, grouped};

/// Counts, as the operator's page does.
#[derive(Default)]
struct Counts {
    labels: HashMap<[String; 3], usize>,
    flows: HashMap<FlowKey, u64>,
    last: Option<(FlowKey, u64)>,
    packets: u64,
    bytes: u64,
}

impl Counts {
    fn end_flow(&mut self) {
        if let Some((flow, packets)) = self.last.take() {
            *self.flows.entry(flow).or_default() += packets;
        }
    }

    fn add(&mut self, mut more: Self) {
        more.end_flow();
        for (flow, packets) in more.flows {
            *self.flows.entry(flow).or_default() += packets;
        }
        self.packets += more.packets;
        self.bytes += more.bytes;
    }
}

impl TakeFound for Counts {
    fn label(&mut self, label: &Label<'_>) -> usize {
        let count = self.labels.len();
        let texts = [label.class, label.granularity, label.reason].map(str::to_owned);
        *self.labels.entry(texts).or_insert(count)
    }

    fn packets(&mut self, run: &FoundRun<'_>) {
        let packets = run.packets.len() as u64;
        self.packets += packets;
        let bytes = run.packets.iter().map(|one| u64::from(one.wire_bytes));
        self.bytes += bytes.sum::<u64>();
        match &mut self.last {
            Some((flow, known)) if *flow == run.flow => *known += packets,
            _ => {
                self.end_flow();
                self.last = Some((run.flow, packets));
            }
        }
    }

    fn counted(&mut self, _: usize, counts: &FoundCounts) {
        let [packets, bytes, _] = counts.amounts;
        self.packets += packets;
        self.bytes += bytes;
    }

    fn counted_point(&mut self, _: &FoundPoint<'_>) {}

    fn counted_flow(&mut self, flow: &FoundFlow<'_>) {
        *self.flows.entry(flow.flow).or_default() += flow.packets.iter().sum::<u64>();
    }

    fn name(&mut self, _: &FlowKey, _: &str) {}

    fn damage(&mut self, problem: String) {
        eprintln!("{problem}");
    }

    fn encrypted(&mut self, packets: u64) {
        eprintln!("{packets} packets are encrypted");
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("which log?")?;
    let words: Vec<String> = arguments.collect();
    let filter = Filter::parse(&words.join(" "))?;
    let log = Log::open(Path::new(&dir))?;
    for threads in [1, 1, 2, 2] {
        let start = Instant::now();
        let (mut first, mut counts) = (None, Counts::default());
        let matches = || -> Box<Matches<'_>> {
            let mut by_link = ByLink::new(filter.clone(), |_, _| {});
            Box::new(move |link, packet, len| by_link.matches(link, packet, len))
        };
        let how = Search {
            find: Find {
                filter: (!words.is_empty()).then_some(&filter),
                ..Find::default()
            },
            matches: &matches,
            goes_on: &|| true,
            // Of a day.
            points_ns: Some(86_400_000_000_000),
            threads,
        };
        search(&log, &how, &Counts::default, &mut |piece, _| {
            if let Some(piece) = piece {
                first.get_or_insert_with(|| start.elapsed());
                counts.add(piece);
            }
            ControlFlow::Continue(())
        })?;
        println!(
            "{threads} threads: {:.3} s, first piece after {}: {} packets of {} flows, {} bytes",
            start.elapsed().as_secs_f64(),
            first.map_or_else(
                || String::from("none"),
                |first| format!("{:.3} s", first.as_secs_f64()),
            ),
            grouped(counts.packets),
            grouped(counts.flows.len() as u64),
            grouped(counts.bytes),
        );
    }
    Ok(())
}
