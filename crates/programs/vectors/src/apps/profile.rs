//! `strata gpv profile`: when the packets of each host came.

use anyhow::Result;
use strata_gpv::agent::Record;
use strata_gpv::application::{Application as _, Profiler, ProfilerOptions};
use strata_gpv::{Columns, Full, Key, KeyHasher};
use strata_terminal::table::Cell;
use strata_terminal::text::{count_of, number as amount};
use strata_wire::{exact, mix64};

use super::rows::{Column, SWITCH, number, time, words};
use super::{App, AppArgs, Out, SHORT, address, run};

/// Arguments of `strata gpv profile`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A row is a host (source address), with its packets and the gaps between them in order of time,
across all its flows. With --times, a row is a packet.

Examples:
  strata gpv profile vectors.gpv
  strata gpv run -r trace.pcap -w - 'udp' | strata gpv profile - --times -w times.parquet

Exit status: 0 if the rows are complete; 1 if vectors were lost, or packets left out (details are on
standard error); 2 if the command line is invalid.")]
pub(in super::super) struct ProfileArgs {
    #[command(flatten)]
    app: AppArgs,

    /// Write the time of each packet instead of a summary for each host.
    #[arg(long)]
    times: bool,

    /// Keep the times of at most this many packets of each switch, in 8 bytes each.
    #[arg(long, value_name = "N", default_value = "4M", value_parser = amount)]
    packets_max: u64,

    /// Use this many threads: each profiles a part of the hosts, with its share of --packets-max.
    /// The rows do not depend on the number of threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
}

const HOST: Column = words("host", "source address", 15);

const COLUMNS: [Column; 10] = [
    SWITCH,
    HOST,
    number("packets", "packets", "of the host", 8),
    time("first", "the first packet"),
    time("last", "the last packet"),
    number("gap_min", "ns", "shortest time between two packets", 12),
    number("gap_mean", "ns", "mean time between packets", 13),
    number(
        "gap_median",
        "ns",
        "half of the times between packets are at most this",
        13,
    ),
    number(
        "gap_p99",
        "ns",
        "99 % of the times between packets are at most this",
        13,
    ),
    number("gap_max", "ns", "longest time between two packets", 13),
];

const TIMES: [Column; 3] = [SWITCH, HOST, time("time", "arrival of the packet")];

pub(in super::super) fn profile(args: &ProfileArgs) -> Result<()> {
    let app = Profiling {
        options: ProfilerOptions {
            packets_max: args.packets_max.div_ceil(args.jobs.into()),
            ..ProfilerOptions::default()
        },
        each: args.times,
    };
    let columns: &[Column] = if args.times { &TIMES } else { &COLUMNS };
    run(&args.app, args.jobs.into(), &[], columns, &app, SHORT)
}

struct Profiling {
    options: ProfilerOptions,
    /// Whether each packet is a row.
    each: bool,
}

impl App for Profiling {
    type State = Profiler;

    fn needs(&self) -> Columns {
        Columns::of(&[])
    }

    fn begin(&self, seed: u64) -> Profiler {
        Profiler::new(self.options, seed)
    }

    fn take(
        &self,
        profiler: &mut Profiler,
        record: &Record<'_, Full>,
        _out: &mut Out<'_>,
    ) -> Result<()> {
        profiler.take(0, record);
        Ok(())
    }

    fn part(&self, key: &Key, _hasher: &KeyHasher) -> u64 {
        // A host is profiled by one thread.
        let address = key.source().address;
        let [high, low] =
            [address >> 64, address & u128::from(u64::MAX)].map(|half| exact::<u64>(half));
        mix64(high ^ mix64(low))
    }

    fn finish(&self, mut profiler: Profiler, out: &mut Out<'_>) -> Result<Option<String>> {
        let cut = profiler.counters().cut;
        let mut hosts = Vec::new();
        profiler.end_interval(|profile| {
            let mut times = profile.times_ns.to_vec();
            // Flows come one after the other.
            times.sort_unstable();
            hosts.push((
                (profile.family as u8, profile.address),
                profile.family,
                times,
            ));
        });
        hosts.sort_unstable_by_key(|(host, ..)| *host);
        for ((_, bits), family, times) in hosts {
            (out.place.number, out.place.host) = (family as u64, bits);
            let host = address(family, bits);
            match self.each {
                true => {
                    for time in times {
                        let cells = [Cell::Text(out.switch), Cell::Text(&host), Cell::U64(time)];
                        out.push(&cells)?;
                    }
                }
                false => summary(&host, &times, out)?,
            }
        }
        Ok((cut > 0).then(|| {
            format!(
                "switch {}: {} left out: there is room for --packets-max packets of 100,000 hosts",
                out.switch,
                count_of(cut, "packet")
            )
        }))
    }
}

/// The row of a host with these times, in order. One packet has no gaps.
fn summary(host: &str, times: &[u64], out: &mut Out<'_>) -> Result<()> {
    let (Some(&first), Some(&last)) = (times.first(), times.last()) else {
        return Ok(());
    };
    let pairs = times.windows(2);
    let mut gaps: Vec<u64> = pairs.map(|pair| pair[1].saturating_sub(pair[0])).collect();
    gaps.sort_unstable();
    let count = gaps.len() as u64;
    let mean = last.saturating_sub(first).checked_div(count);
    // The smallest gap that this share of all gaps does not exceed.
    let share = |percent: usize| {
        let rank = gaps.len().saturating_mul(percent).div_ceil(100);
        gaps.get(rank.saturating_sub(1)).copied()
    };
    out.push(&[
        Cell::Text(out.switch),
        Cell::Text(host),
        Cell::U64(times.len() as u64),
        Cell::U64(first),
        Cell::U64(last),
        Cell::Maybe(gaps.first().copied()),
        Cell::Maybe(mean),
        Cell::Maybe(share(50)),
        Cell::Maybe(share(99)),
        Cell::Maybe(gaps.last().copied()),
    ])
}
