//! `strata gpv bursts`: who had packets in the queue when it was long.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::Result;
use strata_gpv::agent::Record;
use strata_gpv::application::{Application as _, Burst, BurstOptions, Bursts, Congestion};
use strata_gpv::{Column as Feature, Columns, Full};
use strata_terminal::output::refuse;
use strata_terminal::table::{Cell, Kind};
use strata_terminal::text::{bytes, count_of, duration_ns, number as amount, short_duration_ns};

use super::rows::{Column, SWITCH, number, time, words};
use super::{App, AppArgs, Out, SHORT, address, run};

/// Arguments of `strata gpv bursts`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The time up to --lookback before each packet that met a long queue belongs to a burst; overlapping
times are one burst. Each row is a source address in a burst: its packets and bytes, and those of
the whole burst.

Examples:
  strata gpv bursts vectors.gpv --top 3
  strata gpv run -r trace.pcap -w - | strata gpv bursts - --when model:100M/64K
  strata gpv bursts udp://192.0.2.10:4739 --allow 192.0.2.0/24 --when depth:800 -F csv

Exit status: 0 if the rows are complete; 1 if vectors were lost, or packets left out (details are on
standard error); 2 if the command line is invalid.")]
pub(in super::super) struct BurstsArgs {
    #[command(flatten)]
    app: AppArgs,

    /// Define a packet that met a long queue: high-queue (the switch marked it), ecn (it was marked
    /// "congestion experienced" on the way), depth:N (the queue before it had at least N, in the
    /// unit of the switch), or model:RATE/BYTES (it would find more than BYTES in a queue for all
    /// packets that is sent at RATE bits per second, as in model:10G/1M).
    #[arg(long, value_name = "WHEN", default_value = "high-queue", value_parser = when)]
    when: Congestion,

    /// Look back this far from each packet that met a long queue.
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = short_duration_ns)]
    lookback: u64,

    /// Begin another burst if a burst exceeds this length of time.
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = short_duration_ns)]
    burst_max: u64,

    /// Wait this long, by packet timestamps, for late vectors; packets that arrive later are left
    /// out and counted. A vector is sent once its flow has several packets, so that packets of
    /// small flows arrive late.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration_ns)]
    hold: u64,

    /// Hold at most this many waiting packets of each switch, in 16 bytes each.
    #[arg(long, value_name = "N", default_value_t = 4_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    packets_max: u32,

    /// Show at most this many sources of a burst, the ones with the most bytes.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    top: u16,
}

/// Of a burst, and of a source of it.
const COLUMNS: [Column; 14] = [
    SWITCH,
    number("burst", "", "of this switch, from 1", 5),
    time("first", "the first packet that the walks found"),
    time("start", "the first packet that met a long queue"),
    time("end", "the last packet that met a long queue"),
    Column {
        name: "continues",
        kind: Kind::Flag,
        unit: "",
        description: "whether the next burst continues this one",
        width: 5,
    },
    number("congested", "packets", "met a long queue", 9),
    number(
        "packets",
        "packets",
        "found by the walks, congested ones included",
        8,
    ),
    number("bytes", "B", "of these packets on the wire", 12),
    number("hosts", "", "sources of these packets", 6),
    number("rank", "", "of the source in the burst, from 1", 4),
    words("source", "address of a source", 15),
    number("source_packets", "packets", "of the source in the burst", 8),
    number("source_bytes", "B", "of these packets on the wire", 12),
];

/// The value of `--when`.
fn when(text: &str) -> Result<Congestion, String> {
    Ok(match text.split_once(':') {
        None if text == "high-queue" => Congestion::HighQueue,
        None if text == "ecn" => Congestion::Ecn,
        Some(("depth", depth)) => Congestion::Depth {
            at_least: depth
                .parse()
                .map_err(|error| format!("depth '{depth}': {error}"))?,
        },
        Some(("model", model)) => {
            let Some((rate, queue)) = model.split_once('/') else {
                return Err(String::from("a model is RATE/BYTES, as in model:10G/1M"));
            };
            let bits_per_second = amount(rate).map_err(|error| error.to_string())?;
            if bits_per_second == 0 {
                return Err(String::from(
                    "a queue that sends at 0 bits per second stays full",
                ));
            }
            Congestion::Model {
                bits_per_second,
                bytes: bytes(queue).map_err(|error| error.to_string())?,
            }
        }
        _ => {
            return Err(String::from(
                "write high-queue, ecn, depth:N or model:RATE/BYTES",
            ));
        }
    })
}

pub(in super::super) fn bursts(args: &BurstsArgs) -> Result<()> {
    if args.burst_max == 0 || args.lookback == 0 {
        return Err(refuse(
            "--burst-max and --lookback must be above 0, as in 100us",
        ));
    }
    let app = Diagnosis {
        options: BurstOptions {
            congestion: args.when,
            lookback_ns: args.lookback,
            burst_ns_max: args.burst_max,
            hold_ns: args.hold,
            packets_max: args.packets_max,
            top: args.top.into(),
            ..BurstOptions::default()
        },
    };
    run(&args.app, 1, &[], &COLUMNS, &app, SHORT)
}

struct Diagnosis {
    options: BurstOptions,
}

type Found = Rc<RefCell<Vec<Burst>>>;
type Take = Box<dyn FnMut(&Burst)>;

/// The diagnosis of a switch.
struct Queue {
    bursts: Bursts<Take>,
    found: Found,
    number: u64,
}

impl Queue {
    fn give(&mut self, out: &mut Out<'_>) -> Result<()> {
        for burst in self.found.take() {
            self.number = self.number.saturating_add(1);
            for (rank, source) in (1..).zip(&burst.sources) {
                let address = address(source.family, source.address);
                out.push(&[
                    Cell::Text(out.switch),
                    Cell::U64(self.number),
                    Cell::U64(burst.first_ns),
                    Cell::U64(burst.start_ns),
                    Cell::U64(burst.end_ns),
                    Cell::Flag(burst.continues),
                    Cell::U64(burst.congested),
                    Cell::U64(burst.packets),
                    Cell::U64(burst.bytes),
                    Cell::U64(burst.hosts as u64),
                    Cell::U64(rank),
                    Cell::Text(&address),
                    Cell::U64(source.packets),
                    Cell::U64(source.bytes),
                ])?;
            }
        }
        Ok(())
    }
}

impl App for Diagnosis {
    type State = Queue;

    fn needs(&self) -> Columns {
        let feature = match self.options.congestion {
            Congestion::HighQueue => Feature::HighQueue,
            Congestion::Ecn => Feature::Ecn,
            Congestion::Depth { .. } => Feature::QueueDepth,
            Congestion::Model { .. } => Feature::Size,
        };
        Columns::of(&[feature, Feature::Size])
    }

    fn begin(&self, seed: u64) -> Queue {
        let found = Found::default();
        let given = Rc::clone(&found);
        let take = move |burst: &Burst| given.borrow_mut().push(burst.clone());
        Queue {
            bursts: Bursts::new(self.options, seed, Box::new(take)),
            found,
            number: 0,
        }
    }

    fn take(&self, queue: &mut Queue, record: &Record<'_, Full>, out: &mut Out<'_>) -> Result<()> {
        queue.bursts.take(0, record);
        queue.give(out)
    }

    fn finish(&self, mut queue: Queue, out: &mut Out<'_>) -> Result<Option<String>> {
        queue.bursts.finish();
        queue.give(out)?;
        let counters = queue.bursts.counters();
        let lacks = [
            (counters.late, "arrived later than --hold allows"),
            (
                counters.refused,
                "were of more hosts than are counted separately",
            ),
            (counters.cut, "were left out of walks (--packets-max)"),
            (
                counters.hurried,
                "were diagnosed before --hold was over (--packets-max)",
            ),
        ];
        let lacks = lacks.iter().filter(|(packets, _)| *packets > 0);
        let lacks: Vec<_> = lacks
            .map(|(packets, why)| format!("{} {why}", count_of(*packets, "packet")))
            .collect();
        Ok((!lacks.is_empty()).then(|| {
            format!(
                "switch {}: {}: bursts may lack packets",
                out.switch,
                lacks.join(", ")
            )
        }))
    }
}
